"""Keep writers out while files are judged and deleted (DESIGN, "Cleanup", step 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from driftline.storage.entities import Entity
from driftline.storage.errors import LeaseHeld
from driftline.storage.garbage.survey import Survey
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import Lease, acquire, look
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.committer import finish_staged


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


def unleased(found: Survey, tenants: Iterable[Entity], tell: Callable[[str], None]) -> tuple[set[str], set[str]]:
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
