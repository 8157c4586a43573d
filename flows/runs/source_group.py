"""Run several sources concurrently, and small ones together (DESIGN, "Index run").

A run's cost thus grows with the lines of its sources, not with their number.

Each source has its own lease, staged delta and commit marker, as in a separate run. They share the batch, its
fragments, and the transaction, which commits all or none of them.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from driftline.flows.output.progress import Progress, run_stage
from driftline.flows.output.run_reports import IndexReport
from driftline.flows.runs.executors import Executor, SegmentBuilds
from driftline.flows.runs.plan import IndexPlan
from driftline.flows.runs.source_run import BATCH_BYTES, BATCH_DOCUMENTS, COMMIT_SECONDS, LeasedRun, SourceRun
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, LeaseHeld
from driftline.storage.objects.store_requests import phase
from driftline.storage.sources.commit_tree import more_readers
from driftline.storage.workspace.workspace import marker_tokens
from driftline.tasks.indexing.batch import BatchResult, BatchSpec, GroupResult, embed_group
from driftline.tasks.indexing.commit import ChangeSet, GroupCommitFailed, Staged, commit_together, publish_together

GROUP_SOURCES = 32
"""Maximum number of sources per shared commit. Until the commit, each source holds a lease, renewed by a thread."""
SOURCES_PER_SLOT = 2
"""Number of sources or groups that run concurrently per executor slot: their coordinator mostly waits."""

FETCHES_AHEAD = 8
"""How many repositories all groups together prefetch: a small cache must not evict a mirror before it is read."""

Outcome = tuple[SourceRun, DriftlineError | None]


@dataclass(frozen=True, slots=True)
class _Member:
    """A source in a group, which holds its ``lease``, with its part of the shared batch."""

    run: SourceRun
    leased: LeasedRun
    batch: BatchSpec
    size_bytes: int
    lease: ExitStack


def grouped(runs: Sequence[SourceRun], slots: int, *, together: bool) -> list[Sequence[SourceRun]]:
    """Split ``runs`` into groups if they may run ``together``, without leaving executor slots idle."""
    at_once = SOURCES_PER_SLOT * slots
    size = min(GROUP_SOURCES, -(-len(runs) // at_once)) if together else 1
    return [runs[start : start + size] for start in range(0, len(runs), size)]


class SourceGroup:
    """Runs sources one after another, but embeds and commits small ones together; ``outcomes`` lists their outcomes.

    Concurrent groups share the ``committing`` lock and the ``fetches`` thread pool, where each group prefetches its
    next ``ahead`` repositories.
    """

    def __init__(
        self,
        executor: Executor,
        progress: Progress,
        builds: SegmentBuilds,
        committing: AbstractContextManager[object],
        fetches: ThreadPoolExecutor,
        ahead: int,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._executor, self._progress, self._builds, self._committing = executor, progress, builds, committing
        self._fetches, self._ahead = fetches, ahead
        self._members: list[_Member] = []
        self._since = 0.0

    def execute(self, runs: Sequence[SourceRun], *, may_wait: bool) -> list[Outcome]:
        """Run the sources. If ``may_wait`` is set, sources leased by other runs come last, one at a time."""
        held: list[SourceRun] = []
        marker_token = marker_tokens(runs[0].workspace, [run.entity for run in runs])
        try:
            for number, run in enumerate(runs, 1):
                for following in runs[number : number + self._ahead]:
                    following.fetch_ahead(self._fetches)
                try:
                    self._begin(run, marker_token)
                except LeaseHeld as error:
                    if may_wait:
                        held.append(run)
                    else:
                        self.outcomes.append((run, error))
                except DriftlineError as error:
                    self.outcomes.append((run, error))
                if self._is_full():
                    self._finish()
            self._finish()
        except BaseException:
            with ExitStack() as leases:  # leases see the failure on exit
                for member in self._members:
                    leases.push(member.lease)
                raise
        self.outcomes += [(run, run_alone(run)) for run in held]
        return self.outcomes

    def _begin(self, run: SourceRun, marker_token: Callable[[Entity], int]) -> None:
        """Add a source to the group, or run it on its own if it has nothing to share. Raises the run's errors."""
        with ExitStack() as stack:
            leased = run.begin(stack, marker_token)
            batch = leased.shared_batch() if leased is not None else None
            if leased is not None and batch is not None:
                self._since = self._since if self._members else time.monotonic()
                size_bytes = sum(batch.changes["size_bytes"].to_pylist())
                self._members.append(_Member(run, leased, batch, size_bytes, stack.pop_all()))
                return
            if leased is not None:
                if leased.work.is_large:
                    self._finish()
                leased.complete()
        self.outcomes.append((run, None))

    def _is_full(self) -> bool:
        if not self._members:
            return False
        documents = sum(len(member.batch.changes) for member in self._members)
        size_bytes = sum(member.size_bytes for member in self._members)
        is_old = time.monotonic() - self._since > COMMIT_SECONDS
        return is_old or documents > BATCH_DOCUMENTS // 2 or size_bytes > BATCH_BYTES // 2

    def _finish(self) -> None:
        """Embed and commit the members, and finish their runs."""
        tables: dict[str, list[_Member]] = {}
        for member in self._members:
            tables.setdefault(member.leased.committer.table.uri, []).append(member)
        for members in tables.values():
            if len(members) == 1:
                self._end(members[0], members[0].leased.complete)
            else:
                self._finish_table(members)
        self._members = []

    def _finish_table(self, members: Sequence[_Member]) -> None:
        ended: set[str] = set()
        ready: list[tuple[_Member, BatchResult, ChangeSet]] = []
        try:
            result = self._embed(members)
            if self._executor.has_repeated:
                for member in members:
                    member.leased.committer.lease.expect_garbage()
            for member, part in zip(members, result.parts, strict=True):
                if isinstance(part, DriftlineError):
                    ended.add(str(member.run.entity))
                    self._fail(member, part)
                else:
                    ready.append((member, part, member.leased.shared_changes(part)))
            staged = self._commit(ready, result.fragments)
        except GroupCommitFailed:
            for member, _, _ in ready:
                self._end(member, partial(_start_again, member.leased))
        except DriftlineError as error:
            for member in members:
                if str(member.run.entity) not in ended:
                    self._fail(member, error)
        else:
            if not ready:
                return
            for (member, part, changes), failure in zip(ready, publish_together(staged), strict=True):
                if failure is not None:
                    self._fail(member, failure)
                else:
                    self._end(member, partial(_record, member.leased, part, changes))
            self._builds.committed(members[0].leased.owner, members[0].leased.committer.table)

    def _embed(self, members: Sequence[_Member]) -> GroupResult:
        batches = tuple(member.batch for member in members)

        def embed() -> GroupResult:
            with phase("batches"):
                (result,) = self._executor.map(embed_group, [batches])
            return result

        result = run_stage(
            f"embed {_title(members)}",
            embed,
            lambda found: f"{sum(len(batch.changes) for batch in batches):,} documents of {len(found.parts)} sources",
            after=[f"scan {member.run.entity}" for member in members],
        )
        lines = sum(part.lines for part in result.parts if not isinstance(part, DriftlineError))
        documents = sum(len(batch.changes) for batch in batches)
        self._progress.advance(documents - result.reported[0], lines - result.reported[1])
        return result

    def _commit(
        self, ready: Sequence[tuple[_Member, BatchResult, ChangeSet]], fragments: Sequence[str]
    ) -> list[Staged]:
        if not ready:
            return []
        changes = [(member.leased.committer, change) for member, _, change in ready]

        def commit() -> list[Staged]:
            with self._committing, phase("commit"):
                return commit_together(changes, fragments)

        title = _title([member for member, _, _ in ready])
        summary = f"{sum(len(change.rows) for _, change in changes):,} documents committed"
        return run_stage(f"commit {title}", commit, lambda _: summary, after=(f"embed {title}",))

    def _end(self, member: _Member, work: Callable[[], None]) -> None:
        """Do a source's final ``work`` and release its lease. The lease counts failures: they may leave garbage."""
        failure: DriftlineError | None = None
        try:
            with member.lease:
                work()
        except DriftlineError as error:
            failure = error
        self.outcomes.append((member.run, failure))

    def _fail(self, member: _Member, error: DriftlineError) -> None:
        def fail() -> None:
            raise error

        self._end(member, fail)


def _title(members: Sequence[_Member]) -> str:
    return f"{members[0].run.entity} and {len(members) - 1:,} others"


def _start_again(run: LeasedRun) -> None:
    """Complete the run of a source whose group commit failed. This is recorded as a failure: the group left garbage."""
    run.committer.lease.expect_garbage()
    run.complete()


def _record(run: LeasedRun, result: BatchResult, changes: ChangeSet) -> None:
    run.committed(result, changes)
    run.end(changes=changes)


def run_alone(run: SourceRun) -> DriftlineError | None:
    """Run a source on its own, and return its error, if any."""
    try:
        run.execute()
    except DriftlineError as error:
        return error
    return None


def run_all(
    plan: IndexPlan, executor: Executor, progress: Progress, report: IndexReport, builds: SegmentBuilds
) -> Iterator[tuple[SourceRun, DriftlineError | None]]:
    """Run the plan's sources on one executor; yield each as it finishes, along with its failure.

    ``report.sources`` keeps the plan's order. Any other exception is raised after the running sources finish.
    """
    if len(plan.sources) == 1:
        run = SourceRun(plan, plan.sources[0], executor, progress, report.run_id, builds)
        report.sources.append(run.report)
        yield run, run_alone(run)
        return
    progress.phase(f"indexing {len(plan.sources):,} sources")
    shared, committing = _SharedProgress(progress), threading.Lock()
    runs = [SourceRun(plan, part, executor, shared, report.run_id, builds, committing) for part in plan.sources]
    report.sources += [run.report for run in runs]
    may_wait, together = plan.request.wait_seconds > 0, not plan.request.dry_run and plan.request.branch is None
    groups = grouped(runs, executor.slots, together=together)

    def execute(group: Sequence[SourceRun]) -> list[Outcome]:
        if len(group) == 1:
            return [(group[0], run_alone(group[0]))]
        return SourceGroup(executor, shared, builds, committing, fetches, ahead).execute(group, may_wait=may_wait)

    at_once = SOURCES_PER_SLOT * executor.slots
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="source")
    fetches = ThreadPoolExecutor(FETCHES_AHEAD, thread_name_prefix="fetch")
    # Remote workers have their own mirrors.
    ahead = 0 if executor.remote else FETCHES_AHEAD // min(at_once, len(groups))
    with pool, fetches, more_readers(at_once * max(map(len, groups))):
        running: list[Future[list[Outcome]]] = []
        try:
            # Requests are counted per context, so each group needs its own.
            running += [pool.submit(contextvars.copy_context().run, execute, group) for group in groups]
            for future in as_completed(running):
                yield from future.result()
        except KeyboardInterrupt:  # only this thread received it
            executor.stop()
            raise
        finally:
            fetches.shutdown(wait=False, cancel_futures=True)
            pool.shutdown(wait=True, cancel_futures=True)


class _SharedProgress:
    """Adds up the progress of concurrent sources into one phase."""

    def __init__(self, progress: Progress) -> None:
        self.advance = progress.advance
        self.message = progress.message

    def phase(self, name: str, total: int | None = None) -> None: ...
