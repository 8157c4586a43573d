"""Turn line hits into a search's report: windows with text, context and freshness.

A file is shown once, even if several sources contain it. ``why_nothing`` and others explain a search with no results,
or only weak ones: an empty index, filters that match nothing, unknown words, or the distance of the nearest line.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from typing import Any, Literal

import pyarrow as pa

from driftline.storage.broken_lines import MAX_LINES
from driftline.storage.defaults import (
    CUT,
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_N_LINES,
    MAX_SHOWN_CHARACTERS,
    Mode,
    Redaction,
    all_weak,
)
from driftline.storage.documents import INSIDE, container_of, holds_records, is_prose
from driftline.storage.errors import DriftlineError
from driftline.storage.lines.definition_lookup import outlines_of
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.line_table import TEXT_COLUMN
from driftline.storage.lines.outline import Definition, anchor_at, fragment_of, innermost, location_of
from driftline.storage.lines.outline import decode as decode_outline
from driftline.storage.lines.packs import lines_of
from driftline.storage.lines.table_searcher import Passage, TableSearcher
from driftline.storage.lines.tokenizer import (
    WORDS_OF_A_NAME,
    is_paired,
    keywords,
    language_of,
    normalize_query,
    terms,
    tokens,
)
from driftline.storage.redaction import redact_lines
from driftline.storage.sources.source import Source, known_source
from driftline.storage.workspace.records import html_table
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.extraction.extractor import is_extracted, is_named_like_document
from driftline.tasks.search.facets import Facets
from driftline.tasks.search.filters import ALL_LINES, LineKinds, conditions, line_filter
from driftline.tasks.search.freshness import (
    Freshness,
    LinesOfData,
    Read,
    current_lines,
    freshness_after_read,
    is_unchanged,
)
from driftline.tasks.search.links import Links, SourceRecords, find_links
from driftline.tasks.search.ranking import MAX_HEAD_LINES, MAX_WINDOW_LINES, Window
from driftline.tasks.search.relevance import Calibration, Label, label, likelihood
from driftline.tasks.search.request import Explanation, SearchFilter, SearchRequest
from driftline.tasks.text import decode, is_utf8, lines_between

NO_GOOD_MATCH = "No good match. These are the nearest lines, all weak."
MAX_MISSPELT = 40
"""Longer words, in characters, have no similar words: looking them up takes too long."""
SIMILAR_BLOCKS, SIMILAR_WORDS = 30, 3
"""In how many blocks to look for words similar to one that no block has, and how many of these to name."""
MIN_SIMILARITY = 0.75
"""The minimum similarity of such words (``difflib``)."""
MAX_SHORT_STEM = 5
"""The longest stem, in letters, that may differ in only one letter; longer ones may differ in two."""
UNKNOWN_WORDS = "The model knows none of the query's words."


_BEFORE_CHARACTERS = 100
"""How many characters to show before the match."""
_WORD = re.compile(r"\w+")


def clipped(line: str, at: int = 0) -> str:
    """Clip ``line`` to MAX_SHOWN_CHARACTERS around character ``at``, marking cuts with an ellipsis."""
    if len(line) <= MAX_SHOWN_CHARACTERS:
        return line
    start = max(0, min(at - _BEFORE_CHARACTERS, len(line) - MAX_SHOWN_CHARACTERS))
    end = start + MAX_SHOWN_CHARACTERS
    head, tail = (CUT if start else ""), (CUT if end < len(line) else "")
    return head + line[start + len(head) : end - len(tail)] + tail


@lru_cache(64)
def _word_of(query: str) -> re.Pattern[str] | None:
    """Return a regular expression for the query's words, in lower case, or None if there are none."""
    words = {*map(str.lower, _WORD.findall(query))} | {*keywords(query)}
    words = {word for word in words if len(word) > 1} or words
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True)))) if words else None


def match_in(line: str, query: str) -> int:
    """Return the start of the part of ``line`` with the most words of ``query``; 0 if it has none."""
    anyone = _word_of(query)
    found = [(each.start(), each[0]) for each in anyone.finditer(line.lower())] if anyone else []
    best, most, end = 0, 0, 0
    held: Counter[str] = Counter()
    for start, word in found:
        while end < len(found) and found[end][0] < start + MAX_SHOWN_CHARACTERS - _BEFORE_CHARACTERS:
            held[found[end][1]] += 1
            end += 1
        if len(held) > most:
            best, most = start, len(held)
        held[word] -= 1
        if not held[word]:
            del held[word]
    return best


def distinct_windows(find: Callable[[int], Sequence[Window]], limit: int, records: SourceRecords) -> list[Window]:
    """Return the first ``limit`` windows from ``find(n)``, skipping files already shown under an earlier source."""
    count = limit
    while True:
        found = find(count)
        kept = of_distinct_files(found, records)
        if len(kept) >= limit or len(found) < count:
            return kept[:limit]
        count *= 2


def of_distinct_files(windows: Sequence[Window], records: SourceRecords) -> list[Window]:
    """Drop windows of files that an earlier window shows under another source."""
    if len({window.entity for window in windows}) < 2:
        return list(windows)
    owners: dict[tuple[str, ...], str] = {}
    return [
        window for window in windows if owners.setdefault(identity_of(window, records), window.entity) == window.entity
    ]


def missing_sources(windows: Sequence[Window], records: SourceRecords) -> set[str]:
    """Return the sources of ``windows`` whose folder is gone, if there are several sources: it may have moved."""
    entities = {window.entity for window in windows}
    known = {entity: records.get(entity) for entity in entities} if len(entities) > 1 else {}
    return {
        entity
        for entity, record in known.items()
        if record is not None
        and record.is_local
        and records.workspace.access.allows(record.uri)
        and not os.path.isdir(record.uri)
    }


def identity_of(window: Window, records: SourceRecords) -> tuple[str, ...]:
    """Return a key for a window's file that is the same for all sources."""
    record = records.get(window.entity)
    if record is None:
        return window.entity, window.path
    if records.workspace.objects.is_local or not known_source(record.uri).is_local:
        return (posixpath.join(record.uri, window.path),)
    if record.origin is not None:
        return record.origin, posixpath.join(record.subpath, window.path)
    return window.entity, window.path  # the path may be on any of several machines


@dataclass(frozen=True, slots=True, repr=False)
class Hit:
    """A window of one document. Line numbers are 1-based and inclusive.

    ``path`` is the document's path in its source. ``file`` is an absolute path or URI to open (of its archive, for
    archive members), or None for standard input and removed sources. ``line`` and ``text`` are the best line, and
    ``column`` is where it matches the query. ``score`` orders the list: it is the probability that such a hit is
    relevant, and ``label`` classifies it; for more hits in the same file, the score is lower than the label suggests.
    In ``vector`` mode, ``score`` is the best line's cosine, and there is no label. ``distance`` is 1 - the best line's
    cosine, and ``relevance`` is the fraction of random line pairs that are more distant. ``copies`` lists other
    documents with nearly the same text, which are not shown. ``context`` contains the lines from
    ``start_line`` to ``end_line``, as indexed. Long lines are clipped around the match in ``text`` and ``context``
    (``clipped``).

    ``freshness`` is the best line's state, and ``line_now`` its current number; both are None if that would require
    more reads. ``symbol`` is the qualified name of the innermost definition around the best line, ``kind`` is its kind
    (``storage.lines.outline.DefinitionKind``), and ``symbol_start`` and ``symbol_end`` its lines as indexed, including
    comments above it; all are None outside definitions, or if definitions are not indexed. ``anchor`` is the best
    line's position in a document whose text was extracted (``cell 7``); line numbers refer to the extracted text.
    ``fragment`` is the URL fragment for a viewer (``page=12``), None if no viewer supports one. ``matches`` contains
    the positions in the best line that match the patterns of an exact search: the columns of the first character and
    after the last character, 1-based. ``url`` is a permalink to the best line at a commit on its repository's host;
    None unless the text there is known to be the same.
    """

    path: str
    file: str | None
    source: str
    line: int
    start_line: int
    end_line: int
    score: float
    distance: float
    relevance: float
    rank: int
    text: str
    context: tuple[str, ...]
    freshness: str | None = None
    line_now: int | None = None
    column: int = 1
    symbol: str | None = None
    kind: str | None = None
    symbol_start: int | None = None
    symbol_end: int | None = None
    label: Label | None = None
    copies: tuple[str, ...] = ()
    matches: tuple[tuple[int, int], ...] = ()
    anchor: str | None = None
    fragment: str | None = None
    url: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as a dictionary, ten times faster than ``dataclasses.asdict``.

        Returns:
            The hit's object in ``search --json``.

        Examples:
            >>> ws.search("lease").results[0].to_dict()["path"]
            'notes.md'
        """
        listed = {"context": list(self.context), "copies": list(self.copies), "matches": [*map(list, self.matches)]}
        return {name: getattr(self, name) for name in self.__slots__} | listed

    def __repr__(self) -> str:
        return f"<Hit {self.rank}. {self.path}:{location_of(self.anchor, self.line)} {self.text.strip()[:80]!r}>"

    def _repr_html_(self) -> str:
        lines = enumerate(self.context, start=self.start_line)
        return html_table((f"{self.path}:{location_of(self.anchor, self.line)}", f"{self.score:.2f}"), lines)


_ARROW: Mapping[str, pa.DataType] = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "tuple": pa.list_(pa.string()),
}
HIT_TYPES: Mapping[str, pa.DataType] = {
    each.name: _ARROW.get(str(each.type).partition(" ")[0].partition("[")[0], pa.string()) for each in fields(Hit)
} | {"matches": pa.list_(pa.list_(pa.int64()))}
"""The Arrow types of a hit's fields."""


@dataclass(frozen=True, slots=True)
class ExactCounts:
    """How many ``lines`` and ``documents`` an exact search found: all matches if ``complete`` is set.

    Otherwise ``reason`` explains why not: the ``limit`` on results, the ``time``, or ``partial`` documents that pass
    the filters and are indexed only at both ends. Filter-only queries count no lines. ``terms`` are
    the query's exact terms.
    """

    lines: int
    documents: int
    reason: Literal["limit", "time", "partial"] | None = None
    partial: int = 0
    terms: tuple[str, ...] = field(default=(), compare=False)

    @property
    def complete(self) -> bool:
        """Whether there are no more matches."""
        return self.reason is None

    def to_dict(self) -> dict[str, Any]:
        """Return the object for ``search --json``."""
        counts = {"lines": self.lines, "documents": self.documents, "complete": self.complete, "reason": self.reason}
        return {**counts, "partial": self.partial, "terms": list(self.terms)}

    def notes(self, shown: int) -> tuple[str, ...]:
        """Return notes on matching lines that are not shown or not indexed, with option names in backticks."""
        notes = []
        if self.reason == "time":
            notes.append("The search timed out, so there may be more lines: narrow it to some files.")
        elif self.reason == "limit":
            notes.append(note_on_limit(shown))
        elif not self.lines:
            notes.append("No line matches the exact terms.")
        if self.partial:
            of = "1 large document" if self.partial == 1 else f"{self.partial:,} large documents"
            notes.append(f"Only the first and last lines of {of} are indexed: `max_document_bytes` of a run takes all.")
        return tuple(notes)


def note_on_limit(shown: int) -> str:
    """Return the note on matching lines beyond the limit on results."""
    return f"More lines match than the {shown:,} shown: a larger `top_k` shows them, `count` counts them."


@dataclass(frozen=True, slots=True, repr=False)
class SearchReport:
    """The result of a search: an iterable of hits, best first.

    Examples:
        >>> report = SearchReport("lease", ())
        >>> report
        <SearchReport 'lease': 0 results>
        >>> [hit.path for hit in report]
        []
    """

    query: str
    results: tuple[Hit, ...]
    explanation: Explanation | None = None
    notes: tuple[str, ...] = ()
    """Notes: why there are no results, or that no result is a good match."""
    nearest: Hit | None = None
    """If there are no results, the nearest line that passes the filters, at any distance."""
    unmatched: tuple[str, ...] = ()
    """If there are no results, the globs that match no documents."""
    exact: ExactCounts | None = None
    """The counts of an exact search, and whether they are complete."""
    facets: Facets | None = None
    """How many files match by facet, if requested."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary.

        Returns:
            The ``search --json`` object.

        Examples:
            >>> SearchReport("lease", ()).to_dict()
            {'query': 'lease', 'results': []}
        """
        found: dict[str, Any] = {"query": self.query, "results": [hit.to_dict() for hit in self.results]}
        found |= {"explanation": self.explanation.to_dict()} if self.explanation else {}
        found |= {"exact": self.exact.to_dict()} if self.exact else {}
        found |= {"facets": self.facets.to_dict()} if self.facets else {}
        found |= {"notes": list(self.notes)} if self.notes else {}
        found |= {"unmatched": list(self.unmatched)} if self.unmatched else {}
        return found | ({"nearest": self.nearest.to_dict()} if self.nearest else {})

    def to_arrow(self) -> pa.Table:
        """Return the hits as a table.

        Returns:
            One row per hit, with the fields of ``Hit`` as columns.

        Examples:
            >>> SearchReport("lease", ()).to_arrow().num_rows
            0
        """
        rows = [hit.to_dict() for hit in self.results]
        return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in HIT_TYPES.items()})

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.results)

    def __repr__(self) -> str:
        count = f"{len(self.results)} result{'' if len(self.results) == 1 else 's'}"
        shown = "".join(f"\n  {hit.rank}. {hit.path}:{hit.line}  {hit.text.strip()[:80]}" for hit in self.results)
        return f"<SearchReport {self.query!r}: {count}{shown}>"

    def _repr_html_(self) -> str:
        rows = [(f"{hit.path}:{hit.line}", f"{hit.score:.2f}", hit.text) for hit in self.results]
        return html_table(("line", "score", "text"), rows) + html_table(("notes",), [(note,) for note in self.notes])


def hits(
    workspace: Workspace,
    tables: Sequence[TableSearcher],
    windows: Sequence[Window],
    query: str,
    n_lines: int,
    records: SourceRecords,
    calibration: Calibration,
    within_definitions: bool,
) -> Iterator[Hit]:
    """Yield ``windows`` found in ``tables``, best first, with their text and ``n_lines`` of context.

    The context comes from the index if the document changed or cannot be read. If ``within_definitions`` is set, a
    function's context does not extend into the next one.
    """
    add_definitions(tables, windows)
    read = read_documents(workspace, windows, records, context=n_lines > 0)
    unchanged_text, judge = cache(_unchanged_text), partial(_judged, cache(current_lines))  # windows share documents
    documents = [read.get((window.entity, window.path)) for window in windows]
    texts = [unchanged_text(window.path, each, window.hash) for each, window in zip(documents, windows, strict=True)]
    anchors, links = anchors_of(tables, windows, read), links_of(workspace, windows, records, read)
    arounds = [_around(window, n_lines, within_definition=within_definitions) for window in windows]
    passages = [
        Passage(*window.file, max(0, first - MAX_HEAD_LINES), last)
        for window, (first, last) in zip(windows, arounds, strict=True)
    ]
    lacking = [passage for passage, text in zip(passages, texts, strict=True) if n_lines and text is None]
    indexed = _indexed(tables, lacking)
    score = certain = math.inf
    found = zip(windows, documents, texts, passages, arounds, strict=True)
    for rank, (window, document, text, passage, (first, _)) in enumerate(found, start=1):
        lines = indexed.get(passage, [])
        if n_lines and text is not None:
            lines = _redacted(text, passage, records.redaction(window.entity))
        start, context = _shown(window, lines, passage.first, first)
        at = match_in(window.text, query)
        judged = judge(window, document, records.redaction(window.entity), unchanged=text is not None)
        scored = window.score + window.penalty, window.lead, window.max_score, window.coverage
        likely = likelihood(*scored) if window.max_score else None
        # Windows below the reranked ones use a different score scale.
        score = min(score, window.score if likely is None else likely)
        if likely is not None:  # a label is never stronger than an earlier one
            certain = min(certain, likely if window.penalty else score)
        yield Hit(
            path=window.path,
            file=file_of(records, window),
            source=window.entity,
            line=window.best + 1,
            start_line=start + 1,
            end_line=start + len(context),
            score=score,
            distance=window.distance,
            relevance=calibration.relevance(window.distance),
            rank=rank,
            text=clipped(window.text, at),
            context=clipped_context(context, window.best - start, window.column + at),
            freshness=judged.state.value if judged else None,
            line_now=judged.line if judged else None,
            column=window.column + at + 1,
            **symbol_of(window.definition),
            label=None if likely is None else label(certain),
            copies=window.copies,
            **anchored(window.path, anchors.get((window.entity, window.path, window.best))),
            url=links.url(window.entity, window.path, window.best + 1),
        )


def links_of(
    workspace: Workspace,
    windows: Sequence[Window],
    records: SourceRecords,
    read: Mapping[tuple[str, str], Read],
) -> Links:
    """Return the permalinks of the documents in ``windows``; ``read`` contains the readable ones."""
    return find_links(workspace, records.get, {window.file: window.hash for window in windows}, read)


def clipped_context(lines: Sequence[str], best: int, at: int) -> tuple[str, ...]:
    """Clip each line of a hit. The ``best`` line is clipped around character ``at``."""
    return tuple(clipped(line, at if number == best else 0) for number, line in enumerate(lines))


def symbol_of(definition: Definition | None) -> dict[str, Any]:
    """Return a hit's fields about its enclosing definition."""
    if definition is None:
        return {}
    start, end = definition.first + 1, definition.last + 1
    return {"symbol": definition.name, "kind": definition.kind, "symbol_start": start, "symbol_end": end}


def anchored(path: str, anchor: str | None) -> dict[str, Any]:
    """Return a hit's fields for its position in a document."""
    return {"anchor": anchor, "fragment": fragment_of(path, anchor)}


def add_definitions(tables: Sequence[TableSearcher], windows: Sequence[Window]) -> None:
    """Add the tables' definitions to windows whose definition is unknown."""
    lacking = {(each.entity, each.path, each.best): each for each in windows if not each.outlined}
    for table in tables if lacking else ():
        for line, outline in outlines_of(table, [*lacking]).items():
            window = lacking[line]
            window.definition, window.outlined = innermost(decode_outline(outline), window.best), True


def _around(window: Window, n_lines: int, *, within_definition: bool) -> tuple[int, int]:
    """Return the first and last line, 0-based, of a window and its context, within the maximum window size.

    Fewer lines of context than the default surround only the best line: neighbours that match as well widen a window.
    """
    first, last = window.first, window.last
    if within_definition and n_lines < DEFAULT_N_LINES:
        first = last = window.best
    spare = max(MAX_WINDOW_LINES, 2 * n_lines + 1) - (last - first + 1)
    n_lines = min(n_lines, max(0, spare) // 2)
    start, end = max(0, first - n_lines), last + n_lines
    definition = window.definition
    if within_definition and definition is not None and definition.is_code:
        if definition.first <= first:
            start = max(start, definition.first)
        if last <= definition.last:
            end = min(end, definition.last)
    return start, end


def _shown(window: Window, lines: list[str], start: int, first: int) -> tuple[int, list[str]]:
    """Return the first line and the lines of a hit whose context would begin at line ``first``.

    ``lines`` begin at line ``start``. If there are none, the hit shows its best line.
    """
    if not lines:
        return window.best, [window.text]
    is_code = not is_prose(window.path) and window.best < start + len(lines)  # a damaged index may lack lines
    skipped = lines_to_skip(lines, start, first, window.best) if is_code else first - start
    return start + skipped, lines[skipped:]


LINE_COMMENT = re.compile(r"\s*(//|--(?=\s)|;|%|#(?=\s|$))")
_COMMENT_BOUND = re.compile(r"(?:^|\s)/\*|\*/")


def lines_to_skip(lines: Sequence[str], start: int, first: int, best: int) -> int:
    """Return how many of ``lines`` of code to skip, so that a hit does not begin in the middle of a comment.

    The hit's context would begin at line ``first``; ``start`` is the number of the first of ``lines``. If ``first``
    continues a comment, the hit begins where that does, or, if that is not among ``lines`` or too far away, after the
    comment, or at the ``best`` line if that comes first.
    """
    continued = _continues_comment(lines[: best - start + 1], is_whole=not start)
    begin = end = first - start
    while begin and continued[begin]:
        begin -= 1
    if not continued[begin] and len(lines) - begin <= max(MAX_WINDOW_LINES, len(lines) - (first - start)):
        return begin
    while end < best - start and continued[end + 1]:
        end += 1
    return min(end + 1, best - start)


def _continues_comment(lines: Sequence[str], *, is_whole: bool) -> list[bool]:
    """Return whether each line continues a comment; the first one may, unless ``is_whole``, as nothing is before it."""
    bounds = [[each[0].strip() for each in _COMMENT_BOUND.finditer(line)] for line in lines]
    inside = next((found[0] == "*/" for found in bounds if found), False) and not is_whole
    continued, before = list[bool](), None if is_whole else "?"
    for line, found in zip(lines, bounds, strict=True):
        marked = LINE_COMMENT.match(line)
        mark = marked[1] if marked else None
        continued.append(inside or (mark is not None and before in (mark, "?")))
        before, inside = mark, found[-1] == "/*" if found else inside
    return continued


def file_of(records: SourceRecords, window: Window) -> str | None:
    """Return the path or URI of a window's file, or None if its source was removed."""
    record = records.get(window.entity)
    if record is None:
        return None
    path = container_of(window.path)
    return os.path.join(record.uri, path) if "://" not in record.uri else f"{record.uri}/{path}"


def _unchanged_text(path: str, document: Read | None, indexed_hash: str) -> str | None:
    """Return a document's text if it still has the indexed hash; None otherwise, and if the index must be asked."""
    if not isinstance(document, bytes) or not is_plain(path, document) or not is_unchanged(document, indexed_hash):
        return None
    return decode(document)[0]


def _redacted(text: str, passage: Passage, mode: Redaction) -> list[str]:
    around = lines_between(text, 0, passage.last + MAX_LINES)
    return redact_lines(around, mode, passage.first, passage.last)


def is_plain(path: str, data: bytes) -> bool:
    """Return whether a document's own content shows its text: it is neither extracted nor in an encoding to guess."""
    return is_utf8(data) and not is_extracted(path, data)


def _judged(
    lines_of_data: LinesOfData, window: Window, document: Read | None, redaction: Redaction, *, unchanged: bool
) -> Freshness | None:
    return freshness_after_read(
        window.text,
        window.best + 1,
        document,
        unchanged=unchanged or is_unchanged(document, window.hash),
        column=window.column,
        path=window.path,
        redaction=redaction,
        lines_of_data=lines_of_data,
    )


def anchors_of(
    tables: Sequence[TableSearcher], windows: Sequence[Window], read: Mapping[tuple[str, str], Read]
) -> dict[tuple[str, str, int], str]:
    """Return the anchors of the best lines of ``windows``, keyed by entity, path and line."""
    best_lines: list[tuple[str, str, int]] = []
    for window in windows:
        document = read.get((window.entity, window.path))
        if is_named_like_document(window.path) or (isinstance(document, bytes) and is_extracted(window.path, document)):
            best_lines.append((window.entity, window.path, window.best))
    found = {
        line: outline for table in tables if best_lines for line, outline in outlines_of(table, best_lines).items()
    }
    named = {line: anchor_at(outline, line[2]) for line, outline in found.items()}
    return {line: name for line, name in named.items() if name is not None}


def read_documents(
    workspace: Workspace, windows: Sequence[Window], records: SourceRecords, *, context: bool
) -> dict[tuple[str, str], Read]:
    """Read the documents of ``windows``, keyed by ``(entity, path)``; remote documents only if ``context`` is needed.

    Documents of removed or unreadable sources are missing.
    """
    found: dict[tuple[str, str], Read] = {}
    for entity in sorted({window.entity for window in windows}):
        record = records.get(entity)
        if record is None or not workspace.access.allows(record.uri):
            continue
        source = known_source(record.uri, workspace.objects.storage_options)
        try:
            named = {window.path for window in windows if window.entity == entity}
            paths = sorted(path for path in named if is_readable(source, path))
            if context or source.is_local:
                contents = source.read_many(paths)
                found.update({(entity, path): content for path, content in zip(paths, contents, strict=True)})
        except DriftlineError:
            continue
    return found


def is_readable(source: Source, path: str) -> bool:
    """Return whether a search may read a document: never in archives, and large files only if they are record files."""
    if INSIDE in path or not holds_records(path):
        return INSIDE not in path
    info = source.stat(path)
    return info is None or info.size_bytes <= DEFAULT_MAX_DOCUMENT_BYTES


def _indexed(tables: Sequence[TableSearcher], passages: Sequence[Passage]) -> dict[Passage, list[str]]:
    """Return the lines of each passage, read from the table that contains its document."""
    found: dict[Passage, list[str]] = {}
    for table in tables if passages else ():
        found |= {each: lines for each, lines in lines_of(table, passages).items() if lines}
    return found


def notes_on(found: Sequence[Hit]) -> tuple[str, ...]:
    """Return a note if no hit is likely to be relevant."""
    return (NO_GOOD_MATCH,) if all_weak(hit.label for hit in found) else ()


def similar_words(tables: Sequence[TableSearcher], query: str) -> tuple[str, ...]:
    """Return a note with the indexed words most similar to those of a short ``query``, if no line has any of these."""
    words, language = keywords(query), language_of(query)
    if len(words) > WORDS_OF_A_NAME or any(is_paired(word) or len(word) > MAX_MISSPELT for word in words):
        return ()
    if any(len(table.matching(normalize_query(words, language), 1).rows) for table in tables):
        return ()
    similar: list[str] = []
    for word in words:
        stems = " ".join(terms(word, language))
        edits = 1 if len(stems) <= MAX_SHORT_STEM else 2
        held: set[str] = set()
        for table in tables:
            blocks = table.blocks_at(table.matching(stems, SIMILAR_BLOCKS, edits).rows.tolist())
            held.update(*(tokens(text, whole=True) for text in blocks[TEXT_COLUMN].to_pylist()))
        similar += get_close_matches(word, sorted(held), SIMILAR_WORDS, MIN_SIMILARITY)
    return (f"No line contains any of the query's words. Similar: {', '.join(similar)}.",) if similar else ()


def nothing_indexed(workspace: Workspace) -> str:
    """Explain why a workspace has no lines: whether it has sources, and why their files were skipped."""
    if workspace.config.fingerprint and not workspace.config.model:  # restored by a repair
        return f"{workspace.objects.uri} has no record of its embedding model. Run: driftline index SOURCE --model NAME"
    reasons: Counter[str] = Counter()
    records = []
    for entity, record in workspace.readable_sources():
        records.append(record)
        reasons.update(filter(None, workspace.manifest(entity).read(columns=["reason"])["reason"].to_pylist()))
    if not records:
        return f"Nothing is indexed in {workspace.objects.uri}. Run: driftline index SOURCE"
    listed = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    left_out = f"all files of its sources were skipped ({listed})" if reasons else "its sources have no indexed files"
    if any(record.include or record.exclude for record in records):
        left_out += " that match their filters (`include`, `exclude`)"
    return f"The index in {workspace.objects.uri} has no lines: {left_out}."


def note_without_search(workspace: Workspace, request: SearchRequest) -> tuple[str, ...]:
    """Explain why nothing was searched: no results requested, a blank query, or no lines."""
    if request.top_k == 0:
        return ("No results were requested (`top_k` is 0).",)
    return ("The query is blank.",) if not request.query.strip() else (nothing_indexed(workspace),)


def why_nothing(
    workspace: Workspace,
    tables: Sequence[TableSearcher],
    filters: SearchFilter,
    matches: Callable[[Workspace, LineFilter | None], bool],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the globs that match no documents, and messages about filters that match nothing.

    Both are empty if any line passes. ``matches`` returns whether any line passes a filter.
    """
    if any(table.matches for table in tables):
        return (), ()
    if not any(table.lines for table in tables):
        return (), (nothing_indexed(workspace),)
    empty = [each for each in conditions(filters) if not matches(workspace, line_filter(each[2], workspace))]
    notes = tuple(why for _, why, _ in empty) or ("No indexed document matches all filters together.",)
    return tuple(name for name, _, _ in empty if name.startswith("glob ")), notes


def why_left_out(nearest: Sequence[Hit], mode: Mode, limit: float | None, only: LineKinds) -> str:
    """Return why lines that pass the filters are not results."""
    if not nearest and only != ALL_LINES:
        return "No line near the query is of these kinds (`kinds`, `symbols`, `tests`)."
    if not nearest:
        return "No line contains any of the query's words, and the model knows none of them."
    if limit is None or nearest[0].distance <= limit:
        return (
            "No line contains any of the query's words."
            if mode == "text"
            else "No line near the query is of these kinds."
        )
    return nearest_note(nearest[0], limit)


def nearest_note(hit: Hit, limit: float) -> str:
    """Return how far the nearest line is beyond a search's limit."""
    return (
        f"No line is within the distance {limit:.4g}: the nearest, {hit.path}:{hit.line}, has distance "
        f"{hit.distance:.4f} and relevance {hit.relevance:.4f}."
    )
