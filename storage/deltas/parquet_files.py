"""Write a delta index's Parquet files in full row groups, and read only the key ranges that a query needs."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from driftline.storage.environment import upgrade_command
from driftline.storage.errors import CorruptFile, StorageError, WorkspaceTooNew
from driftline.storage.json_records import from_json, to_json
from driftline.storage.objects.store import ObjectStore

KeyBounds = tuple[str, str | None]
"""``low <= key < high``; None sets no upper bound."""

_LAST_BEFORE_SURROGATES, _FIRST_AFTER_SURROGATES = "\ud7ff", "\ue000"


@dataclass(frozen=True, slots=True)
class Keys:
    """Sorted, disjoint key ranges. Strings compare by code point, just as Arrow and Parquet compare UTF-8."""

    ranges: tuple[KeyBounds, ...]

    @classmethod
    def all(cls) -> Self:
        """Return every key."""
        return cls((("", None),))

    @classmethod
    def between(cls, low: str, high: str | None) -> Self:
        """Return the keys from ``low`` up to ``high``, exclusive."""
        return cls(_disjoint([(low, high)]))

    @classmethod
    def starting_with(cls, prefixes: Iterable[str]) -> Self:
        """Return the keys that start with one of ``prefixes``."""
        return cls(_disjoint((prefix, after_prefix(prefix)) for prefix in prefixes))

    @classmethod
    def exactly(cls, keys: Iterable[str]) -> Self:
        """Return these keys."""
        return cls(_disjoint((key, key + "\0") for key in keys))

    @property
    def is_all(self) -> bool:
        return self.ranges == (("", None),)

    def may_lie_between(self, first: str, last: str) -> bool:
        """Return whether a range may include a key from ``first`` to ``last``; a false positive only costs a read."""
        position = bisect_right(self.ranges, last, key=lambda r: r[0])
        if position == 0:
            return False
        high = self.ranges[position - 1][1]  # earlier ranges end before this one starts
        return high is None or high > first

    def select(self, rows: pa.Table, key: str) -> pa.Table:
        """Return the ``rows`` within the ranges, as a slice if possible; ``rows`` are sorted by ``key``."""
        if self.is_all or not len(rows):
            return rows
        sorted_keys = rows[key]
        starts = _positions(sorted_keys, [low for low, _ in self.ranges])
        ends = _positions(sorted_keys, [high for _, high in self.ranges if high is not None])
        if len(ends) < len(starts):
            ends = np.append(ends, len(rows))
        occupied = np.flatnonzero(starts < ends)
        if not len(occupied):
            return rows[:0]
        if len(occupied) == 1:
            start, end = int(starts[occupied[0]]), int(ends[occupied[0]])
            return rows.slice(start, end - start)
        steps = np.zeros(len(rows) + 1, np.int32)
        np.add.at(steps, starts[occupied], 1)
        np.add.at(steps, ends[occupied], -1)
        return rows.filter(pa.array(np.cumsum(steps[:-1]) > 0))


def after_prefix(prefix: str) -> str | None:
    """Return the lowest string greater than every string that starts with ``prefix``, or None if there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    last = stem[-1]
    following = _FIRST_AFTER_SURROGATES if last == _LAST_BEFORE_SURROGATES else chr(ord(last) + 1)
    return stem[:-1] + following


def _disjoint(ranges: Iterable[KeyBounds]) -> tuple[KeyBounds, ...]:
    merged: list[KeyBounds] = []
    for low, high in sorted(ranges, key=lambda r: r[0]):
        if high is not None and high <= low:
            continue
        if merged and (merged[-1][1] is None or merged[-1][1] >= low):
            before = merged[-1][1]
            merged[-1] = (merged[-1][0], None if before is None or high is None else max(before, high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _positions(sorted_keys: pa.ChunkedArray, needles: Sequence[str]) -> NDArray[np.int64]:
    positions = pc.search_sorted(sorted_keys, pa.array(needles, pa.string()))
    return np.asarray(positions.to_numpy(zero_copy_only=False), dtype=np.int64)


FORMAT_VERSION = 1
"""The version of the file format. Files with a newer version are rejected."""
ROW_GROUP_ROWS = 122_880
GROUPS_PER_READ = 4
"""Row groups decoded in parallel: enough to use all cores, few enough to bound memory."""
MIN_ROWS_FOR_THREADS = 10_000
"""Files with fewer rows are decoded sequentially: handing columns to threads would take longer."""
Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]

_FOOTER = b"driftline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """A file's metadata. Only bases set ``folded`` and ``max_rev``, the highest ``rev`` ever folded."""

    format_version: int = FORMAT_VERSION
    kind: str
    folded: tuple[str, ...] = ()
    max_rev: int = 0
    nonce: str = ""
    """Distinguishes bases with the same rows, so only one of two concurrent compactions publishes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An index's columns: ``schema`` contains the values, key first; files add ``op``, ``rev`` and ``written``."""

    kind: str
    schema: pa.Schema
    key: str = field(init=False)
    file_schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        heads = [("op", pa.string()), ("rev", pa.int64()), ("written", pa.timestamp("ms", tz="UTC"))]
        object.__setattr__(self, "key", self.schema.names[0])
        object.__setattr__(self, "file_schema", pa.schema([*heads, *self.schema]))


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of new files. Readers accept every encoding."""

    compression: Compression = "zstd"
    row_group_rows: int = ROW_GROUP_ROWS


DEFAULT_ENCODING = Encoding()


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert ``rows`` to exactly ``schema``. Skips no-op casts, which take as long as writing a small table."""
    return rows if rows.schema.equals(schema) else rows.select(schema.names).cast(schema)


class FileWriter:
    """Write rows of ``file_schema``, sorted by key, into a buffer, as full row groups."""

    def __init__(self, layout: Layout, encoding: Encoding) -> None:
        self._group = encoding.row_group_rows
        self.rows = 0
        self._sink = pa.BufferOutputStream()
        self._schema = layout.file_schema
        self._writer = pq.ParquetWriter(
            self._sink, self._schema, compression=encoding.compression, write_page_checksum=True
        )
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def write(self, rows: pa.Table) -> None:
        """Append ``rows``; their keys sort after all keys written before."""
        self.rows += len(rows)
        self._pending.append(rows)
        self._pending_rows += len(rows)
        if self._pending_rows >= self._group:
            self._flush(self._pending_rows - self._pending_rows % self._group)

    def finish(self, footer: Footer) -> bytes:
        """Write the footer and return the file's bytes."""
        self._flush(self._pending_rows)
        self._writer.add_key_value_metadata({_FOOTER: to_json(footer, compact=True)})
        self._writer.close()
        data: bytes = self._sink.getvalue().to_pybytes()
        return data

    def _flush(self, count: int) -> None:
        if not count:
            return
        table = conformed(pa.concat_tables(self._pending), self._schema)
        self._writer.write_table(table[:count], row_group_size=self._group)
        self._pending, self._pending_rows = [table[count:]], len(table) - count


class FileReader:
    """An open index file; a context manager. ``immutable`` bucket files may come from the cache.

    Opening and reading raise CorruptFile, WorkspaceTooNew, StorageError, and ObjectNotFound if the file disappears.
    """

    def __init__(self, objects: ObjectStore, path: str, layout: Layout, *, immutable: bool = False) -> None:
        self._where = f"{objects.uri}/{path}"
        self._layout = layout
        self._source = objects.open_input(path, immutable=immutable)
        try:
            with self._reading():
                self._file = pq.ParquetFile(self._source, page_checksum_verification=True)
                self.footer = self._parse_footer((self._file.metadata.metadata or {}).get(_FOOTER))
                names = self._file.schema_arrow.names
                if names != layout.file_schema.names:
                    raise self._damaged(f"its columns are {', '.join(names)}"[:200])
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.close()

    def pieces(self, keys: Keys, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows for ``keys``, sorted by key, then by descending ``rev``; a few row groups at a time.

        ``columns`` lists names from ``file_schema`` and includes the key.
        """
        names = list(columns)
        schema = pa.schema([self._layout.file_schema.field(name) for name in names])
        with self._reading():
            groups = [i for i in range(self._file.num_row_groups) if self._may_hold(i, keys)]
        for start in range(0, len(groups), GROUPS_PER_READ):
            with self._reading():
                table = self._file.read_row_groups(
                    groups[start : start + GROUPS_PER_READ], columns=names, use_threads=self._is_worth_threads
                )
                table = table.select(names).cast(schema)
            yield keys.select(table, self._layout.key)

    def read(self, keys: Keys, columns: Sequence[str]) -> pa.Table:
        """Return the rows for ``keys`` as one table, ordered like ``pieces``."""
        schema = pa.schema([self._layout.file_schema.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *self.pieces(keys, columns)])

    @property
    def _is_worth_threads(self) -> bool:
        return bool(self._file.metadata.num_rows >= MIN_ROWS_FOR_THREADS)

    def _may_hold(self, group: int, keys: Keys) -> bool:
        if keys.is_all:
            return True
        column = self._layout.file_schema.get_field_index(self._layout.key)
        statistics = self._file.metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max:  # for example, if a key is too long for statistics
            return True
        return keys.may_lie_between(statistics.min, statistics.max)

    def _parse_footer(self, raw: bytes | None) -> Footer:
        if raw is None:
            raise self._damaged("it was not written by Driftline")
        try:
            footer = from_json(Footer, raw)
        except ValueError:
            raise self._damaged(f"its footer is {raw.decode(errors='replace')[:200]}") from None
        if footer.format_version > FORMAT_VERSION:
            raise WorkspaceTooNew(
                "A newer version of Driftline wrote an index file", self._where, f"Upgrade: {upgrade_command()}"
            )
        if footer.kind != self._layout.kind:
            raise self._damaged(f"it is an index of {footer.kind}, not of {self._layout.kind}")
        return footer

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Translate pyarrow's exceptions into CorruptFile and StorageError."""
        try:
            yield
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise StorageError(f"Could not read an index file ({error.strerror})", self._where) from error
            raise self._damaged(str(error).partition("\n")[0][:200]) from error

    def _damaged(self, why: str) -> CorruptFile:
        return CorruptFile(f"An index file is damaged ({why})", self._where, "Run 'driftline verify --repair'.")
