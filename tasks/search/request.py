"""The search request, and the explanation of a search (DESIGN, "Search").

Every interface builds the same request, which is validated here.

Each option is declared once, with its name, type, default and help, and the names and limits that differ between
interfaces. The command line, the HTTP API and page, the MCP tool, the action, ``[search]`` in ``driftline.toml`` and
the Python functions get their parameters from the table ``OPTIONS``.
"""

import os
import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING, Any, Self

from driftline.storage.defaults import (
    DEFAULT_ENTRIES,
    DEFAULT_N_LINES,
    DEFAULT_TOP_K,
    FALLBACK_THRESHOLD,
    MAX_RERANKED,
    Mode,
    Strategy,
)
from driftline.storage.documents import ALIASES, LANGUAGES, is_prose, is_test
from driftline.storage.errors import UsageError
from driftline.storage.globs import alternatives, check_glob, is_unicode
from driftline.storage.lines.outline import KINDS
from driftline.storage.option_table import INTERFACES, Option, Options, listed, option

if TYPE_CHECKING:
    from driftline.storage.entities import Boundary, Entity
    from driftline.storage.lines.line_filter import LineFilter


MAX_TOP_K = 50
"""Maximum number of results that servers return."""
_HERE = INTERFACES - {"http"}
"""The interfaces for options that are too expensive to offer to every server client."""
_ACTION_AND_COMMAND = frozenset({"action", "command"})


WILDCARD = re.compile(r"[*?\[]|\{.*,.*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFilter:
    """Conditions that a line must all satisfy; if a condition has several values, one of them must match.

    None adds no condition; an empty list matches nothing. Extensions may contain braces. ``where`` and ``also`` are
    additional conditions, and ``inside`` names definitions that must enclose a line.
    Nothing outside ``within`` is matched, or mentioned in errors. If ``on_this_machine`` is set,
    ``paths``, ``dirs`` and globs that start with ``~`` or ``..`` refer to local files and folders, or their paths in a
    source.

    Raises UsageError for a value that can never match, suggesting the closest one that can.
    """

    paths: Sequence[str] | None = option(
        None,
        "Only in these files.",
        flag="--path",
        parameter="path",
        metavar="PATH",
        group="Filters",
    )
    dirs: Sequence[str] | None = option(
        None,
        "Only below these directories.",
        flag="--dir",
        parameter="dir",
        metavar="DIR",
        group="Filters",
    )
    globs: Sequence[str] | None = option(
        None,
        "Only in files that match these globs, such as src/**/*.py.",
        flag="--glob",
        parameter="glob",
        metavar="GLOB",
        group="Filters",
    )
    exts: Sequence[str] | None = option(
        None,
        "Only in files with these extensions, such as py or {ts,tsx}.",
        flag="--ext",
        parameter="ext",
        metavar="EXT",
        group="Filters",
    )
    languages: Sequence[str] | None = option(
        None,
        "Only in files of these languages, such as python.",
        flag="--lang",
        parameter="lang",
        metavar="LANGUAGE",
        choices=(*LANGUAGES, *ALIASES),
        group="Filters",
    )
    kinds: Sequence[str] | None = option(
        None,
        "Only inside definitions of these kinds: function, class, section, ...",
        flag="--kind",
        parameter="kind",
        metavar="KIND",
        choices=KINDS,
        group="Filters",
    )
    symbols: bool = option(
        False,
        "Only lines that start a definition.",
        group="Filters",
    )
    tests: bool = option(
        True,
        "Include test files.",
        flag="--tests/--no-tests",
        leaves_out=is_test,
        group="Filters",
    )
    prose: bool = option(
        True,
        "Include prose, such as Markdown.",
        flag="--prose/--no-prose",
        leaves_out=is_prose,
        group="Filters",
    )
    sources: Sequence[str | tuple[str, str]] | None = option(
        None,
        "Only these sources, or the sources below an entity such as org:acme/project:alpha.",
        flag="--entity",
        parameter="source",
        argument="entity",
        metavar="PATH",
        is_entity=True,
        group="Filters",
    )
    workspace_name: str | None = option(
        None,
        "Only in this view of driftline.toml, [workspaces.NAME].",
        flag="--in",
        metavar="NAME",
        only_in=_ACTION_AND_COMMAND,
        group="Filters",
    )
    branch: str | None = option(
        None,
        "Search this branch in the sources that have it; auto: the checked-out branch.",
        metavar="NAME",
        guide="branches.md",
        max_characters=200,
        is_setting=True,
        group="Filters",
    )
    where: "LineFilter | None" = None
    also: "Sequence[LineFilter]" = ()
    inside: Sequence[str] = ()
    within: "Boundary | Entity | None" = None
    on_this_machine: bool = False

    def __post_init__(self) -> None:
        _check_options(self, FILTERS)
        for label, names in (("path", self.paths), ("directory", self.dirs)):
            for each in names or ():
                _check_name(label, each)
                if not self.on_this_machine:
                    _check_inside(label, each)
        if self.globs is not None:
            object.__setattr__(self, "globs", tuple(map(self._glob, self.globs)))
        if self.exts is not None:
            object.__setattr__(self, "exts", tuple(ext for given in self.exts for ext in _extensions(given)))
        extensions_of(self.languages or ())
        _check_kinds(self.kinds or ())

    @property
    def boundary(self) -> "Boundary | None":
        """The boundary of ``within``, or None for the whole workspace."""
        if self.within is None:
            return None
        from driftline.storage.entities import Boundary

        return self.within if isinstance(self.within, Boundary) else Boundary.of(self.within)

    def _glob(self, glob: str) -> str:
        if self.on_this_machine and glob.startswith(("~/", "../")):
            glob = os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(glob)))
        check_glob(glob)
        return glob


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest(SearchFilter):
    """A query and its search options.

    To add an option, add a line here, or in ``SearchFilter`` if the option excludes lines. All interfaces then offer
    it, unless ``only_in`` limits it to some; the MCP tools choose theirs.

    Raises UsageError for a value that is out of bounds or empty.

    Examples:
        >>> request = SearchRequest("who renews the lease", top_k=3, exts=["py"])
        >>> request.top_k, request.exts, request.mode
        (3, ('py',), 'hybrid')
        >>> SearchRequest("lease", top_k=-1)
        Traceback (most recent call last):
        driftline.storage.errors.UsageError: top_k must not be negative: -1
    """

    query: str = field(kw_only=False)
    top_k: int = option(
        DEFAULT_TOP_K,
        "Maximum number of results.",
        bounds=(0, inf),
        served=(1, MAX_TOP_K),
        is_setting=True,
        group="Results",
    )
    max_distance: float | None = option(
        None,
        "Drop results with a cosine distance above this (0 to 2).",
        bounds=(0, 2),
        group="Ranking",
    )
    min_relevance: float | None = option(
        None,
        "Drop results with a relevance below this (0 to 1): the fraction of random lines that are more distant, "
        "not the score.",
        bounds=(0, 1),
        group="Ranking",
    )
    n_lines: int = option(
        DEFAULT_N_LINES,
        "Lines of context around the matching lines; below 3: around the best line only.",
        bounds=(0, inf),
        served=(0, 20),
        aliases=("-n", "-C"),
        is_setting=True,
        group="Results",
    )
    mode: Mode = option(
        "hybrid",
        "Rank by words and embeddings (hybrid), embeddings only (vector) or words only (text).",
        is_setting=True,
        group="Ranking",
    )
    strategy: Strategy = option(
        "auto",
        "When to apply filters: use auto; the others exist for benchmarks.",
        only_in=_HERE,
        is_setting=True,
        aliases=("workspaceFiltering",),
        group="Ranking",
    )
    fallback_threshold: float = option(
        FALLBACK_THRESHOLD,
        "With strategy hybrid: filter after the search if at least this fraction of the lines matches the filter.",
        bounds=(0, 1),
        only_in=_HERE,
        is_setting=True,
        aliases=("fallbackThreshold",),
        group="Ranking",
    )
    rerank: bool | int = option(
        False,
        "Rerank the best results with a transformer (extra: deep).",
        flag="--rerank/--no-rerank",
        bounds=(0, MAX_RERANKED),
        guide="search.md#rerank",
        only_in=_HERE,
        is_setting=True,
        group="Ranking",
    )
    deep: bool | None = option(
        None,
        "Also search the definition embeddings written by 'index --deep'; default: if there are any.",
        flag="--deep/--no-deep",
        guide="search.md#deep",
        only_in=frozenset({"command"}),
        is_setting=True,
        group="Ranking",
    )
    fixed: Sequence[str] | None = option(
        None,
        "Only lines with this text. With several exact terms, the file must contain all, the line at least one.",
        aliases=("-F",),
        metavar="TEXT",
        group="Exact search",
    )
    regex: Sequence[str] | None = option(
        None,
        "Like --fixed, for a regular expression (RE2).",
        aliases=("-E",),
        metavar="REGEX",
        group="Exact search",
    )
    whole_words: bool = option(
        False,
        "Exact terms match whole words only.",
        aliases=("-w",),
        group="Exact search",
    )
    ignore_case: bool | None = option(
        None,
        "Ignore case in exact terms; default: in terms without a capital.",
        flag="--ignore-case/--case-sensitive",
        aliases=("-i",),
        group="Exact search",
    )
    multiline: bool = option(
        False,
        "Exact terms may match over several lines.",
        aliases=("-U",),
        group="Exact search",
    )
    count: bool = option(
        False,
        "Only count the lines that match exact terms.",
        group="Results",
    )
    files: bool = option(
        False,
        "Show only the first matching line of each file.",
        group="Results",
    )
    facets: bool = option(
        False,
        "Count the files that match by source, language, kind, directory and tests.",
        group="Results",
    )
    explain: bool = option(
        False,
        "Show the steps of the search and their times.",
        only_in=_ACTION_AND_COMMAND,
        group="Results",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.query, str):
            raise UsageError("The query must be text", repr(self.query)[:100])
        if not is_unicode(self.query):
            raise UsageError("The query is not UTF-8", repr(self.query)[:100], "Check the terminal's encoding.")
        SearchFilter.__post_init__(self)
        _check_options(self, {name: row for name, row in OPTIONS.items() if name not in FILTERS})

    @property
    def is_empty(self) -> bool:
        """Whether the request has neither a query nor exact terms."""
        return not (self.query.strip() or self.fixed or self.regex)

    @classmethod
    def of(cls, query: str, given: Mapping[str, Any], **more: Any) -> Self:
        """Build a request from the options passed to an interface.

        Args:
            query: what to look for.
            given: options, keyed by name; None means that an option was not given.
            more: additional fields.

        Returns:
            The request.

        Raises:
            UsageError: If an option has an invalid value.

        Examples:
            >>> SearchRequest.of("lease", {"top_k": 3, "mode": None}).given()
            {'top_k': 3}
        """
        return cls(query, **{name: value for name, value in given.items() if value is not None}, **more)

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults.

        Returns:
            Values, keyed by name.

        Examples:
            >>> SearchRequest("lease", exts=("md",)).given()
            {'exts': ('md',)}
        """
        values = {name: (getattr(self, name), row.default) for name, row in OPTIONS.items()}
        return {name: value for name, (value, default) in values.items() if value != default}


FILTERS = Options.of(SearchFilter)
OPTIONS = Options.of(SearchRequest)
"""The search options."""

_NAMED = re.compile(r"`(\w+)`")
_FLAGS = {name: row.flag.partition("/")[0] for name, row in OPTIONS.items()}
_FLAGS |= {
    name: f"--{name.replace('_', '-')}" for name in ("include", "exclude", "max_document_bytes")
}  # index command options


def in_flags(note: str) -> str:
    """Replace option names in a note's backticks with command-line flags.

    Other interfaces show the note unchanged.

    Examples:
        >>> in_flags("a larger `top_k` shows more")
        'a larger --top-k shows more'
    """
    return _NAMED.sub(lambda found: _FLAGS.get(found[1], found[0]), note)


MEMORY_OPTIONS = Options(
    {name: OPTIONS[name] for name in ("max_distance", "mode", "explain")}
    | {"top_k": replace(OPTIONS["top_k"], default=DEFAULT_ENTRIES)}
)
"""The memory search options."""


def extensions_of(languages: Sequence[str]) -> tuple[str, ...]:
    """Return the file extensions of languages, given by their common names.

    Raises UsageError for an unknown language.
    """
    found: dict[str, None] = {}
    for language in languages:
        name = language.lower()
        extensions = LANGUAGES.get(ALIASES.get(name, name))
        if extensions is None:
            near = get_close_matches(name, (*LANGUAGES, *ALIASES), 1)
            advice = f"Did you mean {near[0]!r}?" if near else f"Use one of {', '.join(LANGUAGES)}, or an extension."
            raise UsageError("Unknown language", language, advice)
        found.update(dict.fromkeys(extensions))
    return tuple(found)


def _check_options(owner: "SearchFilter", options: Mapping[str, Option]) -> None:
    """Check the values of ``options``, and convert lists to tuples. Raises UsageError."""
    for name, row in options.items():
        if getattr(owner, name) is row.default:  # most are, each time that a request is copied
            continue
        if row.is_list:
            object.__setattr__(owner, name, listed(name, getattr(owner, name)))
        row.check(getattr(owner, name))


def _check_kinds(kinds: Sequence[str]) -> None:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        near = get_close_matches(unknown[0].lower(), KINDS, 1)
        advice = f"Did you mean {near[0]!r}? " if near else ""
        raise UsageError("Unknown kind of definition", ", ".join(unknown), f"{advice}Use one of {', '.join(KINDS)}.")


def _check_name(label: str, name: str) -> None:
    if not name.strip():
        raise UsageError(f"Empty {label}", fix="Omit it; '.' is a whole source.")
    if not is_unicode(name) or "\0" in name:
        what = f"A {label} contains NUL or is not UTF-8, so that it can never match"
        raise UsageError(what, repr(name), "Check its encoding.")


def _check_inside(label: str, name: str) -> None:
    if ".." not in name.split("/"):
        return
    clean = posixpath.normpath(name)
    if clean.split("/")[0] == "..":
        raise UsageError(f"The {label} points outside its source", repr(name), "Use a path relative to the source.")
    raise UsageError(f"A {label} must not contain '..'", repr(name), f"Use {clean!r}.")


def _extensions(given: str) -> Iterator[str]:
    """Yield the extensions for one value. Raises UsageError."""
    for ext in alternatives(given):
        name = ext.removeprefix("*").removeprefix(".")
        if not name.strip():
            raise UsageError("Empty extension", repr(given), "Specify one, such as 'py'.")
        if not is_unicode(name):
            raise UsageError(
                "The extension is not UTF-8, but all indexed extensions are", repr(given), "Check its encoding."
            )
        if ext.startswith("*") or name != name.strip():
            raise UsageError("An extension must not be a glob", repr(given), f"Use {name.strip()!r}.")
        if "." in name or "/" in name or WILDCARD.search(name):
            fix = f"Use the glob {(name if '/' in name else f'*.{name}')!r}."
            raise UsageError("An extension must not contain a dot, slash or wildcard", repr(given), fix)
        if "," in name and not name.endswith(",v"):
            raise UsageError(
                "The extension contains a comma", repr(given), f"Use {'{' + name + '}'!r}, or repeat the option."
            )
        yield ext


@dataclass(slots=True)
class Explanation:
    """The steps and statistics of a search.

    ``lines`` counts all lines, ``matches`` counts the lines that pass the filter, and ``examined`` counts the compared
    vectors. ``index`` is the type of the vector index, None for an exhaustive comparison.
    ``blocks_without_definitions`` is the number of blocks whose definitions were not determined. ``complete`` is false
    if more lines might match than were read. ``seconds`` is keyed by phase.
    """

    mode: str
    strategy: str
    lines: int = 0
    matches: int = 0
    examined: int = 0
    index: str | None = None
    blocks: int = 0
    blocks_without_definitions: int = 0
    candidates: int = 0
    complete: bool = True
    seconds: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as a dictionary.

        Returns:
            The ``explanation`` in ``search --explain --json``.

        Examples:
            >>> Explanation("hybrid", "prefilter", lines=4, matches=1).to_dict()["hit_rate"]
            0.25
        """
        return {**asdict(self), "hit_rate": self.matches / self.lines if self.lines else 0.0}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Return a context that adds the time of its ``with`` block to ``seconds``.

        Args:
            phase: the key in ``seconds``.

        Returns:
            The context manager.

        Examples:
            >>> explanation = Explanation("hybrid", "prefilter")
            >>> with explanation.timed("words"):
            ...     pass
            >>> [*explanation.seconds]
            ['words']
        """
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started
