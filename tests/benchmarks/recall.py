"""Recall@10 of the vector index against exact search, with and without directory filters, and what both take.

    .venv/bin/python tests/benchmarks/recall.py

Both are asked by ``nearest_lines``, as ``driftline search`` does, but the index even where few lines match, for which
searches use none. Distances are those of the stored vectors.
"""

from __future__ import annotations

import subprocess
import sys
import time
from unittest.mock import patch

import corpus
import measure
import numpy as np
from numpy.typing import NDArray
from queries import choose_directories, recall, sample_queries

from driftline.storage import queries as storage_queries
from driftline.storage.lines import LineTable
from driftline.storage.queries import LineFilter, nearest_lines
from driftline.storage.workspace import Workspace
from driftline.tasks.embedding import WordTableEmbedder

TOP_K = 10
MIN_RECALL = 0.95
SHARES = (0.5, 0.1, 0.01, 0.001)


def main() -> int:
    options = measure.begin(__doc__, lines=600_000, queries=50)
    tree = corpus.packages(5_000 if options.small else options.lines)
    verdict = measure.Verdict(options.small)
    print(tree)
    with measure.scratch() as folder:
        measure.run([*measure.DRIFTLINE, "index", str(tree.path), "--workspace", str(folder / "workspace")])
        workspace = Workspace.open(str(folder / "workspace"))
        table = workspace.lines(workspace.tenants()[0])
        print(f"{table.count():,} lines with a word; p50 of the queries, {TOP_K} lines each")
        print(f"{'share':>8} {'lines':>9} {'recall':>7} {'index ms':>9} {'exact ms':>9} {'as searched ms':>15}")
        vectors = sample_queries(table, WordTableEmbedder.open(), 2 if options.small else options.queries)
        filters: list[LineFilter | None] = [None]
        filters += [LineFilter(dirs=chosen.names) for chosen in choose_directories(table, SHARES)]
        worst = min(_row(table, vectors, where) for where in filters)
    verdict.at_least(f"recall@{TOP_K} of the index, the worst of all filters", worst, MIN_RECALL, "")
    return verdict.exit_code


def _row(table: LineTable, vectors: NDArray[np.float32], where: LineFilter | None) -> float:
    """Measure one filter and print it; returns the recall."""
    matching = table.count(where.to_sql() if where else None)
    by_index, by_scan, as_searched, recalls = list[float](), list[float](), list[float](), list[float]()
    for vector in vectors:
        started = time.perf_counter()
        nearest_lines(table, vector, TOP_K, where)
        as_searched.append(time.perf_counter() - started)
        with patch.object(storage_queries, "EXACT_SEARCH_ROWS", -1):
            started = time.perf_counter()
            found = nearest_lines(table, vector, TOP_K, where)["distance"].to_pylist()
            by_index.append(time.perf_counter() - started)
        started = time.perf_counter()
        exact = nearest_lines(table, vector, TOP_K, where, exact=True)["distance"].to_pylist()
        by_scan.append(time.perf_counter() - started)
        recalls.append(recall(found, exact))
    total = table.count()
    mean = sum(recalls) / len(recalls)
    times = [1000 * measure.median(values) for values in (by_index, by_scan, as_searched)]
    print(
        f"{matching / total:8.3%} {matching:9,} {mean:7.3f} {times[0]:9.1f} {times[1]:9.1f} {times[2]:15.1f}",
        flush=True,
    )
    return mean


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
