"""From windows of lines to results: their text, the lines around them, and what has become of them since."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from driftline.storage.errors import DriftlineError
from driftline.storage.lines.outline import Definition, innermost
from driftline.storage.lines.outline import decode as decode_outline
from driftline.storage.lines.queries import LineQuery, Passage
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.excerpts import clipped, match_in
from driftline.tasks.search.freshness import Read, is_unchanged, judge_read
from driftline.tasks.search.relevance import Calibration, Label, label, likelihood
from driftline.tasks.search.same_files import SourceRecords
from driftline.tasks.search.windows import MAX_WINDOW_LINES, Window
from driftline.tasks.text import decode, lines_between


@dataclass(frozen=True, slots=True)
class Hit:
    """A window of one document. Line numbers are 1-based and both ends are included.

    ``path`` is that of the document in its source, and ``file`` where it can be opened: an absolute path or a URI,
    or None of standard input and of forgotten sources.
    ``line`` and ``text`` are its best line, and ``column`` is where that answers the query. ``score`` orders the list:
    how likely such a hit is right, of which ``label`` tells the rest in a word; in the mode ``vector`` it is the cosine
    of the best line, and there is no label. ``distance`` is 1 - the cosine of the best line, ``relevance`` the share of
    random pairs of lines that are farther. ``copies`` are the paths of other documents of the source with the same
    content, which are not shown. ``context`` holds the lines from ``start_line`` to ``end_line``, as they were indexed.
    Of a long line, ``text`` and ``context`` have the window around the match (``excerpts.clipped``).
    ``freshness`` says what has
    become of the best line since, and ``line_now`` where it stands now; None where that takes more than a look at
    what was read anyway. ``symbol`` is the qualified name of the innermost definition around the best line, ``kind``
    what it is (``storage.lines.outline.Kind``), and ``symbol_start`` and ``symbol_end`` are its lines as they were
    indexed, comments above it included; None outside of any, and where definitions are not indexed.
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

    def to_dict(self) -> dict[str, Any]:
        """As ``search --json`` prints it; ``dataclasses.asdict`` takes ten times as long."""
        listed = {"context": list(self.context), "copies": list(self.copies)}
        return {name: getattr(self, name) for name in self.__slots__} | listed


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
    """``windows``, best first, which were found in ``tables``, with their text and ``n_lines`` of context on each side.

    The context is of the index where the document has changed or cannot be read. With ``within_definitions`` that of a
    function does not reach into the next one.
    """
    add_definitions(tables, windows)
    read = _read(workspace, windows, records, context=n_lines > 0)
    unchanged_text = cache(_unchanged_text)  # several windows may be of one document
    documents = [read.get((window.entity, window.path)) for window in windows]
    texts = [unchanged_text(document, window.hash) for document, window in zip(documents, windows, strict=True)]
    lacking = [window for window, text in zip(windows, texts, strict=True) if n_lines and text is None]
    indexed = _indexed(tables, lacking, n_lines)
    score = math.inf
    for rank, (window, document, text) in enumerate(zip(windows, documents, texts, strict=True), start=1):
        unchanged = text is not None
        start, end = _around(window, n_lines, within_definition=within_definitions)
        if not n_lines:
            start, context = window.best, [window.text]
        elif text is not None:
            context = lines_between(text, start, end)
        else:
            known = indexed[window.entity, window.path]  # without lines that have no letter or digit: those are empty
            end = min(end, max((number for number in known if number <= end), default=window.last))
            context = [known.get(number, "") for number in range(start, end + 1)]
        at = match_in(window.text, query)
        judged = judge_read(window.text, window.best + 1, document, unchanged=unchanged, column=window.column)
        likely = likelihood(window.score, window.attainable) if window.attainable else None
        score = min(score, window.score if likely is None else likely)  # windows after the reranked ones score apart
        yield Hit(
            path=window.path,
            file=_file(records, window),
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
            label=None if likely is None else label(score),
            copies=window.copies,
        )


def clipped_context(lines: Sequence[str], best: int, at: int) -> tuple[str, ...]:
    """The lines of a hit, each clipped; the ``best`` one around the character ``at``."""
    return tuple(clipped(line, at if number == best else 0) for number, line in enumerate(lines))


def symbol_of(definition: Definition | None) -> dict[str, Any]:
    """The fields of a hit that tell the definition around it."""
    if definition is None:
        return {}
    start, end = definition.first + 1, definition.last + 1
    return {"symbol": definition.name, "kind": definition.kind, "symbol_start": start, "symbol_end": end}


def add_definitions(tables: Sequence[LineQuery], windows: Sequence[Window]) -> None:
    """Give each window whose definition is unknown the one that the tables know."""
    lacking = {(each.entity, each.path, each.best): each for each in windows if not each.outlined}
    for table in tables if lacking else ():
        for place, outline in table.outlines([*lacking]).items():
            window = lacking[place]
            window.definition, window.outlined = innermost(decode_outline(outline), window.best), True


def _around(window: Window, n_lines: int, *, within_definition: bool) -> tuple[int, int]:
    """The first and the last line of a window with its context, 0-based; together no more than a window may have."""
    room = max(MAX_WINDOW_LINES, 2 * n_lines + 1) - (window.last - window.first + 1)
    n_lines = min(n_lines, max(0, room) // 2)
    start, end = max(0, window.first - n_lines), window.last + n_lines
    definition = window.definition
    if within_definition and definition is not None and definition.is_code:
        if definition.first <= window.first:
            start = max(start, definition.first)
        if window.last <= definition.last:
            end = min(end, definition.last)
    return start, end


def _file(records: SourceRecords, window: Window) -> str | None:
    record = records.get(window.entity)
    if record is None:
        return None
    return os.path.join(record.uri, window.path) if "://" not in record.uri else f"{record.uri}/{window.path}"


def _unchanged_text(document: Read | None, indexed_hash: str) -> str | None:
    """The text of a document that still has the content whose hash stands in its rows; None of any other."""
    return decode(document)[0] if isinstance(document, bytes) and is_unchanged(document, indexed_hash) else None


def _read(
    workspace: Workspace, windows: Sequence[Window], records: SourceRecords, *, context: bool
) -> dict[tuple[str, str], Read]:
    """What reading the documents of ``windows`` comes to, by ``(entity, path)``: remote ones only for their context.

    Documents of forgotten sources are missing, and those of a source that cannot be read.
    """
    found: dict[tuple[str, str], Read] = {}
    for entity in sorted({window.entity for window in windows}):
        record = records.get(entity)
        if record is None or not workspace.reach.allows(record.uri):
            continue
        paths = sorted({window.path for window in windows if window.entity == entity})
        try:
            source = known_source(record.uri, workspace.objects.storage_options)
            if context or source.is_local:
                contents = source.read_many(paths)
                found.update({(entity, path): content for path, content in zip(paths, contents, strict=True)})
        except DriftlineError:
            continue
    return found


def _indexed(
    tables: Sequence[LineQuery], windows: Sequence[Window], n_lines: int
) -> dict[tuple[str, str], dict[int, str]]:
    """The indexed lines of ``windows`` and around them, by document and line number."""
    passages = [
        Passage(window.entity, window.path, max(0, window.first - n_lines), window.last + n_lines) for window in windows
    ]
    found: dict[tuple[str, str], dict[int, str]] = {(window.entity, window.path): {} for window in windows}
    for table in tables if passages else ():
        for row in table.passages(passages).sort_by("column_number").to_pylist():
            lines = found[row["entity"], row["path"]]
            lines[row["line_number"]] = lines.get(row["line_number"], "") + row["text"]
    return found
