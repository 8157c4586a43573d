"""Measure a tenant for the compaction report: size, search latency and recall."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.lines.line_table import LineTable
from driftline.storage.lines.table_searcher import RESULT_COLUMNS, TableSearcher
from driftline.storage.workspace.records import RunHistory
from driftline.storage.workspace.workspace import Workspace

QUERIES = 32
TOP_K = 10
SAMPLE_SEED = 7
TIE = 1e-3
"""Distances that differ by less are treated as equal. Rounding errors of float16 are smaller, and relevant differences
are larger.
"""
ROWS_AT_ONCE = 8192
"""Number of vectors to compare with all queries at a time; few enough for the CPU cache."""
IO_BUFFER_BYTES = 64 * 2**20
ALWAYS_MEASURED_ROWS = 1 << 18
"""Every compaction measures tables of up to this many rows, in about a second."""
REBUILT_SHARE = 0.05
"""A compaction measures a table if it rebuilt the vector index for more than this fraction of the rows."""
MEASURED_EVERY = timedelta(days=7)
RECORDS_READ = 20
"""How many of the newest run records a compaction searches for the last measurement."""


@dataclass(frozen=True, slots=True)
class SearchQuality:
    """``p50_seconds`` is the median latency, and ``recall`` is the mean fraction of ``TOP_K`` hits that are correct."""

    p50_seconds: float
    recall: float


def measure(table: LineTable, queries: int | None = None) -> SearchQuality | None:
    """Compare normal with exact searches for a sample of vectors; return None if there are no lines.

    ``queries`` is the sample size (default: QUERIES). All exact searches share one pass over the vectors.

    All searches read the same table version, because writers may concurrently add nearer lines.
    """
    version = table.open().version
    sample = _sample(table, version, queries or QUERIES)
    if not len(sample):
        return None
    seconds: list[float] = []
    hits: list[pa.Table] = []
    for query in sample:
        started = time.perf_counter()
        hits.append(TableSearcher(table, version=version).nearest(query, TOP_K, columns=(*RESULT_COLUMNS, "vector")))
        seconds.append(time.perf_counter() - started)
    nearest = _nearest(table, version, sample)
    # Compare distances, not names, because many lines are equal. Index distances are approximate.
    recalls = [
        np.sum(_distances(_matrix(found["vector"]), query[np.newaxis]) <= exact[-1] + TIE) / len(exact)
        for found, query, exact in zip(hits, sample, nearest.T, strict=True)
    ]
    return SearchQuality(float(np.median(seconds)), float(np.mean(recalls)))


def _sample(table: LineTable, version: int, count: int) -> NDArray[np.float32]:
    """Return up to ``count`` stored vectors, ``(n, dim)``, none of them zero."""
    dataset = table.open(version)
    total = dataset.count_rows()
    rows = np.random.default_rng(SAMPLE_SEED).choice(total, min(count, total), replace=False)
    vectors = _matrix(dataset.take(np.sort(rows).tolist(), columns=["vector"])["vector"].drop_null())
    return vectors[np.any(vectors != 0, axis=1)]


def _nearest(table: LineTable, version: int, queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sorted distances of the TOP_K lines nearest to each query, ``(TOP_K, n)``, in a single pass."""
    best = np.full((0, len(queries)), np.inf, np.float32)
    scanner = table.open(version).scanner(
        columns=["vector"],
        batch_size=ROWS_AT_ONCE,
        batch_readahead=2,
        fragment_readahead=1,
        io_buffer_size=IO_BUFFER_BYTES,
    )
    for batch in scanner.to_batches():
        distances = _distances(_matrix(batch.column("vector").drop_null()), queries)
        if len(best) == TOP_K:
            distances = distances[np.any(distances < best[-1], axis=1)]
        best = np.sort(np.concatenate([best, distances]), axis=0)[:TOP_K]
    return best


def _distances(vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return half the squared distance of each vector to each query, ``(n, m)``, like searches do."""
    squares = np.einsum("ij,ij->i", vectors, vectors)[:, np.newaxis] + np.einsum("ij,ij->i", queries, queries)
    distances: NDArray[np.float32] = squares / 2 - vectors @ queries.T
    return distances


def _matrix(vectors: pa.Array | pa.ChunkedArray) -> NDArray[np.float32]:
    flat = pa.chunked_array([vectors]) if isinstance(vectors, pa.Array) else vectors
    values = flat.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float32).reshape(len(vectors), vectors.type.list_size)


@dataclass(frozen=True, slots=True)
class Figures:
    """The size of a tenant's part of a workspace, and its search latency and recall, None if unmeasured."""

    files: int
    bytes: int
    deltas: int
    fragments: int
    versions: int
    p50_seconds: float | None = None
    recall_at_10: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the object for ``compact --json``."""
        return asdict(self)


def measure_table(workspace: Workspace, tenant: Entity, quality: SearchQuality | None = None) -> Figures:
    """Count the tenant's files; ``quality`` contains its search measurements."""
    files = list(workspace.objects.list(tenant.directory))
    tables = [table for table in workspace.line_tables(tenant) if table.exists()]
    return Figures(
        files=len(files),
        bytes=sum(info.size_bytes for info in files),
        deltas=sum(len(workspace.manifest(entity).log().deltas) for entity, _ in workspace.sources(tenant)),
        fragments=sum(len(table.open().get_fragments()) for table in tables),
        versions=sum(info.path.endswith(".manifest") for info in files),
        p50_seconds=quality.p50_seconds if quality else None,
        recall_at_10=quality.recall if quality else None,
    )


def measure_if_due(workspace: Workspace, tenant: Entity, rebuilt: int, now: datetime) -> SearchQuality | None:
    """Measure the current table's search if it is due; None otherwise, or if there are no lines.

    It is due if the table is small, if the compaction built the vector index for ``rebuilt`` rows, more than
    REBUILT_SHARE of all, or if the last measurement is older than MEASURED_EVERY.
    """
    tables = [table for table in workspace.line_tables(tenant) if table.exists()]
    serving = next((table for table in tables if table.fingerprint == workspace.config.fingerprint), None)
    if serving is None:
        return None
    rows = serving.open().count_rows()
    if rows <= ALWAYS_MEASURED_ROWS or rebuilt > REBUILT_SHARE * rows:
        return measure(serving)
    measured = last_measured(workspace, tenant)
    due = measured is None or now - measured >= MEASURED_EVERY
    return measure(serving) if due else None


def last_measured(workspace: Workspace, tenant: Entity) -> datetime | None:
    """Return when a compaction last measured search quality, according to the newest run records, or None."""
    for record in islice(RunHistory(workspace.objects, tenant).newest_first(), RECORDS_READ):
        if record.kind == "compact":
            found = record.report.get("measured")
            return datetime.fromisoformat(found) if found else None
    return None
