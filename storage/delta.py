"""The delta index: a base Parquet file and the deltas since (DESIGN, "Delta index").

One protocol for documents and for memory. Every row says ``op`` (``add`` or ``remove``) and ``rev``;
for each key the highest ``rev`` wins, wherever it lies, so that reading and folding are
idempotent and the order of files does not matter.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftline.storage.errors import AlreadyExists, CorruptFile, ObjectNotFound, StorageError
from driftline.storage.objects import ObjectStore

FORMAT_VERSION = 1
ROW_GROUP_ROWS = 122_880
COMPRESSION = "zstd"
REMOVE_RETENTION = timedelta(days=7)
"""How long a base keeps ``remove`` rows, so that a late delta cannot resurrect a key."""
READ_ATTEMPTS = 5

ADD, REMOVE = "add", "remove"
BASE = "_index.parquet"
_DELTA = re.compile(r"_index_delta_([0-9A-HJKMNP-TV-Z]{26})\.parquet")
_FOOTER = b"driftline"


def delta_name(ulid: str) -> str:
    """The file name of the delta ``ulid``."""
    return f"_index_delta_{ulid}.parquet"


@dataclass(frozen=True, slots=True)
class Log:
    """What a directory holds of one delta index: the names of its deltas, sorted, and whether it has a base."""

    deltas: tuple[str, ...]
    has_base: bool


@dataclass(frozen=True, slots=True)
class Folded:
    """What a compaction did."""

    deltas: int
    rows: int


class DeltaIndex:
    """The delta index of one directory of a workspace.

    ``fields`` are the value columns; the first is the key, a string, unique among live rows. On
    disk ``op``, ``rev`` (int64) and ``written`` (timestamp) stand before them.
    """

    def __init__(self, objects: ObjectStore, directory: str, kind: str, fields: Sequence[pa.Field]) -> None:
        self.objects = objects
        self.directory = directory
        self.kind = kind
        self.key: str = fields[0].name
        self.schema = pa.schema(fields)
        self.file_schema = pa.schema(
            [("op", pa.string()), ("rev", pa.int64()), ("written", pa.timestamp("ms", tz="UTC")), *fields]
        )

    # -- writing -----------------------------------------------------------------------------

    def encode(self, rows: pa.Table, *, folded: Sequence[str] = ()) -> bytes:
        """The bytes of a delta or base file of ``rows``, sorted by key and, for one key, by falling ``rev``."""
        footer = {"format_version": FORMAT_VERSION, "kind": self.kind, "folded": list(folded)}
        table = rows.select(self.file_schema.names).cast(self.file_schema)
        table = table.sort_by([(self.key, "ascending"), ("rev", "descending")])
        sink = pa.BufferOutputStream()
        pq.write_table(
            table.replace_schema_metadata({_FOOTER: json.dumps(footer).encode()}),
            sink,
            row_group_size=ROW_GROUP_ROWS,
            compression=COMPRESSION,
        )
        return bytes(memoryview(sink.getvalue()))

    def changes(self, op: str, rev: int, values: pa.Table, *, now: datetime) -> pa.Table:
        """Rows of ``file_schema`` that add or remove ``values``; a removal needs the key alone."""
        n = len(values)
        given = {name: values[name] for name in values.column_names}
        columns = [given.get(f.name, pa.nulls(n, f.type)) for f in self.schema]
        stamp = pa.scalar(now, self.file_schema.field("written").type)
        heads = [pa.repeat(pa.scalar(op), n), pa.repeat(pa.scalar(rev, pa.int64()), n), pa.repeat(stamp, n)]
        return pa.table([*heads, *columns], names=self.file_schema.names).cast(self.file_schema)

    def append(self, ulid: str, rows: pa.Table) -> str:
        """Publish ``rows`` as one immutable delta; doing so again changes nothing. Returns its name."""
        return self.publish(ulid, self.encode(rows))

    def publish(self, ulid: str, data: bytes) -> str:
        """Create the delta ``ulid`` from the bytes of ``encode``."""
        name = delta_name(ulid)
        # A ulid is derived from its run and batch: one that exists is our own, from an earlier attempt.
        with contextlib.suppress(AlreadyExists):
            self.objects.create(self._path(name), data)
        return name

    # -- reading -----------------------------------------------------------------------------

    def log(self) -> Log:
        """List the deltas and the base. The deltas are listed first, so that none folded later can be missed."""
        names = [info.path.rsplit("/", 1)[-1] for info in self.objects.list(self.directory, recursive=False)]
        return Log(tuple(sorted(n for n in names if _DELTA.fullmatch(n))), BASE in names)

    def read(self, prefixes: Sequence[str] | None = None, *, columns: Sequence[str] | None = None) -> pa.Table:
        """The live rows, sorted by key, in ``schema``; with ``prefixes``, those whose key starts with one of them.

        Raises CorruptFile that names a damaged file, StorageError after ``READ_ATTEMPTS`` vanished files.
        """
        names = list(columns or self.schema.names)
        live = self._settled(lambda: self._fold(prefixes, names)[0])
        return live.filter(pc.equal(live["op"], ADD)).select(names)

    def _settled(self, attempt: Callable[[], pa.Table]) -> pa.Table:
        """Run ``attempt`` until no file vanishes under it: a compaction that finishes deletes what it folded."""
        for _ in range(READ_ATTEMPTS):
            try:
                return attempt()
            except ObjectNotFound as error:
                vanished = error
        raise StorageError(f"Files vanished in {READ_ATTEMPTS} attempts to read an index", vanished.where, "Try again.")

    def _fold(self, prefixes: Sequence[str] | None, columns: Sequence[str]) -> tuple[pa.Table, Log]:
        log = self.log()
        wanted = list(dict.fromkeys([self.key, "op", "rev", "written", *columns]))
        base, folded = self._read_file(BASE, prefixes, wanted, missing_ok=True)
        tables = [self._read_file(name, prefixes, wanted)[0] for name in log.deltas if name not in folded]
        return fold(self.key, base, tables), log

    def _read_file(
        self, name: str, prefixes: Sequence[str] | None, columns: Sequence[str], *, missing_ok: bool = False
    ) -> tuple[pa.Table, frozenset[str]]:
        path = self._path(name)
        try:
            source = self.objects.open_input(path)
        except ObjectNotFound:
            if not missing_ok:
                raise
            return pa.schema([self.file_schema.field(c) for c in columns]).empty_table(), frozenset()
        with source:
            try:
                file = pq.ParquetFile(source)
                footer = self._footer(file, path)
                groups = [
                    i
                    for i in range(file.metadata.num_row_groups)
                    if self._may_hold(file.metadata.row_group(i), prefixes)
                ]
                table = file.read_row_groups(groups, columns=list(columns)).select(list(columns))
                table = table.cast(pa.schema([self.file_schema.field(c) for c in columns]))
            except (pa.ArrowException, KeyError) as error:
                raise self._damaged(path, str(error)) from error
        if prefixes is not None:
            table = table.filter(_starts_with_any(table[self.key], prefixes))
        return table, frozenset(footer["folded"])

    def _footer(self, file: pq.ParquetFile, path: str) -> dict[str, Any]:
        raw = (file.schema_arrow.metadata or {}).get(_FOOTER)
        if raw is None:
            raise self._damaged(path, "it was not written by Driftline")
        footer: dict[str, Any] = json.loads(raw)
        if footer.get("kind") != self.kind or footer.get("format_version") != FORMAT_VERSION:
            raise self._damaged(path, f"its footer says {raw.decode()[:200]}")
        return footer

    def _may_hold(self, group: pq.RowGroupMetaData, prefixes: Sequence[str] | None) -> bool:
        if prefixes is None or "" in prefixes:
            return True
        column = group.column(self.file_schema.get_field_index(self.key))
        if column.statistics is None or not column.statistics.has_min_max:
            return True
        low, high = column.statistics.min, column.statistics.max
        return any(low[: len(p)] <= p <= high for p in prefixes) or any(low <= p <= high for p in prefixes)

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}" if self.directory else name

    def _damaged(self, path: str, why: str) -> CorruptFile:
        where = f"{self.objects.uri}/{path}"
        return CorruptFile(
            f"A file of the index is damaged ({why})", where, "Restore it, or remove the source and index it anew."
        )

    # -- compaction --------------------------------------------------------------------------

    def compact(self, *, now: datetime | None = None) -> Folded:
        """Fold the deltas into a new base, publish it by conditional replace, then delete what was folded.

        The caller holds a lease. A crash at any step leaves a readable index. Raises
        PreconditionFailed if another compaction published meanwhile; nothing is deleted then.
        """
        moment = now or datetime.now(UTC)
        path = self._path(BASE)
        head = self.objects.head(path)
        rows, log = self._fold(None, self.schema.names)
        if not log.deltas:
            return Folded(0, len(rows))
        horizon = pa.scalar(moment - REMOVE_RETENTION, self.file_schema.field("written").type)
        keep = pc.or_(pc.equal(rows["op"], ADD), pc.greater(rows["written"], horizon))
        data = self.encode(rows.filter(keep), folded=log.deltas)
        if head is None:
            self.objects.create(path, data)
        else:
            self.objects.replace(path, data, head.version)
        self.objects.delete([self._path(name) for name in log.deltas])
        return Folded(len(log.deltas), len(rows))


def fold(key: str, base: pa.Table, deltas: Sequence[pa.Table]) -> pa.Table:
    """For each key the row of the highest ``rev``, sorted by key; pure (DESIGN, "Delta index").

    Keys are unique within ``base``, not within ``deltas``.
    """
    changes = pa.concat_tables(deltas) if deltas else base.schema.empty_table()
    if len(changes) == 0:
        return base
    changes = changes.sort_by([(key, "ascending"), ("rev", "descending")])
    keys = changes[key].combine_chunks()
    first = pa.concat_arrays([pa.array([True]), pc.not_equal(keys[1:], keys[:-1])])
    changes = changes.filter(first)
    if len(base) == 0:
        return changes
    match = pc.index_in(base[key], changes[key].combine_chunks())
    newer = pc.greater(changes["rev"].take(match), base["rev"])
    replaced = pc.fill_null(newer, False)
    kept = base.filter(pc.invert(replaced))
    stale = match.filter(pc.and_(pc.is_valid(match), pc.invert(replaced)))
    if len(stale):
        winners = pa.array(range(len(changes)), pa.int32())
        changes = changes.filter(pc.invert(pc.is_in(winners, stale.combine_chunks())))
    return pa.concat_tables([kept, changes]).sort_by([(key, "ascending")])


def _starts_with_any(keys: pa.ChunkedArray, prefixes: Sequence[str]) -> pa.ChunkedArray:
    mask = pa.chunked_array([pa.repeat(pa.scalar(False), len(keys))])
    for prefix in prefixes:
        mask = pc.or_(mask, pc.starts_with(keys, prefix))
    return mask
