"""The steps of a cleanup: fence off writers, expire memory entries, and delete orphans (DESIGN, "Cleanup").

``Fence`` takes the leases of tenants and sources whose files are classified. ``Deletion`` deletes in audited batches,
and checks the leases and the workspace before each batch. Object ages are measured by the store's clock, not this
machine's.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from driftline.storage.entities import Entity
from driftline.storage.errors import CatalogError, CleanupAborted, LeaseHeld, StorageError
from driftline.storage.garbage import Orphan, ReferenceScan
from driftline.storage.layout import CATALOG, CONFIG, ObjectInfo, lease_path
from driftline.storage.leases.lease import Lease, acquire
from driftline.storage.memory.catalog.database import Catalog, embedded_url
from driftline.storage.memory.catalog.entry_writes import forget_blobs
from driftline.storage.memory.flush import Flusher
from driftline.storage.memory.memory_indexes import collect_expired
from driftline.storage.memory.workspace_catalog import catalog_problem
from driftline.storage.objects.local_disk import TEMPORARY_PREFIX
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import WorkspaceConfig, read_record
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.indexing.commit import publish_committed

DELETE_BATCH = 1_000
"""Objects per deletion: the limit of an S3 bulk request."""
DELETE_ATTEMPTS = 5

_audit = logging.getLogger("driftline.audit")
"""Records each deletion; its name is part of the interface (docs/operate/monitor.md)."""


@dataclass(slots=True)
class Fence:
    """Leases that keep writers out while files are classified and deleted; a context manager that releases them.

    ``tenants`` and ``sources`` are the directories whose tables or staged deltas may be classified. ``published``
    counts the staged deltas of killed runs that were published when the leases were taken. ``skip`` receives a message
    for each busy tenant or source.
    """

    workspace: Workspace
    run_id: str
    skip: Callable[[str], None]
    tenants: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)
    published: int = 0
    _leases: list[Lease] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Fence:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take_tenant(self, tenant: Entity, sources: Iterable[Entity]) -> None:
        """Fence off all writers to the tables of ``tenant``, unless one of its sources is busy."""
        with ExitStack() as stack:
            try:
                leases = [
                    stack.enter_context(acquire(self.workspace.objects, lease_path(tenant, "maintenance"), self.run_id))
                ]
                for source in sorted(sources):
                    leases.append(stack.enter_context(acquire_source(self.workspace, source, self.run_id)))
                    self._settle(source, leases[-1])
            except LeaseHeld as error:
                self.skip(f"Skipped the tables of {tenant}: {error}")
                return
            self._stack.push(stack.pop_all())
            self._leases += leases
            self.tenants.add(tenant.directory)

    def take_source(self, source: Entity) -> None:
        """Fence off earlier runs of ``source`` unless a run holds its lease."""
        if source.directory in self.sources:
            return
        with ExitStack() as stack:
            try:
                lease = stack.enter_context(acquire_source(self.workspace, source, self.run_id))
            except LeaseHeld as error:
                self.skip(f"Skipped the staged deltas of {source}: {error}")
                return
            self._settle(source, lease)
            self._stack.push(stack.pop_all())
            self._leases.append(lease)

    def check(self) -> None:
        """Check that all leases are still held. Raises LeaseLost."""
        for _ in self.workspace.map_parallel(Lease.check, self._leases):
            pass

    def _settle(self, source: Entity, lease: Lease) -> None:
        published, _ = publish_committed(self.workspace, source, lease)
        self.published += published
        self.sources.add(source.directory)


def unleased(scan: ReferenceScan, tenants: Iterable[Entity], skip: Callable[[str], None]) -> tuple[set[str], set[str]]:
    """Return the directories of the tenants and of the sources whose leases are all free: those a Fence could take.

    Takes no leases.
    """
    idle, open_sources = set(), set()
    for tenant in tenants:
        sources = scan.sources_of(tenant.directory)
        busy = [
            f"{path}: {scan.leases[path].holder}"
            for path in [lease_path(tenant, "maintenance"), *map(lease_path, sorted(sources))]
            if path in scan.leases and not scan.leases[path].is_free
        ]
        if busy:
            skip(f"Would skip the tables of {tenant}: {busy[0]}")
        else:
            idle.add(tenant.directory)
        open_sources |= {
            source.directory
            for source in sources
            if lease_path(source) not in scan.leases or scan.leases[lease_path(source)].is_free
        }
    return idle, open_sources


def store_time(objects: ObjectStore, listing: Iterable[ObjectInfo], *, may_write: bool) -> datetime:
    """Return the time by the store's own clock, from a small object that is written and deleted again.

    Without ``may_write``, return the later of this host's time and the newest object's time. That is accurate enough
    for a report, but not for a deletion. Raises StorageError.
    """
    if not may_write:
        return max([datetime.now(UTC), *(info.modified for info in listing)])
    path = f"{TEMPORARY_PREFIX}clock-{uuid.uuid4().hex}"
    objects.create(path, b"")
    try:
        info = objects.head(path)
    finally:
        objects.delete([path])
    if info is None:
        raise StorageError(
            "A new object is missing from the store's listing", f"{objects.uri}/{path}", "Try again later."
        )
    return info.modified


@dataclass(slots=True)
class Deletion:
    """Deletes orphans in order, in bounded batches; ``deleted`` is exact even after a failure."""

    workspace: Workspace
    run_id: str
    check: Callable[[], None]
    deleted: list[Orphan] = field(default_factory=list)

    def run(self, orphans: Sequence[Orphan]) -> None:
        """Delete ``orphans``, logging each to ``driftline.audit``.

        Calls ``check`` and compares the workspace id before each batch. Raises CleanupAborted, LeaseLost, StorageError.
        """
        for start in range(0, len(orphans), DELETE_BATCH):
            batch = orphans[start : start + DELETE_BATCH]
            self._check_identity()
            self.check()
            for orphan in batch:
                _audit.info("%s", json.dumps(self._line(orphan)))
            self._delete(batch)

    def _delete(self, batch: Sequence[Orphan]) -> None:
        objects, left = self.workspace.objects, list(batch)
        for _ in range(DELETE_ATTEMPTS):
            try:
                objects.delete([orphan.path for orphan in left])
            except StorageError as error:
                remaining = [orphan for orphan in left if objects.head(orphan.path) is not None]
                gone = set(left) - set(remaining)
                self.deleted += [orphan for orphan in left if orphan in gone]
                if not gone:
                    raise
                left, failure = remaining, error
            else:
                self.deleted += left
                return
        raise failure

    def _check_identity(self) -> None:
        objects, known = self.workspace.objects, self.workspace.config.workspace_id
        config = read_record(objects, CONFIG, WorkspaceConfig)
        if config is None or config.workspace_id != known:
            raise CleanupAborted("Another workspace replaced this one", objects.uri, "Run the cleanup again.")

    def _line(self, orphan: Orphan) -> dict[str, object]:
        return {
            "time": datetime.now(UTC).isoformat(),
            "run_id": self.run_id,
            "workspace": self.workspace.objects.uri,
            "action": "delete",
            "path": orphan.path,
            "size_bytes": orphan.size_bytes,
            "reason": orphan.reason,
            "age_seconds": round(orphan.age_seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class OpenedCatalog:
    """The catalog, if there is one, and the ``error`` if it cannot be read or reached."""

    catalog: Catalog | None = None
    error: CatalogError | None = None

    def problem(self, workspace: Workspace) -> str | None:
        """Return why memory in ``workspace`` must not be checked, or None. Raises CatalogError, StorageError."""
        if self.error is not None:
            return f"its catalog cannot be read: {self.error}"
        return catalog_problem(workspace, self.catalog)


@contextmanager
def open_catalog(workspace: Workspace, url: str | None) -> Iterator[OpenedCatalog]:
    """Open the catalog at ``url``, by default the workspace's own. It is never created. Raises CatalogMismatch."""
    objects = workspace.objects
    if url is None and objects.is_local and objects.head(CATALOG) is not None:
        url = embedded_url(objects.uri)
    if url is None:
        yield OpenedCatalog()
        return
    catalog = Catalog(url)
    try:
        yield _look(catalog)
    finally:
        catalog.close()


def _look(catalog: Catalog) -> OpenedCatalog:
    try:
        return OpenedCatalog(catalog if catalog.belongs_to() is not None else None)
    except CatalogError as error:
        return OpenedCatalog(error=error)


def drop_expired(workspace: Workspace, catalog: Catalog) -> int:
    """Delete expired entries and update the indexes; return how many were deleted.

    Raises CatalogError, StorageError.
    """
    removed = collect_expired(catalog, datetime.now(UTC))
    if removed:
        Flusher(catalog, workspace.objects, None, lambda: datetime.now(UTC)).flush()
    return removed


def forget_deleted(
    workspace: Workspace,
    catalog: Catalog,
    retired: Collection[str],
    listed: Iterable[ObjectInfo],
    deleted: Sequence[Orphan],
) -> None:
    """Remove deleted blobs from the catalog's list of ``retired`` blobs, including blobs deleted by a killed cleanup.

    A retired blob that was not ``listed`` was deleted before, or was written since; a request finds out which.
    """
    gone = {orphan.path for orphan in deleted if orphan.path in retired}
    unlisted = sorted({*retired}.difference(gone, (info.path for info in listed)))
    found = workspace.map_parallel(workspace.objects.head, unlisted)
    gone |= {path for path, info in zip(unlisted, found, strict=True) if info is None}
    catalog.write(lambda connection: forget_blobs(connection, gone))
