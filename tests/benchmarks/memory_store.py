"""The memory store over SQLite and PostgreSQL: reads by entity and by key, single and bulk stores, blobs, searches.

    .venv/bin/python tests/benchmarks/memory_store.py [--entries 5000000] [--postgres 5000000] [--fsync 1] [--bucket 1]
                                                      [--search 1000000] [--small]

``store_many`` loads the entries into one tenant: 20 per session, 200 per user, ten projects. Nothing flushes meanwhile:
reads by entity and by key query the catalog, not the indexes. ``--entries 0`` skips SQLite, ``--postgres 0``
PostgreSQL, which syncs its log with ``--fsync 1``. With ``--bucket 1`` the workspace, and so the blobs, are in an S3
server on loopback. ``--search`` is the number of entries that ``search_memory`` searches (``memory_search.py``).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import measure
import memory_search

from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.objects.local_disk import LocalDisk

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests' servers
PER_SESSION, PER_USER, PROJECTS = 20, 200, 10
BATCH = 50_000
DELAY_SECONDS = 0.020
OBSTACLE = "CPU: the transaction of the catalog, and in PostgreSQL its round trips"
LARGE = "a value that is not inlined " * 100


def main() -> int:
    options = measure.begin(__doc__, entries=5_000_000, postgres=5_000_000, fsync=0, bucket=0, search=1_000_000)
    verdict = measure.Verdict(options.small)
    for name, url in catalogs(options):
        entries = 400 if options.small else options.postgres if url else options.entries
        print(f"{name}, {entries:,} entries", flush=True)
        with measure.scratch() as folder, location(folder, options.bucket) as (uri, storage_options):
            catalog_url = url or f"sqlite:///{folder / 'catalog.sqlite'}"
            with MemoryStore(uri, catalog_url=catalog_url, storage_options=storage_options) as store:
                # No background work while measuring.
                store._flusher.notify = lambda rows: None  # type: ignore[method-assign]
                run = Run(store, name, folder, entries, 3 if options.small else 50, verdict)
                run.load()
                run.read()
                run.write()
                run.read_blobs()
                run.flush()
    if options.search:
        entries, queries = (400, 4) if options.small else (options.search, memory_search.QUERIES)
        memory_search.measure_search(entries, queries, verdict)
    return verdict.exit_code


def catalogs(options: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Yield the catalog kinds, each with a URL if it needs a server."""
    where = ", blobs in a bucket" if options.bucket else ""
    if options.entries:
        yield f"SQLite{where}", None
    if not options.postgres:
        return
    import pytest

    from tests.servers.postgres_server import postgres

    try:
        with postgres(fsync=bool(options.fsync)) as server:
            yield f"PostgreSQL with{'' if options.fsync else 'out'} fsync{where}", server.database()
    except pytest.skip.Exception as reason:
        print(f"PostgreSQL is left out: {reason}")


@contextmanager
def location(folder: Path, in_bucket: bool) -> Iterator[tuple[str, dict[str, str] | None]]:
    """Yield the workspace's URI and storage options: in ``folder``, or in an S3 server that stores its data there."""
    if not in_bucket:
        yield str(folder / "workspace"), None
        return
    from tests.servers.s3_server import running_s3

    (folder / "s3").mkdir()
    with running_s3(folder / "s3") as server:
        keys = {"aws_access_key_id": server.access_key, "aws_secret_access_key": server.secret_key}
        options = {"aws_endpoint": server.endpoint, "aws_region": "us-east-1", "aws_allow_http": "true", **keys}
        yield f"s3://{server.bucket}/memory", options


@dataclass(frozen=True, slots=True)
class Run:
    """The measurement of one catalog. Each figure is based on ``repeats`` calls, or ten times as many."""

    store: MemoryStore
    name: str
    folder: Path
    entries: int
    repeats: int
    verdict: measure.Verdict

    def load(self) -> None:
        seconds = 0.0
        for start in range(0, self.entries, BATCH):
            items = [
                MemoryItem(f"key-{n:09}", {"n": n, "text": "some remembered words"}, self.owner(n), {"phase": n % 3})
                for n in range(start, min(self.entries, start + BATCH))
            ]
            started = time.perf_counter()
            self.store.store_many(items)
            seconds += time.perf_counter() - started
        self.verdict.at_least(f"{self.name}: bulk", self.entries / seconds, 20_000, "entries/s", OBSTACLE)

    def owner(self, n: int) -> str:
        project = n * PROJECTS // self.entries
        return f"org:acme/project:p{project}/user:u{n // PER_USER}/session:s{n // PER_SESSION}"

    def read(self) -> None:
        draw = random.Random(7)

        def by(kind: str, number: int) -> Callable[[], object]:
            return lambda: self.store.retrieve_by_entity(
                kind, f"{kind[0]}{draw.randrange(number)}", within="org:acme", limit=1_000
            )

        sessions = timed(by("session", self.entries // PER_SESSION), self.repeats)
        self.at_most("by session, p50", sessions, 0.5, 20)
        self.at_most("by session, p95", sessions, 0.95, 100)
        self.at_most("by user, p95", timed(by("user", self.entries // PER_USER), self.repeats), 0.95, 200)
        self.at_most("by project (1,000 and the count), p95", timed(by("project", PROJECTS), self.repeats), 0.95, 500)
        everything = timed(lambda: self.store.retrieve_by_entity("org", "acme", within="org:acme"), self.repeats)
        self.at_most("by org (1,000 and the count), p95", everything, 0.95, 1_000)
        keys = timed(
            lambda: self.store.retrieve(f"key-{draw.randrange(self.entries):09}", "org:acme"), 10 * self.repeats
        )
        self.at_most("by key, inline, p50", keys, 0.5, 2)

    def write(self) -> None:
        numbers = iter(range(10_000))

        def inlined() -> None:
            self.store.store(f"one-{next(numbers)}", {"n": 1}, "org:acme/project:p0/user:one")

        def in_a_blob() -> None:
            self.store.store(f"large-{next(numbers)}", LARGE, "org:acme/project:p0/user:one")

        syncs = timed(lambda: write_and_sync(self.folder / "probe"), self.repeats)
        stores = timed(inlined, 10 * self.repeats)
        self.at_most("store, inlined, p95", stores, 0.95, 100)
        self.at_most("store, in a blob, p95", timed(in_a_blob, self.repeats), 0.95, 100)
        for what, call in (("inlined", inlined), ("in a blob", in_a_blob)):
            with traced_fsyncs(self.folder / "fsyncs") as counted:
                timed(call, self.repeats)
            each = f"{counted[0] / (self.repeats + 1):.2f}" if counted else "unknown"
            print(f"  fsyncs of this process for a store, {what}: {each}")
        print(f"  one fsync of this disk, p50: {quantile(syncs, 0.5) * 1000:.2f} ms")
        reachable = min(500.0, 0.5 / quantile(syncs, 0.5)) if self.name.startswith("SQLite") else 500.0
        rate = len(stores) / sum(stores)
        self.verdict.at_least(f"{self.name}: stores one by one, inlined", rate, reachable, "entries/s", OBSTACLE)

    def read_blobs(self) -> None:
        number = 20 * self.repeats
        keys = [f"blob-{n}" for n in range(number + self.repeats)]
        self.store.store_many(MemoryItem(key, LARGE + key, "org:acme/project:p0/user:blobs") for key in keys)
        if not self.store.workspace.objects.is_local:
            sessions = timed(lambda: self.store.retrieve_by_entity("user", "blobs", limit=20), self.repeats)
            self.at_most("20 entries in blobs, p95", sessions, 0.95, 200)
            return
        get = LocalDisk.get

        def slow(disk: LocalDisk, path: str) -> tuple[bytes, str]:
            time.sleep(DELAY_SECONDS)
            return get(disk, path)

        LocalDisk.get = slow  # type: ignore[method-assign, assignment]
        try:
            started = time.perf_counter()
            assert len(self.store.retrieve_batch(keys[:number], "org:acme")) == number
            together = (time.perf_counter() - started) / number
            unread = iter(keys[number:])  # reads are cached
            alone = quantile(timed(lambda: self.store.retrieve(next(unread), "org:acme"), self.repeats - 1), 0.5)
        finally:
            LocalDisk.get = get  # type: ignore[method-assign]
        what = f"{self.name}: a batch of {number:,} blobs against one by one, 20 ms of latency"
        self.verdict.at_least(what, alone / together, 5)

    def flush(self) -> None:
        outbox = "SELECT count(*) FROM ltm_outbox"
        waiting = self.store.catalog.read(lambda connection: connection.exec_driver_sql(outbox).scalar_one())
        if waiting > BATCH:  # otherwise the benchmark would measure a file for each entity
            return
        started = time.perf_counter()
        self.store.flush()
        seconds = time.perf_counter() - started
        print(f"  flush of {waiting:,} entries into the indexes of all levels: {seconds:.1f} s")

    def at_most(self, what: str, seconds: Sequence[float], which: float, target_ms: float) -> None:
        self.verdict.at_most(f"{self.name}: {what}", quantile(seconds, which) * 1000, target_ms, "ms", OBSTACLE)


@contextmanager
def traced_fsyncs(log: Path) -> Iterator[list[int]]:
    """Yield a list that afterwards holds this process's number of syncs; without strace it stays empty."""
    counted: list[int] = []
    if not shutil.which("strace"):
        yield counted
        return
    command = ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(log), "-p", str(os.getpid())]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        is_attached = "attached" in tracer.stderr.readline()
        yield counted
        tracer.terminate()
        tracer.communicate()
    if is_attached:
        counted.append(log.read_text().count("sync("))


def write_and_sync(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 4_096)
        file.flush()
        os.fsync(file.fileno())


def timed(call: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each call after a warm-up call."""
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
