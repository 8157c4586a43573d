"""Run an extractor in a separate process with limits, so a malicious document can crash only that process.

The process has no network access if the kernel allows that, writes no files, gets no credentials from the environment,
and responds in JSON, which is never executed here. It is reused for the next document; a process that dies, hangs, or
exceeds its limits is replaced.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import IO, Any, NoReturn

from driftline.storage.documents import SkipReason

CPU_SECONDS = 60
"""CPU time limit per document; a PDF of thousands of pages takes less."""
WALL_SECONDS = 600.0
"""Wall-clock time limit per document, long enough even on a heavily overloaded machine."""
MEMORY_BYTES = 2**30
"""Address space beyond what the process has before its first document."""
MAX_ANSWER_BYTES = 512 * 2**20
_LENGTH = struct.Struct("<Q")
_SERVE = "from driftline.tasks.extraction.process import serve; serve({cpu_seconds}, {memory_bytes})"
_KEPT_VARIABLES = frozenset(("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "SYSTEMROOT", "TMPDIR", "TZ"))
_SET_VARIABLES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Variables that limit threads and memory pools: each would reserve address space, which counts against the limit.
"""
_FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "ctypes.dlopen",
)
_LIBRARIES = ("lxml.etree", "pypdfium2")
"""Loaded before the limits are set, because the limits forbid loading native libraries."""
_NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000


class Refused(Exception):
    """An extractor cannot read a file, for a ``reason``."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def extract_apart(target: str, data: bytes) -> dict[str, Any]:
    """Call ``target``, a function given as ``module:name``, with ``data``; return its ``to_dict``. Raises Refused."""
    answer = _pool().ask(target, data)
    if "reason" in answer:
        known = answer["reason"] in [*SkipReason]
        raise Refused(SkipReason(answer["reason"]) if known else SkipReason.DAMAGED)
    return answer


@cache
def _pool() -> _Pool:
    pool = _Pool()
    atexit.register(pool.end)
    return pool


class _Pool:
    """The idle processes; a thread that finds none starts one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_ExtractorProcess] = []

    def ask(self, target: str, data: bytes) -> dict[str, Any]:
        """Return a process's response, or the reason why there is none."""
        process = self._take()
        is_reused = process.has_answered
        answer = process.ask(target, data)
        if process.is_lost and is_reused:  # it may have been killed while idle, which is not this document's fault
            process = _ExtractorProcess()
            answer = process.ask(target, data)
        if process.is_alive:
            with self._lock:
                self._idle.append(process)
        else:
            process.end()
        return answer

    def _take(self) -> _ExtractorProcess:
        """Return an idle process that is alive, or a new one."""
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return _ExtractorProcess()
            if process.is_alive:
                return process
            process.end()

    def end(self) -> None:
        """Stop the idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()


class _ExtractorProcess:
    """A subprocess that extracts documents.

    It exits when its input is closed, so it never outlives its parent. ``has_answered`` is set after its first
    response, and ``is_lost`` if it exited or was killed while within its limits.
    """

    def __init__(self) -> None:
        self.has_answered = self.is_lost = False
        kept = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES}
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE.format(cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**kept, **_SET_VARIABLES, "PYTHONPATH": path},
            start_new_session=True,  # the parent handles Ctrl-C
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, target: str, data: bytes) -> dict[str, Any]:
        """Return the process's response, or the reason why there is none.

        The process is killed unless its response is complete: the rest would be mistaken for the response to the next
        document.
        """
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(WALL_SECONDS, give_up)
        timer.daemon = True
        answer: dict[str, Any] | None = None
        try:
            timer.start()
            answer = self._answered(target, data)
        except _TooLongAnswer:
            return {"reason": SkipReason.BOMB}
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            return {"reason": SkipReason.DAMAGED}
        except (EOFError, OSError):
            self.end()
            is_beyond_limit = late.is_set() or self._process.returncode == -signal.SIGXCPU
            self.is_lost = not is_beyond_limit
            slow = is_beyond_limit or self._process.returncode == -signal.SIGKILL
            return {"reason": SkipReason.SLOW if slow else SkipReason.DAMAGED}
        finally:
            timer.cancel()
            if answer is None or answer.get("reason") == SkipReason.BOMB:
                self.end()  # after a decompression bomb, the process may not have enough memory for the next document
        self.has_answered = True
        return answer

    def _answered(self, target: str, data: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _send(self._process.stdin, target.encode())
        _send(self._process.stdin, data)
        answer = json.loads(_received(self._process.stdout, MAX_ANSWER_BYTES))
        if not isinstance(answer, dict):
            raise ValueError("no answer")
        return answer

    def end(self) -> None:
        """Kill the process."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self._process.poll() is None else None)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # data not sent yet
                    pipe.close()


class _TooLongAnswer(Exception):
    pass


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _received(pipe: IO[bytes], most: int) -> bytes:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("The worker process exited")
    (length,) = _LENGTH.unpack(head)
    if length > most:
        raise _TooLongAnswer
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError("The worker process exited while writing")
    return data


# -- in the other process ------------------------------------------------------------------------


def serve(cpu_seconds: int, memory_bytes: int) -> NoReturn:
    """Read documents from standard input and write their text to standard output until the input is closed."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # library output must not mix with the responses
    _leave_network()
    for library in _LIBRARIES:
        with suppress(ImportError):
            import_module(library)
    is_limited = False
    while True:
        try:
            target = _received(requests, 1_000).decode()
            data = _received(requests, 2**40)
        except EOFError:
            os._exit(0)
        module, _, name = target.partition(":")
        function = getattr(import_module(module), name)
        if not is_limited:
            _limit_memory_and_files(memory_bytes)
            is_limited = True
        _limit_time(cpu_seconds)
        _send(answers, _answer(function, data))


def _answer(function: Any, data: bytes) -> bytes:
    try:
        return json.dumps(function(data).to_dict()).encode()
    except Refused as refused:
        return json.dumps({"reason": refused.reason}).encode()
    except MemoryError:
        return json.dumps({"reason": SkipReason.BOMB}).encode()
    except Exception:  # libraries raise anything for malformed input
        return json.dumps({"reason": SkipReason.DAMAGED}).encode()


def _leave_network() -> None:
    """Move to a network namespace without interfaces, if the kernel permits it."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is not None:
        unshare(_NEW_USER_AND_NETWORK)


def _limit_memory_and_files(memory_bytes: int) -> None:
    """Limit the process's memory, and prevent it from writing files, connecting to hosts or starting processes."""
    with suppress(OSError, ValueError):  # not available on every system
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(_FORBIDDEN) or (event == "open" and _writes(arguments)):
        raise PermissionError(f"A document must not cause {event}")


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return bool(mode and set(mode) & set("wax+")) or bool(flags and flags & (os.O_WRONLY | os.O_RDWR))


def _limit_time(cpu_seconds: int) -> None:
    """Limit this process's CPU time; the kernel kills it at the limit."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + cpu_seconds, hard))
