"""Braces match each of their alternatives, and accents match in every Unicode form that a disk may store."""

from __future__ import annotations

import itertools
import re
import subprocess
from typing import Literal
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline.storage.errors import UsageError
from driftline.storage.globs import alternatives, check_glob, glob_pattern, literal_glob, spellings
from driftline.tasks.search.filters import _note_on

Built = tuple[str, tuple[str, ...]]
"""A pattern and the brace-free patterns it expands to."""

plain = st.text(st.sampled_from("ab.*?/-"), max_size=3).map(lambda text: (text, (text,)))
literal_braces = st.sampled_from(("{}", "{x}", "{{y}}", "[{,]")).map(lambda text: (text, (text,)))


def joined(parts: list[Built]) -> Built:
    found = ("".join(chosen) for chosen in itertools.product(*(meant for _, meant in parts)))
    return "".join(pattern for pattern, _ in parts), tuple(found)


def either(options: list[Built]) -> Built:
    return "{" + ",".join(pattern for pattern, _ in options) + "}", tuple(
        each for _, meant in options for each in meant
    )


built = st.recursive(
    plain | literal_braces,
    lambda inner: st.lists(inner, min_size=2, max_size=3).map(either) | st.lists(inner, max_size=3).map(joined),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(built)
def test_braces_expand_to_their_alternatives(case: Built) -> None:
    pattern, meant = case
    assert alternatives(pattern) == tuple(dict.fromkeys(meant))
    assert alternatives(pattern, escapes=True) == alternatives(pattern)


names = st.text(st.sampled_from("aeéüñẽ한Å ñ̃*[{"), min_size=1, max_size=6).filter(str.strip)
Form = Literal["NFC", "NFD"]
FORMS: tuple[Form, ...] = ("NFC", "NFD")
forms = st.sampled_from(FORMS)


@settings(max_examples=200, deadline=None)
@given(names, forms, forms)
def test_a_name_is_found_in_any_unicode_form(name: str, typed: Form, stored: Form) -> None:
    glob, path = literal_glob(normalize(typed, name)), normalize(stored, name)
    (only,) = check_glob(glob)
    assert re.fullmatch(glob_pattern(only), path)
    assert path in spellings(normalize(typed, name))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_question_mark_matches_a_letter_with_its_accents(form: Literal["NFC", "NFD"]) -> None:
    assert re.fullmatch(glob_pattern("r?sum[\u00e9].md"), normalize(form, "r\u00e9sum\u00e9.md"))
    assert not re.fullmatch(glob_pattern("r?sume.md"), normalize(form, "r\u00e9sum\u00e9.md"))


@pytest.mark.parametrize(
    "group",
    [
        *("{1..3}", "{3..2}", "{01..3}", "{8..010}", "{-1..1}", "{-01..1}", "{1..9..4}", "{9..1..-4}", "{1..3..0}"),
        *("{0..2}", "{a..c}", "{C..A}", "{a..g..3}", "{7..7}", "{b..b}", "{a..3}", "{ab..c}", "{1...3}", "{1..}"),
    ],
)
def test_ranges_are_expanded_as_by_bash(group: str) -> None:
    command = ["bash", "-c", f"printf '%s\\n' v{group}"]
    expanded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert list(alternatives(f"v{group}")) == expanded


@pytest.mark.parametrize("glob", ["{a.ts,}", "{,a.ts}", "{ ,}", "{a,{b,}}"])
def test_an_empty_alternative_is_refused(glob: str) -> None:
    with pytest.raises(UsageError, match=r"empty alternative|spaces"):
        check_glob(glob)


@pytest.mark.parametrize(
    ("glob", "nearest"),
    [(r"src\a.ts", "src/a.ts"), (r"we\[i\]rd.py", "we[[]i]rd.py"), (r"a\{b\}\c", "a[{]b}/c"), (r"\!b.py", "!b.py")],
)
def test_a_note_names_the_nearest_glob_without_backslashes(glob: str, nearest: str) -> None:
    assert repr(nearest) in _note_on("globs", glob)[1]


@pytest.mark.parametrize("glob", [r"src\*.py", r"src\**", r"C:\src\?.py"])
def test_a_backslash_before_a_wildcard_may_separate_folders_or_escape_it(glob: str) -> None:
    separated, escaped = glob.replace("\\", "/"), re.sub(r"\\([*?])", r"[\1]", glob).replace("\\", "/")
    assert f"{separated!r} or {escaped!r}" in _note_on("globs", glob)[1]
