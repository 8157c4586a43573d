"""Measure the overhead of Dask: two workers against one on CPU-bound work, and thousands of tiny batches.

    .venv/bin/python tests/benchmarks/dask_scale.py

Both use the executor of index runs. The tiny batches do nothing, so their time is scheduler overhead. It is compared
with the time per batch of a full run over source files, which also shows the memory use of a worker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import corpus
import measure

from driftline.flows.runs.executors import DaskExecutor, InlineExecutor
from driftline.flows.runs.source_run import batch_bytes
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.task_context import ModelRef, TaskContext

MIN_EFFICIENCY = 0.85
MAX_SHARE = 0.05
MAX_WORKER_BYTES = 1_000_000_000
TASK_ROUNDS = 150
"""About 0.1 s of work on one thread."""


@dataclass(frozen=True, slots=True)
class Work:
    """The input of a task that runs ``rounds`` rounds of computation."""

    number: int
    rounds: int


def busy(work: Work, context: TaskContext) -> int:
    """Add up squares and return the number of the task."""
    for _ in range(work.rounds):
        sum(number * number for number in range(10_000))
    return work.number


def main() -> int:
    options = measure.begin(__doc__, batches=2_000, lines=600_000)
    small = options.small
    tasks, batches = (4, 50) if small else (80, options.batches)
    verdict = measure.Verdict(small)
    with measure.scratch() as folder:
        context = _context(folder / "workspace")
        rounds = 2 if small else TASK_ROUNDS
        work, empty = [Work(n, rounds) for n in range(tasks)], [Work(n, 0) for n in range(batches)]
        (one,) = _seconds(context, 1, work)
        two, seconds = _seconds(context, 2, work, empty)
        print(f"  {tasks} tasks: one worker {one:.2f} s, two {two:.2f} s", flush=True)
        verdict.at_least("efficiency of two workers over one", one / two / 2, MIN_EFFICIENCY)

        each = seconds / batches
        print(
            f"  {batches:,} empty batches through the scheduler: {seconds:.1f} s, {each * 1e3:.2f} ms each", flush=True
        )

        tree = corpus.packages(500 if small else options.lines)
        command = [*measure.DRIFTLINE, "index", str(tree.path), "--workspace", str(folder / "run"), "--json"]
        result = measure.run([*command, "--executor", "local", "--workers", "2", "--indexes", "none"])
        run = json.loads(result.output)
        outcome = f"coordinator {result.own_peak / 1e6:,.0f} MB, largest process {result.largest_peak / 1e6:,.0f} MB"
        print(f"  {tree}, two workers: {run['seconds']:.1f} s; {outcome}", flush=True)
        with InlineExecutor(2) as executor:
            count = -(-tree.bytes // batch_bytes(tree.bytes, executor))
        taken = sum(run["worker_phases"].values()) / count
        verdict.at_most(f"a batch in the scheduler, of the {taken:.1f} s that it takes", each / taken, MAX_SHARE)
        verdict.at_most("memory of the largest process", result.largest_peak / 1e6, MAX_WORKER_BYTES / 1e6, "MB")
    return verdict.exit_code


def _context(workspace: Path) -> TaskContext:
    return TaskContext(Workspace.open_for_writing(str(workspace)), ModelRef("none", "none", 1))


def _seconds(context: TaskContext, slots: int, *works: list[Work]) -> list[float]:
    """Return the seconds from the first task to the last result for each of ``works``. The workers' start is
    excluded.
    """
    times: list[float] = []
    with DaskExecutor(None, slots) as executor:
        executor.start(context, [])
        list(executor.map(busy, works[0][:slots]))  # imports this module on the workers
        for work in works:
            started = time.perf_counter()
            results = list(executor.map(busy, work))
            times.append(time.perf_counter() - started)
            if sorted(results) != [item.number for item in work]:
                raise SystemExit(f"{len(results)} results of {len(work)} tasks")
    return times


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
