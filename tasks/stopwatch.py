"""Measure the time of the phases of one task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Stopwatch:
    """``seconds`` of wall-clock time by phase. For one thread; phases may be nested."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the ``with`` block to ``name``, also if it raises."""
        started = self._clock()
        try:
            yield
        finally:
            self._add(name, started)

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items; adds only the time to produce them to ``name``."""
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
