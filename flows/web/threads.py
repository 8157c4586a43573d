"""Routes that wait for disks and buckets run in threads, and no client waits for them without limit."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.to_thread import run_sync
from starlette.responses import Response

from driftline.storage.errors import StorageError

ANSWER_SECONDS = 60.0
"""How long a client waits for an answer. Its thread ends by itself: nothing that it does can be left half done."""


def in_thread(route: Callable[..., Response]) -> Callable[..., Awaitable[Response]]:
    """``route`` as a coroutine, with the same parameters. Raises StorageError after ANSWER_SECONDS."""

    @functools.wraps(route)
    async def call(*args: object, **kwargs: object) -> Response:
        with anyio.move_on_after(ANSWER_SECONDS):
            return await run_sync(partial(route, *args, **kwargs), abandon_on_cancel=True)
        raise StorageError(f"The answer took more than {ANSWER_SECONDS:.0f} s", "", "Narrow the request, or ask again.")

    return call
