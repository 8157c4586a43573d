"""List, count and sum memory entries page by page from the Parquet indexes, without the catalog."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.parquet_files import after_prefix
from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.json_records import decode_cursor, encode_cursor
from driftline.storage.memory.catalog.entry_writes import BEHIND_PRIVATE, shown
from driftline.storage.memory.memory_indexes import FIELDS, MemoryIndex
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
    """Queries over a workspace's memory indexes. Thread-safe; each call folds base and deltas piecewise.

    Entries that have expired by ``now`` are omitted. If ``as_of`` is given, a call sees the index as of that ``rev``,
    which must not precede the last compaction. All methods raise StorageError, CorruptFile, and UsageError for an
    ``as_of`` before the last compaction.
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
        """Return the entries at or below the entity of ``directory``, sorted by key, with ``COLUMNS``.

        Keys start with ``prefix``, satisfy ``low <= key < high``, and are greater than ``after``.
        """
        moment = now or datetime.now(UTC)

        def take(pieces: Iterable[pa.Table]) -> pa.Table:
            taken, remaining = [_SCHEMA.empty_table()], limit
            for piece in pieces:
                alive = _alive(piece, moment).slice(0, remaining).select(list(COLUMNS))
                taken.append(alive)
                remaining -= len(alive)
                if remaining <= 0:
                    break
            return pa.concat_tables(taken)

        lowest = max(low, prefix, "" if not after else after + "\0")
        index = MemoryIndex(self._objects, directory)
        return index.reduce(take, lowest, _highest(prefix, high), columns=COLUMNS, as_of=as_of)

    def totals(self, directory: str, *, prefix: str = "") -> Totals:
        """Return the number and total size of entries at or below an entity whose keys start with ``prefix``."""
        found = self.by_owner(directory, prefix=prefix).values()
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
        """Return the totals of each owner that has entries at or below an entity, keyed by the owner's directory.

        For the key parameters, see ``list``.
        """
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


MAX_COUNT = 2**62
"""Larger limits and offsets are reduced to this number, which databases can represent."""

_Entry = TypeVar("_Entry")


def check_count(value: object, what: str) -> int:
    """Validate a limit or offset, and cap it at a value that databases accept. Raises UsageError."""
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"{what} must be a non-negative integer")
    return min(value, MAX_COUNT)


@dataclass(frozen=True, slots=True)
class Page(Generic[_Entry]):
    """A page of entries. ``total_count`` covers all pages; if ``has_more`` is set, ``cursor`` continues with the next
    page. ``is_partial`` is set if the call's allowed ancestors exclude a part of the entity.
    """

    entries: tuple[_Entry, ...]
    total_count: int
    has_more: bool
    cursor: str | None
    is_partial: bool = False


def cursor_after(entity: str, owner: int, key: str) -> str:
    """Return the cursor after a page of ``entity`` that ends with an entry, without the suffix of a private key."""
    return encode_cursor(entity, owner, shown(key))


def parse_cursor(cursor: str | None, entity: str) -> tuple[int, str] | None:
    """Return the position ``(owner id, key)`` after a page of ``entity``; None yields None. Raises UsageError."""
    if cursor is None:
        return None
    try:
        of, owner, key = decode_cursor(tuple[str, int, str], cursor)
        if of != entity or abs(owner) > MAX_COUNT or "\0" in key:
            raise ValueError("no entry of this entity has this owner or key")
    except ValueError:
        fix = "Use the cursor of the previous page of the same entity."
        raise UsageError("Invalid cursor", repr(cursor)[:80], fix) from None
    return owner, f"{key}{BEHIND_PRIVATE}"


KeyRange = tuple[str | None, str | None]
"""The first key, and an exclusive upper bound; None means unbounded."""
_CONTROL = re.compile("[\x00-\x1f]")
_TIMES = ("created", "updated", "expires")


def entries_between(
    listing: MemoryListing,
    entity: Entity,
    keys: KeyRange,
    now: datetime,
    *,
    limit: int = DEFAULT_LIMIT,
    as_of: int | None = None,
) -> list[dict[str, Any]]:
    """Return the entries at or below ``entity``, sorted by key, without values; times are ISO 8601."""
    low, high = keys
    rows = listing.list(entity.directory, low=low or "", high=high, limit=limit, now=now, as_of=as_of).to_pylist()
    return [
        {**row, "key": shown(row["key"]), "metadata": json.loads(row["metadata"])}
        | {name: row[name].isoformat() if row[name] else None for name in _TIMES}
        for row in rows
    ]


def totals_by_level(
    listing: MemoryListing, entity: Entity, level: str, keys: KeyRange, now: datetime, *, as_of: int | None = None
) -> list[dict[str, Any]]:
    """Return ``{level: id, entity, entries, size_bytes}`` for each entity of a level, sorted by path.

    Entries owned above that level are counted under the id None.
    """
    low, high = keys
    by_owner = listing.by_owner(entity.directory, low=low or "", high=high, now=now, as_of=as_of)
    groups: dict[str, Totals] = {}
    for owner, totals in by_owner.items():
        group = _above(owner, level)
        so_far = groups.get(group, Totals(0, 0))
        groups[group] = Totals(so_far.entries + totals.entries, so_far.size_bytes + totals.size_bytes)
    return [_row(level, group, groups) for group in sorted(groups)]


def check_range(given: Any) -> KeyRange:
    """Parse ``given`` as a key range: None for all keys, or a pair of keys. Raises UsageError."""
    if given is None:
        return None, None
    if not isinstance(given, (list, tuple)) or len(given) != 2 or not all(isinstance(k, str | None) for k in given):
        raise UsageError("A range needs a first key and an exclusive upper bound", repr(given)[:80], "Use [low, high].")
    return _bound(given[0]), _bound(given[1])


def _bound(key: str | None) -> str | None:
    """Return a bound that sorts alike for a key and its private forms, which only control characters can separate."""
    control = _CONTROL.search(key) if key else None
    return key if key is None or control is None else f"{key[: control.start()]}{BEHIND_PRIVATE}"


def _above(owner: str, level: str) -> str:
    """Return the directory of the ``level`` entity at or above ``owner``, or "" if there is none."""
    parts = owner.split("/")
    depth = next((depth for depth, part in enumerate(parts, 1) if part.startswith(f"{level}:")), 0)
    return "/".join(parts[:depth])


def _row(level: str, group: str, groups: Mapping[str, Totals]) -> dict[str, Any]:
    totals = groups[group]
    owner = Entity.of_directory(group) if group else None
    return {
        level: owner.id if owner else None,
        "entity": group or None,
        "entries": totals.entries,
        "size_bytes": totals.size_bytes,
    }
