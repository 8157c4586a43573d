"""Hand rows to Lance's writer part by part, so that a file may be larger than what a process keeps in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import pyarrow as pa

_Result = TypeVar("_Result")


def streamed(write: Callable[[pa.RecordBatchReader], _Result], parts: Iterator[pa.Table]) -> _Result | None:
    """Return the result of ``write`` over the rows of ``parts``, or None if there are none.

    ``write`` runs in another thread. This thread computes a part once ``write`` has taken the one before: at most one
    is in memory, and the code that computes it keeps its thread and context. Raises what either of them raises.
    """
    first = next(parts, None)
    if first is None:
        return None
    schema = first.schema
    wanted, handed = SimpleQueue[bool](), SimpleQueue[pa.Table | None]()
    handed.put(first)
    del first

    def batches() -> Iterator[pa.RecordBatch]:
        while (part := handed.get()) is not None:
            yield from part.to_batches()
            del part  # before the next one is computed
            wanted.put(True)

    with ThreadPoolExecutor(1, "driftline-writer") as pool:
        try:
            written = pool.submit(write, pa.RecordBatchReader.from_batches(schema, batches()))
            written.add_done_callback(lambda _: wanted.put(False))
            while wanted.get():
                handed.put(next(parts, None))
        finally:
            handed.put(None)  # lets ``write`` end after an error or an interrupt, too
        return written.result()
