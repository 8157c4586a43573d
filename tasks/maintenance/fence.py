"""Fence off writers while a cleanup judges and deletes files (DESIGN, "Cleanup", step 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from driftline.storage.entities import Entity
from driftline.storage.errors import LeaseHeld
from driftline.storage.garbage.survey import Survey
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import Lease, acquire, look
from driftline.storage.workspace.source_lease import acquire_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.committer import finish_staged


@dataclass(slots=True)
class Fence:
    """Leases that keep writers out while files are judged and deleted; a context manager that releases them.

    ``tenants`` and ``sources`` are the directories of those whose tables or staged deltas may be judged. ``published``
    counts the staged deltas of killed runs that taking the leases has published. ``skip`` gets a message for each busy
    tenant or source.
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
        """Fence off all writers to the tables of ``tenant``, or none if one of its sources is busy."""
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
        """Fence off other runs of ``source``, unless one holds its lease."""
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
        for lease in self._leases:
            lease.check()

    def _settle(self, source: Entity, lease: Lease) -> None:
        published, _ = finish_staged(self.workspace, source, lease)
        self.published += published
        self.sources.add(source.directory)


def release_abandoned(workspace: Workspace, run_id: str) -> int:
    """Release the leases whose holders are provably dead, after settling their staged deltas; returns their number.

    Leases that another run takes meanwhile are skipped. Raises StorageError.
    """
    released = 0

    def taken_meanwhile(_: str) -> None:
        nonlocal released
        released -= 1

    for source, _ in workspace.sources():
        if look(workspace.objects, lease_path(source)).is_abandoned:
            released += 1
            with Fence(workspace, run_id, taken_meanwhile) as fence:
                fence.take_source(source)
    for tenant in workspace.tenants():
        path = lease_path(tenant, "maintenance")
        if look(workspace.objects, path).is_abandoned:
            with suppress(LeaseHeld), acquire(workspace.objects, path, run_id):
                released += 1
    return released


def unleased(survey: Survey, tenants: Iterable[Entity], skip: Callable[[str], None]) -> tuple[set[str], set[str]]:
    """The directories of the tenants and of the sources without busy leases, which a Fence could take; takes none."""
    idle, open_sources = set(), set()
    for tenant in tenants:
        sources = survey.sources_of(tenant.directory)
        busy = [
            f"{path}: {survey.leases[path].holder}"
            for path in [lease_path(tenant, "maintenance"), *map(lease_path, sorted(sources))]
            if path in survey.leases and not survey.leases[path].is_free
        ]
        if busy:
            skip(f"Would skip the tables of {tenant}: {busy[0]}")
        else:
            idle.add(tenant.directory)
        open_sources |= {
            source.directory
            for source in sources
            if lease_path(source) not in survey.leases or survey.leases[lease_path(source)].is_free
        }
    return idle, open_sources
