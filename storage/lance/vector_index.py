"""Build a table's vector index, and configure searches that use it (decisions 0008, 0010)."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from lance import LanceDataset

VECTOR = "vector_idx"
VECTOR_INDEX = "IVF_RQ"
"""One bit per dimension keeps the index small, and fast to scan completely. Candidates are then compared by their full
vectors.
"""
VECTOR_BITS = 1
VECTOR_METRIC: Literal["l2"] = "l2"
"""Lance returns the squared distance; half of it is 1 - cosine, because vectors have unit length. With "cosine", Lance
would normalise every vector again, which takes as long as the rest of the build.
"""
EXACT_SEARCH_ROWS = 20_000
"""Maximum number of filtered vectors to compare exactly, which is faster than scanning the whole index."""
REFINED_ROWS = 200
"""Minimum number of approximate candidates to compare exactly."""
MIN_REFINE_FACTOR = 3


def is_indexed(dataset: LanceDataset) -> bool:
    """Return whether the table has a vector index."""
    return any(index.name == VECTOR for index in dataset.describe_indices())


def is_indexable(dataset: LanceDataset) -> bool:
    """Return whether Lance can index the vectors: RaBitQ requires a multiple of 8 dimensions."""
    return int(dataset.schema.field("vector").type.list_size) % 8 == 0


def vector_options(dim: int) -> dict[str, Any]:
    """Return Lance's options for an index of ``dim``-dimensional vectors, or for a segment of one.

    There is one partition: searches would probe all of them anyway, and assigning vectors to partitions takes most of
    the build time.
    """
    return {
        "index_type": VECTOR_INDEX,
        "metric": VECTOR_METRIC,
        "num_partitions": 1,
        "ivf_centroids": np.zeros((1, dim), np.float32),
        "num_bits": VECTOR_BITS,
        "rabitq_model": _rotation(dim),
    }


def create_vector_index(dataset: LanceDataset) -> None:
    """Build the index for the ``vector`` column."""
    dim = dataset.schema.field("vector").type.list_size
    dataset.create_index("vector", name=VECTOR, **vector_options(dim))


def through_index(dataset: LanceDataset, limit: int) -> dict[str, int]:
    """Return Lance's options for probing the whole index, then comparing candidates exactly."""
    # Lance caps the probes at the number of partitions.
    return {"nprobes": dataset.count_rows(), "refine_factor": max(MIN_REFINE_FACTOR, REFINED_ROWS // limit)}


@cache
def _rotation(dim: int) -> str:
    """Return the random rotation for RaBitQ as Lance's JSON; fixed, so that segments can be merged and compared."""
    import lance

    model = json.loads(lance.lance.indices.build_rq_model(dim, VECTOR_BITS))
    signs = len(model["fast_rotation_signs"])
    model["fast_rotation_signs"] = list(hashlib.shake_256(f"driftline rotation {dim}".encode()).digest(signs))
    return json.dumps(model)
