"""Searches over a table of lines, with filters pushed down (DESIGN, "Search")."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.indexes import VECTOR, VECTOR_METRIC, coverage
from driftline.storage.lines import LineTable, is_one_of, quote

EXACT_SEARCH_ROWS = 100_000
"""Up to so many matching lines are compared one by one: faster than an index, and exact."""
REFINE_FACTOR = 3
"""So many times the lines wanted are taken from the index, whose vectors are rounded, and compared by their own."""
RESULT_COLUMNS = ("entity", "path", "line_number", "text", "hash")


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines a search may return; ``None`` does not filter, an empty tuple allows nothing.

    Paths and directories are relative to their source; directories mean everything below them.
    """

    entities: tuple[Entity, ...] | None = None
    paths: tuple[str, ...] | None = None
    dirs: tuple[str, ...] | None = None
    exts: tuple[str, ...] | None = None

    def to_sql(self) -> str | None:
        """The filter in Lance's language, every name quoted, or None for no filter."""
        parts: list[str] = []
        if self.entities is not None:
            parts.append(is_one_of("entity", [str(entity) for entity in self.entities]))
        if self.paths is not None:
            parts.append(is_one_of("path", [normalise(path) for path in self.paths]))
        if self.dirs is not None:
            names = [normalise(name) for name in self.dirs]
            if "" not in names:  # the root holds every line
                wanted = ", ".join(quote(name + "/") for name in names)
                parts.append(f"array_has_any(parent_dirs, [{wanted}])" if names else "false")
        if self.exts is not None:
            parts.append(is_one_of("ext", [ext.removeprefix(".").lower() for ext in self.exts]))
        return " AND ".join(f"({part})" for part in parts) or None


def normalise(path: str) -> str:
    """One spelling for ``a/b``, ``a/b/`` and ``./a/b``; the root is "". Raises UsageError for a path that leaves it."""
    clean = posixpath.normpath(path.strip("/") or ".")
    if clean == ".." or clean.startswith("../"):
        raise UsageError("A path leads out of its source", path, "Give a path relative to the source.")
    return "" if clean == "." else clean


def nearest_lines(
    table: LineTable,
    query: NDArray[np.float32],
    top_k: int,
    where: LineFilter | None = None,
    max_distance: float | None = None,
    *,
    exact: bool = False,
    columns: Sequence[str] = RESULT_COLUMNS,
) -> pa.Table:
    """The ``top_k`` lines nearest to ``query``, ``(dim,) float32``, best first, with a ``distance`` column (float32).

    ``distance`` is 1 - cosine; nothing is near to a zero vector. Ties are broken by path and
    line number. Exact where the filter leaves few lines, without an index, or if ``exact``; otherwise all
    partitions of the index are probed. Raises UsageError for a vector of another length.
    """
    if top_k < 0:
        raise UsageError("top_k must not be negative", str(top_k))
    dataset = table.open(cached=True)
    dim = dataset.schema.field("vector").type.list_size
    if query.shape != (dim,):
        raise UsageError(f"A query vector has {dim} dimensions here, not {query.shape}", table.uri)
    length = np.linalg.norm(query)
    if top_k == 0 or not length > 0:
        distance = pa.field("distance", pa.float32())
        return pa.schema([*(dataset.schema.field(name) for name in columns), distance]).empty_table()
    sql = where.to_sql() if where else None
    matches = dataset.count_rows(sql)
    index = coverage(dataset).get(VECTOR) if matches > EXACT_SEARCH_ROWS and not exact else None
    nearest = {"column": "vector", "q": (query / length).astype(np.float16), "k": top_k, "metric": VECTOR_METRIC}
    if index is None:
        nearest["use_index"] = False
    else:
        nearest["nprobes"] = max(1, index.indexed_rows)  # capped by the number of partitions
        nearest["refine_factor"] = REFINE_FACTOR
    scanner = dataset.scanner(columns=[*columns, "_distance"], nearest=nearest, filter=sql, prefilter=True, limit=top_k)
    found = scanner.to_table().rename_columns([*columns, "distance"])
    halved = pc.divide(found["distance"], pa.scalar(2, pa.float32()))
    found = found.set_column(len(columns), "distance", halved)  # of vectors of length 1: 1 - cosine
    if max_distance is not None:
        found = found.filter(pc.less_equal(found["distance"], max_distance))
    order: Sequence[tuple[str, str]] = [("distance", "ascending"), ("path", "ascending"), ("line_number", "ascending")]
    return found.sort_by(list(order))
