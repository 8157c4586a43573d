"""The vector index of a table of embeddings: how it is built, and how a search goes through it (decision 0008)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lance import LanceDataset

VECTOR = "vector_idx"
VECTOR_INDEX = "IVF_RQ"
"""One bit per dimension: small, and quick to search as a whole. Candidates are then compared by their vectors."""
VECTOR_BITS = 1
VECTOR_METRIC: Literal["l2"] = "l2"
"""Half of it, squared as Lance gives it, is 1 - cosine: vectors have length 1. With "cosine" Lance would normalise
every vector once more, which takes as long as the rest of the build."""
EXACT_SEARCH_ROWS = 20_000
"""Up to this many vectors that pass a filter are compared one by one: exact, and faster than an index of which every
partition is searched."""
REFINED_ROWS = 200
"""Minimum number of candidates from the index, which knows vectors only roughly, that are compared exactly."""
MIN_REFINE_FACTOR = 3
ROWS_PER_PARTITION = 32_768
"""All partitions are probed, so they only let threads share a search."""
SAMPLE_RATE = 64
"""Rows per partition that k-means learns from."""


def is_indexed(dataset: LanceDataset) -> bool:
    """Whether the table has a vector index."""
    return any(index.name == VECTOR for index in dataset.describe_indices())


def create_vector_index(dataset: LanceDataset, rows: int) -> None:
    """Build the index of the column ``vector`` of a table of about ``rows`` rows."""
    dataset.create_index(
        "vector",
        VECTOR_INDEX,
        name=VECTOR,
        metric=VECTOR_METRIC,
        num_partitions=max(1, rows // ROWS_PER_PARTITION),
        sample_rate=SAMPLE_RATE,
        num_bits=VECTOR_BITS,
    )


def through_index(dataset: LanceDataset, top_k: int) -> dict[str, int]:
    """The options with which Lance's search for the ``top_k`` nearest probes the whole index, then refines."""
    # Probes are capped by the number of partitions.
    return {"nprobes": dataset.count_rows(), "refine_factor": max(MIN_REFINE_FACTOR, REFINED_ROWS // top_k)}
