"""Provide a task's context: the workspace and the embedder, opened once per process, and a stopwatch."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from driftline.storage.errors import FingerprintMismatch
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.models import fingerprint, resolve_model

if TYPE_CHECKING:
    from driftline.storage.embedding import Embedder
    from driftline.tasks.embedding.embedder import WordTableEmbedder

PLAN_AFTER_LINES = 10_000
"""Tokenizing this many lines takes 0.2 s; planning how to cut lines into words takes 1 s."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model's name, and the fingerprint and dimension that it must have on every host."""

    name: str
    fingerprint: str
    dim: int


CountsCallback = Callable[[int, int], None]
"""Receives the numbers of documents read and lines embedded, from any thread, while their task runs."""


class CountReporter:
    """Reports a task's counts to ``on_counts`` at most once every ``interval`` seconds.

    ``documents`` and ``lines`` are the counts reported so far; the receiver of the result adds the rest.
    """

    def __init__(
        self, on_counts: CountsCallback | None, interval: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.documents = self.lines = 0
        self._on_counts, self._interval, self._clock = on_counts, interval, clock
        self._more_documents = self._more_lines = 0
        self._due = clock() + interval

    def add(self, documents: int = 0, lines: int = 0) -> None:
        """Add documents that were read and lines that were embedded."""
        if self._on_counts is None:
            return
        self._more_documents += documents
        self._more_lines += lines
        if (now := self._clock()) >= self._due:
            self._due = now + self._interval
            more = self._more_documents, self._more_lines
            self.documents += more[0]
            self.lines += more[1]
            self._more_documents = self._more_lines = 0
            self._on_counts(*more)


@dataclass(slots=True)
class TaskContext:
    """The second argument of every task. Pickling drops the loaded model; each worker loads it once.

    ``on_counts``, if set, receives the counts of running tasks every ``report_seconds``; pickling drops it.
    """

    workspace: Workspace
    model: ModelRef
    on_counts: CountsCallback | None = None
    report_seconds: float = 0.1
    _embedder: Embedder | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def embedder(self) -> Embedder:
        """The embedder, loaded on first use. Raises ModelNotFound, FingerprintMismatch."""
        with self._lock:
            if self._embedder is None:
                self._embedder = load_embedder(self.model)
            return self._embedder

    def count_reporter(self) -> CountReporter:
        """Return a reporter for one task's counts."""
        return CountReporter(self.on_counts, self.report_seconds)

    def __reduce__(self) -> tuple[object, ...]:
        return TaskContext, (self.workspace, self.model)


@lru_cache(maxsize=2)
def load_embedder(model: ModelRef) -> WordTableEmbedder:
    """Load ``model`` from this host, once per process. Raises ModelNotFound, FingerprintMismatch."""
    from driftline.tasks.embedding.embedder import WordTableEmbedder
    from driftline.tasks.embedding.models import load_parts

    files = resolve_model(model.name)
    actual = fingerprint(files)
    if actual != model.fingerprint:
        raise FingerprintMismatch(
            f"The model on this host has a different fingerprint ({actual}, not {model.fingerprint})",
            model.name,
            "Install the same model and version of Driftline on every host; after an upgrade, index all sources again.",
        )
    return WordTableEmbedder(load_parts(files), actual, plan_after=PLAN_AFTER_LINES)


Item = TypeVar("Item")


class Stopwatch:
    """``seconds`` of wall-clock time, keyed by phase. For one thread; phases may be nested."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the ``with`` block to phase ``name``, even if it raises."""
        started = self._clock()
        try:
            yield
        finally:
            self._add(name, started)

    @contextmanager
    def rest(self, name: str) -> Iterator[None]:
        """Like ``phase``, but do not count the time of other phases within the ``with`` block."""
        others = sum(self.seconds.values())
        with self.phase(name):
            yield
        self.seconds[name] -= sum(self.seconds.values()) - self.seconds[name] - others

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield from ``items``; add only the time spent producing them to phase ``name``."""
        rest = iter(items)
        while True:
            started = self._clock()
            try:
                item = next(rest)
            except StopIteration:
                return
            finally:
                self._add(name, started)
            yield item

    def _add(self, name: str, started: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - started


def release_memory() -> None:
    """Return freed memory to the system: glibc would keep hundreds of MB after a large batch or index segment."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
