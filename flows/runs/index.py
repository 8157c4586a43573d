"""Run an index run (DESIGN, "Index run"): plan, map, commit.

The command line, Python and the Prefect flow share this code; only ``Executor`` and ``Progress`` differ. A few sources
run concurrently, so one is embedded while another is listed or committed. If sources select the same files,
``share_files`` assigns each file to one source, and adds the known sources that the run must also update. It does so
only for workspaces on a local disk: in a bucket, one path may refer to files on several machines. Definitions are
embedded after the lines (decision 0016).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.output.progress import ConcurrentProgress, NullProgress, Progress, run_stage
from driftline.flows.output.run_reports import IndexReport
from driftline.flows.runs.branches import enter_branch, leave_branch
from driftline.flows.runs.executors import Executor, SegmentBuilds, build_on, open_executor
from driftline.flows.runs.plan import (
    RECORDED,
    IndexPlan,
    SourcePlan,
    known_request,
    make_plan,
    plan_source,
    restricted_repositories,
)
from driftline.flows.runs.remove import DeletionLimit, remove_documents, remove_source
from driftline.flows.runs.source_group import run_all
from driftline.flows.runs.source_run import COMMIT_SECONDS, SourceRun
from driftline.storage.deltas.manifest import totals
from driftline.storage.embedding import DeepModel
from driftline.storage.entities import Entity
from driftline.storage.errors import (
    AccessDenied,
    BadEntity,
    CorruptFile,
    DriftlineError,
    LeaseHeld,
    MissingExtra,
    UsageError,
)
from driftline.storage.layout import lease_path, new_ulid
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.indexes import maintain
from driftline.storage.objects.store_requests import REQUESTS_AT_ONCE, in_parallel, phase, request_counter
from driftline.storage.workspace.records import INDEX, RunHistory, RunRecord, SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.transformer import deep_model
from driftline.tasks.indexing.commit import complete_reembedding
from driftline.tasks.indexing.embed_definitions import batches, deepen_batch, plan_deep
from driftline.tasks.scanning.overlap import Claim, SourcesByFolder, claim_of, claimed
from driftline.tasks.scanning.path_patterns import Matcher
from driftline.tasks.task_context import Stopwatch, TaskContext

__all__ = ["IndexRequest", "index_sources"]

log = logging.getLogger(__name__)


def chosen_model(plan: IndexPlan, progress: Progress) -> DeepModel | None:
    """Return this run's transformer: the requested one, then the workspace's, then None.

    Raises MissingExtra or ModelNotFound for a requested transformer that is not installed.
    """
    request, known = plan.request, plan.workspace.config.deep
    if request.deep is False or (request.deep is None and known is None):
        return None
    try:
        return deep_model(request.deep if isinstance(request.deep, str) else known.model if known else None)
    except MissingExtra as error:
        if request.deep is not None:
            raise
        progress.message(f"Definitions are not embedded: {error}")
        return None


def deepen(plan: IndexPlan, model: DeepModel, executor: Executor, progress: Progress, report: IndexReport) -> None:
    """Embed missing definitions, and remove the definitions of deleted documents.

    If the run is killed, the next run does the rest. Raises StorageError, ExecutorError, ModelNotFound.
    """
    workspace = plan.workspace
    for entity in (part.entity for part in plan.sources):
        table = workspace.deep(entity, model)
        table.create(model.dim)
        lacking = plan_deep(workspace, entity, model)
        if not lacking.missing and not lacking.stale:
            continue
        try:
            lease = acquire(workspace.objects, lease_path(entity, "deep"), report.run_id)
        except LeaseHeld as error:
            progress.message(f"The definitions of {entity} are left to the next run: {error.what}")
            continue
        with lease:
            progress.phase(f"embedding definitions of {entity}", total=len(lacking.missing))
            pending: list[str] = []
            since = time.monotonic()
            for result in executor.map(deepen_batch, batches(entity, lacking, model)):
                progress.advance(result.documents, result.definitions)
                report.definitions_embedded += result.definitions
                pending += result.fragments
                if pending and time.monotonic() - since > COMMIT_SECONDS:
                    lease.check()
                    table.commit(entity, pending)
                    pending, since = [], time.monotonic()
            lease.check()
            if executor.has_repeated:
                lease.expect_garbage()
            if pending or lacking.stale:
                table.commit(entity, pending, lacking.stale)
            table.index()


def share_files(plan: IndexPlan, *, alone: bool = False) -> IndexPlan:
    """Return ``plan`` with each source's claims, and with known sources that own files of requested sources.

    These are added as ``joined``, because the request includes their files, unless ``alone`` is set. Raises
    CorruptFile, StorageError.
    """
    known = _known(plan)
    if known is None:
        return plan
    parts = list(plan.sources)
    if not alone:
        parts += _joined(plan, known)
    everybody = SourcesByFolder({**known, **{part.entity: part.record for part in parts}})
    return replace(
        plan, sources=tuple(replace(part, claims=everybody.claims_on(part.entity, part.record)) for part in parts)
    )


def take_over_files(plan: IndexPlan, run_id: str, progress: Progress) -> None:
    """Remove from other sources the documents that a finished run's sources took over.

    Raises LeaseLost, StorageError.
    """
    workspace = plan.workspace
    for name in plan.instead_of:
        if workspace.source(Entity.parse(name, workspace.config.hierarchy)) is not None:
            try:
                _remove(plan, name)
            except LeaseHeld as error:
                progress.message(f"{name}, which this run replaces, is not removed: {error.what}")
    known = _known(plan)
    if known is None:
        return
    neighbours, lost = SourcesByFolder(known), dict[Entity, list[Claim]]()
    for part in plan.sources:
        for entity in neighbours.at_or_above(part.record.uri):
            claim = claim_of(part.entity, part.record, entity, known[entity])
            if claim is not None:
                lost.setdefault(entity, []).append(claim)
        if not part.joined:
            for entity in neighbours.at_or_below(part.record.uri):
                if _is_gone(known[entity]) and entity.tenant == part.entity.tenant:
                    _forget(plan, entity, progress)
    for entity, claims in lost.items():
        try:
            _release(plan, entity, claims, run_id)
        except LeaseHeld as error:
            kept = "also keeps the documents that this run took over"
            progress.message(f"Until its next run, {entity} {kept}: {error.what}")


def _remove(plan: IndexPlan, entity: str) -> None:
    request = plan.request
    remove_source(
        plan.workspace.objects.uri, entity, wait_seconds=request.wait_seconds, storage_options=request.storage_options
    )


def _release(plan: IndexPlan, entity: Entity, claims: Sequence[Claim], run_id: str) -> None:
    """Remove the documents covered by ``claims`` from a source."""
    workspace = plan.workspace
    documents = workspace.manifest(entity).read([claim.prefix for claim in claims], columns=["path"])
    paths = documents["path"].combine_chunks()
    if not claimed(paths, claims).any():
        return
    lost = paths.filter(pa.array(claimed(paths, claims))).to_pylist()
    remove_documents(workspace, entity, lost, run_id=run_id, wait_seconds=plan.request.wait_seconds)
    log.info("%s has left %d documents to other sources", entity, len(lost))


def _forget(plan: IndexPlan, entity: Entity, progress: Progress) -> None:
    """Remove a source whose folder inside another source's folder is gone, within the deletion limit."""
    documents, _ = totals(plan.workspace.manifest(entity).read(columns=["lines", "reason"]))
    if not DeletionLimit.of_documents(plan.request).allows(documents, known=documents):
        progress.message(f"The folder of {entity} is gone; the index keeps its {documents:,} documents.")
        return
    try:
        _remove(plan, str(entity))
    except LeaseHeld as error:
        progress.message(f"{entity}, whose folder is gone, is not removed: {error.what}")


def _known(plan: IndexPlan) -> dict[Entity, SourceRecord] | None:
    """Return the other sources of the plan's tenants, except those that it replaces; None in a bucket."""
    if not plan.workspace.objects.is_local:
        return None
    tenants = {part.entity.tenant for part in plan.sources}
    planned = {part.entity for part in plan.sources}
    found = ((e, r) for tenant in sorted(tenants) for e, r in plan.workspace.readable_sources(tenant))
    return {e: record for e, record in found if e not in planned and str(e) not in plan.instead_of}


def _is_gone(record: SourceRecord) -> bool:
    """Return whether a source's local folder no longer exists."""
    return record.is_local and not os.path.isdir(record.uri)


def _joined(plan: IndexPlan, known: Mapping[Entity, SourceRecord]) -> list[SourcePlan]:
    """Return the known sources that own files of a requested source."""
    neighbours, found = SourcesByFolder(known), dict[Entity, SourcePlan]()
    restricted = restricted_repositories(plan.workspace)
    kept: dict[str, Any] = dict.fromkeys(RECORDED)
    own = replace(plan.request, **kept)
    for part in plan.sources:
        for entity in neighbours.at_or_below(part.record.uri):
            if entity in found or not _holds_files_of(entity, known[entity], part, plan):
                continue
            named = known_request(entity, known[entity])
            try:
                found[entity] = replace(plan_source(named, own, plan.workspace, set(), restricted), joined=True)
            except DriftlineError as error:
                log.warning("%s is not updated: %s", entity, error)
    return [found[entity] for entity in sorted(found)]


def _holds_files_of(entity: Entity, record: SourceRecord, part: SourcePlan, plan: IndexPlan) -> bool:
    claim = claim_of(entity, record, part.entity, part.record)
    if claim is None or _is_gone(record):
        return False
    if not part.record.include and not part.record.exclude:
        return True
    paths = plan.workspace.manifest(entity).read(columns=["path"])["path"].combine_chunks()
    inside = pc.binary_join_element_wise(claim.prefix, paths, "")
    return not Matcher.of(part.rules).excluded(inside).all()


def index_sources(
    request: IndexRequest,
    progress: Progress | None = None,
    *,
    alone: bool = False,
    instead_of: Sequence[str] = (),
) -> IndexReport:
    """Update the index to the current state of the sources.

    Unless ``alone`` is set, it also updates known sources that own files of the requested ones. It takes over the files
    of the sources in ``instead_of`` and removes these sources.

    Raises UsageError, CorruptFile, AccessDenied before writing anything, and DeletionRefused, LeaseHeld, LeaseLost,
    StorageError, ExecutorError later. Batches committed before such an error or a KeyboardInterrupt are kept, and the
    next run continues from there; a note on the KeyboardInterrupt counts their documents. If ``keep_going`` is set, the
    report lists failed sources instead, unless none can start.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    watch = Stopwatch()
    with request_counter() as requests, ExitStack() as stack:
        with watch.phase("start"), phase("start"):
            plan = replace(make_plan(request), instead_of=tuple(instead_of))
            for about in filter(None, (part.about_filters() for part in plan.sources)):
                (progress or NullProgress()).message(about)
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
            _run(plan, executor, ConcurrentProgress(progress or NullProgress()), report, watch)
            outcome = report.failed[0][1].kind if report.failed else "done"
        except KeyboardInterrupt as error:
            outcome = "interrupted"
            executor.stop()
            error.add_note(report.kept())
            raise
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
    """Fill in ``report``. A failing source does not stop the others; the first failure is raised at the end."""
    with watch.phase("start"), phase("start"):
        executor.start(
            TaskContext(plan.workspace, plan.model),
            [part.source for part in plan.sources],
            new_workspace=plan.new_workspace,
            on_counts=progress.advance,
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
    failed, stale = set[Entity](), dict[Entity, list[SourceRun]]()
    for run, error in run_all(plan, executor, progress, report, builds):
        if error is not None:
            failed.add(run.entity)
            counted = _counted_failure(error, run, plan, progress, report)
            failure = failure or counted
        if run.indexes_lag:
            stale.setdefault(run.owner, []).append(run)
    if not plan.request.dry_run:
        finished = replace(
            plan,
            sources=tuple(part for part in plan.sources if part.entity not in failed),
            instead_of=plan.instead_of if failure is None else (),
        )
        if plan.request.branch is None:
            take_over_files(finished, report.run_id, progress)
        with watch.phase("index"), phase("index"):
            if plan.replaces is not None and failure is None:
                complete_reembedding(plan.workspace, plan.model, plan.replaces, progress.message)
            if plan.request.branch is not None and failure is None:
                leave_branch(plan)
            if plan.deep is not None:
                with watch.phase("deep"), phase("deep"):
                    deepen(finished, plan.deep, executor, progress, report)
            workspace = plan.workspace
            for owner, runs in sorted(stale.items()):
                progress.phase(f"building indexes of {owner}")
                names = [str(part.entity) for part in plan.sources if workspace.table_owner(part.entity) == owner]
                report.indexes += run_stage(
                    f"index {', '.join(names)}",
                    partial(_maintain, plan, owner, report.run_id, runs, executor, progress, builds),
                    lambda changed: f"indexes brought up to date: {', '.join(changed) or 'none'}",
                    repeatable=True,
                    after=[f"{stage} {name}" for name in names for stage in ("embed", "commit")],
                )
    if failure is not None and not plan.request.keep_going:
        raise failure


def _counted_failure(
    error: DriftlineError, run: SourceRun, plan: IndexPlan, progress: Progress, report: IndexReport
) -> DriftlineError | None:
    """Report a source's failure. Return it, or None if another run indexes the source instead.

    Raises the error if it must end the run.
    """
    if run.joined and isinstance(error, LeaseHeld):
        progress.message(f"{run.entity} is not updated, because another run is working on it.")
        return None
    if plan.request.keep_going:
        report.failed.append((run.report.uri, error))
    elif isinstance(error, (UsageError, AccessDenied, CorruptFile)):
        raise error
    if len(plan.sources) > 1:  # a single failure is raised or reported, so a message would repeat it
        progress.message(f"{run.entity} has failed: {error.what}")
    return error


def _claim(plan: IndexPlan) -> IndexPlan:
    """Create the workspace if it does not exist, and bind it to its model."""
    folders = [folder for each in plan.sources if (folder := each.source.folder) is not None]
    workspace = Workspace.prepare(plan.workspace.objects, folders)  # reuses what the plan already read
    if plan.replaces is None:
        workspace = workspace.bind_model(plan.model.name, plan.model.fingerprint, plan.model.dim)
    return replace(plan, workspace=workspace)


def _maintain(
    plan: IndexPlan,
    owner: Entity,
    run_id: str,
    runs: Sequence[SourceRun],
    executor: Executor,
    progress: Progress,
    builds: SegmentBuilds,
) -> list[str]:
    """Update the search indexes of ``owner`` after ``runs`` changed its lines; return what changed."""
    workspace = plan.workspace
    table = workspace.lines(owner, plan.model.fingerprint)
    built = builds.finish(owner)
    try:
        with acquire(workspace.objects, workspace.maintenance_lease_of(owner), run_id) as lease:
            build = partial(build_on, executor, owner, table)
            maintained = maintain(table, plan.request.indexes, built=built, build=build)
            if builds.have_failed or executor.has_repeated:
                lease.expect_garbage()
    except LeaseHeld as error:
        progress.message(f"Skipped the search indexes of {owner}, which another run is updating: {error.what}")
        return []
    if plan.request.indexes == "all":
        for _ in in_parallel(SourceRun.indexes_are_current, runs, min(len(runs), REQUESTS_AT_ONCE)):
            pass
    return maintained


def _record(plan: IndexPlan, report: IndexReport, started: datetime, outcome: str) -> None:
    """Record the run in each tenant, with only that tenant's sources and failures."""
    for tenant in sorted({source.entity.tenant for source in plan.sources}):
        record = RunRecord(
            run_id=report.run_id,
            kind=INDEX,
            started=started.isoformat(),
            seconds=report.seconds,
            outcome=outcome,
            report=_of_tenant(report, plan, tenant).to_dict(),
        )
        RunHistory(plan.workspace.objects, tenant).record(record)


def _of_tenant(report: IndexReport, plan: IndexPlan, tenant: Entity) -> IndexReport:
    """Return a tenant's part of the report: its sources and their failures, also of sources that failed validation.

    Its seconds, requests and indexes are still those of the whole run.
    """
    uris = {part.source.uri for part in plan.sources if part.entity.tenant == tenant}
    levels = plan.workspace.config.hierarchy
    for given in plan.request.given if plan.failures else ():
        named = given if isinstance(given, SourceRequest) else SourceRequest(given, plan.request.entity)
        with suppress(BadEntity):  # an invalid entity belongs to no tenant
            if Entity.parse(named.entity or f"{levels[-1]}:default", levels).tenant == tenant:
                uris.add(named.uri)
    sources = [each for each in report.sources if each.entity.startswith(f"{tenant}/")]
    return replace(report, sources=sources, failed=[each for each in report.failed if each[0] in uris])
