"""A cleanup below one entity: only blobs of memory are looked at, and nothing outside is counted, named or deleted."""

from __future__ import annotations

import time
from datetime import timedelta

from driftline.flows.runs.cleanup_run import CleanupReport
from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.garbage.orphans import References, find_orphans
from driftline.storage.ids import new_ulid
from driftline.storage.layout import Kind, parse_name
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.queries import blob_references
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.clean_memory import forget_deleted
from driftline.tasks.maintenance.delete_orphans import Deletion, store_time


def clean_within(
    workspace: Workspace, catalog: Catalog, top: Entity, max_age_seconds: float, *, dry_run: bool
) -> CleanupReport:
    """Delete the memory blobs at and below ``top`` that no entry refers to; a dry run only reports them.

    Raises UsageError, CatalogError, StorageError; what was deleted until then is in the log ``driftline.audit``.
    """
    if max_age_seconds < 0:
        raise UsageError("An age cannot be negative", f"{max_age_seconds:g} s", "Pass 0 or more.")
    started, objects = time.monotonic(), workspace.objects
    report = CleanupReport(new_ulid(), objects.uri, dry_run)
    named = [(info, parse_name(info.path)) for info in objects.list(top.directory)]
    named = [(info, name) for info, name in named if name.kind is Kind.BLOB]
    now = store_time(objects, [info for info, _ in named], may_write=not dry_run)
    blobs, retired = catalog.read(blob_references)  # after the listing: a blob that was seen has its entry by now
    references = References(blobs=blobs, retired=retired)
    verdict = find_orphans(named, references, now=now, max_age=timedelta(seconds=max_age_seconds))
    report.scanned, report.orphans = len(named), verdict.orphans
    if not dry_run:
        deletion = Deletion(workspace, report.run_id, lambda: None, report.deleted)
        deletion.run(verdict.orphans)
        forget_deleted(workspace, catalog, deletion.deleted)
    report.seconds = time.monotonic() - started
    return report
