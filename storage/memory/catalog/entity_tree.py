"""Store entities in the catalog, with a closure table that makes any subtree a single indexed query.

The functions run in an open transaction. Functions that write need the tenant's lock (``lock_tenant``), which excludes
all other writes to the tenant: registering, moving and deleting entities, and writing entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity, directories
from driftline.storage.errors import BadEntity
from driftline.storage.memory.catalog.database import MAX_PARAMETERS, bulk_insert, upsert
from driftline.storage.memory.catalog.tables import UtcTime, closure, entities, entries, owners, tenants

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class EntityRecord:
    """A registered entity. ``depth`` is its distance in levels from the queried entity."""

    entity: Entity
    created: datetime
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A locked tenant, and the ``rev`` of the transaction that holds the lock."""

    id: int
    rev: int


def chunks(items: Iterable[_Item], size: int = MAX_PARAMETERS) -> Iterator[list[_Item]]:
    """Yield ``items`` in lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def lock_tenant(connection: Connection, tenant: Entity, *, create: bool = False) -> Tenant | None:
    """Lock the tenant until the transaction ends, and increment its ``rev``.

    Returns None if the tenant does not exist.
    """
    parameters = {"tenant": tenant.tenant.directory}
    row = connection.execute(_LOCK, parameters).one_or_none()
    if row is None and create:
        first = upsert(connection, tenants).values(path=parameters["tenant"], rev=0)
        connection.execute(first.on_conflict_do_nothing())
        row = connection.execute(_LOCK, parameters).one_or_none()
    return Tenant(row.id, row.rev) if row is not None else None


_LOCK = (
    sa.update(tenants)
    .where(tenants.c.path == sa.bindparam("tenant"))
    .values(rev=tenants.c.rev + 1)
    .returning(tenants.c.id, tenants.c.rev)
)


def raise_rev(connection: Connection, tenant: Entity, rev: int) -> None:
    """Make the tenant continue at ``rev`` or above, registering it if it is new."""
    lock_tenant(connection, tenant, create=True)
    of_tenant = tenants.c.path == tenant.directory
    connection.execute(sa.update(tenants).where(of_tenant, tenants.c.rev < rev).values(rev=rev))


# -- reading ---------------------------------------------------------------------------------


def find(connection: Connection, entity: Entity) -> EntityRecord | None:
    """Return the record of ``entity``, or None."""
    row = connection.execute(
        sa.select(entities.c.path, entities.c.created).where(entities.c.path == entity.directory)
    ).one_or_none()
    return _record(row) if row is not None else None


def named(connection: Connection, type: str, name: str, tenant: Entity | None = None) -> list[Entity]:
    """Return the entities with this type and name, in ``tenant`` or in all tenants, sorted by directory."""
    query = sa.select(entities.c.path).where(entities.c.type == type, entities.c.name == name).order_by(entities.c.path)
    if tenant is not None:
        of_tenant = sa.select(tenants.c.id).where(tenants.c.path == tenant.directory)
        query = query.where(entities.c.tenant_id == of_tenant.scalar_subquery())
    return [Entity.of_directory(path) for path in connection.execute(query).scalars()]


def all_tenants(connection: Connection) -> list[Entity]:
    """Return all tenants, including those with no entities, sorted by name."""
    return [
        Entity.of_directory(path)
        for path in connection.execute(sa.select(tenants.c.path).order_by(tenants.c.path)).scalars()
    ]


def rev_of(connection: Connection, tenant: Entity) -> int | None:
    """Return how many transactions changed the tenant, or None if the tenant does not exist."""
    rev = connection.execute(sa.select(tenants.c.rev).where(tenants.c.path == tenant.directory)).scalar()
    return None if rev is None else int(rev)


def ids_of(connection: Connection, paths: Iterable[str]) -> dict[str, int]:
    """Return the ids of the registered entities among ``paths``, keyed by directory."""
    ids: dict[str, int] = {}
    for some in chunks(dict.fromkeys(paths)):
        ids.update((path, number) for path, number in connection.execute(_IDS, {"paths": some}))
    return ids


_IDS = sa.select(entities.c.path, entities.c.id).where(entities.c.path.in_(sa.bindparam("paths", expanding=True)))


def ancestors(connection: Connection, entity: Entity) -> list[EntityRecord]:
    """Return the ancestors of ``entity``, nearest first, excluding the entity itself."""
    below = entities.alias()
    query = (
        sa.select(entities.c.path, entities.c.created, closure.c.depth)
        .join(closure, closure.c.ancestor_id == entities.c.id)
        .join(below, below.c.id == closure.c.descendant_id)
        .where(below.c.path == entity.directory, closure.c.depth > 0)
        .order_by(closure.c.depth)
    )
    return [_record(row, row.depth) for row in connection.execute(query)]


def descendants(
    connection: Connection, entity: Entity, *, type: str | None = None, max_depth: int | None = None
) -> list[EntityRecord]:
    """Return the entities under ``entity``, excluding itself, sorted by directory."""
    query = _below(entity, type)
    if max_depth is not None:
        query = query.where(closure.c.depth <= max_depth)
    return [_record(row, row.depth) for row in connection.execute(query)]


def page(
    connection: Connection, *, entity: Entity | None = None, type: str | None = None, after: str = "", limit: int
) -> list[EntityRecord]:
    """Return up to ``limit`` entities under ``entity`` (default: all) after ``after``, sorted by directory."""
    query = _below(entity, type).where(entities.c.path > after).limit(limit)
    return [_record(row, row.depth) for row in connection.execute(query)]


def _below(entity: Entity | None, type: str | None) -> sa.Select[tuple[str, datetime, int]]:
    """Select the entities under ``entity`` with their distance to it, or all entities with their distance to their
    tenant.
    """
    top = entities.alias()
    query = (
        sa.select(entities.c.path, entities.c.created, closure.c.depth)
        .join(closure, closure.c.descendant_id == entities.c.id)
        .join(top, top.c.id == closure.c.ancestor_id)
        .order_by(entities.c.path)
    )
    if entity is None:
        query = query.join(tenants, tenants.c.id == entities.c.tenant_id).where(top.c.path == tenants.c.path)
    else:
        query = query.where(top.c.path == entity.directory, closure.c.depth > 0)
    return query if type is None else query.where(entities.c.type == type)


# -- changing, under the tenant's lock -------------------------------------------------------


def ensure(connection: Connection, tenant: Tenant, paths: Iterable[str], now: datetime) -> dict[str, int]:
    """Register the entities at ``paths`` (directories) and their ancestors; return all ids, keyed by directory."""
    lineages = {path: directories(path) for path in paths}
    every = list(dict.fromkeys(chain.from_iterable(lineages.values())))
    ids = ids_of(connection, every)
    missing = sorted((path for path in every if path not in ids), key=lambda path: path.count("/"))
    if not missing:
        return ids
    nodes = [Entity.of_directory(path) for path in missing]
    names = {"path": missing, "type": [node.type for node in nodes], "name": [node.id for node in nodes]}
    bulk_insert(connection, entities, names, {"tenant_id": tenant.id, "created": now})
    ids |= ids_of(connection, missing)
    pairs = [
        (ids[above], ids[path], depth) for path in missing for depth, above in enumerate(reversed(directories(path)))
    ]
    ancestors, descendants, depths = zip(*pairs, strict=True)
    bulk_insert(connection, closure, {"ancestor_id": ancestors, "descendant_id": descendants, "depth": depths}, {})
    return ids


def move(connection: Connection, entity: Entity, target: Entity) -> None:
    """Move ``entity`` and its descendants to ``target``, whose parent is registered. Raises BadEntity."""
    ids = ids_of(connection, [entity.directory, target.directory, Entity(target.parts[:-1]).directory])
    if entity.directory not in ids:
        raise BadEntity("The entity does not exist", entity.directory)
    if target.directory in ids:
        raise BadEntity("The entity already exists", target.directory, "Move it or its entries elsewhere first.")
    moved, parent = ids[entity.directory], ids[Entity(target.parts[:-1]).directory]
    subtree = sa.select(closure.c.descendant_id).where(closure.c.ancestor_id == moved)
    nodes_below = sa.select(closure.c.descendant_id, closure.c.depth).where(closure.c.ancestor_id == moved)
    nodes_above = sa.select(closure.c.ancestor_id, closure.c.depth).where(closure.c.descendant_id == parent)
    below, above = list(connection.execute(nodes_below)), list(connection.execute(nodes_above))
    connection.execute(
        closure.delete().where(
            closure.c.descendant_id.in_(subtree.scalar_subquery()),
            closure.c.ancestor_id.in_(
                sa.select(closure.c.ancestor_id)
                .where(closure.c.descendant_id == moved, closure.c.depth > 0)
                .scalar_subquery()
            ),
        )
    )
    connection.execute(
        closure.insert(),
        [
            {"ancestor_id": ancestor, "descendant_id": node, "depth": up + 1 + down}
            for ancestor, up in above
            for node, down in below
        ],
    )
    rest = sa.func.substr(entities.c.path, len(entity.directory) + 1)
    connection.execute(
        entities.update().where(entities.c.id.in_(subtree)).values(path=sa.literal(target.directory).concat(rest))
    )


def delete(connection: Connection, entity: Entity) -> int:
    """Delete ``entity`` and its descendants, and return how many were deleted. Their entries are already deleted."""
    ids = ids_of(connection, [entity.directory])
    if not ids:
        return 0
    subtree = sa.select(closure.c.descendant_id).where(closure.c.ancestor_id == ids[entity.directory])
    subtree_ids = list(connection.execute(subtree).scalars())
    for some in chunks(subtree_ids):
        connection.execute(owners.delete().where(owners.c.entity_id.in_(some)))
    for some in chunks(subtree_ids):
        connection.execute(closure.delete().where(closure.c.descendant_id.in_(some)))
    for some in chunks(subtree_ids):
        connection.execute(entities.delete().where(entities.c.id.in_(some)))
    return len(subtree_ids)


def has_content(connection: Connection, entity: Entity, now: datetime) -> bool:
    """Return whether ``entity`` owns entries that have not expired by ``now``, or has descendants."""
    ids = ids_of(connection, [entity.directory])
    own = ids.get(entity.directory, -1)
    below = sa.exists().where(closure.c.ancestor_id == own, closure.c.depth > 0)
    alive = sa.or_(entries.c.expires.is_(None), entries.c.expires > sa.literal(now, UtcTime))
    owns = sa.exists().where(entries.c.entity_id == own, alive)
    return bool(connection.execute(sa.select(sa.or_(below, owns))).scalar())


def _record(row: sa.Row[tuple[str, datetime]] | sa.Row[tuple[str, datetime, int]], depth: int = 0) -> EntityRecord:
    return EntityRecord(Entity.of_directory(row[0]), row[1], depth)
