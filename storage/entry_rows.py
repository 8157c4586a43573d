"""Changes of memory entries: one row a key, one owner a row, and an outbox for what reads the catalog later.

Functions of an open transaction under the tenant's lock (``entity_tree.lock_tenant``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from driftline.storage.catalog import bulk_insert, upsert
from driftline.storage.catalog_tables import closure, entities, entries, outbox, owners, retired_blobs
from driftline.storage.entities import Entity
from driftline.storage.entity_tree import Tenant, chunks, ensure, ids_of
from driftline.storage.entry_queries import COLUMNS, EntryRow, Scope, conditions


@dataclass(frozen=True, slots=True)
class NewEntry:
    """What is to be stored: the value is ``inline``, or has been written to ``blob_path``."""

    key: str
    entity: Entity
    inline: bytes | None
    blob_path: str | None
    content_hash: str
    size_bytes: int
    metadata: Mapping[str, Any]
    expires: datetime | None


def put(connection: Connection, tenant: Tenant, new: Sequence[NewEntry], now: datetime) -> None:
    """Store ``new``, of distinct keys, and register their owners. What they replace is retired."""
    path_of = {entity: entity.directory for entity in {entry.entity for entry in new}}
    ids = ensure(connection, tenant, list(path_of), now)
    known = {row.key: row for row in _locked(connection, tenant, [entry.key for entry in new])}
    rows = [
        {
            "tenant_id": tenant.id,
            "key": entry.key,
            "entity_id": ids[path_of[entry.entity]],
            "rev": tenant.rev,
            "inline": entry.inline,
            "blob_path": entry.blob_path,
            "content_hash": entry.content_hash,
            "size_bytes": entry.size_bytes,
            "metadata": dict(entry.metadata),
            "created": now,
            "updated": now,
            "expires": entry.expires,
        }
        for entry in new
    ]
    inserts = [row for row in rows if row["key"] not in known]
    if inserts:
        bulk_insert(connection, entries, inserts)
    updates = [{f"new_{name}": value for name, value in row.items()} for row in rows if row["key"] in known]
    if updates:
        connection.execute(_REPLACE, updates)
    _account(connection, [(ids[path_of[entry.entity]], 1, entry.size_bytes) for entry in new], known.values())
    blobs = {entry.blob_path for entry in new}
    _retire(connection, (row.blob_path for row in known.values() if row.blob_path not in blobs), now)
    _tell(
        connection,
        tenant,
        [
            (entry.key, path, known[entry.key].path if entry.key in known and known[entry.key].path != path else None)
            for entry in new
            for path in [path_of[entry.entity]]
        ],
    )


_KEPT = frozenset({"tenant_id", "key", "created"})
_REPLACE = (
    entries.update()
    .where(entries.c.tenant_id == sa.bindparam("new_tenant_id"), entries.c.key == sa.bindparam("new_key"))
    .values({c.name: sa.bindparam(f"new_{c.name}", type_=c.type) for c in entries.c if c.name not in _KEPT})
)


def remove(connection: Connection, tenant: Tenant, keys: Iterable[str], scope: Scope, now: datetime) -> int:
    """Delete the entries of these keys that ``scope`` shows, expired or not; returns how many there were."""
    doomed = _locked(connection, tenant, keys, scope)
    for some in chunks(row.key for row in doomed):
        connection.execute(entries.delete().where(entries.c.tenant_id == tenant.id, entries.c.key.in_(some)))
    _account(connection, [], doomed)
    _retire(connection, (row.blob_path for row in doomed), now)
    _tell(connection, tenant, [(row.key, None, row.path) for row in doomed])
    return len(doomed)


def keys_below(connection: Connection, entity: Entity) -> list[str]:
    """The keys of all entries at or below ``entity``, expired or not."""
    tops = list(ids_of(connection, [entity]).values())
    query = (
        sa.select(entries.c.key)
        .join(closure, closure.c.descendant_id == entries.c.entity_id)
        .where(closure.c.ancestor_id.in_(tops))
    )
    return list(connection.execute(query).scalars())


def relocate(connection: Connection, tenant: Tenant, source: Entity, target: Entity) -> int:
    """Tell the outbox that what lay below ``source`` lies below ``target`` now; returns how many entries that are."""
    tops = list(ids_of(connection, [target]).values())
    below = sa.select(closure.c.descendant_id).where(closure.c.ancestor_id.in_(tops))
    moved = connection.execute(entries.update().where(entries.c.entity_id.in_(below)).values(rev=tenant.rev))
    left = sa.literal(source.directory).concat(sa.func.substr(entities.c.path, len(target.directory) + 1))
    rows = (
        sa.select(entries.c.tenant_id, entries.c.key, entries.c.rev, entities.c.path, left)
        .join(entities, entities.c.id == entries.c.entity_id)
        .where(entries.c.entity_id.in_(below))
    )
    connection.execute(outbox.insert().from_select(["tenant_id", "key", "rev", "path", "left_path"], rows))
    return moved.rowcount


def _locked(connection: Connection, tenant: Tenant, keys: Iterable[str], scope: Scope | None = None) -> list[EntryRow]:
    """The entries of these keys, expired or not, under the tenant's lock."""
    is_deep = scope is not None and len(scope.within.parts) > 1
    query = _locked_query(is_deep, scope is not None and scope.allowed is not None)
    given: dict[str, Any] = {"tenant_id": tenant.id}
    if scope is not None:
        given |= {"within": [scope.within.directory], "allowed": [e.directory for e in scope.allowed or ()]}
    return [
        EntryRow(*row)
        for some in chunks(dict.fromkeys(keys))
        for row in connection.execute(query, {**given, "keys": some})
    ]


@cache
def _locked_query(is_deep: bool, is_limited: bool) -> sa.Select[Any]:
    return (
        sa.select(*COLUMNS)
        .join(entities, entities.c.id == entries.c.entity_id)
        .where(
            entries.c.tenant_id == sa.bindparam("tenant_id"),
            entries.c.key.in_(sa.bindparam("keys", expanding=True)),
            *conditions(is_deep, is_limited),
        )
    )


def _account(connection: Connection, added: Iterable[tuple[int, int, int]], gone: Iterable[EntryRow]) -> None:
    """Keep the sums of each owner: ``added`` are ``(owner, entries, bytes)``."""
    number: Counter[int] = Counter()
    size: Counter[int] = Counter()
    for owner, n, size_bytes in added:
        number[owner] += n
        size[owner] += size_bytes
    for row in gone:
        number[row.owner_id] -= 1
        size[row.owner_id] -= row.size_bytes
    changes = [{"owner": o, "n": number[o], "size": size[o]} for o in sorted(number) if number[o] or size[o]]
    known = set[int]()
    for some in chunks(change["owner"] for change in changes):
        known.update(connection.execute(_KNOWN_OWNERS, {"some": some}).scalars())
    fresh = [
        {"entity_id": change["owner"], "entries": change["n"], "size_bytes": change["size"]}
        for change in changes
        if change["owner"] not in known
    ]
    if fresh:
        connection.execute(owners.insert(), fresh)
    raised = [change for change in changes if change["owner"] in known]
    if raised:
        connection.execute(_RAISE_OWNERS, raised)


_KNOWN_OWNERS = sa.select(owners.c.entity_id).where(owners.c.entity_id.in_(sa.bindparam("some", expanding=True)))
_RAISE_OWNERS = (
    owners.update()
    .where(owners.c.entity_id == sa.bindparam("owner"))
    .values(entries=owners.c.entries + sa.bindparam("n"), size_bytes=owners.c.size_bytes + sa.bindparam("size"))
)


def _retire(connection: Connection, blobs: Iterable[str | None], now: datetime) -> None:
    rows = [{"path": path, "retired": now} for path in dict.fromkeys(blobs) if path is not None]
    if rows:
        # A store that was repeated after a lost acknowledgement may bring back a blob that was retired meanwhile.
        insert = upsert(connection, retired_blobs)
        again = insert.on_conflict_do_update(index_elements=["path"], set_={"retired": insert.excluded.retired})
        connection.execute(again, rows)


def _tell(connection: Connection, tenant: Tenant, moves: Sequence[tuple[str, str | None, str | None]]) -> None:
    rows = [
        {"tenant_id": tenant.id, "key": key, "rev": tenant.rev, "path": path, "left_path": left}
        for key, path, left in moves
    ]
    if rows:
        bulk_insert(connection, outbox, rows)


def forget_blobs(connection: Connection, paths: Iterable[str]) -> None:
    """Forget that these blobs were retired: they are gone."""
    for some in chunks(paths):
        connection.execute(retired_blobs.delete().where(retired_blobs.c.path.in_(some)))
