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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from driftline.flows.output.logs import json_lines, quiet_libraries, writes_json
from driftline.storage.errors import StorageError
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.query import SearchReport, prepare, search

MAX_PROCESSES = 4
"""By default; each holds the model, and what searches have read of the indexes."""
SEARCHES_BESIDE_EACH_OTHER = 4
"""Where there are no other processes: searches of a bucket wait for it most of the time."""
WAIT_SECONDS = 30.0
"""For a process that is free: less than a client waits for its answer."""
SEARCH_SECONDS = 60.0
"""A process that searches for longer is ended."""
ATTEMPTS = 2
"""A query that has ended so many processes is not tried in the next one."""
RETRY_SECONDS = 60.0
"""Between two attempts to start a process, if the first one failed."""

log = logging.getLogger(__name__)
_LOGGING = ExitStack()


def default_processes() -> int:
    """One for each core that this process may use, at most MAX_PROCESSES."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_PROCESSES)


@dataclass(slots=True, eq=False)
class SearchProcesses:
    """Up to ``processes`` processes, this one included; the others start once searches wait for each other.

    A process that dies takes no search with it: another one answers, and a new one starts when searches wait again.
    """

    processes: int
    _free: queue.PriorityQueue[tuple[int, _Helper | None]] = field(default_factory=queue.PriorityQueue)
    """Room for one search each, that in this process first."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _helpers: set[_Helper] = field(default_factory=set)
    _is_starting: bool = False
    _is_closed: bool = False
    _starts_after: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for _ in range(1 if self.processes > 1 else SEARCHES_BESIDE_EACH_OTHER):
            self._free.put((0, None))

    def search(self, workspace: Workspace, query: str, **options: Any) -> SearchReport:
        """As ``driftline.search``. Raises StorageError, too, if no process is free or none has survived the query."""
        for _ in range(ATTEMPTS):
            number, helper = self._wait_for_room(workspace)
            try:
                return helper.search(workspace, query, options) if helper else search(workspace, query, **options)
            except (BrokenProcessPool, TimeoutError) as error:
                if helper is None:
                    raise
                log.warning("A process of the web server has died, or searched for too long: %r", error)
                self._forget(helper)
            finally:
                if helper is None or helper in self._helpers:
                    self._free.put((number, helper))
        raise StorageError("The processes that searched have died, or took too long", "", "Narrow the search.")

    def close(self) -> None:
        """End the other processes at once: searches change nothing."""
        with self._lock:
            self._is_closed, helpers = True, list(self._helpers)
        for helper in helpers:
            self._forget(helper)

    def _forget(self, helper: _Helper) -> None:
        with self._lock:
            self._helpers.discard(helper)
        helper.end()

    def _wait_for_room(self, workspace: Workspace) -> tuple[int, _Helper | None]:
        with suppress(queue.Empty):
            return self._free.get_nowait()
        with self._lock:
            lacks_one = len(self._helpers) + 1 < self.processes and not self._is_starting and not self._is_closed
            if lacks_one and time.monotonic() >= self._starts_after:
                self._is_starting = True
                threading.Thread(target=self._start, args=(workspace,), daemon=True).start()
        try:
            return self._free.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise StorageError(f"No search has ended for {WAIT_SECONDS:.0f} s", "", "Ask again.") from None

    def _start(self, workspace: Workspace) -> None:
        """Start a process, and let it search once it has loaded the model and opened the tables."""
        helper = None
        try:
            helper = _Helper.start(workspace)
        except Exception as error:  # whatever it is: searches go on in the processes that there are
            log.warning("A process of the web server did not start; it goes on without: %s", error)
        with self._lock:
            self._is_starting = False
            if helper is None:
                self._starts_after = time.monotonic() + RETRY_SECONDS
            elif not self._is_closed:
                self._helpers.add(helper)
                self._free.put((next(self._numbers), helper))
                return
        if helper is not None:
            helper.end()


@dataclass(frozen=True, slots=True, eq=False)
class _Helper:
    """Another process, which searches for this one."""

    pool: ProcessPoolExecutor
    pid: int

    @classmethod
    def start(cls, workspace: Workspace) -> _Helper:
        # Libraries with threads of their own do not survive a fork.
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin, initargs=(writes_json(),))
        try:
            return cls(pool, pool.submit(_prepare, workspace).result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise

    def search(self, workspace: Workspace, query: str, options: dict[str, Any]) -> SearchReport:
        return self.pool.submit(_search, workspace, query, options).result(SEARCH_SECONDS)

    def end(self) -> None:
        for process in multiprocessing.active_children():
            if process.pid == self.pid:
                process.kill()
        self.pool.shutdown(wait=False, cancel_futures=True)


def _prepare(workspace: Workspace) -> int:
    prepare(workspace)
    return os.getpid()


def _search(workspace: Workspace, query: str, options: dict[str, Any]) -> SearchReport:
    return search(workspace, query, **options)


def _begin(as_json: bool) -> None:
    """What another process does first: it logs as the first one does, and ends with it however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the first one decides
    _begin_logging(as_json)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _begin_logging(as_json: bool) -> None:
    quiet_libraries()
    if as_json:
        _LOGGING.enter_context(json_lines())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
