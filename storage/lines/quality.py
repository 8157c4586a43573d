"""Measures the latency and the recall of searches over a table, with a sample of its own vectors."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.lines.queries import RESULT_COLUMNS, LineQuery
from driftline.storage.lines.table import LineTable

QUERIES = 32
TOP_K = 10
SAMPLE_SEED = 7
TIE = 1e-3
"""Distances that differ by less count as equal: above the error of float16, below any relevant difference."""


@dataclass(frozen=True, slots=True)
class SearchQuality:
    """``p50_seconds`` is the median latency; ``recall`` the mean share of the ``TOP_K`` hits that are truly nearest."""

    p50_seconds: float
    recall: float


def measure(table: LineTable, queries: int = QUERIES) -> SearchQuality | None:
    """Compare searches as in ``driftline search`` with exact ones, for a sample of vectors; None without lines.

    All searches read the same version of the table, because writers may add nearer lines in the meantime.
    """
    seconds: list[float] = []
    recalls: list[float] = []
    version = table.open().version
    compared = LineQuery(table, version=version, exact=True)
    for query in _sample(table, version, queries):
        started = time.perf_counter()
        searched = LineQuery(table, version=version)
        hits = searched.nearest(query, TOP_K, columns=(*RESULT_COLUMNS, "vector"))
        seconds.append(time.perf_counter() - started)
        exact = compared.nearest(query, TOP_K)["distance"].to_numpy()
        if len(exact):
            # Compare distances, not names, because many lines are equal. Distances of an index are approximate.
            near = _distances(hits["vector"], query) <= exact[-1] + TIE
            recalls.append(float(near.sum()) / len(exact))
    if not recalls:
        return None
    return SearchQuality(float(np.median(seconds)), float(np.mean(recalls)))


def _sample(table: LineTable, version: int, count: int) -> NDArray[np.float32]:
    """Up to ``count`` stored vectors, ``(n, dim)``, none of them zero."""
    dataset = table.open(version)
    total = dataset.count_rows()
    rows = np.random.default_rng(SAMPLE_SEED).choice(total, min(count, total), replace=False)
    vectors = _matrix(dataset.take(np.sort(rows).tolist(), columns=["vector"])["vector"].drop_null())
    return vectors[np.any(vectors != 0, axis=1)]


def _distances(vectors: pa.ChunkedArray, query: NDArray[np.float32]) -> NDArray[np.float32]:
    stored = _matrix(vectors)
    norms = np.linalg.norm(stored, axis=1) * np.linalg.norm(query)
    distances: NDArray[np.float32] = 1 - np.divide(stored @ query, norms, out=np.zeros_like(norms), where=norms > 0)
    return distances


def _matrix(vectors: pa.ChunkedArray) -> NDArray[np.float32]:
    flat = vectors.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float32).reshape(len(vectors), vectors.type.list_size)
