"""The nearest vectors of a table, of lines or of memory entries, and the columns of rows that a search has found.

A search finds rows first and reads their columns then: Lance reads a handful of rows by their ids in half the time that
its scans take to fetch the same columns. The same holds for the vectors that the index knows only roughly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.indexes import VECTOR_METRIC

if TYPE_CHECKING:
    from lance import LanceDataset

ROW_ID = "_rowid"
REFINED_ROWS = 200
"""At least so many are taken from the index, which knows vectors only roughly, and compared by their own."""
MIN_REFINE_FACTOR = 3


def nearest_rows(
    dataset: LanceDataset,
    query: NDArray[np.float32],
    top_k: int,
    *,
    where: str | None = None,
    prefilter: bool = True,
    by_index: bool = True,
) -> pa.Table:
    """The rows whose ``vector`` is nearest to ``query``, ``(dim,)``, not zero: ``ROW_ID`` and ``distance`` (float32).

    At least ``top_k`` if so many match ``where``, a condition; in no order. ``distance`` is 1 - cosine. Exact, unless
    ``by_index``: then all partitions of the vector index are searched, and what seems nearest is compared exactly.
    """
    vector = (query / np.linalg.norm(query)).astype(np.float16)
    k = max(MIN_REFINE_FACTOR * top_k, REFINED_ROWS) if by_index else top_k
    # Probes are capped by the number of partitions.
    how = {"nprobes": dataset.count_rows()} if by_index else {"use_index": False}
    nearest: dict[str, Any] = {"column": "vector", "q": vector, "k": k, "metric": VECTOR_METRIC, **how}
    scanner = dataset.scanner(
        columns=[ROW_ID, "_distance"], nearest=nearest, filter=where, prefilter=prefilter, limit=k
    )
    found = scanner.to_table()
    rows, squared = found[ROW_ID], found["_distance"].to_numpy()
    if by_index:
        squared = _squared_distances(vector, read_rows(dataset, rows, ["vector"])["vector"])
    # Of vectors of length 1, half the squared distance is 1 - cosine.
    return pa.table({ROW_ID: rows, "distance": squared / np.float32(2)})


def read_rows(dataset: LanceDataset, rows: pa.ChunkedArray, columns: Sequence[str]) -> pa.Table:
    """``columns`` of the ``rows``, ids of this version, in their order."""
    return dataset._take_rows(rows.to_pylist(), columns=[*columns])  # no public method takes row ids


def _squared_distances(vector: NDArray[np.float16], others: pa.ChunkedArray) -> NDArray[np.float32]:
    """``(n,)``: between ``vector``, ``(dim,)``, and each of ``others``."""
    flat = others.combine_chunks().flatten().to_numpy()
    differences = flat.reshape(-1, len(vector)).astype(np.float32) - vector.astype(np.float32)
    squared: NDArray[np.float32] = np.einsum("ij,ij->i", differences, differences)
    return squared
