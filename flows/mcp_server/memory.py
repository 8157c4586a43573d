"""The answers of the MCP tool for memory: hits, cut so that an answer stays short."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from driftline.flows.memory.dict_backend import entry_to_dict
from driftline.storage.memory.reader import MemoryEntry
from driftline.storage.memory.search import MemoryHit

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
    """The first ``hits`` of ``query``, as many as fit into ``max_bytes`` of JSON."""
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
