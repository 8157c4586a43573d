"""Count the requests sent to object stores, by kind and by phase of the run, and retry idempotent ones.

A caller opens a ``tally``; the clients of ``bucket`` and ``source`` call ``count``. Lance's requests for table files
are not counted, because Lance has its own clients. Retries have exponential backoff, full jitter and bounded attempts.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

KINDS = ("list", "get", "head", "put", "delete")
"""The kinds of requests with a price.

``get`` includes requests for anything but an object, such as ``GET ?acl``."""
OTHER = "other"
"""The phase of requests outside of all phases."""

Counts = dict[str, dict[str, int]]
"""Numbers of requests, keyed by phase and kind; a missing entry is 0. Small and picklable."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_OPERATIONS = {"List": "list", "Head": "head", "Get": "get", "Delete": "delete"}


class Tally:
    """The requests counted up to now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, phase: str, kind: str, requests: int) -> None:
        with self._lock:
            self._counts[phase][kind] += requests

    @property
    def counts(self) -> Counts:
        with self._lock:
            return {phase: dict(kinds) for phase, kinds in self._counts.items()}


_current: ContextVar[tuple[Tally, str] | None] = ContextVar("driftline_requests", default=None)


@contextmanager
def tally() -> Iterator[Tally]:
    """Count the requests of this context and of its copies; an outer tally does not include them."""
    opened = Tally()
    before = _current.set((opened, OTHER))
    try:
        yield opened
    finally:
        _current.reset(before)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the requests sent within this context as part of the phase ``name``."""
    current = _current.get()
    before = _current.set((current[0], name) if current else None)
    try:
        yield
    finally:
        _current.reset(before)


def for_threads(function: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """Wrap ``function`` for the threads of a pool, so that its requests count in the context of the caller."""
    current = _current.get()

    def counted(item: Item) -> Result:
        before = _current.set(current)
        try:
            return function(item)
        finally:
            _current.reset(before)

    return counted


def count(kind: str, requests: int = 1) -> None:
    """Add a number of ``requests`` of one ``kind`` (see KINDS) to the open tally, if any."""
    current = _current.get()
    if current:
        current[0].add(current[1], kind, requests)


def count_all(counts: Counts) -> None:
    """Add ``counts`` from elsewhere, such as a task on a worker, to the current phase."""
    for kinds in counts.values():
        for kind, requests in kinds.items():
            count(kind, requests)


def by_kind(counts: Counts) -> dict[str, int]:
    """Sum up all phases for each kind, in the order of ``KINDS``, without zeros."""
    sums = sum((Counter(kinds) for kinds in counts.values()), Counter[str]())
    return {kind: sums[kind] for kind in KINDS if sums[kind]}


def merged(*parts: Counts) -> Counts:
    """Return the sums of several counts, phase by phase."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in parts:
        for name, kinds in part.items():
            sums[name].update(kinds)
    return {name: dict(kinds) for name, kinds in sums.items()}


def price(requests: Mapping[str, int], prices: Mapping[str, float]) -> float | None:
    """Return the cost of ``requests``; ``prices`` are per 1,000 requests. Returns None if no kind has a price."""
    priced = [kind for kind in requests if kind in prices]
    return sum(prices[kind] * requests[kind] for kind in priced) / 1000 if priced else None


# -- hooks into the clients of fsspec ---------------------------------------------------------


def watch(file_system: Any, scheme: str) -> None:
    """Count the requests of an fsspec file system of a bucket (``s3``, ``gs``, ``az``), including its retries.

    The file system must not have connected yet and must not be shared. Other schemes are not counted.
    """
    match scheme:
        case "s3":
            _watch_s3(file_system)
        case "gs":
            _watch_google(file_system)
        case "az":
            _watch_azure(file_system)


def _watch_s3(file_system: Any) -> None:
    from aiobotocore.session import AioSession  # type: ignore[import-untyped]

    def before_send(event_name: str, **_: Any) -> None:
        operation = event_name.rpartition(".")[2]  # before-send.s3.ListObjectsV2
        count(next((kind for name, kind in _OPERATIONS.items() if operation.startswith(name)), "put"))

    if file_system.session is None:
        file_system.session = AioSession(**file_system.kwargs)
    file_system.session.register("before-send.s3", before_send)


def _watch_google(file_system: Any) -> None:
    send = file_system._request

    async def counted(method: str, path: str, *arguments: Any, **options: Any) -> Any:
        listing = method == "GET" and path.endswith("/o")
        count("list" if listing else _kind_of(method))
        return await send(method, path, *arguments, **options)

    file_system._request = counted


def _watch_azure(file_system: Any) -> None:
    def before_send(request: Any) -> None:
        listing = "comp=list" in request.http_request.url
        count("list" if listing else _kind_of(request.http_request.method))

    clients = file_system.service_client
    for client in clients if isinstance(clients, list) else [clients]:
        # Clients of containers and blobs share these policies; the SDK accepts hooks only per call.
        for runner in client._pipeline._impl_policies:
            policy = getattr(runner, "_policy", runner)
            if hasattr(policy, "_request_callback"):
                policy._request_callback = before_send


def _kind_of(method: str) -> str:
    return {"GET": "get", "HEAD": "head", "DELETE": "delete"}.get(method, "put")


ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 2.0
NO_ATTEMPT_AFTER_SECONDS = 20.0
"""No attempt begins later than this after the first attempt.

The client libraries have their own retries, so this module soon gives up on a store that is down."""

_CLIENT = re.compile(r"after (\d+) retries, max_retries: (\d+)")
_Result = TypeVar("_Result")


def is_exhausted(text: str) -> bool:
    """Return whether the client library says in ``text`` that it has used up its own attempts."""
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
