"""Measure runs, searches and pulls of a workspace in a bucket 30 ms away, and their requests and rounds.

    .venv/bin/python tests/benchmarks/bucket.py

A real S3 server runs on loopback, behind a proxy that delays each response. The number of rounds is the length of the
longest chain of sequential requests: more bandwidth does not reduce it. The rounds of a cold search are counted with a
long delay, so a busy host does not matter. The sources are local.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import corpus
import measure

sys.path.insert(0, str(Path(__file__).parents[2]))

from driftline.storage.workspace.workspace import Workspace
from tests.servers.delaying import DelayingProxy, delaying, rounds
from tests.servers.s3_server import S3Server, running_s3
from tests.support.searches import search

DELAY_SECONDS, COUNTING_SECONDS = 0.03, 1.0
CHANGED_FILES = 20
QUERIES = (
    "open a connection and try again if it fails",
    "parse the header of a message",
    "lock a file across processes",
    "convert a date to UTC",
    "escape text for HTML",
    "read a table in batches",
    "stop all threads of a pool",
    "compile a regular expression",
    "validate an e-mail address",
    "resolve symbolic links",
    "cache the result of a function",
    "compress a stream of bytes",
)
WARM_UP = 2
BLOCK_CACHE = "DRIFTLINE_BLOCK_CACHE"
WHOLE = "text index, codes and texts of blocks are read whole: fewer bytes would take more requests and rounds"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an operation: seconds and requests to the bucket."""

    seconds: float
    requests: int
    rounds: int
    read_bytes: int
    written_bytes: int

    def __str__(self) -> str:
        moved = f"{self.read_bytes / 1e6:9.2f} {self.written_bytes / 1e6:10.2f}"
        return f"{self.seconds:8.2f} {self.requests:8,} {self.rounds:6,} {moved}"


def main() -> int:
    options = measure.begin(__doc__, lines=1_300_000)
    verdict = measure.Verdict(options.small)
    tree = corpus.packages(5_000 if options.small else options.lines)
    print(tree)
    with measure.scratch() as folder, running_s3(folder) as server, delaying(server.endpoint, DELAY_SECONDS) as proxy:
        os.environ[BLOCK_CACHE] = str(folder / "blocks")  # not the user's
        source = folder / "tree"
        shutil.copytree(tree.path, source)
        local = _index(source, str(folder / "local")).seconds
        near = _index(source, f"s3://{server.bucket}/near", _environment(server, server.endpoint)).seconds
        print(f"  first run: on the local disk {local:.1f} s, into a bucket without delay {near:.1f} s")
        verdict.at_most("first run into a bucket without delay, of one on the local disk", near / local, 1.25)

        uri, env = f"s3://{server.bucket}/workspace", _environment(server, proxy.endpoint)
        outcome = f"{'s':>8} {'requests':>8} {'rounds':>6} {'MB read':>9} {'MB written':>10}"
        print(f"  {DELAY_SECONDS * 1e3:.0f} ms away{'':11} {outcome}")
        costs = {"first run": _cost(proxy, "first run", lambda: _index(source, uri, env))}
        costs["unchanged run"] = _cost(proxy, "unchanged run", lambda: _index(source, uri, env))
        _change(source, 1)
        costs["one file changed"] = _cost(proxy, "one file changed", lambda: _index(source, uri, env))
        cold = _cold(proxy, uri, env, 1 if options.small else 3)
        costs["cold search"] = cold
        _search(uri, QUERIES[0], env)
        again = [_cost(proxy, "a new process", partial(_search, uri, QUERIES[0], env)) for _ in range(3)]
        costs |= {"new process": sorted(again, key=lambda cost: cost.seconds)[1], "warm search": _warm(proxy, uri, env)}
        _cost(proxy, "first cleanup", lambda: _clean(uri, env))
        cleanup = _cost(proxy, "without garbage", lambda: _clean(uri, env))
        copy = folder / "copy"
        costs["first pull"] = _cost(proxy, "first pull", lambda: _pull(uri, copy, env))
        _change(source, CHANGED_FILES)
        change = _cost(proxy, f"{CHANGED_FILES} files changed", lambda: _index(source, uri, env))
        pulled = _cost(proxy, "pull after it", lambda: _pull(uri, copy, env))
        offline = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
        of_copy, of_local = (
            measure.median([_search(location, query, offline).seconds for query in QUERIES[:5]])
            for location in (str(copy), str(folder / "local"))
        )
        print(f"  cold search of the pulled copy {of_copy:.2f} s, of a local workspace {of_local:.2f} s")
    measure.bars("Seconds at 30 ms a request", "s", {name: cost.seconds for name, cost in costs.items()})
    measure.bars(
        "Rounds of requests", "", {name: float(cost.rounds) for name, cost in costs.items() if name != "first pull"}
    )
    verdict.at_most("cold search, requests", cold.requests, 40, "")
    verdict.at_most("cold search, rounds", cold.rounds, 6, "")
    verdict.at_most("cold search, read", cold.read_bytes / 1e6, 12, "MB", WHOLE)
    verdict.at_most("cold search", cold.seconds, 0.9, "s")
    verdict.at_most("search in a new process, of blocks on the disk", costs["new process"].seconds, 0.6, "s")
    verdict.at_most("search in a new process, requests", costs["new process"].requests, 6, "")
    verdict.at_most("warm search, p50", costs["warm search"].seconds * 1e3, 200, "ms")
    verdict.at_most("cleanup without garbage, requests", cleanup.requests, 20, "")
    verdict.at_most("cold search of a pulled copy", of_copy, 0.7, "s")
    verdict.at_most("pull of 20 changed files, requests", pulled.requests, 40, "")
    verdict.at_most("pull of 20 changed files, of the bytes written", pulled.read_bytes / change.written_bytes, 1.2)
    return verdict.exit_code


def _environment(server: S3Server, endpoint: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    return keys | {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint}


def _cost(proxy: DelayingProxy, name: str, work: Callable[[], object]) -> Cost:
    proxy.take()
    started = time.perf_counter()
    work()
    seconds, requested = time.perf_counter() - started, proxy.take()
    read, written = sum(each.received_bytes for each in requested), sum(each.sent_bytes for each in requested)
    cost = Cost(seconds, len(requested), rounds(requested), read, written)
    print(f"  {name:20} {cost}", flush=True)
    return cost


def _index(source: Path, workspace: str, env: Mapping[str, str] | None = None) -> measure.Measured:
    return measure.run([*measure.DRIFTLINE, "index", str(source), "--workspace", workspace, "--json"], env)


def _pull(uri: str, copy: Path, env: Mapping[str, str]) -> measure.Measured:
    return measure.run([*measure.DRIFTLINE, "pull", uri, str(copy), "--json"], env)


def _clean(uri: str, env: Mapping[str, str]) -> measure.Measured:
    return measure.run([*measure.DRIFTLINE, "cleanup", "--delete", "--workspace", uri, "--json"], env)


def _search(workspace: str, query: str, env: Mapping[str, str]) -> measure.Measured:
    found = measure.run([*measure.DRIFTLINE, "search", query, "--workspace", workspace, "--json"], env)
    if not json.loads(found.output)["results"]:
        raise SystemExit(f"Nothing is found for {query!r}")
    return found


def _cold(proxy: DelayingProxy, uri: str, env: Mapping[str, str], count: int) -> Cost:
    """Return the median run of a command without cached blocks, and its number of rounds."""
    costs: list[Cost] = []
    for query in QUERIES[:count]:
        found: list[Cost] = []
        for proxy.delay_seconds in (COUNTING_SECONDS, DELAY_SECONDS):
            with tempfile.TemporaryDirectory() as empty:
                search = partial(_search, uri, query, {**env, BLOCK_CACHE: empty})
                name = "cold search" if proxy.delay_seconds == DELAY_SECONDS else "(counting rounds)"
                found.append(_cost(proxy, name, search))
        costs.append(replace(found[1], rounds=found[0].rounds))
    return sorted(costs, key=lambda cost: cost.seconds)[count // 2]


def _warm(proxy: DelayingProxy, uri: str, env: Mapping[str, str]) -> Cost:
    """Return the median search of a process that has searched before."""
    with patch.dict("os.environ", env):
        workspace = Workspace.open(uri)
        costs = [
            _cost(proxy, "warm search" if number >= WARM_UP else "(warm-up)", partial(search, workspace, query))
            for number, query in enumerate(QUERIES)
        ]
    return sorted(costs[WARM_UP:], key=lambda cost: cost.seconds)[(len(costs) - WARM_UP) // 2]


def _change(source: Path, count: int) -> None:
    files = sorted(source.rglob("*.py"))
    for path in files[:: max(1, len(files) // count)][:count]:
        path.write_bytes(path.read_bytes() + f"\nchanged_{time.time_ns()} = True\n".encode())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
