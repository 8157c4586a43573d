"""Measure ``driftline web`` under load: a million lines, on loopback. wrk sends the same requests as the search page.

    .venv/bin/python tests/benchmarks/web_load.py

First one client is compared with the same searches by the library in another process; then 32 clients search, with and
without concurrent runs. wrk is a Debian package.
"""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import corpus
import measure
import numpy as np
import psutil
from playwright.sync_api import Request

sys.path.insert(0, str(Path(__file__).parents[2]))

from bucket import QUERIES

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.index import index_sources
from driftline.storage.workspace.workspace import Workspace
from tests.servers.browser import CHROMIUM, open_browser
from tests.support.searches import search

STARTS = 5
CLIENTS = 32
COMMIT_SECONDS = 5.0
CORES = 2
_MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3}


def main() -> int:
    options = measure.begin(__doc__, lines=1_000_000, seconds=60, rounds=10)
    lines, seconds, rounds = (5_000, 3, 2) if options.small else (options.lines, options.seconds, options.rounds)
    if shutil.which("wrk") is None:
        print("This benchmark needs wrk (Debian: apt-get install wrk)")
        return 1
    verdict = measure.Verdict(options.small)
    tree = corpus.packages(lines)
    print(tree)
    with measure.scratch() as folder:
        source, target = folder / "tree", str(folder / "ws")
        shutil.copytree(tree.path, source)
        index_sources(IndexRequest((str(source),), target))
        starts = list[float]()
        for _ in range(STARTS):
            with serving(target) as server:
                starts.append(server.start_seconds)
        verdict.at_most("start to ready", measure.median(starts), 2, "s")
        with serving(target) as server:
            one_client(server, target, 2 * rounds, verdict)
            commands = [command_seconds(server) for _ in range(5)]
            verdict.at_most("driftline search --server, as a command", measure.median(commands), 0.25, "s")
            first_page(server, verdict)
            cpu = cpu_of_one(server, rounds)
            server.load(folder, 20 if not options.small else 1)  # starts threads and fills caches
            before = server.resident_bytes()
            alone = server.load(folder, seconds)
            cpu = (cpu + cpu_of_one(server, rounds)) / 2  # a shared machine's speed changes over time
            grown = server.resident_bytes() / before - 1
            share = alone.per_second * cpu / CORES
            print(f"  {CLIENTS} clients: {alone}; one search takes {cpu * 1e3:.1f} ms of CPU time")
            print(f"  {server.resident_bytes() / 1e6:.0f} MB in {len(server.processes())} processes")
            verdict.at_least("searches per second, of cores / CPU time of one search", share, 0.8, "")
            verdict.at_most("errors", alone.errors, 0, "")
            verdict.at_most("growth of memory", grown, 0.1, "")
            with committing(source, target):
                disturbed = server.load(folder, seconds)
            print(f"  the same while a run commits every {COMMIT_SECONDS:.0f} s: {disturbed}")
            verdict.at_most("p99 while runs commit, of that without", disturbed.p99_ms / alone.p99_ms, 3)
            verdict.at_most("errors while runs commit", disturbed.errors, 0, "")
    return verdict.exit_code


@dataclass(frozen=True)
class Load:
    """Figures reported by wrk."""

    per_second: float
    p50_ms: float
    p99_ms: float
    errors: int

    @classmethod
    def parse(cls, text: str) -> Load:
        latency = {
            name: float(value) * _MILLISECONDS[unit]
            for name, value, unit in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s|m)", text)
        }
        failed = re.findall(r"Non-2xx or 3xx responses: (\d+)", text)
        failed += re.findall(r"(?:connect|read|write|timeout) (\d+)", text)
        rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
        assert rate is not None, text
        return cls(float(rate[1]), latency["50"], latency["99"], sum(map(int, failed)))

    def __str__(self) -> str:
        return f"{self.per_second:.1f} a second, p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms"


@dataclass(frozen=True)
class Server:
    """A ``driftline web`` process."""

    address: str
    process: psutil.Process
    start_seconds: float

    def processes(self) -> list[psutil.Process]:
        """Return the server and its search processes."""
        return [self.process, *self.process.children(recursive=True)]

    def resident_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self.processes())

    def cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return float(sum(each.user + each.system for each in times))

    def ask(self, target: str) -> bytes:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request("GET", target)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        connection.close()
        return body

    def load(self, folder: Path, seconds: int) -> Load:
        """Measure CLIENTS concurrent clients; like the page, each sends one query after another."""
        script = folder / "queries.lua"
        paths = ", ".join(f'"{page_of(query)}"' for query in QUERIES)
        script.write_text(
            f"local paths = {{{paths}}}\nlocal n = 0\n"
            "request = function() n = n + 1; return wrk.format('GET', paths[n % #paths + 1]) end\n"
        )
        command = ["wrk", "-t1", f"-c{CLIENTS}", f"-d{seconds}s", "--latency", "--timeout", "60s", "-s", str(script)]
        return Load.parse(measure.run([*command, f"http://{self.address}"]).output)


def page_of(query: str) -> str:
    return "/?" + urlencode({"q": query, "mode": "hybrid"})


@contextmanager
def serving(workspace: str) -> Iterator[Server]:
    command = [*measure.DRIFTLINE, "web", "--workspace", workspace, "--port", "0"]
    started = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = urlsplit(next(line for line in process.stderr if "serving" in line).split()[-1]).netloc
            server = Server(address, psutil.Process(process.pid), 0)
            while b"ready" not in server.ask("/readyz"):
                time.sleep(0.01)
            yield Server(address, server.process, time.perf_counter() - started)
        finally:
            process.send_signal(signal.SIGTERM)


def one_client(server: Server, target: str, rounds: int, verdict: measure.Verdict) -> None:
    """Measure the time that HTTP adds to the library's searches; both alternate."""
    workspace = Workspace.open(target)
    connection = http.client.HTTPConnection(server.address, timeout=60)
    own, requested = list[float](), list[float]()
    for number in range(rounds + 1):
        for query in QUERIES:
            started = time.perf_counter()
            search(workspace.reread(), query, explain=True)
            middle = time.perf_counter()
            connection.request("GET", f"/api/v1/search?{urlencode({'q': query})}")
            connection.getresponse().read()
            if number:  # the first round warms up both
                own.append(middle - started)
                requested.append(time.perf_counter() - middle)
    p50 = np.median(np.array(requested) - own) * 1e3  # in pairs: a shared machine's speed changes
    p95 = (np.percentile(requested, 95) - np.percentile(own, 95)) * 1e3
    print(f"  one client: p50 {np.percentile(requested, 50) * 1e3:.1f} ms, library {np.percentile(own, 50) * 1e3:.1f}")
    verdict.at_most("search over HTTP beyond the library's, p50", float(p50), 2, "ms")
    verdict.at_most("the same, p95", float(p95), 5, "ms")


def first_page(server: Server, verdict: measure.Verdict) -> None:
    """Measure how long a person waits for the first page of results, and how many bytes a browser fetches for it."""
    if CHROMIUM is None:
        print("  no Chromium (make browser): the paint of a page is not measured")
        return
    paints, waits, sizes = list[float](), list[float](), list[int]()
    with open_browser() as browser:
        for query in QUERIES:
            with browser.fresh() as window:  # nothing is cached
                received = list[int]()
                window.page.on("requestfinished", partial(_add_size, received))
                window.page.goto(f"http://{server.address}{page_of(query)}", wait_until="networkidle")
                sizes.append(sum(received))
        for query in ("", *QUERIES):
            browser.page.goto(f"http://{server.address}{page_of(query)}")
            paints.append(browser.first_paint_milliseconds())
            waits.append(browser.waited_milliseconds())
    shown = ", ".join(f"{paint:.0f} ({wait:.0f})" for paint, wait in zip(paints, waits, strict=True))
    print(f"  first paint in ms (of which the server takes), without a query and with results: {shown}")
    verdict.at_most("first paint of results in an open window, median", measure.median(paints[1:]), 100, "ms")
    verdict.at_most("the largest of these pages with all that it loads, as sent", max(sizes) / 1e3, 60, "KB")


def _add_size(sizes: list[int], request: Request) -> None:
    found = request.sizes()
    sizes.append(found["responseBodySize"] + found["responseHeadersSize"])


def cpu_of_one(server: Server, rounds: int) -> float:
    """Return the server's CPU seconds per page, with one client."""
    for query in QUERIES:
        server.ask(page_of(query))
    before = server.cpu_seconds()
    for _ in range(rounds):
        for query in QUERIES:
            server.ask(page_of(query))
    return (server.cpu_seconds() - before) / rounds / len(QUERIES)


def command_seconds(server: Server) -> float:
    return measure.run([*measure.DRIFTLINE, "search", QUERIES[0], "--server", f"http://{server.address}"]).seconds


@contextmanager
def committing(source: Path, target: str) -> Iterator[None]:
    """Index a changed file every COMMIT_SECONDS, each time in a new process."""
    stop = threading.Event()

    def run() -> None:
        number = 0
        while not stop.is_set():
            started, number = time.monotonic(), number + 1
            (source / f"changed_{number % 7}.py").write_text(f"def changed_{number}():\n    return {number}\n")
            command: Sequence[str] = [*measure.DRIFTLINE, "index", str(source), "--workspace", target]
            measure.run([*command, "--executor", "inline"])
            stop.wait(max(0.0, COMMIT_SECONDS - (time.monotonic() - started)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
