"""Turn line hits into results: windows with text, context and freshness.

Neighbouring hits are merged into windows (``merge_windows``), which ``arranged`` orders, taking files into account. A
file is shown once, even if several sources contain it. ``judge`` compares a hit with the current file.
"""

from __future__ import annotations

import enum
import math
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa

from driftline.storage.defaults import (
    CUT,
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_REDACTION,
    MAX_SHOWN_CHARACTERS,
    Redaction,
)
from driftline.storage.documents import INSIDE, container_of, content_hash, holds_records
from driftline.storage.errors import DriftlineError, ObjectNotFound
from driftline.storage.lines.line_queries import LineQuery, Passage
from driftline.storage.lines.outline import Definition, anchor_at, fragment_of, innermost, location_of
from driftline.storage.lines.outline import decode as decode_outline
from driftline.storage.lines.packs import lines_of
from driftline.storage.lines.tokenizer import keywords
from driftline.storage.redaction import holds_redacted, redact, redact_lines
from driftline.storage.sources.source import Source, known_source
from driftline.storage.workspace.stats import html_table
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.extraction.extractor import is_extracted, is_named_like_document
from driftline.tasks.search.links import Links, SourceRecords, find_links
from driftline.tasks.search.query_form import QueryForm
from driftline.tasks.search.ranking import WEIGHTS, Document, FoundLine, Weights, filename_boosts
from driftline.tasks.search.relevance import Calibration, Label, label, likelihood
from driftline.tasks.text import decode, lines_between, rows_of_line, split_lines

MAX_WINDOW_LINES = 32
"""Maximum number of lines in a window, not counting context."""
GROWTH = 0.7
"""Minimum relevance of a hit that extends a window, as a fraction of the window's relevance. Weaker hits would add more
lines than information.
"""
GROWTH_ACROSS = 0.9
"""The same for a hit in another definition, unless the query is a sentence, which may describe either definition.
"""
MAX_HEAD_LINES = 8
MAX_TAIL_LINES = 6
"""Maximum number of lines by which a window is extended to the start or end of its definition."""
JUDGED_WINDOWS = 60
"""Number of windows used to determine which files a query is about."""
MAX_WINDOWS_OF_DEFINITION = 3
"""Maximum number of windows per function, so that none fills the results; prose sections have no limit."""


@dataclass(slots=True)
class Window:
    """Neighbouring hits in one document; lines are 0-based and inclusive.

    ``best`` is the line of the hit that matches the query best on its own, and ``fit`` that hit's quality.
    ``distance``, ``text``, ``column`` (where the text starts in its line) and ``definition`` (the innermost one) are
    those of this hit; the definition is unknown unless the window is ``outlined``. ``score`` ranks the window: it is a
    hit's relevance, at most ``max_score``, or the cosine if hits are sorted by cosine (``max_score`` is then 0).
    ``penalty`` is the deduction from the score for better windows in the same place, which does not reduce the
    likelihood. ``copies`` lists other documents of its source with the same name and content. If the query ``named``
    the definition, the window stays inside it.
    """

    entity: str
    path: str
    hash: str
    best: int
    distance: float
    text: str
    fit: float
    first: int
    last: int
    definition: Definition | None = None
    outlined: bool = False
    score: float = field(default=0.0, compare=False)
    column: int = 0
    max_score: float = 0.0
    penalty: float = field(default=0.0, compare=False)
    copies: tuple[str, ...] = ()
    named: bool = False

    @property
    def file(self) -> tuple[str, str]:
        """The key of its document."""
        return self.entity, self.path

    @property
    def section(self) -> str:
        """The name of its prose section, "" if there is none: a book covers many topics, a module one."""
        return self.definition.name if self.definition is not None and self.definition.kind == "section" else ""

    @classmethod
    def around(cls, found: FoundLine) -> Window:
        """Return the window of a single hit."""
        line = found.number
        return cls(
            *found.document,
            line,
            found.distance,
            found.text,
            found.fit,
            first=line,
            last=line,
            definition=found.definition,
            outlined=found.outlined,
            score=found.relevance,
            column=found.column,
            max_score=found.max_score,
            named=found.named,
        )

    def can_merge(self, line: int) -> bool:
        """Return whether the window may grow to a line: always, unless the query names the window's definition."""
        return not self.named or self.definition is None or self.definition.first <= line <= self.definition.last

    def improves_with(self, found: FoundLine, across: float) -> bool:
        """Return whether a later hit is inside the window, or relevant enough to extend it (see ``merge_windows``)."""
        if self.first <= found.number <= self.last or not self.max_score or self.score <= 0:
            return True
        if found.relevance < min(across, GROWTH) * self.score:
            return False
        share = across if self.is_apart_from(found.definition) else GROWTH
        return found.relevance >= share * self.score

    def is_apart_from(self, definition: Definition | None) -> bool:
        """Return whether its definition and ``definition`` are both code, and neither contains the other."""
        own = self.definition
        if own is None or definition is None or not (own.is_code and definition.is_code):
            return False
        return own.last < definition.first or definition.last < own.first

    def merge(self, other: Window) -> None:
        """Merge ``other`` into this window; the window with the better fit supplies the best line."""
        if other.fit > self.fit:
            self.best, self.distance, self.text, self.fit = other.best, other.distance, other.text, other.fit
            self.definition, self.outlined, self.column = other.definition, other.outlined, other.column
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)


def merge_windows(rows: Iterable[FoundLine], max_gap: int, limit: int, across: float = GROWTH) -> list[Window]:
    """Merge hits (best first) into at most ``limit`` windows, ordered by their first hit.

    Hits up to ``max_gap`` lines apart are merged into one window. If that would be too long, or if the later hit has
    less than the fraction GROWTH of a window's relevance (between definitions: ``across``), the hit is dropped. Hits
    are read until there are enough windows, so that no window is extended by hits that are worse than all windows. A
    window that starts shortly after the start of its definition, or ends shortly before its end, is extended to it.
    """
    windows: list[Window] = []
    of_document: dict[Document, list[Window]] = {}
    for row in rows:
        known = of_document.setdefault(row.document, [])
        line = row.number
        near = [window for window in known if window.first - max_gap <= line <= window.last + max_gap]
        if near:
            kept, *others = near
            if not others and kept.first <= line <= kept.last and row.fit <= kept.fit:
                continue  # most rows change nothing
            if not any(window.improves_with(row, across) for window in near):
                continue
            first, last = min(line, *[each.first for each in near]), max(line, *[each.last for each in near])
            if last - first >= MAX_WINDOW_LINES or not all(window.can_merge(line) for window in near):
                continue
            for other in others:
                kept.merge(other)
                known.remove(other)
                windows.remove(other)
            if row.fit > kept.fit:
                kept.merge(Window.around(row))
            kept.first, kept.last = first, last
            continue
        new = Window.around(row)
        defined = new.definition is not None and new.definition.is_code
        if defined and sum(new.definition == each.definition for each in known) >= MAX_WINDOWS_OF_DEFINITION:
            continue
        known.append(new)
        windows.append(new)
        if len(windows) == limit:
            break
    for known in of_document.values():
        _complete_definitions(known, max_gap)
    return windows


def _complete_definitions(windows: Sequence[Window], max_gap: int) -> None:
    """Extend one document's ``windows`` to nearby bounds of their definitions, keeping a distance to other windows."""
    for window in windows:
        definition = window.definition
        if definition is None or not definition.is_code:
            continue
        first, last = definition.first, definition.last
        begins = 0 < window.first - first <= MAX_HEAD_LINES and window.last - first < MAX_WINDOW_LINES
        if begins and not any(first - max_gap <= each.last < window.first for each in windows):
            window.first = first
        ends = 0 < last - window.last <= MAX_TAIL_LINES and last - window.first < MAX_WINDOW_LINES
        if ends and not any(window.last < each.first <= last + max_gap for each in windows):
            window.last = last


def arranged(
    windows: Sequence[Window], words: Sequence[str], form: QueryForm = "phrase", weights: Weights = WEIGHTS
) -> list[Window]:
    """Sort ``windows`` by score and file: other hits in the file, and its name.

    ``words`` holds the query's distinct terms, ``form`` its form. Each window is assigned the score that it is ranked
    by.
    """
    windows = _without_copies(windows)
    if not windows or not words or form == "sentence":
        return list(windows)
    limit = weights.question_words if form in ("question", "usage") else weights.phrase_words
    least, best = min(window.score for window in windows), max(0.0, *(window.score for window in windows))
    # If the query is a single name, its definition's score says nothing about how well file names match.
    of_words = max((each.score for each in windows if not each.named), default=best) if form == "name" else best
    of_file: dict[tuple[str, str], float] = defaultdict(float)
    for window in windows:
        of_file[window.file] += window.score - least
    most = max(of_file.values()) or 1.0
    named = dict(zip(of_file, filename_boosts((path for _, path in of_file), words, weights), strict=True))
    fading = min(1.0, limit / len(words)) ** 3
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for window in windows:
        first = not seen[window.file]
        seen[window.file] += 1
        gain = weights.file * of_file[window.file] / most if first else 0.0
        window.score += of_words * fading * (gain + named[window.file])
    of_place: dict[tuple[tuple[str, str], str], int] = defaultdict(int)
    for window in by_score(windows):
        place = window.file, window.section
        window.penalty = -best * fading * weights.again * of_place[place]
        window.score -= window.penalty
        of_place[place] += 1
    return by_score(windows)


def _without_copies(windows: Sequence[Window]) -> list[Window]:
    """Drop windows of documents with the same name and content as an earlier window, which then lists their paths."""
    shown: dict[tuple[str, str, str], Window] = {}
    kept: list[Window] = []
    for window in windows:
        first = shown.setdefault((window.entity, window.hash, window.path.rpartition("/")[2]), window)
        if first.file == window.file:
            kept.append(window)
        elif window.path not in first.copies:
            first.copies += (window.path,)
    return kept


def by_score(windows: Sequence[Window]) -> list[Window]:
    """Sort ``windows``, best first; ties keep their order."""
    return sorted(windows, key=lambda window: -window.score)


Read = bytes | DriftlineError
"""The result of reading a document."""


class State(enum.StrEnum):
    """The state of an indexed line."""

    FRESH = "fresh"
    MOVED = "moved"
    STALE = "stale"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Freshness:
    """A line's state; ``line`` is its current number (1-based), None if it is stale or gone."""

    state: State
    line: int | None = None


def judge(text: str, line: int, current: Sequence[str], column: int = 0) -> Freshness:
    """Determine the freshness of ``text``, indexed as ``line`` (1-based), in a file with the lines ``current``.

    ``text`` is the part of the line that starts at ``column`` (0-based), as split by ``tasks.text.rows_of_line``. A
    line found elsewhere is treated as moved to the nearest equal line, or to the later of two equally near ones.
    """

    def matches(number: int) -> bool:
        return 1 <= number <= len(current) and (column, text) in rows_of_line(current[number - 1])

    if matches(line):
        return Freshness(State.FRESH, line)
    for away in range(1, max(line, len(current) - line) + 1):
        for number in (line + away, line - away):
            if matches(number):
                return Freshness(State.MOVED, number)
    return Freshness(State.STALE)


def is_unchanged(read: Read | None, indexed_hash: str) -> bool:
    """Return whether a document that was read still has the indexed hash."""
    return isinstance(read, bytes) and content_hash(read) == indexed_hash


def judge_read(
    text: str,
    line: int,
    read: Read | None,
    *,
    unchanged: bool,
    column: int = 0,
    path: str = "",
    redaction: Redaction = DEFAULT_REDACTION,
) -> Freshness | None:
    """Like ``judge``, from the result of reading the document; None if that is inconclusive.

    Lines of an ``unchanged`` document (``is_unchanged``) are not compared. Text is not extracted again from a changed
    document. ``redaction`` is the source's setting.
    """
    if isinstance(read, ObjectNotFound):
        return Freshness(State.GONE)
    if read is None or isinstance(read, DriftlineError):
        return None
    if unchanged:
        return Freshness(State.FRESH, line)
    if is_extracted(path, read):
        return None
    content, reason = decode(read)
    if reason is None and holds_redacted(text):
        content = redact([content], redaction)[0][0]
    return Freshness(State.STALE) if reason is not None else judge(text, line, split_lines(content), column)


_BEFORE_CHARACTERS = 100
"""How many characters to show before the match."""
_WORD = re.compile(r"\w+")


def clipped(line: str, at: int = 0) -> str:
    """Clip ``line`` to MAX_SHOWN_CHARACTERS around the character ``at``, marking cuts with an ellipsis."""
    if len(line) <= MAX_SHOWN_CHARACTERS:
        return line
    start = max(0, min(at - _BEFORE_CHARACTERS, len(line) - MAX_SHOWN_CHARACTERS))
    end = start + MAX_SHOWN_CHARACTERS
    head, tail = (CUT if start else ""), (CUT if end < len(line) else "")
    return head + line[start + len(head) : end - len(tail)] + tail


@lru_cache(64)
def _word_of(query: str) -> re.Pattern[str] | None:
    """Return a regular expression for the query's words, in lower case; None if there are none."""
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
        kept = _distinct(found, records)
        if len(kept) >= limit or len(found) < count:
            return kept[:limit]
        count *= 2


def _distinct(windows: Sequence[Window], records: SourceRecords) -> list[Window]:
    if len({window.entity for window in windows}) < 2:
        return list(windows)
    owners: dict[tuple[str, ...], str] = {}
    return [
        window for window in windows if owners.setdefault(identity_of(window, records), window.entity) == window.entity
    ]


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
    In the mode ``vector``, ``score`` is the best line's cosine, and there is no label. ``distance`` is 1 - the best
    line's cosine, ``relevance`` the fraction of random line pairs that are farther apart. ``copies`` lists other
    documents in the source with the same name and content, which are not shown. ``context`` holds the lines from
    ``start_line`` to ``end_line``, as indexed. Long lines are clipped around the match in ``text`` and ``context``
    (``clipped``).

    ``freshness`` is the best line's state, and ``line_now`` its current number; both are None if that would require
    more reads. ``symbol`` is the qualified name of the innermost definition around the best line, ``kind`` its kind
    (``storage.lines.outline.Kind``), and ``symbol_start`` and ``symbol_end`` its lines as indexed, including comments
    above it; all are None outside definitions, or if definitions are not indexed. ``anchor`` is the best line's
    position in a document whose text was extracted (``cell 7``); line numbers refer to the extracted text. ``fragment``
    is the URL fragment for a viewer (``page=12``), None if no viewer supports one. ``matches`` holds the positions in
    the best line that match the patterns of an exact search: the columns of the first character and after the last
    character, 1-based. ``url`` is a permalink to the best line at a commit on its repository's host; None unless the
    text there is known to be the same.
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


def hits(
    workspace: Workspace,
    tables: Sequence[LineQuery],
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
    unchanged_text = cache(_unchanged_text)  # several windows may belong to one document
    documents = [read.get((window.entity, window.path)) for window in windows]
    texts = [unchanged_text(window.path, each, window.hash) for each, window in zip(documents, windows, strict=True)]
    anchors, links = anchors_of(tables, windows, read), links_of(workspace, windows, records, read)
    arounds = [_around(window, n_lines, within_definition=within_definitions) for window in windows]
    passages = [Passage(*window.file, *around) for window, around in zip(windows, arounds, strict=True)]
    lacking = [passage for passage, text in zip(passages, texts, strict=True) if n_lines and text is None]
    indexed = _indexed(tables, lacking)
    score = math.inf
    found = zip(windows, documents, texts, passages, strict=True)
    for rank, (window, document, text, around) in enumerate(found, start=1):
        if not n_lines:
            start, context = window.best, [window.text]
        elif text is not None:
            start = around.first
            context = redact_lines(lines_between(text, start, around.last), records.redaction(window.entity))
        else:
            start, context = (around.first, indexed[around]) if around in indexed else (window.best, [window.text])
        at = match_in(window.text, query)
        judged = _judged(window, document, records.redaction(window.entity), unchanged=text is not None)
        likely = likelihood(window.score + window.penalty, window.max_score) if window.max_score else None
        score = min(
            score, window.score if likely is None else likely
        )  # windows below the reranked ones use a different score scale
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
            label=None if likely is None else label(likely if window.penalty else score),
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
    """Return the permalinks of the documents in ``windows``; ``read`` holds the readable ones."""
    return find_links(workspace, records.get, {window.file: window.hash for window in windows}, read)


def clipped_context(lines: Sequence[str], best: int, at: int) -> tuple[str, ...]:
    """Clip each line of a hit; the ``best`` line around the character ``at``."""
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


def add_definitions(tables: Sequence[LineQuery], windows: Sequence[Window]) -> None:
    """Add the tables' definitions to windows whose definition is unknown."""
    lacking = {(each.entity, each.path, each.best): each for each in windows if not each.outlined}
    for table in tables if lacking else ():
        for line, outline in table.outlines([*lacking]).items():
            window = lacking[line]
            window.definition, window.outlined = innermost(decode_outline(outline), window.best), True


def _around(window: Window, n_lines: int, *, within_definition: bool) -> tuple[int, int]:
    """Return the first and last line, 0-based, of a window with its context, within the maximum window size."""
    spare = max(MAX_WINDOW_LINES, 2 * n_lines + 1) - (window.last - window.first + 1)
    n_lines = min(n_lines, max(0, spare) // 2)
    start, end = max(0, window.first - n_lines), window.last + n_lines
    definition = window.definition
    if within_definition and definition is not None and definition.is_code:
        if definition.first <= window.first:
            start = max(start, definition.first)
        if window.last <= definition.last:
            end = min(end, definition.last)
    return start, end


def file_of(records: SourceRecords, window: Window) -> str | None:
    record = records.get(window.entity)
    if record is None:
        return None
    path = container_of(window.path)
    return os.path.join(record.uri, path) if "://" not in record.uri else f"{record.uri}/{path}"


def _unchanged_text(path: str, document: Read | None, indexed_hash: str) -> str | None:
    """Return a document's text if it still has the indexed hash; None otherwise, and for extracted text."""
    if not isinstance(document, bytes) or is_extracted(path, document) or not is_unchanged(document, indexed_hash):
        return None
    return decode(document)[0]


def _judged(window: Window, document: Read | None, redaction: Redaction, *, unchanged: bool) -> Freshness | None:
    known: dict[str, Any] = {"unchanged": unchanged or is_unchanged(document, window.hash), "column": window.column}
    return judge_read(window.text, window.best + 1, document, path=window.path, redaction=redaction, **known)


def anchors_of(
    tables: Sequence[LineQuery], windows: Sequence[Window], read: Mapping[tuple[str, str], Read]
) -> dict[tuple[str, str, int], str]:
    """Return the anchors of the best lines of ``windows``, keyed by entity, path and line."""
    best_lines: list[tuple[str, str, int]] = []
    for window in windows:
        document = read.get((window.entity, window.path))
        if is_named_like_document(window.path) or (isinstance(document, bytes) and is_extracted(window.path, document)):
            best_lines.append((window.entity, window.path, window.best))
    found = {line: outline for table in tables if best_lines for line, outline in table.outlines(best_lines).items()}
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


def _indexed(tables: Sequence[LineQuery], passages: Sequence[Passage]) -> dict[Passage, list[str]]:
    """Return the lines of passages, each from the table with its document."""
    found: dict[Passage, list[str]] = {}
    for table in tables if passages else ():
        found |= {each: lines for each, lines in lines_of(table, passages).items() if lines}
    return found
