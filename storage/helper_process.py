"""Run code that may crash or hang in another Python process, the helper, which answers requests over pipes.

Requests and answers are bytes, which users encode and validate. A helper that dies fails the requests it has not
answered, and one that exceeds a limit is killed, so no request waits forever.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, Generic, NoReturn, TypeVar

from driftline.storage.errors import DriftlineError, StorageError

EXIT_SECONDS = 10.0
"""How long to wait for a killed process."""
OUT_OF_MEMORY = errno.ENOMEM
"""The exit code of a helper that lacked memory for an answer."""
_HEAD = struct.Struct("<QQQ")
"""A number that the answer repeats, and the lengths of two parts."""
_Answer = TypeVar("_Answer")
_Helper = TypeVar("_Helper", bound="HelperProcess")


class HelperDied(Exception):
    """A helper exited with ``code`` before it answered, or was killed by the signal ``-code``."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.is_beyond_limit = code in (-signal.SIGXCPU, OUT_OF_MEMORY)
        """Whether it exceeded its CPU time, its memory, or the length of an answer."""


class HelperStopped(HelperDied):
    """This process killed a helper before it answered, because of another request."""


class HelperProcess:
    """A process that runs ``code``, which calls ``serve``; it exits no later than this process. Thread-safe.

    It does not use ``multiprocessing``, which would import the caller's main program again. Raises StorageError.
    """

    def __init__(
        self, code: str, environment: Mapping[str, str] | None = None, *, quiet: bool = False, most_bytes: int = 2**40
    ) -> None:
        self.environment = environment_of_helper() if environment is None else environment
        self._most_bytes = most_bytes
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._numbers = itertools.count()
        self._answers: dict[int, Future[bytes]] = {}
        self._is_stopped = self._is_lost = False
        try:
            self._process = _start(code, self.environment, quiet)
        except OSError as error:
            raise StorageError(f"No process could be started ({error})", "", "Run the command again.") from error
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not self._is_lost and self._process.poll() is None

    def ask(self, seconds: float, data: bytes, name: bytes = b"") -> bytes:
        """Return the answer to ``data``; if it takes longer, kill the helper. Raises HelperDied, TimeoutError."""
        answer: Future[bytes] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._is_lost:
                raise self._failure()
            self._answers[number] = answer
        timer = threading.Timer(seconds, self._give_up, [number])  # the pipe may be full, so it limits writing as well
        timer.daemon = True
        try:
            timer.start()
            with self._sending, suppress(OSError, ValueError):  # it died, which fails the answer
                assert self._process.stdin is not None
                _send(self._process.stdin, number, name, data)
            return answer.result()
        except BaseException:  # the request may be incomplete, or its answer still to come
            self.end()
            raise
        finally:
            timer.cancel()

    def _give_up(self, number: int) -> None:
        with self._lock:
            answer = self._answers.pop(number, None)
        if answer is not None:
            answer.set_exception(TimeoutError("A process did not answer in time"))
            self.end()

    def end(self) -> None:
        """Kill the process at once, even if it is running something; its other requests raise HelperStopped."""
        self._is_stopped = self._is_stopped or self.is_alive
        self._kill()

    def _kill(self) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):  # its requests must fail in any case
            self._process.kill()
            self._process.wait(EXIT_SECONDS)

    def _failure(self, beyond_limit: bool = False) -> HelperDied:
        failure = HelperStopped() if self._is_stopped else HelperDied(self._process.returncode)
        failure.is_beyond_limit |= beyond_limit
        return failure

    def _receive(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        beyond_limit = False
        try:
            while True:
                number, _, data = _received(self._process.stdout, self._most_bytes)
                with self._lock:
                    answer = self._answers.pop(number)
                answer.set_result(data)
        except MemoryError:
            beyond_limit = True
        except (EOFError, OSError, KeyError):  # it exited, or does not follow the protocol
            pass
        finally:
            self._kill()
            with self._lock:
                self._is_lost = True
                lost, self._answers = list(self._answers.values()), {}
            for answer in lost:
                answer.set_exception(self._failure(beyond_limit))
            with self._sending, suppress(OSError):  # closing a pipe flushes data that nobody reads
                self._process.stdout.close()
                self._process.stdin.close()


def environment_of_helper(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``environment`` with the folders from which this process imports modules."""
    return {**environment, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


def _start(code: str, environment: Mapping[str, str], quiet: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        env=environment,
        start_new_session=True,  # Ctrl-C is for this process
    )


class HelperPool(Generic[_Helper]):
    """Helpers that each answer one request at a time; a thread that finds none idle calls ``start``.

    It replaces a helper started in another ``environment``, which may contain credentials.
    """

    def __init__(
        self,
        start: Callable[[Mapping[str, str]], _Helper],
        environment: Callable[[], Mapping[str, str]] = environment_of_helper,
    ) -> None:
        self._start, self._environment = start, environment
        self._idle: defaultdict[int, list[_Helper]] = defaultdict(list)
        """Keyed by process id: a fork cannot use its parent's helpers."""

    def ask(self, seconds: float, decode: Callable[[bytes], _Answer], data: bytes, name: bytes = b"") -> _Answer:
        """Return the decoded answer to a request; refuse one that kills two helpers, the second a new one.

        The first may have been killed while idle or for lack of memory. A request beyond a limit is not repeated.
        Raises HelperDied, TimeoutError, StorageError, and any exception from ``decode``, which kills the helper.
        """
        try:
            return self._ask(self._take(), seconds, decode, data, name)
        except HelperDied as error:
            if error.is_beyond_limit:
                raise
        return self._ask(self._start(self._environment()), seconds, decode, data, name)

    def _ask(
        self, helper: _Helper, seconds: float, decode: Callable[[bytes], _Answer], data: bytes, name: bytes
    ) -> _Answer:
        try:
            answer = decode(helper.ask(seconds, data, name))
        except BaseException:
            helper.end()
            raise
        self._idle[os.getpid()].append(helper)
        return answer

    def prepare(self) -> None:
        """Start a helper before it is needed."""
        self._idle[os.getpid()].append(self._start(self._environment()))

    @contextmanager
    def reserved(self) -> Iterator[_Helper]:
        """Reserve a helper for several requests that belong together; any error but a DriftlineError kills it."""
        helper = self._take()
        try:
            yield helper
        except DriftlineError:
            self._give_back(helper)
            raise
        except BaseException:
            helper.end()
            raise
        self._give_back(helper)

    def _give_back(self, helper: _Helper) -> None:
        if helper.is_alive:
            self._idle[os.getpid()].append(helper)

    def _take(self) -> _Helper:
        environment = self._environment()
        while True:
            try:
                helper = self._idle[os.getpid()].pop()
            except IndexError:
                return self._start(environment)
            if helper.is_alive and helper.environment == environment:
                return helper
            helper.end()

    def end(self) -> None:
        """Kill the idle helpers."""
        for helper in self._idle.pop(os.getpid(), []):
            helper.end()


def _send(pipe: IO[bytes], number: int, name: bytes, data: bytes) -> None:
    pipe.write(_HEAD.pack(number, len(name), len(data)))
    pipe.write(name)
    pipe.write(data)
    pipe.flush()


def _received(pipe: IO[bytes], most_bytes: int = 2**40) -> tuple[int, bytes, bytes]:
    """Read what ``_send`` wrote. Raises EOFError, MemoryError."""

    def read(length: int) -> bytes:
        data = pipe.read(length)
        if len(data) < length:
            raise EOFError("The other process exited")
        return data

    number, name, data = _HEAD.unpack(read(_HEAD.size))
    if name + data > most_bytes:
        raise MemoryError
    return number, read(name), read(data)


# -- in the other process ------------------------------------------------------------------------


def serve(
    answer: Callable[[bytes, bytes], bytes], threads: int = 1, begin: Callable[[], object] | None = None
) -> NoReturn:
    """Call ``begin``, then answer requests (data and a name), up to ``threads`` at once, until the input is closed.

    An exception from ``answer`` terminates the process.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps output printed by libraries out of the answers
    if begin is not None:
        begin()
    lock = threading.Lock()

    def run(number: int, name: bytes, data: bytes) -> None:
        code = 1
        try:
            found = answer(data, name)
            with lock:
                _send(answers, number, b"", found)
            code = 0
        except MemoryError:
            code = OUT_OF_MEMORY
        except Exception:  # any error: this answer will never come
            traceback.print_exc()
        finally:
            if code:
                os._exit(code)

    pool = ThreadPoolExecutor(threads)
    try:
        while True:
            pool.submit(run, *_received(requests))
    finally:
        os._exit(0)  # nobody waits for requests that are still running


def used_memory() -> int:
    """Return this process's private writable memory in bytes, or 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def limit_memory(size_bytes: int | None) -> None:
    """Limit this process's private writable memory, where the kernel supports it; None removes the limit."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard if size_bytes is None else size_bytes, hard))


def limit_cpu_time(seconds: int) -> None:
    """Let the kernel kill this process after ``seconds`` more of CPU time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + seconds, hard))
