"""Run the web and MCP servers' reads in other processes, one at a time in each.

Because of the GIL, concurrent searches in one process would slow each other down, and a damaged table file can crash
its reader (storage/lance/reader_process.py).

The functions to run are imported with the first read: an MCP client waits for the server to start, but not for them.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from driftline.flows.output.logs import json_lines, quiet_libraries, writes_json
from driftline.storage.errors import DriftlineError, StorageError
from driftline.storage.lance.reader_process import ProcessDied, ProcessStopped, WorkerProcess

if TYPE_CHECKING:
    from driftline.storage.workspace.workspace import Workspace

MAX_PROCESSES = 4
"""The default limit; each process holds the model and loaded indexes in memory."""
CONCURRENT_SEARCHES = 4
"""Concurrent searches in the single process used for a bucket: they mostly wait for the network."""
WAIT_SECONDS = 30.0
"""Maximum time to wait for a free process: shorter than a client's timeout."""
CHECK_SECONDS = 1.0
"""How often waiting reads check whether another process must be started."""
SEARCH_SECONDS = 60.0
"""A process that searches for longer is killed."""
ATTEMPTS = 2
"""How many processes a query is tried on; a query that crashes all of them fails."""
RETRY_SECONDS = 60.0
"""Interval between attempts to start a process after a failure."""

log = logging.getLogger(__name__)
_LOGGING = ExitStack()
_BEGIN = f"{__name__}:begin"
_BEGIN_JSON = f"{__name__}:begin_with_json"
_Result = TypeVar("_Result")


def default_processes() -> int:
    """Return one process per core that this process may use, but at most MAX_PROCESSES."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_PROCESSES)


@dataclass(slots=True, eq=False)
class SearchProcesses:
    """Up to ``processes`` processes, each with up to ``at_once`` concurrent reads; more are started if reads wait.

    None of them is the current process. If one dies, another retries its read, and a new one is started once reads wait
    again.
    """

    processes: int
    at_once: int = 1
    _free: queue.PriorityQueue[tuple[int, WorkerProcess]] = field(default_factory=queue.PriorityQueue)
    """Free slots for one read each; slots of the first process come first."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _helpers: set[WorkerProcess] = field(default_factory=set)
    _is_starting: bool = False
    _is_closed: bool = False
    _starts_after: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, function: Callable[..., _Result], workspace: Workspace, *args: Any, **kwargs: Any) -> _Result:
        """Run ``function`` in one of the processes, and return its result. It may only read ``workspace``.

        Propagates errors from ``function``; also raises CorruptFile if every process that tried it died, and
        StorageError if none was free or responded in time.
        """
        for attempt in range(1, ATTEMPTS + 1):
            number, helper = self._wait_for_room(workspace)
            try:
                return helper.run(SEARCH_SECONDS, function, workspace, *args, **kwargs)
            except (ProcessDied, ProcessStopped, TimeoutError) as error:
                if not self._is_closed:
                    log.warning("A search process died or timed out: %s", str(error) or type(error).__name__)
                self._forget(helper)
                if attempt == ATTEMPTS and isinstance(error, ProcessDied):
                    raise
            finally:
                if helper in self._helpers:
                    self._free.put((number, helper))
        raise StorageError("The search processes timed out or died", "", "Narrow the search.")

    def start(self, workspace: Workspace) -> None:
        """Start the first process, which loads the model and opens the tables. Raises the same errors as ``run``.

        If that crashes the process, reads that do not touch damaged files still work.
        """
        from driftline.tasks.search.search import warm

        try:
            self._add(self._started(None, warm, workspace))
        except (ProcessDied, ProcessStopped) as error:
            log.warning("%s", error)

    def close(self) -> None:
        """Kill the processes; they never write."""
        with self._lock:
            self._is_closed, helpers = True, list(self._helpers)
        for helper in helpers:
            self._forget(helper)

    def _started(self, seconds: float | None = None, *work: Any) -> WorkerProcess:
        """Return a new process that has run ``work``: a function and its arguments. It ends if that fails."""
        helper = WorkerProcess(self.at_once, _BEGIN_JSON if writes_json() else _BEGIN)
        try:
            if work:
                helper.run(seconds, *work)
        except BaseException:
            helper.end()
            raise
        return helper

    def _add(self, helper: WorkerProcess) -> None:
        with self._lock:
            if not self._is_closed:
                self._helpers.add(helper)
                for _ in range(self.at_once):
                    self._free.put((next(self._numbers), helper))
                return
        helper.end()

    def _forget(self, helper: WorkerProcess) -> None:
        with self._lock:
            self._helpers.discard(helper)
        helper.end()

    def _wait_for_room(self, workspace: Workspace) -> tuple[int, WorkerProcess]:
        end, seconds = time.monotonic() + WAIT_SECONDS, 0.0
        while True:
            try:
                number, helper = self._free.get(seconds > 0, seconds)
            except queue.Empty:
                self._start_one_more(workspace)
                seconds = min(end - time.monotonic(), CHECK_SECONDS)
                if seconds <= 0:
                    raise StorageError(f"No search finished within {WAIT_SECONDS:.0f} s", "", "Retry.") from None
                continue
            if helper in self._helpers and helper.is_alive:
                return number, helper
            self._forget(helper)

    def _start_one_more(self, workspace: Workspace) -> None:
        with self._lock:
            lacks_one = len(self._helpers) < self.processes and not self._is_starting and not self._is_closed
            if lacks_one and time.monotonic() >= self._starts_after:
                self._is_starting = True
                threading.Thread(target=self._start_in_background, args=(workspace,), daemon=True).start()

    def _start_in_background(self, workspace: Workspace) -> None:
        """Start a process, and use it once it loaded the model, or immediately if reads are waiting."""
        from driftline.tasks.search.search import prepare

        try:
            self._add(self._started(SEARCH_SECONDS, prepare, workspace) if self._helpers else self._started())
        except (OSError, DriftlineError, TimeoutError) as error:
            log.warning("A search process did not start; the server continues without it: %s", error)
            if self._helpers:  # otherwise, reads wait for the next attempt
                self._starts_after = time.monotonic() + RETRY_SECONDS
        finally:
            self._is_starting = False


def begin() -> None:
    """Initialize a worker process: set up logging as in the server."""
    _begin_logging(as_json=False)


def begin_with_json() -> None:
    """Like ``begin``, for a server that logs JSON."""
    _begin_logging(as_json=True)


def _begin_logging(as_json: bool) -> None:
    quiet_libraries()
    if as_json:
        _LOGGING.enter_context(json_lines())
