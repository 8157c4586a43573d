"""Measure the latency and recall of searches, with and without directory filters, warm and as a command.

    .venv/bin/python tests/benchmarks/searching.py

``search`` is the default of ``driftline search``, including results and their context. Recall@10 compares the lines
found by the vector index with the lines found by exact search, by the distances of stored vectors. "Compared" is the
number of vectors that a search reads, shown next to the number with filtering after the search.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import patch

import corpus
import measure
import numpy as np
from queries import choose_directories, recall, sample_texts

from driftline.storage.defaults import Strategy
from driftline.storage.lines import table_searcher
from driftline.storage.lines.table_searcher import LineFilter, TableSearcher, nearest_lines
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder
from tests.support.searches import search

TOP_K = 10
SHARES = (0.5, 0.1, 0.01, 0.001)
OBSTACLE = (
    "CPU: 12 ms to compare the bits of a million vectors, as much again to ask a filter about each, and to read, count "
    "and embed what may answer"
)
COLD_OBSTACLE = "CPU: 0.6 s of imports, 0.2 s to load the model, 0.1 s to read the vector index"

HEAD = f"{'share':>8} {'p50 ms':>7} {'p95 ms':>7} {'recall':>7} {'compared':>10} {'after':>10} {'vector p50':>10}"
STRATEGIES: tuple[Strategy, ...] = ("auto", "prefilter", "postfilter")


class Row(NamedTuple):
    """The figures of a filter: milliseconds per search, and the recall of the vector index."""

    p50: float
    p95: float
    recall: float


def main() -> int:
    options = measure.begin(__doc__, lines=1_300_000, queries=60, cold=5)
    tree = corpus.packages(500 if options.small else options.lines)
    count = 3 if options.small else options.queries
    verdict = measure.Verdict(options.small)
    print(tree)
    with measure.scratch() as folder:
        target = str(folder / "workspace")
        measure.run([*measure.DRIFTLINE, "index", str(tree.path), "--workspace", target])
        workspace = Workspace.open(target)
        table = workspace.lines(workspace.tenants()[0])
        texts = sample_texts(table, 2 * count)
        texts, others = texts[:count], texts[count:]
        filters: list[LineFilter | None] = [None]
        filters += [LineFilter(dirs=chosen.names) for chosen in choose_directories(table, SHARES)]
        print(f"{table.count():,} lines with a word; {count} queries, {TOP_K} results each")
        print(HEAD)
        for text in others:  # warm up with queries other than the measured ones
            search(workspace, text)
        rows = [measured(workspace, texts, where) for where in filters]
        print(f"{'share':>8} " + " ".join(f"{f'{name} p50':>14}" for name in STRATEGIES))
        for share, where in zip(SHARES, filters[1:], strict=True):
            print(
                f"{share:8.1%} " + " ".join(f"{each:14.1f}" for each in compared(workspace, texts, where)), flush=True
            )
        cold = [
            measure.run([*measure.DRIFTLINE, "search", text, "--workspace", target]).seconds
            for text in texts[: 1 if options.small else options.cold]
        ]
    p50 = {f"{share:.1%}": row.p50 for share, row in zip((1, *SHARES), rows, strict=True)}
    measure.bars("Median time of a search by the share of lines that its filter allows", "ms", p50)
    verdict.at_most("p50 of a search, the worst of all filters", max(row.p50 for row in rows), 30, "ms", OBSTACLE)
    verdict.at_most("p95 of a search, the worst of all filters", max(row.p95 for row in rows), 80, "ms", OBSTACLE)
    verdict.at_least(
        f"recall@{TOP_K} of the index, the worst of all filters", min(row.recall for row in rows), 0.95, ""
    )
    verdict.at_most("driftline search as a command, median", measure.median(cold), 1.2, "s", COLD_OBSTACLE)
    return verdict.exit_code


def measured(workspace: Workspace, texts: list[str], where: LineFilter | None) -> Row:
    """Measure one filter and print its row under HEAD."""
    table = workspace.lines(workspace.tenants()[0])
    embedder = WordTableEmbedder.open()
    vectors = [embedder.embed_query(text) for text in texts]
    recalls = []
    with patch.multiple(table_searcher, EXACT_SEARCH_ROWS=-1, EXACT_SEARCH_SHARE=-1):
        for vector in vectors:
            found = nearest_lines(table, vector, TOP_K, where)["distance"].to_pylist()
            exact = nearest_lines(table, vector, TOP_K, where, exact=True)["distance"].to_pylist()
            recalls.append(recall(found, exact))
    by_vector = _milliseconds(lambda number: nearest_lines(table, vectors[number], TOP_K, where), len(texts))
    searched = _milliseconds(lambda number: search(workspace, texts[number], where=where), len(texts))
    before, after = TableSearcher(table, where), TableSearcher(table, where, strategy="postfilter")
    p50, p95, mean = float(np.median(searched)), float(np.quantile(searched, 0.95)), float(np.mean(recalls))
    print(
        f"{before.matches / before.lines:8.3%} {p50:7.1f} {p95:7.1f} {mean:7.3f} {before.examined:10,} "
        f"{after.examined:10,} {np.median(by_vector):10.1f}",
        flush=True,
    )
    return Row(p50, p95, mean)


def compared(workspace: Workspace, texts: list[str], where: LineFilter | None) -> list[float]:
    """Return the median milliseconds of a search for each of STRATEGIES; they alternate for each text."""
    seconds: list[list[float]] = [[] for _ in STRATEGIES]
    for text in texts:
        for strategy, found in zip(STRATEGIES, seconds, strict=True):
            started = time.perf_counter()
            search(workspace, text, where=where, strategy=strategy)
            found.append(time.perf_counter() - started)
    return [1000 * float(np.median(found)) for found in seconds]


def _milliseconds(search_number: Callable[[int], object], count: int) -> list[float]:
    search_number(0)
    found = []
    for number in range(count):
        started = time.perf_counter()
        search_number(number)
        found.append(1000 * (time.perf_counter() - started))
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
