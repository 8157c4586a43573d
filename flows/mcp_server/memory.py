"""What the MCP server tells of the memory store: hits, cut so that an answer stays short."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from driftline.flows.memory.dict_backend import entry_to_dict
from driftline.storage.memory.store import MemoryStore

MAX_FIELD_CHARACTERS = 4_000
"""Of a value or of metadata, as JSON."""
FilterValue = str | int | float | bool | list[str | int | float | bool] | None


class Remembered(BaseModel):
    """An entry. ``cut`` names what was too long: a value is then the beginning of its JSON, metadata is left out."""

    key: str
    value: Any
    entity: str
    metadata: dict[str, Any]
    created: str
    updated: str
    expires: str | None
    cut: list[str]


class MemoryFound(BaseModel):
    """An entry that was found; ``score`` is 1 - distance."""

    record: Remembered
    score: float
    rank: int


class MemoryAnswer(BaseModel):
    """Entries, best first. ``truncated``: something was cut or left out to keep the answer short."""

    query: str
    results: list[MemoryFound]
    truncated: bool


def memory_answer(
    store: MemoryStore,
    query: str,
    top_k: int,
    filter: dict[str, FilterValue] | None,
    entity: str | None,
    max_bytes: int,
) -> MemoryAnswer:
    """The entries nearest to ``query``, of ``max_bytes`` as JSON at most. Raises what ``search_memory`` raises."""
    results: list[MemoryFound] = []
    left = max_bytes
    for hit in store.search_memory(query, top_k, filter, entity):
        found = MemoryFound(record=_short(entry_to_dict(hit.record)), score=hit.score, rank=hit.rank)
        left -= len(found.model_dump_json().encode())
        if left < 0:
            return MemoryAnswer(query=query, results=results, truncated=True)
        results.append(found)
    return MemoryAnswer(query=query, results=results, truncated=any(found.record.cut for found in results))


def _short(entry: dict[str, Any]) -> Remembered:
    cut = []
    value = json.dumps(entry["value"], ensure_ascii=False)
    if len(value) > MAX_FIELD_CHARACTERS:
        cut.append("value")
        entry["value"] = value[: MAX_FIELD_CHARACTERS - 1] + "…"
    if len(json.dumps(entry["metadata"], ensure_ascii=False)) > MAX_FIELD_CHARACTERS:
        cut.append("metadata")
        entry["metadata"] = {}
    return Remembered(**{name: entry[name] for name in Remembered.model_fields if name != "cut"}, cut=cut)
