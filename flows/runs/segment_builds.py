"""Builds index segments on the executor: of what a run commits while it goes on, and of the rest at its end."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from types import TracebackType

from driftline.flows.output.progress import Progress
from driftline.flows.runs.executors import Executor
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.lines.indexes import IndexScope
from driftline.storage.lines.segments import Segment, SegmentSpec, plan_new_segments
from driftline.storage.lines.table import LineTable
from driftline.tasks.indexing.segments import SegmentTask, build


def build_on(executor: Executor, place: Entity, table: LineTable, specs: Iterable[SegmentSpec]) -> Generator[Segment]:
    """Build ``specs`` of ``table`` on ``executor``, in any order."""
    yield from executor.map(build, (SegmentTask(place, table.fingerprint, spec) for spec in specs))


class SegmentBuilds(AbstractContextManager["SegmentBuilds"]):
    """Builds the segments of new fragments beside the embedding of the next ones.

    ``finish`` hands them to the holder of the maintenance lease. Segments that nobody publishes are orphans.
    """

    def __init__(self, executor: Executor, scope: IndexScope, progress: Progress) -> None:
        self._executor, self._scope, self._progress = executor, scope, progress
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="segments")
        self._planned: dict[Entity, set[int]] = {}
        self._builds: dict[Entity, list[Future[list[Segment]]]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def committed(self, place: Entity, table: LineTable) -> None:
        """Start to build the segments of what was committed to ``table``, once there is enough of it."""
        if self._scope == "none":
            return
        with self._lock:
            specs = plan_new_segments(table, self._scope, self._planned.setdefault(place, set()))
            if specs:  # requests are counted per context
                work = self._pool.submit(contextvars.copy_context().run, self._build, place, table, specs)
                self._builds.setdefault(place, []).append(work)

    def finish(self, place: Entity) -> list[Segment]:
        """The segments of a table, once they are built. A build that failed is reported, and left to the rest."""
        built: list[Segment] = []
        for work in self._builds.pop(place, []):
            try:
                built += work.result()
            except DriftlineError as error:
                self._progress.message(f"A segment of the search indexes of {place} is built again: {error}")
        return built

    def _build(self, place: Entity, table: LineTable, specs: list[SegmentSpec]) -> list[Segment]:
        built: list[Segment] = []
        with closing(build_on(self._executor, place, table, specs)) as segments:
            for segment in segments:
                built.append(segment)
                if self._stopped.is_set():
                    break
        return built

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
