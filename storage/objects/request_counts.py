"""Counts the requests that are sent to object stores, by kind and by the phase of the run that sends them.

Whoever wants to know opens a ``tally``; the clients of ``buckets`` and ``sources`` call ``count``. What Lance asks of a
table's files passes by this: it has clients of its own.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

KINDS = ("list", "get", "head", "put", "delete")
"""As stores price them; a ``get`` is also what asks for something else than an object, such as ``GET ?acl``."""
OTHER = "other"
"""The phase of what happens outside of all phases."""

Counts = dict[str, dict[str, int]]
"""Requests by phase and kind; what is not there is 0. Small, and picklable."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_OPERATIONS = {"List": "list", "Head": "head", "Get": "get", "Delete": "delete"}


class Tally:
    """Requests counted so far. Threads may count at once."""

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
    """Count what this context sends, and the contexts copied from it; an outer tally does not see it."""
    found = Tally()
    before = _current.set((found, OTHER))
    try:
        yield found
    finally:
        _current.reset(before)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count what is sent in here as part of the phase ``name``."""
    current = _current.get()
    before = _current.set((current[0], name) if current else None)
    try:
        yield
    finally:
        _current.reset(before)


def for_threads(function: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """``function`` for the threads of a pool: what it sends there is counted where this was called."""
    current = _current.get()

    def counted(item: Item) -> Result:
        before = _current.set(current)
        try:
            return function(item)
        finally:
            _current.reset(before)

    return counted


def count(kind: str, requests: int = 1) -> None:
    """So many requests of one of ``KINDS`` are being sent."""
    current = _current.get()
    if current:
        current[0].add(current[1], kind, requests)


def count_all(counts: Counts) -> None:
    """What was counted elsewhere for this phase, such as by a task on a worker."""
    for kinds in counts.values():
        for kind, requests in kinds.items():
            count(kind, requests)


def by_kind(counts: Counts) -> dict[str, int]:
    """The sums over all phases, in the order of ``KINDS``, without what is 0."""
    sums = sum((Counter(kinds) for kinds in counts.values()), Counter[str]())
    return {kind: sums[kind] for kind in KINDS if sums[kind]}


def merged(*parts: Counts) -> Counts:
    """The sums of several counts, phase by phase."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in parts:
        for name, kinds in part.items():
            sums[name].update(kinds)
    return {name: dict(kinds) for name, kinds in sums.items()}


def price(requests: Mapping[str, int], prices: Mapping[str, float]) -> float | None:
    """What requests cost by ``prices`` of 1,000 of a kind; None if none of these kinds has a price."""
    priced = [kind for kind in requests if kind in prices]
    return sum(prices[kind] * requests[kind] for kind in priced) / 1000 if priced else None


# -- clients of fsspec, which tell of each request they send -----------------------------------


def watch(file_system: Any, scheme: str) -> None:
    """Count what an fsspec file system of a bucket (``s3``, ``gs``, ``az``) sends, its retries included.

    A file system that has not connected yet, and is nobody else's; of other schemes nothing is counted.
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
        # Clients of containers and blobs share these policies; the SDK takes hooks only call by call.
        for runner in client._pipeline._impl_policies:
            policy = getattr(runner, "_policy", runner)
            if hasattr(policy, "_request_callback"):
                policy._request_callback = before_send


def _kind_of(method: str) -> str:
    return {"GET": "get", "HEAD": "head", "DELETE": "delete"}.get(method, "put")
