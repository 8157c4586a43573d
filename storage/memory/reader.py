"""Turns rows of the catalog into entries with their values, inline or in blobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from driftline.storage.entities import Entity
from driftline.storage.errors import ObjectNotFound, StorageError
from driftline.storage.memory.catalog import queries as entry_queries
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.private_keys import MARK, shown
from driftline.storage.memory.catalog.queries import EntryRow, Everywhere, Scope
from driftline.storage.memory.catalog.values import Blobs, decode
from driftline.storage.memory.threads import in_threads

READ_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A stored value and its metadata. ``value`` may be None, because null is a valid JSON value."""

    key: str
    value: Any
    entity: Entity
    metadata: dict[str, Any]
    size_bytes: int
    content_hash: str
    created: datetime
    updated: datetime
    expires: datetime | None
    rev: int


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Reads the blobs of many entries concurrently, in ``pool``."""

    catalog: Catalog
    blobs: Blobs
    pool: ThreadPoolExecutor
    now: Callable[[], datetime]

    def entries(self, rows: Sequence[EntryRow], scope: Scope | Everywhere) -> list[MemoryEntry]:
        """``rows`` with their values, without entries that were deleted in the meantime."""
        if all(row.inline is not None for row in rows):
            return [_entry(row, row.inline or b"") for row in rows]
        entries = in_threads(self.pool, lambda row: self._entry(row, scope.of(row.path)), rows)
        return [entry for entry in entries if entry is not None]

    def values(self, rows: Sequence[EntryRow]) -> list[Any]:
        """The values of ``rows``, in order; None if the blob is gone, for example after a later store."""

        def value(row: EntryRow) -> Any:
            try:
                return decode(self._value(row))
            except ObjectNotFound:
                return None

        return in_threads(self.pool, value, rows)

    def _entry(self, row: EntryRow, scope: Scope) -> MemoryEntry | None:
        """Read a value. If its blob is gone, the entry was replaced in the meantime, so read the catalog again."""
        current = row
        for _ in range(READ_ATTEMPTS):
            try:
                return _entry(current, self._value(current))
            except ObjectNotFound as error:
                missing = error
            again = self.catalog.read(lambda c: entry_queries.get(c, [row.key], scope, self.now()))
            if not again:
                return None
            if again[0].blob_path == current.blob_path:
                break
            current = again[0]
        raise StorageError("The value of a memory entry is missing", missing.where, "Restore it, or store it again.")

    def _value(self, row: EntryRow) -> bytes:
        if row.blob_path is None:
            return row.inline or b""
        return self.blobs.read(row.blob_path, row.content_hash)


def _entry(row: EntryRow, data: bytes) -> MemoryEntry:
    return MemoryEntry(
        row.key,
        decode(data),
        Entity.of_directory(row.path),
        row.metadata,
        row.size_bytes,
        row.content_hash,
        row.created,
        row.updated,
        row.expires,
        row.rev,
    )


def as_shown(entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    """``entries`` with the keys that their users know."""
    return [replace(entry, key=shown(entry.key)) if MARK in entry.key else entry for entry in entries]
