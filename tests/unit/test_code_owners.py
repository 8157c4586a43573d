"""Patterns of CODEOWNERS files own the paths that GitHub's and GitLab's documentation says."""

from __future__ import annotations

import pytest

from driftline.storage.code_owners import owners_of

PATHS = ("a.js", "apps/x/b.js", "build/logs/1", "docs/deep/c.md", "docs/d.md", "lib/apps/e", "scripts/logs/2", "my f")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", PATHS),
        ("*.js", ("a.js", "apps/x/b.js")),
        ("/*.js", ("a.js",)),
        ("apps/", ("apps/x/b.js", "lib/apps/e")),
        ("apps", ("apps/x/b.js", "lib/apps/e")),
        ("/apps/", ("apps/x/b.js",)),
        ("/build/logs/", ("build/logs/1",)),
        ("/docs", ("docs/d.md", "docs/deep/c.md")),
        ("docs/*", ("docs/d.md",)),
        ("docs/**", ("docs/d.md", "docs/deep/c.md")),
        ("**/logs", ("build/logs/1", "scripts/logs/2")),
        ("docs/**/c.md", ("docs/deep/c.md",)),
        ("doc?/", ("docs/d.md", "docs/deep/c.md")),
        ("my\\ f", ("my f",)),
        ("[a].js", ()),
        ("no/such", ()),
    ],
)
def test_a_pattern_owns_the_documented_paths(pattern: str, expected: tuple[str, ...]) -> None:
    assert dict(owners_of(f"{pattern} @own\n", PATHS)) == dict.fromkeys(expected, "@own")


def test_the_last_rule_of_each_section_counts() -> None:
    text = """
    # everyone
    * @all
    /docs/  writers@example.org  # and nobody else
    /docs/deep/
    [Quality][2] @qa
    a.js
    *.md @md
    ^[Optional]
    d.md @all @md
    """
    found = list(owners_of(text, PATHS[:5]))
    assert found == [
        ("a.js", "@all"),
        ("a.js", "@qa"),
        ("apps/x/b.js", "@all"),
        ("build/logs/1", "@all"),
        ("docs/d.md", "writers@example.org"),
        ("docs/d.md", "@md"),
        ("docs/d.md", "@all"),
        ("docs/deep/c.md", "@md"),
    ]
