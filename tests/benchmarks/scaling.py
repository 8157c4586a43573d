"""Measure how time, memory and disk grow with the number of lines, and the cost of a small change at each size.

    .venv/bin/python tests/benchmarks/scaling.py
    .venv/bin/python tests/benchmarks/scaling.py --lines 16000000

Each size is four times the previous one. ``indexing.py`` measures the plain pipeline and semble.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import measure
from queries import choose_directories, sample_texts
from searching import HEAD, measured

from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.workspace.workspace import Workspace

STEP = 4
CHANGED_FILES = 20
MARK = "zymurgy_of_the_benchmark = 1"
FILTERED_SHARE = 0.01
OBSTACLE = "the lines that a directory allows are compared one by one, and read from many places of a large table"


@dataclass(frozen=True, slots=True)
class Size:
    """The figures of a tree; ``rows`` is the number of its lines that contain a word."""

    lines: int
    rows: int
    index_seconds: float
    bytes_per_row: float
    coordinator_peak_bytes: int
    worker_peak_bytes: int
    unchanged_seconds: float
    changed_seconds: float
    search_p50_ms: float
    recall: float


def main() -> int:
    options = measure.begin(__doc__, smallest=1_000_000, lines=4_000_000, queries=40)
    smallest, largest = (2_000, 8_000) if options.small else (options.smallest, options.lines)
    verdict = measure.Verdict(options.small)
    sizes: list[Size] = []
    wanted = smallest
    while wanted <= largest:
        with measure.scratch() as folder:
            sizes.append(
                _measure(corpus.packages(wanted), folder / "workspace", 3 if options.small else options.queries)
            )
        wanted *= STEP
    print(
        f"\n{'lines':>11} {'rows':>11} {'index s':>8} {'lines/s':>8} {'B/row':>6} {'coord. MB':>9} {'worker MB':>9} "
        f"{'unchanged s':>11} {'20 files s':>10} {'search ms':>9} {'recall':>6}"
    )
    for size in sizes:
        print(
            f"{size.lines:11,} {size.rows:11,} {size.index_seconds:8.1f} {size.lines / size.index_seconds:8,.0f} "
            f"{size.bytes_per_row:6.0f} {size.coordinator_peak_bytes / 1e6:9,.0f} {size.worker_peak_bytes / 1e6:9,.0f} "
            f"{size.unchanged_seconds:11.2f} {size.changed_seconds:10.2f} {size.search_p50_ms:9.1f} {size.recall:6.3f}"
        )
    last = sizes[-1]
    measure.bars(
        "Lines indexed per second by size", "lines/s", {f"{s.lines:,}": s.lines / s.index_seconds for s in sizes}
    )
    verdict.at_most("bytes on disk per row", last.bytes_per_row, 850, "B")
    verdict.at_most("peak memory of the coordinator", last.coordinator_peak_bytes / 1e9, 1.5, "GB")
    verdict.at_most("peak memory of a worker", last.worker_peak_bytes / 1e9, 1.0, "GB")
    verdict.at_most("median search within 1 % of the lines", last.search_p50_ms, 50, "ms", OBSTACLE)
    verdict.at_least("recall@10 there", last.recall, 0.95, "")
    return verdict.exit_code


def _measure(tree: corpus.Corpus, workspace: Path, queries: int) -> Size:
    print(f"\n{tree}", flush=True)
    first, report = _index(tree.path, workspace, "--executor", "local")
    if report["new"] != tree.files:
        raise SystemExit(f"driftline indexed {report['new']} of {tree.files} files")
    print(f"  indexed in {first.seconds:.1f} s; phases: {report['phases']}", flush=True)
    size = sum(path.stat().st_size for path in workspace.rglob("*") if path.is_file())
    rows = report["lines_total"]
    unchanged, _ = _index(tree.path, workspace)
    changed = _change(tree.path, workspace)
    opened = Workspace.open(str(workspace))
    table = opened.lines(opened.tenants()[0])
    (chosen,) = choose_directories(table, (FILTERED_SHARE,))
    print(HEAD)
    row = measured(opened, sample_texts(table, queries), LineFilter(dirs=chosen.names))
    return Size(
        tree.lines,
        rows,
        first.seconds,
        size / rows,
        first.own_peak,
        first.children_peak,
        unchanged.seconds,
        changed,
        row.p50,
        row.recall,
    )


def _change(tree: Path, workspace: Path) -> float:
    """Return the seconds from changing some files until a cold process finds the change; restore the tree."""
    every = sorted(path for path in tree.rglob("*.py"))
    edited = {path: path.read_bytes() for path in every[:: max(1, len(every) // CHANGED_FILES)][:CHANGED_FILES]}
    try:
        for path, before in edited.items():
            path.write_bytes(before + f"\n{MARK}\n".encode())
        run, report = _index(tree, workspace)
        if report["changed"] != len(edited):
            raise SystemExit(f"{report['changed']} of {len(edited)} changed files were indexed")
        found = measure.run([*measure.DRIFTLINE, "search", MARK, "--workspace", str(workspace), "--json"])
        if MARK not in {hit["text"] for hit in json.loads(found.output)["results"]}:
            raise SystemExit("The change is not found")
    finally:
        for path, before in edited.items():
            path.write_bytes(before)
            os.utime(path, (1, 1))
    print(f"  {len(edited)} files changed: indexed in {run.seconds:.2f} s, found in {found.seconds:.2f} s", flush=True)
    return run.seconds + found.seconds


def _index(tree: Path, workspace: Path, *options: str) -> tuple[measure.Measured, dict[str, Any]]:
    result = measure.run([*measure.DRIFTLINE, "index", str(tree), "--workspace", str(workspace), "--json", *options])
    (source,) = json.loads(result.output)["sources"]
    return result, source


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
