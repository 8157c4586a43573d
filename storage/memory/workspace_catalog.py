"""Decide which catalog is a workspace's own, and rebuild a lost one from indexes and blobs (DESIGN, "Memory").

Without the record, opening a store without its database URL would create a second, empty catalog, and a cleanup that
trusted it would delete every blob. Lookups create nothing. An entity's index contains the entries it owns, with their
values or the paths of their blobs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.errors import (
    AlreadyExists,
    CatalogMismatch,
    CatalogMissing,
    CorruptFile,
    ObjectNotFound,
    UsageError,
)
from driftline.storage.json_records import to_json
from driftline.storage.layout import CATALOG, CATALOG_RECORD, ObjectKind, parse_name
from driftline.storage.memory.catalog import entity_tree, outbox
from driftline.storage.memory.catalog.database import (
    DEFAULT_POOL_SIZE,
    Catalog,
    CatalogIdentity,
    bulk_insert,
    embedded_url,
)
from driftline.storage.memory.catalog.entity_tree import chunks, ensure, lock_tenant
from driftline.storage.memory.catalog.entry_queries import COLUMNS, EntryRow, has_no_entries
from driftline.storage.memory.catalog.entry_writes import add_to_owners
from driftline.storage.memory.catalog.tables import entities, entries
from driftline.storage.memory.memory_indexes import FIELDS, VALUE_FIELDS, MemoryIndex, index_files
from driftline.storage.memory.vectors import last_change, vector_tables
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import FORMAT_VERSION, read_record
from driftline.storage.workspace.workspace import Workspace

_OF_MEMORY = (ObjectKind.BASE, ObjectKind.DELTA, ObjectKind.BLOB)


def holds_memory(workspace: Workspace) -> bool:
    """Return whether a memory store ever flushed to this workspace, or keeps its catalog here.

    A tenant's directory has an index only if memory was stored: documents are indexed at source level.

    Raises StorageError.
    """
    objects = workspace.objects
    return has_embedded_catalog(workspace) or objects.head(CATALOG_RECORD) is not None or has_stored_memory(workspace)


def has_stored_memory(workspace: Workspace) -> bool:
    """Return whether a memory store ever flushed to this workspace. Raises StorageError."""
    return any(_has_stored_memory(workspace, tenant) for tenant in workspace.tenants())


def has_embedded_catalog(workspace: Workspace) -> bool:
    """Return whether the catalog is a file in the workspace, which is the default."""
    return workspace.objects.is_local and workspace.objects.head(CATALOG) is not None


def find_catalog(workspace: Workspace, configured: str | None) -> str | None:
    """Return the URL of the workspace's own catalog: the ``configured`` one, falling back to the workspace's file, or
    None.

    Raises UsageError if the URL is for another kind of database; also CatalogError, CatalogConnectionError.
    """
    urls = [configured, embedded_url(workspace.objects.uri) if has_embedded_catalog(workspace) else None]
    return next((url for url in urls if url is not None and belongs(workspace, url)), None)


def belongs(workspace: Workspace, url: str) -> bool:
    """Return whether the database at ``url`` contains the catalog of this workspace.

    Raises the same errors as ``find_catalog``.
    """
    catalog = Catalog(url)
    try:
        return catalog.belongs_to() == workspace.config.workspace_id
    finally:
        catalog.close()


def _has_stored_memory(workspace: Workspace, tenant: Entity) -> bool:
    files = workspace.objects.list(tenant.directory, recursive=False)
    return any(parse_name(info.path).kind in _OF_MEMORY for info in files) or bool(
        vector_tables(workspace.objects, tenant)
    )


WAYS_BACK = (
    "Set DATABASE_URL (or LTM_CONFIG) to its catalog. If that is lost: driftline memory restore. "
    "To use this one instead: driftline memory adopt."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRecord:
    """``_catalog.json``: identifies the catalog for a workspace's memory.

    ``where`` is ``_catalog.sqlite``, or a URL without secrets. While ``restoring`` is set, the catalog is incomplete.
    """

    format_version: int = FORMAT_VERSION
    catalog_id: str
    where: str
    restoring: bool = False
    workspace_id: str


def recorded(workspace: Workspace) -> CatalogRecord | None:
    """Return the record of the workspace's catalog, or None if there is no memory.

    Raises CorruptFile, WorkspaceTooNew.
    """
    return read_record(workspace.objects, CATALOG_RECORD, CatalogRecord)


def catalog_url(workspace: Workspace, configured: str | None) -> str:
    """Return the ``configured`` URL, or the URL of the catalog file in a local workspace. Raises UsageError for a
    bucket.
    """
    if configured is not None:
        return configured
    if not workspace.objects.is_local:
        raise UsageError(
            "A workspace in a bucket needs a separate catalog",
            workspace.objects.uri,
            "Set DATABASE_URL, or catalog.url: postgresql://… or sqlite:///path.",
        )
    return embedded_url(workspace.objects.uri)


def open_own_catalog(workspace: Workspace, configured: str | None, pool_size: int = DEFAULT_POOL_SIZE) -> Catalog:
    """Open the workspace's own catalog, creating it if the workspace holds no memory yet.

    Raises CatalogMissing if the catalog is lost, or if an empty one is configured in its place; CatalogMismatch if the
    catalog belongs to another workspace or is not the recorded one; also CatalogError, UsageError, CorruptFile,
    StorageError.
    """
    record = recorded(workspace)
    catalog = Catalog(catalog_url(workspace, configured), pool_size)
    try:
        found = catalog.identity()
        if found is None:
            unknown = has_stored_memory(workspace) or (
                has_embedded_catalog(workspace) and not _is_embedded(workspace, catalog)
            )
            if record is not None or (unknown and catalog.identity() is None):
                raise _missing(workspace, catalog, record)
        elif record is None and (older := older_tenants(workspace, catalog)):
            # A catalog that lags behind the indexes is a stray copy or a backup: it must not become the workspace's
            # own.
            raise CatalogMismatch(
                f"The catalog is older than the index of {', '.join(older)}, so it is probably not the workspace's own",
                catalog.where,
                WAYS_BACK,
            )
        if found is None and workspace.objects.is_private:
            catalog.make_private()
        found = catalog.prepare(workspace.config.workspace_id)
        if record is None:
            record = _record(workspace, catalog, found)
        if record.catalog_id != found.catalog_id:
            raise CatalogMismatch(
                f"This workspace's memory is in another catalog ({_location(workspace, record)})",
                catalog.where,
                WAYS_BACK,
            )
        if record.restoring:
            raise CatalogMismatch("The catalog is being restored", catalog.where, "Run: driftline memory restore")
    except BaseException:
        catalog.close()
        raise
    return catalog


def catalog_problem(workspace: Workspace, catalog: Catalog | None) -> str | None:
    """Return why memory cannot be checked against ``catalog`` (None if no catalog was found).

    Returns None if it can be, or if there is no memory. Raises CatalogError, StorageError.
    """
    if record_is_damaged(workspace):
        return f"the record of its catalog is damaged ({workspace.objects.uri}/{CATALOG_RECORD})"
    record = recorded(workspace)
    if catalog is None:
        if record is None:
            return "its catalog is not known" if has_stored_memory(workspace) else None
        what = "is lost" if record.where == CATALOG else "is not set in DATABASE_URL or LTM_CONFIG"
        return f"its catalog {what} ({_location(workspace, record)})"
    found = catalog.identity()
    if found is None or (record is not None and record.catalog_id != found.catalog_id):
        location = _location(workspace, record) if record is not None else "unknown"
        return f"{catalog.where} is not its catalog, which is {location}"
    if record is not None and record.restoring:
        return "its catalog is being restored"
    older = older_tenants(workspace, catalog)
    return f"its catalog is older than the index of {', '.join(older)}" if older else None


def record_is_damaged(workspace: Workspace) -> bool:
    """Return whether the catalog record cannot be read. Raises StorageError, WorkspaceTooNew."""
    try:
        recorded(workspace)
    except CorruptFile:
        return True
    return False


def record_may_be_damaged(workspace: Workspace, catalog: Catalog) -> bool:
    """Return whether the record cannot be read, or differs only in its id from an otherwise matching catalog.

    Such a ``catalog`` is at the recorded location and has every change in the indexes. Raises CatalogError,
    StorageError, WorkspaceTooNew.
    """
    if older_tenants(workspace, catalog):
        return False
    if record_is_damaged(workspace):
        return True
    record, found = recorded(workspace), catalog.identity()
    if record is None or found is None or record.catalog_id == found.catalog_id:
        return False
    return record.where == location_of(workspace, catalog)


def older_tenants(workspace: Workspace, catalog: Catalog) -> list[str]:
    """Return tenants whose index has changes missing from the catalog, for example after a restore from a backup."""
    older: list[str] = []
    for tenant in workspace.tenants():
        rev = catalog.read(partial(entity_tree.rev_of, tenant=tenant)) or 0
        with contextlib.suppress(CorruptFile):  # a damaged index is a separate finding, and is rebuilt from the catalog
            if MemoryIndex(workspace.objects, tenant.directory).max_rev() > rev:
                older.append(str(tenant))
    return older


class Generations:
    """Compare the catalog with each tenant's index once, before this process first writes to the index or misses an
    entry.
    """

    def __init__(self, objects: ObjectStore, catalog: Catalog) -> None:
        self._objects, self._catalog = objects, catalog
        self._checked = set[Entity]()
        self._is_done = False

    def check(self, tenant: Entity) -> None:
        """Raise CatalogMismatch if the index has changes missing from the catalog: they would hide newer ones."""
        if tenant in self._checked:
            return
        recent = 0
        with contextlib.suppress(CorruptFile):  # a damaged index is rebuilt from the catalog
            recent = MemoryIndex(self._objects, tenant.directory).recent_rev()
        # Read the catalog last: another process may commit and flush concurrently, in that order.
        if recent > (self._catalog.read(partial(entity_tree.rev_of, tenant=tenant)) or 0):
            raise CatalogMismatch(
                f"The catalog is older than the index of {tenant}, for example because it was restored from a backup",
                self._catalog.where,
                "Use the newer catalog, or continue with this one: driftline memory adopt.",
            )
        self._checked.add(tenant)

    def check_all(self, tenants: Callable[[], Sequence[Entity]]) -> None:
        """Call ``check`` for all ``tenants`` of the workspace, once. Raises CatalogMismatch."""
        if not self._is_done:
            for tenant in tenants():
                self.check(tenant)
            self._is_done = True


def adopt(workspace: Workspace, catalog: Catalog, *, discard: bool = False) -> CatalogRecord:
    """Make ``catalog`` the workspace's own, even if another is recorded.

    It continues with revisions and change ids above those in indexes and vectors. Entries it does not have are lost.
    Raises CatalogMismatch if it belongs to another workspace, or if it has no entries although the workspace has
    memory, unless ``discard`` is set; also CatalogError and StorageError.
    """
    catalog.check(workspace.config.workspace_id)
    if not discard and catalog.read(has_no_entries) and older_tenants(workspace, catalog):
        raise CatalogMismatch(
            "The catalog has no entries, but this workspace holds memory",
            catalog.where,
            "Set DATABASE_URL to the right one, or run: driftline memory restore. "
            "To discard the memory: driftline memory adopt --discard",
        )
    found = catalog.prepare(workspace.config.workspace_id)
    for tenant in workspace.tenants():
        rev = MemoryIndex(workspace.objects, tenant.directory).max_rev()
        if rev:
            catalog.write(partial(entity_tree.raise_rev, tenant=tenant, rev=rev))
    continue_outbox(workspace, catalog)
    return write_record(workspace, catalog, found.catalog_id)


def continue_outbox(workspace: Workspace, catalog: Catalog) -> None:
    """Make the ids of later changes continue above those applied to the vector tables, which skip lower ids."""
    last = 0
    for tenant in workspace.tenants():
        for table in vector_tables(workspace.objects, tenant):
            with contextlib.suppress(CorruptFile):  # a damaged table is a separate finding, and is built again
                last = max(last, last_change(table))
    if last:
        catalog.write(partial(outbox.continue_above, last=last))


def write_record(workspace: Workspace, catalog: Catalog, catalog_id: str, *, restoring: bool = False) -> CatalogRecord:
    """Record ``catalog`` as the workspace's own. Raises PreconditionFailed, StorageError."""
    objects = workspace.objects
    record = CatalogRecord(
        catalog_id=catalog_id,
        where=location_of(workspace, catalog),
        restoring=restoring,
        workspace_id=workspace.config.workspace_id,
    )
    data = to_json(record)
    try:
        _, version = objects.get_versioned(CATALOG_RECORD)
    except ObjectNotFound:
        objects.create(CATALOG_RECORD, data)
    else:
        objects.replace(CATALOG_RECORD, data, version)
    return record


def _record(workspace: Workspace, catalog: Catalog, found: CatalogIdentity) -> CatalogRecord:
    """Record the catalog of a workspace that has no record yet; if another process was first, return its record."""
    where, workspace_id = location_of(workspace, catalog), workspace.config.workspace_id
    record = CatalogRecord(catalog_id=found.catalog_id, where=where, workspace_id=workspace_id)
    try:
        workspace.objects.create(CATALOG_RECORD, to_json(record))
    except AlreadyExists:
        return recorded(workspace) or record
    return record


def _missing(workspace: Workspace, catalog: Catalog, record: CatalogRecord | None) -> CatalogMissing:
    location = _location(workspace, record) if record is not None else "unknown, because _catalog.json is missing"
    return CatalogMissing(
        f"{catalog.where} is empty, but this workspace holds memory, whose catalog is {location}",
        workspace.objects.uri,
        WAYS_BACK,
    )


def _location(workspace: Workspace, record: CatalogRecord) -> str:
    return f"{workspace.objects.uri}/{CATALOG}" if record.where == CATALOG else record.where


def location_of(workspace: Workspace, catalog: Catalog) -> str:
    """Return a catalog's location in ``CatalogRecord`` format."""
    return CATALOG if _is_embedded(workspace, catalog) else catalog.where


def _is_embedded(workspace: Workspace, catalog: Catalog) -> bool:
    if not (workspace.objects.is_local and catalog.is_sqlite):
        return False
    return os.path.realpath(catalog.url.database or "") == os.path.realpath(f"{workspace.objects.uri}/{CATALOG}")


# -- restoring a lost catalog ----------------------------------------------------------------


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
        for tenant in workspace.tenants():
            if _restore_tenant(workspace, catalog, tenant, restored):
                restored.tenants += 1
        continue_outbox(workspace, catalog)
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
    objects = workspace.objects
    paths = (info.path for info in objects.list(tenant.directory))
    directories = {name.directory for name in index_files(workspace, paths)}
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
