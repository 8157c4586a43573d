"""The hierarchical memory store: JSON values under keys, each owned by an entity (DESIGN, "Memory")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.hierarchy import EntityName, Hierarchy
from driftline.storage.memory import index_query, upkeep
from driftline.storage.memory.binding import Generations, open_own_catalog
from driftline.storage.memory.catalog import entities as entity_tree
from driftline.storage.memory.catalog import private_keys
from driftline.storage.memory.catalog import queries as entry_queries
from driftline.storage.memory.catalog import writes as entry_rows
from driftline.storage.memory.catalog.database import DEFAULT_POOL_SIZE
from driftline.storage.memory.catalog.entities import EntityRecord
from driftline.storage.memory.catalog.queries import EntryRow
from driftline.storage.memory.catalog.values import (
    DEFAULT_CACHE_SECONDS,
    Blobs,
    check_fields,
    check_key,
)
from driftline.storage.memory.closing import Closing
from driftline.storage.memory.delta_watch import DeltaWatch
from driftline.storage.memory.flush import Flusher
from driftline.storage.memory.index_query import KeyRange
from driftline.storage.memory.listing import MemoryListing
from driftline.storage.memory.names import bound_names, split_filter
from driftline.storage.memory.pages import Cursor, Page, check_count
from driftline.storage.memory.ranking import MODES, Mode, relevance
from driftline.storage.memory.reader import EntryReader, MemoryEntry, as_shown
from driftline.storage.memory.registry import DEFAULT_LIMIT, EntityRegistry, utc_now
from driftline.storage.memory.search import MemoryHit, MemoryHits, MemorySearch, Question
from driftline.storage.memory.vectors import VectorFilter
from driftline.storage.memory.writer import EntryWriter, MemoryItem
from driftline.storage.model import Embedder
from driftline.storage.workspace.workspace import Workspace

__all__ = ["MemoryItem", "MemoryStore"]

DEFAULT_INLINE_BYTES = 1_024
DEFAULT_COMPACTION_THRESHOLD = 100
MAX_DISTANCE = 2.0
DEFAULT_THREADS = 8
"""Blobs read or written at once; in a bucket, each waits for a round trip."""


class MemoryStore:
    """The memory of all tenants of a workspace.

    Every call is confined to one tenant: that of its entity or ``scope``, by default that of the hierarchy's root. A
    scope below the tenant shows only entries at or below it. Threads may share a store. Processes open a store each,
    and share one PostgreSQL catalog or, on one host, one SQLite catalog. Close the store, or use it as a context
    manager, so that the last writes reach the indexes at once; a closed store raises StoreClosed.

    Raises BadEntity, BadEntry and UsageError for bad input: nothing is written then. Raises StorageError if the
    workspace fails: the catalog is unchanged then. Raises CatalogError if the catalog fails, with the path of a blob
    that was already written, and CatalogConnectionError, a ConnectionError, if all attempts to connect fail.
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
        compaction_threshold: int = DEFAULT_COMPACTION_THRESHOLD,
        on_threshold: Callable[[Entity, int], None] | None = None,
        within: EntityName | None = None,
    ) -> None:
        """Open the workspace and the catalog, and create them if they do not exist.

        Without ``catalog_url``, the catalog is a SQLite file in the workspace, which must then be local. ``embedder``
        is called when text is first embedded. Entries stored without an embedder become searchable by meaning once a
        store with an embedder is open or, in a tenant without vectors, after ``rebuild``. ``on_threshold`` is called
        with a tenant and the number of deltas in its index when there are more than ``compaction_threshold``.
        ``within`` binds the store to an entity, which is its root: no call reads, writes, lists, counts or reveals
        anything outside of it.
        Raises BadEntity, CatalogMissing, CatalogMismatch, CatalogError, UnsafeStore, UsageError, WorkspaceTooNew,
        CorruptFile, AccessDenied, StorageError.
        """
        self.workspace = Workspace.open_for_writing(storage_uri, storage_options)
        self.catalog = open_own_catalog(self.workspace, catalog_url, pool_size)
        self._now = now
        self.names = bound_names(self.catalog, hierarchy or Hierarchy(), within)
        self.hierarchy = self.names.hierarchy
        self._blobs = Blobs(self.workspace.objects, cache_seconds)
        self._pool = ThreadPoolExecutor(threads, "driftline-memory")
        self._reader = EntryReader(self.catalog, self._blobs, self._pool, now)
        self._search = MemorySearch(self.workspace.objects, embedder, self._reader.values) if embedder else None
        watch = DeltaWatch(self.workspace.objects, compaction_threshold, on_threshold) if on_threshold else None
        self._flusher = Flusher(self.catalog, self.workspace.objects, self._search, now, watch, self.names.boundary)
        self._entities = EntityRegistry(self.catalog, self.names, now, self._flusher.notify)
        self._generations = Generations(self.workspace.objects, self.catalog)
        self._writer = EntryWriter(
            self.catalog, self.names, self._blobs, self._pool, inline_bytes, now, self._generations
        )
        self._closing = Closing(self, self._flusher, self._pool, self.catalog)

    def close(self) -> None:
        """Flush pending changes and close all connections, even if the flush raises StorageError or CatalogError.

        Later calls raise StoreClosed. A store that nobody closes closes itself when the process ends.
        """
        self._closing.close()

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
        entity: EntityName,
        metadata: Mapping[str, Any] | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        """Store a JSON value under ``key``, which is unique in its tenant, and register its owner ``entity`` if new.

        An existing entry of that key is replaced, and moves if another entity owned it. Durable on return.
        """
        self.store_many([MemoryItem(key, value, entity, metadata, expires_at)])

    def store_many(self, items: Iterable[MemoryItem]) -> int:
        """Store ``items`` in one transaction; returns the number of entries. For each key, the last item wins."""
        number = self._writer.write(items)
        self._flusher.notify(number)
        return number

    def delete(self, key: str, scope: EntityName | None = None) -> bool:
        """Delete the entry of ``key``; returns whether ``scope`` had one."""
        checked, visible = check_key(key), self.names.scope(scope)

        def work(connection: Connection) -> int:
            tenant, now = entity_tree.lock_tenant(connection, visible.within), self._now()
            if tenant is None:
                return 0
            removed = entry_rows.remove(connection, tenant, [checked], visible, now)
            if removed:
                return removed
            own = [row.key for row in private_keys.find(connection, [checked], visible, now).values()]
            return entry_rows.remove(connection, tenant, own, visible, now) if own else 0

        self._generations.check(visible.within.tenant)
        removed = self.catalog.write(work)
        self._flusher.notify(removed)
        return removed > 0

    # -- entities ----------------------------------------------------------------------------

    def register_entity(self, entity: EntityName) -> EntityRecord:
        """See ``EntityRegistry.register_entity``."""
        return self._entities.register_entity(entity)

    def register_entity_with_defaults(
        self, type: str, id: str, parents: Mapping[str, str] | None = None
    ) -> EntityRecord:
        """See ``EntityRegistry.register_entity_with_defaults``."""
        return self._entities.register_entity_with_defaults(type, id, parents)

    def get_entity(self, entity: EntityName) -> EntityRecord | None:
        """See ``EntityRegistry.get_entity``."""
        return self._entities.get_entity(entity)

    def list_entities(
        self,
        within: EntityName | None = None,
        type: str | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        after: EntityName | None = None,
    ) -> list[EntityRecord]:
        """See ``EntityRegistry.list_entities``."""
        return self._entities.list_entities(within, type, limit=limit, after=after)

    def ancestors(self, entity: EntityName) -> list[EntityRecord]:
        """See ``EntityRegistry.ancestors``."""
        return self._entities.ancestors(entity)

    def descendants(
        self, entity: EntityName, type: str | None = None, max_depth: int | None = None
    ) -> list[EntityRecord]:
        """See ``EntityRegistry.descendants``."""
        return self._entities.descendants(entity, type, max_depth)

    def move_entity(self, entity: EntityName, parent: EntityName) -> Entity:
        """See ``EntityRegistry.move_entity``."""
        return self._entities.move_entity(entity, parent)

    def delete_entity(self, entity: EntityName, *, cascade: bool = False) -> int:
        """See ``EntityRegistry.delete_entity``."""
        return self._entities.delete_entity(entity, cascade=cascade)

    # -- upkeep ------------------------------------------------------------------------------

    def flush(self) -> int:
        """Apply all pending changes of the catalog to indexes and vectors; returns the number of changes."""
        return self._flusher.flush()

    def collect_expired(self) -> int:
        """Delete the expired entries of all tenants, or within the boundary; returns the number of entries."""
        removed = upkeep.collect_expired(self.catalog, self._now(), self.names.boundary)
        self._flusher.notify(removed)
        return removed

    def rebuild(self, within: EntityName | None = None) -> dict[str, int]:
        """Rebuild the indexes at and below an entity from the catalog and, if it is a tenant, the tenant's vectors.

        Returns the number of entries in each index, by the entity's directory. Raises LeaseHeld while another process
        compacts or rebuilds the indexes.
        """
        self.flush()
        top = self.names.root if within is None else self.names.find(within)
        return upkeep.rebuild(self.catalog, self.workspace, self._search, top, self._now)

    def query_index(
        self,
        range: KeyRange | None = None,
        group_by: str | None = None,
        scope: EntityName | None = None,
        *,
        rev: int | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> list[dict[str, Any]]:
        """The entries at or below ``scope`` from its index, without their values; or totals by level ``group_by``.

        ``range`` is the first key and the one behind the last. ``rev`` asks for the index as of that revision of the
        tenant, which must not precede the last compaction. The rows are those of ``index_query``.
        """
        keys = index_query.check_range(range)
        level = group_by and self.hierarchy.check_type(group_by)
        entity = self.names.root if scope is None else self.names.find(scope)
        self._flusher.settle()
        listing, now = MemoryListing(self.workspace.objects), self._now()
        if level:
            return index_query.totals_by_level(listing, entity, level, keys, now, as_of=rev)
        return index_query.entries_between(listing, entity, keys, now, limit=check_count(limit, "limit"), as_of=rev)

    # -- reading -----------------------------------------------------------------------------

    def retrieve(self, key: str, scope: EntityName | None = None) -> MemoryEntry | None:
        """The entry of ``key``, or None if ``scope`` has none or it has expired."""
        return self.retrieve_batch([key], scope).get(key)

    def retrieve_batch(self, keys: Iterable[str], scope: EntityName | None = None) -> dict[str, MemoryEntry]:
        """The entries of ``keys`` within ``scope``, by key; blobs are read concurrently."""
        checked, visible = [check_key(key) for key in keys], self.names.scope(scope)
        rows = self.catalog.read(lambda connection: private_keys.get(connection, checked, visible, self._now()))
        return {entry.key: entry for entry in as_shown(self._reader.entries(rows, visible))}

    def retrieve_by_entity(
        self,
        type: str,
        id: str,
        include_descendants: bool = True,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
        *,
        within: EntityName | None = None,
        allowed_ancestors: Sequence[EntityName] | None = None,
        cursor: str | None = None,
    ) -> Page[MemoryEntry]:
        """A page of the entries of the entity ``type:id``, by owner and key.

        With ``within``, these are all entities of that name at or below it, for example in two projects.
        ``allowed_ancestors`` limits the entries to those at or below one of these entities; an empty list allows
        nothing. ``cursor`` comes from the previous page; unlike ``offset``, its cost does not grow with the position.
        """
        limit, offset = check_count(limit, "limit"), check_count(offset, "offset")
        top = self.names.home_of(type, id) if within is None else within
        self.hierarchy.named(type, id)
        visible, after = self.names.scope(top, allowed_ancestors), Cursor.parse(cursor)
        page = partial(entry_queries.page, include_descendants=include_descendants, after=after, offset=offset)

        def work(connection: Connection) -> tuple[list[EntryRow], int]:
            tops, now = entry_queries.tops_of(connection, type, id, visible.within), self._now()
            if not tops:
                return [], 0
            total = entry_queries.count(connection, tops, visible, now, include_descendants=include_descendants)
            return page(connection, tops, visible, now, limit=limit + 1), total

        rows, total = self.catalog.read(work)
        shown = rows[:limit]
        has_more = len(rows) > limit
        following = str(Cursor.after(shown[-1].owner_id, shown[-1].key)) if has_more and shown else None
        return Page(tuple(as_shown(self._reader.entries(shown, visible))), total, has_more, following)

    def search(
        self,
        query: str = "",
        metadata_filter: Mapping[str, Any] | None = None,
        scope: EntityName | None = None,
        *,
        allowed_ancestors: Sequence[EntityName] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> list[MemoryEntry]:
        """The entries whose key contains every word of ``query`` and whose metadata matches, latest first.

        All fields of the filter must match; a list matches any of its values; fields that are None are ignored. To
        search by meaning, use ``search_memory``.
        """
        visible, fields = self.names.scope(scope, allowed_ancestors), check_fields(metadata_filter)
        limit = check_count(limit, "limit")
        rows = self.catalog.read(
            lambda connection: entry_queries.search(connection, query.split(), fields, visible, self._now(), limit)
        )
        return as_shown(self._reader.entries(rows, visible))

    def search_memory(
        self,
        query: str,
        top_k: int = 5,
        filter: Mapping[str, Any] | None = None,
        scope: EntityName | None = None,
        *,
        allowed_ancestors: Sequence[EntityName] | None = None,
        max_distance: float | None = None,
        mode: Mode = "hybrid",
        explain: bool = False,
    ) -> MemoryHits[MemoryEntry]:
        """The ``top_k`` entries that answer ``query`` best, by its words and its meaning, best first.

        Hits are sorted by their scores; ``max_distance`` (1 - cosine, 0 to 2) drops what is farther. ``mode`` ranks by
        the words of key and text and by meaning (``hybrid``), by meaning alone (``vector``: the score is 1 - distance,
        the cosine of text and query), or by words alone (``text``: the share of the words). ``filter`` has fields of
        the metadata, as in ``search``, and may have ``entity``: an entity, at or below which hits are, or else the
        value of a field of that name. The filter applies before the search, and the catalog confirms every hit. With
        ``explain`` the hits have an ``explanation``. Raises UsageError, also without an embedder.
        """
        self.catalog.check_open()
        if self._search is None:
            raise UsageError("The memory store was opened without an embedding model", self.workspace.objects.uri)
        _check_search(top_k, max_distance, mode)
        fields, named = split_filter(check_fields(filter), self.hierarchy)
        visible = self.names.scope(scope, allowed_ancestors)
        places: list[tuple[Entity, ...]] = [(visible.within,)]
        places += [visible.allowed] if visible.allowed is not None else []
        places += [tuple(self.names.places(named))] if named is not None else []
        if top_k and query.strip():
            self._flusher.settle()

        def check(keys: Sequence[str]) -> dict[str, EntryRow]:
            rows = self.catalog.read(lambda connection: entry_queries.get(connection, keys, visible, self._now()))
            return {row.key: row for row in rows}

        where = VectorFilter(tuple(places), fields)
        answer = self._search.find(Question(query, top_k, visible.within, where, mode, max_distance, explain), check)
        entries = {each.key: each for each in self._reader.entries([row for row, _ in answer.found], visible)}
        found = [(as_shown([entries[row.key]])[0], hit) for row, hit in answer.found if row.key in entries]
        hits = MemoryHits(
            MemoryHit(each, relevance(hit, mode), rank, hit.distance) for rank, (each, hit) in enumerate(found, start=1)
        )
        if (boundary := self.names.boundary) is not None and boundary.tenant != boundary:
            answer.explanation.hide_tenant()
        hits.explanation = answer.explanation if explain else None
        return hits


def _check_search(top_k: int, max_distance: float | None, mode: str) -> None:
    if top_k < 0:
        raise UsageError("top_k must not be negative", str(top_k))
    if max_distance is not None and not 0 <= max_distance <= MAX_DISTANCE:
        raise UsageError("max_distance must be between 0 and 2", str(max_distance))
    if mode not in MODES:
        raise UsageError("Unknown mode of search", repr(mode)[:80], f"Modes are: {', '.join(MODES)}.")
