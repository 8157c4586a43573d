"""The steps of a cleanup: tell the store's time, fence off writers, delete (DESIGN, "Cleanup")."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from driftline.storage.entities import Entity
from driftline.storage.errors import CleanupAborted, LeaseHeld, StorageError
from driftline.storage.garbage.orphans import Orphan
from driftline.storage.garbage.survey import Survey
from driftline.storage.layout import CONFIG, lease_path
from driftline.storage.leases.lease import Lease, acquire, look
from driftline.storage.objects.store import TEMPORARY_PREFIX, ObjectInfo, ObjectStore
from driftline.storage.workspace.records import WorkspaceConfig, read_record
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.committer import finish_staged

DELETE_BATCH = 1_000
"""Objects per deletion: what one bulk request of S3 takes."""
DELETE_ATTEMPTS = 5

_audit = logging.getLogger("driftline.audit")


def store_time(objects: ObjectStore, listing: Iterable[ObjectInfo], *, may_write: bool) -> datetime:
    """The time by the store's own clock: that of a small object, written for this and removed again.

    Without leave to write it is this host's time or that of the newest object, whichever is later: good enough to
    report by, not to delete by.
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
        raise StorageError("The store does not show what was written to it", f"{objects.uri}/{path}")
    return info.modified


@dataclass(slots=True)
class Fence:
    """Leases that keep writers out while files are judged and deleted; a context manager that releases them.

    ``tenants`` are those whose tables may be judged, ``sources`` those whose staged deltas may, as directories.
    ``published`` counts the commits of killed runs that were finished on the way.
    """

    workspace: Workspace
    run_id: str
    tell: Callable[[str], None]
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
        """Keep everyone from writing to the tables of ``tenant``, or none at all while one of its sources is busy."""
        with ExitStack() as stack:
            try:
                leases = [stack.enter_context(self._acquire(lease_path(tenant, "maintenance")))]
                for source in sorted(sources):
                    leases.append(stack.enter_context(self._acquire(lease_path(source))))
                    self._settle(source, leases[-1])
            except LeaseHeld as error:
                self.tell(f"The tables of {tenant} are left alone: {error}")
                return
            self._stack.push(stack.pop_all())
            self._leases += leases
            self.tenants.add(tenant.directory)

    def take_source(self, source: Entity) -> None:
        """Keep other runs from ``source``, unless one works on it."""
        if source.directory in self.sources:
            return
        with ExitStack() as stack:
            try:
                lease = stack.enter_context(self._acquire(lease_path(source)))
            except LeaseHeld as error:
                self.tell(f"The staged deltas of {source} are left alone: {error}")
                return
            self._settle(source, lease)
            self._stack.push(stack.pop_all())
            self._leases.append(lease)

    def check(self) -> None:
        """Raises LeaseLost when anyone may have got in."""
        for lease in self._leases:
            lease.check()

    def _acquire(self, path: str) -> Lease:
        return acquire(self.workspace.objects, path, self.run_id)

    def _settle(self, source: Entity, lease: Lease) -> None:
        published, _ = finish_staged(self.workspace, source, lease)
        self.published += published
        self.sources.add(source.directory)


def release_abandoned(workspace: Workspace, run_id: str) -> int:
    """Take over the leases whose holders are provably dead, finish what they had staged, release; returns how many.

    What another run takes meanwhile is left to it. Raises StorageError.
    """
    released = 0

    def left_to_another(_: str) -> None:
        nonlocal released
        released -= 1

    for source, _ in workspace.sources():
        if look(workspace.objects, lease_path(source)).is_abandoned:
            released += 1
            with Fence(workspace, run_id, left_to_another) as fence:
                fence.take_source(source)
    for tenant in workspace.tenants():
        path = lease_path(tenant, "maintenance")
        if look(workspace.objects, path).is_abandoned:
            with suppress(LeaseHeld), acquire(workspace.objects, path, run_id):
                released += 1
    return released


def free(found: Survey, tenants: Iterable[Entity], tell: Callable[[str], None]) -> tuple[set[str], set[str]]:
    """The tenants and the sources, as directories, that a fence could be put around; takes no lease."""
    idle, open_sources = set(), set()
    for tenant in tenants:
        sources = found.sources_of(tenant.directory)
        busy = [
            f"{path}: {found.leases[path].holder}"
            for path in [lease_path(tenant, "maintenance"), *map(lease_path, sorted(sources))]
            if path in found.leases and not found.leases[path].is_free
        ]
        if busy:
            tell(f"The tables of {tenant} would be left alone: {busy[0]}")
        else:
            idle.add(tenant.directory)
        open_sources |= {
            source.directory
            for source in sources
            if lease_path(source) not in found.leases or found.leases[lease_path(source)].is_free
        }
    return idle, open_sources


@dataclass(slots=True)
class Deletion:
    """Deletes orphans in their order, in bounded batches; ``deleted`` grows as it goes and is right after a failure."""

    workspace: Workspace
    run_id: str
    check: Callable[[], None]
    deleted: list[Orphan] = field(default_factory=list)

    def run(self, orphans: Sequence[Orphan]) -> None:
        """Delete ``orphans``, each with a line in the log ``driftline.audit``.

        Before each batch ``check`` is called and the identity of the workspace looked up once more. Raises
        CleanupAborted when another workspace has taken its place, LeaseLost, StorageError.
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
        found = read_record(objects, CONFIG, WorkspaceConfig)
        if found is None or found.workspace_id != known:
            raise CleanupAborted("Another workspace has taken the place of this one", objects.uri, "Run it again.")

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
