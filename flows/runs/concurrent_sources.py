"""Several sources in one run: a few run at once, so that one is embedded while another is listed or commits."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from driftline.flows.output.progress import Progress
from driftline.flows.output.reports import IndexReport
from driftline.flows.runs.executors import Executor
from driftline.flows.runs.plan import IndexPlan
from driftline.flows.runs.segment_builds import SegmentBuilds
from driftline.flows.runs.source_run import SourceRun
from driftline.storage.errors import DriftlineError

SOURCES_PER_SLOT = 2
"""Sources that run at once for each slot of the executor: the coordinator of a source mostly waits."""


def run_all(
    plan: IndexPlan, executor: Executor, progress: Progress, report: IndexReport, builds: SegmentBuilds
) -> Iterator[tuple[SourceRun, DriftlineError | None]]:
    """Run the sources of the plan on one executor; yields each with its failure, in the order in which they finish.

    ``report.sources`` keeps the order of the plan. Any other exception is raised after the running sources have ended.
    """
    if len(plan.sources) == 1:
        run = SourceRun(plan, plan.sources[0], executor, progress, report.run_id, builds)
        report.sources.append(run.report)
        yield run, _execute(run)
        return
    progress.phase(f"indexing {len(plan.sources):,} sources")
    shared, committing = _SharedProgress(progress), threading.Lock()
    runs = [SourceRun(plan, part, executor, shared, report.run_id, builds, committing) for part in plan.sources]
    report.sources += [run.report for run in runs]
    at_once = min(len(runs), SOURCES_PER_SLOT * executor.slots)
    with ThreadPoolExecutor(at_once, thread_name_prefix="source") as pool:
        running: dict[Future[DriftlineError | None], SourceRun] = {}
        try:
            for run in runs:  # requests are counted per context, so that each source needs its own
                running[pool.submit(contextvars.copy_context().run, _execute, run)] = run
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _execute(run: SourceRun) -> DriftlineError | None:
    try:
        run.execute()
    except DriftlineError as error:
        return error
    return None


class _SharedProgress:
    """Adds up the progress of concurrent sources into one phase; calls from their threads take turns."""

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
