"""Measure the work of each process in a Dask cluster during a first run, and extrapolate the time to 256 workers.

    .venv/bin/python tests/benchmarks/cluster.py

The scheduler and the single-threaded workers are separate processes on loopback; the run is their client. All figures,
including phases, are CPU seconds, since the processes share the cores of one host. Computed times assume one core per
process: a fixed part, plus the busiest of coordinator, scheduler and workers, which overlap. The model ignores the
network and the stores' request limits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import corpus
import measure
import psutil

MAX_COORDINATOR_SHARE = 0.08
MIN_GAIN_OF_TWO = 1.8
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
START_SECONDS = 60
OBSTACLE = "CPU: one worker already builds indexes with two threads, and all processes share two cores"

_HERE = Path(__file__).parent
_COMMAND = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(_HERE)!r}); import cpu_clock; "
    "from driftline.__main__ import run; sys.exit(run())",
)


@dataclass(frozen=True, slots=True)
class Run:
    """A first run on a cluster: its wall-clock ``seconds``, and the CPU seconds of each process and phase."""

    seconds: float
    coordinator: float
    scheduler: float
    workers: float
    coordinator_phases: Mapping[str, float]
    worker_phases: Mapping[str, float]

    @property
    def whole(self) -> float:
        """The CPU seconds of all processes."""
        return self.coordinator + self.scheduler + self.workers


@dataclass(frozen=True, slots=True)
class Cluster:
    """A scheduler at ``address`` and its worker processes."""

    address: str
    scheduler: psutil.Process
    workers: tuple[psutil.Process, ...]

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU seconds that the scheduler and all workers have used so far."""
        return _cpu_seconds(self.scheduler), sum(map(_cpu_seconds, self.workers))


def main() -> int:
    options = measure.begin(__doc__, lines=4_000_000)
    verdict = measure.Verdict(options.small)
    tree = corpus.packages(2_000 if options.small else options.lines)
    print(tree)
    runs: dict[int, Run] = {}
    for count in (1, 2):
        with measure.scratch() as folder, cluster(folder, count) as started:
            runs[count] = first_run(started, tree.path, folder / "workspace")
        _show(count, runs[count])
    with measure.scratch() as folder, cluster(folder, 1) as started:
        unindexed = first_run(started, tree.path, folder / "workspace", "--indexes", "none")
    building = runs[1].workers - unindexed.workers
    print(f"  of it to build the indexes, on the workers: {building:.1f} s, {building / runs[1].workers:.0%}")
    fixed = _fixed_seconds()
    _compute(runs[2], fixed)
    two = runs[2]
    bound = runs[1].seconds / (two.whole / (os.cpu_count() or 1))
    print(
        f"  two workers over one, as the CPU seconds of all processes allow on these cores: at most {bound:.2f} times"
    )
    verdict.at_most(
        "CPU of the coordinator in a first run, of all", two.coordinator / two.whole, MAX_COORDINATOR_SHARE, ""
    )
    verdict.at_least(
        "first run with two workers, over one", runs[1].seconds / two.seconds, MIN_GAIN_OF_TWO, obstacle=OBSTACLE
    )
    return verdict.exit_code


def first_run(cluster: Cluster, tree: Path, workspace: Path, *options: str) -> Run:
    """Index ``tree`` into a new workspace on ``cluster``."""
    before = cluster.cpu_seconds()
    command = [*_COMMAND, "index", str(tree), "--workspace", str(workspace), "--executor", cluster.address, "--json"]
    result = measure.run([*command, *options])
    scheduler, workers = (after - start for after, start in zip(cluster.cpu_seconds(), before, strict=True))
    report = json.loads(result.output)
    (source,) = report["sources"]
    phases = {**report["phases"], **source["phases"]}
    return Run(result.seconds, result.cpu_seconds, scheduler, workers, phases, report["worker_phases"])


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Run a scheduler and ``workers`` single-threaded workers until the block ends."""
    file = folder / "scheduler.json"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(_dask("scheduler", file, "--port", "0", "--no-dashboard"))
        own = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", str(_HERE / "cpu_clock.py"))
        processes += [_dask("worker", file, *own, "--local-directory", str(folder)) for _ in range(workers)]
        address = _ready_address(file, workers)
        scheduler, *others = (psutil.Process(process.pid) for process in processes)
        yield Cluster(address, scheduler, tuple(others))
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def _dask(role: str, file: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dask", role, "--host", "127.0.0.1", "--scheduler-file", str(file), *options]
    paths = (str(_HERE), os.environ.get("PYTHONPATH"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)


def _ready_address(file: Path, workers: int) -> str:
    """Wait until all workers have joined, and return the address of the scheduler that writes ``file``."""
    from distributed import Client

    deadline = time.monotonic() + START_SECONDS
    while not file.is_file():
        if time.monotonic() > deadline:
            raise SystemExit(f"The scheduler has not started after {START_SECONDS} s")
        time.sleep(0.05)
    with Client(scheduler_file=str(file)) as client:
        client.wait_for_workers(workers, timeout=START_SECONDS)
        return str(client.scheduler.address)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _fixed_seconds() -> float:
    """Return the wall-clock seconds of a nearly empty run on a warm cluster: start, leases, publication, ledger."""
    tree = corpus.packages(2_000)
    with measure.scratch() as folder, cluster(folder, 1) as started:
        first_run(started, tree.path, folder / "warm")
        return first_run(started, tree.path, folder / "workspace").seconds


def _show(workers: int, run: Run) -> None:
    print(f"  {workers} worker{'s'[: workers > 1]}: {run.seconds:.1f} s")
    for name, seconds, phases in (
        ("coordinator", run.coordinator, run.coordinator_phases),
        ("scheduler", run.scheduler, {}),
        ("workers", run.workers, run.worker_phases),
    ):
        outcome = ", ".join(f"{phase} {spent:.2f}" for phase, spent in phases.items() if spent >= 0.005)
        print(f"    {name:12} {seconds:7.2f} CPU s {seconds / run.whole:6.1%}  {outcome}", flush=True)


def _compute(run: Run, fixed: float) -> None:
    """Print and plot the computed time of ``run`` with more workers, and the bottleneck."""
    print(f"  computed from the run with two workers, and {fixed:.2f} s of start and end:")
    print(f"  {'workers':>9} {'s':>7} {'gain':>6}  limited by")
    gains: dict[str, float] = {}
    alone = _computed(run, fixed, 1)[0]
    for count in WORKERS:
        seconds, limit = _computed(run, fixed, count)
        gains[f"{count} workers"] = alone / seconds
        print(f"  {count:9} {seconds:7.1f} {alone / seconds:6.1f}  {limit}", flush=True)
    measure.bars("Computed gain of more workers over one, one source", "x", gains)


def _computed(run: Run, fixed: float, workers: int) -> tuple[float, str]:
    seconds, limit = max(
        (run.workers / workers, "the workers"), (run.coordinator, "the coordinator"), (run.scheduler, "the scheduler")
    )
    return fixed + seconds, limit if seconds > fixed else "start and end"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
