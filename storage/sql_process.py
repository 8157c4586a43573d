"""Run SQL queries in another process, which is killed when a query exceeds its memory or time.

DuckDB does not count the memory of strings that functions build, and checks for an interrupt only between their calls,
so its own limits cannot bound ``repeat('x', 2000000000)``. The process is reused; rows are streamed from it on request.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeVar

import pyarrow as pa

from driftline.storage import sql
from driftline.storage.defaults import DEFAULT_SQL_SECONDS
from driftline.storage.entities import Boundary
from driftline.storage.errors import CorruptFile, DriftlineError, StorageError, UsageError
from driftline.storage.globs import is_unicode
from driftline.storage.helper_process import HelperPool, environment_of_helper, limit_memory, used_memory
from driftline.storage.lance.reader_process import ProcessDied, ProcessStopped, WorkerProcess
from driftline.storage.sql import MAX_BYTES, Limits, Result
from driftline.storage.workspace.workspace import Workspace

START_SECONDS = 300.0
"""How long a new process may take, even on a heavily overloaded machine."""
GRACE_SECONDS = 1.0
"""How much longer than its limit a query may run before its process is killed."""
MIN_READ_BYTES = 2**29
"""What reading tables and sending rows may need beyond a query's own memory, at least."""
MAX_KEPT_BYTES = 2**28
"""A process that keeps more than this after a query is not used again: allocators do not return all that they took, and
it counts towards the limit of the next query.
"""
PIECE_BYTES = 2**20
"""Approximate size of the rows that are sent at once; a row is never split."""
_SET_VARIABLES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}
"""Keep libraries from reserving memory, which would count as used, so the limit would be too high."""
_Returned = TypeVar("_Returned")


@contextmanager
def query(
    workspace: Workspace,
    text: str,
    parameters: Sequence[Any] = (),
    *,
    within: Boundary | None = None,
    searches: pa.Table | None = None,
    max_seconds: float = DEFAULT_SQL_SECONDS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Result]:
    """Run one SELECT on the views of ``workspace``; its result can be read while the context is open.

    Args:
        workspace: The workspace, on a branch or not.
        text: A single statement that only reads.
        parameters: The values for each ``?`` in ``text``.
        within: Show only data within this boundary.
        searches: The search journal, with the columns of SEARCHES.
        max_seconds: Stop the query after this time, which includes reading the result.
        max_bytes: The memory that the query may use; reading the workspace may use as much again.

    Raises:
        UsageError: The statement is invalid, is not a single SELECT, or takes too long.
        OutOfMemory: It needs more memory than ``max_bytes``.
        CorruptFile, StorageError: The workspace cannot be read.
    """
    limits = Limits(max_seconds, max_bytes)
    if not is_unicode(text) or not all(is_unicode(each) for each in parameters if isinstance(each, str)):
        raise UsageError("The query is not UTF-8", repr(text)[:100], "Check the terminal's encoding.")
    with _pool().reserved() as helper:
        _run(limits, helper, START_SECONDS, _ready)
        end = time.monotonic() + max_seconds

        def ask(function: Callable[..., _Returned], *args: Any) -> _Returned:
            return _run(limits, helper, max(end - time.monotonic(), 0) + GRACE_SECONDS, function, *args)

        try:
            (schema, _) = _read(ask(_begin, workspace, text, _pickled(parameters), within, searches, limits))
            with closing(_batches(partial(ask, _next))) as batches:  # or a late read would get the next query's rows
                yield Result(schema, batches, limits)
        except DriftlineError:
            _finish(limits, helper)
            raise
        _finish(limits, helper)


def _finish(limits: Limits, helper: WorkerProcess) -> None:
    """End the query, and its process if that keeps so much memory that the next query would have too little."""
    kept = MAX_KEPT_BYTES + 1
    with suppress(DriftlineError):  # the result is complete, or another error is on its way
        kept = _run(limits, helper, GRACE_SECONDS, _end)
    if kept > MAX_KEPT_BYTES:
        helper.end()


def prepare() -> None:
    """Start the process of the next query, so that it loads its libraries while this one does."""
    _pool().prepare()


@cache
def _pool() -> HelperPool[WorkerProcess]:
    return HelperPool(partial(WorkerProcess, 1, f"{__name__}:load"), _environment)


def _environment() -> Mapping[str, str]:
    return environment_of_helper({**os.environ, **_SET_VARIABLES})


def _run(
    limits: Limits, helper: WorkerProcess, seconds: float, function: Callable[..., _Returned], *args: Any
) -> _Returned:
    try:
        return helper.run(seconds, function, *args)
    except TimeoutError as error:
        raise limits.too_slow() from error
    except MemoryError as error:
        raise limits.too_large() from error
    except ProcessDied as error:  # not raised as such: web servers repeat what killed a process of theirs
        what = f"The query's process died: it needs more than {limits.max_bytes / 1e9:.1f} GB, or a table is damaged"
        raise CorruptFile(what, "", "Narrow the query. If that does not help, run 'driftline verify'.") from error
    except ProcessStopped as error:
        fix = "Narrow the query, or try again when more memory is free."
        raise StorageError("The query's process was killed before it answered", "", fix) from error


def _pickled(parameters: Sequence[Any]) -> bytes:
    try:
        return pickle.dumps(list(parameters))
    except Exception as error:  # pickling may raise anything
        raise _bad_parameter(error) from error


def _bad_parameter(error: Exception) -> UsageError:
    return UsageError("A query parameter is not a plain value", str(error)[:200], "Use text, numbers or dates.")


def _batches(pieces: Callable[[], bytes]) -> Generator[pa.RecordBatch]:
    while piece := pieces():
        yield from _read(piece)[1]


def _read(piece: bytes) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    with pa.ipc.open_stream(piece) as stream:
        return stream.schema, list(stream)


# -- in the other process ------------------------------------------------------------------------


_pieces: list[Generator[bytes]] = []
"""The query that is running, if any."""


@cache
def load() -> int:
    """Load the libraries; return the memory that they use."""
    import duckdb
    import lance  # noqa: F401

    with suppress(OSError):  # the folder is gone already
        sys.path[:] = map(os.path.abspath, sys.path)
    os.chdir("/")  # DuckDB opens no connection in a folder that is gone, as the first caller's may be later
    duckdb.connect().close()
    return used_memory()


def _ready() -> None:
    """Answer as soon as the libraries are loaded."""


def _begin(
    workspace: Workspace,
    text: str,
    parameters: bytes,
    within: Boundary | None,
    searches: pa.Table | None,
    limits: Limits,
) -> bytes:
    """Start a query, and return its schema."""
    try:
        values = pickle.loads(parameters)
    except Exception as error:  # a class that this process cannot import
        raise _bad_parameter(error) from error
    _end()
    limit_memory(load() + limits.max_bytes + max(limits.max_bytes, MIN_READ_BYTES))
    _pieces.append(_answers(workspace, text, values, within, searches, limits))
    return next(_pieces[0])


def _next() -> bytes:
    """Return the next rows, b"" after the last."""
    return next(_pieces[0], b"")


def _end() -> int:
    """End the query, if any; return how much memory this process has kept since it was started."""
    while _pieces:
        _pieces.pop().close()
    limit_memory(None)
    return used_memory() - load()


def _answers(
    workspace: Workspace,
    text: str,
    parameters: Sequence[Any],
    within: Boundary | None,
    searches: pa.Table | None,
    limits: Limits,
) -> Generator[bytes]:
    with sql.query_here(workspace, text, parameters, within, searches, limits) as result:
        yield _written(result.schema, [])
        for batch in result:
            rows = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, PIECE_BYTES))
            for at in range(0, batch.num_rows, rows):
                yield _written(result.schema, [batch.slice(at, rows)])


def _written(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
