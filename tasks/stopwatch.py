"""How long the phases of one piece of work take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Stopwatch:
    """``seconds`` by phase, of real time. For one thread; phases may lie within each other."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens in here takes the time of ``name``, whether or not it fails."""
        started = self._clock()
        try:
            yield
        finally:
            self._add(name, started)

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """The items; only what it takes to make them is the time of ``name``."""
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
