"""Runs the searches of the web server: one at a time in its own process, and more at once in others.

The threads of a Python process share one core for all that is Python, so that searches beside each other take it from
each other.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from driftline.flows.output.logs import json_lines, quiet_libraries, writes_json
from driftline.storage.errors import DriftlineError, StorageError
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.query import SearchReport, prepare, search

DEFAULT_PROCESSES = min(4, os.cpu_count() or 1)
"""Each holds the model, and what searches have read of the indexes."""
WAIT_SECONDS = 60.0
RETRY_SECONDS = 60.0
"""Between two attempts to start a process, if the first one failed."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class SearchProcesses:
    """Up to ``processes`` processes, this one included; the others start once searches wait for each other.

    A process that dies takes no search with it: another one answers, and a new one starts when searches wait again.
    """

    processes: int = DEFAULT_PROCESSES
    _free: queue.PriorityQueue[tuple[int, _Helper | None]] = field(default_factory=queue.PriorityQueue)
    """Room for one search each, the first one in this process."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _helpers: set[_Helper] = field(default_factory=set)
    _is_starting: bool = False
    _starts_after: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._free.put((0, None))

    def search(self, workspace: Workspace, query: str, **options: Any) -> SearchReport:
        """As ``driftline.search``. Raises StorageError, too, if no process is free for WAIT_SECONDS."""
        while True:
            number, helper = self._wait_for_room(workspace)
            try:
                return helper.search(workspace, query, options) if helper else search(workspace, query, **options)
            except BrokenProcessPool:
                assert helper is not None
                log.warning("A process of the web server has died; another one answers")
                with self._lock:
                    self._helpers.discard(helper)
            finally:
                if helper is None or helper in self._helpers:
                    self._free.put((number, helper))

    def close(self) -> None:
        """End the other processes; they finish what they are at."""
        with self._lock:
            self._starts_after = float("inf")
            for helper in self._helpers:
                helper.close()

    def _wait_for_room(self, workspace: Workspace) -> tuple[int, _Helper | None]:
        with suppress(queue.Empty):
            return self._free.get_nowait()
        with self._lock:
            lacks_one = len(self._helpers) + 1 < self.processes
            if lacks_one and not self._is_starting and time.monotonic() >= self._starts_after:
                self._is_starting = True
                threading.Thread(target=self._start, args=(workspace,), daemon=True).start()
        try:
            return self._free.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise StorageError(f"No search has ended for {WAIT_SECONDS:.0f} s", "", "Ask again.") from None

    def _start(self, workspace: Workspace) -> None:
        """Start a process, and let it search once it has loaded the model and opened the tables."""
        number = next(self._numbers)
        helper = _Helper(_new_pool())
        try:
            helper.prepare(workspace)
        except (BrokenProcessPool, DriftlineError) as error:
            log.warning("A process of the web server did not start; it goes on without: %s", error)
            helper.close()
            with self._lock:
                self._is_starting, self._starts_after = False, max(self._starts_after, time.monotonic() + RETRY_SECONDS)
            return
        with self._lock:
            self._is_starting = False
            if self._starts_after == float("inf"):
                helper.close()
                return
            self._helpers.add(helper)
        self._free.put((number, helper))


@dataclass(frozen=True, slots=True, eq=False)
class _Helper:
    """Another process, which searches for this one."""

    pool: ProcessPoolExecutor

    def prepare(self, workspace: Workspace) -> None:
        self.pool.submit(prepare, workspace).result()

    def search(self, workspace: Workspace, query: str, options: dict[str, Any]) -> SearchReport:
        return self.pool.submit(_search, workspace, query, options).result()

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def _new_pool() -> ProcessPoolExecutor:
    # Libraries with threads of their own do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin, initargs=(writes_json(),))


def _search(workspace: Workspace, query: str, options: dict[str, Any]) -> SearchReport:
    return search(workspace, query, **options)


def _begin(as_json: bool) -> None:
    """What another process does first: it logs as the first one does, and ends with it however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the first one decides
    quiet_libraries()
    if as_json:
        json_lines().__enter__()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
