"""Run native code in a worker process so that a damaged file crashes only that worker.

Lance does not fully validate files: a corrupt length or offset can abort the process, which no ``except`` catches.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import IO, Any, ParamSpec, TypeVar

from driftline.storage.errors import CorruptFile, DriftlineError, StorageError
from driftline.storage.lance.failures import REPAIR, without_panic

_LENGTH = struct.Struct("<Q")
_SERVE = "from driftline.storage.lance.reader_process import serve; serve({threads}, {begin!r})"
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class ProcessDied(CorruptFile):
    """The worker process died before it replied."""


class ProcessStopped(StorageError):
    """The worker process was stopped before it replied, because of another request."""


class WorkerProcess:
    """A process that runs up to ``threads`` functions in parallel; it exits no later than this process.

    It first calls ``begin``, given as ``module:name``. It does not use ``multiprocessing``, which would import the
    caller's main program again.
    """

    def __init__(self, threads: int = 1, begin: str = "") -> None:
        self._answers: dict[int, Future[Any]] = {}
        self._number = 0
        self._is_lost = self._is_stopped = False
        self._lock = threading.Lock()
        self._process = _start(_SERVE.format(threads=threads, begin=begin))
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(
        self,
        seconds: float | None,
        function: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Run ``function`` in the worker, and return its result or raise its error.

        Raises ProcessDied, ProcessStopped, TimeoutError.
        """
        answer: Future[_Result] = Future()
        data = pickle.dumps((function, args, kwargs))
        with self._lock:
            if self._is_lost:
                raise self._failure()
            self._number += 1
            self._answers[self._number] = answer
            try:
                assert self._process.stdin is not None
                _send(self._process.stdin, self._number, data)
            except OSError:
                self._answers.pop(self._number)
                answer.set_exception(self._failure())
        return answer.result(seconds)

    def _failure(self) -> DriftlineError:
        """Return why the process no longer responds."""
        if self._is_stopped:
            return ProcessStopped("The process was stopped before it responded", "", "Try again.")
        return ProcessDied("A process died while reading: a table of the workspace may be damaged", "", REPAIR)

    def end(self) -> None:
        """End the process immediately, even if it is running a task; its callers get ProcessStopped."""
        self._is_stopped = True
        self._kill()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                number, data = _received(self._process.stdout)
                result, error = pickle.loads(data)  # before the response is removed, since loading it may fail
                with self._lock:
                    answer = self._answers.pop(number)
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)
        except (EOFError, OSError):
            pass
        finally:  # even if a response cannot be loaded
            self._kill()
            with self._lock:
                self._is_lost = True
                lost, self._answers = list(self._answers.values()), {}
                for pipe in (self._process.stdin, self._process.stdout):
                    assert pipe is not None
                    with suppress(OSError):  # requests that were not sent yet
                        pipe.close()
                failures = [self._failure() for _ in lost]
            for answer, failure in zip(lost, failures, strict=True):
                answer.set_exception(failure)


def _start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,  # Ctrl-C is for this process
    )


def survived(
    function: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
) -> _Result:
    """Run ``function`` in a reused worker process, and return or raise its outcome.

    Raises ProcessDied, a CorruptFile.
    """
    return _shared_worker().run(function, *args, **kwargs)


@cache
def _shared_worker() -> _SharedWorker:
    return _SharedWorker()


class _SharedWorker:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._environment: dict[str, str] | None = None

    def run(
        self, function: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result:
        with self._lock:
            environment = dict(os.environ)  # contains credentials
            if self._process is None or not self._process.is_alive or self._environment != environment:
                try:
                    if self._process is not None:
                        self._process.end()
                    self._process, self._environment = WorkerProcess(), environment
                except OSError as error:
                    raise StorageError(f"No process could be started ({error})", "", "Run it again.") from error
            process = self._process
        return process.run(None, function, *args, **kwargs)


# -- in the other process ------------------------------------------------------------------------


def serve(threads: int, begin: str) -> None:
    """Run calls read from standard input and write results to standard output, until end of input."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps output printed by libraries out of the results
    if begin:
        module, _, name = begin.partition(":")
        getattr(__import__(module, fromlist=[name]), name)()
    lock = threading.Lock()

    def answer(number: int, data: bytes) -> None:
        reply = _run(data)
        with lock:
            _send(answers, number, reply)

    pool = ThreadPoolExecutor(threads)
    while True:
        try:
            pool.submit(answer, *_received(requests))
        except EOFError:
            os._exit(0)  # nobody waits for calls that are still running


def _run(data: bytes) -> bytes:
    """Run a pickled call, and return its result or error, pickled."""
    try:
        function, args, kwargs = pickle.loads(data)
        with without_panic():
            return pickle.dumps((function(*args, **kwargs), None))
    except Exception as error:
        return _pickled(error)


def _pickled(error: Exception) -> bytes:
    error.__traceback__ = None
    try:
        data = pickle.dumps((None, error))
        pickle.loads(data)
    except Exception:  # pickling a third-party exception may raise anything
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return data


def _send(pipe: IO[bytes], number: int, data: bytes) -> None:
    pipe.write(_LENGTH.pack(number) + _LENGTH.pack(len(data)) + data)
    pipe.flush()


def _received(pipe: IO[bytes]) -> tuple[int, bytes]:
    head = pipe.read(2 * _LENGTH.size)
    if len(head) < 2 * _LENGTH.size:
        raise EOFError("The worker process exited")
    number, length = _LENGTH.unpack_from(head)[0], _LENGTH.unpack_from(head, _LENGTH.size)[0]
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError("The worker process exited while writing")
    return number, data
