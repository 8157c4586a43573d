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
from driftline.storage.memory.catalog.queries import COLUMNS, EntryRow
from driftline.storage.memory.catalog.tables import entities, entries, outbox
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
    """Add ``rows`` whose keys are not there yet, or with an earlier revision; returns the number of added entries.

    ``metadata`` is JSON text, and ``entity`` the directory of the owner. Nothing is added to the outbox: the rows come
    from the indexes.
    """
    locked = lock_tenant(connection, tenant, create=True)
    assert locked is not None
    known: dict[str, EntryRow] = {}
    for some in chunks(row["key"] for row in rows):
        query = sa.select(*COLUMNS).join(entities, entities.c.id == entries.c.entity_id)
        query = query.where(entries.c.tenant_id == locked.id, entries.c.key.in_(some))
        known |= {row.key: row for row in (EntryRow(*each) for each in connection.execute(query))}
    new = [row for row in rows if row["key"] not in known or known[row["key"]].rev < row["rev"]]
    if not new:
        return 0
    # A flush that was interrupted leaves an entry that has moved in the index of its earlier owner, too.
    replaced = [known[row["key"]] for row in new if row["key"] in known]
    for keys in chunks(row.key for row in replaced):
        connection.execute(entries.delete().where(entries.c.tenant_id == locked.id, entries.c.key.in_(keys)))
    ids = ensure(connection, locked, {row["entity"] for row in new}, now)
    owners = [ids[row["entity"]] for row in new]
    columns = {name: [row[name] for row in new] for name in _COPIED} | {"entity_id": owners}
    bulk_insert(connection, entries, columns, {"tenant_id": locked.id})
    add_to_owners(connection, owners, columns["size_bytes"], replaced)
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
