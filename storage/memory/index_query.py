"""Questions to the index of an entity: the entries in a range of keys, or the totals of each project or user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.memory.catalog.private_keys import shown
from driftline.storage.memory.listing import DEFAULT_LIMIT, MemoryListing, Totals

KeyRange = tuple[str | None, str | None]
"""The first key, and the one behind the last; None stands for no bound."""
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
    """The entries at or below ``entity``, by key, without their values; times are ISO 8601."""
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
    """``{level: id, entity, entries, size_bytes}`` of each entity of a level, by path.

    Entries that an entity above that level owns are counted under the id None.
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
    """``given`` as a range: None for all keys, or a pair of keys. Raises UsageError."""
    if given is None:
        return None, None
    if not isinstance(given, (list, tuple)) or len(given) != 2 or not all(isinstance(k, str | None) for k in given):
        raise UsageError("A range is the first key and the one behind the last", repr(given)[:80], "Write [low, high].")
    return given[0], given[1]


def _above(owner: str, level: str) -> str:
    """The directory of the entity of ``level`` at or above ``owner``; "" if there is none."""
    parts = owner.split("/")
    depth = next((depth for depth, part in enumerate(parts, 1) if part.startswith(f"{level}:")), 0)
    return "/".join(parts[:depth])


def _row(level: str, group: str, groups: Mapping[str, Totals]) -> dict[str, Any]:
    totals = groups[group]
    place = Entity.of_directory(group) if group else None
    return {
        level: place.id if place else None,
        "entity": group or None,
        "entries": totals.entries,
        "size_bytes": totals.size_bytes,
    }
