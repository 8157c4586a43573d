"""Run native code in a worker process so that a damaged file crashes only that worker.

Lance does not fully validate files: a corrupt length or offset can abort the process, which no ``except`` catches.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from driftline.storage import helper_process
from driftline.storage.errors import CorruptFile, StorageError
from driftline.storage.helper_process import HelperDied, HelperPool, HelperProcess, HelperStopped
from driftline.storage.lance.failures import AGAIN, REPAIR, without_panic

READ_SECONDS = 6 * 3600.0
"""The default time limit of a read, for reads that hang: the largest tables take minutes."""
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP)
"""The signals with which native code ends a process that reads a damaged file."""
_SERVE = "from driftline.storage.lance.reader_process import serve; serve({threads}, {begin!r})"
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class ProcessDied(CorruptFile):
    """The worker process crashed before it replied, so the file that it read may be damaged."""


class ProcessStopped(StorageError):
    """The worker process was stopped before it replied: because of another request, by the system or by a user."""


class WorkerProcess(HelperProcess):
    """A process that calls ``begin``, given as ``module:name``, then runs up to ``threads`` functions in parallel."""

    def __init__(self, threads: int = 1, begin: str = "", environment: Mapping[str, str] | None = None) -> None:
        super().__init__(_SERVE.format(threads=threads, begin=begin), environment)

    def run(
        self,
        seconds: float | None,
        function: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Run ``function`` in the worker, and return its result or raise its error.

        Raises ProcessDied, ProcessStopped, TimeoutError, which stops the worker.
        """
        try:
            answer = self.ask(seconds or READ_SECONDS, pickle.dumps((function, args, kwargs)))
        except HelperStopped as error:
            raise ProcessStopped("The process was stopped before it answered", "", "Try again.") from error
        except HelperDied as error:
            raise _death(error) from error
        result: _Result = _returned(_outcome(answer))
        return result


def run_in_worker(
    function: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
) -> _Result:
    """Run ``function`` in a pooled worker process, and return or raise its outcome.

    Raises ProcessDied, a CorruptFile, if it crashes two workers in a row, and StorageError if it times out or they are
    killed.
    """
    try:
        outcome = _pool().ask(READ_SECONDS, _outcome, pickle.dumps((function, args, kwargs)))
    except HelperDied as error:
        raise _death(error) from error
    except TimeoutError as error:
        raise StorageError(f"A read took more than {READ_SECONDS / 3600:g} hours", "", AGAIN) from error
    result: _Result = _returned(outcome)
    return result


@cache
def _pool() -> HelperPool[HelperProcess]:
    return HelperPool(partial(HelperProcess, _SERVE.format(threads=1, begin="")))


def _death(error: HelperDied) -> ProcessDied | ProcessStopped:
    """Return an error that blames the files only if native code crashed; the system may have killed the process."""
    if error.code is not None and -error.code in _CRASHES:
        return _died()
    return ProcessStopped("A reading process was killed, or had too little memory", "", AGAIN)


def _died() -> ProcessDied:
    return ProcessDied("A process died while reading: a table of the workspace may be damaged", "", REPAIR)


def _outcome(answer: bytes) -> tuple[Any, Exception | None]:
    try:
        result, error = pickle.loads(answer)
    except Exception as failure:  # unpickling may raise anything
        raise _died() from failure
    return result, error


def _returned(outcome: tuple[Any, Exception | None]) -> Any:
    result, error = outcome
    if error is not None:
        raise error
    return result


# -- in the other process ------------------------------------------------------------------------


def serve(threads: int, begin: str) -> None:
    """Call ``begin``, then run the calls that arrive until the input is closed."""
    helper_process.serve(_run, threads, partial(_call, *begin.split(":")) if begin else None)


def _call(module: str, name: str) -> None:
    getattr(import_module(module), name)()


def _run(data: bytes, _: bytes) -> bytes:
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
