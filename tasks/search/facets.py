"""Count the matching files by source, language, directory, definition kind, and whether they are tests.

The values of a facet are alternatives, so each facet is counted as if none of its values were selected: a count shows
how many files another value would add. One extra search, with no values selected, counts them all. An exact search
counts matching files, up to a limit; a ranked search counts the files of the lines that it ranks.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftline.storage.documents import ALIASES, LANGUAGE_OF, is_test
from driftline.tasks.search.request import FILTERS, SearchRequest, extensions_of

FACETS = ("sources", "languages", "kinds", "dirs", "tests")
"""The options that are facets, in the order they are displayed."""


@dataclass(frozen=True, slots=True)
class Match:
    """A matching file, and the kinds of the definitions around its matching lines, if known."""

    source: str
    path: str
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Facets:
    """For each countable option in FACETS, its values and their file counts, largest first.

    The values of ``tests`` are ``true`` and ``false``. Unless ``complete`` is set, there may be more files. ``files``
    contains the counted files until the search is finished.
    """

    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    complete: bool = True
    files: tuple[Match, ...] = ()

    @classmethod
    def of(cls, files: Mapping[str, Mapping[str, int]], *, complete: bool) -> Facets:
        """Read facets written by ``to_dict``."""
        names = {FILTERS[name].parameter: name for name in FACETS}
        return cls({names[parameter]: values for parameter, values in files.items() if parameter in names}, complete)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as in ``search --json``, keyed by HTTP API parameter."""
        return {
            "complete": self.complete,
            "files": {FILTERS[name].parameter: dict(values) for name, values in self.counts.items()},
        }


def counted(matches: Iterable[Match], request: SearchRequest, *, complete: bool = True) -> Facets:
    """Count the facets of ``matches``, which are distinct files.

    Examples:
        >>> found = counted([Match("source:a", "src/x.py"), Match("source:a", "y.go")], SearchRequest("x"))
        >>> found.counts["languages"], found.counts["dirs"]
        ({'python': 1, 'go': 1}, {'src': 1})
    """
    files = tuple(matches)
    return Facets(_counts(files, request), complete, files)


def _counts(matches: Iterable[Match], request: SearchRequest) -> dict[str, dict[str, int]]:
    totals: dict[str, Counter[str]] = {name: Counter() for name in FACETS}
    for match in matches:
        totals["sources"][match.source] += 1
        totals["kinds"].update(match.kinds)
        totals["languages"].update(filter(None, [language_of_file(match.path)]))
        totals["dirs"].update(_directories(match.path, request.dirs or ()))
        totals["tests"]["true" if is_test(match.path) else "false"] += 1
    return {name: dict(found.most_common()) for name, found in totals.items() if found}


def language_of_file(path: str) -> str | None:
    """Return the first language in LANGUAGES with the file's extension."""
    return LANGUAGE_OF.get(posixpath.splitext(path)[1][1:].lower())


def _directories(path: str, chosen: Sequence[str]) -> Iterator[str]:
    """Yield a file's top directory, and for each selected directory around it, the next level."""
    names = path.split("/")[:-1]
    depths = {0, *(len(each.strip("/").split("/")) for each in chosen if path.startswith(f"{each.strip('/')}/"))}
    for depth in sorted(depths):
        if depth < len(names):
            yield "/".join(names[: depth + 1])


def chosen(request: SearchRequest) -> dict[str, tuple[str, ...]]:
    """Return the facets in which a request selects values, with the values spelled as in ``counted``."""
    values = {name: getattr(request, name) for name in FACETS}
    found = {name: tuple(map(str, each)) for name, each in values.items() if name != "tests" and each}
    if "languages" in found:
        found["languages"] = tuple(ALIASES.get(each.lower(), each.lower()) for each in found["languages"])
    return found | ({} if request.tests else {"tests": ("false",)})


def without_chosen(request: SearchRequest) -> SearchRequest:
    """Remove all selected facet values from a request whose results are not needed."""
    rest: dict[str, Any] = {name: FILTERS[name].default for name in FACETS}
    rest |= {"n_lines": 0, "count": False, "explain": False}
    return replace(request, top_k=1, rerank=False, deep=False, **rest)


def with_alternatives(found: Facets, wider: Facets, request: SearchRequest) -> Facets:
    """Add to ``found`` the alternatives to each selected value, counted among the files of ``wider``."""
    counts, conditions = dict(found.counts), _conditions(request)
    for name in conditions:
        others = [holds for other, holds in conditions.items() if other != name]
        values = _counts((file for file in wider.files if all(holds(file) for holds in others)), request).get(name, {})
        for value, count in found.counts.get(name, {}).items():
            values[value] = max(count, values.get(value, 0))
        counts[name] = dict(sorted(values.items(), key=lambda each: -each[1]))
    return Facets({name: counts[name] for name in FACETS if counts.get(name)}, found.complete and wider.complete)


def _conditions(request: SearchRequest) -> dict[str, Callable[[Match], bool]]:
    """Return, for each facet with selected values, a predicate that tests whether a file has one of them."""
    sources = tuple(map(str, request.sources or ()))
    dirs = tuple(f"{each.strip('/')}/" for each in request.dirs or ())
    exts = frozenset(extensions_of(request.languages or ()))
    kinds = frozenset(request.kinds or ())
    of_facets: dict[str, Callable[[Match], bool]] = {
        "sources": lambda file: any(f"{file.source}/".startswith(f"{each}/") for each in sources),
        "languages": lambda file: posixpath.splitext(file.path)[1][1:].lower() in exts,
        "kinds": lambda file: not kinds.isdisjoint(file.kinds),
        "dirs": lambda file: file.path.startswith(dirs),
        "tests": lambda file: not is_test(file.path),
    }
    return {name: of_facets[name] for name in FACETS if name in chosen(request)}
