"""List, delete and prune a workspace's branches, and snapshot branches for index runs (decision 0015).

Before a branch run, ``enter_branch`` finds the branch's snapshot of the main index, or takes a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driftline.flows.output.progress import Progress
from driftline.flows.runs.plan import IndexPlan, SourcePlan
from driftline.storage.defaults import DEFAULT_PRUNED_AFTER_DAYS
from driftline.storage.deltas.delta_index import ADD, REMOVE
from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import (
    DriftlineError,
    LeaseHeld,
    NotIndexed,
    ObjectNotFound,
    StaleBuild,
    UsageError,
)
from driftline.storage.json_records import as_dict
from driftline.storage.layout import branch_lease_path, lease_path, new_ulid
from driftline.storage.leases.lease import Lease, acquire, leave_held_on_failure
from driftline.storage.option_table import duration
from driftline.storage.workspace.branch_cuts import (
    branch_at,
    branch_records,
    cut,
    delete,
    delete_cut,
    read_branch,
    write_record,
)
from driftline.storage.workspace.fleet_state import read_fleets
from driftline.storage.workspace.records import BranchRecord, update_record
from driftline.storage.workspace.workspace import Branch, Workspace
from driftline.tasks.git.commits import (
    ask_remote_branches,
    branch_named,
    changes_between,
    default_branch,
    has_other_remotes,
    head,
    is_ancestor,
    is_merged,
    is_on_remote_branch,
    local_branches,
)
from driftline.tasks.git.work_tree import find_work_tree
from driftline.tasks.scanning.path_patterns import IGNORE_FILES
from driftline.tasks.scanning.scan import PartitionSpec, ScanSpec, scan_partition
from driftline.tasks.task_context import TaskContext


@dataclass(frozen=True, slots=True)
class BranchReport:
    """A source's branch.

    ``base`` is the main index's commit at the time of the snapshot, if known, and ``commit`` the commit indexed in the
    branch, or that git had checked out, or None for sources that are not in git. ``documents`` counts the documents
    that differ from the current main index, ``lines`` their number of lines, and ``deleted`` the number of documents
    missing from the branch. ``size_bytes`` is the size of data not shared with the main index; ``age_seconds`` is the
    time since its last run.
    """

    name: str
    entity: str
    base: str | None
    commit: str | None
    documents: int
    deleted: int
    lines: int
    size_bytes: int
    age_seconds: float
    behind: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the ``branches --json`` object.

        ``behind`` is set if the main index changed since the snapshot.
        """
        return as_dict(self)


def list_branches(workspace: Workspace, within: Boundary | None = None) -> list[BranchReport]:
    """Return the branches of the sources at or below ``within``, sorted by source and name.

    Raises CorruptFile, StorageError.
    """
    now = datetime.now(UTC)
    return [
        _report(workspace, entity, record, now)
        for entity, _ in workspace.readable_sources(within)
        for record in branch_records(workspace, entity)
    ]


def _report(workspace: Workspace, entity: Entity, record: BranchRecord, now: datetime) -> BranchReport:
    here = workspace.on([branch_at(entity, record)])
    changed = here.manifest(entity).changes_since(record.main_revision, columns=["path", "hash", "lines", "reason"])
    main = workspace.manifest(entity).get(changed["path"].to_pylist(), columns=["path", "hash", "reason"])
    main = main.filter(pc.is_null(main["reason"]))
    same = pc.is_in(_contents(changed), value_set=_contents(main))
    is_there = pc.and_(pc.equal(changed["op"], ADD), pc.is_null(changed["reason"]))
    added = changed.filter(pc.and_(is_there, pc.invert(same)))
    missing = changed.filter(
        pc.and_(pc.equal(changed["op"], REMOVE), pc.is_in(changed["path"], value_set=main["path"]))
    )
    table = here.lines(entity, record.fingerprint)
    sizes = [info.size_bytes for info in workspace.objects.list(table.path)]
    sizes += [info.size_bytes for info in workspace.objects.list(branch_at(entity, record).directory)]
    return BranchReport(
        name=record.name,
        entity=str(entity),
        base=record.base,
        commit=record.source.commit.id if record.source.commit else record.own_commit,
        documents=len(added),
        deleted=len(missing),
        lines=pc.sum(added["lines"], min_count=0).as_py(),
        size_bytes=sum(sizes),
        age_seconds=(now - record.updated).total_seconds(),
        behind=workspace.manifest(entity).recent_rev() != record.main_revision,
    )


def _contents(documents: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(documents["path"], documents["hash"], "\0")


def delete_named(
    workspace: Workspace, name: str, within: Boundary | None, *, wait_seconds: float = 0.0, missing_ok: bool = False
) -> list[str]:
    """Delete the branch called ``name`` of each source at or below ``within``, and return their entities.

    Raises NotIndexed if no source has it, unless ``missing_ok`` is set, and LeaseHeld while a run works on it.
    """
    sources = [entity for entity, _ in workspace.readable_sources(within)]
    holders = [entity for entity in sources if read_branch(workspace, entity, name) is not None]
    if not holders and not missing_ok:
        known = sorted({record.name for entity in sources for record in branch_records(workspace, entity)})
        fix = f"It has: {', '.join(known[:20])}." if known else "It has none."
        raise NotIndexed("The workspace has no branch with this name", name, fix)
    run_id = new_ulid()
    for entity in holders:
        delete_branch(workspace, entity, name, run_id, wait_seconds=wait_seconds)
    return [str(entity) for entity in holders]


def delete_branch(workspace: Workspace, entity: Entity, name: str, run_id: str, *, wait_seconds: float = 0.0) -> None:
    """Delete a source's branch, if it exists, under its lease. Raises LeaseHeld, StorageError."""
    path = branch_lease_path(entity, name)
    with acquire(workspace.objects, path, run_id, wait_seconds=wait_seconds) as lease, leave_held_on_failure(lease):
        record = read_branch(workspace, entity, name)
        if record is not None:
            delete(workspace, entity, record)


def note_pull_requests(
    workspace: Workspace, entity: Entity, name: str, opened: Collection[str], closed: Collection[str] = ()
) -> None:
    """Record in a source's branch, if it exists, which pull requests from it were opened and closed.

    Raises CommitConflict, CorruptFile, StorageError.
    """

    def noted(known: BranchRecord) -> BranchRecord:
        return replace(known, pull_requests=tuple(sorted({*known.pull_requests, *opened}.difference(closed))))

    with suppress(ObjectNotFound):
        update_record(workspace.objects, Branch(entity, name, "").record_path, BranchRecord, noted)


def delete_closed(
    workspace: Workspace, entity: Entity, name: str, closed: Collection[str], *, wait_seconds: float = 0.0
) -> None:
    """Delete a source's branch after the pull requests with the numbers ``closed``, unless another one may use it.

    That is unknown if none was recorded: ``prune`` deletes such a branch later. Raises LeaseHeld, CommitConflict,
    StorageError.
    """
    record = read_branch(workspace, entity, name)
    if record is not None and record.pull_requests and not {*record.pull_requests}.difference(closed):
        delete_branch(workspace, entity, name, new_ulid(), wait_seconds=wait_seconds)
    else:
        note_pull_requests(workspace, entity, name, (), closed)


@dataclass(frozen=True, slots=True)
class Pruned:
    """A branch that was deleted (or would be, in a dry run), and why."""

    name: str
    entity: str
    why: str


def prune_branches(
    workspace: Workspace,
    within: Boundary | None = None,
    *,
    older_than_days: float = DEFAULT_PRUNED_AFTER_DAYS,
    dry_run: bool = False,
    skip: Callable[[str], None] = lambda _: None,
) -> list[Pruned]:
    """Delete branches that are merged, deleted on the remote, or stale.

    A source's working tree, if it is on this disk and may be read, shows whether a branch is merged, and provides the
    remote. Only a listing of the remote proves that a branch was deleted. Pull requests have no branch on the remote,
    so this does not apply to them. Fleet branches follow their hosts, and are never pruned here. ``skip`` receives a
    message for each busy branch, and for each source whose working tree or remote cannot be checked.
    """
    limit = duration("older_than_days", older_than_days * 86_400)
    pruned: list[Pruned] = []
    fleets = read_fleets(workspace.objects).values()
    of_fleets = {
        (each.entity, name) for fleet in fleets for each in fleet.repositories.values() for name in each.branches
    }
    for entity, known in workspace.readable_sources(within):
        records = branch_records(workspace, entity)
        tree = known.uri if workspace.access.allows(known.uri) else None
        remote = ask_remote_branches(tree) if records and tree else None
        on_remote = remote.tips.keys() | local_branches(tree) if tree and remote is not None else None
        main = remote.default if remote is not None else default_branch(tree) if tree else None
        if records and tree is None and known.is_local:
            skip(f"{entity} is outside the workspace's folder, so only the age of its branches is checked.")
        elif records and remote is None and known.origin is not None:
            skip(f"The remote of {entity} did not list its branches, so none is treated as deleted.")
        elif records and remote is None and tree is not None and has_other_remotes(tree):
            skip(f"{entity} has no remote called origin, so no branch is treated as deleted.")
        for record in (each for each in records if (str(entity), each.name) not in of_fleets):
            why = _why_pruned(record, tree, on_remote, main, limit)
            if why is None:
                continue
            try:
                if not dry_run:
                    delete_branch(workspace, entity, record.name, new_ulid())
            except LeaseHeld as error:
                skip(f"Skipped the branch {record.name} of {entity}: {error.what}")
                continue
            pruned.append(Pruned(record.name, str(entity), why))
    return pruned


def _why_pruned(
    record: BranchRecord, tree: str | None, on_remote: Set[str] | None, main: str | None, limit: timedelta
) -> str | None:
    age = datetime.now(UTC) - record.updated
    if age > limit:
        return f"not indexed for {age.days:,} days"
    commits = {record.own_commit, record.source.commit.id if record.source.commit else None} - {None, record.base}
    branch, in_git = branch_named(record.name), record.base is not None or record.own_commit is not None
    if on_remote is not None and in_git and branch is not None and branch not in on_remote:
        return "deleted on the remote"
    merged = tree and main and any(is_on_remote_branch(tree, commit, main) for commit in commits if commit)
    return "merged" if merged else None


MAINTENANCE_WAIT_SECONDS = 120.0
"""How long a snapshot waits for a compaction or an index build of the main index."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """Whether to take a new snapshot for a branch, and why."""

    cuts: bool
    why: str


def enter_branch(plan: IndexPlan, name: str, progress: Progress) -> IndexPlan:
    """Return ``plan``, moved to the branch called ``name`` of each source. Missing branches are created.

    A dry run takes no snapshot: it compares with the main index if there is no branch yet. Raises UsageError,
    StaleBuild, LeaseHeld, StorageError; with ``keep_going``, only if none of the sources can be indexed.
    """
    parts: list[SourcePlan] = []
    branches: list[Branch] = []
    failures = list(plan.failures)
    for part in plan.sources:
        try:
            record, entered = _enter(plan, part, name)
        except DriftlineError as error:
            if not plan.request.keep_going:
                raise
            failures.append((part.source.uri, error))
            continue
        parts.append(replace(entered, own_commit=_own_commit(part, name)))
        if record is not None:
            branches.append(branch_at(part.entity, record))
        progress.message(f"{part.entity}, branch {name}: {entered.branch_cut}")
    if not parts:
        raise failures[0][1]
    return replace(plan, sources=tuple(parts), workspace=plan.workspace.on(branches), failures=tuple(failures))


def _own_commit(part: SourcePlan, name: str) -> str | None:
    """Return the commit that is checked out in a working tree that has the branch, unless it is merged already."""
    uri, commit = part.source.uri, part.commit
    if commit is None or branch_named(name) not in local_branches(uri) or is_merged(uri, commit):
        return None
    return commit


def leave_branch(plan: IndexPlan) -> None:
    """Delete the snapshots that this run superseded, after it copied their lines. Raises StorageError."""
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
            raise UsageError("The source has no main index to cut a branch from", str(entity))
        return known, replace(part, branch_cut=decision.why)
    if not decision.cuts:
        return known, replace(part, branch_cut=decision.why)
    path, wait = branch_lease_path(entity, name), request.wait_seconds
    with acquire(workspace.objects, path, new_ulid(), wait_seconds=wait) as lease, leave_held_on_failure(lease):
        return _cut(plan, part, name, known, decision, lease)


def _cut(
    plan: IndexPlan, part: SourcePlan, name: str, known: BranchRecord | None, decision: _Decision, lease: Lease
) -> tuple[BranchRecord, SourcePlan]:
    """Snapshot a branch under its lease. A fenced-off holder then commits to the old snapshot, which has no readers."""
    workspace, entity, request = plan.workspace, part.entity, plan.request
    found = read_branch(workspace, entity, name)
    if found is not None and known is not None:
        known = replace(known, pull_requests=found.pull_requests)  # webhooks note them without the lease
    if found != known:
        raise LeaseHeld("Another run changed this branch concurrently", name, "Run the command again.")
    maintenance = lease_path(entity.tenant, "maintenance")
    wait = max(request.wait_seconds, MAINTENANCE_WAIT_SECONDS)
    with acquire(workspace.objects, maintenance, lease.run_id, wait_seconds=wait) as fence:
        record = cut(workspace, entity, name, lease.token)
        if known is not None:
            record = replace(record, created=known.created, build=known.build, pull_requests=known.pull_requests)
        fence.check()
    lease.check()
    write_record(workspace, entity, record, known)
    return record, replace(part, branch_cut=decision.why, superseded=known)


def _refuse_older(part: SourcePlan, known: BranchRecord, build: int | None, *, by_commit: bool) -> None:
    """Raise StaleBuild if a build of an earlier state would replace the index of a later one."""
    if build is not None and known.build is not None:
        if build < known.build:
            raise StaleBuild(f"Build {known.build} already indexed this branch, and is newer than {build}", known.name)
        return
    indexed = known.source.commit
    if not by_commit or part.commit is None or indexed is None or part.commit == indexed.id:
        return
    if is_ancestor(part.source.uri, part.commit, indexed.id):
        raise StaleBuild(f"The branch is indexed at {indexed.id[:12]}, a descendant of {part.commit[:12]}", known.name)


def _decide(plan: IndexPlan, part: SourcePlan, known: BranchRecord | None) -> _Decision:
    """Decide to take a new snapshot unless more documents differ from the current main index than from the branch."""
    workspace = plan.workspace
    if known is None:
        return _Decision(True, "cut from the main index")
    if known.fingerprint != plan.model.fingerprint:
        return _Decision(True, "recut, because the main index has another model")
    if workspace.manifest(part.entity).recent_rev() == known.main_revision:
        return _Decision(False, "kept, since the main index has not changed")
    here = workspace.on([branch_at(part.entity, known)])
    kept = _differences(plan, part, here, known)
    anew = _differences(plan, part, workspace, None) if kept else 0
    counts = f"{kept:,} documents differ from the branch, {anew:,} from the current main index"
    if kept and anew <= kept:
        return _Decision(True, f"brought forward: {counts}")
    return _Decision(False, f"kept, which is cheaper: {counts}" if kept else "kept, since no document has changed")


def _differences(plan: IndexPlan, part: SourcePlan, workspace: Workspace, known: BranchRecord | None) -> int:
    """Count the source's documents that differ from the index, using commits if possible, otherwise a listing."""
    if plan.request.by_commit and part.commit is not None:
        record = known.source if known is not None else workspace.source(part.entity)
        tree = find_work_tree(part.source.uri)
        if tree is not None and record is not None and record.commit is not None:
            at = head(part.source.uri)
            if at is not None:
                changed = changes_between(tree, record.commit.id, at.id, ignore_files=IGNORE_FILES)
                if changed.paths is not None:
                    return len(changed.paths)
    spec = ScanSpec.of(part.source, part.record, plan.model.fingerprint, part.claims)
    scan = scan_partition(PartitionSpec(spec, part.entity, time.time_ns()), TaskContext(workspace, plan.model))
    return sum(map(len, (scan.diff.new, scan.diff.candidates, scan.diff.deleted)))
