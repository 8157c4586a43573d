"""Routes that wait for disks and buckets run in threads, and no client waits for them without limit."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.to_thread import run_sync
from starlette.responses import Response

from driftline.storage.errors import StorageError

ANSWER_SECONDS = 60.0
"""How long a client waits for an answer. Its thread ends by itself: nothing that it does can be left half done."""


SEARCHES_AT_ONCE = max(4, 2 * (os.cpu_count() or 1))
"""More would take the interpreter from each other, and memory: the others wait for their turn."""


@functools.lru_cache(16)  # a limiter belongs to an event loop
def _turns(_: object) -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(SEARCHES_AT_ONCE)


def in_thread(route: Callable[..., Response], *, searches: bool = False) -> Callable[..., Awaitable[Response]]:
    """``route`` as a coroutine, with the same parameters; one that ``searches`` waits until few others do.

    Raises StorageError after ANSWER_SECONDS.
    """

    @functools.wraps(route)
    async def call(*args: object, **kwargs: object) -> Response:
        with anyio.move_on_after(ANSWER_SECONDS):
            turn = _turns(asyncio.get_running_loop()) if searches else None
            return await run_sync(partial(route, *args, **kwargs), abandon_on_cancel=True, limiter=turn)
        raise StorageError(f"The answer took more than {ANSWER_SECONDS:.0f} s", "", "Narrow the request, or ask again.")

    return call
