"""Retry idempotent object store operations, with exponential backoff, full jitter and bounded attempts."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 2.0
NO_ATTEMPT_AFTER_SECONDS = 20.0
"""No attempt starts later than this after the first.

The client libraries retry as well, so this module gives up soon if a store is down.
"""

_CLIENT = re.compile(r"after (\d+) retries, max_retries: (\d+)")
_Result = TypeVar("_Result")


def is_exhausted(text: str) -> bool:
    """Return whether ``text`` is a client library's report that it exhausted its own retries."""
    client = _CLIENT.search(text)
    return client is not None and int(client[1]) >= int(client[2])


def delays(
    *, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
) -> Iterator[float]:
    """Yield the seconds to wait before each retry, until attempts or time are exhausted."""
    deadline = clock() + NO_ATTEMPT_AFTER_SECONDS
    longest = FIRST_DELAY_SECONDS
    for _ in range(ATTEMPTS - 1):
        delay = longest * chance()
        if clock() + delay >= deadline:
            return
        yield delay
        longest = min(2 * longest, MAX_DELAY_SECONDS)


def with_retries(
    operation: Callable[[], _Result],
    is_transient: Callable[[BaseException], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
    sleep: Callable[[float], object] = time.sleep,
) -> _Result:
    """Run ``operation``, retrying it while it fails with a transient error.

    Raises the last attempt's error.
    """
    for delay in delays(clock=clock, chance=chance):
        try:
            return operation()
        except BaseException as error:
            if not is_transient(error):
                raise
        sleep(delay)
    return operation()
