"""The vector index of a table of embeddings: builds it, and configures searches through it (decision 0008)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lance import LanceDataset

VECTOR = "vector_idx"
VECTOR_INDEX = "IVF_RQ"
"""One bit per dimension: small, and fast to search completely. Candidates are then compared by their full vectors."""
VECTOR_BITS = 1
VECTOR_METRIC: Literal["l2"] = "l2"
"""Lance returns the squared distance; half of it is 1 - cosine, because vectors have length 1. With "cosine", Lance
would normalise every vector again, which takes as long as the rest of the build."""
EXACT_SEARCH_ROWS = 20_000
"""Maximum number of filtered vectors that are compared exactly, which is faster than an index whose partitions are all
probed."""
REFINED_ROWS = 200
"""Minimum number of candidates from the approximate index that are compared exactly."""
MIN_REFINE_FACTOR = 3
ROWS_PER_PARTITION = 32_768
"""All partitions are probed, so they serve only to parallelize a search."""
SAMPLE_RATE = 64
"""Rows per partition in the training sample of k-means."""


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
    """Options of Lance for a search that probes the whole index, then compares candidates exactly."""
    # Lance caps the probes at the number of partitions.
    return {"nprobes": dataset.count_rows(), "refine_factor": max(MIN_REFINE_FACTOR, REFINED_ROWS // top_k)}
