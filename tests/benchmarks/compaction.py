"""Measure the cost of a compaction after a first run and after a small change, and searches before and after it.

    .venv/bin/python tests/benchmarks/compaction.py
    .venv/bin/python tests/benchmarks/compaction.py --lines 16000000

Each size is four times the previous one. Searches run in this process and alternate between both states of a table.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import corpus
import measure

import driftline

STEP = 4
MASKED = "searches mask the deleted rows of fragments that compaction leaves, because few of their rows are deleted"
CHANGED_FILES = 20
QUERIES = (
    "open a file for reading", "parse a json response", "retry on network failure", "cosine similarity",
    "socket timeout error", "sort rows by key", "hash of the content", "database connection pool",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """The figures of a tree; all times are CPU seconds."""

    lines: int
    run_seconds: float
    first_seconds: float
    first_peak: int
    rewritten: float
    changed_seconds: float
    changed_wall: float
    p50_before_ms: float
    p50_after_ms: float


def main() -> int:
    options = measure.begin(__doc__, smallest=1_000_000, lines=4_000_000, rounds=10)
    smallest, largest = (2_000, 8_000) if options.small else (options.smallest, options.lines)
    verdict = measure.Verdict(options.small)
    sizes: list[Size] = []
    wanted = smallest
    while wanted <= largest:
        with measure.scratch() as folder:
            sizes.append(_measure(corpus.packages(wanted), folder, 1 if options.small else options.rounds))
        wanted *= STEP
    print(
        f"\n{'lines':>11} {'run CPU s':>9} {'compact CPU s':>13} {'peak MB':>8} {'written':>8} "
        f"{'20 files CPU s':>14} {'s':>6} {'p50 before ms':>13} {'after':>6}"
    )
    for size in sizes:
        print(
            f"{size.lines:11,} {size.run_seconds:9.1f} {size.first_seconds:13.2f} {size.first_peak / 1e6:8,.0f} "
            f"{size.rewritten:8.1%} {size.changed_seconds:14.2f} {size.changed_wall:6.2f} {size.p50_before_ms:13.1f} "
            f"{size.p50_after_ms:6.1f}"
        )
    last = sizes[-1]
    verdict.at_most("CPU of a compaction after a first run, of that run's", last.first_seconds / last.run_seconds, 0.3)
    verdict.at_most("peak memory of that compaction", last.first_peak / 1e9, 1.0, "GB")
    verdict.at_most("bytes that it writes, of the workspace's", last.rewritten, 0.1)
    verdict.at_most("CPU of a compaction after 20 changed files", last.changed_seconds, 2.0, "s")
    slower = last.p50_after_ms / last.p50_before_ms
    verdict.at_most(
        "search p50 after the change and a compaction, of that after the first run", slower, 1.03, "x", MASKED
    )
    return verdict.exit_code


def _measure(tree: corpus.Corpus, folder: Path, rounds: int) -> Size:
    print(f"\n{tree}", flush=True)
    workspace, before = folder / "workspace", folder / "before"
    run = measure.run([*_index(tree.path, workspace), "--executor", "local"])
    size = _bytes(workspace)
    shutil.copytree(workspace, before)
    first = _compact(workspace)
    rewritten = _bytes(workspace) / size - 1
    print(f"  compacted in {first.seconds:.2f} s", flush=True)
    changed = _change(tree.path, workspace)
    p50 = _searched(before, workspace, rounds)
    return Size(
        tree.lines,
        run.cpu_seconds,
        first.cpu_seconds,
        first.largest_peak,
        rewritten,
        changed.cpu_seconds,
        changed.seconds,
        *p50,
    )


def _change(tree: Path, workspace: Path) -> measure.Measured:
    """Change some files, index them, compact the workspace, then restore the tree."""
    every = sorted(path for path in tree.rglob("*.py"))
    edited = {path: path.read_bytes() for path in every[:: max(1, len(every) // CHANGED_FILES)][:CHANGED_FILES]}
    try:
        for path, before in edited.items():
            path.write_bytes(before + b"\nzymurgy_of_the_benchmark = 1\n")
        (source,) = json.loads(measure.run(_index(tree, workspace)).output)["sources"]
        if source["changed"] != len(edited):
            raise SystemExit(f"{source['changed']} of {len(edited)} changed files were indexed")
    finally:
        for path, before in edited.items():
            path.write_bytes(before)
            os.utime(path, (1, 1))
    found = _compact(workspace)
    print(f"  {len(edited)} files changed: compacted in {found.seconds:.2f} s", flush=True)
    return found


def _searched(before: Path, after: Path, rounds: int) -> tuple[float, float]:
    """Return the median CPU milliseconds of a warm search in each of two workspaces; searches alternate."""
    opened = {path: driftline.open(str(path)) for path in (before, after)}
    seconds: dict[Path, list[float]] = {before: [], after: []}
    for turn in range(rounds + 1):
        for query in QUERIES:
            for path, workspace in opened.items():
                started = time.process_time()
                workspace.search(query)
                if turn:
                    seconds[path].append(1000 * (time.process_time() - started))
    return measure.median(seconds[before]), measure.median(seconds[after])


def _compact(workspace: Path) -> measure.Measured:
    return measure.run([*measure.DRIFTLINE, "compact", "--workspace", str(workspace), "--json"])


def _index(tree: Path, workspace: Path) -> list[str]:
    return [*measure.DRIFTLINE, "index", str(tree), "--workspace", str(workspace), "--json"]


def _bytes(workspace: Path) -> int:
    return sum(path.stat().st_size for path in workspace.rglob("*") if path.is_file())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
