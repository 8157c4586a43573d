"""The hierarchical memory store: JSON values under keys, each owned by an entity (DESIGN, "Memory")."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from itertools import chain
from types import TracebackType
from typing import Any, Self

from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.errors import CatalogError, StorageError, UsageError
from driftline.storage.hierarchy import Hierarchy
from driftline.storage.memory import upkeep
from driftline.storage.memory.catalog import entities as entity_tree
from driftline.storage.memory.catalog import queries as entry_queries
from driftline.storage.memory.catalog import writes as entry_rows
from driftline.storage.memory.catalog.database import DEFAULT_POOL_SIZE, Catalog, embedded_url
from driftline.storage.memory.catalog.drafts import Drafts
from driftline.storage.memory.catalog.entities import EntityRecord
from driftline.storage.memory.catalog.queries import EntryRow, Scope
from driftline.storage.memory.catalog.values import (
    DEFAULT_CACHE_SECONDS,
    Blobs,
    check_fields,
    check_key,
)
from driftline.storage.memory.flush import Flusher
from driftline.storage.memory.pages import Cursor, Page
from driftline.storage.memory.reader import EntryReader, MemoryEntry
from driftline.storage.memory.registry import DEFAULT_LIMIT, EntityRegistry, utc_now
from driftline.storage.memory.search import MemoryHit, MemorySearch
from driftline.storage.model import Embedder
from driftline.storage.workspace.workspace import Workspace

DEFAULT_INLINE_BYTES = 1_024
DEFAULT_THREADS = 16
"""Blobs that are read or written at once: in a bucket each waits for a round trip."""
MAX_COMMIT_SECONDS = 1_800.0
"""A blob without an entry is left alone by cleanup for an hour; so an entry may not refer to one that is much older."""


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One entry for ``store_many``."""

    key: str
    value: Any
    entity: Entity | str
    metadata: Mapping[str, Any] | None = None
    expires_at: datetime | None = None


class MemoryStore:
    """The memory of all tenants of a workspace.

    Every call stays within one tenant: the one that its entity or ``scope`` names, by default that of the hierarchy's
    root. A scope deeper than a tenant shows only what lies at or below it. Threads may share a store; so may processes,
    each with its own, over one PostgreSQL or, on one host, one SQLite catalog. Close it, or use it as a context
    manager, so that indexes learn of the last writes at once.

    Raises BadEntity, BadEntry and UsageError for bad input, with nothing written; StorageError when the workspace
    fails, with nothing in the catalog; CatalogError when the catalog fails, with the path of the blob that was written
    in vain, and CatalogConnectionError, which is a ConnectionError, when it cannot be reached in several attempts.
    """

    def __init__(
        self,
        storage_uri: str,
        *,
        catalog_url: str | None = None,
        hierarchy: Hierarchy | None = None,
        embedder: Callable[[], Embedder] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        inline_bytes: int = DEFAULT_INLINE_BYTES,
        threads: int = DEFAULT_THREADS,
        cache_seconds: float = DEFAULT_CACHE_SECONDS,
        pool_size: int = DEFAULT_POOL_SIZE,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Open the workspace and the catalog, and create what is missing.

        Without ``catalog_url`` the catalog is a SQLite file in the workspace, which must be local then. ``embedder``
        is called when text must be embedded for the first time. What is stored without one is found by its
        meaning only after a store with one has been open, or, in a tenant without any vectors, after ``rebuild``.
        Raises CatalogMismatch, UnsafeStore and all that opening a workspace raises.
        """
        self.workspace = Workspace.open_for_writing(storage_uri, storage_options)
        self.catalog = Catalog(catalog_url or _embedded(self.workspace), pool_size)
        self.hierarchy = hierarchy or Hierarchy()
        self._now = now
        self.catalog.prepare(self.workspace.config.workspace_id)
        self._inline_bytes = inline_bytes
        self._blobs = Blobs(self.workspace.objects, cache_seconds)
        self._pool = ThreadPoolExecutor(threads, "driftline-memory")
        self._reader = EntryReader(self.catalog, self._blobs, self._pool, now)
        self._search = MemorySearch(self.workspace.objects, embedder, self._reader.values) if embedder else None
        self._flusher = Flusher(self.catalog, self.workspace.objects, self._search, now)
        self._entities = EntityRegistry(self.catalog, self.hierarchy, now, self._flusher.notify)

    def close(self) -> None:
        """Flush what is waiting and close all connections. Raises what ``flush`` raises, and is closed all the same."""
        try:
            self._flusher.close()
        finally:
            self._pool.shutdown()
            self.catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- writing -----------------------------------------------------------------------------

    def store(
        self,
        key: str,
        value: Any,
        entity: Entity | str,
        metadata: Mapping[str, Any] | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        """Store a JSON value under ``key``, unique in its tenant, owned by ``entity``, which is registered if need be.

        An entry of that key is replaced, and moved if another entity owned it. Durable when it returns.
        """
        self.store_many([MemoryItem(key, value, entity, metadata, expires_at)])

    def store_many(self, items: Iterable[MemoryItem]) -> int:
        """Store ``items`` in one transaction; of equal keys of a tenant the last one counts. Returns how many."""
        drafts: dict[Entity, Drafts] = defaultdict(Drafts)

        @cache
        def place(owner: Entity | str) -> tuple[Drafts, str]:
            entity = self.hierarchy.entity(owner)
            return drafts[entity.tenant], entity.directory

        for item in items:
            draft, path = place(item.entity)
            draft.add(item.key, item.value, path, item.metadata, item.expires_at, self._inline_bytes)
        by_tenant = {tenant: some.latest() for tenant, some in drafts.items()}
        started = time.monotonic()
        for each in by_tenant.values():
            self._write_blobs(each)
        number = sum(map(len, by_tenant.values()))

        def work(connection: Connection) -> None:
            for owner in sorted(by_tenant):  # always in this order, so that two transactions cannot block each other
                tenant = entity_tree.lock_tenant(connection, owner, create=True)
                assert tenant is not None
                entry_rows.put(connection, tenant, by_tenant[owner], self._now())
            if time.monotonic() - started > MAX_COMMIT_SECONDS:
                raise StorageError("Storing took so long that a cleanup may have deleted the blobs", "", "Try again.")

        if by_tenant:
            try:
                self.catalog.write(work)
            except CatalogError as error:
                paths = chain.from_iterable(each.blob_path for each in by_tenant.values())
                error.blob_path = next((path for path in paths if path), None)
                raise
        self._flusher.notify(number)
        return number

    def delete(self, key: str, scope: Entity | str | None = None) -> bool:
        """Delete the entry of ``key``; returns whether ``scope`` showed one."""
        wanted, seen = check_key(key), self._scope(scope)

        def work(connection: Connection) -> int:
            tenant = entity_tree.lock_tenant(connection, seen.within)
            return entry_rows.remove(connection, tenant, [wanted], seen, self._now()) if tenant else 0

        removed = self.catalog.write(work)
        self._flusher.notify(removed)
        return removed > 0

    # -- entities ----------------------------------------------------------------------------

    def register_entity(self, entity: Entity | str) -> EntityRecord:
        """See ``EntityRegistry.register_entity``."""
        return self._entities.register_entity(entity)

    def register_entity_with_defaults(
        self, type: str, id: str, parents: Mapping[str, str] | None = None
    ) -> EntityRecord:
        """See ``EntityRegistry.register_entity_with_defaults``."""
        return self._entities.register_entity_with_defaults(type, id, parents)

    def get_entity(self, entity: Entity | str) -> EntityRecord | None:
        """See ``EntityRegistry.get_entity``."""
        return self._entities.get_entity(entity)

    def list_entities(
        self,
        within: Entity | str | None = None,
        type: str | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        after: Entity | str | None = None,
    ) -> list[EntityRecord]:
        """See ``EntityRegistry.list_entities``."""
        return self._entities.list_entities(within, type, limit=limit, after=after)

    def ancestors(self, entity: Entity | str) -> list[EntityRecord]:
        """See ``EntityRegistry.ancestors``."""
        return self._entities.ancestors(entity)

    def descendants(
        self, entity: Entity | str, type: str | None = None, max_depth: int | None = None
    ) -> list[EntityRecord]:
        """See ``EntityRegistry.descendants``."""
        return self._entities.descendants(entity, type, max_depth)

    def move_entity(self, entity: Entity | str, parent: Entity | str) -> Entity:
        """See ``EntityRegistry.move_entity``."""
        return self._entities.move_entity(entity, parent)

    def delete_entity(self, entity: Entity | str, *, cascade: bool = False) -> int:
        """See ``EntityRegistry.delete_entity``."""
        return self._entities.delete_entity(entity, cascade=cascade)

    # -- upkeep ------------------------------------------------------------------------------

    def flush(self) -> int:
        """Bring indexes and vectors in step with the catalog now; returns how many changes there were."""
        return self._flusher.flush()

    def collect_expired(self) -> int:
        """Delete what has expired, of all tenants; returns how many entries that were."""
        removed = upkeep.collect_expired(self.catalog, self._now())
        self._flusher.notify(removed)
        return removed

    def rebuild(self, within: Entity | str | None = None) -> dict[str, int]:
        """Make the indexes at and below an entity anew from the catalog, and the tenant's vectors if it is a tenant.

        Returns how many entries each index holds, by the entity's directory. Raises LeaseHeld while the indexes are
        compacted or rebuilt elsewhere.
        """
        self.flush()
        top = self.hierarchy.root_entity if within is None else self.hierarchy.entity(within)
        return upkeep.rebuild(self.catalog, self.workspace, self._search, top, self._now)

    # -- reading -----------------------------------------------------------------------------

    def retrieve(self, key: str, scope: Entity | str | None = None) -> MemoryEntry | None:
        """The entry of ``key``, or None if ``scope`` shows none or it has expired."""
        return self.retrieve_batch([key], scope).get(key)

    def retrieve_batch(self, keys: Iterable[str], scope: Entity | str | None = None) -> dict[str, MemoryEntry]:
        """The entries of those ``keys`` that ``scope`` shows; their blobs are read side by side."""
        wanted, seen = [check_key(key) for key in keys], self._scope(scope)
        rows = self.catalog.read(lambda connection: entry_queries.get(connection, wanted, seen, self._now()))
        return {entry.key: entry for entry in self._reader.entries(rows, seen)}

    def retrieve_by_entity(
        self,
        type: str,
        id: str,
        *,
        within: Entity | str | None = None,
        include_descendants: bool = True,
        allowed_ancestors: Sequence[Entity | str] | None = None,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
        cursor: str | None = None,
    ) -> Page[MemoryEntry]:
        """The entries of the entities ``type:id`` at or below ``within``, by default the root, by owner and key.

        Of several entities of that name, as under two projects, all are meant. ``allowed_ancestors`` limits to what
        lies at or below one of these; an empty list allows nothing. ``cursor`` is that of the page before: unlike
        ``offset``, it costs the same however deep it leads.
        """
        if limit < 0 or offset < 0:
            raise UsageError("limit and offset must not be negative", f"{limit}, {offset}")
        seen, after = self._scope(within, allowed_ancestors), Cursor.parse(cursor)
        # An entity of the tenant's own level is found by name, too, but never one of another tenant.
        page = partial(entry_queries.page, include_descendants=include_descendants, after=after, offset=offset)

        def work(connection: Connection) -> tuple[list[EntryRow], int]:
            tops, now = entry_queries.tops_of(connection, type, id, seen.within), self._now()
            if not tops:
                return [], 0
            total = entry_queries.count(connection, tops, seen, now, include_descendants=include_descendants)
            return page(connection, tops, seen, now, limit=limit + 1), total

        rows, total = self.catalog.read(work)
        shown = rows[:limit]
        has_more = len(rows) > limit
        following = str(Cursor.after(shown[-1].owner_id, shown[-1].key)) if has_more and shown else None
        return Page(tuple(self._reader.entries(shown, seen)), total, has_more, following)

    def search(
        self,
        query: str = "",
        metadata_filter: Mapping[str, Any] | None = None,
        scope: Entity | str | None = None,
        *,
        allowed_ancestors: Sequence[Entity | str] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> list[MemoryEntry]:
        """The entries whose key holds every word of ``query`` and whose metadata fits, the latest first.

        Fields of the filter are ANDed; a list means any of its values; None is left out. For meaning, see
        ``search_memory``.
        """
        seen, fields = self._scope(scope, allowed_ancestors), check_fields(metadata_filter)
        rows = self.catalog.read(
            lambda connection: entry_queries.search(connection, query.split(), fields, seen, self._now(), limit)
        )
        return self._reader.entries(rows, seen)

    def search_memory(
        self,
        query: str,
        top_k: int = 5,
        filter: Mapping[str, Any] | None = None,
        scope: Entity | str | None = None,
        *,
        allowed_ancestors: Sequence[Entity | str] | None = None,
    ) -> list[MemoryHit[MemoryEntry]]:
        """The ``top_k`` entries whose text is nearest in meaning to ``query``, best first.

        ``filter`` holds fields of the metadata, as in ``search``, and ``entity``, at or below which a hit must lie. All
        is applied before the search, and every hit is looked up in the catalog. Raises UsageError without an embedder.
        """
        if self._search is None:
            raise UsageError("This store was opened without an embedding model", self.workspace.objects.uri)
        if top_k < 0:
            raise UsageError("top_k must not be negative", str(top_k))
        fields = check_fields(filter)
        entity = fields.pop("entity", None)
        seen = self._scope(scope, allowed_ancestors)
        places = [*([seen.allowed] if seen.allowed is not None else [])]
        if entity is not None:
            named = entity if isinstance(entity, list) else [entity]
            places.append(tuple(self.hierarchy.entity(name) for name in named))
        if top_k and query.strip() and self._flusher.has_waiting:
            self.flush()

        def check(keys: Sequence[str]) -> dict[str, EntryRow]:
            rows = self.catalog.read(lambda connection: entry_queries.get(connection, keys, seen, self._now()))
            return {row.key: row for row in rows}

        found = self._search.nearest(query, top_k, seen.within, tuple(places), fields, check)
        entries = {entry.key: entry for entry in self._reader.entries([row for row, _ in found], seen)}
        hits = [(entries[row.key], score) for row, score in found if row.key in entries]
        return [MemoryHit(entry, score, rank) for rank, (entry, score) in enumerate(hits, start=1)]

    # -- inside ------------------------------------------------------------------------------

    def _scope(self, scope: Entity | str | None, allowed: Sequence[Entity | str] | None = None) -> Scope:
        within = self.hierarchy.root_entity if scope is None else self.hierarchy.entity(scope)
        return Scope(within, None if allowed is None else tuple(self.hierarchy.entity(entity) for entity in allowed))

    def _write_blobs(self, drafts: Drafts) -> None:
        """Write the values that are too large to be inlined, side by side."""
        positions = [position for position, data in enumerate(drafts.inline) if data is None]

        def write(position: int) -> str:
            key = drafts.key[position]
            return self._blobs.write(drafts.path[position], key, drafts.large[key])

        for position, path in zip(positions, self._pool.map(write, positions), strict=True):
            drafts.blob_path[position] = path


def _embedded(workspace: Workspace) -> str:
    if not workspace.objects.is_local:
        raise UsageError(
            "A workspace in a bucket needs a catalog of its own",
            workspace.objects.uri,
            "Set DATABASE_URL, or catalog.url: postgresql://… or sqlite:///path.",
        )
    return embedded_url(workspace.objects.uri)
