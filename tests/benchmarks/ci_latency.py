"""Measure the time from a commit until its lines are searchable via a deployment, and the cost of Prefect per run.

    .venv/bin/python tests/benchmarks/ci_latency.py

``driftline serve`` runs a deployment of a git work tree, with its own Prefect server. The benchmark changes and commits
a few files; ``driftline ci --deployment`` starts a run for that commit and waits for it. Polling is the time before the
scheduled run is picked up. Then the benchmark compares the flow with the same run without Prefect while the server is
up, and measures progress updates and the import time of Prefect's modules in ``driftline index``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import corpus
import measure

START_SECONDS = 180
CHANGED = 5
OBSTACLE = "the imports of Prefect"
CONFIG = """
workspace = "index"

[[sources]]
uri = "{tree}"
entity = "source:web"
schedule = "0 0 29 2 *"
"""
FLOW = """
import json, sys, time

tree, workspace, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.index import index_sources

def timed(work, clock=time.perf_counter):
    started = clock()
    work()
    return clock() - started

def plain(**options):
    request = IndexRequest(sources=(tree,), workspace=workspace, entity="source:web", **options)
    return timed(lambda: index_sources(request))

if __name__ == "__main__":
    told = {"first_plain": plain(), "plain": [plain() for _ in range(rounds)]}
    told["import"] = timed(lambda: __import__("driftline.flows.prefect_flows"))
    from driftline.flows.scheduling import flow_execution
    from driftline.flows.prefect_flows import index

    def flow(**options):
        return timed(lambda: index([tree], workspace=workspace, entity="source:web", **options))

    told |= {"first_flow": flow(), "flow": [flow() for _ in range(rounds)]}
    updates, update = [], flow_execution.update_progress_artifact

    # While it waits for the server, its thread holds nothing up.
    def timed_update(*arguments, **options):
        updates.append(timed(lambda: update(*arguments, **options), time.thread_time))

    flow_execution.update_progress_artifact = timed_update
    told |= {"full_plain": plain(full=True), "full_flow": flow(full=True)}
    told["updates"] = updates[:-1]  # the last one is that of the end, not of progress
    print("TOLD" + json.dumps(told))
"""


def main() -> int:
    options = measure.begin(__doc__, files=10_000, rounds=3)
    files, rounds = (120, 1) if options.small else (options.files, options.rounds)
    verdict = measure.Verdict(options.small)
    tree = corpus.git_tree(files)
    print(f"{tree}; {CHANGED} files changed in each commit; {rounds} rounds, the median of them")
    with measure.scratch() as folder:
        clone = corpus.fresh_clone(tree, folder)
        (folder / "driftline.toml").write_text(CONFIG.format(tree=clone.name))
        with _serving(folder) as environment:
            _commits(clone, folder, environment, rounds, verdict)
            _flow(clone, folder, environment, rounds, verdict)
        _without(clone, folder, rounds, verdict)
    return verdict.exit_code


@contextmanager
def _serving(folder: Path) -> Iterator[dict[str, str]]:
    """Run ``driftline serve`` in ``folder`` until the block ends. Yields the environment variables that select its
    server.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DRIFTLINE_"))}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), "DRIFTLINE_CONFIG": str(folder / "driftline.toml")}
    log = folder / "serve.log"
    command = [*measure.DRIFTLINE, "serve", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment | {"PYTHONUNBUFFERED": "1"}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "serving" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"driftline serve did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        quiet = {"PREFECT_LOGGING_LEVEL": "ERROR", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
        yield environment | quiet | {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    except subprocess.CalledProcessError:
        print(log.read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _commits(clone: Path, folder: Path, environment: Mapping[str, str], rounds: int, verdict: measure.Verdict) -> None:
    paths = sorted(clone.rglob("*.py"))[:: max(1, len(list(clone.rglob("*.py"))) // CHANGED)][:CHANGED]
    seconds, polling = list[float](), list[float]()
    for turn in range(rounds + 1):  # the first run indexes everything
        word = f"searchable{turn}"
        for path in paths:
            with path.open("a") as file:
                file.write(f"{word} = {turn}\n")
        corpus.git(clone, "commit", "-qam", word)
        command = [*measure.DRIFTLINE, "ci", "--deployment", "web", "--json"]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=clone, env=dict(environment), capture_output=True, text=True, check=True)
        taken = time.perf_counter() - started
        (run,) = json.loads(done.stdout)["flow_runs"]
        found = _driftline(folder, environment, "search", word, "--mode", "text", "--top-k", str(CHANGED), "--json")
        if {hit["path"] for hit in found["results"]} != {path.relative_to(clone).as_posix() for path in paths}:
            raise SystemExit(f"The lines of the commit were not found: {found}"[:500])
        if turn:
            seconds.append(taken)
            polling.append(_scheduled_seconds(environment["PREFECT_API_URL"], run["id"]))
            print(f"  commit {turn}: {taken:.1f} s, {polling[-1]:.1f} s of them scheduled only", flush=True)
        else:
            print(f"  all of it: {taken:.1f} s", flush=True)
    verdict.at_most("from a commit to searchable lines", statistics.median(seconds), 30.0, "s")
    verdict.at_most("polling, of that", sum(polling) / sum(seconds), 0.5)


def _scheduled_seconds(url: str, run: str) -> float:
    """Return the seconds from the creation of a flow run until a runner picks it up."""
    with urllib.request.urlopen(f"{url}/flow_run_states/?flow_run_id={run}", timeout=30) as answer:
        states: list[dict[str, Any]] = json.load(answer)
    moments = {state["type"]: datetime.fromisoformat(state["timestamp"]) for state in reversed(states)}
    return (moments["PENDING"] - moments["SCHEDULED"]).total_seconds()


def _flow(clone: Path, folder: Path, environment: Mapping[str, str], rounds: int, verdict: measure.Verdict) -> None:
    """Return the best of several processes, because a busy host only adds to import times."""
    program = folder / "flow.py"
    program.write_text(FLOW)
    command = [sys.executable, str(program), str(clone), str(folder / "index"), str(rounds)]
    added, added_first, updates = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        done = subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=True)
        outcome = json.loads(done.stdout.rpartition("TOLD")[2])
        plain, flow = statistics.median(outcome["plain"]), statistics.median(outcome["flow"])
        print(
            f"  unchanged: {plain:.2f} s, as a flow {flow:.2f} s, the first of a process {outcome['first_flow']:.2f} s "
            f"after imports of {outcome['import']:.2f} s; "
            f"all again: {outcome['full_plain']:.2f} s, as a flow {outcome['full_flow']:.2f} s"
        )
        added.append(flow - plain)
        added_first.append(outcome["import"] + outcome["first_flow"] - plain)
        updates.append(sum(outcome["updates"]) / outcome["full_flow"])
    verdict.at_most("what a flow adds to a run", min(added), 3.0, "s")
    verdict.at_most("what the first flow of a process adds, imports included", min(added_first), 3.0, "s", OBSTACLE)
    verdict.at_most("updates of progress, of the time of a run", statistics.median(updates), 0.01)


def _without(clone: Path, folder: Path, rounds: int, verdict: measure.Verdict) -> None:
    """Return the seconds that plain ``driftline index`` spends on modules that only Prefect needs."""
    arguments = ["index", str(clone), "--workspace", str(folder / "index"), "--entity", "source:web"]
    code = f"from driftline.flows.commands.main import main; main({arguments!r})"
    seconds = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
        )
        seconds.append(sum(_import_seconds(line) for line in done.stderr.splitlines()))
    verdict.at_most("what flows cost driftline index", statistics.median(seconds), 0.1, "s")


def _import_seconds(line: str) -> float:
    """Return the seconds in a line of ``-X importtime`` if the module is Prefect or imports it."""
    own, _, name = line.removeprefix("import time:").partition("|")
    name = name.rpartition("|")[2].strip()
    ours = name == "driftline.flows.prefect_flows" or name.startswith("driftline.flows.scheduling.")
    return int(own) / 1e6 if ours or name.partition(".")[0] == "prefect" else 0.0


def _driftline(folder: Path, environment: Mapping[str, str], *arguments: str) -> Any:
    command = [*measure.DRIFTLINE, *arguments]
    done = subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stdout}\n{error.stderr}")
