"""The interface of object stores, which ``Bucket`` and ``LocalDisk`` implement, and retries of idempotent operations.

Retries are bounded, with exponential delay and full jitter.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: ``path`` is relative to the workspace; ``modified`` is the store's own time, with a time zone.

    ``version`` (an etag or a generation) changes with the content. ``replace`` accepts only versions from
    ``get_versioned``, ``head``, ``create`` and ``replace``: listings of Google Cloud Storage and Azure spell them
    differently.
    """

    path: str
    size_bytes: int
    modified: datetime
    version: str


Range = tuple[int, int | None]
"""The bytes of an object from the first number to the second (exclusive), or to its end."""


class Backend(Protocol):
    """Conditional writes, reads and listings below one root; the caller has validated the paths.

    Methods raise the errors of ``storage/errors.py``. AlreadyExists and PreconditionFailed may stem from our own write
    if its acknowledgement was lost and the client library retried it.
    """

    lance_options: dict[str, str] | None

    def lance_uri(self, path: str) -> str: ...

    def cached_lance(self, path: str) -> tuple[str, dict[str, str]] | None: ...

    def read_ahead(self, ranges: Mapping[str, Range]) -> None: ...

    def get(self, path: str) -> tuple[bytes, str]: ...

    def open_input(self, path: str) -> pa.NativeFile: ...

    def head(self, path: str) -> ObjectInfo | None: ...

    def create(self, path: str, data: bytes) -> str: ...

    def replace(self, path: str, data: bytes, version: str) -> str: ...

    def walk(self, prefix: str, *, recursive: bool) -> Iterator[ObjectInfo]: ...

    def directories(self, prefix: str) -> list[str]: ...

    def delete(self, paths: Sequence[str]) -> None: ...


ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 2.0
NO_ATTEMPT_AFTER_SECONDS = 20.0
"""No attempt begins later than this after the first.

The clients below retry on their own, so a store that is down is given up soon."""

_CLIENT = re.compile(r"after (\d+) retries, max_retries: (\d+)")
_Result = TypeVar("_Result")


def is_exhausted(text: str) -> bool:
    """Return whether ``text`` of the client library says that it has used up its own attempts."""
    client = _CLIENT.search(text)
    return client is not None and int(client[1]) >= int(client[2])


def delays(
    *, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, until the attempts or the time are used up."""
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
    """Return the result of ``operation``, which is repeated while it fails with a transient error.

    Raises the error of the last attempt.
    """
    for delay in delays(clock=clock, chance=chance):
        try:
            return operation()
        except BaseException as error:
            if not is_transient(error):
                raise
        sleep(delay)
    return operation()
