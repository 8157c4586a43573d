"""Count the requests sent to object stores, by kind and by phase, send them in parallel, and retry idempotent ones.

A caller opens a ``request_counter``; the clients in ``bucket`` and ``source`` call ``count``. Lance's requests for
table files are not counted, because Lance has its own clients. Retries have exponential backoff, full jitter and
bounded attempts.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

KINDS = ("list", "get", "head", "put", "delete")
"""The kinds of requests that stores charge for.

``get`` includes requests for things other than objects, such as ``GET ?acl``.
"""
OTHER = "other"
"""The phase of requests sent outside all phases."""

Counts = dict[str, dict[str, int]]
"""Request counts, keyed by phase and kind; a missing entry is 0. Small and picklable."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_OPERATIONS = {"List": "list", "Head": "head", "Get": "get", "Delete": "delete"}


class RequestCounter:
    """The requests counted so far. Thread-safe."""

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


_current: ContextVar[tuple[RequestCounter, str] | None] = ContextVar("driftline_requests", default=None)


@contextmanager
def request_counter() -> Iterator[RequestCounter]:
    """Count the requests of this context and its copies; an outer counter does not include them."""
    opened = RequestCounter()
    before = _current.set((opened, OTHER))
    try:
        yield opened
    finally:
        _current.reset(before)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count requests sent inside this context under phase ``name``."""
    current = _current.get()
    before = _current.set((current[0], name) if current else None)
    try:
        yield
    finally:
        _current.reset(before)


def count(kind: str, requests: int = 1) -> None:
    """Add ``requests`` of one ``kind`` (see KINDS) to the open counter, if any."""
    current = _current.get()
    if current:
        current[0].add(current[1], kind, requests)


def count_all(counts: Counts) -> None:
    """Add ``counts`` from elsewhere, such as a task on a worker, to the current phase."""
    for kinds in counts.values():
        for kind, requests in kinds.items():
            count(kind, requests)


def by_kind(counts: Counts) -> dict[str, int]:
    """Sum the counts of all phases by kind, in the order of ``KINDS``, omitting zeros."""
    sums = sum((Counter(kinds) for kinds in counts.values()), Counter[str]())
    return {kind: sums[kind] for kind in KINDS if sums[kind]}


def price(requests: Mapping[str, int], prices: Mapping[str, float]) -> float | None:
    """Return the cost of ``requests``; ``prices`` are per 1,000 requests. Returns None if no kind has a price."""
    priced = [kind for kind in requests if kind in prices]
    return sum(prices[kind] * requests[kind] for kind in priced) / 1000 if priced else None


def merged(*parts: Counts) -> Counts:
    """Return the sum of several counts, phase by phase."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in parts:
        for name, kinds in part.items():
            sums[name].update(kinds)
    return {name: dict(kinds) for name, kinds in sums.items()}


# -- in parallel ------------------------------------------------------------------------------


REQUESTS_AT_ONCE = 16
"""How many requests a loop over the objects of a bucket sends at once."""
_AHEAD = 2
"""How many items are started for each thread before the caller takes their results."""


def in_parallel(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int = REQUESTS_AT_ONCE,
    pool: Executor | None = None,
) -> Iterator[Result]:
    """Yield ``work(item)`` for each item, in order, computed by ``threads`` threads in the caller's context.

    Stops at the first failure, on an interrupt, or if the caller stops early; items that have not started are skipped.
    With at most one thread, the items are processed in the caller's thread.

    Args:
        work: May be called for a few items before their results are taken.
        items: Read as results are taken, so they need not fit in memory.
        threads: How many items are processed at once.
        pool: Runs ``work``, instead of new threads; its caller shuts it down. If it is already shut down, or the
            interpreter is exiting, the caller's thread runs ``work``.

    Raises:
        Exception: The first error of ``work``, in the order of the items, once items in progress have ended.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    if pool is None:
        with ThreadPoolExecutor(threads, "driftline-parallel") as own:
            yield from in_parallel(work, items, threads, own)
        return
    running: deque[Future[Result]] = deque()
    try:
        for item in items:
            running.append(_submit(pool, work, item))
            if len(running) >= _AHEAD * threads:
                yield running[0].result()
                running.popleft()
        while running:
            yield running[0].result()
            running.popleft()
    finally:
        wait([each for each in running if not each.cancel()])


def _submit(pool: Executor, work: Callable[[Item], Result], item: Item) -> Future[Result]:
    try:
        return pool.submit(copy_context().run, work, item)
    except RuntimeError:  # the pool is shut down, or the interpreter is exiting
        done: Future[Result] = Future()
        done.set_result(work(item))
        return done


# -- hooks into the clients of fsspec ---------------------------------------------------------


def count_requests_of(file_system: Any, scheme: str) -> None:
    """Count the requests of a bucket's fsspec file system (``s3``, ``gs``, ``az``), including its retries.

    The file system must not be connected yet or shared. Other schemes are not counted.
    """
    match scheme:
        case "s3":
            _count_s3(file_system)
        case "gs":
            _count_google(file_system)
        case "az":
            _count_azure(file_system)


def _count_s3(file_system: Any) -> None:
    from aiobotocore.session import AioSession  # type: ignore[import-untyped]

    def before_send(event_name: str, **_: Any) -> None:
        operation = event_name.rpartition(".")[2]  # before-send.s3.ListObjectsV2
        count(next((kind for name, kind in _OPERATIONS.items() if operation.startswith(name)), "put"))

    if file_system.session is None:
        file_system.session = AioSession(**file_system.kwargs)
    file_system.session.register("before-send.s3", before_send)


def _count_google(file_system: Any) -> None:
    send = file_system._request

    async def counted(method: str, path: str, *arguments: Any, **options: Any) -> Any:
        listing = method == "GET" and path.endswith("/o")
        count("list" if listing else _kind_of(method))
        return await send(method, path, *arguments, **options)

    file_system._request = counted


def _count_azure(file_system: Any) -> None:
    def before_send(request: Any) -> None:
        listing = "comp=list" in request.http_request.url
        count("list" if listing else _kind_of(request.http_request.method))

    clients = file_system.service_client
    for client in clients if isinstance(clients, list) else [clients]:
        # Container and blob clients share these policies; the SDK accepts hooks only per call.
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
"""No attempt starts later than this after the first.

The client libraries retry as well, so this module gives up soon if a store is down.
"""

_CLIENT = re.compile(r"after (\d+) retries, max_retries: (\d+)")
_Result = TypeVar("_Result")


_chance = random.SystemRandom().random
"""Random numbers between 0 and 1 that leave the program's own sequence of random numbers alone, and differ in forks."""


def is_exhausted(text: str) -> bool:
    """Return whether ``text`` is a client library's report that it exhausted its own retries."""
    client = _CLIENT.search(text)
    return client is not None and int(client[1]) >= int(client[2])


def delays(*, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = _chance) -> Iterator[float]:
    """Yield the seconds to wait before each retry, until attempts or time are exhausted."""
    deadline = clock() + NO_ATTEMPT_AFTER_SECONDS
    longest = FIRST_DELAY_SECONDS
    for _ in range(ATTEMPTS - 1):
        delay = longest * chance()
        if clock() + delay >= deadline:
            return
        yield delay
        longest = min(2 * longest, MAX_DELAY_SECONDS)


def with_retries(operation: Callable[[], _Result], is_transient: Callable[[BaseException], bool]) -> _Result:
    """Run ``operation``, retrying it while it fails with a transient error.

    Raises the last attempt's error.
    """
    for delay in delays():
        try:
            return operation()
        except BaseException as error:
            if not is_transient(error):
                raise
        time.sleep(delay)
    return operation()
