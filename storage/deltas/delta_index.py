"""Read, append to and compact a delta index: a base Parquet file plus later deltas (DESIGN, "Delta index").

Document manifests and memory indexes share this protocol. Each row has an ``op`` (``add`` or ``remove``) and a ``rev``;
for each key, the highest ``rev`` wins. Reads and folds are therefore idempotent, and do not depend on file order.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from driftline.storage.environment import upgrade_command
from driftline.storage.errors import (
    AlreadyExists,
    CorruptFile,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    UsageError,
    WorkspaceTooNew,
)
from driftline.storage.json_records import from_json, to_json
from driftline.storage.layout import BASE, delta_name, is_delta, new_ulid
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel

# -- Parquet files, in full row groups: a query reads only the key ranges that it needs -------------

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

    def __exit__(self, *_: object) -> None:
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


# -- the protocol ----------------------------------------------------------------------------------


def newest(key: str, changes: pa.Table) -> pa.Table:
    """Return, for each key, the row with the highest ``rev``, sorted by key; a pure function."""
    if len(changes) == 0:
        return changes
    changes = changes.sort_by([(key, "ascending"), ("rev", "descending")])
    keys = changes[key].combine_chunks()
    first = pa.concat_arrays([pa.array([True]), pc.not_equal(keys[1:], keys[:-1])])
    return changes.filter(first)


def fold(key: str, base: pa.Table, changes: pa.Table) -> pa.Table:
    """Merge ``changes`` into ``base``, keeping each key's row with the highest ``rev``; a pure function.

    Both tables and the result are sorted by key and have unique keys (DESIGN, "Delta index").
    """
    if len(changes) == 0:
        return base
    if len(base) == 0:
        return changes
    position = np.asarray(pc.search_sorted(base[key], changes[key]).to_numpy(zero_copy_only=False), dtype=np.int64)
    row = np.minimum(position, len(base) - 1)
    previous = base.select([key, "rev"]).take(pa.array(row))
    known = np.asarray(pc.equal(previous[key], changes[key]).to_numpy(), dtype=bool)
    newer = np.asarray(pc.greater(changes["rev"], previous["rev"]).to_numpy(), dtype=bool)
    order = np.arange(len(base))
    number = np.arange(len(base), len(base) + len(changes))
    order[row[known & newer]] = number[known & newer]
    order = np.insert(order, position[~known], number[~known])
    return pa.concat_tables([base, changes]).take(pa.array(order))


REMOVE_RETENTION = timedelta(days=7)
"""How long a base keeps ``remove`` rows so that a late delta cannot resurrect a key."""
ROUND_BYTES = 96 * 1024 * 1024
"""Compressed size of the deltas folded in one pass, about 1.5 million documents; bounds memory."""
READ_ATTEMPTS = 5
"""How often a listed file may be missing. A compaction deletes each file once, so another missing file is progress."""
MAX_READ_THREADS = 4
"""Number of bucket deltas opened in parallel, because each takes a round trip."""

UNCOMPRESSED_BYTES = 4 * 1024
"""Deltas of at most this size are not compressed: that would save a third at most, and take as long as the rest."""

ADD, REMOVE = "add", "remove"

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Log:
    """The files of a delta index: its sorted delta names, and whether it has a base.

    ``delta_bytes`` contains the sizes of ``deltas`` in the same order; ``base_bytes`` is the size of the base.
    """

    deltas: tuple[str, ...]
    has_base: bool
    delta_bytes: tuple[int, ...] = ()
    base_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of a compaction: how many deltas were folded, and how many rows the new base has, removals included.

    ``live`` excludes removals.
    """

    deltas: int
    rows: int
    live: int = 0


@lru_cache
def _layout(kind: str, fields: tuple[pa.Field, ...]) -> Layout:
    return Layout(kind, pa.schema(fields))


class DeltaIndex:
    """The delta index in one directory of a workspace.

    ``fields`` are the value columns. The first is the key, a string that is unique among live rows. Files start with
    the additional columns ``op``, ``rev`` (int64) and ``written`` (timestamp).

    Reads return live rows, sorted by key, with ``columns`` (by default, all of ``schema``). ``as_of`` returns the rows
    as of that ``rev``, which must not precede the last compaction. Reads raise CorruptFile, WorkspaceTooNew, UsageError
    for an ``as_of`` before the last compaction, and StorageError, including when a listed file is missing on
    ``READ_ATTEMPTS`` attempts.
    """

    def __init__(
        self,
        objects: ObjectStore,
        directory: str,
        kind: str,
        fields: Sequence[pa.Field],
        encoding: Encoding = DEFAULT_ENCODING,
    ) -> None:
        self.objects = objects
        self.encoding = encoding
        self.directory = directory
        self.layout = _layout(kind, tuple(fields))
        self.key = self.layout.key
        self.schema = self.layout.schema
        self.file_schema = self.layout.file_schema

    # -- writing -----------------------------------------------------------------------------

    def encode(self, rows: pa.Table) -> bytes:
        """Encode ``rows`` as a delta, sorted by key, then by descending ``rev``."""
        is_small = rows.nbytes <= UNCOMPRESSED_BYTES
        writer = FileWriter(self.layout, replace(self.encoding, compression="none") if is_small else self.encoding)
        writer.write(conformed(rows, self.file_schema).sort_by([(self.key, "ascending"), ("rev", "descending")]))
        return writer.finish(Footer(kind=self.layout.kind))

    def changes(self, op: str, rev: int, values: pa.Table, *, now: datetime) -> pa.Table:
        """Return rows of ``file_schema`` that add or remove ``values``; a removal needs only the key."""
        n = len(values)
        by_name = {name: values[name] for name in values.column_names}
        columns = [by_name.get(f.name, pa.nulls(n, f.type)) for f in self.schema]
        stamp = pa.scalar(now, self.file_schema.field("written").type)
        heads = [pa.repeat(pa.scalar(op), n), pa.repeat(pa.scalar(rev, pa.int64()), n), pa.repeat(stamp, n)]
        return conformed(pa.table([*heads, *columns], names=self.file_schema.names), self.file_schema)

    def append(self, ulid: str, rows: pa.Table) -> str:
        """Publish ``rows`` as one immutable delta, and return its name. Idempotent for the same ``ulid``."""
        return self.publish(ulid, self.encode(rows))

    def publish(self, ulid: str, data: bytes, same_as: str | None = None) -> str:
        """Create delta ``ulid`` from bytes returned by ``encode``, and return its name.

        ``same_as`` is the path of an immutable object with these bytes, if there is one.
        """
        name = delta_name(ulid)
        # The ulid is derived from run and batch: an existing delta is our own, from an earlier attempt.
        with contextlib.suppress(AlreadyExists):
            self.objects.create(self._path(name), data, same_as)
        return name

    # -- reading -----------------------------------------------------------------------------

    def log(self) -> Log:
        """List the deltas and the base."""
        sizes = {
            info.path.rsplit("/", 1)[-1]: info.size_bytes for info in self.objects.list(self.directory, recursive=False)
        }
        deltas = tuple(sorted(name for name in sizes if is_delta(name)))
        return Log(deltas, BASE in sizes, tuple(sizes[name] for name in deltas), sizes.get(BASE, 0))

    def read(
        self, prefixes: Iterable[str] | None = None, *, columns: Sequence[str] | None = None, as_of: int | None = None
    ) -> pa.Table:
        """Return all rows, or only rows whose key starts with one of ``prefixes``."""
        keys = Keys.all() if prefixes is None else Keys.starting_with(prefixes)
        return self._read(keys, columns, as_of)

    def get(self, keys: Iterable[str], *, columns: Sequence[str] | None = None, as_of: int | None = None) -> pa.Table:
        """Return the rows for ``keys``; missing keys are omitted. ``columns`` may include ``rev``."""
        return self._read(Keys.exactly(keys), columns, as_of)

    def max_rev(self) -> int:
        """Return the highest ``rev`` of all rows, removals included; 0 for an empty index."""
        return self._until_stable(self._max_rev)

    def recent_rev(self) -> int:
        """Return the highest ``rev`` of the base and of the newest delta, with at most three requests."""
        return self._until_stable(lambda: self._max_rev(newest=1))

    def _max_rev(self, newest: int = 0) -> int:
        log = self.log()
        with self._open_base() as base:
            folded = base.footer.folded if base is not None else ()
            highest = base.footer.max_rev if base is not None else 0
            deltas = [name for name in log.deltas if name not in folded]
            if not deltas:
                return highest
            revs = self._changes(deltas[-newest:], Keys.all(), [self.key, "rev"])
        return max(highest, pc.max(revs["rev"]).as_py() or 0)

    def reduce(
        self,
        work: Callable[[Iterator[pa.Table]], _Result],
        low: str = "",
        high: str | None = None,
        *,
        columns: Sequence[str],
        as_of: int | None = None,
    ) -> _Result:
        """Return the result of ``work`` on the rows with ``low <= key < high``, passed in pieces of bounded size.

        Keys are compared by code point; ``high=None`` sets no upper bound. ``work`` may stop early, and is called again
        if files disappear while it runs.
        """
        return self._until_stable(lambda: work(self._live(Keys.between(low, high), columns, as_of)))

    def check(self) -> None:
        """Read every file's footer, which detects truncated and unrecognized files. Raises the same errors as reads."""
        self._until_stable(self._check)

    def _check(self) -> None:
        log = self.log()
        names = [*log.deltas, *([BASE] if log.has_base else [])]
        for _ in in_parallel(self._check_file, names, self._read_threads):
            pass

    def changes_since(self, rev: int, *, columns: Sequence[str]) -> pa.Table:
        """Return ``op`` and ``columns`` of each key's newest row if its ``rev`` is higher than ``rev``, sorted by key.

        Removals are no longer included once a compaction dropped them.
        """
        names = list(dict.fromkeys([self.key, "op", "rev", *columns]))

        def work() -> pa.Table:
            log = self.log()
            with self._open_base() as base:
                old = base is None or base.footer.max_rev <= rev
                pieces = self._folded(None if old else base, log.deltas, Keys.all(), names)
                return pa.concat_tables([piece.filter(pc.greater(piece["rev"], rev)) for piece in pieces])

        return self._until_stable(work).select(list(dict.fromkeys(["op", *columns])))

    def snapshot(self, also: Sequence[str] = ()) -> tuple[bytes, int]:
        """Return a base with all winning rows, as bytes, and their highest ``rev``; ``also`` lists additional deltas.

        Raises ObjectNotFound if files disappear during the read.
        """
        log, writer = self.log(), FileWriter(self.layout, self.encoding)
        with self._open_base() as base:
            max_rev = base.footer.max_rev if base is not None else 0
            for piece in self._folded(base, [*log.deltas, *also], Keys.all(), self.file_schema.names):
                max_rev = max(max_rev, pc.max(piece["rev"]).as_py() or 0)
                writer.write(piece)
        return writer.finish(Footer(kind=self.layout.kind, max_rev=max_rev, nonce=new_ulid())), max_rev

    def _check_file(self, name: str) -> None:
        with self._open(name):
            pass

    def _read(self, keys: Keys, columns: Sequence[str] | None, as_of: int | None) -> pa.Table:
        names = list(self.schema.names if columns is None else columns)
        empty = pa.schema([self.file_schema.field(name) for name in names]).empty_table()
        return self._until_stable(
            lambda: pa.concat_tables([empty, *(piece.select(names) for piece in self._live(keys, names, as_of))])
        )

    def _live(self, keys: Keys, columns: Sequence[str], as_of: int | None) -> Iterator[pa.Table]:
        # List before opening the base, to miss no delta folded in between. An empty listing proves nothing: the
        # files may have been folded into a first base during the listing.
        log = self.log()
        names = list(dict.fromkeys([self.key, "op", "rev", *columns]))
        with self._open_base() as base:
            if as_of is not None and base is not None and base.footer.max_rev > as_of:
                raise UsageError(
                    f"Revision {as_of} precedes the last compaction, which folded up to {base.footer.max_rev}",
                    self._path(BASE),
                    "Use a later revision.",
                )
            if base is None and not log.deltas:
                return
            for piece in self._folded(base, log.deltas, keys, names, as_of):
                yield piece.filter(pc.equal(piece["op"], ADD))

    def _folded(
        self,
        base: FileReader | None,
        deltas: Sequence[str],
        keys: Keys,
        columns: Sequence[str],
        as_of: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the winning rows of base and deltas, including removals, sorted by key, in pieces of bounded size."""
        folded = base.footer.folded if base is not None else ()
        changes = self._changes([name for name in deltas if name not in folded], keys, columns)
        if as_of is not None:
            changes = changes.filter(pc.less_equal(changes["rev"], as_of))
        changes = newest(self.key, changes)
        for piece in base.pieces(keys, columns) if base is not None else ():
            if not len(piece):
                continue
            end = pc.search_sorted(changes[self.key], piece[self.key][-1], side="right").as_py()
            yield fold(self.key, piece, changes[:end])
            changes = changes[end:]
        yield changes

    def _changes(self, names: Sequence[str], keys: Keys, columns: Sequence[str]) -> pa.Table:
        def read(name: str) -> pa.Table:
            with self._open(name) as file:
                return file.read(keys, columns)

        empty = pa.schema([self.file_schema.field(name) for name in columns]).empty_table()
        return pa.concat_tables([empty, *in_parallel(read, names, self._read_threads)])

    @property
    def _read_threads(self) -> int:
        return min(MAX_READ_THREADS, self.objects.requests_at_once)

    @contextlib.contextmanager
    def _open_base(self) -> Iterator[FileReader | None]:
        try:
            file = self._open(BASE)
        except ObjectNotFound:
            file = None
        with file or contextlib.nullcontext():
            yield file

    def _open(self, name: str) -> FileReader:
        """Open an index file; all but the base are immutable."""
        return FileReader(self.objects, self._path(name), self.layout, immutable=name != BASE)

    def _until_stable(self, attempt: Callable[[], _Result]) -> _Result:
        """Retry ``attempt`` if files disappear: a finishing compaction deletes the deltas that it folded."""
        vanished = Counter[str]()
        while True:
            try:
                return attempt()
            except ObjectNotFound as error:
                vanished[error.where] += 1
                if vanished[error.where] == READ_ATTEMPTS:
                    raise StorageError(
                        f"A file disappeared on {READ_ATTEMPTS} attempts to read an index", error.where, "Try again."
                    ) from error

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}" if self.directory else name

    # -- compaction --------------------------------------------------------------------------

    def compact(self, *, now: datetime | None = None) -> Folded:
        """Fold the deltas into a new base, publish it by conditional replace, then delete the folded deltas.

        The caller holds a lease. A crash at any step leaves a readable index, and the next compaction continues from
        there. Raises PreconditionFailed, deleting nothing, if another compaction published a base first.
        """
        moment = now or datetime.now(UTC)
        log = self.log()
        rounds = list(_rounds(log))
        rows = live = 0
        for number, names in enumerate(rounds, start=1):
            # A removal can only be dropped once no remaining delta could re-add its key.
            horizon = moment - REMOVE_RETENTION if number == len(rounds) else None
            rows, live = self._publish_base(names, log, horizon)
            self.objects.delete([self._path(name) for name in names])
        return Folded(len(log.deltas), rows, live)

    def _publish_base(self, names: Sequence[str], log: Log, horizon: datetime | None) -> tuple[int, int]:
        """Publish a new base, and return its row counts with and without removals."""
        path = self._path(BASE)
        head = self.objects.head(path)
        writer = FileWriter(self.layout, self.encoding)
        with self._open_base() as base:
            # Includes deltas that an earlier compaction folded but did not delete; they must not be folded twice.
            before = [name for name in base.footer.folded if name in log.deltas] if base is not None else []
            max_rev, live = base.footer.max_rev if base is not None else 0, 0
            for piece in self._folded(base, names, Keys.all(), self.file_schema.names):
                max_rev = max(max_rev, pc.max(piece["rev"]).as_py() or 0)
                live += pc.sum(pc.equal(piece["op"], ADD)).as_py() or 0
                writer.write(piece if horizon is None else piece.filter(_lasting(piece, horizon)))
        folded = tuple(dict.fromkeys([*before, *names]))
        footer = Footer(kind=self.layout.kind, folded=folded, max_rev=max_rev, nonce=new_ulid())
        data = writer.finish(footer)
        try:
            if head is None:
                self.objects.create(path, data)
            else:
                self.objects.replace(path, data, head.version)
        except AlreadyExists as error:
            raise PreconditionFailed("Another compaction published a base", error.where) from error
        return writer.rows, live


def _rounds(log: Log) -> Iterator[list[str]]:
    """Yield the deltas in groups to fold in sequence, each of at most ``ROUND_BYTES`` or a single larger delta."""
    group: list[str] = []
    size = 0
    for name, size_bytes in zip(log.deltas, log.delta_bytes, strict=True):
        if group and size + size_bytes > ROUND_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += size_bytes
    if group:
        yield group


def _lasting(rows: pa.Table, horizon: datetime) -> pa.ChunkedArray:
    """Return a mask of the rows that a base keeps: all but removals from before ``horizon``."""
    recent = pc.greater(rows["written"], pa.scalar(horizon, rows["written"].type))
    return pc.or_(pc.equal(rows["op"], ADD), recent)
