"""Measure the vector column types and vector index kinds for decisions 0002 and 0008.

    .venv/bin/python tests/benchmarks/index_kinds.py

The vectors of one tree are written as float16 and as float32, each with every kind of index. Recall is the share of the
ten best lines by exact float32 cosine that is found. Builds are in CPU seconds, because other work on the host distorts
wall-clock time. Searches probe all partitions unless the kind sets fewer; with RQ and PQ, they also refine.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import lance
import measure
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from queries import TOLERANCE, choose_directories, sample_queries

from driftline.storage.lines.table_searcher import LineFilter
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder

TOP_K = 10
SHARES = (0.1, 0.01)
ROWS_PER_FILE = 65_536
SAMPLE_RATE = 64
"""Rows per partition in the k-means training sample."""
ONE_PARTITION = 1 << 40


@dataclass(frozen=True, slots=True)
class Kind:
    """An index kind: how it is built and queried."""

    name: str
    metric: str = "l2"
    partition_rows: int = 262_144
    refine: int = 3
    sub_vectors: int | None = None
    bits: int | None = None
    probed: float = 1.0

    def __str__(self) -> str:
        bits = "" if self.bits is None else f" {self.bits} bit"
        probed = "" if self.probed == 1 else f", {self.probed:.0%} probed"
        return f"{self.name}{bits} {self.metric}, {self.partition_rows // 1024}k rows, refine {self.refine}{probed}"

    def options(self) -> dict[str, Any]:
        return {} if self.bits is None else {"num_bits": self.bits}

    def partitions(self, rows: int) -> int:
        return max(1, rows // self.partition_rows)

    def probes(self, rows: int) -> int:
        return max(1, int(self.probed * self.partitions(rows)))


KINDS = (
    Kind("IVF_FLAT", refine=1),
    Kind("IVF_SQ"),
    Kind("IVF_SQ", partition_rows=32_768),
    Kind("IVF_SQ", metric="cosine"),
    Kind("IVF_SQ", metric="dot"),
    Kind("IVF_RQ", refine=50),
    Kind("IVF_RQ", refine=20, bits=1, partition_rows=ONE_PARTITION),
    Kind("IVF_RQ", refine=20, bits=1, partition_rows=32_768),
    *(Kind("IVF_RQ", refine=15, bits=1, partition_rows=8_192, probed=probed) for probed in (1, 0.7, 0.5, 0.3)),
    Kind("IVF_PQ", refine=50, sub_vectors=64),
)


def main() -> int:
    options = measure.begin(__doc__, lines=600_000, queries=40)
    tree = corpus.packages(500 if options.small else options.lines)
    print(tree)
    embedder = WordTableEmbedder.open()
    with measure.scratch() as folder:
        command = [*measure.DRIFTLINE, "index", str(tree.path), "--workspace", str(folder / "ws"), "--indexes", "none"]
        measure.run(command)
        workspace = Workspace.open(str(folder / "ws"))
        lines = workspace.lines(workspace.tenants()[0])
        queries = sample_queries(lines, embedder, 2 if options.small else options.queries)
        filters = [chosen.names for chosen in choose_directories(lines, SHARES)]
        rows = pa.Table.from_batches(lines.rows(["text", "parent_dirs"]))
        vectors = embedder.embed(rows["text"])
        # A line without a known token has no direction, so it has no vector in the index.
        rows = rows.filter(pa.array(vectors.any(axis=1)))
        exact = Exact(rows["parent_dirs"].to_pylist(), vectors[vectors.any(axis=1)], queries)
        print(f"{len(rows):,} lines; filters hold {', '.join(f'{len(exact.matching(names)):,}' for names in filters)}")
        for dtype in (np.float16,) if options.small else (np.float16, np.float32):
            _column(folder / np.dtype(dtype).name, rows, dtype, exact, filters)
    return 0


class Exact:
    """The ground truth: all cosines of each query in float32."""

    def __init__(
        self, dirs: Sequence[Sequence[str]], vectors: NDArray[np.float32], queries: NDArray[np.float32]
    ) -> None:
        self.vectors, self.queries = vectors, queries
        self._dirs = dirs
        self._cosines = queries @ vectors.T

    def matching(self, names: tuple[str, ...]) -> NDArray[np.intp]:
        """Return the rows under any of these directories, or all rows if there are none."""
        wanted = set(names)
        return np.array(
            [row for row, dirs in enumerate(self._dirs) if not wanted or wanted.intersection(dirs)], np.intp
        )

    def recall(self, query: int, found: NDArray[np.int64], among: NDArray[np.intp]) -> float:
        cosines = self._cosines[query]
        best = min(TOP_K, len(among))
        least = np.partition(cosines[among], -best)[-best]
        return float((cosines[found] >= least - TOLERANCE).sum() / best)


def _column(
    folder: Path, rows: pa.Table, dtype: type[np.floating[Any]], exact: Exact, filters: list[tuple[str, ...]]
) -> None:
    """Print the cost of a column type, without an index and with each kind."""
    name, dim = np.dtype(dtype).name, exact.vectors.shape[1]
    flat = pa.array(exact.vectors.astype(dtype).reshape(-1))
    table = rows.select(["parent_dirs"]).append_column("vector", pa.FixedSizeListArray.from_arrays(flat, dim))
    table = table.append_column("id", pa.array(np.arange(len(rows))))
    started = time.process_time()
    dataset = lance.write_dataset(table, folder, max_rows_per_file=ROWS_PER_FILE)
    seconds = time.process_time() - started
    dataset.create_scalar_index("parent_dirs", "LABEL_LIST")
    print(f"\n{name}: vectors {flat.nbytes / 1e6:,.0f} MB, written in {seconds:.1f} CPU s")
    header = "".join(f"{share:>14}" for share in ("no filter", *(f"{share:.0%}" for share in SHARES)))
    print(f"{'':38} {'CPU s':>6} {'MB':>5}{header}   (recall@10, p50 ms)")
    reaches = [((), exact.matching(())), *((names, exact.matching(names)) for names in filters)]
    _row("no index", 0, 0, _asked(dataset, Kind("exact"), dtype, exact, reaches, use_index=False))
    for kind in KINDS:
        started = time.process_time()
        dataset.create_index(
            "vector",
            kind.name,
            name="vector_idx",
            metric=kind.metric,
            replace=True,
            num_partitions=kind.partitions(len(rows)),
            sample_rate=SAMPLE_RATE,
            num_sub_vectors=kind.sub_vectors,
            **kind.options(),
        )
        seconds = time.process_time() - started
        (index,) = (found for found in dataset.describe_indices() if found.name == "vector_idx")
        size = sum(_size(folder / "_indices" / segment.uuid) for segment in index.segments)
        _row(str(kind), seconds, size, _asked(dataset, kind, dtype, exact, reaches, use_index=True))
    shutil.rmtree(folder)


def _asked(
    dataset: lance.LanceDataset,
    kind: Kind,
    dtype: type[np.floating[Any]],
    exact: Exact,
    reaches: list[tuple[tuple[str, ...], NDArray[np.intp]]],
    *,
    use_index: bool,
) -> Iterator[tuple[float, float]]:
    """Yield ``(recall, p50 in milliseconds)`` for each filter."""
    for names, among in reaches:
        times, recalls = list[float](), list[float]()
        for number, query in enumerate(exact.queries):
            nearest: dict[str, Any] = {"column": "vector", "q": query.astype(dtype), "k": TOP_K, "metric": kind.metric}
            nearest |= (
                {"nprobes": kind.probes(len(exact.vectors)), "refine_factor": kind.refine}
                if use_index
                else {"use_index": False}
            )
            started = time.perf_counter()
            where = LineFilter(dirs=names).to_sql() if names else None
            found = dataset.scanner(
                columns=["id", "_distance"], nearest=nearest, filter=where, prefilter=True
            ).to_table()
            times.append(time.perf_counter() - started)
            recalls.append(exact.recall(number, found["id"].to_numpy(), among))
        yield sum(recalls) / len(recalls), 1000 * measure.median(times)


def _row(name: str, seconds: float, size: int, requested: Iterator[tuple[float, float]]) -> None:
    cells = "".join(f"{recall:7.3f}{milliseconds:7.1f}" for recall, milliseconds in requested)
    print(f"{name:38} {seconds:6.1f} {size / 1e6:5.0f}{cells}", flush=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
