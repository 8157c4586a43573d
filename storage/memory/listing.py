"""Listings, counts and sums of memory over the Parquet indexes, without the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.key_ranges import after_prefix
from driftline.storage.memory.index import FIELDS, MemoryIndex
from driftline.storage.objects.store import ObjectStore

DEFAULT_LIMIT = 1_000
COLUMNS = tuple(field.name for field in FIELDS)
_SCHEMA = pa.schema(FIELDS)


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of an entity and its descendants in the index, which may lag behind the catalog by a second."""

    entries: int
    size_bytes: int


class MemoryListing:
    """Queries over the memory indexes of a workspace. Thread-safe; each call folds base and deltas, in pieces.

    Entries that have expired at ``now`` are left out. With ``as_of`` a call sees the index as of that ``rev``, which
    must not precede the last compaction. All methods raise StorageError, CorruptFile, and UsageError for an ``as_of``
    that is too early.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def list(
        self,
        directory: str,
        *,
        prefix: str = "",
        low: str = "",
        high: str | None = None,
        after: str | None = None,
        limit: int = DEFAULT_LIMIT,
        now: datetime | None = None,
        as_of: int | None = None,
    ) -> pa.Table:
        """The entries at or below the entity of a directory, ordered by key, with ``COLUMNS``.

        Keys start with ``prefix``, satisfy ``low <= key < high``, and are greater than ``after``.
        """
        moment = now or datetime.now(UTC)

        def take(pieces: Iterable[pa.Table]) -> pa.Table:
            taken, room = [_SCHEMA.empty_table()], limit
            for piece in pieces:
                alive = _alive(piece, moment).slice(0, room).select(list(COLUMNS))
                taken.append(alive)
                room -= len(alive)
                if room <= 0:
                    break
            return pa.concat_tables(taken)

        lowest = max(low, prefix, "" if not after else after + "\0")
        index = MemoryIndex(self._objects, directory)
        return index.reduce(take, lowest, _highest(prefix, high), columns=COLUMNS, as_of=as_of)

    def totals(self, directory: str, *, prefix: str = "", now: datetime | None = None) -> Totals:
        """The number and size of the entries at or below an entity whose key starts with ``prefix``."""
        found = self.by_owner(directory, prefix=prefix, now=now).values()
        return Totals(sum(each.entries for each in found), sum(each.size_bytes for each in found))

    def by_owner(
        self,
        directory: str,
        *,
        prefix: str = "",
        low: str = "",
        high: str | None = None,
        now: datetime | None = None,
        as_of: int | None = None,
    ) -> dict[str, Totals]:
        """The totals of each owner of entries at or below an entity, by the owner's directory, for keys as in
        ``list``."""
        moment = now or datetime.now(UTC)

        def add_up(pieces: Iterable[pa.Table]) -> dict[str, Totals]:
            number: Counter[str] = Counter()
            size: Counter[str] = Counter()
            for owner, entries, size_bytes in _sums(pieces, moment):
                number[owner] += entries
                size[owner] += size_bytes
            return {owner: Totals(number[owner], size[owner]) for owner in sorted(number)}

        index = MemoryIndex(self._objects, directory)
        columns = ("entity", "size_bytes", "expires")
        return index.reduce(add_up, max(low, prefix), _highest(prefix, high), columns=columns, as_of=as_of)


def _highest(prefix: str, high: str | None) -> str | None:
    bounds = [each for each in (high, after_prefix(prefix) if prefix else None) if each is not None]
    return min(bounds) if bounds else None


def _alive(rows: pa.Table, now: datetime) -> pa.Table:
    expires = rows["expires"]
    return rows.filter(pc.fill_null(pc.greater(expires, pa.scalar(now, expires.type)), True))


def _sums(pieces: Iterable[pa.Table], now: datetime) -> Iterator[tuple[str, int, int]]:
    for piece in pieces:
        summed = _alive(piece, now).group_by("entity").aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
        for row in summed.to_pylist():
            yield row["entity"], row["size_bytes_count"], row["size_bytes_sum"]
