"""Work in threads that is done without them where there are none any more: while the interpreter ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_threads(pool: ThreadPoolExecutor, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """The results of ``work``, which is idempotent, in the order of ``items``; raises what ``work`` raises first."""
    all_items = list(items)
    try:
        futures = [pool.submit(work, item) for item in all_items]
    except RuntimeError:  # the pool has ended, or the interpreter ends and starts no thread
        return [work(item) for item in all_items]
    return [future.result() for future in futures]
