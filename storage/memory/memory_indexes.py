"""Maintain and list the Parquet memory indexes: each entity has a delta index of the entries at or below it (DESIGN,
"Memory").

``publish`` writes the deltas of changed entries, ``compact_indexes`` folds them, and ``rebuild`` restores indexes and
vectors from the catalog. ``DeltaWatch`` counts deltas so that programs can request a compaction. ``MemoryListing``
lists, counts and sums entries.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.engine import Connection

from driftline.storage.deltas.delta_index import (
    ADD,
    DEFAULT_ENCODING,
    REMOVE,
    DeltaIndex,
    Encoding,
    Folded,
    after_prefix,
)
from driftline.storage.entities import Entity, directories
from driftline.storage.errors import BadEntity, CommitConflict, CorruptFile, DriftlineError, LeaseHeld, UsageError
from driftline.storage.json_records import decode_cursor, encode_cursor
from driftline.storage.lance.lance_table import commit_compaction, plan_compaction, remove_old_versions, rewrite
from driftline.storage.layout import BASE, ObjectKind, PathName, lease_path, new_ulid, parse_name
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.definition_table import DeepTable, deep_tables
from driftline.storage.memory.catalog import entity_tree, entry_queries, entry_writes, outbox
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.entry_queries import EntryRow, Scope
from driftline.storage.memory.catalog.entry_writes import BEHIND_PRIVATE, shown
from driftline.storage.memory.catalog.outbox import OutboxRow
from driftline.storage.memory.vectors import VectorTable, vector_tables
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from driftline.storage.memory.search import MemorySearch

KIND = "memory"
_TIME = pa.timestamp("us", tz="UTC")
FIELDS = (
    pa.field("key", pa.string()),
    pa.field("entity", pa.string()),
    pa.field("size_bytes", pa.int64()),
    pa.field("content_hash", pa.string()),
    pa.field("metadata", pa.string()),
    pa.field("created", _TIME),
    pa.field("updated", _TIME),
    pa.field("expires", _TIME),
)
"""``entity`` is the owner's directory, ``metadata`` is JSON."""
VALUE_FIELDS = (pa.field("inline", pa.binary()), pa.field("blob_path", pa.string()))
"""The value, or its blob's path; only in the owner's index. A lost catalog is restored from these columns."""
WRITE_THREADS = 8
"""Number of deltas written in parallel; each write waits for the disk or for a round trip."""


class MemoryIndex(DeltaIndex):
    """The index of one entity."""

    def __init__(self, objects: ObjectStore, directory: str, encoding: Encoding = DEFAULT_ENCODING) -> None:
        super().__init__(objects, directory, KIND, (*FIELDS, *VALUE_FIELDS), encoding)


def index_files(workspace: Workspace, paths: Iterable[str]) -> Iterator[PathName]:
    """Yield the bases and deltas of memory indexes among ``paths``; those of sources are manifests."""
    for name in map(parse_name, paths):
        is_index = name.kind in (ObjectKind.BASE, ObjectKind.DELTA)
        if is_index and Entity.of_directory(name.directory).type != workspace.config.hierarchy[-1]:
            yield name


def publish(
    objects: ObjectStore, changes: Sequence[OutboxRow], now: datetime, encoding: Encoding = DEFAULT_ENCODING
) -> int:
    """Write one delta to each index affected by ``changes``, and return the number of deltas.

    Idempotent, even if repeated in part: each key's highest ``rev`` wins.
    """
    touched = effects(changes)
    if not touched:
        return 0
    current = [change.row for change in changes if change.row is not None]
    values = to_table(current)
    position = {(row.key, row.rev): number for number, row in enumerate(current)}

    def write(directory: str) -> None:
        rows = touched[directory]
        added = [position[key, rev] for key, (rev, op) in rows.items() if op == ADD]
        removed = [(key, rev) for key, (rev, op) in rows.items() if op == REMOVE]
        index = MemoryIndex(objects, directory, encoding)
        taken = _own_values(values.take(pa.array(added, pa.int64())), directory)
        additions = _with_heads(index, ADD, [current[n].rev for n in added], taken, now)
        keys = pa.table({"key": pa.array([key for key, _ in removed], pa.string())})
        removals = _with_heads(index, REMOVE, [rev for _, rev in removed], keys, now)
        index.append(new_ulid(), pa.concat_tables([additions, removals]))

    for _ in in_parallel(write, touched, WRITE_THREADS):
        pass
    return len(touched)


def effects(changes: Iterable[OutboxRow]) -> dict[str, dict[str, tuple[int, str]]]:
    """Return ``{index directory: {key: (latest rev, op)}}``; a pure function."""
    touched: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
    for change in changes:
        now = directories(change.path) if change.path else []
        for directory in now if change.row is not None else ():
            touched[directory][change.key] = (change.rev, ADD)
        for directory in directories(change.left_path) if change.left_path else ():
            if directory not in now:
                touched[directory][change.key] = (change.rev, REMOVE)
    return dict(touched)


def to_table(rows: Sequence[EntryRow]) -> pa.Table:
    """Convert ``rows`` to a table with the columns FIELDS and VALUE_FIELDS."""
    columns = [
        [row.key for row in rows],
        [row.path for row in rows],
        [row.size_bytes for row in rows],
        [row.content_hash for row in rows],
        [json.dumps(row.metadata, separators=(",", ":")) for row in rows],
        [row.created for row in rows],
        [row.updated for row in rows],
        [row.expires for row in rows],
        [row.inline for row in rows],
        [row.blob_path for row in rows],
    ]
    schema = pa.schema([*FIELDS, *VALUE_FIELDS])
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _own_values(rows: pa.Table, directory: str) -> pa.Table:
    """Blank out the values of ``rows`` whose owner is not the entity of ``directory``."""
    own = pc.equal(rows["entity"], directory)
    for column in VALUE_FIELDS:
        values = pc.if_else(own, rows[column.name], pa.scalar(None, column.type))
        rows = rows.set_column(rows.schema.get_field_index(column.name), column, values)
    return rows


def rewrite_index(
    objects: ObjectStore,
    entity: Entity,
    pages: Iterable[Sequence[EntryRow]],
    rev: int,
    now: datetime,
    encoding: Encoding = DEFAULT_ENCODING,
) -> int:
    """Rebuild the index of ``entity`` from all its entries, compact it, and return the number of entries.

    ``rev`` is the tenant's revision before the first page was read. The caller holds a lease. Keys with no entry are
    removed; unreadable files are deleted.
    """
    index = MemoryIndex(objects, entity.directory, encoding)
    stale = _readable_keys(index)
    total = 0
    for rows in pages:
        total += len(rows)
        stale.difference_update(row.key for row in rows)
        index.append(
            new_ulid(), _with_heads(index, ADD, [rev] * len(rows), _own_values(to_table(rows), entity.directory), now)
        )
    if stale:
        keys = pa.table({"key": pa.array(sorted(stale), pa.string())})
        index.append(new_ulid(), _with_heads(index, REMOVE, [rev] * len(stale), keys, now))
    index.compact(now=now)
    return total


def _readable_keys(index: MemoryIndex) -> set[str]:
    try:
        return set(index.read(columns=["key"])["key"].to_pylist())
    except CorruptFile:
        log = index.log()
        names = [*log.deltas, *([BASE] if log.has_base else [])]
        index.objects.delete([f"{index.directory}/{name}" for name in names])
        return set()


def _with_heads(index: MemoryIndex, op: str, revs: Sequence[int], values: pa.Table, now: datetime) -> pa.Table:
    rows = index.changes(op, 0, values, now=now)
    return rows.set_column(rows.schema.get_field_index("rev"), "rev", pa.array(revs, pa.int64()))


@dataclass(slots=True)
class DeltaWatch:
    """Calls ``on_excess`` with a tenant and its number of deltas if the tenant's index has more than ``threshold``.

    Every flush adds a delta to its tenant's index, so other entities' indexes have at most as many. Counting lists a
    directory, so it only happens after ``threshold`` flushes by this process, and in ``count_flushed``.
    """

    objects: ObjectStore
    threshold: int
    on_excess: Callable[[Entity, int], None]
    _flushes: Counter[Entity] = field(default_factory=Counter)

    def flushed(self, tenant: Entity, deltas: int) -> None:
        """Record a flush that wrote ``deltas``. Raises StorageError."""
        self._flushes[tenant] += deltas
        if self._flushes[tenant] > self.threshold:
            self._count(tenant)

    def count_flushed(self) -> None:
        """Count the deltas of every tenant that was flushed since the last count. Raises StorageError."""
        for tenant in [tenant for tenant, flushes in self._flushes.items() if flushes]:
            self._count(tenant)

    def _count(self, tenant: Entity) -> None:
        self._flushes[tenant] = 0
        deltas = len(MemoryIndex(self.objects, tenant.directory).log().deltas)
        if deltas > self.threshold:
            self.on_excess(tenant, deltas)


_log = logging.getLogger(__name__)

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
    files = index_files(workspace, (info.path for info in workspace.objects.list(top.directory)))
    deltas = Counter(name.directory for name in files if name.kind is ObjectKind.DELTA)
    return _fold(workspace, top.tenant, sorted(n for n, number in deltas.items() if number > max_deltas), encoding)


def compact_on_excess(workspace: Workspace, max_deltas: int, encoding: Encoding, tenant: Entity, deltas: int) -> None:
    """Fold the memory indexes of ``tenant``, unless another process is compacting them.

    ``DeltaWatch`` calls it; ``deltas`` is the number in the tenant's own index, for the log. A failure is only logged:
    earlier writes are complete, and a later flush tries again.
    """
    try:
        folded = compact_indexes(workspace, tenant, max_deltas, encoding)
    except LeaseHeld:
        return
    except DriftlineError as error:
        _log.warning("Could not compact the memory indexes of %s: %s", tenant, error)
        return
    _log.info("Compacted %d memory indexes of %s, which had %d deltas", len(folded), tenant, deltas)


def compact_index(workspace: Workspace, entity: Entity, encoding: Encoding = DEFAULT_ENCODING) -> dict[str, Folded]:
    """Fold only the memory index of ``entity``, even if it has few deltas; return the result, keyed by directory."""
    has_deltas = MemoryIndex(workspace.objects, entity.directory).log().deltas
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
            folded[directory] = MemoryIndex(workspace.objects, directory, encoding).compact()
    return folded


def vectors_of(objects: ObjectStore, tenant: Entity) -> list[VectorTable | DeepTable]:
    """Return a tenant's vector tables of memory and definitions."""
    return [*vector_tables(objects, tenant), *deep_tables(objects, tenant)]


def compact_vectors(workspace: Workspace, tenant: Entity, older_than: timedelta) -> int:
    """Compact a tenant's vectors of memory and definitions, drop old versions, and return how many were dropped.

    The caller holds the tenant's maintenance lease. If a writer conflicts, the next run retries.
    """
    removed = 0
    for table in vectors_of(workspace.objects, tenant):
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
            counts[entity.directory] = rewrite_index(workspace.objects, entity, rows, locked.rev, now(), encoding)
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


# -- lists, counts and sums, page by page, without the catalog -------------------------------------

DEFAULT_LIMIT = 1_000
COLUMNS = tuple(field.name for field in FIELDS)
_SCHEMA = pa.schema(FIELDS)


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of an entity and its descendants in the index, which may lag behind the catalog by a second."""

    entries: int
    size_bytes: int


class MemoryListing:
    """Queries over a workspace's memory indexes. Thread-safe; each call folds base and deltas piecewise.

    Entries that have expired by ``now`` are omitted. If ``as_of`` is given, a call sees the index as of that ``rev``,
    which must not precede the last compaction. All methods raise StorageError, CorruptFile, and UsageError for an
    ``as_of`` before the last compaction.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def list(
        self,
        directory: str,
        *,
        prefix: str = "",
        low: str = "",
        high: str | None = None,
        after: str | None = None,
        limit: int = DEFAULT_LIMIT,
        now: datetime | None = None,
        as_of: int | None = None,
    ) -> pa.Table:
        """Return the entries at or below the entity of ``directory``, sorted by key, with ``COLUMNS``.

        Keys start with ``prefix``, satisfy ``low <= key < high``, and are greater than ``after``.
        """
        moment = now or datetime.now(UTC)

        def take(pieces: Iterable[pa.Table]) -> pa.Table:
            taken, remaining = [_SCHEMA.empty_table()], limit
            for piece in pieces:
                alive = _alive(piece, moment).slice(0, remaining).select(list(COLUMNS))
                taken.append(alive)
                remaining -= len(alive)
                if remaining <= 0:
                    break
            return pa.concat_tables(taken)

        lowest = max(low, prefix, "" if not after else after + "\0")
        index = MemoryIndex(self._objects, directory)
        return index.reduce(take, lowest, _highest(prefix, high), columns=COLUMNS, as_of=as_of)

    def totals(self, directory: str, *, prefix: str = "") -> Totals:
        """Return the number and total size of entries at or below an entity whose keys start with ``prefix``."""
        found = self.by_owner(directory, prefix=prefix).values()
        return Totals(sum(each.entries for each in found), sum(each.size_bytes for each in found))

    def by_owner(
        self,
        directory: str,
        *,
        prefix: str = "",
        low: str = "",
        high: str | None = None,
        now: datetime | None = None,
        as_of: int | None = None,
    ) -> dict[str, Totals]:
        """Return the totals of each owner that has entries at or below an entity, keyed by the owner's directory.

        For the key parameters, see ``list``.
        """
        moment = now or datetime.now(UTC)

        def add_up(pieces: Iterable[pa.Table]) -> dict[str, Totals]:
            number: Counter[str] = Counter()
            size: Counter[str] = Counter()
            for owner, entries, size_bytes in _sums(pieces, moment):
                number[owner] += entries
                size[owner] += size_bytes
            return {owner: Totals(number[owner], size[owner]) for owner in sorted(number)}

        index = MemoryIndex(self._objects, directory)
        columns = ("entity", "size_bytes", "expires")
        return index.reduce(add_up, max(low, prefix), _highest(prefix, high), columns=columns, as_of=as_of)


def _highest(prefix: str, high: str | None) -> str | None:
    bounds = [each for each in (high, after_prefix(prefix) if prefix else None) if each is not None]
    return min(bounds) if bounds else None


def _alive(rows: pa.Table, now: datetime) -> pa.Table:
    expires = rows["expires"]
    return rows.filter(pc.fill_null(pc.greater(expires, pa.scalar(now, expires.type)), True))


def _sums(pieces: Iterable[pa.Table], now: datetime) -> Iterator[tuple[str, int, int]]:
    for piece in pieces:
        summed = _alive(piece, now).group_by("entity").aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
        for row in summed.to_pylist():
            yield row["entity"], row["size_bytes_count"], row["size_bytes_sum"]


MAX_COUNT = 2**62
"""Larger limits and offsets are reduced to this number, which databases can represent."""

_Entry = TypeVar("_Entry")


def check_count(value: object, what: str) -> int:
    """Validate a limit or offset, and cap it at a value that databases accept. Raises UsageError."""
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"{what} must be a non-negative integer")
    return min(value, MAX_COUNT)


@dataclass(frozen=True, slots=True)
class Page(Generic[_Entry]):
    """A page of entries. ``total_count`` covers all pages; if ``has_more`` is set, ``cursor`` continues with the next
    page. ``is_partial`` is set if the call's allowed ancestors exclude a part of the entity.
    """

    entries: tuple[_Entry, ...]
    total_count: int
    has_more: bool
    cursor: str | None
    is_partial: bool = False


def cursor_after(entity: str, owner: int, key: str) -> str:
    """Return the cursor after a page of ``entity`` that ends with an entry, without the suffix of a private key."""
    return encode_cursor(entity, owner, shown(key))


def parse_cursor(cursor: str | None, entity: str) -> tuple[int, str] | None:
    """Return the position ``(owner id, key)`` after a page of ``entity``; None yields None. Raises UsageError."""
    if cursor is None:
        return None
    try:
        of, owner, key = decode_cursor(tuple[str, int, str], cursor)
        if of != entity or abs(owner) > MAX_COUNT or "\0" in key:
            raise ValueError("no entry of this entity has this owner or key")
    except ValueError:
        fix = "Use the cursor of the previous page of the same entity."
        raise UsageError("Invalid cursor", repr(cursor)[:80], fix) from None
    return owner, f"{key}{BEHIND_PRIVATE}"


KeyRange = tuple[str | None, str | None]
"""The first key, and an exclusive upper bound; None means unbounded."""
_CONTROL = re.compile("[\x00-\x1f]")
_TIMES = ("created", "updated", "expires")


def entries_between(
    listing: MemoryListing,
    entity: Entity,
    keys: KeyRange,
    now: datetime,
    *,
    limit: int = DEFAULT_LIMIT,
    as_of: int | None = None,
) -> list[dict[str, Any]]:
    """Return the entries at or below ``entity``, sorted by key, without values; times are ISO 8601."""
    low, high = keys
    rows = listing.list(entity.directory, low=low or "", high=high, limit=limit, now=now, as_of=as_of).to_pylist()
    return [
        {**row, "key": shown(row["key"]), "metadata": json.loads(row["metadata"])}
        | {name: row[name].isoformat() if row[name] else None for name in _TIMES}
        for row in rows
    ]


def totals_by_level(
    listing: MemoryListing, entity: Entity, level: str, keys: KeyRange, now: datetime, *, as_of: int | None = None
) -> list[dict[str, Any]]:
    """Return ``{level: id, entity, entries, size_bytes}`` for each entity of a level, sorted by path.

    Entries owned above that level are counted under the id None.
    """
    low, high = keys
    by_owner = listing.by_owner(entity.directory, low=low or "", high=high, now=now, as_of=as_of)
    groups: dict[str, Totals] = {}
    for owner, totals in by_owner.items():
        group = _above(owner, level)
        so_far = groups.get(group, Totals(0, 0))
        groups[group] = Totals(so_far.entries + totals.entries, so_far.size_bytes + totals.size_bytes)
    return [_row(level, group, groups) for group in sorted(groups)]


def check_range(given: Any) -> KeyRange:
    """Parse ``given`` as a key range: None for all keys, or a pair of keys. Raises UsageError."""
    if given is None:
        return None, None
    if not isinstance(given, (list, tuple)) or len(given) != 2 or not all(isinstance(k, str | None) for k in given):
        raise UsageError("A range needs a first key and an exclusive upper bound", repr(given)[:80], "Use [low, high].")
    return _bound(given[0]), _bound(given[1])


def _bound(key: str | None) -> str | None:
    """Return a bound that sorts alike for a key and its private forms, which only control characters can separate."""
    control = _CONTROL.search(key) if key else None
    return key if key is None or control is None else f"{key[: control.start()]}{BEHIND_PRIVATE}"


def _above(owner: str, level: str) -> str:
    """Return the directory of the ``level`` entity at or above ``owner``, or "" if there is none."""
    parts = owner.split("/")
    depth = next((depth for depth, part in enumerate(parts, 1) if part.startswith(f"{level}:")), 0)
    return "/".join(parts[:depth])


def _row(level: str, group: str, groups: Mapping[str, Totals]) -> dict[str, Any]:
    totals = groups[group]
    owner = Entity.of_directory(group) if group else None
    return {
        level: owner.id if owner else None,
        "entity": group or None,
        "entries": totals.entries,
        "size_bytes": totals.size_bytes,
    }
