"""Searches over a table of lines, with filters pushed down (DESIGN, "Search")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.errors import UsageError
from driftline.storage.lance.vector_index import EXACT_SEARCH_ROWS, VECTOR, VECTOR_METRIC, through_index
from driftline.storage.lines.filters import LineFilter
from driftline.storage.lines.indexes import TEXT_COLUMN
from driftline.storage.lines.table import LineTable, no_lines

if TYPE_CHECKING:
    from lance import LanceDataset

__all__ = ["LineFilter", "LineQuery", "Strategy", "matching_blocks", "nearest_lines"]

EXACT_SEARCH_SHARE = 1 / 32
"""Up to such a share of all lines is compared one by one even where it is more than EXACT_SEARCH_ROWS."""
FALLBACK_THRESHOLD = 0.5
"""The strategy ``hybrid`` filters afterwards where at least this share of the lines matches."""
RESULT_COLUMNS = ("entity", "path", "line_number", "text", "hash")
BLOCK_COLUMNS = ("entity", "path", "line_number", "hash", TEXT_COLUMN)

_SOURCES: dict[tuple[str | int, ...], tuple[str, ...]] = {}
"""The sources of the versions that this process has searched, which never change."""
_MAX_VERSIONS = 1_000

Strategy = Literal["auto", "prefilter", "postfilter", "hybrid"]
"""When a filter is applied: ``auto`` and ``prefilter`` before the search, ``postfilter`` after it, over more and more
lines until enough match, ``hybrid`` as ``fallback_threshold`` says. ``auto`` also counts the matches, and compares
few of them without an index."""


@dataclass(frozen=True)
class LineQuery:
    """One filter over one version of a table, the newest if none is named, and how it will be searched.

    Raises UsageError for a bad filter.
    """

    table: LineTable
    where: LineFilter | None = None
    strategy: Strategy = "auto"
    fallback_threshold: float = FALLBACK_THRESHOLD
    exact: bool = False
    version: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise UsageError("Unknown strategy", self.strategy, f"Use one of {', '.join(get_args(Strategy))}.")
        if not 0 <= self.fallback_threshold <= 1:
            raise UsageError("fallback_threshold must be a share, from 0 to 1", str(self.fallback_threshold))

    @cached_property
    def dataset(self) -> LanceDataset:
        return self.table.open(self.version, cached=True)

    def open(self) -> None:
        """Open the table now, rather than when the first line is asked for."""
        _ = self.dataset

    @cached_property
    def sql(self) -> str | None:
        return self.where.to_sql() if self.where else None

    # Rows that are no lines are counted apart, since an index finds them and not the others.

    @cached_property
    def lines(self) -> int:
        """How many lines the table has."""
        return int(self.dataset.count_rows()) - len(self._sources)

    @cached_property
    def matches(self) -> int:
        """How many lines the filter allows."""
        if self.sql is None:
            return self.lines
        return self._matching_rows - int(self.dataset.count_rows(no_lines(self.sql)))

    @cached_property
    def _matching_rows(self) -> int:
        """As ``matches``, but with the rows that are no lines: few enough not to matter, and slow to tell apart."""
        return int(self.dataset.count_rows(self.sql))

    @cached_property
    def _sources(self) -> tuple[str, ...]:
        """The entities that have written to the table: each has one row that is no line."""
        files = [file.path for fragment in self.dataset.get_fragments()[:1] for file in fragment.data_files()]
        # Another table may come to the same place and version, but not with the same files.
        version: tuple[str | int, ...] = (self.dataset.uri, self.dataset.version, *files)
        found = _SOURCES.get(version)
        if found is None:
            found = tuple(self.dataset.to_table(columns=["entity"], filter=no_lines(None))["entity"].to_pylist())
            if len(_SOURCES) >= _MAX_VERSIONS:
                _SOURCES.clear()
            _SOURCES[version] = found
        return found

    @cached_property
    def filters_afterwards(self) -> bool:
        if self.sql is None or self.strategy in ("auto", "prefilter"):
            return False
        return self.strategy == "postfilter" or self.matches >= self.fallback_threshold * self.lines

    @cached_property
    def index(self) -> str | None:
        """The kind of the vector index that will be used, or None for an exact search."""
        few = max(EXACT_SEARCH_ROWS, EXACT_SEARCH_SHARE * self.dataset.count_rows())
        if self.exact or (self.strategy == "auto" and self._matching_rows <= few):
            return None
        return next((index.index_type for index in self.dataset.describe_indices() if index.name == VECTOR), None)

    @property
    def examined(self) -> int:
        """How many lines a search compares with its query, in the index or by themselves."""
        return self.lines if self.filters_afterwards else self.matches

    def nearest(
        self,
        vector: NDArray[np.float32],
        top_k: int,
        max_distance: float | None = None,
        columns: Sequence[str] = RESULT_COLUMNS,
    ) -> pa.Table:
        """As ``nearest_lines``."""
        if top_k < 0:
            raise UsageError("top_k must not be negative", str(top_k))
        dim = self.dataset.schema.field("vector").type.list_size
        if vector.shape != (dim,):
            raise UsageError(f"A query vector has {dim} dimensions here, not {vector.shape}", self.table.uri)
        length = np.linalg.norm(vector)
        if top_k == 0 or not length > 0:
            distance = pa.field("distance", pa.float32())
            return pa.schema([*(self.dataset.schema.field(name) for name in columns), distance]).empty_table()
        nearest: dict[str, Any] = {
            "column": "vector",
            "q": (vector / length).astype(np.float16),
            "metric": VECTOR_METRIC,
        }
        fetch = top_k
        while True:
            how = {"use_index": False} if self.index is None else through_index(self.dataset, fetch)
            found = self._scan(columns, {**nearest, **how, "k": fetch})
            if not self.filters_afterwards or len(found) >= top_k or fetch >= self.lines:
                break
            fetch = min(4 * fetch, self.lines)
        if max_distance is not None:
            found = found.filter(pc.less_equal(found["distance"], max_distance))
        order = [("distance", "ascending"), ("path", "ascending"), ("line_number", "ascending")]
        return found.sort_by(order).slice(0, top_k)

    def _scan(self, columns: Sequence[str], nearest: dict[str, Any]) -> pa.Table:
        """The lines nearest by the index or the scan that ``nearest`` asks for, unordered."""
        found = self._read(
            [*columns, "_distance"],
            nearest=nearest,
            prefilter=not self.filters_afterwards,
            limit=nearest["k"],
        ).rename_columns([*columns, "distance"])
        halved = pc.divide(found["distance"], pa.scalar(2, pa.float32()))
        return found.set_column(len(columns), "distance", halved)  # of vectors of length 1: 1 - cosine

    def _read(self, columns: Sequence[str], **search: Any) -> pa.Table:
        """What a search finds. Entities, which take longer to read than texts, are known where there is one source."""
        known = "entity" in columns and len(self._sources) == 1
        read = [name for name in columns if not (known and name == "entity")]
        found = self.dataset.scanner(columns=read, filter=self.sql, **search).to_table()
        if known:
            found = found.append_column("entity", pa.repeat(self._sources[0], len(found)))
        return found.select(columns)

    def blocks(self, words: str, limit: int) -> pa.Table:
        """As ``matching_blocks``."""
        from lance.query import MatchQuery

        if limit == 0 or not words.strip():
            fields = [self.dataset.schema.field(name) for name in BLOCK_COLUMNS]
            return pa.schema([*fields, pa.field("bm25", pa.float32())]).empty_table()
        search = MatchQuery(words, TEXT_COLUMN)
        found = self._read([*BLOCK_COLUMNS, "_score"], full_text_query=search, prefilter=True, limit=limit)
        return found.rename_columns([*BLOCK_COLUMNS, "bm25"])


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
    return LineQuery(table, where, exact=exact).nearest(query, top_k, max_distance, columns)


def matching_blocks(table: LineTable, words: str, limit: int, where: LineFilter | None = None) -> pa.Table:
    """The ``limit`` blocks that hold most of ``words``, by BM25, which stands in the column ``bm25`` (float32).

    Best first. ``line_number`` is the first line of the block that has a row.
    """
    return LineQuery(table, where).blocks(words, limit)
