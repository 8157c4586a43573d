"""Execute one source's index run: lease, settle, scan, embed, commit, delete (DESIGN, "Index run", steps 1 to 6)."""

from __future__ import annotations

import contextvars
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from driftline.flows.output.progress import Progress, run_stage
from driftline.flows.output.run_reports import SourceReport
from driftline.flows.runs.executors import Executor, SegmentBuilds
from driftline.flows.runs.plan import IndexPlan, SourcePlan
from driftline.storage.defaults import DEFAULT_MAX_DELTAS
from driftline.storage.deltas.manifest import SCHEMA, revision, totals
from driftline.storage.documents import INSIDE, DocumentState, SkipReason, container_of
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, DeletionRefused, LeaseLost, StorageError
from driftline.storage.leases.lease import Lease, peek
from driftline.storage.objects import store_requests
from driftline.storage.redaction import RULES_VERSION
from driftline.storage.sources.repository import CommitTree
from driftline.storage.sources.source import RepositorySource
from driftline.storage.workspace.records import IndexedCommit, SourceRecord
from driftline.storage.workspace.workspace import acquire_source
from driftline.tasks.extraction.archives import without_opened
from driftline.tasks.extraction.extractor import current_marks
from driftline.tasks.extraction.extractor_versions import ENDS_MARK, MISSING_MARK
from driftline.tasks.indexing.batch import BatchResult, BatchSpec, embed_batch
from driftline.tasks.indexing.commit import ChangeSet, Committer, remove_strays, settle
from driftline.tasks.indexing.rows import Donations, find_donations, only
from driftline.tasks.scanning.overlap import claimed
from driftline.tasks.scanning.path_patterns import Matcher
from driftline.tasks.scanning.scan import (
    PartitionSpec,
    ScanResult,
    ScanSpec,
    is_container,
    plan_partitions,
    scan_partition,
)
from driftline.tasks.scanning.since_commit import RepositoryAtCommit, WorkTreeAtCommit
from driftline.tasks.scanning.walk import Subtree
from driftline.tasks.task_context import Stopwatch

_STOPS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop a run after its current commit."""
BATCH_BYTES = 4 * 1024 * 1024
"""Text per batch: about 100,000 lines, with 100 MB of vectors."""
BATCH_DOCUMENTS = 2_000
MEMBER_BATCH_BYTES, MEMBER_BATCH_DOCUMENTS = 32 * 1024 * 1024, 20_000
"""Larger batches for archive members, because each batch unpacks its archive up to its last member."""
WORTHWHILE_BYTES = 64 * 1024
"""Minimum text size for a task on a worker; embedding that much takes ten times as long as sending the task."""
BATCHES_PER_COMMIT = 8
COMMIT_SECONDS = 15.0
"""A crash loses at most this many batches, or about this many seconds of work."""
FOLDED_BY_RUNS = 150
"""At this many deltas, a run folds them itself; a scheduled compaction would have folded them before."""
MAX_FOLD_BYTES = 8 * 1024 * 1024
"""Maximum size of deltas that a run folds, which takes a fraction of a second: some 100,000 documents."""
GUARDED_DELETIONS = 100
"""Up to this many deletions are always allowed."""


_PASSING = frozenset({SkipReason.UNREADABLE, SkipReason.UNSTABLE})
"""Temporary reasons, which may not apply in the next run."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a run that holds its lease.

    ``changes`` lists the new and changed documents of ``scans``, in order.
    """

    committer: Committer
    record: SourceRecord
    scans: list[ScanResult]
    changes: pa.Table

    @classmethod
    def of(cls, committer: Committer, record: SourceRecord, scans: list[ScanResult]) -> Self:
        """Return the work in ``scans``."""
        changes = pa.concat_tables([t for scan in scans for t in (scan.diff.new, scan.diff.candidates)])
        return cls(committer, record, scans, changes.sort_by("path"))


class SourceRun:
    """One source's run; fills in ``report`` step by step. ``indexes_lag`` is set once lines changed.

    Concurrent sources share the ``committing`` lock: they commit to the same table, one after another.
    """

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
        self.report = SourceReport(str(source.entity), source.source.uri, commit=source.commit)
        self.report.branch, self.report.branch_cut = plan.request.branch, source.branch_cut
        self.indexes_lag = False
        self.workspace = plan.workspace
        self.entity = source.entity
        self.owner = plan.workspace.table_owner(source.entity)
        self.joined = source.joined
        self._committing = committing or nullcontext()
        self._plan = plan
        self._source = source
        self._executor = executor
        self._progress = progress
        self._run_id = run_id
        self._builds = builds
        self._watch = Stopwatch()
        self.report.phases = self._watch.seconds
        self._new_hashes = Counter[str]()
        self._work_tree: WorkTreeAtCommit | RepositoryAtCommit | None = None
        self._only: tuple[str, ...] | None = None
        self._donations: Donations = {}
        self._container_only_paths = frozenset[str]()
        self._fetched: Future[int | None] | None = None
        self._work: _Work

    def execute(self) -> None:
        """Update the index of the source.

        Raises LeaseHeld, LeaseLost, DeletionRefused, StorageError, ExecutorError.
        """
        request = self._plan.request
        if request.dry_run:
            self._dry_run()
            return
        if (unchanged_at := self._unchanged_at()) is not None:
            self._count_unchanged(unchanged_at)
            return
        with ExitStack() as stack:
            self._begin(stack, request.wait_seconds)
            self.complete()

    def fetch_ahead(self, fetches: ThreadPoolExecutor) -> None:
        """Prefetch a changed repository's commit once in ``fetches``; ``begin`` reports failures."""
        source = self._source.source
        if self._fetched is not None or not isinstance(source, RepositorySource) or source.tree.remote.is_local:
            return
        with suppress(RuntimeError):  # the run was interrupted and shut ``fetches`` down
            self._fetched = fetches.submit(contextvars.copy_context().run, self._fetch, source.tree)

    def _fetch(self, tree: CommitTree) -> int | None:
        """Return the result of ``_unchanged_at``; if it is None, fetch the commit first."""
        unchanged_at = self._unchanged_at()
        if unchanged_at is None:
            tree.mirror.ensure(tree.known_commit)
        return unchanged_at

    def begin(self, stack: ExitStack, marker_token: Callable[[Entity], int]) -> bool:
        """Take the lease without waiting, and scan; ``stack`` releases it. Return False if the source is unchanged.

        For a source in a group, ``marker_token`` comes from ``marker_tokens``. Raises LeaseHeld, LeaseLost,
        StorageError, ExecutorError.
        """
        fetched = self._fetched
        if fetched is not None and fetched.cancel():  # cancelling fails once it started
            fetched = None
        unchanged_at = self._unchanged_at() if fetched is None else fetched.result()
        if unchanged_at is not None:
            self._count_unchanged(unchanged_at)
            return False
        self._begin(stack, 0.0, marker_token)
        return True

    def _begin(
        self, stack: ExitStack, wait_seconds: float, marker_token: Callable[[Entity], int] | None = None
    ) -> None:
        workspace, entity = self.workspace, self.entity
        with self._timed("lease"):
            lease = stack.enter_context(
                acquire_source(workspace, entity, self._run_id, wait_seconds=wait_seconds, marker_token=marker_token)
            )
        with self._timed("settle"):
            self.indexes_lag = lease.taken_over
            self.indexes_lag |= settle(workspace, entity, lease) > 0
            before = self._record_before()
            self._narrow(before, lease.token)
            reached = (before.commit or before.reached) if before else None
            record = replace(self._source.record, reached=reached)
            workspace.bind_source(entity, record)
            table = workspace.lines(entity, self._plan.model.fingerprint)
            committer = Committer(workspace, entity, lease, self._run_id, table, self._plan.model.dim)
            if len(workspace.line_tables(entity)) > 1:
                self.indexes_lag |= remove_strays(committer) > 0
        self._work = _Work.of(committer, record, self._scan())

    @property
    def committer(self) -> Committer:
        """After ``begin``, the only place that commits to the source."""
        return self._work.committer

    def complete(self) -> None:
        """Embed, commit and delete the changes found by ``begin``. Raises the same errors as ``execute``."""
        scans, committer = self._work.scans, self._work.committer
        embed, after = partial(self._embed_and_delete, scans, committer), (f"scan {self.entity}",)
        refused = run_stage(f"embed {self.entity}", embed, self._said, after=after)
        self.end(refused)
        if refused:
            raise refused

    def end(self, refused: DeletionRefused | None = None, changes: ChangeSet | None = None) -> None:
        """Record the state that the run reached, and fill in the report's totals.

        ``changes`` are the changes of the run's only commit, if the caller knows them. Raises LeaseLost, StorageError.
        """
        workspace, entity, committer, record = self._plan.workspace, self.entity, self.committer, self._work.record
        token, batch = committer.lease.token, committer.batch
        self.report.revision = revision(token, batch)
        if self._work_tree is not None and refused is None and self._is_complete(self._work.scans):
            at = self._reached(token, batch, record.reached)
            workspace.bind_source(entity, replace(record, commit=at, reached=at or record.reached))
        workspace.note_build(entity, self._plan.request.build)
        with self._timed("totals"):
            was_empty = self._only is None and not any(scan.known for scan in self._work.scans)
            self._count_totals(changes.rows if changes is not None and was_empty else None)
            self._count_deltas(committer.lease if batch else None)

    # -- together with other sources ---------------------------------------------------------

    def is_large(self) -> bool:
        """Return whether the changes found by ``begin`` are worth separate commits."""
        changes = self._work.changes
        return len(changes) > BATCH_DOCUMENTS // 4 or (pc.sum(changes["size_bytes"]).as_py() or 0) > BATCH_BYTES // 4

    def shared_batch(self) -> BatchSpec | None:
        """Return the changes as a batch to commit with other sources, or None if the caller must call ``complete``."""
        changes = self._work.changes
        deleted = sum(len(scan.diff.deleted) for scan in self._work.scans)
        if not len(changes) or self.is_large() or deleted > GUARDED_DELETIONS or self._plan.replaces is not None:
            return None
        if any(scan.opened for scan in self._work.scans):  # must be marked after their members are committed
            return None
        if self._find_donations(changes):
            return None
        return self._batch(changes, dry_run=False)

    def shared_changes(self, result: BatchResult) -> ChangeSet:
        """Return all of the run's changes for one commit, including the ``result`` of ``shared_batch``."""
        retouched = pa.concat_tables([scan.diff.retouched for scan in self._work.scans])
        removed = self._vanished(self._work.scans)["path"].to_pylist()
        rows = pa.concat_tables([_as_manifest(retouched), result.rows])
        return ChangeSet(rows, result.fragments, result.replaced, tuple(removed))

    def committed(self, result: BatchResult, changes: ChangeSet) -> None:
        """Count the changes of a commit shared with other sources."""
        retouched = pa.concat_tables([scan.diff.retouched for scan in self._work.scans])
        if len(retouched):
            self._count_retouched(retouched)
        self._count(result)
        self._count_committed(changes, [result])
        self.indexes_lag |= result.lines > 0  # the group owns their fragments
        if changes.removed:
            self._count_deleted(self._vanished(self._work.scans))

    # -- changed paths by git ----------------------------------------------------------------

    def _inspect_commit(self) -> WorkTreeAtCommit | RepositoryAtCommit | None:
        source, request = self._source, self._plan.request
        if request.full or self._plan.replaces is not None:
            return None
        limits = request.max_file_bytes, request.max_document_bytes, source.record.redact, RULES_VERSION
        reads = source.record.archives, source.record.notebook_outputs
        settings = (source.record.include, source.record.exclude, *limits, *reads, self._plan.model.fingerprint)
        rules = (*settings, sorted(current_marks()), *source.claims)
        if isinstance(source.source, RepositorySource):
            return RepositoryAtCommit.look(source.source, rules)
        return WorkTreeAtCommit.look(source.source.uri, rules) if source.source.is_local else None

    def _record_before(self) -> SourceRecord | None:
        """Return the last run's record, unless it was for another location."""
        known = self._plan.workspace.readable_source(self._source.entity)
        return known if known is not None and known.same_location(self._source.record) else None

    def _reached(self, token: int, batch: int, before: IndexedCommit | None) -> IndexedCommit | None:
        """Return the commit and manifest revision to record at the end of a run with ``batch`` batches."""
        at = self._work_tree.reached(token) if self._work_tree is not None else None
        if at is None:
            return None
        known = before.revision if before is not None and before.token == token - 1 else 0
        return replace(at, revision=revision(token, batch) if batch else known)

    def _unchanged_at(self) -> int | None:
        """Return the revision of an index that is at the repository's commit, so no lease is needed; otherwise None."""
        if not isinstance(self._source.source, RepositorySource):  # a working tree would need several git processes
            return None
        at = self._inspect_commit()
        known = self._plan.workspace.readable_source(self.entity)
        if not isinstance(at, RepositoryAtCommit) or known is None or known.uri != self._source.record.uri:
            return None
        if known.link != self._source.record.link:
            return None
        if self._source.superseded is not None or self._plan.request.build is not None:
            return None
        lease = peek(self._plan.workspace.objects, self._plan.workspace.lease_of(self.entity))
        if not lease.is_free or lease.holder_died or not at.is_indexed(known.commit, lease.token):
            return None
        return revision(lease.token + 1, 0)  # the revision of a run that took the lease and found nothing

    def _narrow(self, before: SourceRecord | None, token: int | None = None) -> None:
        """Restrict the scan to the request's paths, or to paths changed since the previous record's commit."""
        if self._plan.request.paths is not None and not self._source.joined:
            self._only = self._plan.request.paths
            return
        if not self._plan.request.by_commit and not isinstance(self._source.source, RepositorySource):
            return
        self._work_tree = self._inspect_commit()
        if self._work_tree is None:
            self.report.full_scan_reason = "--full" if self._source.commit else "git cannot list the changes"
            return
        last = before.commit if before is not None else None
        changes = self._work_tree.changes_since(last, token)
        self._only, self.report.full_scan_reason = changes.paths, changes.why
        self.report.commit = self._work_tree.commit_id
        self.report.base = last.id if last is not None and changes.paths is not None else None

    def _is_complete(self, scans: Iterable[ScanResult]) -> bool:
        """Return whether every scanned file is indexed, or skipped until it changes."""
        return all(scan.complete for scan in scans) and not any(reason in _PASSING for _, reason in self.report.skipped)

    # -- scan --------------------------------------------------------------------------------

    def _scan(self) -> list[ScanResult]:
        self._progress.phase(f"scanning {self._source.source.uri}")
        parallel = self._executor.remote or not self._source.source.is_local
        now_ns = time.time_ns()
        with self._timed("scan"):
            slots = self._executor.slots if parallel and self._only is None else 1
            parts = plan_partitions(self._source.source, slots, self._source.rules)
            specs = [PartitionSpec(self._scan_spec(part), self._source.entity, now_ns, self._only) for part in parts]
            scans = run_stage(
                f"scan {self.entity}",
                lambda: list(self._executor.map(scan_partition, specs)),
                lambda found: f"{sum(scan.listed for scan in found):,} documents listed",
                repeatable=True,
            )
        for scan in scans:
            self._count_seconds({"scan": scan.seconds})
            self.report.states[DocumentState.UNCHANGED] += scan.diff.unchanged
            self.report.too_large.update(scan.too_large)
            self._container_only_paths |= scan.container_only_paths
            skipped = zip(*(scan.skipped[name].to_pylist() for name in ("path", "reason")), strict=True)
            self.report.skipped += [each for each in skipped if not self._is_open(*each)]
        return scans

    def _scan_spec(self, subtrees: tuple[Subtree, ...]) -> ScanSpec:
        request = self._plan.request
        return ScanSpec(
            self._source.source,
            self._plan.model.fingerprint,
            subtrees,
            self._source.rules,
            request.max_file_bytes,
            request.max_document_bytes,
            request.full,
            self._source.claims,
            self._source.record.redact,
            self._source.record.archives,
            self._source.record.notebook_outputs,
        )

    # -- embed and commit --------------------------------------------------------------------

    def _embed_and_delete(self, scans: list[ScanResult], committer: Committer) -> DeletionRefused | None:
        self._embed(scans, committer)
        refused = self._delete(scans, committer)
        if refused is None and all(scan.complete for scan in scans):
            self._mark_opened(scans, committer)
        return refused

    def _mark_opened(self, scans: list[ScanResult], committer: Committer) -> None:
        """Record which archives are completely indexed: the next run reopens the others.

        Call it last, after all members are committed and missing ones deleted. An archive is incomplete if it changed
        since the scan, or if a member could not be read.
        """
        passing = {path for path, reason in self.report.skipped if reason in _PASSING}
        incomplete = {container_of(path) for path in passing}
        opened = {path: each for scan in scans for path, each in scan.opened.items() if path not in incomplete}
        mark, rows = self._scan_spec(()).how.opened, []
        for row in self._plan.workspace.manifest(self.entity).get([*opened], columns=SCHEMA.names).to_pylist():
            archive = opened[row["path"]]
            if row["hash"] == archive.content_hash:
                why = archive.reason if row["reason"] == SkipReason.ARCHIVE else None
                row["extractor"] = "+".join(filter(None, (without_opened(row["extractor"]), mark)))
                rows.append(row | ({"reason": why.value} if why is not None else {}))
        if rows:
            self._commit_changes(committer, ChangeSet(pa.Table.from_pylist(rows, SCHEMA)))
        failed = {row["path"]: row["reason"] for row in rows if row["reason"] is not None}
        skipped = ((path, failed.get(path, reason)) for path, reason in self.report.skipped)
        self.report.skipped = [each for each in skipped if not self._is_open(*each)]

    def _is_open(self, path: str, reason: str) -> bool:
        """Return whether a file is "skipped" only because its members are documents instead."""
        return reason == SkipReason.ARCHIVE and self._source.record.archives and is_container(path)

    def _said(self, refused: DeletionRefused | None) -> str:
        counts = ", ".join(f"{count:,} {state} documents" for state, count in self.report.states.items() if count)
        return f"{counts or 'no documents'}; {self.report.lines_embedded:,} lines embedded"

    def _embed(self, scans: Iterable[ScanResult], committer: Committer) -> None:
        changes = self._work.changes
        retouched = pa.concat_tables([scan.diff.retouched for scan in scans])
        with self._timed("batches"):
            if len(retouched):
                self._count_retouched(retouched)
                self._commit_changes(committer, ChangeSet(_as_manifest(retouched)))
            self._progress.phase("embedding", total=len(changes))
            self._donations = self._find_donations(changes)
            pending: list[BatchResult] = []
            since = time.monotonic()
            results = self._executor.map(embed_batch, self._batches(changes))
            while (result := self._next(results, committer, pending)) is not None:
                self._count(result)
                self._progress.advance(result.documents - result.reported[0], result.lines - result.reported[1])
                pending.append(result)
                if len(pending) >= BATCHES_PER_COMMIT or time.monotonic() - since > COMMIT_SECONDS:
                    self._commit(committer, pending)
                    pending, since = [], time.monotonic()
            self._commit(committer, pending)
            if self._executor.has_repeated:
                committer.lease.expect_garbage()

    def _next(
        self, results: Iterator[BatchResult], committer: Committer, pending: list[BatchResult]
    ) -> BatchResult | None:
        """Return the next result, or None at the end. If the wait is interrupted, commit the pending results."""
        try:
            return next(results, None)
        except KeyboardInterrupt:
            self._executor.stop()
            self._commit(committer, pending)
            raise

    def _batches(self, changes: pa.Table, *, dry_run: bool = False) -> Iterator[BatchSpec]:
        paths, sizes = changes["path"].to_pylist(), changes["size_bytes"].to_pylist()
        limit = batch_bytes(sum(sizes), self._executor)
        start, size = 0, 0
        for row, size_bytes in enumerate(sizes):
            is_member = INSIDE in paths[row]
            most = max(limit, MEMBER_BATCH_BYTES) if is_member else limit
            documents = MEMBER_BATCH_DOCUMENTS if is_member else BATCH_DOCUMENTS
            if row > start and (size + size_bytes > most or row - start >= documents):
                yield self._batch(changes[start:row], dry_run)
                start, size = row, 0
            size += size_bytes
        if start < len(sizes):
            yield self._batch(changes[start:], dry_run)

    def _batch(self, changes: pa.Table, dry_run: bool) -> BatchSpec:
        # Copy, because pickling a slice sends the whole underlying table.
        rows = changes.take(pa.array(range(len(changes)), pa.int64())).combine_chunks()
        donations = only(self._donations, rows["path"].to_pylist()) if self._donations else {}
        containers = self._container_only_paths
        if containers:
            containers = containers.intersection(rows["path"].to_pylist())
        how = self._scan_spec(()).how
        return BatchSpec(self._source.source, self.entity, rows, dry_run, donations, how, containers)

    def _find_donations(self, changes: pa.Table) -> Donations:
        """Find lines that a branch or the main index already embedded."""
        if self._plan.request.full or self._plan.replaces is not None or self._plan.new_workspace:
            return {}
        paths, fingerprint = changes["path"].combine_chunks(), self._plan.model.fingerprint
        return find_donations(self._plan.workspace, self._source.entity, paths, fingerprint, self._source.superseded)

    def _commit(self, committer: Committer, results: list[BatchResult]) -> None:
        rows = [result.rows for result in results if len(result.rows)]
        if not rows:
            return
        changes = ChangeSet(
            rows=pa.concat_tables(rows),
            fragments=tuple(f for result in results for f in result.fragments),
            replaced=tuple(path for result in results for path in result.replaced),
        )
        with interrupt_deferred():
            self._commit_changes(committer, changes)
            self._count_committed(changes, results)
        if changes.fragments:
            self._builds.committed(self.owner, committer.table)

    def _count_committed(self, changes: ChangeSet, results: Iterable[BatchResult]) -> None:
        self.report.documents_committed += pc.sum(pc.is_null(changes.rows["reason"]), min_count=0).as_py()
        self.report.lines_committed += sum(result.lines + result.lines_reused for result in results)
        self.indexes_lag |= changes.touches_lines

    def _commit_changes(self, committer: Committer, changes: ChangeSet, phase: str = "commit") -> None:
        def commit() -> None:
            with self._committing:
                committer.commit(changes)

        counts = f"{len(changes.rows):,} documents committed, {len(changes.removed):,} removed"
        with self._timed(phase):
            run_stage(f"commit {self.entity}", commit, lambda _: counts, after=(f"embed {self.entity}",))

    # -- delete ------------------------------------------------------------------------------

    def _delete(self, scans: list[ScanResult], committer: Committer) -> DeletionRefused | None:
        """Delete missing documents; return the refusal if there are suspiciously many."""
        vanished = self._vanished(scans)
        if not len(vanished):
            return None
        refused = self._refusal(vanished)
        if refused is None:
            removed = ChangeSet(SCHEMA.empty_table(), removed=tuple(vanished["path"].to_pylist()))
            self._commit_changes(committer, removed, "delete")
            self.indexes_lag |= pc.any(pc.greater(vanished["lines"], 0)).as_py()
            self._count_deleted(vanished)
        return refused

    def _vanished(self, scans: list[ScanResult]) -> pa.Table:
        """Return the documents that are missing from the listing, or none if the listing is incomplete."""
        vanished = pa.concat_tables([scan.diff.deleted for scan in scans])
        if len(vanished) and not all(scan.complete for scan in scans):
            self._progress.message("Parts of the source could not be listed, so this run deletes nothing.")
            return vanished[:0]
        return vanished

    def _refusal(self, vanished: pa.Table) -> DeletionRefused | None:
        documents = self._exempt_from_limit(vanished.filter(pc.is_null(vanished["reason"])))
        renamed = (Counter(documents["hash"].to_pylist()) & self._new_hashes).total()
        lost = len(documents) - renamed
        states = self.report.states
        if self._only is None:
            known = (DocumentState.UNCHANGED, DocumentState.TOUCHED, DocumentState.CHANGED)
            before = len(documents) + sum(states[state] for state in known)
        else:
            before = self._totals()[0] - states[DocumentState.NEW]
        limit = self._plan.request.max_delete_fraction
        if lost <= GUARDED_DELETIONS or lost <= limit * before:
            return None
        return DeletionRefused(
            f"{lost:,} of {before:,} documents are missing, more than the fraction {limit:g}; the index keeps them",
            str(self._source.entity),
            "To delete them, run again with --max-delete-fraction 1.",
        )

    def _exempt_from_limit(self, vanished: pa.Table) -> pa.Table:
        """Drop documents that the request excludes or another source claims.

        The deletion limit does not apply to them.
        """
        paths = vanished["path"].combine_chunks()
        left_out = Matcher(self._source.rules).excluded(paths) | claimed(paths, self._source.claims)
        if not self._source.record.archives:
            left_out |= pc.match_substring(paths, INSIDE).to_numpy(zero_copy_only=False)
        return vanished.filter(pa.array(~left_out))

    # -- counting ----------------------------------------------------------------------------

    def _count(self, result: BatchResult) -> None:
        for state, count in result.states.items():
            self.report.states[state] += count
        self.report.skipped += result.skipped
        self.report.truncated += result.truncated
        self.report.lines_embedded += result.lines
        self.report.lines_reused += result.lines_reused
        self.report.bytes_read += result.bytes_read
        for rule, count in result.redacted.items():
            self.report.redacted[rule] = self.report.redacted.get(rule, 0) + count
        self._count_seconds(result.seconds)
        self._new_hashes.update(result.new_hashes)

    def _count_seconds(self, of_workers: Mapping[str, float]) -> None:
        for phase, seconds in of_workers.items():
            self.report.worker_phases[phase] = self.report.worker_phases.get(phase, 0.0) + seconds

    def _count_retouched(self, retouched: pa.Table) -> None:
        indexed = pc.is_null(retouched["reason"])
        self.report.states[DocumentState.TOUCHED] += pc.sum(indexed, min_count=0).as_py()
        skipped = retouched.filter(pc.invert(indexed))
        self.report.skipped += zip(*(skipped[name].to_pylist() for name in ("path", "reason")), strict=True)

    def _count_deleted(self, vanished: pa.Table) -> None:
        self.report.states[DocumentState.DELETED] += pc.sum(pc.is_null(vanished["reason"]), min_count=0).as_py()

    def _count_unchanged(self, at_revision: int) -> None:
        self.report.revision = at_revision
        self._count_totals()
        self.report.states[DocumentState.UNCHANGED] = self.report.documents_total

    def _count_totals(self, documents: pa.Table | None = None) -> None:
        columns = ["path", "size_bytes", "lines", "reason", "extractor"]
        if documents is None:
            documents = self._plan.workspace.manifest(self._source.entity).read(columns=columns)
        self.report.documents_total, self.report.lines_total = totals(documents)
        marks = [mark for mark in pc.unique(documents["extractor"]).to_pylist() if mark]

        def marked(pattern: str) -> pa.Table:
            found = [mark for mark in marks if re.search(pattern, mark)]
            return documents.filter(pc.is_in(documents["extractor"], pa.array(found, pa.string())))

        self.report.missing_extra, partially_indexed = len(marked(MISSING_MARK)), marked(ENDS_MARK)
        self.report.partially_indexed = dict(
            zip(partially_indexed["path"].to_pylist(), partially_indexed["size_bytes"].to_pylist(), strict=True)
        )
        if self._only is not None and isinstance(self._source.source, RepositorySource):  # the others were not scanned
            seen = (DocumentState.NEW, DocumentState.CHANGED, DocumentState.TOUCHED)
            others = self.report.documents_total - sum(self.report.states[state] for state in seen)
            self.report.states[DocumentState.UNCHANGED] = others

    def _totals(self) -> tuple[int, int]:
        """Return the number of documents and of lines in the manifest."""
        return totals(self._plan.workspace.manifest(self._source.entity).read(columns=["lines", "reason"]))

    def _count_deltas(self, lease: Lease | None) -> None:
        """Count the deltas, and fold many small deltas under ``lease``: there may be no scheduled compaction."""
        documents = self._plan.workspace.manifest(self._source.entity)
        log = documents.log()
        deltas = len(log.deltas)
        if lease is not None and deltas >= FOLDED_BY_RUNS and log.base_bytes + sum(log.delta_bytes) <= MAX_FOLD_BYTES:
            try:
                lease.check()
                documents.compact()
                deltas = 0
            except (StorageError, CorruptFile, LeaseLost) as error:  # this run's commits are kept
                self._progress.message(f"Cannot fold the deltas of {self._source.entity}: {error}")
        self.report.deltas = deltas
        if deltas > DEFAULT_MAX_DELTAS:
            self._progress.message(
                f"{self._source.entity} has {deltas:,} deltas, which slow down runs. Run: driftline compact"
            )

    def _dry_run(self) -> None:
        self._narrow(self._record_before())
        scans = self._scan()
        changes = pa.concat_tables([t for scan in scans for t in (scan.diff.new, scan.diff.candidates)])
        for result in self._executor.map(embed_batch, self._batches(changes, dry_run=True)):
            self._count(result)
        for scan in scans:
            self._count_retouched(scan.diff.retouched)
        vanished = self._vanished(scans)
        refused = self._refusal(vanished)
        if refused:
            raise refused
        self._count_deleted(vanished)
        self._count_totals()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        with self._watch.phase(phase), store_requests.phase(phase):
            yield


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
    """Return the maximum batch size for ``total`` bytes of changes, so that each worker gets a worthwhile share."""
    if not executor.remote or executor.slots == 1:
        return BATCH_BYTES
    return min(BATCH_BYTES, max(WORTHWHILE_BYTES, -(-total // executor.slots)))


def _as_manifest(retouched: pa.Table) -> pa.Table:
    """Convert ``diff.CHANGE_SCHEMA`` rows with unchanged content to manifest rows."""
    return retouched.select(SCHEMA.names).cast(SCHEMA)
