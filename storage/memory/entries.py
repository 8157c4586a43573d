"""Read entries from catalog rows, and store them: blobs with large values first, then one catalog transaction."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any

from cachetools import TTLCache
from sqlalchemy.engine import Connection

from driftline.storage.defaults import Redaction
from driftline.storage.documents import content_hash
from driftline.storage.entities import Entity, EntityName
from driftline.storage.errors import BadEntry, CatalogError, CorruptFile, ObjectNotFound, StorageError
from driftline.storage.layout import new_ulid
from driftline.storage.memory.catalog import entity_tree, entry_queries, entry_writes
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.entry_queries import MARK, EntryRow, Scope, Unscoped
from driftline.storage.memory.catalog.entry_writes import MAX_BOUND_CHARACTERS, Drafts, shown
from driftline.storage.memory.entity_names import EntityNames
from driftline.storage.memory.workspace_catalog import Generations
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel
from driftline.storage.redaction import redact_value

READ_ATTEMPTS = 5
CACHED_BYTES = 64 * 1024 * 1024
DEFAULT_CACHE_SECONDS = 600.0
MAX_COMMIT_SECONDS = 1_800.0
"""Cleanup may delete a blob with no entry after an hour, so the transaction must reference it well before that."""

_log = logging.getLogger(__name__)


class Blobs:
    """Large values as files in their owner's directory. Blobs are immutable, and therefore cached. Thread-safe.

    The cache holds at most ``CACHED_BYTES``, and each blob for ``cache_seconds``; 0 disables it.
    """

    def __init__(
        self,
        objects: ObjectStore,
        cache_seconds: float = DEFAULT_CACHE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._cache: TTLCache[str, bytes] = TTLCache(CACHED_BYTES, cache_seconds, clock, getsizeof=len)

    def write(self, directory: str, key: str, data: bytes) -> str:
        """Write ``data`` durably under a unique name and return its path. Raises StorageError."""
        path = f"{directory}/{content_hash(key.encode())}-{content_hash(data)}-{new_ulid()}.json"
        self._objects.create(path, data)
        return path

    def read(self, path: str, expected_hash: str) -> bytes:
        """Return the bytes at ``path``, after checking their hash. Raises ObjectNotFound, StorageError, CorruptFile."""
        with self._lock:
            cached = self._cache.get(path)
        if cached is not None:
            return cached
        data = self._objects.get(path)
        if content_hash(data) != expected_hash:
            raise CorruptFile("A memory blob is damaged", f"{self._objects.uri}/{path}", "Store the entry again.")
        if len(data) <= CACHED_BYTES // 4:  # one large blob must not evict all others
            with self._lock:
                self._cache[path] = data
        return data


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

    def to_dict(self) -> dict[str, Any]:
        """Convert the entry to JSON, without its revision.

        Returns:
            The fields of the entry. Times are ISO 8601 with their zone, and ``entity`` is its path.

        Examples:
            >>> _ = store.store("plan", {"step": 1}, "org:acme/project:alpha")
            >>> store.retrieve("plan").to_dict()["entity"]
            'org:acme/project:alpha'
        """
        return {
            "key": self.key,
            "value": self.value,
            "entity": self.entity.directory,
            "metadata": self.metadata,
            "size_bytes": self.size_bytes,
            "content_hash": self.content_hash,
            "created": self.created.isoformat(),
            "updated": self.updated.isoformat(),
            "expires": self.expires.isoformat() if self.expires else None,
        }


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Reads the blobs of many entries concurrently, in ``pool``."""

    catalog: Catalog
    blobs: Blobs
    pool: ThreadPoolExecutor
    now: Callable[[], datetime]

    def entries(self, rows: Sequence[EntryRow], scope: Scope | Unscoped) -> list[MemoryEntry]:
        """Return ``rows`` with their values, omitting entries deleted concurrently."""
        if all(row.inline is not None for row in rows):
            return [_entry(row, row.inline or b"") for row in rows]
        entries = in_parallel(lambda row: self._entry(row, scope.of(row.path)), rows, pool=self.pool)
        return [entry for entry in entries if entry is not None]

    def values(self, rows: Sequence[EntryRow]) -> list[Any]:
        """Return the values of ``rows``, in order, or None if a blob no longer exists, for example because a later
        write replaced the entry.
        """

        def value(row: EntryRow) -> Any:
            try:
                return json.loads(self._value(row))
            except ObjectNotFound:
                return None

        return [*in_parallel(value, rows, pool=self.pool)]

    def _entry(self, row: EntryRow, scope: Scope) -> MemoryEntry | None:
        """Read a value. If its blob is missing, the entry was replaced concurrently, so reread the catalog."""
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
        raise StorageError("A memory entry's value is missing", missing.where, "Restore it, or store it again.")

    def _value(self, row: EntryRow) -> bytes:
        if row.blob_path is None:
            return row.inline or b""
        return self.blobs.read(row.blob_path, row.content_hash)


def _entry(row: EntryRow, data: bytes) -> MemoryEntry:
    return MemoryEntry(
        row.key,
        json.loads(data),
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
    """Return ``entries`` with the keys that users stored them under."""
    return [replace(entry, key=shown(entry.key)) if MARK in entry.key else entry for entry in entries]


@dataclass(slots=True)
class Stored:
    """The result of storing ``entries`` entries: ``replaced`` had a value under their key already.

    ``moved_from`` maps the keys of entries that moved to their former owners, one for each tenant at most.
    ``redacted`` counts the credentials that were redacted in values and metadata, by rule.
    """

    entries: int = 0
    replaced: int = 0
    moved_from: dict[str, tuple[Entity, ...]] = field(default_factory=dict)
    redacted: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One entry for ``store_many``."""

    key: str
    value: Any
    entity: EntityName
    metadata: Mapping[str, Any] | None = None
    expires_at: datetime | None = None


class EntryWriter:
    """Writes entries to blobs and catalog; ``pool`` writes blobs concurrently."""

    def __init__(
        self,
        catalog: Catalog,
        names: EntityNames,
        blobs: Blobs,
        pool: ThreadPoolExecutor,
        inline_bytes: int,
        now: Callable[[], datetime],
        generations: Generations,
        redaction: Redaction,
    ) -> None:
        self._catalog = catalog
        self._names = names
        self._root = names.root if names.hierarchy.root else None
        self._blobs = blobs
        self._pool = pool
        self._inline_bytes = inline_bytes
        self._now = now
        self._generations = generations
        self._redaction = redaction

    def write(self, items: Iterable[MemoryItem]) -> Stored:
        """Store ``items`` in one transaction. For each key, the last item wins.

        Raises BadEntity, BadEntry, CatalogMismatch, StorageError, and CatalogError, which lists blobs written without
        entries.
        """
        self._catalog.check_open()
        stored = Stored()
        by_tenant = self._drafted(items, stored)
        started = time.monotonic()
        for tenant, drafts in by_tenant.items():
            self._generations.check(tenant)
            self._write_blobs(drafts)
        if by_tenant:
            try:
                former = self._catalog.write(lambda connection: self._put(connection, by_tenant, started))
            except CatalogError as error:
                paths = chain.from_iterable(drafts.blob_path for drafts in by_tenant.values())
                error.blob_paths = tuple(path for path in paths if path)
                for path in error.blob_paths:
                    _log.warning("The catalog failed, so cleanup will delete this memory blob: %s", path)
                raise
            stored.replaced = sum(map(len, former.values()))
            for tenant, drafts in by_tenant.items():
                owners = zip(drafts.key, drafts.path, strict=True)
                left = {key: former[tenant][key] for key, path in owners if former[tenant].get(key, path) != path}
                for key, path in left.items():
                    stored.moved_from[key] = (*stored.moved_from.get(key, ()), Entity.of_directory(path))
        stored.entries = sum(map(len, by_tenant.values()))
        return stored

    def _drafted(self, items: Iterable[MemoryItem], stored: Stored) -> dict[Entity, Drafts]:
        drafts: dict[Entity, Drafts] = defaultdict(Drafts)

        @cache
        def resolved(owner: EntityName) -> tuple[Drafts, str]:
            entity = self._names.find(owner)
            return drafts[entity.tenant], entity.directory

        is_deep = self._root is not None and self._root.tenant != self._root
        for item in items:
            draft, path = resolved(item.entity)
            value, metadata = self._redacted(item, stored)
            draft.add(item.key, value, path, metadata, item.expires_at, self._inline_bytes)
            if is_deep and len(item.key) > MAX_BOUND_CHARACTERS:
                what = "The key is too long for a store whose root is below the tenant"
                fix = f"Shorten it to {MAX_BOUND_CHARACTERS} characters."
                raise BadEntry(what, repr(item.key[:40] + "…"), fix)
        return {tenant: some.latest() for tenant, some in drafts.items()}

    def _redacted(self, item: MemoryItem, stored: Stored) -> tuple[Any, Mapping[str, Any] | None]:
        """Return the value and metadata with credentials redacted. Raises BadEntry if the key contains a credential."""
        if self._redaction == "off":
            return item.value, item.metadata
        if redact_value(item.key, self._redaction)[1]:
            raise BadEntry("A key must not contain a credential", "", "Use a key that describes the entry.")
        fields = dict(item.metadata) if isinstance(item.metadata, Mapping) else item.metadata
        (value, metadata), counts = redact_value((item.value, fields), self._redaction)
        if not counts:
            return item.value, item.metadata
        stored.redacted += counts
        named = ", ".join(f"{count:,} {rule}" for rule, count in sorted(counts.items()))
        _log.warning("Credentials were redacted in memory entry %r: %s", item.key, named)
        return value, metadata

    def _write_blobs(self, drafts: Drafts) -> None:
        """Write values that are too large to inline, concurrently."""
        positions = [position for position, data in enumerate(drafts.inline) if data is None]

        def write(position: int) -> str:
            key = drafts.key[position]
            return self._blobs.write(drafts.path[position], key, drafts.large[key])

        for position, path in zip(positions, in_parallel(write, positions, pool=self._pool), strict=True):
            drafts.blob_path[position] = path

    def _put(
        self, connection: Connection, by_tenant: Mapping[Entity, Drafts], started: float
    ) -> dict[Entity, dict[str, str]]:
        """Write the entries, and return each tenant's replaced keys with their former owners."""
        former: dict[Entity, dict[str, str]] = {}
        for owner in sorted(by_tenant):  # a fixed order avoids deadlocks between transactions
            tenant = entity_tree.lock_tenant(connection, owner, create=True)
            assert tenant is not None
            former[owner] = entry_writes.put(connection, tenant, by_tenant[owner], self._now(), self._root)
        if time.monotonic() - started > MAX_COMMIT_SECONDS:
            raise StorageError(
                f"Storing took more than {MAX_COMMIT_SECONDS / 60:.0f} minutes, and cleanup may delete its blobs",
                "",
                "Try again.",
            )
        return former
