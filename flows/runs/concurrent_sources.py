"""Several sources in one run: a few at once, so that while one is listed or commits, another's batches are embedded."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from driftline.flows.output.progress import Progress
from driftline.flows.output.reports import IndexReport
from driftline.flows.runs.executors import Executor
from driftline.flows.runs.plan import IndexPlan
from driftline.flows.runs.source_run import SourceRun
from driftline.storage.errors import DriftlineError

SOURCES_PER_SLOT = 2
"""Sources worked on at once, for each task that the executor runs at once; their coordinator mostly waits."""


def run_all(
    plan: IndexPlan, executor: Executor, progress: Progress, report: IndexReport
) -> Iterator[tuple[SourceRun, DriftlineError | None]]:
    """Execute the plan's sources, all through one executor; each with its failure, as it comes to its end.

    ``report.sources`` are in the order of the plan. What is no DriftlineError is raised, after those that had begun.
    """
    if len(plan.sources) == 1:
        run = SourceRun(plan, plan.sources[0], executor, progress, report.run_id)
        report.sources.append(run.report)
        yield run, _executed(run)
        return
    progress.phase(f"indexing {len(plan.sources):,} sources")
    shared, committing = _SharedProgress(progress), threading.Lock()
    runs = [SourceRun(plan, part, executor, shared, report.run_id, committing) for part in plan.sources]
    report.sources += [run.report for run in runs]
    at_once = min(len(runs), SOURCES_PER_SLOT * executor.slots)
    with ThreadPoolExecutor(at_once, thread_name_prefix="source") as pool:
        running: dict[Future[DriftlineError | None], SourceRun] = {}
        try:
            for run in runs:  # each in a context of its own, in which requests are counted
                running[pool.submit(contextvars.copy_context().run, _executed, run)] = run
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _executed(run: SourceRun) -> DriftlineError | None:
    try:
        run.execute()
    except DriftlineError as error:
        return error
    return None


class _SharedProgress:
    """The progress of several sources as that of one phase: their figures add up, and come one at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()

    def phase(self, name: str, total: int | None = None) -> None: ...

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        with self._lock:
            self._progress.advance(documents, lines)

    def message(self, text: str) -> None:
        with self._lock:
            self._progress.message(text)
