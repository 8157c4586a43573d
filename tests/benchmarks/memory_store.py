"""The memory store over SQLite and PostgreSQL: reads by entity and by key, single and bulk stores, batches of blobs.

``--entries`` are loaded by ``store_many`` into a tenant: 20 to a session, 200 to a user, ten projects. Nothing flushes
meanwhile: reads by entity and by key ask the catalog, not the indexes.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import measure

from driftline.storage.local_disk import LocalDisk
from driftline.storage.memory import Item, MemoryStore

PER_SESSION, PER_USER, PROJECTS = 20, 200, 10
BATCH = 50_000
REPEATS = 50
DELAY_SECONDS = 0.020


def main() -> int:
    options = measure.begin(__doc__, entries=1_000_000)
    entries = 2_000 if options.small else options.entries
    verdict = measure.Verdict(options.small)
    for name, url in catalogs():
        print(f"{name}, {entries:,} entries", flush=True)
        with measure.scratch() as folder:
            run(name, url or f"sqlite:///{folder / 'catalog.sqlite'}", folder, entries, verdict)
    return verdict.exit_code


def catalogs() -> Iterator[tuple[str, str | None]]:
    """The kinds of catalogs, with a URL if they need a server."""
    yield "SQLite", None
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import pytest

    from tests.postgres_server import postgres

    try:
        with postgres() as server:
            yield "PostgreSQL without fsync", server.database()
    except pytest.skip.Exception as reason:
        print(f"PostgreSQL is left out: {reason}")


def run(name: str, url: str, folder: Path, entries: int, verdict: measure.Verdict) -> None:
    with MemoryStore(str(folder / "workspace"), catalog_url=url) as store:
        store._flusher.notify = lambda rows: None  # type: ignore[method-assign]  # nothing runs beside the measurements
        load(store, entries, verdict, name)
        read(store, entries, verdict, name)
        single(store, folder, verdict, name)
        batch(store, verdict, name)
    os.sync()


def load(store: MemoryStore, entries: int, verdict: measure.Verdict, name: str) -> None:
    items = [
        Item(f"key-{n:09}", {"n": n, "text": "some remembered words"}, owner(n, entries), {"phase": n % 3})
        for n in range(entries)
    ]
    started = time.perf_counter()
    for start in range(0, entries, BATCH):
        store.store_many(items[start : start + BATCH])
    verdict.at_least(f"{name}: bulk", entries / (time.perf_counter() - started), 20_000, "entries/s")


def owner(n: int, entries: int) -> str:
    per_project = max(1, entries // PROJECTS)
    return f"org:acme/project:p{n // per_project}/user:u{n // PER_USER}/session:s{n // PER_SESSION}"


def read(store: MemoryStore, entries: int, verdict: measure.Verdict, name: str) -> None:
    draw = random.Random(7)

    def some(size: int) -> int:
        return draw.randrange(max(1, entries // size))

    def by(kind: str, size: int, letter: str) -> Callable[[], object]:
        return lambda: store.retrieve_by_entity(kind, f"{letter}{some(size)}", within="org:acme", limit=1_000)

    sessions = timed(by("session", PER_SESSION, "s"))
    verdict.at_most(f"{name}: by session, p50", quantile(sessions, 0.5) * 1000, 20, "ms")
    verdict.at_most(f"{name}: by session, p95", quantile(sessions, 0.95) * 1000, 100, "ms")
    verdict.at_most(f"{name}: by user, p95", quantile(timed(by("user", PER_USER, "u")), 0.95) * 1000, 200, "ms")
    projects = timed(by("project", max(1, entries // PROJECTS), "p"))
    verdict.at_most(f"{name}: by project (1,000 and the count), p95", quantile(projects, 0.95) * 1000, 500, "ms")
    orgs = timed(lambda: store.retrieve_by_entity("org", "acme", within="org:acme", limit=1_000), 10)
    verdict.at_most(f"{name}: by org (1,000 and the count), p95", quantile(orgs, 0.95) * 1000, 1_000, "ms")
    keys = timed(lambda: store.retrieve(f"key-{some(1):09}", "org:acme"), 500)
    verdict.at_most(f"{name}: by key, inline, p50", quantile(keys, 0.5) * 1000, 2, "ms")


def single(store: MemoryStore, folder: Path, verdict: measure.Verdict, name: str) -> None:
    fsync_seconds = quantile(timed(lambda: write_and_sync(folder / "probe"), 100), 0.5)
    numbers = iter(range(10_000))
    stores = timed(lambda: store.store(f"one-{next(numbers)}", {"n": 1}, "org:acme/project:p0/user:one"), 300)
    print(f"  one fsync of this disk, p50: {fsync_seconds * 1000:.2f} ms; SQLite makes one for each store")
    verdict.at_most(f"{name}: store, p95", quantile(stores, 0.95) * 1000, 100, "ms")
    reachable = min(500.0, 0.5 / fsync_seconds) if name == "SQLite" else 500.0
    verdict.at_least(f"{name}: stores one by one", len(stores) / sum(stores), reachable, "entries/s")
    started = time.perf_counter()
    flushed = store.catalog.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM outbox").scalar_one())
    if flushed <= BATCH:
        store.flush()
        print(f"  flush of {flushed:,} entries into the indexes of all levels: {time.perf_counter() - started:.1f} s")


def batch(store: MemoryStore, verdict: measure.Verdict, name: str) -> None:
    large = "a value that is not inlined " * 100
    keys = [f"blob-{n}" for n in range(1_000)]
    store.store_many(Item(key, large + key, "org:acme/project:p0/user:blobs") for key in keys)
    get = LocalDisk.get

    def slow(disk: LocalDisk, path: str) -> tuple[bytes, str]:
        time.sleep(DELAY_SECONDS)
        return get(disk, path)

    LocalDisk.get = slow  # type: ignore[method-assign, assignment]
    try:
        started = time.perf_counter()
        assert len(store.retrieve_batch(keys[:900], "org:acme")) == 900
        together = (time.perf_counter() - started) / 900
        unread = iter(keys[900:])  # what was read is cached
        alone = quantile(timed(lambda: store.retrieve(next(unread), "org:acme"), 99), 0.5)
    finally:
        LocalDisk.get = get  # type: ignore[method-assign]
    verdict.at_least(f"{name}: a batch of blobs against one by one, 20 ms of latency", alone / together, 5, "x")


def write_and_sync(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 4_096)
        file.flush()
        os.fsync(file.fileno())


def timed(call: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """The seconds that each of so many calls takes, after one that warms up."""
    call()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds


def quantile(seconds: Sequence[float], which: float) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[round(which * 100) - 1]


if __name__ == "__main__":
    raise SystemExit(main())
