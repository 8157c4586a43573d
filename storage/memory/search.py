"""Semantic search of memory: embeds the text of entries, and confirms every hit with the catalog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from driftline.storage.entities import Entity
from driftline.storage.memory.catalog.outbox import Change
from driftline.storage.memory.catalog.queries import EntryRow
from driftline.storage.memory.vectors import VectorFilter, VectorRow, VectorTable, vector_tables
from driftline.storage.model import Embedder
from driftline.storage.objects.store import ObjectStore

TEXT_FIELD = "text_field"
"""The metadata field that names the text field of the value; without it, the whole value is embedded."""
EMBED_AT_ONCE = 1_000
MAX_ROUNDS = 6
"""Maximum number of searches per query; each fetches four times as many hits, until the catalog confirms enough."""

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class MemoryHit(Generic[_Entry]):
    """A matching entry; ``score`` is the cosine, ``rank`` counts from 1."""

    record: _Entry
    score: float
    rank: int


class MemorySearch:
    """The vectors of all tenants, in one table each. ``values`` reads the values of entries, in order."""

    def __init__(
        self,
        objects: ObjectStore,
        embedder: Callable[[], Embedder],
        values: Callable[[Sequence[EntryRow]], list[Any]],
    ) -> None:
        self._objects = objects
        self._load = embedder
        self._loaded: Embedder | None = None
        self._values = values

    @property
    def embedder(self) -> Embedder:
        """The embedder, loaded on first use."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def table(self, tenant: Entity) -> VectorTable:
        """The table of a tenant for this embedder; it may not exist yet."""
        return VectorTable(self._objects, tenant, self.embedder.fingerprint)

    def apply(self, tenant: Entity, changes: Sequence[Change]) -> None:
        """Apply ``changes`` to the vectors of a tenant, in one commit. Raises CommitConflict, StorageError."""
        latest = {change.key: change.id for change in changes}
        rows = self._vectors([change.row for change in changes if change.row is not None])
        own = self.table(tenant)
        own.apply(latest, rows, changes[-1].id, self.embedder.dim)
        for other in vector_tables(self._objects, tenant):  # tables of other embeddings only lose rows
            if other.fingerprint != own.fingerprint and other.exists():
                other.apply(latest, [], changes[-1].id, 0)

    def rebuild(self, tenant: Entity, pages: Callable[[], Iterable[Sequence[EntryRow]]], last: int) -> None:
        """Embed all entries of a tenant again and replace its vectors in one commit."""
        self.table(tenant).replace_all(lambda: map(self._vectors, pages()), last, self.embedder.dim)

    def nearest(
        self,
        query: str,
        top_k: int,
        within: Entity,
        places: tuple[tuple[Entity, ...], ...],
        fields: Mapping[str, Any],
        check: Callable[[Sequence[str]], Mapping[str, EntryRow]],
    ) -> list[tuple[EntryRow, float]]:
        """The ``top_k`` entries nearest to ``query`` that ``check`` confirms, with their scores, best first."""
        if top_k == 0 or not query.strip():
            return []
        table = self.table(within)
        if not table.exists():
            return []
        vector = self.embedder.embed_query(query)
        where = VectorFilter(((within,), *places), fields)
        confirmed: list[tuple[EntryRow, float]] = []
        fetch = top_k
        for _ in range(MAX_ROUNDS):
            hits = table.nearest(vector, fetch, where)
            rows = check([key for key, _, _ in hits])
            # A hit counts only if the entry has not changed since it was embedded.
            current = [(rows[key], 1.0 - d) for key, rev, d in hits if key in rows and rows[key].rev == rev]
            confirmed = current[:top_k]
            if len(confirmed) == top_k or len(hits) < fetch:
                break
            fetch *= 4
        return confirmed

    def _vectors(self, rows: Sequence[EntryRow]) -> list[VectorRow]:
        """The vectors of the ``rows`` whose text has at least one known token."""
        embedded: list[VectorRow] = []
        for start in range(0, len(rows), EMBED_AT_ONCE):
            some = rows[start : start + EMBED_AT_ONCE]
            texts = [text_of(v, row.metadata) for v, row in zip(self._values(some), some, strict=True)]
            with_text = [(row, text) for row, text in zip(some, texts, strict=True) if text]
            if not with_text:
                continue
            vectors = self.embedder.embed([text for _, text in with_text], np.float16)
            embedded += [
                VectorRow(row.key, row.rev, row.path, row.metadata, vector)
                for (row, _), vector in zip(with_text, vectors, strict=True)
                if vector.any()
            ]
        return embedded


def text_of(value: Any, metadata: Mapping[str, Any]) -> str:
    """The text to embed: the whole value, or the field of the value that the metadata names."""
    name = metadata.get(TEXT_FIELD)
    if isinstance(name, str):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())
