"""An index run: plan, map, commit (DESIGN, "Index run").

The command line, Python and the Prefect flow share this code; only ``Executor`` and ``Progress`` differ.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from driftline.flows.output.progress import NullProgress, Progress
from driftline.flows.output.reports import IndexReport
from driftline.flows.output.stages import run_stage
from driftline.flows.runs.branch_entry import enter_branch, leave_branch
from driftline.flows.runs.concurrent_sources import run_all
from driftline.flows.runs.deep_run import chosen_model, deepen
from driftline.flows.runs.executors import Executor, open_executor
from driftline.flows.runs.plan import IndexPlan, IndexRequest, make_plan
from driftline.flows.runs.segment_builds import SegmentBuilds, build_on
from driftline.flows.runs.shared_files import settle_shares, share_files
from driftline.storage.entities import Entity
from driftline.storage.errors import AccessDenied, CorruptFile, DriftlineError, LeaseHeld, UsageError
from driftline.storage.ids import new_ulid
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.segments import maintain
from driftline.storage.objects.request_counts import phase, tally
from driftline.storage.sources.privacy import only_owner_reads
from driftline.storage.workspace.run_history import RunHistory, RunRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.context import TaskContext
from driftline.tasks.indexing.reembed import complete_reembedding
from driftline.tasks.stopwatch import Stopwatch

log = logging.getLogger(__name__)

__all__ = ["IndexRequest", "index_sources"]


def index_sources(
    request: IndexRequest,
    progress: Progress | None = None,
    *,
    alone: bool = False,
    instead_of: Sequence[str] = (),
) -> IndexReport:
    """Bring the index in step with its sources.

    Known sources that hold files of those requested are brought in step, too, unless the run shall stay ``alone``. It
    takes over the files of the sources ``instead_of``, and removes these.

    Raises UsageError, CorruptFile, AccessDenied before it writes anything, and DeletionRefused, LeaseHeld, LeaseLost,
    StorageError, ExecutorError later; committed batches stay then, and the next run continues from there. With
    ``keep_going`` the report lists failed sources instead, unless none can start.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    watch = Stopwatch()
    with tally() as requests, ExitStack() as stack:
        with watch.phase("start"), phase("start"):
            plan = replace(make_plan(request), instead_of=tuple(instead_of))
            plan = share_files(plan, alone=alone or request.branch is not None)
            plan = replace(plan, new_workspace=plan.workspace.config.fingerprint is None)
            executor = open_executor(request.executor, request.workers)
            stack.enter_context(executor)
            if not request.dry_run:
                plan = _claim(plan)
            if not request.dry_run:
                plan = replace(plan, deep=chosen_model(plan, progress or NullProgress()))
                if plan.deep is not None or request.deep is False:
                    plan = replace(plan, workspace=plan.workspace.bind_deep(plan.deep))
            if request.branch is not None:
                plan = enter_branch(plan, request.branch, progress or NullProgress())
        report = IndexReport(new_ulid(), plan.workspace.objects.uri, failed=list(plan.failures), phases=watch.seconds)
        outcome = "failed"
        try:
            _run(plan, executor, progress or NullProgress(), report, watch)
            outcome = report.failed[0][1].kind if report.failed else "done"
        except DriftlineError as error:
            outcome = error.kind
            raise
        finally:
            report.seconds, report.requests = time.monotonic() - clock, requests.counts
            if not request.dry_run:
                with watch.phase("ledger"), phase("ledger"):
                    _record(plan, report, started, outcome)
            fields = {"run_id": report.run_id, "outcome": outcome, "seconds": round(report.seconds, 3)}
            log.info("index run %s: %s after %.1f s", *fields.values(), extra={"fields": fields})
    report.requests = requests.counts
    return report


def _run(plan: IndexPlan, executor: Executor, progress: Progress, report: IndexReport, watch: Stopwatch) -> None:
    """Fill ``report``. A failing source does not stop the others; the first failure is raised at the end."""
    with watch.phase("start"), phase("start"):
        executor.start(
            TaskContext(plan.workspace, plan.model),
            [part.source for part in plan.sources],
            new_workspace=plan.new_workspace,
        )
    with SegmentBuilds(executor, plan.request.indexes, progress) as builds:
        _run_sources(plan, executor, progress, report, watch, builds)


def _run_sources(
    plan: IndexPlan,
    executor: Executor,
    progress: Progress,
    report: IndexReport,
    watch: Stopwatch,
    builds: SegmentBuilds,
) -> None:
    failure: DriftlineError | None = None
    stale = set[Entity]()
    for run, error in run_all(plan, executor, progress, report, builds):
        if error is not None and run.joined and isinstance(error, LeaseHeld):
            progress.message(f"{run.entity} is not brought in step, since another run works on it.")
        elif error is not None:
            if plan.request.keep_going:
                report.failed.append((run.report.uri, error))
            elif isinstance(error, (UsageError, AccessDenied, CorruptFile)):
                raise error
            progress.message(str(error))
            failure = failure or error
        if run.indexes_lag:
            stale.add(run.place)
    if not plan.request.dry_run:
        if failure is None and plan.request.branch is None:
            settle_shares(plan, report, progress)
        with watch.phase("index"), phase("index"):
            if plan.replaces is not None and failure is None:
                complete_reembedding(plan.workspace, plan.model, plan.replaces, progress.message)
            if plan.request.branch is not None and failure is None:
                leave_branch(plan)
            if plan.deep is not None and failure is None:
                with watch.phase("deep"), phase("deep"):
                    deepen(plan, plan.deep, executor, progress, report)
            workspace = plan.workspace
            for place in sorted(stale):
                progress.phase(f"building indexes of {place}")
                names = [str(part.entity) for part in plan.sources if workspace.table_place(part.entity) == place]
                report.indexes += run_stage(
                    f"index {', '.join(names)}",
                    partial(_maintain, plan, place, report.run_id, executor, progress, builds),
                    lambda changed: f"indexes brought up to date: {', '.join(changed) or 'none'}",
                    repeatable=True,
                    after=[f"{stage} {name}" for name in names for stage in ("embed", "commit")],
                )
    if failure is not None and not plan.request.keep_going:
        raise failure


def _claim(plan: IndexPlan) -> IndexPlan:
    """Create the workspace if it does not exist, and bind it to its model."""
    is_private = any(each.source.is_local and only_owner_reads(each.source.uri) for each in plan.sources)
    workspace = Workspace.prepare(plan.workspace.objects, private=is_private)  # reuses what the plan has read
    if plan.replaces is None:
        workspace = workspace.bind_model(plan.model.name, plan.model.fingerprint, plan.model.dim)
    return replace(plan, workspace=workspace)


def _maintain(
    plan: IndexPlan, place: Entity, run_id: str, executor: Executor, progress: Progress, builds: SegmentBuilds
) -> list[str]:
    workspace = plan.workspace
    table = workspace.lines(place, plan.model.fingerprint)
    built = builds.finish(place)
    try:
        with acquire(workspace.objects, workspace.maintenance_lease_of(place), run_id):
            build = partial(build_on, executor, place, table)
            return maintain(table, plan.request.indexes, built=built, build=build)
    except LeaseHeld as error:
        progress.message(f"Skipped the search indexes of {place}, which another run maintains: {error.what}")
        return []


def _record(plan: IndexPlan, report: IndexReport, started: datetime, outcome: str) -> None:
    for tenant in sorted({source.entity.tenant for source in plan.sources}):
        record = RunRecord(
            run_id=report.run_id,
            kind="index",
            started=started.isoformat(),
            seconds=report.seconds,
            outcome=outcome,
            report=report.to_dict(),
        )
        RunHistory(plan.workspace.objects, tenant).record(record)
