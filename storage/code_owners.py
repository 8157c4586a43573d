"""Read CODEOWNERS files, as GitHub and GitLab do: who owns which documents.

Patterns are written as in .gitignore, without ``!``, relative to the top of the repository; the last one that matches a
path names its owners. GitLab's sections, such as ``[Docs] @writers``, each have their own owners.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.globs import fixed_prefix, normal_glob

LOCATIONS = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS", ".gitlab/CODEOWNERS")
"""Where hosts look for the file; the first one counts."""
_SECTION = re.compile(r"\^?\[[^\]]+\](?:\[\d+\])?(?=\s|$)")
_GAP = re.compile(r"(?<!\\)\s+")
_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_PART = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Section:
    """The rules of a section, in order: a pattern, and its owners, which may be none."""

    rules: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def owners(self, paths: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the owners of each of the sorted ``paths`` that a rule matches."""
        found, as_array = dict[str, tuple[str, ...]](), pa.array(paths, pa.string())
        for pattern, owners in self.rules:
            glob = normal_glob(pattern)
            prefix = fixed_prefix(glob)
            near = as_array[bisect_left(paths, prefix) : bisect_left(paths, prefix + _LAST)]
            matching = near.filter(pc.match_substring_regex(near, _regex(glob)))
            found |= dict.fromkeys(matching.to_pylist(), owners)
        return found


def sections(text: str) -> list[Section]:
    """Return the rules of a CODEOWNERS file, by section.

    Examples:
        >>> first, docs = sections("* @all  # everything\\n/build/\\n[Docs] @writers\\n*.md\\n")
        >>> first.rules, docs.rules
        ([('*', ('@all',)), ('/build/', ())], [('*.md', ('@writers',))])
    """
    found, defaults = [Section()], tuple[str, ...]()
    for line in map(str.strip, text.splitlines()):
        if heading := _SECTION.match(line):
            found.append(Section())
            defaults = _owners(line[heading.end() :])
        elif line and not line.startswith("#"):
            pattern, *rest = _GAP.split(line, maxsplit=1)
            found[-1].rules.append((re.sub(r"\\([ #])", r"\1", pattern), _owners(*rest) or defaults))
    return found


def _owners(text: str = "") -> tuple[str, ...]:
    return tuple(re.split(r"(?:^|\s)#", text)[0].split())


def owners_of(text: str, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each path with each of its owners, once.

    Examples:
        >>> text = "* @all\\n/docs/* @writers\\nsrc/api @api @all\\nsrc/api/gen\\n"
        >>> list(owners_of(text, ["docs/a/b.md", "docs/a.md", "src/api/a.go", "src/api/gen/b.go"]))
        [('docs/a.md', '@writers'), ('docs/a/b.md', '@all'), ('src/api/a.go', '@api'), ('src/api/a.go', '@all')]
    """
    ordered = sorted(paths)
    found = [section.owners(ordered) for section in sections(text)]
    for path in ordered:
        yield from ((path, owner) for owner in dict.fromkeys(chain(*(each.get(path, ()) for each in found))))


def _regex(glob: str) -> str:
    """Return the regular expression for a glob from the top of the tree, and for everything under a matching folder."""
    names = "".join(_WILDCARDS.get(each) or re.escape(each) for each in _PART.findall(glob))
    below = "" if glob.endswith("/*") else "(?:/.*)?"  # docs/* owns files only, not what is in folders
    return f"(?s)^{names}{below}$"
