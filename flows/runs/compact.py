"""Run a compaction: fold deltas, then optimize, compact and clean tables (DESIGN, "Compaction").

A compaction may stop after any step: the workspace stays consistent, and the next compaction continues.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from driftline.flows.config.memory_settings import compaction_threshold, memory_encoding
from driftline.flows.output.progress import NullProgress, Progress
from driftline.flows.output.run_reports import CompactReport, TenantCompaction
from driftline.flows.runs.executors import Executor, build_on, open_executor
from driftline.storage.defaults import DEFAULT_EXECUTOR, DEFAULT_MAX_DELTAS, DEFAULT_VERSION_RETENTION_SECONDS
from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntity, CommitConflict, DriftlineError, LeaseHeld, RecallTooLow
from driftline.storage.lance.lance_table import VECTOR, commit_compaction, plan_compaction, remove_old_versions
from driftline.storage.layout import lease_path, new_ulid
from driftline.storage.leases.lease import Lease, acquire
from driftline.storage.lines.indexes import Segment, SegmentSpec, maintain
from driftline.storage.lines.line_table import LineTable
from driftline.storage.memory.memory_indexes import compact_indexes, compact_vectors, vectors_of
from driftline.storage.option_table import duration
from driftline.storage.workspace.records import RunHistory, RunRecord
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.indexing.commit import RewriteSpec, rewrite_fragments, settle
from driftline.tasks.maintenance.cleanup import Fence
from driftline.tasks.maintenance.search_quality import SearchQuality, last_measured, measure_if_due, measure_table
from driftline.tasks.task_context import ModelRef, TaskContext

RECALL_FLOOR = 0.95
"""Minimum recall@10 relative to exact search: if it is lower, the compaction fails and keeps old versions."""
COMPACTION_ATTEMPTS = 3
"""How often to retry a plan that writers invalidate before leaving the fragments to the next compaction."""


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """The inputs of a compaction: one ``entity`` and its tenant's tables, or all entities above ``max_deltas``.

    ``max_deltas`` defaults to ``DEFAULT_MAX_DELTAS`` for sources, and to ``compaction_threshold`` for memory, which
    itself defaults to the memory configuration's value.
    """

    workspace: str
    entity: str | None = None
    max_deltas: int | None = None
    retention_seconds: float = DEFAULT_VERSION_RETENTION_SECONDS
    executor: str = DEFAULT_EXECUTOR
    workers: int | None = None
    wait_seconds: float = 0.0
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    compaction_threshold: int | None = None

    def __post_init__(self) -> None:
        duration("retention_seconds", self.retention_seconds)


def compact_workspace(request: CompactRequest, progress: Progress | None = None) -> CompactReport:
    """Make the workspace small and fast to read without changing its content.

    Safe during concurrent writes and reads. Without ``entity``, it skips and reports sources that other runs have
    leased; with ``entity``, it raises LeaseHeld. Raises BadEntity, RecallTooLow, StorageError, WorkspaceNotFound.
    """
    started = time.monotonic()
    Workspace.open(request.workspace, request.storage_options)  # compaction does not create a workspace
    workspace = Workspace.open_for_writing(request.workspace, request.storage_options)
    named = _named(workspace, request)
    if named is None and request.max_deltas is None and request.compaction_threshold is None:
        request = replace(request, compaction_threshold=compaction_threshold(workspace))
    progress = progress or NullProgress()
    report = CompactReport(new_ulid(), workspace.objects.uri)
    config = workspace.config
    model = ModelRef(config.model or "", config.fingerprint or "", config.dim or 0)
    with open_executor(request.executor, request.workers) as executor:
        executor.start(TaskContext(workspace, model), [])
        for tenant in [named.tenant] if named else workspace.tenants():
            part = TenantCompaction(str(tenant))
            report.tenants.append(part)
            _Compaction(request, workspace, tenant, named, executor, progress, report.run_id, part).execute()
    report.seconds = time.monotonic() - started
    return report


def _named(workspace: Workspace, request: CompactRequest) -> Entity | None:
    if request.entity is None:
        return None
    entity = Entity.parse(request.entity, workspace.config.hierarchy)
    if not any(True for _ in workspace.sources(entity)):
        raise BadEntity("The source does not exist", str(entity), "List the sources with: driftline sources")
    return entity


@dataclass(slots=True)
class _Compaction:
    """One tenant's compaction; fills in ``report`` step by step."""

    request: CompactRequest
    workspace: Workspace
    tenant: Entity
    named: Entity | None
    executor: Executor
    progress: Progress
    run_id: str
    report: TenantCompaction
    rebuilt: int = 0
    """Number of rows in the vector index segments built by this compaction."""
    quality: SearchQuality | None = None

    def execute(self) -> None:
        started, clock = datetime.now(UTC), time.monotonic()
        outcome = "failed"
        try:
            self.progress.phase(f"measuring {self.tenant}")
            self.report.before = measure_table(self.workspace, self.tenant)
            self._fold()
            self._maintain_tables()
            self._compact_memory()
            self.report.after = measure_table(self.workspace, self.tenant, self.quality)
            outcome = "done"
        except DriftlineError as error:
            outcome = error.kind
            raise
        finally:
            record = RunRecord(
                run_id=self.run_id,
                kind="compact",
                started=started.isoformat(),
                seconds=time.monotonic() - clock,
                outcome=outcome,
                report=self.report.to_dict(),
            )
            RunHistory(self.workspace.objects, self.tenant).record(record)

    # -- deltas ------------------------------------------------------------------------------

    def _fold(self) -> None:
        for entity, _ in self.workspace.sources(self.named or self.tenant):
            deltas = len(self.workspace.manifest(entity).log().deltas)
            if deltas <= (0 if self.named else self._max_deltas):
                continue
            self.progress.phase(f"folding {deltas:,} deltas of {entity}")
            with ExitStack() as stack:
                lease = self._lease(stack, entity, "source")
                if lease is not None:
                    settle(self.workspace, entity, lease)
                    lease.check()
                    self.report.folded[str(entity)] = self.workspace.manifest(entity).compact().deltas

    # -- memory ------------------------------------------------------------------------------

    def _compact_memory(self) -> None:
        """Compact the whole tenant's memory; does nothing if the request is for one source."""
        if self.named is not None:
            return
        self.progress.phase(f"folding the memory of {self.tenant}")
        try:
            folded = compact_indexes(
                self.workspace, self.tenant, self._max_memory_deltas, memory_encoding(self.workspace)
            )
        except LeaseHeld as error:
            self._skip(f"Skipped the memory of {self.tenant}: {error.what}")
            return
        self.report.folded |= {directory: each.deltas for directory, each in folded.items()}
        with ExitStack() as stack:
            if vectors_of(self.workspace.objects, self.tenant) and self._lease(stack, self.tenant, "maintenance"):
                retention = timedelta(seconds=self.request.retention_seconds)
                self.report.versions_removed += compact_vectors(self.workspace, self.tenant, retention)

    # -- tables ------------------------------------------------------------------------------

    def _maintain_tables(self) -> None:
        tables = [table for table in self.workspace.line_tables(self.tenant) if table.exists()]
        with ExitStack() as stack:
            lease = self._lease(stack, self.tenant, "maintenance") if tables else None
            if lease is not None:
                for table in tables:
                    self._optimize(table, lease)
        self._check_recall()
        self._remove_old_versions(tables)

    def _remove_old_versions(self, tables: Sequence[LineTable]) -> None:
        """Remove old versions while holding all of the tenant's leases: their files look like an unfinished write."""
        self.progress.phase(f"removing old versions of {self.tenant}")
        older_than = timedelta(seconds=self.request.retention_seconds)
        with Fence(self.workspace, self.run_id, self._skip) as fence:
            fence.take_tenant(self.tenant, [entity for entity, _ in self.workspace.sources(self.tenant)])
            for table in tables if self.tenant.directory in fence.tenants else ():
                fence.check()
                self.report.versions_removed += remove_old_versions(table, older_than)

    def _optimize(self, table: LineTable, maintenance: Lease) -> None:
        for _ in range(COMPACTION_ATTEMPTS):
            self.progress.phase(f"building indexes of {self.tenant}")
            self.report.indexes += maintain(table, thorough=True, build=partial(self._build, table))
            plan = plan_compaction(table)
            if not plan.tasks:
                return
            self.progress.phase(f"compacting fragments of {self.tenant}")
            specs = (RewriteSpec(self.tenant, table.fingerprint, task) for task in plan.tasks)
            rewritten = list(self.executor.map(rewrite_fragments, specs))
            if self.executor.has_repeated:
                maintenance.expect_garbage()
            maintenance.check()
            try:
                commit_compaction(table, plan, rewritten)
            except CommitConflict:
                continue
            return
        self._skip(
            f"Fragments of {self.tenant} are left to the next compaction: concurrent writers kept changing them."
        )

    def _build(self, table: LineTable, specs: Iterable[SegmentSpec]) -> Iterator[Segment]:
        rows = {each.fragment_id: each.physical_rows for each in table.open().get_fragments()}
        for segment in build_on(self.executor, self.tenant, table, specs):
            if segment.name == VECTOR:
                self.rebuilt += sum(rows.get(fragment, 0) for fragment in segment.fragments)
            yield segment

    def _check_recall(self) -> None:
        """Measure search quality if it is due, before old versions are removed. Raises RecallTooLow."""
        self.progress.phase(f"measuring {self.tenant}")
        now = datetime.now(UTC)
        self.quality = found = measure_if_due(self.workspace, self.tenant, self.rebuilt, now)
        measured = now if found else last_measured(self.workspace, self.tenant)
        self.report.measured = measured.isoformat() if measured else None
        if found is not None and found.recall < RECALL_FLOOR:
            self.report.after = measure_table(self.workspace, self.tenant, found)
            raise RecallTooLow(
                f"Recall@10 of the vector index is {found.recall:.1%}, below {RECALL_FLOOR:.0%}; old versions are kept",
                str(self.tenant),
                "Rebuild the vector index, and report this as a bug.",
            )

    def _lease(self, stack: ExitStack, entity: Entity, purpose: str) -> Lease | None:
        """Acquire a lease until ``stack`` closes, or return None if it is held and no entity was requested."""
        wait_seconds = self.request.wait_seconds
        try:
            if purpose == "source":
                lease = acquire_source(self.workspace, entity, self.run_id, wait_seconds=wait_seconds)
            else:
                path = lease_path(entity, purpose)
                lease = acquire(self.workspace.objects, path, self.run_id, wait_seconds=wait_seconds)
        except LeaseHeld as error:
            if self.named is not None:
                raise
            self._skip(f"Skipped {entity}: {error.what}")
            return None
        return stack.enter_context(lease)

    @property
    def _max_deltas(self) -> int:
        return DEFAULT_MAX_DELTAS if self.request.max_deltas is None else self.request.max_deltas

    @property
    def _max_memory_deltas(self) -> int:
        given, threshold = self.request.max_deltas, self.request.compaction_threshold
        return next((each for each in (given, threshold) if each is not None), DEFAULT_MAX_DELTAS)

    def _skip(self, message: str) -> None:
        self.report.skipped.append(message)
        self.progress.message(message)
