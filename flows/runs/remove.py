"""Remove sources and documents from the index, and limit what one run deletes; the files themselves are kept.

A source that is unmounted or listed incompletely stays indexed: documents, sources, repositories and branches are
deleted only if the listing that lacks them is complete, and no more of them at once than a fraction of those known.
``--max-delete-fraction 1`` confirms larger deletions.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.output.run_reports import RemoveReport
from driftline.flows.runs.branches import delete_branch
from driftline.storage.deltas.manifest import SCHEMA, totals
from driftline.storage.documents import INSIDE
from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntity, DeletionRefused
from driftline.storage.layout import lease_path, new_ulid
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.definition_table import deep_tables
from driftline.storage.workspace.branch_cuts import branch_records
from driftline.storage.workspace.fleet_state import forget_index
from driftline.storage.workspace.records import RunHistory, RunRecord, SourceRecord
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.indexing.commit import ChangeSet, Committer, remove_lines_without_document, settle
from driftline.tasks.scanning.overlap import Claim, claimed
from driftline.tasks.scanning.path_patterns import Matcher, Rules
from driftline.tasks.scanning.scan import ScanResult

GUARDED_DOCUMENTS = 100
"""Up to this many documents may always be deleted."""
GUARDED_REPOSITORIES = 3
"""Up to this many repositories of a fleet, or branches of a repository, may always be deleted."""


def remove_source(
    workspace_uri: str,
    entity_path: str,
    *,
    wait_seconds: float = 0.0,
    storage_options: Mapping[str, Any] | None = None,
) -> RemoveReport:
    """Delete a source, its documents and its lines from the index; its files are kept.

    Raises BadEntity for an unknown source, LeaseHeld while a run is working on it; also WorkspaceNotFound,
    StorageError.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    known = Workspace.open(workspace_uri, storage_options)
    entity = Entity.parse(entity_path, known.config.hierarchy)
    if known.source(entity) is None:
        names = ", ".join(str(name) for name, _ in known.sources()) or "none"
        raise BadEntity("The source does not exist", str(entity), f"Sources: {names}.")
    workspace = Workspace.open_for_writing(workspace_uri, storage_options)
    run_id = new_ulid()
    definitions = acquire(workspace.objects, lease_path(entity, "deep"), run_id, wait_seconds=wait_seconds)
    with definitions, acquire_source(workspace, entity, run_id, wait_seconds=wait_seconds) as lease:
        settle(workspace, entity, lease)
        manifest = workspace.manifest(entity).read(columns=["path", "lines", "reason"])
        documents, lines = totals(manifest)
        batch, dim = 0, workspace.config.dim or 0
        if len(manifest):
            committer = Committer(workspace, entity, lease, run_id, workspace.lines(entity), dim)
            committer.commit(ChangeSet(SCHEMA.empty_table(), removed=tuple(manifest["path"].to_pylist())))
            batch = committer.batch
        for table in workspace.line_tables(entity):  # including tables of other models
            remove_lines_without_document(Committer(workspace, entity, lease, run_id, table, dim, batch))
        for deep in deep_tables(workspace.objects, entity):
            deep.remove(entity)
        for branch in branch_records(workspace, entity):
            delete_branch(workspace, entity, branch.name, run_id, wait_seconds=wait_seconds)
        workspace.unbind_source(entity)
    forget_index(workspace.objects, entity)
    report = RemoveReport(run_id, str(entity), documents, lines)
    record = RunRecord(
        run_id=run_id,
        kind="remove",
        started=started.isoformat(),
        seconds=time.monotonic() - clock,
        outcome="done",
        report=report.to_dict(),
    )
    RunHistory(workspace.objects, entity.tenant).record(record)
    return report


def remove_documents(
    workspace: Workspace,
    entity: Entity,
    paths: Iterable[str],
    *,
    record: SourceRecord | None = None,
    run_id: str | None = None,
    wait_seconds: float = 0.0,
) -> int:
    """Remove a source's documents at ``paths``, set its record if given, and return how many were removed.

    Raises LeaseHeld, LeaseLost, StorageError.
    """
    run_id = run_id or new_ulid()
    with acquire_source(workspace, entity, run_id, wait_seconds=wait_seconds) as lease:
        settle(workspace, entity, lease)
        if record is not None:
            workspace.bind_source(entity, record)
        known = workspace.manifest(entity).get(list(paths), columns=["path"])["path"].to_pylist()
        if known:
            table, dim = workspace.lines(entity), workspace.config.dim or 0
            committer = Committer(workspace, entity, lease, run_id, table, dim)
            committer.commit(ChangeSet(SCHEMA.empty_table(), removed=tuple(known)))
    return len(known)


@dataclass(frozen=True, slots=True)
class DeletionLimit:
    """Allows up to ``always`` deletions, and more only up to ``max_fraction`` (0 to 1) of the known items."""

    max_fraction: float
    always: int

    @classmethod
    def of_documents(cls, request: IndexRequest) -> Self:
        """Return how many of a source's documents a run may delete."""
        return cls(request.max_delete_fraction, GUARDED_DOCUMENTS)

    @classmethod
    def of_repositories(cls, request: IndexRequest) -> Self:
        """Return how many of a fleet's repositories a sync may retire, and how many branches of each it may delete."""
        return cls(request.max_delete_fraction, GUARDED_REPOSITORIES)

    def allows(self, lost: int, known: int) -> bool:
        """Return whether ``lost`` of ``known`` items may be deleted."""
        return lost <= self.always or lost <= self.max_fraction * known

    @property
    def is_off(self) -> bool:
        return self.max_fraction >= 1

    def refusal(self, lost: int, known: int, what: str, where: str, is_other: bool = False) -> DeletionRefused | None:
        """Return the error for deleting ``lost`` of ``known`` items, or None if allowed; ``what`` names the items.

        Not even a few may be deleted if none is left because ``where`` ``is_other`` folder than before.
        """
        if is_other and 0 < lost == known and not self.is_off:
            return DeletionRefused(
                f"All {known:,} {what} are missing: their folder has no files to index, and is not the one that was "
                "indexed; the index keeps them",
                where,
                "Mount the disk. To delete them, run again with --max-delete-fraction 1.",
            )
        if self.allows(lost, known):
            return None
        return DeletionRefused(
            f"{lost:,} of {known:,} {what} are missing, more than the fraction {self.max_fraction:g}; "
            "the index keeps them",
            where,
            "To delete them, run again with --max-delete-fraction 1.",
        )


def missing_documents(scans: Sequence[ScanResult]) -> pa.Table | None:
    """Return the documents missing from the listing (diff.DELETED_SCHEMA), or None if any are, but it is incomplete."""
    missing = pa.concat_tables([scan.diff.deleted for scan in scans])
    return missing if not len(missing) or all(scan.complete for scan in scans) else None


def unexplained_deletions(missing: pa.Table, rules: Rules, claims: Sequence[Claim]) -> pa.Table:
    """Return the ``missing`` documents that count towards the limit.

    Documents that the request excludes or another source claims do not count, nor do files that were skipped.
    """
    documents = missing.filter(pc.is_null(missing["reason"]))
    paths = documents["path"].combine_chunks()
    left_out = Matcher.of(rules).excluded(paths) | claimed(paths, claims)
    if not rules.archives:
        left_out |= pc.match_substring(paths, INSIDE).to_numpy(zero_copy_only=False)
    return documents.filter(pa.array(~left_out))


def count_missing(documents: pa.Table, new_hashes: Counter[str]) -> int:
    """Return how many ``documents`` are gone; those whose content is in a new document were only renamed."""
    return len(documents) - (Counter(documents["hash"].to_pylist()) & new_hashes).total()
