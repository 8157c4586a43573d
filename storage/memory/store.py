"""Store JSON values under keys, each owned by an entity of a hierarchy (DESIGN, "Memory").

A store closes explicitly, when it is garbage-collected, or at process exit; each of these flushes the last writes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self, get_args

from sqlalchemy.engine import Connection

from driftline.storage.defaults import DEFAULT_ENTRIES, DEFAULT_REDACTION, Mode, Redaction
from driftline.storage.deltas.delta_index import DEFAULT_ENCODING, Encoding
from driftline.storage.embedding import Embedder
from driftline.storage.entities import Entity, EntityName, Hierarchy
from driftline.storage.errors import BadEntry, CatalogError, UsageError
from driftline.storage.memory import memory_indexes
from driftline.storage.memory.catalog import entity_tree, entry_queries, entry_writes
from driftline.storage.memory.catalog.database import DEFAULT_POOL_SIZE
from driftline.storage.memory.catalog.entry_queries import EntryRow, Scope, Unscoped
from driftline.storage.memory.catalog.entry_writes import check_fields, check_key
from driftline.storage.memory.catalog.tables import MAX_KEY_CHARACTERS
from driftline.storage.memory.entity_names import (
    EntityRegistry,
    bound_names,
    is_partial,
    limits_of,
    split_filter,
    utc_now,
)
from driftline.storage.memory.entries import (
    DEFAULT_CACHE_SECONDS,
    Blobs,
    EntryReader,
    EntryWriter,
    MemoryEntry,
    MemoryItem,
    Stored,
    as_shown,
)
from driftline.storage.memory.flush import Closing, Flusher
from driftline.storage.memory.memory_indexes import (
    DEFAULT_LIMIT,
    DeltaWatch,
    KeyRange,
    MemoryListing,
    Page,
    check_count,
    cursor_after,
    parse_cursor,
)
from driftline.storage.memory.search import (
    MemoryHit,
    MemoryHits,
    MemoryQuery,
    MemorySearch,
    notes_on,
    relevance,
)
from driftline.storage.memory.vectors import VectorFilter, added_up
from driftline.storage.memory.workspace_catalog import Generations, open_own_catalog
from driftline.storage.workspace.workspace import Workspace

__all__ = ["MemoryItem", "MemoryStore", "Stored"]

_log = logging.getLogger(__name__)

DEFAULT_INLINE_BYTES = 1_024
DEFAULT_COMPACTION_THRESHOLD = 100
MAX_DISTANCE = 2.0
MAX_TOP_K = 2**24
"""Maximum number of hits per search."""
SHOWN_OWNERS = 5
DEFAULT_THREADS = 8
"""Number of blobs read or written in parallel; in a bucket, each takes a round trip."""


class MemoryStore(EntityRegistry):
    """The memory of all tenants in a workspace: their entities and entries.

    Every call is confined to one tenant: its entity's or ``scope``'s, by default the configured root's. A store neither
    reads nor writes outside its root: a call that names such an entity raises BadEntity. Without a root, an unscoped
    call sees the entries of all tenants. If two tenants have the same key, a call with that key raises BadEntry, and
    the message lists both tenants. A scope below the tenant shows only entries at or below it. Threads may share a
    store. Each process opens its own store, and processes share one PostgreSQL catalog or, on one host, one SQLite
    catalog. Close the store, or use it as a context manager, so that the last writes reach the indexes immediately; a
    closed store raises StoreClosed.

    Raises BadEntity, BadEntry and UsageError for bad input, before anything is written. Raises StorageError if the
    workspace fails; the catalog is unchanged in that case. Raises CatalogError if the catalog fails, with the path of a
    blob that was already written, and CatalogConnectionError, a ConnectionError, if all connection attempts fail.
    """

    def __init__(
        self,
        storage_uri: str | os.PathLike[str],
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
        encoding: Encoding = DEFAULT_ENCODING,
        redact: Redaction = DEFAULT_REDACTION,
    ) -> None:
        """Open the workspace and the catalog, creating them if necessary.

        Without ``catalog_url``, the catalog is an SQLite file in the workspace; the workspace must then be local.
        ``embedder`` is called when text is first embedded. Entries stored without an embedder become semantically
        searchable once a store with an embedder is open or, in a tenant with no vectors, after ``rebuild``.
        A flush after which a tenant's index has more deltas than ``compaction_threshold`` compacts the tenant's
        indexes, or calls ``on_threshold`` with the tenant and the number of deltas, if given. ``within`` binds
        the store to an entity, which becomes its root: no call reads, writes, lists, counts or reveals anything outside
        it. ``encoding`` applies to the indexes' Parquet files. ``redact`` selects which credentials in values and
        metadata are redacted before they are stored; keys that contain one are rejected. Raises BadEntity,
        CatalogMissing, CatalogMismatch, CatalogError, UnsafeStore, UsageError, WorkspaceTooNew, CorruptFile,
        AccessDenied, StorageError.
        """
        if redact not in get_args(Redaction):
            raise UsageError(f"Unknown redaction mode {redact!r}", "", f"Use one of {', '.join(get_args(Redaction))}.")
        self.workspace = Workspace.open_for_writing(storage_uri, storage_options)
        objects = self.workspace.objects
        catalog = open_own_catalog(self.workspace, catalog_url, pool_size)
        names = bound_names(catalog, hierarchy or Hierarchy(), within)
        blobs, pool = Blobs(objects, cache_seconds), ThreadPoolExecutor(threads, "driftline-memory")
        self._reader = EntryReader(catalog, blobs, pool, now)
        self._search = MemorySearch(objects, embedder, self._reader.values) if embedder else None
        fold = partial(memory_indexes.compact_on_excess, self.workspace, compaction_threshold, encoding)
        watch = DeltaWatch(objects, compaction_threshold, on_threshold or fold)
        self._flusher = Flusher(catalog, objects, self._search, now, watch, names.boundary, encoding)
        self._generations = Generations(objects, catalog)
        super().__init__(catalog, names, now, self._flusher.notify, self._generations.check)
        self.hierarchy = names.hierarchy
        self._encoding = encoding
        self._writer = EntryWriter(catalog, names, blobs, pool, inline_bytes, now, self._generations, redact)
        self._closing = Closing(self, self._flusher, pool, catalog)

    def close(self) -> None:
        """Flush pending changes and close all connections, even if the flush fails.

        Later calls raise StoreClosed. A store that is never closed closes itself at process exit.

        Raises:
            DriftlineError: StorageError or CatalogError if the flush failed.

        Examples:
            >>> with driftline.MemoryStore(f"{location}-closed") as closed:
            ...     stored = closed.store("key", 1, "org:acme")
        """
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing -----------------------------------------------------------------------------

    def store(
        self,
        key: str,
        value: Any,
        entity: EntityName,
        metadata: Mapping[str, Any] | None = None,
        expires_at: datetime | None = None,
    ) -> Stored:
        """Store a JSON value; it is durable on return. Replaces the key's existing entry, which moves if another entity
        owned it.

        Args:
            key: unique in the tenant of ``entity``.
            value: any JSON value.
            entity: the owner, registered if it is new.
            metadata: fields to filter by.
            expires_at: when the entry expires; a time with no zone is UTC.

        Returns:
            Whether the key had a value, which entity owned it, and the number of redacted credentials.

        Raises:
            DriftlineError: BadEntity and BadEntry for bad input, StorageError or CatalogError if the store fails.

        Examples:
            >>> stored = store.store("plan", {"step": 1}, "org:acme/project:alpha", metadata={"phase": "plan"})
            >>> store.retrieve("plan").value, stored.entries
            ({'step': 1}, 1)
        """
        return self.store_many([MemoryItem(key, value, entity, metadata, expires_at)])

    def store_many(self, items: Iterable[MemoryItem]) -> Stored:
        """Store items in one transaction. For each key, the last item wins.

        Args:
            items: the entries.

        Returns:
            The number of entries, and what they replaced.

        Raises:
            DriftlineError: BadEntry or BadEntity if an item is invalid, before anything is written; StorageError if the
                workspace fails, CatalogError if the catalog fails.

        Examples:
            >>> store.store_many(driftline.MemoryItem(f"fact {n}", n, "org:facts") for n in range(3)).entries
            3
        """
        stored = self._writer.write(items)
        self._flusher.notify(stored.entries)
        return stored

    def delete(self, key: str, scope: EntityName | None = None) -> bool:
        """Delete a key's entry.

        Args:
            key: its key.
            scope: only this entity and everything under it; by default the configured root, if any, otherwise
                everything.

        Returns:
            Whether there was an entry.

        Raises:
            DriftlineError: BadEntry if several tenants have the key, BadEntity if ``scope`` is outside the root,
                CatalogError if the catalog fails.

        Examples:
            >>> _ = store.store("old", 1, "org:acme")
            >>> store.delete("old"), store.delete("old")
            (True, False)
        """
        checked = check_key(key)
        visible = self._tenant_scope(checked, scope)

        def work(connection: Connection) -> entry_writes.Removed:
            tenant, now = entity_tree.lock_tenant(connection, visible.within), self._now()
            if tenant is None:
                return entry_writes.Removed()
            return entry_writes.remove(
                connection, tenant, entry_writes.forms(connection, checked, visible, now), visible, now
            )

        self._generations.check(visible.within.tenant)
        removed = self.catalog.write(work)
        self._flusher.notify(removed.entries)
        return removed.alive > 0

    # -- maintenance -------------------------------------------------------------------------

    def flush(self) -> int:
        """Apply all pending catalog changes to indexes and vectors.

        Returns:
            The number of changes.

        Raises:
            DriftlineError: CatalogError if the catalog fails, StorageError if the workspace fails.

        Examples:
            >>> store.flush() >= 0
            True
        """
        return self._flusher.flush()

    def collect_expired(self) -> int:
        """Delete all expired entries; a bound store deletes only entries within its boundary.

        Returns:
            How many were deleted.

        Raises:
            DriftlineError: CatalogError if the catalog fails.

        Examples:
            >>> store.collect_expired()
            0
        """
        boundary = self.names.boundary
        self._check_generation(Unscoped() if boundary is None else Scope(boundary))
        removed = memory_indexes.collect_expired(self.catalog, self._now(), boundary)
        self._flusher.notify(removed)
        return removed

    def rebuild(self, within: EntityName | None = None) -> dict[str, int]:
        """Rebuild the indexes at and below an entity from the catalog and, if it is a tenant, the tenant's vectors.

        Args:
            within: the entity; by default the configured root, if any, otherwise all tenants.

        Returns:
            The number of entries in each index, keyed by the entity's directory.

        Raises:
            LeaseHeld: if another process is compacting or rebuilding the indexes.

        Examples:
            >>> _ = store.store("kept", 1, "org:rebuilt")
            >>> store.rebuild("org:rebuilt")
            {'org:rebuilt': 1}
        """
        self.flush()
        counts: dict[str, int] = {}
        for top in self.names.tops(within):
            self._generations.check(top.tenant)
            counts |= memory_indexes.rebuild(self.catalog, self.workspace, self._search, top, self._now, self._encoding)
        return counts

    def query_index(
        self,
        range: KeyRange | None = None,
        group_by: str | None = None,
        scope: EntityName | None = None,
        *,
        rev: int | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> list[dict[str, Any]]:
        """Query an entity's Parquet index, without the catalog.

        Args:
            range: the first key and an exclusive upper bound; None means all keys.
            group_by: return totals by this level instead of entries.
            scope: only this entity and everything under it; by default the configured root, if any, otherwise
                everything.
            rev: read the index as of this tenant revision, which must not precede the last compaction.
            limit: maximum number of entries.

        Returns:
            Entries without their values, or, with ``group_by``, ``{level: id, entity, entries, size_bytes}``; grouped
            by tenant.

        Raises:
            UsageError: if the range is invalid, or the revision was compacted or has no tenant.

        Examples:
            >>> _ = store.store("b", 1, "org:index/project:p")
            >>> [row["key"] for row in store.query_index(("a", "c"), scope="org:index")]
            ['b']
            >>> [row["entries"] for row in store.query_index(group_by="project", scope="org:index")]
            [1]
        """
        keys = memory_indexes.check_range(range)
        level = group_by and self.hierarchy.check_type(group_by)
        if rev is not None and scope is None and self.hierarchy.root is None:
            raise UsageError("A revision is valid only within a tenant", str(rev), "Pass a scope, such as org:acme.")
        remaining, rows = check_count(limit, "limit"), list[dict[str, Any]]()
        self._flusher.flush_visible_writes()
        listing, now = MemoryListing(self.workspace.objects), self._now()
        for entity in self.names.tops(scope):
            if level:
                rows += memory_indexes.totals_by_level(listing, entity, level, keys, now, as_of=rev)
            elif left := remaining - len(rows):
                rows += memory_indexes.entries_between(listing, entity, keys, now, limit=left, as_of=rev)
        return rows

    # -- reading -----------------------------------------------------------------------------

    def retrieve(self, key: str, scope: EntityName | None = None) -> MemoryEntry | None:
        """Return a key's entry.

        Args:
            key: its key.
            scope: only this entity and everything under it; by default the configured root, if any, otherwise
                everything.

        Returns:
            The entry, or None if there is none or it expired.

        Raises:
            BadEntry: if several tenants have the key, and there is neither a scope nor a root.

        Examples:
            >>> _ = store.store("seen", [1], "org:acme")
            >>> store.retrieve("seen", "org:acme").value, store.retrieve("unseen")
            ([1], None)
        """
        return self.retrieve_batch([key], scope).get(key)

    def retrieve_batch(self, keys: Iterable[str], scope: EntityName | None = None) -> dict[str, MemoryEntry]:
        """Return the entries of several keys; blobs are read concurrently.

        Args:
            keys: their keys.
            scope: only this entity and everything under it; by default the configured root, if any, otherwise
                everything.

        Returns:
            The entries that exist, keyed by key.

        Raises:
            DriftlineError: BadEntry if several tenants have one of the keys, BadEntity if ``scope`` is outside the
                root, CatalogError if the catalog fails.

        Examples:
            >>> _ = store.store("one", 1, "org:acme")
            >>> [*store.retrieve_batch(["one", "none"])]
            ['one']
        """
        checked, visible = [check_key(key) for key in keys], self.names.visible(scope)
        rows = self._rows_of(checked, visible)
        return {entry.key: entry for entry in as_shown(self._reader.entries(rows, visible))}

    def _rows_of(self, keys: Sequence[str], visible: Scope | Unscoped) -> list[EntryRow]:
        """Return the entries stored under ``keys``. Raises BadEntry if a key exists in two tenants, and
        CatalogMismatch.
        """
        rows = self.catalog.read(lambda connection: entry_writes.get(connection, keys, visible, self._now()))
        paths_by_key: dict[str, list[str]] = {}
        for row in rows:
            paths_by_key.setdefault(entry_writes.shown(row.key), []).append(row.path)
        for key, paths in paths_by_key.items():
            if len(paths) > 1:
                raise BadEntry(
                    "Several tenants have an entry with this key",
                    repr(key)[:80],
                    f"Pass the entity of one of them: {', '.join(sorted(paths)[:SHOWN_OWNERS])}.",
                )
        if not paths_by_key.keys() >= set(keys):
            self._check_generation(visible)
        return rows

    def _tenant_scope(self, key: str, scope: EntityName | None) -> Scope:
        """Return ``scope``; if neither it nor a root is set, the scope of the tenant that has an entry for ``key``."""
        visible = self.names.visible(scope)
        if isinstance(visible, Scope):
            return visible
        rows = self._rows_of([key], visible)
        return visible.of(rows[0].path) if rows else Scope(self.names.root)

    def _check_generation(self, visible: Scope | Unscoped) -> None:
        """Raise CatalogMismatch if the catalog is older than the index of a tenant in ``visible``."""
        if isinstance(visible, Scope):
            self._generations.check(visible.within.tenant)
        elif visible.allowed is None:
            self._generations.check_all(self.workspace.tenants)
        else:
            for tenant in {each.tenant for each in visible.allowed}:
                self._generations.check(tenant)

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
        """Return a page of the entries of entity ``type:id``, sorted by owner and key.

        Args:
            type: the level of the entity.
            id: the id of the entity.
            include_descendants: also return entries of entities below it.
            limit: maximum number of entries.
            offset: skip this many entries; the cost grows with the offset.
            within: cover all entities with that name at or below this one, for example in two projects.
            allowed_ancestors: only entries at or below one of these entities; an empty list allows nothing.
            cursor: the cursor returned with the previous page.

        Returns:
            The entries, their total number, the cursor of the next page, and whether ``allowed_ancestors`` excludes
            a part of the entity.

        Raises:
            AccessDenied: if ``allowed_ancestors`` excludes the whole entity, whether it exists or not.

        Examples:
            >>> _ = store.store("own", 1, "org:paged/project:p")
            >>> page = store.retrieve_by_entity("org", "paged")
            >>> [entry.key for entry in page.entries], page.total_count, page.has_more
            (['own'], 1, False)
        """
        limit, offset = check_count(limit, "limit"), check_count(offset, "offset")
        self.hierarchy.named(type, id)
        allowed = self.names.allowed(allowed_ancestors)
        own = self.names.find((type, id), limits_of(allowed)) if within is None else None
        if own is None:
            top = self.names.find(within or self.names.root, limits_of(allowed))
        else:
            top = self.names.root if self.hierarchy.root else own.tenant
        visible, after = Scope(top, allowed), parse_cursor(cursor, f"{type}:{id}")
        self._check_generation(visible)
        page = partial(entry_queries.page, include_descendants=include_descendants, after=after, offset=offset)

        def work(connection: Connection) -> tuple[list[EntryRow], int]:
            self.names.check_allowed(connection, type, id, visible, own)
            tops, now = entry_queries.tops_of(connection, type, id, visible.within), self._now()
            if not tops:
                return [], 0
            total = entry_queries.count(connection, tops, visible, now, include_descendants=include_descendants)
            return page(connection, tops, visible, now, limit=limit + 1), total

        rows, total = self.catalog.read(work)
        shown = rows[:limit]
        has_more = bool(shown) and len(rows) > limit
        following = cursor_after(f"{type}:{id}", shown[-1].owner_id, shown[-1].key) if has_more else None
        entries = tuple(as_shown(self._reader.entries(shown, visible)))
        return Page(entries, total, has_more, following, is_partial(visible, own))

    def search(
        self,
        query: str = "",
        metadata_filter: Mapping[str, Any] | None = None,
        scope: EntityName | None = None,
        *,
        allowed_ancestors: Sequence[EntityName] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> list[MemoryEntry]:
        """Find entries by words in their keys and by metadata, newest first. For semantic search, see
        ``search_memory``.

        Args:
            query: words, all of which the key must contain.
            metadata_filter: fields that must all match; a list matches any of its values, None matches everything.
            scope: only this entity and everything under it; by default the configured root, if any, otherwise
                everything.
            allowed_ancestors: only entries at or below one of these entities.
            limit: maximum number of entries.

        Returns:
            The entries.

        Raises:
            UsageError: if the query contains NUL.
            AccessDenied: if ``allowed_ancestors`` excludes the whole scope.

        Examples:
            >>> _ = store.store("red apple", 1, "org:fruit", {"kind": "fruit"})
            >>> [entry.key for entry in store.search("apple", {"kind": ["fruit", "nut"]}, "org:fruit")]
            ['red apple']
        """
        visible, fields = self.names.visible(scope, allowed_ancestors), check_fields(metadata_filter)
        limit, words = check_count(limit, "limit"), query.split()
        if "\0" in query:
            raise UsageError("A query must not contain NUL", repr(query)[:80])
        self._check_generation(visible)
        if any(len(word) > MAX_KEY_CHARACTERS for word in words):
            return []
        rows = self.catalog.read(
            lambda connection: entry_queries.search(connection, words, fields, visible, self._now(), limit)
        )
        return as_shown(self._reader.entries(rows, visible))

    def search_memory(
        self,
        query: str,
        top_k: int = DEFAULT_ENTRIES,
        filter: Mapping[str, Any] | None = None,
        scope: EntityName | None = None,
        *,
        allowed_ancestors: Sequence[EntityName] | None = None,
        max_distance: float | None = None,
        mode: Mode = "hybrid",
        explain: bool = False,
    ) -> MemoryHits[MemoryEntry]:
        """Return the entries that best match a query, lexically and semantically.

        The filter applies before the search, and every hit is confirmed against the catalog.

        Args:
            query: the query.
            top_k: maximum number of hits.
            filter: metadata fields, as in ``search``. If ``entity`` is an entity path, hits must be at or below it;
                otherwise it is a field like any other.
            scope: only this entity and everything under it; by default the configured root, if any, otherwise
                everything.
            allowed_ancestors: only entries at or below one of these entities.
            max_distance: drop more distant hits (1 - cosine, 0 to 2).
            mode: rank by the words of key and text and by similarity (``hybrid``), only by similarity (``vector``: the
                score is the cosine), or only by words (``text``: the share of the query's words).
            explain: add an ``explanation`` to the hits.

        Returns:
            The hits, sorted by descending score.

        Raises:
            UsageError: for bad arguments, or if the store has no embedder.

        Examples:
            >>> _ = store.store("pet", "the cat sleeps on the sofa", "org:home")
            >>> [hit.record.key for hit in store.search_memory("where is the cat", 1, scope="org:home")]
            ['pet']
        """
        self.catalog.check_open()
        if self._search is None:
            raise UsageError("The memory store was opened without an embedding model", self.workspace.objects.uri)
        _check_search(top_k, max_distance, mode)
        top_k = min(top_k, MAX_TOP_K)
        fields, named = split_filter(check_fields(filter), self.hierarchy)
        visible = self.names.visible(scope, allowed_ancestors)
        self._check_generation(visible)
        limits: list[tuple[Entity, ...]] = [visible.allowed] if visible.allowed is not None else []
        if named is not None:
            own = [(visible.within,)] if isinstance(visible, Scope) else []
            limits.append(tuple(self.names.find_all(named, (*limits, *own))))
        if top_k and query.strip():
            self._flusher.flush_visible_writes()
        scopes = [visible] if isinstance(visible, Scope) else self._scopes(limits, visible)
        filters = [VectorFilter(((each.within,), *limits), fields) for each in scopes]
        requests = [
            MemoryQuery(query, top_k, each.within, where, mode, max_distance, explain)
            for each, where in zip(scopes, filters, strict=True)
        ]
        found = [self._answer(self._search, each, request) for each, request in zip(scopes, requests, strict=True)]
        hits = merged_hits(found, top_k) if len(found) != 1 else found[0]
        if not hits and fields:  # the notes name fields and values, of no entry that has expired
            for each in scopes:
                self._remove_expired(each)
        hits.notes = notes_on(hits, self._search, requests)
        return hits

    def _scopes(self, limits: Sequence[Sequence[Entity]], visible: Unscoped) -> list[Scope]:
        """Return the scopes of all tenants that may have an entry within the ``limits``."""
        tenants = set(self.names.tops(None)).intersection(*({each.tenant for each in some} for some in limits))
        return [Scope(tenant, visible.allowed) for tenant in sorted(tenants) or [self.names.root]]

    def _answer(self, search: MemorySearch, visible: Scope, request: MemoryQuery) -> MemoryHits[MemoryEntry]:
        """Search one tenant."""

        def check(keys: Sequence[str]) -> dict[str, EntryRow]:
            rows = self.catalog.read(lambda connection: entry_queries.get(connection, keys, visible, self._now()))
            return {row.key: row for row in rows}

        answer = search.find(request, check)
        if answer.explanation.dropped and len(answer.found) < request.top_k and self._remove_expired(visible):
            answer = search.find(request, check)
        entries = {each.key: each for each in self._reader.entries([row for row, _ in answer.found], visible)}
        found = [(as_shown([entries[row.key]])[0], hit) for row, hit in answer.found if row.key in entries]
        hits = MemoryHits(
            MemoryHit(each, relevance(hit, request.mode), rank, hit.distance)
            for rank, (each, hit) in enumerate(found, start=1)
        )
        if visible.allowed is not None or visible.within != visible.within.tenant:
            # Statistics of the whole tenant would reveal other entities' entries.
            answer.explanation.entries, answer.explanation.unindexed_words = answer.explanation.matches, 0
        hits.explanation = answer.explanation if request.explain else None
        return hits

    def _remove_expired(self, visible: Scope) -> bool:
        """Delete the expired entries of a tenant, which hide others from a search; return whether there were any."""
        if self.catalog.is_read_only:
            return False
        top = self.names.boundary or visible.within.tenant
        try:
            removed = memory_indexes.collect_expired(self.catalog, self._now(), top)
        except CatalogError as error:  # such as a role that may only read
            _log.warning("Expired entries may hide others from this search, and were not deleted: %s", error)
            return False
        self._flusher.notify(removed)
        self._flusher.flush_visible_writes()
        return removed > 0


def merged_hits(found: Sequence[MemoryHits[MemoryEntry]], limit: int) -> MemoryHits[MemoryEntry]:
    """Merge the best hits from several tenants, sorted by score, and sum their explanations."""
    every = sorted((hit for hits in found for hit in hits), key=lambda hit: (-hit.score, str(hit.record.entity)))
    merged = MemoryHits(replace(hit, rank=rank) for rank, hit in enumerate(every[:limit], start=1))
    merged.explanation = added_up([hits.explanation for hits in found if hits.explanation is not None])
    return merged


def _check_search(limit: int, max_distance: float | None, mode: str) -> None:
    if limit < 0:
        raise UsageError("top_k must not be negative", str(limit))
    if max_distance is not None and not 0 <= max_distance <= MAX_DISTANCE:
        raise UsageError("max_distance must be between 0 and 2", str(max_distance))
    if mode not in get_args(Mode):
        raise UsageError("Unknown search mode", repr(mode)[:80], f"Modes are: {', '.join(get_args(Mode))}.")
