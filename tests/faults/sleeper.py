"""A run that pauses right before or after one of its transactions, and clocks that are wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from typing import Any, Literal

import pytest

from driftline.storage.lines.line_table import LineTable
from tests.support.waiting import PATIENCE_SECONDS

CLOCKS = (
    "driftline.tasks.indexing.commit.datetime",
    "driftline.storage.leases.lease.datetime",
    "driftline.storage.deltas.delta_index.datetime",
)


class Sleeper:
    """Runs ``run`` in a thread that sleeps at its ``at``-th transaction, from 1, until ``wake`` is called.

    ``error`` is the exception that ended the run. Call ``allow_sleepers`` first.
    """

    _of_threads: dict[int, Sleeper] = {}  # noqa: RUF012

    def __init__(self, run: Callable[[], object], moment: Literal["before", "after"], at: int) -> None:
        self.error: Exception | None = None
        self._run, self._moment, self._left = run, moment, at
        self._until_stable, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._sleepwalk, daemon=True)
        self._thread.start()
        assert self._until_stable.wait(PATIENCE_SECONDS), "the run neither slept nor ended"

    @property
    def is_asleep(self) -> bool:
        return self._thread.is_alive() and not self._woken.is_set()

    def wake(self) -> Exception | None:
        """Let the run finish, and return the exception that ended it."""
        self._woken.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the run does not end"
        return self.error

    def _sleepwalk(self) -> None:
        self._of_threads[threading.get_ident()] = self
        try:
            self._run()
        except Exception as error:
            self.error = error
        finally:
            del self._of_threads[threading.get_ident()]
            self._woken.set()
            self._until_stable.set()

    def _sleep(self) -> None:
        self._until_stable.set()
        assert self._woken.wait(PATIENCE_SECONDS * 10)


def allow_sleepers(patch: pytest.MonkeyPatch) -> None:
    """Patch table transactions to pause in the thread of a Sleeper."""
    original = LineTable._transact

    def transact(*arguments: Any) -> None:
        sleeper = Sleeper._of_threads.get(threading.get_ident())
        if sleeper is None:
            return original(*arguments)
        sleeper._left -= 1
        if sleeper._left == 0 and sleeper._moment == "before":
            sleeper._sleep()
        original(*arguments)
        if sleeper._left == 0 and sleeper._moment == "after":
            sleeper._sleep()

    patch.setattr(LineTable, "_transact", transact)


@contextmanager
def clock_wrong_by(seconds: float) -> Iterator[None]:
    """Shift the wall clock seen by deltas, removals and leases; monotonic clocks stay correct."""

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Skewed:
            return cls.fromtimestamp((datetime.now(tz) + timedelta(seconds=seconds)).timestamp(), tz)

    class SkewedTime:
        @staticmethod
        def time_ns() -> int:
            return time.time_ns() + int(seconds * 1e9)

    with pytest.MonkeyPatch.context() as patch:
        for name in CLOCKS:
            patch.setattr(name, Skewed)
        patch.setattr("driftline.storage.layout.time", SkewedTime)
        yield
