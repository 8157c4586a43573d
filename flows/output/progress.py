"""Show a run's progress: a live bar on a terminal, plain or JSON lines elsewhere, or nothing.

A run consists of stages, which an interface may show individually; Prefect shows them as tasks in its graph.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO, TypeVar

from driftline.flows.output.logs import writes_json
from driftline.flows.output.plain_text import appearance, printable, wants_styles, warn

if TYPE_CHECKING:
    from rich.progress import TaskID

QUIET_INTERVAL_SECONDS = 5.0


class Progress(Protocol):
    """Receives a run's progress. Calls are cheap and come from one thread at a time."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Start a phase of ``total`` documents; None means that their number is unknown."""
        ...

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        """Add to the number of documents processed and lines embedded in this phase."""
        ...

    def message(self, text: str) -> None:
        """Show one line, such as a warning."""
        ...


class NullProgress:
    """Discard all progress."""

    def phase(self, name: str, total: int | None = None) -> None: ...

    def advance(self, documents: int = 1, lines: int = 0) -> None: ...

    def message(self, text: str) -> None: ...


class WarningsOnly(NullProgress):
    """Print only warnings."""

    def message(self, text: str) -> None:
        warn(text)


class ConcurrentProgress:
    """Reports progress from many threads, including the counts of running tasks.

    A phase never shows more documents than its total, even if a cluster runs a task twice.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._left: int | None = None

    def phase(self, name: str, total: int | None = None) -> None:
        with self._lock:
            self._left = total
            self._progress.phase(name, total)

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        """Add what a finished task has not yet reported, or a running task's progress."""
        with self._lock:
            if self._left is not None:
                documents = min(documents, self._left)
                self._left -= documents
            if documents or lines:
                self._progress.advance(documents, lines)

    def message(self, text: str) -> None:
        with self._lock:
            self._progress.message(text)


def pace(documents: int, total: int | None, lines: int, seconds: float) -> str:
    """Format the number of lines, their rate and, once it can be estimated, the remaining time.

    >>> pace(250, 1_000, 8_000, 2.0)
    '8,000 lines, 4,000 lines/s, 6 s left'
    >>> pace(1_000, 100_000, 9_000, 3.0)
    '9,000 lines, 3,000 lines/s, 4 min 57 s left'
    """
    if not lines or seconds <= 0:
        return f"{lines:,} lines" if lines else ""
    summary = f"{lines:,} lines, {lines / seconds:,.0f} lines/s"
    if not total or not 0 < documents < total:
        return summary
    minutes, rest = divmod(round(seconds * (total - documents) / documents), 60)
    return f"{summary}, {f'{minutes:,} min ' if minutes else ''}{rest} s left"


class QuietProgress:
    """Print plain lines for logs: each message, and the counts at most once every ``interval`` seconds."""

    def __init__(
        self,
        stream: TextIO | None = None,
        interval: float = QUIET_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stderr
        self._interval = interval
        self._clock = clock
        self._name = ""
        self._total: int | None = None
        self._documents = self._lines = 0
        self._reported_at = self._begun_at = clock()
        self._ended = threading.Event()

    def phase(self, name: str, total: int | None = None) -> None:
        self._name, self._total = name, total
        self._documents = self._lines = 0
        self._begun_at = self._clock()
        self._report_when_due()

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        self._documents += documents
        self._lines += lines
        self._report_when_due()

    def message(self, text: str) -> None:
        warn(text, self._stream)

    def __enter__(self) -> Self:
        """Start reporting at intervals, even while nothing advances, such as during a long scan."""
        self._beat = threading.Thread(target=self._keep_reporting, daemon=True)
        self._beat.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beat.join()

    def _keep_reporting(self) -> None:
        while not self._ended.wait(self._interval):
            if self._name:
                self._report_when_due()

    def _report_when_due(self) -> None:
        now = self._clock()
        if now - self._reported_at < self._interval:
            return
        self._reported_at = now
        of_total = "" if self._total is None else f" of {self._total:,}"
        speed = pace(self._documents, self._total, self._lines, now - self._begun_at)
        lines = f", {speed}" if speed else ""
        counts = f": {self._documents:,}{of_total} documents{lines}" if self._documents or self._total else ""
        self.message(f"{self._name}{counts}, {now - self._begun_at:.0f} s")


class LogProgress:
    """Log each phase and message, and the counts at most once every ``QUIET_INTERVAL_SECONDS``."""

    def __init__(self) -> None:
        self._log = logging.getLogger("driftline.progress")
        self._fields: dict[str, Any] = {}
        self._reported_at = time.monotonic()

    def phase(self, name: str, total: int | None = None) -> None:
        self._fields = {"phase": name, "documents": 0, "of": total, "lines": 0}
        self._log.info("%s", name, extra={"fields": dict(self._fields)})

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        self._fields["documents"] = self._fields.get("documents", 0) + documents
        self._fields["lines"] = self._fields.get("lines", 0) + lines
        now = time.monotonic()
        if now - self._reported_at >= QUIET_INTERVAL_SECONDS:
            self._reported_at = now
            self._log.info("%s", self._fields.get("phase", ""), extra={"fields": dict(self._fields)})

    def message(self, text: str) -> None:
        self._log.warning("%s", text)


class RichProgress:
    """A live bar on standard error, removed when the context exits."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[lines]}", markup=False),
            console=Console(stderr=True, no_color=not wants_styles(sys.stderr)),
            transient=True,
        )
        self._task: TaskID | None = None
        self._total: int | None = None
        self._documents = self._lines = 0
        self._begun_at = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def phase(self, name: str, total: int | None = None) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._total = total
        self._documents = self._lines = 0
        self._begun_at = time.monotonic()
        self._task = self._bar.add_task(name, total=total, count=self._count(), lines="")

    def _count(self) -> str:
        """Return ``7/20``, or "" while neither number is known."""
        if self._total is None:
            return f"{self._documents:,}" if self._documents else ""
        return f"{self._documents:,}/{self._total:,}" if self._total else ""

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        if self._task is None:
            return
        self._documents += documents
        self._lines += lines
        speed = pace(self._documents, self._total, self._lines, time.monotonic() - self._begun_at)
        self._bar.update(self._task, advance=documents, count=self._count(), lines=speed)

    def message(self, text: str) -> None:
        self._bar.console.print(printable(text), markup=False, highlight=False)


def open_progress() -> AbstractContextManager[Progress]:
    """Return the progress for standard error: JSON lines if logs are JSON, a bar on a terminal, otherwise plain lines.

    A quiet command shows only warnings, and a verbose command logs each phase.
    """
    if writes_json() or appearance().verbose:
        return nullcontext(LogProgress())
    if appearance().quiet:
        return nullcontext(WarningsOnly())
    return RichProgress() if sys.stderr.isatty() else QuietProgress()


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of a run, executed by ``work``. ``summarize`` formats the counts in its result.

    ``repeatable`` stages may be retried. A stage depends on those stages in ``after`` that have started; with none, it
    starts the run.
    """

    name: str
    work: Callable[[], Any]
    summarize: Callable[[Any], str]
    repeatable: bool
    after: tuple[str, ...] = ()


class StageRunner(Protocol):
    """Run a stage, and return its result."""

    def __call__(self, stage: Stage) -> Any: ...


_RUNNER: ContextVar[StageRunner | None] = ContextVar("stage runner", default=None)


def run_stage(
    name: str,
    work: Callable[[], _Result],
    summarize: Callable[[_Result], str],
    *,
    repeatable: bool = False,
    after: Iterable[str] = (),
) -> _Result:
    """Run ``work`` as a stage, and return its result or raise its errors."""
    runner = _RUNNER.get()
    if runner is None:
        return work()
    result: _Result = runner(Stage(name, work, summarize, repeatable, tuple(after)))
    return result


@contextmanager
def stages_run_by(runner: StageRunner) -> Iterator[None]:
    """Make ``runner`` run the stages in this context and in its copies."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)
