"""Writes entries as an index describes them into a catalog that is being restored.

The functions run in an open transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.memory.catalog.database import bulk_insert
from driftline.storage.memory.catalog.entities import chunks, ensure, lock_tenant
from driftline.storage.memory.catalog.tables import entries, outbox
from driftline.storage.memory.catalog.writes import add_to_owners

_COPIED = (
    "key",
    "rev",
    "inline",
    "blob_path",
    "content_hash",
    "size_bytes",
    "metadata",
    "created",
    "updated",
    "expires",
)


def insert(connection: Connection, tenant: Entity, rows: Sequence[Mapping[str, Any]], now: datetime) -> int:
    """Add ``rows`` whose keys are not there yet, under their own revisions; returns the number of added entries.

    ``metadata`` is JSON text, and ``entity`` the directory of the owner. Nothing is added to the outbox: the rows come
    from the indexes.
    """
    locked = lock_tenant(connection, tenant, create=True)
    assert locked is not None
    known: set[str] = set()
    for some in chunks(row["key"] for row in rows):
        query = sa.select(entries.c.key).where(entries.c.tenant_id == locked.id, entries.c.key.in_(some))
        known.update(connection.execute(query).scalars())
    new = [row for row in rows if row["key"] not in known]
    if not new:
        return 0
    ids = ensure(connection, locked, {row["entity"] for row in new}, now)
    owners = [ids[row["entity"]] for row in new]
    columns = {name: [row[name] for row in new] for name in _COPIED} | {"entity_id": owners}
    bulk_insert(connection, entries, columns, {"tenant_id": locked.id})
    add_to_owners(connection, owners, columns["size_bytes"], ())
    return len(new)


def continue_outbox(connection: Connection, last: int) -> None:
    """Let the ids of later changes be above ``last``, which the tables of vectors have applied."""
    if connection.dialect.name == "sqlite":
        connection.execute(outbox.insert().values(id=last, tenant_id=0, key="", rev=0))
        connection.execute(outbox.delete().where(outbox.c.id == last))
        return
    sequence = connection.execute(sa.select(sa.func.pg_get_serial_sequence("ltm_outbox", "id"))).scalar_one()
    reached = connection.execute(sa.text(f"SELECT last_value FROM {sequence}")).scalar_one()
    connection.execute(sa.select(sa.func.setval(sequence, max(reached, last))))
