"""Measure the cost of ``--deep``: embedding a definition, a run over a few changed files, and a warm search.

    .venv/bin/python tests/benchmarks/deepening.py

A workspace with definitions alternates with one over the same tree without them. All runs are in this process, and all
figures are its CPU time, so other work on the host changes little.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import corpus
import measure
from bucket import QUERIES

sys.path.insert(0, str(Path(__file__).parents[2]))

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.index import index_sources
from driftline.storage.workspace.workspace import Workspace
from tests.support.searches import search

CHANGED_FILES = 20
ROUNDS = 3


def main() -> int:
    options = measure.begin(__doc__, lines=100_000)
    verdict = measure.Verdict(options.small)
    tree = corpus.packages(200 if options.small else options.lines)
    rounds = 1 if options.small else ROUNDS
    print(tree)
    with measure.scratch() as folder:
        source, plain, deep = folder / "tree", folder / "plain", folder / "deep"
        shutil.copytree(tree.path, source)
        _index(source, plain, deep=False)
        shutil.copytree(plain, deep)
        seconds, definitions = _index(source, deep, deep=True)
        print(f"  {definitions:,} definitions in {seconds:.1f} CPU s, after the lines")
        verdict.at_most("CPU of embedding a definition", 1e3 * seconds / definitions, 3, "ms")
        pairs: list[tuple[float, float]] = []
        for number in range(rounds):
            _change(source, f"edited {number}")
            pairs.append((_index(source, plain, deep=False)[0], _index(source, deep, deep=True)[0]))
        without, with_ = (median(column) for column in zip(*pairs, strict=True))
        print(f"  run over {CHANGED_FILES} changed files: {without:.2f} CPU s, with definitions {with_:.2f}")
        verdict.at_most("CPU of a run with definitions after a change, of one without", with_ / without, 1.5)
        lines, joined = _searches(Workspace.open(str(deep)), QUERIES[:2] if options.small else QUERIES * rounds)
        print(f"  search, warm, p50: {lines * 1e3:.1f} CPU ms, with definitions {joined * 1e3:.1f} ms")
        verdict.at_most("CPU that definitions add to a warm search, p50", (joined - lines) * 1e3, 15, "ms")
    return verdict.exit_code


def _index(source: Path, workspace: Path, *, deep: bool) -> tuple[float, int]:
    """Index ``source`` and return the CPU seconds and the number of definitions embedded."""
    started = time.process_time()
    request = IndexRequest((str(source),), str(workspace), entity="source:web", executor="inline", deep=deep)
    report = index_sources(request)
    return time.process_time() - started, report.definitions_embedded


def _change(source: Path, word: str) -> None:
    """Append a function to CHANGED_FILES files in the tree."""
    files = sorted(path for path in source.rglob("*.py") if path.is_file())
    for path in files[:: max(1, len(files) // CHANGED_FILES)][:CHANGED_FILES]:
        with path.open("a") as file:
            file.write(f"\n\ndef {word.replace(' ', '_')}():\n    return 1\n")


def _searches(workspace: Workspace, queries: Sequence[str]) -> tuple[float, float]:
    """Return the median CPU seconds of a search of lines only, and of one that also searches definitions."""
    for query in dict.fromkeys(queries):
        search(workspace, query, deep=True)
    times: tuple[list[float], list[float]] = ([], [])
    for query in queries:
        for found, deep in zip(times, (False, True), strict=True):
            started = time.process_time()
            search(workspace, query, deep=deep)
            found.append(time.process_time() - started)
    return median(times[0]), median(times[1])


if __name__ == "__main__":
    raise SystemExit(main())
