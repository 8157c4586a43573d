"""Rebuild a lost catalog from a workspace's indexes and blobs (DESIGN, "Memory").

An entity's index contains the entries it owns, with their values or the paths of their blobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.errors import CatalogMismatch
from driftline.storage.layout import ObjectKind, parse_name
from driftline.storage.memory.binding import (
    CatalogRecord,
    catalog_url,
    location_of,
    older_tenants,
    recorded,
    write_record,
)
from driftline.storage.memory.catalog import entity_tree
from driftline.storage.memory.catalog.database import Catalog, bulk_insert
from driftline.storage.memory.catalog.entity_tree import chunks, ensure, lock_tenant
from driftline.storage.memory.catalog.entry_queries import COLUMNS, EntryRow, has_no_entries
from driftline.storage.memory.catalog.entry_writes import add_to_owners
from driftline.storage.memory.catalog.tables import entities, entries, outbox
from driftline.storage.memory.memory_indexes import FIELDS, VALUE_FIELDS, MemoryIndex
from driftline.storage.memory.vectors import last_change, vector_tables
from driftline.storage.workspace.workspace import Workspace

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
    """Insert the ``rows`` whose keys are new or have a later revision, and return how many were inserted.

    ``metadata`` is JSON text, and ``entity`` the owner's directory. Nothing is added to the outbox, because the rows
    come from the indexes.
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
    # An interrupted flush may also leave a moved entry in its former owner's index.
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
    """Make the ids of later changes continue above ``last``, the last id applied to the vector tables."""
    if connection.dialect.name == "sqlite":
        connection.execute(outbox.insert().values(id=last, tenant_id=0, key="", rev=0, written=datetime.now(UTC)))
        connection.execute(outbox.delete().where(outbox.c.id == last))
        return
    sequence = connection.execute(sa.select(sa.func.pg_get_serial_sequence("ltm_outbox", "id"))).scalar_one()
    reached = connection.execute(sa.text(f"SELECT last_value FROM {sequence}")).scalar_one()
    connection.execute(sa.select(sa.func.setval(sequence, max(reached, last))))


_COLUMNS = tuple(field.name for field in (*FIELDS, *VALUE_FIELDS))


@dataclass(slots=True)
class Restored:
    """The result of a restore: how many tenants and entries the catalog at ``where`` now has."""

    where: str
    tenants: int = 0
    entries: int = 0


def restore_catalog(workspace: Workspace, configured: str | None) -> Restored:
    """Create a new catalog at the ``configured`` URL, by default in the workspace, from indexes and blobs.

    Safe to repeat after an interruption. Changes that never reached the indexes, and entities with no entries, are not
    restored. Raises UsageError if the catalog exists, CatalogMismatch if it belongs to another workspace; also
    CatalogError, StorageError.
    """
    record = recorded(workspace)
    catalog = Catalog(catalog_url(workspace, configured))
    try:
        _check_is_lost(workspace, catalog, record)
        identity = catalog.prepare(workspace.config.workspace_id)
        write_record(workspace, catalog, identity.catalog_id, restoring=True)
        restored = Restored(catalog.where)
        last = 0  # the highest change id applied to any vector table
        for tenant in workspace.tenants():
            tables = vector_tables(workspace.objects, tenant)
            last = max([last, *map(last_change, tables)])
            if _restore_tenant(workspace, catalog, tenant, restored):
                restored.tenants += 1
        if last:
            catalog.write(partial(continue_outbox, last=last))
        write_record(workspace, catalog, identity.catalog_id)
        return restored
    finally:
        catalog.close()


def check_location(workspace: Workspace, configured: str | None) -> None:
    """Check that the catalog at the ``configured`` URL has the recorded location. Raises CatalogMismatch."""
    record = recorded(workspace)
    catalog = Catalog(catalog_url(workspace, configured))
    try:
        if record is not None and record.where != location_of(workspace, catalog):
            raise CatalogMismatch(
                f"This workspace's catalog was last in {record.where}",
                catalog.where,
                "Set DATABASE_URL to it. If it is lost for good: driftline memory restore --elsewhere",
            )
    finally:
        catalog.close()


def _check_is_lost(workspace: Workspace, catalog: Catalog, record: CatalogRecord | None) -> None:
    found = catalog.identity()
    if found is None:
        return
    catalog.check(workspace.config.workspace_id)
    if record is not None and record.restoring and record.catalog_id == found.catalog_id:
        return  # an earlier restore was interrupted
    if catalog.read(has_no_entries) and older_tenants(workspace, catalog):
        return  # it holds nothing to lose
    raise CatalogMismatch(
        "This workspace's catalog exists, so nothing was restored",
        catalog.where,
        "Use it, or make it the workspace's own: driftline memory adopt. To replace it, delete it first.",
    )


def _restore_tenant(workspace: Workspace, catalog: Catalog, tenant: Entity, restored: Restored) -> bool:
    objects, of_sources = workspace.objects, workspace.config.hierarchy[-1]
    directories = set[str]()
    for info in objects.list(tenant.directory):
        name = parse_name(info.path)
        if name.kind in (ObjectKind.BASE, ObjectKind.DELTA) and Entity.of_directory(name.directory).type != of_sources:
            directories.add(name.directory)
    if not directories:
        return False
    rev = max(MemoryIndex(objects, directory).max_rev() for directory in directories)
    catalog.write(partial(entity_tree.raise_rev, tenant=tenant, rev=rev))
    for directory in sorted(directories):

        def restore(pieces: Iterator[pa.Table], directory: str = directory) -> int:
            return _restore_pieces(catalog, tenant, directory, pieces)

        restored.entries += MemoryIndex(objects, directory).reduce(restore, columns=_COLUMNS)
    return True


def _restore_pieces(catalog: Catalog, tenant: Entity, directory: str, pieces: Iterator[pa.Table]) -> int:
    """Add the entries owned by ``directory``, and return how many; its index also contains entries of lower levels."""
    entries = 0
    for piece in pieces:
        rows = piece.filter(pc.equal(piece["entity"], directory)).to_pylist()
        if rows:
            catalog.write(partial(insert, tenant=tenant, rows=rows, now=datetime.now(UTC)))
        entries += len(rows)
    return entries
