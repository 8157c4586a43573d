"""Before a run of a branch: find the cut that holds it, cut it from the main index, or cut it anew (decision 0015)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from driftline.flows.output.progress import Progress
from driftline.flows.runs.plan import IndexPlan, SourcePlan
from driftline.storage.errors import LeaseHeld, StaleBuild, UsageError
from driftline.storage.ids import new_ulid
from driftline.storage.layout import branch_lease_path, lease_path
from driftline.storage.leases.lease import Lease, acquire, fenced
from driftline.storage.workspace.branches import branch_at, cut, delete_cut, read_branch, write_record
from driftline.storage.workspace.records import BranchRecord
from driftline.storage.workspace.workspace import Branch, Workspace
from driftline.tasks.embedding.context import TaskContext
from driftline.tasks.git.commits import changes_between, head, is_ancestor
from driftline.tasks.git.work_tree import find_work_tree
from driftline.tasks.scanning.ignore import IGNORE_FILES
from driftline.tasks.scanning.partition import PartitionSpec, scan_partition
from driftline.tasks.scanning.scan import ScanSpec

MAINTENANCE_WAIT_SECONDS = 120.0
"""How long a cut waits for a compaction or an index build of the main index."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """Whether to cut a branch (anew), and why."""

    cuts: bool
    why: str


def enter_branch(plan: IndexPlan, name: str, progress: Progress) -> IndexPlan:
    """``plan`` on the branch ``name`` of each of its sources, which is cut where it must be.

    A dry run cuts nothing: it compares with the main index where there is no branch yet. Raises UsageError, StaleBuild,
    LeaseHeld, StorageError.
    """
    parts: list[SourcePlan] = []
    branches: list[Branch] = []
    for part in plan.sources:
        record, entered = _enter(plan, part, name)
        parts.append(entered)
        if record is not None:
            branches.append(branch_at(part.entity, record))
        progress.message(f"{part.entity}, branch {name}: {entered.branch_cut}")
    return replace(plan, sources=tuple(parts), workspace=plan.workspace.on(branches))


def leave_branch(plan: IndexPlan) -> None:
    """Delete the cuts that this run has superseded, whose lines it has copied. Raises StorageError."""
    for part in plan.sources:
        if part.superseded is not None:
            directory = branch_at(part.entity, part.superseded).index_directory
            delete_cut(plan.workspace, part.entity, part.superseded.cut, directory)


def _enter(plan: IndexPlan, part: SourcePlan, name: str) -> tuple[BranchRecord | None, SourcePlan]:
    workspace, entity, request = plan.workspace, part.entity, plan.request
    known = read_branch(workspace, entity, name)
    if known is not None:
        _refuse_older(part, known, request.build, by_commit=request.by_commit)
    decision = _decide(plan, part, known)
    if request.dry_run:
        if known is None and workspace.source(entity) is None:
            raise UsageError("The source has no main index that a branch could be cut from", str(entity))
        return known, replace(part, branch_cut=decision.why)
    if not decision.cuts:
        return known, replace(part, branch_cut=decision.why)
    path, wait = branch_lease_path(entity, name), request.wait_seconds
    with acquire(workspace.objects, path, new_ulid(), wait_seconds=wait) as lease, fenced(lease):
        return _cut(plan, part, name, known, decision, lease)


def _cut(
    plan: IndexPlan, part: SourcePlan, name: str, known: BranchRecord | None, decision: _Decision, lease: Lease
) -> tuple[BranchRecord, SourcePlan]:
    """Cut a branch under its lease: a holder that was replaced commits to the old cut, which nobody reads."""
    workspace, entity, request = plan.workspace, part.entity, plan.request
    if read_branch(workspace, entity, name) != known:
        raise LeaseHeld("Another run has changed this branch meanwhile", name, "Run it again.")
    maintenance = lease_path(entity.tenant, "maintenance")
    wait = max(request.wait_seconds, MAINTENANCE_WAIT_SECONDS)
    with acquire(workspace.objects, maintenance, lease.run_id, wait_seconds=wait) as fence:
        record = cut(workspace, entity, name, lease.token)
        if known is not None:
            record = record.model_copy(update={"created": known.created, "build": known.build})
        fence.check()
    lease.check()
    write_record(workspace, entity, record, known)
    return record, replace(part, branch_cut=decision.why, superseded=known)


def _refuse_older(part: SourcePlan, known: BranchRecord, build: int | None, *, by_commit: bool) -> None:
    """Keep a build of an earlier state from replacing a later one. Raises StaleBuild."""
    if build is not None and known.build is not None:
        if build < known.build:
            raise StaleBuild(f"Build {known.build} has indexed this branch, which is newer than {build}", known.name)
        return
    indexed = known.source.commit
    if not by_commit or part.commit is None or indexed is None or part.commit == indexed.id:
        return
    if is_ancestor(part.source.uri, part.commit, indexed.id):
        raise StaleBuild(
            f"The branch is indexed at {indexed.id[:12]}, which descends from {part.commit[:12]}", known.name
        )


def _decide(plan: IndexPlan, part: SourcePlan, known: BranchRecord | None) -> _Decision:
    """A branch is cut anew when fewer documents differ from the main index of today than from what it holds."""
    workspace = plan.workspace
    if known is None:
        return _Decision(True, "cut from the main index")
    if known.fingerprint != plan.model.fingerprint:
        return _Decision(True, "cut anew, since the main index has another model")
    if workspace.manifest(part.entity).recent_rev() == known.main_revision:
        return _Decision(False, "kept, since the main index is as it was")
    here = workspace.on([branch_at(part.entity, known)])
    kept = _differences(plan, part, here, known)
    anew = _differences(plan, part, workspace, None) if kept else 0
    counts = f"{kept:,} documents differ from the branch, {anew:,} from the main index of today"
    if kept and anew <= kept:
        return _Decision(True, f"brought forward: {counts}")
    return _Decision(False, f"kept, which is cheaper: {counts}" if kept else "kept, since no document has changed")


def _differences(plan: IndexPlan, part: SourcePlan, workspace: Workspace, known: BranchRecord | None) -> int:
    """How many documents of the source differ from the index: by commits where git can tell, else by a listing."""
    if plan.request.by_commit and part.commit is not None:
        record = known.source if known is not None else workspace.source(part.entity)
        tree = find_work_tree(part.source.uri)
        if tree is not None and record is not None and record.commit is not None:
            at = head(part.source.uri)
            if at is not None:
                changed = changes_between(tree, record.commit.id, at.id, ignore_files=IGNORE_FILES)
                if changed.paths is not None:
                    return len(changed.paths)
    request, claims = plan.request, part.claims
    spec = ScanSpec(part.source, plan.model.fingerprint, rules=part.rules, max_file_bytes=request.max_file_bytes)
    scan = scan_partition(
        PartitionSpec(replace(spec, claims=claims), part.entity, time.time_ns()), TaskContext(workspace, plan.model)
    )
    return sum(map(len, (scan.diff.new, scan.diff.candidates, scan.diff.deleted)))
