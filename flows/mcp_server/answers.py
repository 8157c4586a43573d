"""Define the answers of the MCP tools: pydantic models, whose schemas clients see, with limits that keep them short."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from driftline.flows.answers import ExactMatches
from driftline.flows.memory import entry_to_dict
from driftline.storage.defaults import MAX_SHOWN_CHARACTERS, is_clipped
from driftline.storage.memory.entries import MemoryEntry
from driftline.storage.memory.search import MemoryHit
from driftline.storage.model import WorkspaceStats
from driftline.tasks.search.hits import Excerpt, Hit, clipped
from driftline.tasks.search.query import SearchReport

MAX_SOURCES = 100
MAX_LINE_CHARACTERS = MAX_SHOWN_CHARACTERS
MAX_ANSWER_BYTES = 64 * 1024
"""Limit of the lines of an answer, in UTF-8, to save the context of a model."""


class LinesFound(BaseModel):
    """A window of lines; ``file`` can be opened. Numbers are 1-based; ``line`` and ``text`` are its best line,
    ``column`` is where that matches, ``symbol`` is the definition around it, and ``anchor`` the place in a document:
    a page, a cell; ``fragment`` opens it behind ``#``. ``url`` is the permanent link to share. Results are sorted by
    ``score``."""

    path: str
    file: str | None
    source: str
    line: int
    column: int
    start_line: int
    end_line: int
    score: float | None
    distance: float | None
    relevance: float
    rank: int
    text: str
    context: list[str]
    symbol: str | None = None
    kind: str | None = None
    symbol_start: int | None = None
    symbol_end: int | None = None
    label: Literal["strong", "likely", "weak"] | None = None
    copies: list[str] = []
    anchor: str | None = None
    fragment: str | None = None
    url: str | None = None


class SearchAnswer(BaseModel):
    """Windows of lines, best first. ``truncated``: lines were cut or windows omitted to keep the answer short.

    ``exact`` counts the matches of an exact search, whether they are in ``results`` or not.

    ``notes`` say why there are no results, or that none is a good match. Without results, ``nearest`` is the nearest
    line that the filters allow.
    """

    query: str
    results: list[LinesFound]
    truncated: bool
    notes: list[str] = []
    nearest: LinesFound | None = None
    exact: ExactMatches | None = None


class SourceStatus(BaseModel):
    """One indexed source."""

    entity: str
    uri: str
    documents: int
    lines: int


class IndexStatus(BaseModel):
    """The statistics of the workspace; ``sources_left_out`` counts the sources that are not listed."""

    workspace: str
    total_documents: int
    total_lines: int
    has_index: bool
    index_type: str | None
    model: str | None
    sources: list[SourceStatus]
    sources_left_out: int


class ContextAnswer(BaseModel):
    """Lines of a document as they were indexed; ``current``: the document has not changed since.

    ``url`` is the permanent link of the requested line.
    """

    path: str
    source: str
    start_line: int
    end_line: int
    lines: list[str]
    current: bool
    truncated: bool
    url: str | None = None


def search_answer(report: SearchReport) -> SearchAnswer:
    """Return the first results that fit into MAX_ANSWER_BYTES, at least one of them."""
    results: list[LinesFound] = []
    exact = ExactMatches(**report.exact.to_dict()) if report.exact else None
    room, truncated = MAX_ANSWER_BYTES, False
    for hit in report.results:
        context, room, was_cut = _fitting(hit.context, room)
        if len(context) < len(hit.context) and results:
            return SearchAnswer(query=report.query, results=results, truncated=True, exact=exact)
        truncated |= was_cut or any(map(is_clipped, context))
        results.append(_lines_found(hit, context))
    nearest = _lines_found(report.nearest, list(report.nearest.context)) if report.nearest else None
    answer = SearchAnswer(query=report.query, results=results, truncated=truncated, exact=exact)
    return answer.model_copy(update={"notes": list(report.notes), "nearest": nearest})


def _lines_found(hit: Hit, context: list[str]) -> LinesFound:
    fields = {name: getattr(hit, name) for name in LinesFound.model_fields}
    return LinesFound(
        **fields | {"context": context, "copies": list(hit.copies), "end_line": hit.start_line + len(context) - 1}
    )


def index_status(stats: WorkspaceStats) -> IndexStatus:
    """Return ``stats`` with at most MAX_SOURCES sources."""
    return IndexStatus(
        workspace=stats.workspace,
        total_documents=stats.total_documents,
        total_lines=stats.total_lines,
        has_index=stats.has_index,
        index_type=stats.index_type,
        model=stats.model,
        sources=[SourceStatus.model_validate(source) for source in stats.sources[:MAX_SOURCES]],
        sources_left_out=max(0, len(stats.sources) - MAX_SOURCES),
    )


def context_answer(excerpt: Excerpt) -> ContextAnswer:
    """Return the first lines of ``excerpt`` that fit into MAX_ANSWER_BYTES."""
    lines, _, truncated = _fitting(excerpt.lines, MAX_ANSWER_BYTES)
    return ContextAnswer(
        path=excerpt.path,
        source=excerpt.source,
        start_line=excerpt.start_line,
        end_line=excerpt.start_line + len(lines) - 1,
        lines=lines,
        current=excerpt.current,
        truncated=truncated,
        url=excerpt.url,
    )


def _fitting(lines: Sequence[str], room: int) -> tuple[list[str], int, bool]:
    """Return the first of ``lines``, each cut, that fit into ``room`` bytes, the bytes left, and whether text is
    missing.
    """
    kept: list[str] = []
    truncated = False
    for line in lines:
        short = clipped(line)
        room -= len(short.encode("utf-8", "surrogatepass")) + 1
        if room < 0:
            return kept, 0, True
        truncated |= short is not line
        kept.append(short)
    return kept, room, truncated


MAX_FIELD_CHARACTERS = 4_000
"""Limit of a value and of metadata, as JSON."""
FilterValue = str | int | float | bool | list[str | int | float | bool] | None


class MemoryRecord(BaseModel):
    """An entry. ``cut`` names the fields that were too long: a value becomes the start of its JSON, metadata empty."""

    key: str
    value: Any
    entity: str
    metadata: dict[str, Any]
    created: str
    updated: str
    expires: str | None
    cut: list[str]


class MemoryResult(BaseModel):
    """An entry that answers the query. Results are sorted by ``score``; ``distance`` is 1 - cosine."""

    record: MemoryRecord
    score: float
    rank: int
    distance: float


class MemoryAnswer(BaseModel):
    """Entries, best first. ``truncated``: fields were cut or entries omitted to keep the answer short."""

    query: str
    results: list[MemoryResult]
    truncated: bool


def memory_answer(query: str, hits: Iterable[MemoryHit[MemoryEntry]], max_bytes: int) -> MemoryAnswer:
    """Return the first ``hits`` of ``query``, as many as fit into ``max_bytes`` of JSON."""
    results: list[MemoryResult] = []
    room = max_bytes
    for hit in hits:
        result = MemoryResult(
            record=_short(entry_to_dict(hit.record)), score=hit.score, rank=hit.rank, distance=hit.distance
        )
        room -= len(result.model_dump_json().encode())
        if room < 0:
            return MemoryAnswer(query=query, results=results, truncated=True)
        results.append(result)
    return MemoryAnswer(query=query, results=results, truncated=any(result.record.cut for result in results))


def _short(entry: dict[str, Any]) -> MemoryRecord:
    cut = []
    value = json.dumps(entry["value"], ensure_ascii=False)
    if len(value) > MAX_FIELD_CHARACTERS:
        cut.append("value")
        entry["value"] = value[: MAX_FIELD_CHARACTERS - 1] + "…"
    if len(json.dumps(entry["metadata"], ensure_ascii=False)) > MAX_FIELD_CHARACTERS:
        cut.append("metadata")
        entry["metadata"] = {}
    return MemoryRecord(**{name: entry[name] for name in MemoryRecord.model_fields if name != "cut"}, cut=cut)
