"""Which fragments of a table need a segment of an index: a pure decision (decision 0010)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

SEGMENT_ROWS = 1 << 20
"""Target rows of a segment: small enough that every worker has one to build, large enough that searches open few."""
SMALL_SEGMENT_ROWS = SEGMENT_ROWS // 2
"""A segment with fewer rows is merged with others in time; one with more stays as it is."""
MAX_SMALL_SEGMENTS = 8
"""More small segments than these are merged, by building one segment of all their fragments."""
MAX_UNINDEXED_ROWS = 20_000
"""Up to this many unindexed rows, searches scan them, which is cheaper than another segment."""


def groups_to_build(
    rows: Mapping[int, int], segments: Sequence[Set[int]], *, thorough: bool = False
) -> list[tuple[int, ...]]:
    """The groups of fragments that need a segment each; a group holds every fragment of the segments it replaces.

    ``rows`` are the rows of each live fragment, ``segments`` the fragments that each segment covers. ``thorough``
    covers every row and merges small segments, because fragments of different segments cannot be compacted together.
    """
    live = [found for segment in segments if (found := segment & rows.keys())]
    uncovered = set(rows).difference(*live)
    small = [segment for segment in live if _total(rows, segment) < SMALL_SEGMENT_ROWS]
    lags = bool(uncovered) and (thorough or not live or _total(rows, uncovered) > MAX_UNINDEXED_ROWS)
    new = packed(rows, uncovered) if lags else []
    count = len(small) + sum(_total(rows, group) < SMALL_SEGMENT_ROWS for group in new)
    if small and count > (1 if thorough else MAX_SMALL_SEGMENTS):
        return packed(rows, uncovered.union(*small))
    return new


def packed(rows: Mapping[int, int], fragments: Iterable[int]) -> list[tuple[int, ...]]:
    """``fragments`` in groups of at most SEGMENT_ROWS or of one fragment; at most one group is small."""
    groups: list[list[int]] = []
    open_group: list[int] = []
    size = 0
    for fragment in sorted(fragments):
        if rows[fragment] >= SMALL_SEGMENT_ROWS:
            groups.append([fragment])
            continue
        if not open_group or size + rows[fragment] > SEGMENT_ROWS:
            open_group, size = [], 0
            groups.append(open_group)
        open_group.append(fragment)
        size += rows[fragment]
    return sorted(tuple(group) for group in groups)


def _total(rows: Mapping[int, int], fragments: Iterable[int]) -> int:
    return sum(rows[fragment] for fragment in fragments)
