"""Run the tasks of a compaction: fold deltas, rewrite fragments, and measure size, search latency and recall."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.deltas.delta_index import Folded
from driftline.storage.entities import Entity
from driftline.storage.lance.table import rewrite
from driftline.storage.leases.lease import Lease
from driftline.storage.lines.queries import RESULT_COLUMNS, LineQuery
from driftline.storage.lines.table import LineTable
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.context import TaskContext
from driftline.tasks.indexing.commit import settle

QUERIES = 32
TOP_K = 10
SAMPLE_SEED = 7
TIE = 1e-3
"""Smaller differences of distances count as ties: above the error of float16, below any relevant difference."""


@dataclass(frozen=True, slots=True)
class SearchQuality:
    """``p50_seconds`` is the median latency, ``recall`` the mean share of the ``TOP_K`` hits that are truly nearest."""

    p50_seconds: float
    recall: float


def measure(table: LineTable, queries: int | None = None) -> SearchQuality | None:
    """Compare searches as in ``driftline search`` with exact ones, for a sample of vectors; None without lines.

    ``queries`` is the size of the sample, by default QUERIES.

    All searches read the same version of the table, because writers may add nearer lines in the meantime.
    """
    seconds: list[float] = []
    recalls: list[float] = []
    version = table.open().version
    compared = LineQuery(table, version=version, exact=True)
    for query in _sample(table, version, queries or QUERIES):
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
    """Return up to ``count`` stored vectors, ``(n, dim)``, none of them zero."""
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


@dataclass(frozen=True, slots=True)
class RewriteSpec:
    """A task of a compaction plan for the table of a tenant and a fingerprint."""

    tenant: Entity
    fingerprint: str
    task: Any


@dataclass(frozen=True, slots=True)
class Figures:
    """Sizes of a tenant's part of a workspace, and latency and recall of its search, which are None without lines."""

    files: int
    bytes: int
    deltas: int
    fragments: int
    versions: int
    p50_seconds: float | None
    recall_at_10: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``compact --json`` prints."""
        return asdict(self)


def rewrite_fragments(spec: RewriteSpec, context: TaskContext) -> Any:
    """Execute a task of a plan on any worker and return its result for the commit."""
    return rewrite(context.workspace.lines(spec.tenant, spec.fingerprint), spec.task)


def fold_deltas(workspace: Workspace, entity: Entity, lease: Lease) -> Folded:
    """Settle the staged deltas of a source, then fold its deltas under ``lease``, the lease of the source."""
    settle(workspace, entity, lease)
    lease.check()
    return workspace.manifest(entity).compact()


def take_stock(workspace: Workspace, tenant: Entity) -> Figures:
    """Count the tenant's files, and measure the search of the current table."""
    files = list(workspace.objects.list(tenant.directory))
    tables = [table for table in workspace.line_tables(tenant) if table.exists()]
    quality = _quality([table for table in tables if table.fingerprint == workspace.config.fingerprint])
    return Figures(
        files=len(files),
        bytes=sum(info.size_bytes for info in files),
        deltas=sum(len(workspace.manifest(entity).log().deltas) for entity, _ in workspace.sources(tenant)),
        fragments=sum(len(table.open().get_fragments()) for table in tables),
        versions=sum(info.path.endswith(".manifest") for info in files),
        p50_seconds=quality.p50_seconds if quality else None,
        recall_at_10=quality.recall if quality else None,
    )


def _quality(serving: list[LineTable]) -> SearchQuality | None:
    return measure(serving[0]) if serving else None
