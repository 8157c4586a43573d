"""Read, append to and compact a delta index: a base Parquet file plus later deltas (DESIGN, "Delta index").

Document manifests and memory indexes share this protocol. Each row has an ``op`` (``add`` or ``remove``) and a ``rev``;
for each key, the highest ``rev`` wins. Reads and folds are therefore idempotent, and do not depend on file order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.parquet_files import (
    DEFAULT_ENCODING,
    Encoding,
    FileReader,
    FileWriter,
    Footer,
    Keys,
    Layout,
    conformed,
)
from driftline.storage.errors import AlreadyExists, ObjectNotFound, PreconditionFailed, StorageError, UsageError
from driftline.storage.layout import BASE, delta_name, is_delta, new_ulid
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel


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
    for an ``as_of`` before the last compaction, and StorageError, including when files disappear during each of
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
        for _ in range(READ_ATTEMPTS):
            try:
                return attempt()
            except ObjectNotFound as error:
                vanished = error
        raise StorageError(
            f"Files disappeared on all {READ_ATTEMPTS} attempts to read an index", vanished.where, "Try again."
        )

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
