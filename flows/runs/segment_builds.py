"""Build search index segments on workers while a run embeds the next documents (decision 0010)."""

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
from driftline.storage.lines.indexes import IndexScope, Segment, SegmentSpec, plan_new_segments
from driftline.storage.lines.line_table import LineTable
from driftline.tasks.indexing.commit import SegmentTask, build


def build_on(executor: Executor, owner: Entity, table: LineTable, specs: Iterable[SegmentSpec]) -> Generator[Segment]:
    """Build the segments ``specs`` of ``table`` on ``executor``, in any order."""
    yield from executor.map(build, (SegmentTask(owner, table.fingerprint, spec) for spec in specs))


class SegmentBuilds(AbstractContextManager["SegmentBuilds"]):
    """Builds the segments of new fragments while the next documents are embedded.

    ``finish`` hands them to the holder of the maintenance lease. Unpublished segments are orphans.
    """

    def __init__(self, executor: Executor, scope: IndexScope, progress: Progress) -> None:
        self._executor, self._scope, self._progress = executor, scope, progress
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="segments")
        self._planned: dict[Entity, set[int]] = {}
        self._builds: dict[Entity, list[Future[list[Segment]]]] = {}
        self.have_failed = False
        """Whether a build failed: it may have left files."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def committed(self, owner: Entity, table: LineTable) -> None:
        """Start building segments for the lines committed to ``table``, once there are enough of them."""
        if self._scope == "none":
            return
        with self._lock:
            specs = plan_new_segments(table, self._scope, self._planned.setdefault(owner, set()))
            if specs:  # requests are counted per context
                work = self._pool.submit(contextvars.copy_context().run, self._build, owner, table, specs)
                self._builds.setdefault(owner, []).append(work)

    def finish(self, owner: Entity) -> list[Segment]:
        """Wait for and return a table's segments. A failed build is reported and left to the end of the run."""
        built: list[Segment] = []
        for work in self._builds.pop(owner, []):
            try:
                built += work.result()
            except DriftlineError as error:
                self.have_failed = True
                self._progress.message(f"Rebuilding a search index segment of {owner}: {error}")
        return built

    def _build(self, owner: Entity, table: LineTable, specs: list[SegmentSpec]) -> list[Segment]:
        built: list[Segment] = []
        with closing(build_on(self._executor, owner, table, specs)) as segments:
            for segment in segments:
                built.append(segment)
                if self._stopped.is_set():
                    break
        return built

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
