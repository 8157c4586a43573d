"""Maintain the catalog's outbox: changes not yet applied to indexes and vectors, in commit order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.memory.catalog.entity_tree import chunks
from driftline.storage.memory.catalog.entry_queries import COLUMNS, EntryRow
from driftline.storage.memory.catalog.tables import entities, entries, outbox, tenants


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An outbox row: at ``rev``, the entry was written to ``path`` (None: deleted), and left ``left_path``.

    ``row`` is the current entry, or None if this change was superseded by a later one.
    """

    id: int
    key: str
    rev: int
    path: str | None
    left_path: str | None
    row: EntryRow | None
    is_indexed: bool = False


def waiting(connection: Connection, *, for_vectors: bool) -> list[Entity]:
    """Return the tenants with changes pending for indexes or, if ``for_vectors`` is set, for indexes or vectors."""
    some = sa.exists().where(outbox.c.tenant_id == tenants.c.id, _due(for_vectors))
    return [Entity.of_directory(path) for path in connection.execute(sa.select(tenants.c.path).where(some)).scalars()]


def overdue(connection: Connection, before: datetime, *, for_vectors: bool) -> list[Entity]:
    """Return the tenants from ``waiting`` whose oldest pending change was written before ``before``."""
    oldest = (
        sa.select(outbox.c.written)
        .where(outbox.c.tenant_id == tenants.c.id, _due(for_vectors))
        .order_by(outbox.c.id)
        .limit(1)
        .scalar_subquery()
    )
    some = sa.exists().where(outbox.c.tenant_id == tenants.c.id, _due(for_vectors))
    query = sa.select(tenants.c.path).where(some, sa.or_(oldest.is_(None), oldest < before))
    return [Entity.of_directory(path) for path in connection.execute(query).scalars()]


def batch(connection: Connection, tenant: Entity, limit: int, *, for_vectors: bool) -> list[OutboxRow]:
    """Return up to ``limit`` of a tenant's pending changes, oldest first."""
    heads = (outbox.c.id, outbox.c.key, outbox.c.rev, outbox.c.path, outbox.c.left_path, outbox.c.is_indexed)
    query = (
        sa.select(*heads, *COLUMNS)
        .join(tenants, tenants.c.id == outbox.c.tenant_id)
        .outerjoin(
            entries,
            sa.and_(
                entries.c.tenant_id == outbox.c.tenant_id,
                entries.c.key == outbox.c.key,
                entries.c.rev == outbox.c.rev,
            ),
        )
        .outerjoin(entities, entities.c.id == entries.c.entity_id)
        .where(tenants.c.path == tenant.directory, _due(for_vectors))
        .order_by(outbox.c.id)
        .limit(limit)
    )
    changes = []
    for number, key, rev, path, left_path, is_indexed, *rest in connection.execute(query):
        row = EntryRow(*rest) if rest[0] is not None else None
        changes.append(OutboxRow(number, key, rev, path, left_path, row, is_indexed))
    return changes


def forget(connection: Connection, ids: Iterable[int]) -> None:
    """Remove changes that were applied to both indexes and vectors."""
    for some in chunks(ids):
        connection.execute(outbox.delete().where(outbox.c.id.in_(some)))


def mark_indexed(connection: Connection, ids: Iterable[int]) -> None:
    """Mark changes as pending only for vectors, which need a process that has a model."""
    for some in chunks(ids):
        connection.execute(outbox.update().where(outbox.c.id.in_(some)).values(is_indexed=True))


def _due(for_vectors: bool) -> sa.ColumnElement[bool]:
    return sa.true() if for_vectors else sa.not_(outbox.c.is_indexed)


def keys(connection: Connection, tenant: Entity) -> list[str]:
    """Return a tenant's keys whose latest change is not yet applied to both indexes and vectors."""
    joined = outbox.join(tenants, tenants.c.id == outbox.c.tenant_id)
    query = sa.select(outbox.c.key).distinct().select_from(joined).where(tenants.c.path == tenant.directory)
    return list(connection.execute(query).scalars())


def last_id(connection: Connection, tenant: Entity) -> int:
    """Return the id of a tenant's newest pending change, or 0."""
    joined = outbox.join(tenants, tenants.c.id == outbox.c.tenant_id)
    query = sa.select(sa.func.max(outbox.c.id)).select_from(joined).where(tenants.c.path == tenant.directory)
    return int(connection.execute(query).scalar() or 0)


def claim(
    connection: Connection,
    tenant: Entity,
    flusher: str,
    now: datetime,
    until: datetime,
    has_ended: Callable[[str], bool] = lambda flusher: False,
) -> bool:
    """Claim the tenant for ``flusher`` until ``until``; return False if another live process holds the claim.

    The claim only saves work: flushing twice is harmless.
    """
    row = tenants.c.path == tenant.directory
    free = sa.or_(tenants.c.flusher_until.is_(None), tenants.c.flusher_until <= now, tenants.c.flusher == flusher)
    taken = sa.update(tenants).values(flusher=flusher, flusher_until=until)
    if connection.execute(taken.where(row, free)).rowcount:
        return True
    holder = connection.execute(sa.select(tenants.c.flusher).where(row)).scalar()
    if holder is None or not has_ended(holder):
        return False
    return bool(connection.execute(taken.where(row, tenants.c.flusher == holder)).rowcount)


def continue_above(connection: Connection, last: int) -> None:
    """Make the ids of later changes continue above ``last``, the last id applied to the vector tables."""
    if connection.dialect.name == "sqlite":
        connection.execute(outbox.insert().values(id=last, tenant_id=0, key="", rev=0, written=datetime.now(UTC)))
        connection.execute(outbox.delete().where(outbox.c.id == last))
        return
    sequence = connection.execute(sa.select(sa.func.pg_get_serial_sequence("ltm_outbox", "id"))).scalar_one()
    reached = connection.execute(sa.text(f"SELECT last_value FROM {sequence}")).scalar_one()
    connection.execute(sa.select(sa.func.setval(sequence, max(reached, last))))
