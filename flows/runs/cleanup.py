"""Run a cleanup: scan, classify, fence, classify again, delete (DESIGN, "Cleanup").

A cleanup deletes an object only if it is an orphan both before and after its writers are fenced off. ``clean_within``
cleans up within one entity: it looks only at memory blobs, and neither counts, reports nor deletes anything outside.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from driftline.flows.config.memory_settings import WHERE_CATALOGS_ARE_NAMED, catalog_to_keep
from driftline.flows.output.progress import NullProgress, Progress
from driftline.storage.defaults import DEFAULT_MAX_AGE_SECONDS
from driftline.storage.entities import Entity
from driftline.storage.errors import (
    CatalogError,
    CleanupAborted,
    CorruptFile,
    DriftlineError,
    StorageError,
    is_disk_full,
)
from driftline.storage.garbage import (
    RUN_RETENTION,
    GarbageReport,
    Orphan,
    Reason,
    References,
    ReferenceScan,
    find_orphans,
    read_clean_tenants,
    scan_references,
    tenants_with_other_models,
    write_clean_tenants,
)
from driftline.storage.lance.lance_table import remove_old_versions
from driftline.storage.layout import ObjectKind, new_ulid, parse_name
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.entry_queries import blob_references
from driftline.storage.option_table import duration
from driftline.storage.workspace.records import RunHistory, RunRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.cleanup import (
    Deletion,
    Fence,
    OpenedCatalog,
    drop_expired,
    forget_deleted,
    open_catalog,
    store_time,
    unleased,
)

_OF_TABLES = {Reason.UNCOMMITTED, Reason.SUPERSEDED, Reason.NO_BRANCH}


@dataclass(frozen=True, slots=True)
class CleanupRequest:
    """The inputs of a cleanup. Objects younger than ``max_age_seconds`` are kept. Raises UsageError."""

    workspace: str
    max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS
    dry_run: bool = True
    run_retention_days: float = RUN_RETENTION.days
    full: bool = False
    """List everything, not only tenants whose leases indicate garbage; done automatically once a week."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    catalog_url: str | None = field(default=None, repr=False)
    """The memory catalog; default: the configured catalog, then the workspace's own.

    If there is none, blobs are kept.
    """

    def __post_init__(self) -> None:
        duration("max_age_seconds", self.max_age_seconds)
        duration("run_retention_days", self.run_retention_days * 86_400)


@dataclass(slots=True)
class CleanupReport:
    """The report of a cleanup.

    ``full`` is set if everything was listed. ``published`` counts the commits that it completed for killed runs,
    ``versions_removed`` the table versions that only deleted branches needed.
    """

    run_id: str
    workspace: str
    dry_run: bool
    full: bool = True
    scanned: int = 0
    orphans: tuple[Orphan, ...] = ()
    deleted: list[Orphan] = field(default_factory=list)
    foreign: tuple[str, ...] = ()
    skipped: list[str] = field(default_factory=list)
    published: int = 0
    versions_removed: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the ``cleanup --json`` object."""
        return {
            "run_id": self.run_id,
            "workspace": self.workspace,
            "dry_run": self.dry_run,
            "full": self.full,
            "scanned_count": self.scanned,
            "orphan_count": len(self.orphans),
            "deleted_count": len(self.deleted),
            "deleted_paths": [orphan.path for orphan in self.deleted],
            "orphans": [_as_dict(orphan) for orphan in self.orphans],
            "foreign": list(self.foreign),
            "skipped": self.skipped,
            "published": self.published,
            "versions_removed": self.versions_removed,
            "seconds": round(self.seconds, 3),
        }


def clean_workspace(request: CleanupRequest, progress: Progress | None = None) -> CleanupReport:
    """Delete a workspace's orphans; a dry run only reports them.

    Raises CleanupAborted, before deleting anything, if anything cannot be listed or read. Raises StorageError or
    LeaseLost during the deletion; the log and the run history then list the deleted objects. Raises WorkspaceNotFound.
    """
    return _Cleanup(request, progress or NullProgress()).execute()


class _Cleanup:
    def __init__(self, request: CleanupRequest, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._started, self._clock = datetime.now(UTC), time.monotonic()
        try:
            self._workspace = Workspace.open(request.workspace, request.storage_options)
        except CorruptFile as error:
            raise _aborted(error) from error
        self._report = CleanupReport(new_ulid(), self._workspace.objects.uri, request.dry_run)

    def execute(self) -> CleanupReport:
        deletion = Deletion(self._workspace, self._report.run_id, lambda: None)
        with ExitStack() as stack:
            url = self._request.catalog_url or catalog_to_keep(self._workspace)
            opened = stack.enter_context(open_catalog(self._workspace, url))
            self._catalog = opened.catalog
            return self._execute(deletion, opened)

    def _execute(self, deletion: Deletion, opened: OpenedCatalog) -> CleanupReport:
        if self._catalog is not None and not self._request.dry_run:
            self._catalog.check(self._workspace.config.workspace_id)
        problem = opened.problem(self._workspace)
        if problem is not None:
            self._skip(f"All memory files are kept, because {problem}. Run: driftline verify")
            self._catalog = None
        elif self._catalog is not None and not self._request.dry_run:
            try:
                drop_expired(self._workspace, self._catalog)
            except (CatalogError, StorageError) as error:  # such as a full disk; the deletions below free space
                self._skip(f"Expired entries are kept: {error}")
        with Fence(self._workspace, self._report.run_id, self._skip) as fence:
            deletion.check = fence.check
            try:
                orphans = self._orphans_to_delete(fence, deletion)
            except DriftlineError as error:
                self._report.deleted = deletion.deleted
                raise _aborted(error, len(deletion.deleted)) from error
            finally:
                self._report.published = fence.published
            self._report.orphans = orphans
            if not self._request.dry_run:
                self._delete(deletion, fence)
                self._write_traces(deletion)
        self._report.seconds = time.monotonic() - self._clock
        return self._report

    def _orphans_to_delete(self, fence: Fence, deletion: Deletion) -> tuple[Orphan, ...]:
        """Classify the workspace's files, take leases, and classify again; return the orphans to delete.

        A dry run takes no leases. If the disk is too full for a lease, orphans that need none are deleted first.
        """
        objects = self._workspace.objects
        self._clean_tenants = read_clean_tenants(self._workspace, now=datetime.now(UTC), full=self._request.full)
        self._report.full = self._clean_tenants.listed is None
        self._progress.phase(f"surveying {objects.uri}")
        scan = self._scan()
        if self._catalog is None and any(name.kind is ObjectKind.BLOB for _, name in scan.listing):
            self._skip(f"Cannot check memory blobs without their catalog: set {WHERE_CATALOGS_ARE_NAMED}.")
        listed = [info for info, _ in scan.listing]
        self._now = now = store_time(objects, listed, may_write=not self._request.dry_run)
        first = self._classified(scan, now)
        self._report.scanned, self._report.foreign = len(listed), first.foreign
        if first.orphans and not self._request.dry_run and not objects.is_local:
            objects.probe_conditional_writes()
        old_enough = [info.path for info in listed if now - info.modified >= self._max_age]
        committed = [path for path in old_enough if path in scan.committed]
        tenants = _entities(o.path.partition("/")[0] for o in first.orphans if o.reason in _OF_TABLES)
        dead = [orphan.path for orphan in first.orphans if orphan.reason is Reason.DEAD_RUN]
        sources = _entities(path.rpartition("/")[0] for path in [*dead, *committed])
        if not tenants and not sources:
            return first.orphans
        if self._request.dry_run:
            idle = unleased(scan, tenants | {source.tenant for source in sources}, self._skip)
            return fenced_orphans(first.orphans, *idle)
        try:
            _take(fence, scan, tenants, sources)
        except StorageError as error:
            free = fenced_orphans(first.orphans, (), ())
            if not is_disk_full(error) or not free:
                raise
            self._skip(f"Deleted {len(free)} objects before taking leases, because no lease could be written: {error}")
            deletion.run(free)
            _take(fence, scan, tenants, sources)
        scan = self._scan()
        second = self._classified(scan, now)
        rest = fenced_orphans(in_both(first.orphans, second.orphans), fence.tenants, fence.sources)
        return (*deletion.deleted, *rest)

    def _scan(self) -> ReferenceScan:
        """Scan all tenants, or only tenants that may hold garbage; note objects that are garbage at any age."""
        tenants = None if self._report.full else self._clean_tenants.candidates
        self._scanned = scan = scan_references(self._workspace, self._catalog, tenants)
        ever = find_orphans(
            scan.listing,
            scan.references,
            now=datetime.max.replace(tzinfo=UTC),
            max_age=timedelta(0),
            run_retention=timedelta.max,
        )
        retired = scan.references.retired  # named by the catalog, so the next cleanup finds them without traces
        self._left = [orphan for orphan in ever.orphans if orphan.path not in retired]
        self._unfinished = tenants_with_other_models(self._workspace, scan.references.tracked)
        return scan

    def _write_traces(self, deletion: Deletion) -> None:
        gone = {orphan.path for orphan in deletion.deleted}
        left = {orphan.path.partition("/")[0] for orphan in self._left if orphan.path not in gone}
        try:
            write_clean_tenants(self._workspace, self._clean_tenants, now=self._now, garbage=left | self._unfinished)
        except StorageError as error:
            self._skip(f"The next cleanup will list the same objects again: {error}")

    def _classified(self, scan: ReferenceScan, now: datetime) -> GarbageReport:
        return find_orphans(
            scan.listing,
            scan.references,
            now=now,
            max_age=self._max_age,
            run_retention=timedelta(days=self._request.run_retention_days),
        )

    def _delete(self, deletion: Deletion, fence: Fence) -> None:
        """Delete the orphans; deleted branches' leases last, because a remaining lease shows that garbage is left."""
        orphans = self._report.orphans
        self._progress.phase("deleting orphans", total=len(orphans))
        tenants = [Entity.of_directory(tenant) for tenant in self._clean_tenants.leases]
        outcome = "failed"
        try:
            done = set(deletion.deleted)
            rest = [orphan for orphan in orphans if orphan not in done]
            leases = {orphan for orphan in rest if parse_name(orphan.path).kind is ObjectKind.BRANCH_LEASE}
            deletion.run([orphan for orphan in rest if orphan not in leases])
            kept = self._remove_versions_of_branches(fence)
            deletion.run([orphan for orphan in rest if orphan in leases and orphan.path.partition("/")[0] not in kept])
            if self._catalog is not None:
                retired, listed = self._scanned.references.retired, (info for info, _ in self._scanned.listing)
                forget_deleted(self._workspace, self._catalog, retired, listed, deletion.deleted)
            outcome = "done"
        except DriftlineError as error:
            outcome = error.kind
            raise
        finally:
            self._report.deleted = deletion.deleted
            self._report.seconds = time.monotonic() - self._clock
            self._record(outcome, tenants)

    def _remove_versions_of_branches(self, fence: Fence) -> set[str]:
        """Remove main's old versions that only deleted branches needed, and their files.

        Returns the tenant directories where this failed; the next cleanup or compaction retries.
        """
        gone = {each.path.partition("/")[0] for each in self._report.orphans if each.reason is Reason.NO_BRANCH}
        kept = set()
        for tenant in sorted(_entities(gone & fence.tenants)):
            self._progress.phase(f"removing old versions of {tenant}")
            for table in self._workspace.line_tables(tenant):
                try:
                    fence.check()
                    self._report.versions_removed += remove_old_versions(table, self._max_age) if table.exists() else 0
                except StorageError as error:
                    kept.add(tenant.directory)
                    self._skip(f"Old versions of {tenant} are kept until its next compaction: {error}")
        return kept

    def _record(self, outcome: str, tenants: Sequence[Entity]) -> None:
        """Record the run in each tenant, with only that tenant's deletions."""
        for tenant in tenants:
            own = f"{tenant.directory}/"
            deleted = [_as_dict(orphan) for orphan in self._report.deleted if orphan.path.startswith(own)]
            record = RunRecord(
                run_id=self._report.run_id,
                kind="cleanup",
                started=self._started.isoformat(),
                seconds=self._report.seconds,
                outcome=outcome,
                report={
                    "run_id": self._report.run_id,
                    "max_age_seconds": self._request.max_age_seconds,
                    "deleted_count": len(deleted),
                    "deleted": deleted,
                },
            )
            RunHistory(self._workspace.objects, tenant).record(record)

    def _skip(self, message: str) -> None:
        self._report.skipped.append(message)
        self._progress.message(message)

    @property
    def _max_age(self) -> timedelta:
        return timedelta(seconds=self._request.max_age_seconds)


def _take(fence: Fence, scan: ReferenceScan, tenants: Iterable[Entity], sources: Iterable[Entity]) -> None:
    for tenant in sorted(tenants):
        fence.take_tenant(tenant, scan.sources_of(tenant.directory))
    for source in sorted(sources):
        fence.take_source(source)


def in_both(first: Sequence[Orphan], second: Sequence[Orphan]) -> tuple[Orphan, ...]:
    """Return the orphans of ``second`` that are also in ``first``.

    A superseded table's files are returned only together.
    """
    first_paths = {orphan.path for orphan in first}
    growing = {
        parse_name(orphan.path).directory
        for orphan in second
        if orphan.reason is Reason.SUPERSEDED and orphan.path not in first_paths
    }
    return tuple(o for o in second if o.path in first_paths and parse_name(o.path).directory not in growing)


def fenced_orphans(orphans: Iterable[Orphan], tenants: Container[str], sources: Container[str]) -> tuple[Orphan, ...]:
    """Return the ``orphans`` that are safe to delete behind a fence around these tenant and source directories.

    Drops other tenants' table files and other sources' staged deltas.
    """

    def is_safe(orphan: Orphan) -> bool:
        if orphan.reason in _OF_TABLES:
            return orphan.path.partition("/")[0] in tenants
        return orphan.reason is not Reason.DEAD_RUN or orphan.path.rpartition("/")[0] in sources

    return tuple(filter(is_safe, orphans))


def _aborted(error: DriftlineError, deleted: int = 0) -> CleanupAborted:
    done = f"Only {deleted} objects were deleted" if deleted else "Nothing was deleted"
    return CleanupAborted(f"{done}: {error.what}", error.where, error.fix)


def _entities(directories: Iterable[str]) -> set[Entity]:
    return {Entity.of_directory(directory) for directory in set(directories)}


def _as_dict(orphan: Orphan) -> dict[str, Any]:
    return {
        "path": orphan.path,
        "size_bytes": orphan.size_bytes,
        "age_seconds": round(orphan.age_seconds, 3),
        "reason": str(orphan.reason),
    }


def clean_within(
    workspace: Workspace, catalog: Catalog, top: Entity, max_age_seconds: float, *, dry_run: bool
) -> CleanupReport:
    """Delete unreferenced memory blobs at and below ``top``; a dry run only reports them.

    Raises UsageError, CatalogError, StorageError; the log ``driftline.audit`` then lists earlier deletions.
    """
    max_age = duration("max_age_seconds", max_age_seconds)
    started, objects = time.monotonic(), workspace.objects
    report = CleanupReport(new_ulid(), objects.uri, dry_run)
    named = [(info, parse_name(info.path)) for info in objects.list(top.directory)]
    named = [(info, name) for info, name in named if name.kind is ObjectKind.BLOB]
    now = store_time(objects, [info for info, _ in named], may_write=not dry_run)
    blobs, retired = catalog.read(blob_references)  # read after the listing: by now, each listed blob has its entry
    references = References(blobs=blobs, retired=retired)
    verdict = find_orphans(named, references, now=now, max_age=max_age)
    report.scanned, report.orphans = len(named), verdict.orphans
    if not dry_run:
        deletion = Deletion(workspace, report.run_id, lambda: None, report.deleted)
        deletion.run(verdict.orphans)
        below = {path for path in retired if path.startswith(f"{top.directory}/")}
        forget_deleted(workspace, catalog, below, (info for info, _ in named), deletion.deleted)
    report.seconds = time.monotonic() - started
    return report
