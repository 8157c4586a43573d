"""Writes of memory entries: the entries, the totals of their owners, retired blobs and the outbox.

The functions run in an open transaction under the tenant's lock (``entities.lock_tenant``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import repeat
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.memory.catalog import private_keys
from driftline.storage.memory.catalog.database import bulk_insert, upsert
from driftline.storage.memory.catalog.drafts import COLUMNS as DRAFT_COLUMNS
from driftline.storage.memory.catalog.drafts import Drafts
from driftline.storage.memory.catalog.entities import Tenant, chunks, ensure, ids_of
from driftline.storage.memory.catalog.queries import COLUMNS, EntryRow, Scope, as_list, conditions, is_listed
from driftline.storage.memory.catalog.tables import UtcTime, closure, entities, entries, outbox, retired_blobs


def put(connection: Connection, tenant: Tenant, new: Drafts, now: datetime, within: Entity | None = None) -> None:
    """Store ``new``, whose keys are distinct, register the owners, and retire the blobs of replaced entries.

    Entries that are neither at nor below ``within`` stay; ``new`` gets private forms of their keys.
    """
    ids = ensure(connection, tenant, set(new.path), now)
    known = {row.key: row for row in _locked(connection, tenant, new.key)}
    if within is not None and within.tenant != within:
        apart = private_keys.apart(connection, new, known.values(), within, now)
        if apart is not new:
            new, known = apart, {row.key: row for row in _locked(connection, tenant, apart.key)}
    same = {"tenant_id": tenant.id, "rev": tenant.rev, "updated": now}
    added = new.some([key not in known for key in new.key]) if known else new
    bulk_insert(connection, entries, _columns(added, ids), {**same, "created": now})
    if known:
        columns = _columns(new.some([key in known for key in new.key]), ids)
        names = [f"new_{name}" for name in (*columns, *same)]
        rows = zip(*columns.values(), *(repeat(value) for value in same.values()), strict=False)
        connection.execute(_REPLACE, [dict(zip(names, row, strict=True)) for row in rows])
    add_to_owners(connection, [ids[path] for path in new.path], new.size_bytes, known.values())
    blobs = set(new.blob_path)
    _retire(connection, (row.blob_path for row in known.values() if row.blob_path not in blobs), now)
    left = [known[key].path if key in known else None for key in new.key]
    moved_from = [was if was != path else None for was, path in zip(left, new.path, strict=True)]
    _enqueue(connection, tenant, new.key, new.path, moved_from, now)


def _columns(new: Drafts, ids: Mapping[str, int]) -> dict[str, Sequence[Any]]:
    columns = {name: getattr(new, name) for name in DRAFT_COLUMNS if name != "path"}
    return {**columns, "entity_id": [ids[path] for path in new.path]}


_KEPT = frozenset({"tenant_id", "key", "created"})
_REPLACE = (
    entries.update()
    .where(entries.c.tenant_id == sa.bindparam("new_tenant_id"), entries.c.key == sa.bindparam("new_key"))
    .values({c.name: sa.bindparam(f"new_{c.name}", type_=c.type) for c in entries.c if c.name not in _KEPT})
)


def remove(connection: Connection, tenant: Tenant, keys: Iterable[str], scope: Scope, now: datetime) -> int:
    """Delete the entries of ``keys`` that are in ``scope``, expired or not; returns the number of deleted entries."""
    rows = _locked(connection, tenant, keys, scope)
    for some in chunks(row.key for row in rows):
        connection.execute(entries.delete().where(entries.c.tenant_id == tenant.id, entries.c.key.in_(some)))
    add_to_owners(connection, [], [], rows)
    _retire(connection, (row.blob_path for row in rows), now)
    _enqueue(connection, tenant, [row.key for row in rows], [None] * len(rows), [row.path for row in rows], now)
    return len(rows)


def keys_below(connection: Connection, entity: Entity) -> list[str]:
    """The keys of all entries at or below ``entity``, expired or not."""
    tops = list(ids_of(connection, [entity.directory]).values())
    query = (
        sa.select(entries.c.key)
        .join(closure, closure.c.descendant_id == entries.c.entity_id)
        .where(closure.c.ancestor_id.in_(tops))
    )
    return list(connection.execute(query).scalars())


def relocate(connection: Connection, tenant: Tenant, source: Entity, target: Entity, now: datetime) -> int:
    """Add the move of all entries from ``source`` to ``target`` to the outbox; returns the number of entries."""
    tops = list(ids_of(connection, [target.directory]).values())
    below = sa.select(closure.c.descendant_id).where(closure.c.ancestor_id.in_(tops))
    moved = connection.execute(entries.update().where(entries.c.entity_id.in_(below)).values(rev=tenant.rev))
    left = sa.literal(source.directory).concat(sa.func.substr(entities.c.path, len(target.directory) + 1))
    rows = (
        sa.select(entries.c.tenant_id, entries.c.key, entries.c.rev, entities.c.path, left, sa.literal(now, UtcTime))
        .join(entities, entities.c.id == entries.c.entity_id)
        .where(entries.c.entity_id.in_(below))
    )
    connection.execute(outbox.insert().from_select(["tenant_id", "key", "rev", "path", "left_path", "written"], rows))
    return moved.rowcount


def _locked(connection: Connection, tenant: Tenant, keys: Iterable[str], scope: Scope | None = None) -> list[EntryRow]:
    """The entries of ``keys``, expired or not; the caller holds the tenant's lock."""
    is_deep = scope is not None and len(scope.within.parts) > 1
    query = _locked_query(connection.dialect.name, is_deep, scope is not None and scope.allowed is not None)
    parameters: dict[str, Any] = {"tenant_id": tenant.id, "keys": as_list(connection, keys)}
    if scope is not None:
        parameters |= {"within": [scope.within.directory], "allowed": [e.directory for e in scope.allowed or ()]}
    return [EntryRow(*row) for row in connection.execute(query, parameters)]


@cache
def _locked_query(dialect: str, is_deep: bool, is_limited: bool) -> sa.Select[Any]:
    return (
        sa.select(*COLUMNS)
        .join(entities, entities.c.id == entries.c.entity_id)
        .where(
            entries.c.tenant_id == sa.bindparam("tenant_id"),
            is_listed(dialect, entries.c.key, "keys"),
            *conditions(is_deep, is_limited),
        )
    )


def add_to_owners(
    connection: Connection, added: Sequence[int], sizes_bytes: Sequence[int], removed: Iterable[EntryRow]
) -> None:
    """Update the totals of the owners; ``added`` and ``sizes_bytes`` have the owner and size of each new entry."""
    number = Counter(added)
    size: Counter[int] = Counter()
    for owner, size_bytes in zip(added, sizes_bytes, strict=True):
        size[owner] += size_bytes
    for row in removed:
        number[row.owner_id] -= 1
        size[row.owner_id] -= row.size_bytes
    changes = [
        {"entity_id": owner, "entries": number[owner], "size_bytes": size[owner]}
        for owner in sorted(number)
        if number[owner] or size[owner]
    ]
    if changes:
        connection.execute(_ADD_TO_OWNERS, changes)


_ADD_TO_OWNERS = sa.text(  # SQLAlchemy does not cache the compiled form of its own upserts
    "INSERT INTO ltm_entry_owners (entity_id, entries, size_bytes) VALUES (:entity_id, :entries, :size_bytes)"
    " ON CONFLICT (entity_id) DO UPDATE"
    " SET entries = ltm_entry_owners.entries + excluded.entries,"
    " size_bytes = ltm_entry_owners.size_bytes + excluded.size_bytes"
)


def _retire(connection: Connection, blobs: Iterable[str | None], now: datetime) -> None:
    rows = [{"path": path, "retired": now} for path in dict.fromkeys(blobs) if path is not None]
    if rows:
        # A store that is retried after a lost acknowledgement may use a retired blob again, which has a row already.
        insert = upsert(connection, retired_blobs)
        again = insert.on_conflict_do_update(index_elements=["path"], set_={"retired": insert.excluded.retired})
        connection.execute(again, rows)


def _enqueue(
    connection: Connection,
    tenant: Tenant,
    keys: Sequence[str],
    paths: Sequence[str | None],
    left_paths: Sequence[str | None],
    now: datetime,
) -> None:
    if keys:
        columns = {"key": keys, "path": paths, "left_path": left_paths}
        bulk_insert(connection, outbox, columns, {"tenant_id": tenant.id, "rev": tenant.rev, "written": now})


def forget_blobs(connection: Connection, paths: Iterable[str]) -> None:
    """Remove the records of retired blobs that have been deleted."""
    for some in chunks(paths):
        connection.execute(retired_blobs.delete().where(retired_blobs.c.path.in_(some)))
