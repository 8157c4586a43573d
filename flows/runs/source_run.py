"""Execute one source's index run: lease, settle, scan, embed, commit, delete (DESIGN, "Index run", steps 1 to 6).

``SourceRun`` takes the lease, ``Survey`` finds the ``SourceChanges``, which are immutable, ``LeasedRun`` commits them,
and ``SourceTally`` counts them into the report.
"""

from __future__ import annotations

import contextvars
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain
from types import FrameType

import pyarrow as pa
import pyarrow.compute as pc

from driftline.flows.output.progress import Progress, run_stage
from driftline.flows.output.run_reports import TOTALS, SourceReport, SourceTally
from driftline.flows.runs.executors import Executor, SegmentBuilds
from driftline.flows.runs.plan import IndexPlan, SourcePlan
from driftline.flows.runs.remove import DeletionLimit, count_missing, missing_documents, unexplained_deletions
from driftline.storage.defaults import DEFAULT_MAX_DELTAS
from driftline.storage.deltas.manifest import SCHEMA, Manifest, revision, should_fold, totals
from driftline.storage.documents import INSIDE, DocumentState, SkipReason, container_of
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, DeletionRefused, LeaseLost, StaleBuild, StorageError
from driftline.storage.leases.lease import Lease, peek
from driftline.storage.objects import store_requests
from driftline.storage.redaction import RULES_VERSION
from driftline.storage.sources.commit_tree import CommitTree
from driftline.storage.sources.source import RepositorySource
from driftline.storage.workspace.records import IndexedCommit, SourceRecord
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.extraction.archives import without_opened
from driftline.tasks.extraction.compression import COMPRESSED_SUFFIXES
from driftline.tasks.extraction.extractor import current_marks
from driftline.tasks.indexing.batch import BatchResult, BatchSpec, embed_batch
from driftline.tasks.indexing.commit import ChangeSet, Committer, remove_lines_without_document, settle
from driftline.tasks.indexing.rows import Donations, find_donations
from driftline.tasks.scanning.diff import DELETED_SCHEMA
from driftline.tasks.scanning.scan import PartitionSpec, ScanResult, ScanSpec, plan_partitions, scan_partition
from driftline.tasks.scanning.since_commit import RepositoryAtCommit, WorkTreeAtCommit
from driftline.tasks.scanning.walk import Subtree
from driftline.tasks.task_context import Stopwatch

_STOPS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop a run after its current commit."""
BATCH_BYTES, LARGE_BATCH_BYTES = 4 * 1024 * 1024, 16 * 1024 * 1024
"""Text per batch: about 100,000 lines, and up to 400,000 if each worker gets several batches. A batch becomes a data
file, and a search in a bucket sends requests for each.
"""
INFLATION = 4
"""How many bytes of text to expect in each byte of a compressed file."""
BATCHES_PER_SLOT = 2
"""At least so many large batches for each worker, in which differences between them even out."""
BATCH_DOCUMENTS = 2_000
MEMBER_BATCH_BYTES, MEMBER_BATCH_DOCUMENTS = 32 * 1024 * 1024, 20_000
"""Larger batches for archive members, because each batch unpacks its archive up to its last member."""
WORTHWHILE_BYTES = 64 * 1024
"""Minimum text size for a task on a worker; embedding that much takes ten times as long as sending the task."""
BATCHES_PER_COMMIT = 6
COMMIT_SECONDS = 15.0
"""A crash loses at most so many batches of BATCH_BYTES, or about so many seconds of work, and the running batches."""
AtCommit = WorkTreeAtCommit | RepositoryAtCommit


@dataclass(frozen=True, slots=True)
class RunContext:
    """The workspace, executor, locks and settings that the run of one source uses.

    Concurrent sources share the ``committing`` lock: they commit to the same table, one after another.
    """

    plan: IndexPlan
    source: SourcePlan
    executor: Executor
    progress: Progress
    run_id: str
    builds: SegmentBuilds
    committing: AbstractContextManager[object]
    tally: SourceTally
    watch: Stopwatch
    owner: Entity
    """The entity whose table has the source's lines."""

    @property
    def workspace(self) -> Workspace:
        return self.plan.workspace

    @property
    def entity(self) -> Entity:
        return self.source.entity

    @property
    def manifest(self) -> Manifest:
        return self.workspace.manifest(self.entity)

    @property
    def completes_indexes(self) -> bool:
        """Whether the run also updates the search indexes that an earlier run left behind."""
        return self.plan.request.indexes == "all"

    def is_partial(self, scan_range: ScanRange) -> bool:
        """Return whether the files of a repository outside ``scan_range`` are known to be unchanged."""
        return scan_range.paths is not None and isinstance(self.source.source, RepositorySource)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        with self.watch.phase(phase), store_requests.phase(phase):
            yield


# -- what there is to do ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScanRange:
    """What a run scans: all files, or those at ``paths``, which git lists as changed since the commit ``base``.

    ``at`` is the commit that the scan finds, if the run can record one; ``full_scan_reason`` is why it scans all files.
    """

    paths: tuple[str, ...] | None = None
    at: AtCommit | None = None
    base: str | None = None
    full_scan_reason: str = ""


@dataclass(frozen=True, slots=True)
class SourceChanges:
    """The work of a run, as its ``scans`` found it.

    ``changes`` are the new and changed documents, by path. ``retouched`` are documents with new metadata and the same
    content. ``missing`` are those to delete: none if the listing is incomplete.
    """

    scan_range: ScanRange
    scans: tuple[ScanResult, ...]
    changes: pa.Table
    retouched: pa.Table
    missing: pa.Table

    @property
    def is_listed(self) -> bool:
        """Whether all files in the range were listed."""
        return all(scan.complete for scan in self.scans)

    @property
    def is_large(self) -> bool:
        """Whether the changes are worth commits of their own."""
        size_bytes = pc.sum(self.changes["size_bytes"]).as_py() or 0
        return len(self.changes) > BATCH_DOCUMENTS // 4 or size_bytes > BATCH_BYTES // 4

    @property
    def was_empty(self) -> bool:
        """Whether the manifest had no rows before the run."""
        return self.scan_range.paths is None and not any(scan.known for scan in self.scans)


@dataclass(frozen=True, slots=True)
class Survey:
    """Determines the work of a source's run. Writes nothing, and needs no lease."""

    context: RunContext

    def last_record(self) -> SourceRecord | None:
        """Return the last run's record, unless it was for another location."""
        known = self.context.workspace.readable_source(self.context.entity)
        return known if known is not None and known.same_location(self.context.source.record) else None

    def has_other_location(self) -> bool:
        """Return whether the main index is of another folder or bucket, if it has no ``last_record``.

        A changed link or ``--rebind`` may be a mistake, so such a run writes nothing if it may not delete documents.
        """
        context = self.context
        if context.plan.request.branch is not None or isinstance(context.source.source, RepositorySource):
            return False
        return context.workspace.readable_source(context.entity) is not None

    def refuse_older(self, last: IndexedCommit | None) -> None:
        """Raise StaleBuild if a later build already indexed a later commit in the main index.

        A lower build number alone does not mean an older build: a CI system may restart its numbering.
        """
        request = self.context.plan.request
        if request.branch is not None or request.build is None or last is None or last.build is None:
            return
        if request.build >= last.build:
            return
        at = self._current_commit()
        if at is not None and at.commit_id != last.id and at.committed <= last.committed:
            what = f"Build {last.build} already indexed commit {last.id[:12]}, which is newer than {at.commit_id[:12]}"
            raise StaleBuild(what, str(self.context.entity))

    def unchanged_at(self) -> int | None:
        """Return the revision of the index if it is at the repository's commit, so that no lease is needed, or None."""
        context = self.context
        if not isinstance(context.source.source, RepositorySource):  # a working tree would need several git processes
            return None
        known = context.workspace.readable_source(context.entity)
        if known is None or (known.uri, known.link) != (context.source.record.uri, context.source.record.link):
            return None
        at = self._commit()
        if not isinstance(at, RepositoryAtCommit):
            return None
        if context.source.superseded is not None or context.plan.request.build is not None:
            return None
        lease = peek(context.workspace.objects, context.workspace.lease_of(context.entity))
        is_free = lease.is_free and not lease.holder_died
        lags = lease.indexes_lag and context.completes_indexes
        if not is_free or lags or not at.is_indexed(known.commit, lease.token):
            return None
        return revision(lease.token + 1, 0)  # the revision of a run that took the lease and found nothing

    def scan_range(self, before: SourceRecord | None, token: int | None = None) -> ScanRange:
        """Return the request's paths, or the paths changed since the commit of ``before``, or all files.

        ``token`` is the current lease's, or None for a dry run.
        """
        source, request = self.context.source, self.context.plan.request
        if request.paths is not None and not source.joined:
            return ScanRange(request.paths)
        if not request.by_commit and not isinstance(source.source, RepositorySource):
            return ScanRange()
        at = self._commit()
        if at is None:
            return ScanRange(full_scan_reason="--full" if source.commit else "git cannot list the changes")
        last = before.commit if before is not None else None
        changes = at.changes_since(last, token)
        base = last.id if last is not None and changes.paths is not None else None
        return ScanRange(changes.paths, at, base, changes.why)

    def work(self, scan_range: ScanRange) -> SourceChanges:
        """Scan the files in ``scan_range``, and compare them with the manifest."""
        context = self.context
        source, now_ns = context.source, time.time_ns()
        context.progress.phase(f"scanning {source.source.uri}")
        context.tally.report.partial = scan_range.paths is not None
        parallel = context.executor.remote or not source.source.is_local
        with context.timed("scan"):
            slots = context.executor.slots if parallel and scan_range.paths is None else 1
            parts = plan_partitions(source.source, slots, source.rules)
            specs = [PartitionSpec(self.scan_spec(part), context.entity, now_ns, scan_range.paths) for part in parts]
            scans = run_stage(
                f"scan {context.entity}",
                lambda: list(context.executor.map(scan_partition, specs)),
                lambda found: f"{sum(scan.listed for scan in found):,} documents listed",
                repeatable=True,
            )
        changes = pa.concat_tables([table for scan in scans for table in (scan.diff.new, scan.diff.candidates)])
        missing = missing_documents(scans)
        if missing is None:
            context.progress.message("Parts of the source could not be listed, so this run deletes nothing.")
            missing = DELETED_SCHEMA.empty_table()
        retouched = pa.concat_tables([scan.diff.retouched for scan in scans])
        return SourceChanges(scan_range, tuple(scans), changes.sort_by("path"), retouched, missing)

    def scan_spec(self, subtrees: tuple[Subtree, ...] = ()) -> ScanSpec:
        """Return the settings of the scan of ``subtrees``."""
        source, plan = self.context.source, self.context.plan
        spec = ScanSpec.of(source.source, source.record, plan.model.fingerprint, source.claims)
        return replace(spec, subtrees=subtrees, full=plan.request.full)

    def donations(self, work: SourceChanges) -> Donations:
        """Find lines that a branch or the main index already embedded."""
        plan, source = self.context.plan, self.context.source
        if plan.request.full or plan.replaces is not None or plan.new_workspace:
            return {}
        paths = work.changes["path"].combine_chunks()
        return find_donations(plan.workspace, source.entity, paths, plan.model.fingerprint, source.superseded)

    def batches(self, work: SourceChanges, donations: Donations, *, dry_run: bool = False) -> Iterator[BatchSpec]:
        """Split the changes into batches."""
        changes, executor = work.changes, self.context.executor
        paths = changes["path"].to_pylist()
        sizes = [*map(text_bytes, paths, changes["size_bytes"].to_pylist())]
        limit = batch_bytes(sum(sizes), executor)
        if donations:
            limit = min(limit, BATCH_BYTES)  # the copied lines of a batch are in memory together
        members = [INSIDE in path for path in paths]
        for start, end in cut(sizes, members, limit):
            yield self.batch(work, changes[start:end], donations, dry_run=dry_run)

    def batch(
        self, work: SourceChanges, changes: pa.Table, donations: Donations, *, dry_run: bool = False
    ) -> BatchSpec:
        """Return one batch with ``changes``, which are a slice of the work's."""
        # Copy, because pickling a slice sends the whole underlying table.
        rows = changes.take(pa.array(range(len(changes)), pa.int64())).combine_chunks()
        paths = rows["path"].to_pylist()
        donated = {path: donations[path] for path in paths if path in donations} if donations else {}
        containers = frozenset[str]().union(*(scan.container_only_paths for scan in work.scans)).intersection(paths)
        how = self.scan_spec().how
        return BatchSpec(self.context.source.source, self.context.entity, rows, dry_run, donated, how, containers)

    def _commit(self) -> AtCommit | None:
        """Return the source's current commit, for a run that may scan only the changes since another commit."""
        if self.context.plan.request.full or self.context.plan.replaces is not None:
            return None
        return self._current_commit()

    def _current_commit(self) -> AtCommit | None:
        """Return the source's current commit, or None if git does not report one."""
        source = self.context.source
        limits = source.record.max_file_bytes, source.record.max_document_bytes, source.record.redact, RULES_VERSION
        reads = source.record.archives, source.record.notebook_outputs
        fingerprint = self.context.plan.model.fingerprint
        settings = (source.record.include, source.record.exclude, *limits, *reads, fingerprint)
        rules = (*settings, sorted(current_marks()), *source.claims)
        if isinstance(source.source, RepositorySource):
            return RepositoryAtCommit.of(source.source, rules)
        return WorkTreeAtCommit.of(source.source.uri, rules) if source.source.is_local else None


# -- doing it --------------------------------------------------------------------------------------


class SourceRun:
    """One source's run, until it holds the source's lease; fills in ``report`` step by step."""

    def __init__(
        self,
        plan: IndexPlan,
        source: SourcePlan,
        executor: Executor,
        progress: Progress,
        run_id: str,
        builds: SegmentBuilds,
        committing: AbstractContextManager[object] | None = None,
    ) -> None:
        watch = Stopwatch()
        report = SourceReport(str(source.entity), source.source.uri, commit=source.commit, phases=watch.seconds)
        report.branch, report.branch_cut = plan.request.branch, source.branch_cut
        report.unmatched_excludes = source.unmatched
        self.report = report
        tally, owner = SourceTally(report, source.record.archives), plan.workspace.table_owner(source.entity)
        lock = committing or nullcontext()
        self._context = RunContext(plan, source, executor, progress, run_id, builds, lock, tally, watch, owner)
        self._survey = Survey(self._context)
        self._fetched: Future[int | None] | None = None
        self._lease: Lease | None = None

    @property
    def workspace(self) -> Workspace:
        return self._context.workspace

    @property
    def entity(self) -> Entity:
        return self._context.entity

    @property
    def owner(self) -> Entity:
        return self._context.owner

    @property
    def joined(self) -> bool:
        return self._context.source.joined

    @property
    def indexes_lag(self) -> bool:
        """Whether this run has to update the search indexes."""
        return self._lease is not None and self._lease.indexes_lag

    def indexes_are_current(self) -> None:
        """Record that the search indexes were updated: until then, the next run updates them, even if unchanged."""
        if self._lease is not None:
            self._lease.indexes_are_current()

    def execute(self) -> None:
        """Update the index of the source.

        Raises LeaseHeld, LeaseLost, DeletionRefused, StorageError, ExecutorError.
        """
        request = self._context.plan.request
        if request.dry_run:
            self._dry_run()
            return
        with ExitStack() as stack:
            leased = self._begin(stack, self._survey.unchanged_at(), request.wait_seconds)
            if leased is not None:
                leased.complete()

    def fetch_ahead(self, fetches: ThreadPoolExecutor) -> None:
        """Prefetch a changed repository's commit once in ``fetches``; ``begin`` reports failures."""
        source = self._context.source.source
        if self._fetched is not None or not isinstance(source, RepositorySource) or source.tree.remote.is_local:
            return
        with suppress(RuntimeError):  # the run was interrupted and shut ``fetches`` down
            self._fetched = fetches.submit(contextvars.copy_context().run, self._fetch, source.tree)

    def _fetch(self, tree: CommitTree) -> int | None:
        """Return the result of ``unchanged_at``; if it is None, fetch the commit first."""
        unchanged_at = self._survey.unchanged_at()
        if unchanged_at is None:
            tree.mirror.ensure(tree.known_commit)
        return unchanged_at

    def begin(self, stack: ExitStack, marker_token: Callable[[Entity], int]) -> LeasedRun | None:
        """Take the lease without waiting, and scan; ``stack`` releases it. Return None if the source is unchanged.

        For a source in a group, ``marker_token`` comes from ``marker_tokens``. Raises LeaseHeld, LeaseLost,
        StorageError, ExecutorError.
        """
        fetched = self._fetched
        if fetched is not None and fetched.cancel():  # cancelling fails once it started
            fetched = None
        unchanged_at = self._survey.unchanged_at() if fetched is None else fetched.result()
        return self._begin(stack, unchanged_at, 0.0, marker_token)

    def _begin(
        self,
        stack: ExitStack,
        unchanged_at: int | None,
        wait_seconds: float,
        marker_token: Callable[[Entity], int] | None = None,
    ) -> LeasedRun | None:
        context, tally = self._context, self._context.tally
        workspace, entity, model = context.workspace, context.entity, context.plan.model
        if unchanged_at is not None:
            tally.unchanged(context.manifest.read(columns=[*TOTALS]), unchanged_at)
            return None
        with context.timed("lease"):
            lease = stack.enter_context(
                acquire_source(workspace, entity, context.run_id, wait_seconds=wait_seconds, marker_token=marker_token)
            )
        self._lease = lease
        with context.timed("settle"):
            lags = lease.indexes_lagged and context.completes_indexes
            lease.indexes_lag |= settle(workspace, entity, lease) > 0 or lags
            before = self._survey.last_record()
            reached = (before.commit or before.reached) if before else None
            self._survey.refuse_older(reached)
            scan_range = self._survey.scan_range(before, lease.token)
            record = replace(context.source.record, reached=reached)
            is_moved = is_other_folder(context) or (before is None and self._survey.has_other_location())
            if not is_moved:
                workspace.bind_source(entity, record)
            table = workspace.lines(entity, model.fingerprint)
            committer = Committer(workspace, entity, lease, context.run_id, table, model.dim)
            if len(workspace.line_tables(entity)) > 1:
                lease.indexes_lag |= remove_lines_without_document(committer) > 0
        work = self._surveyed(scan_range)
        if is_moved:
            if deletion_refused(context, work, Counter()):  # the missing documents may only be renamed
                results = context.executor.map(embed_batch, self._survey.batches(work, {}, dry_run=True))
                refused = deletion_refused(context, work, Counter(chain.from_iterable(r.new_hashes for r in results)))
                if refused:
                    raise refused
            workspace.bind_source(entity, record)
        return LeasedRun(context, self._survey, committer, record, work)

    def _surveyed(self, scan_range: ScanRange) -> SourceChanges:
        """Return the work in ``scan_range``, and count what its scans found."""
        tally = self._context.tally
        if scan_range.at is not None:
            self.report.commit = scan_range.at.commit_id
        self.report.base, self.report.full_scan_reason = scan_range.base, scan_range.full_scan_reason
        work = self._survey.work(scan_range)
        for scan in work.scans:
            tally.scanned(scan)
        return work

    def _dry_run(self) -> None:
        context, tally = self._context, self._context.tally
        work = self._surveyed(self._survey.scan_range(self._survey.last_record()))
        for result in context.executor.map(embed_batch, self._survey.batches(work, {}, dry_run=True)):
            tally.embedded(result)
        tally.retouched(work.retouched)
        refused = deletion_refused(context, work, tally.new_hashes)
        if refused:
            raise refused
        tally.deleted(work.missing)
        tally.totals(context.manifest.read(columns=[*TOTALS]), is_partial=context.is_partial(work.scan_range))


def deletion_refused(context: RunContext, work: SourceChanges, new_hashes: Counter[str]) -> DeletionRefused | None:
    """Return the error if deleting the missing documents would exceed the deletion limit.

    A missing document whose content is among ``new_hashes`` was only renamed.
    """
    documents = unexplained_deletions(work.missing, context.source.rules, context.source.claims)
    if not len(documents):
        return None
    if work.scan_range.paths is None:
        known = len(documents) + context.tally.seen_before
    else:  # the limit applies to the whole manifest
        documents_before, _ = totals(context.manifest.read(columns=["lines", "reason"]))
        known = documents_before - context.tally.report.states[DocumentState.NEW]
    limit, gone = DeletionLimit.of_documents(context.plan.request), count_missing(documents, new_hashes)
    is_other = is_other_folder(context) and not any(scan.listed for scan in work.scans)
    return limit.refusal(gone, known, "documents", str(context.entity), is_other)


def is_other_folder(context: RunContext) -> bool:
    """Return whether another folder has taken the place of the one that the source's last run scanned."""
    known, inode = context.workspace.readable_source(context.entity), context.source.record.inode
    if known is None or known.inode is None or inode is None:
        return False
    return known.uri == context.source.record.uri and known.inode != inode


@dataclass(frozen=True, slots=True)
class LeasedRun:
    """A source's run that holds the lease: embeds and commits ``work``. ``committer`` alone commits to the source."""

    context: RunContext
    survey: Survey
    committer: Committer
    record: SourceRecord
    work: SourceChanges

    @property
    def entity(self) -> Entity:
        return self.context.entity

    @property
    def owner(self) -> Entity:
        return self.context.owner

    def complete(self) -> None:
        """Embed, commit and delete. Raises the same errors as ``SourceRun.execute``."""
        stage, after = f"embed {self.entity}", (f"scan {self.entity}",)
        refused = run_stage(stage, self._embed_and_delete, lambda _: self.context.tally.in_words(), after=after)
        self.end(refused)
        if refused:
            raise refused

    def end(self, refused: DeletionRefused | None = None, changes: ChangeSet | None = None) -> None:
        """Record the state that the run reached, and fill in the report's totals.

        ``changes`` are the changes of the run's only commit, if the caller knows them. Raises LeaseLost, StorageError.
        """
        workspace, entity, tally = self.context.workspace, self.entity, self.context.tally
        tally.report.revision = revision(self.committer.lease.token, self.committer.batch)
        if self.work.scan_range.at is not None and refused is None and self._is_complete():
            at = self._reached(self.work.scan_range.at)
            workspace.bind_source(entity, replace(self.record, commit=at, reached=at or self.record.reached))
        workspace.note_branch(entity, self.context.plan.request.build, self.context.source.own_commit)
        with self.context.timed("totals"):
            is_known = changes is not None and self.work.was_empty
            documents = (
                changes.rows if changes is not None and is_known else self.context.manifest.read(columns=[*TOTALS])
            )
            tally.totals(documents, is_partial=self.context.is_partial(self.work.scan_range))
            self._fold_deltas()

    # -- together with other sources ---------------------------------------------------------

    def shared_batch(self) -> BatchSpec | None:
        """Return the changes as a batch to commit with other sources, or None if the caller must call ``complete``."""
        work, plan = self.work, self.context.plan
        if not len(work.changes) or work.is_large or plan.replaces is not None:
            return None
        if len(work.missing) > DeletionLimit.of_documents(plan.request).always:
            return None
        if any(scan.opened for scan in work.scans):  # must be marked after their members are committed
            return None
        if self.survey.donations(work):
            return None
        return self.survey.batch(work, work.changes, {})

    def shared_changes(self, result: BatchResult) -> ChangeSet:
        """Return all of the run's changes for one commit, including the ``result`` of ``shared_batch``."""
        retouched = self.work.retouched
        rows = pa.concat_tables([_as_manifest(retouched), result.rows]) if len(retouched) else result.rows
        return ChangeSet(rows, result.fragments, result.replaced, tuple(self.work.missing["path"].to_pylist()))

    def committed(self, result: BatchResult, changes: ChangeSet) -> None:
        """Count the changes of a commit shared with other sources."""
        tally = self.context.tally
        tally.retouched(self.work.retouched)
        tally.embedded(result)
        tally.committed(changes.rows, [result])
        self.committer.lease.indexes_lag |= changes.touches_lines or result.lines > 0  # the group owns their fragments
        tally.deleted(self.work.missing)

    # -- embed and commit --------------------------------------------------------------------

    def _embed_and_delete(self) -> DeletionRefused | None:
        self._embed()
        refused = self._delete()
        if refused is None and self.work.is_listed:
            self._mark_opened()
        return refused

    def _embed(self) -> None:
        context, work = self.context, self.work
        with context.timed("batches"):
            if len(work.retouched):
                context.tally.retouched(work.retouched)
                self._commit_changes(ChangeSet(_as_manifest(work.retouched)))
            context.progress.phase("embedding", total=len(work.changes))
            pending: list[BatchResult] = []
            since = time.monotonic()
            results = context.executor.map(embed_batch, self.survey.batches(work, self.survey.donations(work)))
            while (result := self._next(results, pending)) is not None:
                context.tally.embedded(result)
                context.progress.advance(result.documents - result.reported[0], result.lines - result.reported[1])
                pending.append(result)
                count = max(len(pending), sum(each.bytes_read for each in pending) // BATCH_BYTES)
                if count >= BATCHES_PER_COMMIT or time.monotonic() - since > COMMIT_SECONDS:
                    self._commit(pending)
                    pending, since = [], time.monotonic()
            self._commit(pending)
            if context.executor.has_repeated:
                self.committer.lease.expect_garbage()

    def _next(self, results: Iterator[BatchResult], pending: list[BatchResult]) -> BatchResult | None:
        """Return the next result, or None at the end. If the wait is interrupted, commit the pending results."""
        try:
            return next(results, None)
        except KeyboardInterrupt:
            self.context.executor.stop()
            self._commit(pending)
            raise

    def _commit(self, results: Sequence[BatchResult]) -> None:
        rows = [result.rows for result in results if len(result.rows)]
        if not rows:
            return
        changes = ChangeSet(
            rows=pa.concat_tables(rows),
            fragments=tuple(f for result in results for f in result.fragments),
            replaced=tuple(path for result in results for path in result.replaced),
        )
        with interrupt_deferred():
            self._commit_changes(changes)
            self.context.tally.committed(changes.rows, results)
            self.committer.lease.indexes_lag |= changes.touches_lines
        if changes.fragments:
            self.context.builds.committed(self.owner, self.committer.table)

    def _commit_changes(self, changes: ChangeSet, phase: str = "commit") -> None:
        def commit() -> None:
            with self.context.committing:
                self.committer.commit(changes)

        counts = f"{len(changes.rows):,} documents committed, {len(changes.removed):,} removed"
        with self.context.timed(phase):
            run_stage(f"commit {self.entity}", commit, lambda _: counts, after=(f"embed {self.entity}",))

    def _delete(self) -> DeletionRefused | None:
        """Delete missing documents; return the refusal if there are suspiciously many."""
        missing, tally = self.work.missing, self.context.tally
        if not len(missing):
            return None
        refused = deletion_refused(self.context, self.work, tally.new_hashes)
        if refused is None:
            self._commit_changes(ChangeSet(SCHEMA.empty_table(), removed=tuple(missing["path"].to_pylist())), "delete")
            self.committer.lease.indexes_lag |= pc.any(pc.greater(missing["lines"], 0)).as_py()
            tally.deleted(missing)
        return refused

    def _mark_opened(self) -> None:
        """Record which archives are completely indexed: the next run reopens the others.

        Call it last, after all members are committed and missing ones deleted. An archive is incomplete if it changed
        since the scan, or if a member could not be read.
        """
        tally = self.context.tally
        incomplete = {container_of(path) for path in tally.temporarily_skipped()}
        opened = {p: each for scan in self.work.scans for p, each in scan.opened.items() if p not in incomplete}
        mark, rows = self.survey.scan_spec().how.opened, []
        for row in self.context.manifest.get([*opened], columns=SCHEMA.names).to_pylist() if opened else ():
            archive = opened[row["path"]]
            if row["hash"] == archive.content_hash:
                why = archive.reason if row["reason"] == SkipReason.ARCHIVE else None
                row["extractor"] = "+".join(filter(None, (without_opened(row["extractor"]), mark)))
                rows.append(row | ({"reason": why.value} if why is not None else {}))
        if rows:
            self._commit_changes(ChangeSet(pa.Table.from_pylist(rows, SCHEMA)))
        tally.opened({row["path"]: row["reason"] for row in rows if row["reason"] is not None})

    # -- the end -----------------------------------------------------------------------------

    def _is_complete(self) -> bool:
        """Return whether every scanned file is indexed, or skipped until it changes."""
        return self.work.is_listed and not self.context.tally.temporarily_skipped()

    def _reached(self, at: AtCommit) -> IndexedCommit | None:
        """Return the commit and manifest revision to record at the end of the run."""
        token, batch, before = self.committer.lease.token, self.committer.batch, self.record.reached
        reached = at.commit_to_record(token)
        if reached is None:
            return None
        known = before.revision if before is not None and before.token == token - 1 else 0
        build = self.context.plan.request.build
        return replace(reached, revision=revision(token, batch) if batch else known, build=build)

    def _fold_deltas(self) -> None:
        """Count the deltas, and fold many small deltas if the run committed: there may be no scheduled compaction."""
        manifest, lease = self.context.manifest, self.committer.lease
        log = manifest.log()
        deltas = len(log.deltas)
        if self.committer.batch and should_fold(log):
            try:
                lease.check()
                manifest.compact()
                deltas = 0
            except (StorageError, CorruptFile, LeaseLost) as error:  # this run's commits are kept
                self.context.progress.message(f"Cannot fold the deltas of {self.entity}: {error}")
        self.context.tally.report.deltas = deltas
        if deltas > DEFAULT_MAX_DELTAS:
            self.context.progress.message(
                f"{self.entity} has {deltas:,} deltas, which slow down runs. Run: driftline compact"
            )


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Defer a first Ctrl-C or SIGTERM, but not a second one, until the context exits and its commits are recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Each signal has its own handler: shells start background jobs with Ctrl-C ignored, but not SIGTERM.
    before = {number: handler for number in _STOPS if callable(handler := signal.getsignal(number))}
    received: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))
        if len(received) > 1:
            before[number](number, frame)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        number, frame = received[0]
        before[number](number, frame)


def batch_bytes(total: int, executor: Executor) -> int:
    """Return the maximum batch size for ``total`` bytes of changes, so that each worker gets a worthwhile share.

    Each gets the same number of large batches.
    """
    share = -(-total // executor.slots)
    count = max(BATCHES_PER_SLOT, -(-share // LARGE_BATCH_BYTES))
    limit = max(BATCH_BYTES, -(-share // count))
    return max(WORTHWHILE_BYTES, min(share, limit)) if executor.remote else limit


def text_bytes(path: str, size_bytes: int) -> int:
    """Return the expected size of a document's text, which is in memory with that of its whole batch.

    Examples:
        >>> text_bytes("app.log", 100), text_bytes("app.log.gz", 100)
        (100, 400)
    """
    return size_bytes * INFLATION if path.lower().endswith(COMPRESSED_SUFFIXES) else size_bytes


def cut(sizes: Sequence[int], members: Sequence[bool], limit: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of batches of about ``limit`` bytes; ``members`` says which documents are in an archive.

    What a batch lacks to its limit is added to the next one's, or the last batch would get what all others lack.

    Examples:
        >>> [*cut([4, 4, 4, 4, 4, 4], [False] * 6, 9)]
        [(0, 2), (2, 4), (4, 6)]
    """
    most_documents = BATCH_DOCUMENTS * max(1, limit // BATCH_BYTES)
    start, size, lacking = 0, 0, 0
    for at, (size_bytes, is_member) in enumerate(zip(sizes, members, strict=True)):
        most = max(limit, MEMBER_BATCH_BYTES) if is_member else limit + lacking
        documents = MEMBER_BATCH_DOCUMENTS if is_member else most_documents
        if at > start and (size + size_bytes > most or at - start >= documents):
            yield start, at
            start, size, lacking = at, 0, min(max(most - size, 0), limit // 8)
        size += size_bytes
    if start < len(sizes):
        yield start, len(sizes)


def _as_manifest(retouched: pa.Table) -> pa.Table:
    """Convert ``diff.CHANGE_SCHEMA`` rows with unchanged content to manifest rows."""
    return retouched.select(SCHEMA.names).cast(SCHEMA)
