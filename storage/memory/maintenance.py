"""Maintain memory: delete expired entries, compact indexes and vectors, and rebuild them from the catalog."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from driftline.storage.deltas.delta_index import Folded
from driftline.storage.deltas.parquet_files import DEFAULT_ENCODING, Encoding
from driftline.storage.entities import Entity, directories
from driftline.storage.errors import BadEntity, CommitConflict
from driftline.storage.lance.lance_table import commit_compaction, plan_compaction, remove_old_versions, rewrite
from driftline.storage.layout import ObjectKind, lease_path, new_ulid, parse_name
from driftline.storage.leases.lease import acquire
from driftline.storage.memory import memory_indexes
from driftline.storage.memory.catalog import entity_tree, entry_queries, entry_writes, outbox
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.entry_queries import EntryRow, Scope
from driftline.storage.memory.search import MemorySearch
from driftline.storage.memory.vectors import vector_tables
from driftline.storage.workspace.workspace import Workspace

EXPIRED_AT_ONCE = 1_000
PAGE_ROWS = 100_000
LEASE = "memory"
"""The purpose of the lease that guards compactions and rebuilds of a tenant's memory indexes."""


def collect_expired(catalog: Catalog, now: datetime, within: Entity | None = None) -> int:
    """Delete expired entries in batches, in all tenants or at and below ``within``; return how many were deleted."""
    total = 0
    while expired := catalog.read(
        lambda connection: entry_queries.expired_keys(connection, now, EXPIRED_AT_ONCE, within)
    ):
        by_tenant: dict[str, list[str]] = defaultdict(list)
        for path, key in expired:
            by_tenant[path].append(key)
        for path, keys in by_tenant.items():
            total += _remove_expired(catalog, Entity.of_directory(path), keys, now)
    return total


def _remove_expired(catalog: Catalog, tenant: Entity, keys: list[str], now: datetime) -> int:
    def work(connection: Connection) -> int:
        locked = entity_tree.lock_tenant(connection, tenant)
        if locked is None:
            return 0
        # Another process may have stored a key again since the query.
        alive = {row.key for row in entry_queries.get(connection, keys, Scope(tenant), now)}
        expired = [key for key in keys if key not in alive]
        return entry_writes.remove(connection, locked, expired, Scope(tenant), now).entries

    return catalog.write(work)


def compact_indexes(
    workspace: Workspace, top: Entity, max_deltas: int, encoding: Encoding = DEFAULT_ENCODING
) -> dict[str, Folded]:
    """Fold the memory indexes at and below ``top`` that have more than ``max_deltas``; return the results, keyed by
    directory.

    Raises LeaseHeld while this tenant's indexes are being compacted or rebuilt.
    """
    deltas: Counter[str] = Counter()
    for info in workspace.objects.list(top.directory):
        name = parse_name(info.path)
        if name.kind is ObjectKind.DELTA and Entity.of_directory(name.directory).type != workspace.config.hierarchy[-1]:
            deltas[name.directory] += 1
    return _fold(workspace, top.tenant, sorted(n for n, number in deltas.items() if number > max_deltas), encoding)


def compact_index(workspace: Workspace, entity: Entity, encoding: Encoding = DEFAULT_ENCODING) -> dict[str, Folded]:
    """Fold only the memory index of ``entity``, however few deltas it has; return the result, keyed by directory."""
    has_deltas = memory_indexes.MemoryIndex(workspace.objects, entity.directory).log().deltas
    return _fold(workspace, entity.tenant, [entity.directory] if has_deltas else [], encoding)


def entries_of(folded: Mapping[str, Folded]) -> int:
    """Return the number of distinct entries in compacted indexes; ancestors' indexes contain the same entries."""
    return sum(each.live for name, each in folded.items() if folded.keys().isdisjoint(directories(name)[:-1]))


def _fold(workspace: Workspace, tenant: Entity, due: Sequence[str], encoding: Encoding) -> dict[str, Folded]:
    folded: dict[str, Folded] = {}
    if not due:
        return folded
    with acquire(workspace.objects, lease_path(tenant, LEASE), new_ulid()) as lease:
        for directory in due:
            lease.check()
            folded[directory] = memory_indexes.MemoryIndex(workspace.objects, directory, encoding).compact()
    return folded


def compact_vectors(workspace: Workspace, tenant: Entity, older_than: timedelta) -> int:
    """Compact the fragments of a tenant's vectors, drop old versions, and return how many were dropped.

    The caller holds the tenant's maintenance lease. If a writer conflicts, the next run retries.
    """
    removed = 0
    for table in vector_tables(workspace.objects, tenant):
        if table.exists():
            table.index()
            with contextlib.suppress(CommitConflict):
                plan = plan_compaction(table)
                if plan.tasks:
                    commit_compaction(table, plan, [rewrite(table, task) for task in plan.tasks])
            removed += remove_old_versions(table, older_than)
    return removed


def rebuild(
    catalog: Catalog,
    workspace: Workspace,
    search: MemorySearch | None,
    top: Entity,
    now: Callable[[], datetime],
    encoding: Encoding = DEFAULT_ENCODING,
) -> dict[str, int]:
    """Rebuild the indexes of ``top`` and of every entity below it and, if ``top`` is a tenant, its vectors.

    Returns the number of entries in each index, keyed by directory. Raises BadEntity, LeaseHeld.
    """
    record = catalog.read(lambda connection: entity_tree.find(connection, top))
    if record is None:
        raise BadEntity("The entity does not exist", top.directory)
    below = catalog.read(lambda connection: entity_tree.descendants(connection, top))
    counts = rebuild_indexes(catalog, workspace, top.tenant, [top, *(each.entity for each in below)], now, encoding)
    if search is not None and top == top.tenant:
        last = catalog.read(lambda connection: outbox.last_id(connection, top))
        search.rebuild(top, lambda: pages(catalog, top, now()), last)
    return counts


def rebuild_indexes(
    catalog: Catalog,
    workspace: Workspace,
    tenant: Entity,
    entities: Sequence[Entity],
    now: Callable[[], datetime],
    encoding: Encoding = DEFAULT_ENCODING,
) -> dict[str, int]:
    """Rebuild the indexes of some of a tenant's entities; the indexes of deleted entities become empty.

    Returns the number of entries in each index, keyed by directory. Raises LeaseHeld, LeaseLost.
    """
    counts: dict[str, int] = {}
    with acquire(workspace.objects, lease_path(tenant, LEASE), new_ulid()) as lease:
        for entity in entities:
            lease.check()
            locked = catalog.write(lambda connection: entity_tree.lock_tenant(connection, tenant))
            if locked is None:
                break
            rows = pages(catalog, entity, now())
            counts[entity.directory] = memory_indexes.rewrite(
                workspace.objects, entity, rows, locked.rev, now(), encoding
            )
    return counts


def pages(catalog: Catalog, entity: Entity, now: datetime) -> Iterator[list[EntryRow]]:
    """Yield all entries at or below ``entity`` that have not expired by ``now``.

    Each page is read in its own transaction.
    """
    after: tuple[int, str] | None = None
    while True:

        def work(connection: Connection, after: tuple[int, str] | None = after) -> list[EntryRow]:
            tops = list(entity_tree.ids_of(connection, [entity.directory]).values())
            return entry_queries.page(connection, tops, Scope(entity), now, after=after, limit=PAGE_ROWS)

        rows = catalog.read(work)
        if rows:
            yield rows
        if len(rows) < PAGE_ROWS:
            return
        after = rows[-1].owner_id, rows[-1].key
