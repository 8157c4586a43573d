"""Search one version of a lines table, with filter pushdown (DESIGN, "Search").

``TableSearcher`` finds nearest lines, lexical and semantic block matches, and passages, among the lines that pass a
filter. On a bucket, ``read_ahead`` prefetches index data with a few large parallel reads instead of many small
sequential ones. If an index is unusable, the table is scanned.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache
from numpy.typing import NDArray

from driftline.storage.defaults import FALLBACK_THRESHOLD, Strategy
from driftline.storage.documents import content_hash
from driftline.storage.errors import UsageError
from driftline.storage.lance.failures import with_indexes
from driftline.storage.lance.lance_table import (
    EXACT_SEARCH_ROWS,
    VECTOR,
    TableFile,
    data_file,
    is_one_of,
    nearest_options,
    with_cosine_distance,
)
from driftline.storage.lines.block_codes import BlockCodes, codes_of, join
from driftline.storage.lines.commit_marker import no_lines
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.line_table import (
    CODE_COLUMN,
    LINES_PER_BLOCK,
    TEXT,
    TEXT_COLUMN,
    LineTable,
    schema,
    searched_parts,
)
from driftline.storage.lines.outline import OUTLINE_COLUMN
from driftline.storage.objects.store_requests import in_parallel
from driftline.storage.shared_cache import SharedCache

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

__all__ = ["NOTHING", "LineFilter", "Passage", "Scored", "Strategy", "TableSearcher", "nearest_lines"]

MAX_TEXT_INDEX_BYTES = 64 * 2**20
"""If the text index is larger, only the postings of the query's words are read."""

PARTS = {TEXT: ("metadata.lance", "part_0_tokens.lance", "part_0_docs.lance", "part_0_invert.lance")}
"""The files of a text index segment. Lance opens them one after another."""

_done: set[tuple[str, str, int | None]] = set()
"""Index segments that this process already loaded, by table URI and base; segments are immutable."""
_lock = threading.Lock()
_MAX_DONE = 10_000

EXACT_SEARCH_SHARE = 1 / 32
"""Maximum share of a table's lines to compare exactly, even if that is more than EXACT_SEARCH_ROWS."""
RESULT_COLUMNS = ("entity", "path", "line_number", "column_number", "text", "hash")
PASSAGE_COLUMNS = ("entity", "path", "line_number", "column_number", "text")
BLOCK_COLUMNS = ("entity", "path", "line_number", "column_number", "hash", TEXT_COLUMN, OUTLINE_COLUMN)
_SOURCES: dict[tuple[str | int, ...], tuple[str, ...]] = {}
"""The sources in each table version that this process searched; versions are immutable."""
_MAX_VERSIONS = 1_000
MAX_KEPT_LINES = 1_500_000
"""Blocks of tables with up to this many lines may stay in memory, at some 70 bytes per line."""
FASTER_TOGETHER = 6
"""Reading all blocks together is this many times as fast, per block, as reading them one by one."""
FASTER_TOGETHER_FROM_BUCKETS = 20
"""The same for a table in a bucket, whose files Lance reads through the block cache."""
FEW_LINES = 50_000
"""Blocks of a table with at most this many lines stay in memory after the second search."""
_Filtered = tuple[str | int | None, ...]
"""A version and a filter condition."""
_BLOCKS: SharedCache[_Filtered, pa.Table] = SharedCache(LRUCache(128 * 2**20, lambda kept: kept.nbytes))
"""All blocks that pass a filter, for small versions that this process searches repeatedly."""
_BLOCKS_READ: SharedCache[_Filtered, int] = SharedCache(LRUCache(1_024))
"""How many blocks this process read one by one."""
_ALLOWED: SharedCache[_Filtered, RowIds] = SharedCache(LRUCache(64 * 2**20, lambda rows: rows.nbytes))
"""The row ids that pass each filter."""
_MASKS: SharedCache[_Filtered, bytes] = SharedCache(LRUCache(32 * 2**20, len))
"""These rows as Lance's masks, so that it does not evaluate the filter in each search."""
_ALLOWED_CODES: SharedCache[_Filtered, BlockCodes] = SharedCache(LRUCache(64 * 2**20, lambda codes: codes.nbytes))
MAX_COPIED_BYTES = 32 * 2**20
"""Limit for copies of the codes that pass a filter. For more, all codes are compared, and the others then dropped."""
MAX_JOINED_BYTES = 16 * 2**20
"""Limit for several tables' joined codes; smaller joins are cached as well."""
MAX_MASKED_ROWS = 2_000_000
"""If a filter passes more rows, words are searched without it, and the results filtered: a mask of that many rows would
take longer to make, and 40 bytes per row meanwhile.
"""
_ROW = pa.field("_rowid", pa.uint64())
_Value = TypeVar("_Value")


def read_ahead(table: LineTable, dataset: LanceDataset, names: Iterable[str]) -> None:
    """Load the indexes ``names`` of ``dataset`` into its session, in parallel.

    Damaged indexes are left to the search, which works without them.
    """
    requested = set(names)
    found = [
        (index.name, {(dataset.uri, str(segment.uuid), segment.base_id) for segment in index.segments})
        for index in dataset.describe_indices()
        if index.name in requested and (index.name != TEXT or (index.total_size_bytes or 0) <= MAX_TEXT_INDEX_BYTES)
    ]
    with _lock:
        missing = [(name, segments) for name, segments in found if not segments <= _done]
    if not missing:
        return

    table.read_ahead(
        {
            TableFile(f"_indices/{uuid}/{part}", base_id): (0, None)
            for name, segments in missing
            for _, uuid, base_id in segments
            for part in PARTS.get(name, ())
        }
    )

    def read(name: str) -> None:
        def attempt(indexed: bool) -> None:
            if indexed:
                dataset.prewarm_index(name)

        with_indexes(dataset, table.TITLE, attempt)

    for _ in in_parallel(read, [name for name, _ in missing], len(missing)):
        pass
    with _lock:
        if len(_done) > _MAX_DONE:
            _done.clear()
        _done.update(*(segments for _, segments in missing))


@dataclass(frozen=True, slots=True)
class Scored:
    """Blocks, best first. ``rows`` (``(n,) uint64``) are ids of their first rows; ``scores`` is ``(n,) float32``."""

    rows: NDArray[np.uint64]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)


NOTHING = Scored(np.zeros(0, np.uint64), np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True)
class RowIds:
    """A set of row ids, as runs from ``starts`` to ``ends`` (exclusive), ascending: filters allow whole documents."""

    starts: NDArray[np.uint64]
    ends: NDArray[np.uint64]

    @classmethod
    def of(cls, rows: pa.ChunkedArray) -> Self:
        """Return the set of distinct ``rows``, in any order.

        Examples:
            >>> found = RowIds.of(pa.chunked_array([[7, 3, 4], [5, 9]], pa.uint64()))
            >>> found.starts.tolist(), found.ends.tolist(), len(found)
            ([3, 7, 9], [6, 8, 10], 5)
        """
        runs = [np.zeros((2, 0), np.uint64)]
        for part in filter(len, rows.chunks):
            some = np.sort(part.to_numpy())
            apart = np.flatnonzero(np.diff(some) != 1)
            runs.append(np.stack([some[np.append(0, apart + 1)], some[np.append(apart, -1)] + np.uint64(1)]))
        starts, ends = np.concatenate(runs, axis=1)
        order = np.argsort(starts)
        starts, ends = starts[order], ends[order]
        if not len(starts):
            return cls(starts, ends)
        apart = np.flatnonzero(starts[1:] != ends[:-1])
        return cls(starts[np.append(0, apart + 1)], ends[np.append(apart, -1)])

    def __len__(self) -> int:
        return int((self.ends - self.starts).sum())

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(map(range, self.starts.tolist(), self.ends.tolist()))

    @property
    def nbytes(self) -> int:
        """The size of the row ids in memory."""
        return self.starts.nbytes + self.ends.nbytes

    def has(self, rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which ``rows`` are in the set, as ``(n,)``."""
        if not len(self.starts):
            return np.zeros(len(rows), np.bool_)
        at = np.searchsorted(self.starts, rows, side="right") - 1
        return np.asarray((at >= 0) & (rows < self.ends[at]), np.bool_)


@dataclass(frozen=True, slots=True)
class Passage:
    """Lines of a document, 0-based, inclusive."""

    entity: str
    path: str
    first: int
    last: int


class locked_property(Generic[_Value]):
    """Like ``functools.cached_property``, but with one lock per instance, so tables open in parallel."""

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        known: dict[str, Any] = instance.__dict__
        with known.setdefault(f"lock of {self._name}", RLock()):
            if self._name not in known:
                known[self._name] = self._compute(instance)
        value: _Value = known[self._name]
        return value


@dataclass(frozen=True)
class TableSearcher:
    """Searches one version of a table (default: the newest) for lines that pass a filter, with a filter strategy.

    Its methods raise UsageError, StorageError, CorruptFile.
    """

    table: LineTable
    where: LineFilter | None = None
    strategy: Strategy = "auto"
    fallback_threshold: float = FALLBACK_THRESHOLD
    exact: bool = False
    version: int | None = None
    opened: Future[LanceDataset] | None = None
    """The version, if it is already being opened."""

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise UsageError("Unknown strategy", self.strategy, f"Use one of {', '.join(get_args(Strategy))}.")
        if not 0 <= self.fallback_threshold <= 1:
            raise UsageError("fallback_threshold must be between 0 and 1", str(self.fallback_threshold))

    @locked_property
    def dataset(self) -> LanceDataset:
        return self.opened.result() if self.opened else self.table.open(self.version, cached=True)

    def open(self, *, words: bool = False, lines: bool = False, blocks: bool = False) -> None:
        """Open the table now instead of on first use.

        For a table in a bucket, prefetch in parallel the data for searches by ``words``, nearest ``lines`` or near
        ``blocks``.
        """
        dataset = self.dataset
        if self.table.is_local:
            return
        reads: list[Callable[[], object]] = []
        if words:
            reads.append(lambda: read_ahead(self.table, dataset, (TEXT,)))
        if lines:
            reads.append(self._read_vectors_ahead)
        if blocks:
            reads.append(lambda: self._codes)
        for _ in in_parallel(lambda read: read(), reads, len(reads)):
            pass

    def _read_vectors_ahead(self) -> None:
        if self.index is not None:
            read_ahead(self.table, self.dataset, (VECTOR,))

    @locked_property
    def sql(self) -> str | None:
        return self.where.to_sql() if self.where else None

    # Commit markers are counted separately: an index finds them, but cannot find all other lines.

    @locked_property
    def lines(self) -> int:
        """The number of lines in the table."""
        return int(self.dataset.count_rows()) - len(self.sources)

    @locked_property
    def matches(self) -> int:
        """The number of lines that match the filter."""
        if self.sql is None:
            return self.lines
        return self._matching_rows - self._count(no_lines(self.sql))

    @locked_property
    def _matching_rows(self) -> int:
        """Like ``matches``, but including commit markers, which are few and slow to exclude."""
        return len(self._allowed) if self.sql is not None and self.strategy == "auto" else self._count(self.sql)

    @locked_property
    def sources(self) -> tuple[str, ...]:
        """The entities that wrote to the table, according to their commit markers."""
        version = self.exact_version
        sources = _SOURCES.get(version)
        if sources is None:
            # In a bucket, every search reads the paths in any case; the path index would be read only for this.
            rows = self.scan(["entity"], filter=no_lines(None), use_scalar_index=self.table.is_local)
            sources = tuple(rows["entity"].to_pylist())
            if len(_SOURCES) >= _MAX_VERSIONS:
                _SOURCES.clear()
            _SOURCES[version] = sources
        return sources

    @locked_property
    def exact_version(self) -> tuple[str | int, ...]:
        """An id for this version, also if a recreated or restored table reuses its URI and number.

        Such a version differs in its newest data file or in a deletion file: the names of both are random.
        """
        fragments = self.dataset.get_fragments()
        newest = max(fragments, key=lambda each: each.fragment_id, default=None)
        files = [newest and data_file(newest), *(each.deletion_file() or "" for each in fragments)]
        return (self.dataset.uri, self.dataset.version, content_hash(repr(files).encode()))

    @locked_property
    def filters_afterwards(self) -> bool:
        if self.sql is None or self.strategy in ("auto", "prefilter"):
            return False
        return self.strategy == "postfilter" or self.matches >= self.fallback_threshold * self.lines

    @locked_property
    def examined_blocks(self) -> list[int]:
        """How many blocks each search found before the post-filter."""
        return []

    @locked_property
    def index(self) -> str | None:
        """The type of vector index that searches use, or None for exact search."""
        few = max(EXACT_SEARCH_ROWS, EXACT_SEARCH_SHARE * self.dataset.count_rows())
        if self.exact or (self.strategy == "auto" and self._matching_rows <= few):
            return None
        return next((index.index_type for index in self.dataset.describe_indices() if index.name == VECTOR), None)

    @property
    def examined(self) -> int:
        """The number of lines that a search compares with its query, whether through the index or exactly."""
        return self.lines if self.filters_afterwards else self.matches

    def nearest(
        self,
        vector: NDArray[np.float32],
        limit: int,
        max_distance: float | None = None,
        columns: Sequence[str] = RESULT_COLUMNS,
    ) -> pa.Table:
        """Same as ``nearest_lines``."""
        if limit < 0:
            raise UsageError("top_k must not be negative", str(limit))
        dim = self.dataset.schema.field("vector").type.list_size
        if vector.shape != (dim,):
            raise UsageError(f"The query vector must have {dim} dimensions, not {vector.shape}", self.table.uri)
        length = np.linalg.norm(vector)
        if limit == 0 or not length > 0:
            distance = pa.field("distance", pa.float32())
            return pa.schema([*(self.dataset.schema.field(name) for name in columns), distance]).empty_table()
        drops = self._drops_afterwards
        fetch = int(2 * limit / self._share) if drops else limit
        while True:
            options = nearest_options(self.dataset, vector / length, fetch, by_index=self.index is not None)
            hits = self._nearest(columns, options, drops=drops)
            if len(hits) >= limit or fetch >= self.lines or not (self.filters_afterwards or drops):
                break
            # Few of the nearest rows pass, so Lance filters them: reading ever more could read the whole table.
            fetch, drops = limit if drops else min(4 * fetch, self.lines), False
        if max_distance is not None:
            hits = hits.filter(pc.less_equal(hits["distance"], max_distance))
        order = ("distance", "path", "line_number", *(name for name in ("column_number",) if name in columns))
        return hits.sort_by([(name, "ascending") for name in order]).slice(0, limit)

    def _nearest(self, columns: Sequence[str], nearest: dict[str, Any], *, drops: bool) -> pa.Table:
        """Return the nearest lines for Lance's ``nearest`` options, unordered, with their ``distance``.

        The index is searched with the row ids that pass the filter, because Lance would evaluate the filter each time.
        With ``drops``, it is searched for all rows, and the results that do not pass are dropped.
        """
        names = [*columns, "_distance"]
        if drops:
            found = self.read([*names, "_rowid"], where=None, nearest=nearest, limit=nearest["k"], with_row_id=True)
            found = found.filter(pa.array(self._allowed.has(found["_rowid"].to_numpy()))).drop_columns(["_rowid"])
        elif self._has_row_filter and not self._drops_afterwards:
            found = self.read(names, where=None, nearest=nearest, limit=nearest["k"], row_addr_allowlist=self._mask)
        else:
            options = {"prefilter": not self.filters_afterwards, "limit": nearest["k"]}
            found = self.read(names, where=self.sql, nearest=nearest, **options)
        return with_cosine_distance(found)

    @locked_property
    def _has_row_filter(self) -> bool:
        """Whether the vector index is searched for the row ids that pass the filter."""
        return self.sql is not None and self.strategy == "auto" and self.index is not None

    @locked_property
    def _drops_afterwards(self) -> bool:
        """Whether these are too many for a mask, so that others are first dropped from the results."""
        return self._has_row_filter and len(self._allowed) > MAX_MASKED_ROWS

    def read(self, columns: Sequence[str], *, where: str | None, **search: Any) -> pa.Table:
        """Return a search's rows. If there is only one source, its entity is known, which avoids reading the slowest
        column.

        In a bucket, finding the sources would take longer than reading the column, which is at the end of each file.
        """
        known = "entity" in columns and self.table.is_local and len(self.sources) == 1
        read = [name for name in columns if not (known and name == "entity") and name != "_rowid"]
        rows = self.scan(read, filter=where, **search)
        if known:
            rows = rows.append_column("entity", pa.repeat(self.sources[0], len(rows)))
        return rows.select(columns)

    def _count(self, where: str | None) -> int:
        def count(indexed: bool) -> int:
            if indexed or where is None:
                return int(self.dataset.count_rows(where))
            return int(
                self.dataset.scanner(columns=[], filter=where, use_scalar_index=False, with_row_id=True).count_rows()
            )

        return with_indexes(self.dataset, self.table.TITLE, count)

    def scan(self, columns: Sequence[str], **search: Any) -> pa.Table:
        """Run a Lance search, retrying without indexes if one is unusable."""

        def scan(indexed: bool) -> pa.Table:
            if indexed:
                return self.dataset.scanner(columns=list(columns), **search).to_table()
            if "full_text_query" in search:
                where = self.sql if "row_addr_allowlist" in search else search.get("filter")
                return self._scan_copy_for_words(search["full_text_query"], search["limit"], where)
            nearest = {"nearest": {**search["nearest"], "use_index": False}} if "nearest" in search else {}
            options = {**search, **nearest, "use_scalar_index": False}
            return self.dataset.scanner(columns=list(columns), **options).to_table()

        return with_indexes(self.dataset, self.table.TITLE, scan)

    def _scan_copy_for_words(self, words: Any, limit: int, filtered: str | None) -> pa.Table:
        """Run the full-text search on an in-memory copy, because Lance always uses a table's index."""
        import lance

        where = f"{TEXT_COLUMN} IS NOT NULL" + (f" AND ({filtered})" if filtered else "")
        rows = self.dataset.scanner(columns=[TEXT_COLUMN], filter=where, use_scalar_index=False, with_row_id=True)
        copied = rows.to_table().rename_columns([TEXT_COLUMN, "row"])
        copy = lance.write_dataset(copied, f"memory://{uuid.uuid4().hex}")
        found = copy.scanner(columns=["row", "_score"], full_text_query=words, limit=limit).to_table()
        return found.rename_columns(["_rowid", "_score"])

    def blocks(self, words: str, limit: int) -> pa.Table:
        """Return the ``limit`` blocks that best match ``words`` by BM25, best first, with a ``bm25`` column (float32).

        ``line_number`` is the block's first line that has a row.
        """
        found = self.matching(words, limit)
        return (
            self.blocks_at(found.rows.tolist()).append_column("bm25", pa.array(found.scores)).drop_columns(["_rowid"])
        )

    def matching(self, words: str, limit: int, edits: int = 0) -> Scored:
        """Return the ``limit`` blocks that best match ``words``, best first, with their BM25 scores.

        With ``edits``, ``words`` are stems, and match stems with the same first letter and at most so many edits.
        """
        from lance.query import MatchQuery

        if limit == 0 or not words.strip():
            return NOTHING
        search = MatchQuery(words, TEXT_COLUMN, fuzziness=edits, prefix_length=min(edits, 1))
        if self.filters_afterwards:
            return self._matching_afterwards(search, limit, limit)
        if self.sql is None or self.strategy != "auto":
            return self._matching(search, limit, filter=self.sql, prefilter=True)
        if len(self._allowed) > MAX_MASKED_ROWS:
            return self._matching_afterwards(search, limit, int(2 * limit / self._share))
        return self._matching(search, limit, row_addr_allowlist=self._mask) if len(self._allowed) else NOTHING

    def _matching(self, search: Any, limit: int, **options: Any) -> Scored:
        found = self.scan(["_score"], full_text_query=search, limit=limit, with_row_id=True, **options)
        return Scored(found["_rowid"].to_numpy(), found["_score"].to_numpy())

    def passing(self, rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which ``rows`` exist and pass the filter, as ``(n,)``."""
        if self.sql is not None:
            return self._allowed.has(rows)
        if not len(rows):
            return np.zeros(0, np.bool_)
        return np.isin(rows, self.scan([], filter=is_among(rows), with_row_id=True)["_rowid"].to_numpy())

    @locked_property
    def _filtered(self) -> _Filtered:
        return (*self.exact_version, self.sql)

    @locked_property
    def _allowed(self) -> RowIds:
        """The row ids that pass the filter."""
        return _ALLOWED.get_or_compute(self._filtered, self._read_allowed)

    def _read_allowed(self) -> RowIds:
        return RowIds.of(self.scan([], filter=self.sql, with_row_id=True)["_rowid"])

    @locked_property
    def _mask(self) -> bytes:
        """The rows that pass the filter, for Lance."""
        from lance.dataset import serialize_row_addrs

        return _MASKS.get_or_compute(self._filtered, lambda: serialize_row_addrs(self._allowed))

    @locked_property
    def _share(self) -> float:
        """The share of the table's rows that pass the filter."""
        return len(self._allowed) / max(1, self.dataset.count_rows())

    def blocks_at(self, rows: Sequence[int]) -> pa.Table:
        """Return BLOCK_COLUMNS and ``_rowid`` of the blocks that start at ``rows``, in this order."""
        columns = [*BLOCK_COLUMNS, "_rowid"]
        if not rows:
            return pa.schema([schema(1).field(name) for name in BLOCK_COLUMNS]).append(_ROW).empty_table()
        found = self._kept_blocks
        if found is None:
            found = self.read(columns, where=is_among(rows), with_row_id=True).sort_by("_rowid")
            _BLOCKS_READ.put(self._filtered, (_BLOCKS_READ.get(self._filtered) or 0) + len(rows))
        at = np.searchsorted(found["_rowid"].to_numpy(), np.array(rows, np.uint64))
        # From a list: for an array, Arrow would import numpy.ma, which is slow.
        return found.take(pa.array(at.tolist(), pa.int64()))

    @locked_property
    def _kept_blocks(self) -> pa.Table | None:
        """All blocks that pass the filter, keyed by row, if they are few and reading them pays off; otherwise None."""
        known, read = _BLOCKS.get(self._filtered), _BLOCKS_READ.get(self._filtered)
        if known is not None or not read:
            return known
        lines = self.lines if self.sql is None else len(self._allowed)
        faster = FASTER_TOGETHER if self.table.is_local else FASTER_TOGETHER_FROM_BUCKETS
        if lines > MAX_KEPT_LINES or lines > max(FEW_LINES, faster * LINES_PER_BLOCK * read):
            return None
        where = f"{TEXT_COLUMN} IS NOT NULL" + (f" AND ({self.sql})" if self.sql else "")
        rows = self.read([*BLOCK_COLUMNS, "_rowid"], where=where, with_row_id=True)
        known = rows.sort_by("_rowid").combine_chunks()
        _BLOCKS.put(self._filtered, known)
        if self.sql is None:  # Lance, too, would otherwise read each word's postings by themselves
            read_ahead(self.table, self.dataset, (TEXT,))
        return known

    def near(self, vector: NDArray[np.float32], limit: int) -> Scored:
        """Return the ``limit`` blocks nearest to ``vector`` that pass the filter, and their cosines."""
        if limit == 0 or not vector.any() or not len(codes := self._codes):
            return NOTHING
        if not self.compares_all:
            return Scored(*allowed.nearest(vector, limit)) if len(allowed := self._allowed_codes) else NOTHING
        fetch = limit if self.sql is None else int(2 * limit / self._share)
        while True:
            rows, cosines = codes.nearest(vector, fetch)
            checked = self.sql is not None or codes.may_hold_deleted
            held = self.passing(rows) if checked else np.ones(len(rows), np.bool_)
            if np.count_nonzero(held) >= limit or fetch >= len(codes):
                return Scored(rows[held][:limit], cosines[held][:limit])
            fetch *= 4

    @locked_property
    def compares_all(self) -> bool:
        """Whether a query is compared with all blocks, and the filter applied afterwards."""
        return self.sql is None or self._share * self._codes.nbytes > MAX_COPIED_BYTES

    @locked_property
    def _allowed_codes(self) -> BlockCodes:
        def read() -> BlockCodes:
            return self._codes.among(self._allowed.has(self._codes.rows))

        return _ALLOWED_CODES.get_or_compute(self._filtered, read)

    @locked_property
    def _codes(self) -> BlockCodes:
        def read(fragments: Sequence[LanceFragment] | None) -> pa.Table:
            where = f"{CODE_COLUMN} IS NOT NULL"
            some: dict[str, Any] = {"fragments": fragments, "with_row_id": True, "with_row_address": True}
            return self.scan([CODE_COLUMN], filter=where, use_scalar_index=False, **some)

        def announce(fragments: Sequence[LanceFragment]) -> None:
            if not self.table.is_local:
                self.table.read_ahead(searched_parts(fragments))

        return codes_of(self.dataset, read, announce)

    def passages(self, requested: Sequence[Passage]) -> pa.Table:
        """Return the lines of ``requested`` passages that pass the filter: ``PASSAGE_COLUMNS``, unordered.

        A table may also hold lines of sources that are searched elsewhere, such as in a branch.
        """
        # One condition on all paths and one on all lines are ten times as fast as one condition per passage.
        lines = " OR ".join(sorted({f"line_number BETWEEN {each.first} AND {each.last}" for each in requested}))
        paths = is_one_of("path", sorted({each.path for each in requested}))
        where = f"{paths} AND ({lines})" + (f" AND ({self.sql})" if self.sql else "")
        rows = self.read(PASSAGE_COLUMNS, where=where)
        of_document: dict[tuple[str, str], list[Passage]] = {}
        for each in requested:
            of_document.setdefault((each.entity, each.path), []).append(each)
        found = zip(*(rows[name].to_pylist() for name in PASSAGE_COLUMNS[:3]), strict=True)
        held = [
            any(each.first <= number <= each.last for each in of_document.get((entity, path), ()))
            for entity, path, number in found
        ]
        return rows.filter(pa.array(held, pa.bool_()))

    def lines_at(self, requested: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str, int], tuple[str, str]]:
        """Return ``(text, hash)`` for the lines ``(entity, path, number)`` that exist and pass the filter.

        If a line has several rows, its text is the text of the first row.
        """
        if not requested:
            return {}
        paths = is_one_of("path", sorted({path for _, path, _ in requested}))
        numbers = ", ".join(sorted({str(number) for _, _, number in requested}))
        columns = ["entity", "path", "line_number", "text", "hash"]
        where = f"{paths} AND line_number IN ({numbers})" + (f" AND ({self.sql})" if self.sql else "")
        rows = self.read([*columns, "column_number"], where=where)
        rows = rows.filter(pc.equal(rows["column_number"], 0))
        found = zip(*(rows[name].to_pylist() for name in columns), strict=True)
        keys = set(requested)
        return {
            (entity, path, number): (text, content)
            for entity, path, number, text, content in found
            if (entity, path, number) in keys
        }

    def _matching_afterwards(self, search: Any, limit: int, fetch: int) -> Scored:
        """Like ``_matching``, but search all blocks, then filter the best ``fetch`` or more until enough remain."""
        while True:
            found = self._matching(search, fetch)
            if self.filters_afterwards:
                self.examined_blocks.append(len(found))
            held = self._allowed.has(found.rows)
            if np.count_nonzero(held) >= limit or len(found) < fetch:
                return Scored(found.rows[held][:limit], found.scores[held][:limit])
            fetch *= 4


def nearest_blocks(tables: Sequence[TableSearcher], vector: NDArray[np.float32], limit: int) -> list[Scored]:
    """Run ``TableSearcher.near`` on each table. The blocks of many small tables, such as branches, are compared
    together, which takes a fraction of the time; then only the overall nearest ``limit`` blocks are returned.
    """
    if len(tables) == 1 or limit == 0 or not vector.any() or any(table.compares_all for table in tables):
        return [table.near(vector, limit) for table in tables]
    parts = [table._allowed_codes for table in tables]
    if not any(map(len, parts)):
        return [NOTHING] * len(tables)
    if sum(each.nbytes for each in parts) > MAX_JOINED_BYTES:  # a copy would evict the parts from the cache
        return [table.near(vector, limit) for table in tables]
    key = tuple(value for table in tables for value in table._filtered)
    joined = _ALLOWED_CODES.get_or_compute(key, lambda: join(parts))
    return [Scored(*found) for found in joined.nearest_in(parts, vector, limit)]


def is_among(rows: Iterable[int]) -> str:
    """Return a filter for the rows with these ids."""
    return f"_rowid IN ({', '.join(map(str, rows))})"


def nearest_lines(
    table: LineTable,
    query: NDArray[np.float32],
    limit: int,
    where: LineFilter | None = None,
    max_distance: float | None = None,
    *,
    exact: bool = False,
    columns: Sequence[str] = RESULT_COLUMNS,
) -> pa.Table:
    """Return the ``limit`` lines nearest to ``query``, best first, with a ``distance`` column (float32).

    ``query`` is ``(dim,) float32``. ``distance`` is 1 - cosine; a zero vector has no neighbours. Ties are ordered by
    path, line and column. The search is exact if the filter leaves few lines, if there is no index, or if ``exact`` is
    set; otherwise it probes all partitions of the index. Raises UsageError, StorageError, CorruptFile.
    """
    return TableSearcher(table, where, exact=exact).nearest(query, limit, max_distance, columns)
