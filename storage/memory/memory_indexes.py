"""Maintain the Parquet memory indexes: each entity has a delta index of the entries at or below it (DESIGN, "Memory").

``publish`` writes the deltas of changed entries, ``rewrite`` rebuilds an index from the catalog, and ``DeltaWatch``
counts deltas so that programs can request a compaction.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import ADD, REMOVE, DeltaIndex
from driftline.storage.deltas.parquet_files import DEFAULT_ENCODING, Encoding
from driftline.storage.entities import Entity, directories
from driftline.storage.errors import CorruptFile
from driftline.storage.layout import BASE, new_ulid
from driftline.storage.memory.catalog.entry_queries import EntryRow
from driftline.storage.memory.catalog.outbox import OutboxRow
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel

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


def rewrite(
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
    directory, so it only happens after ``threshold`` flushes by this process, and in ``look``.
    """

    objects: ObjectStore
    threshold: int
    on_excess: Callable[[Entity, int], None]
    _flushes: Counter[Entity] = field(default_factory=Counter)

    def flushed(self, tenant: Entity) -> None:
        """Record a flush. Raises StorageError."""
        self._flushes[tenant] += 1
        if self._flushes[tenant] > self.threshold:
            self._count(tenant)

    def look(self) -> None:
        """Count the deltas of every tenant that was flushed since the last count. Raises StorageError."""
        for tenant in [tenant for tenant, flushes in self._flushes.items() if flushes]:
            self._count(tenant)

    def _count(self, tenant: Entity) -> None:
        self._flushes[tenant] = 0
        deltas = len(MemoryIndex(self.objects, tenant.directory).log().deltas)
        if deltas > self.threshold:
            self.on_excess(tenant, deltas)
