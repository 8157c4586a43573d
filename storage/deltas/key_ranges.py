"""The keys of a read: half-open ranges of strings, which select rows of sorted files by binary search."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Range = tuple[str, str | None]
"""``low <= key < high``; None is above every key."""

_LAST_BEFORE_SURROGATES, _FIRST_AFTER_SURROGATES = "\ud7ff", "\ue000"


@dataclass(frozen=True, slots=True)
class Keys:
    """Sorted, disjoint ranges. Strings compare by code point, which is how Arrow and Parquet compare their UTF-8."""

    ranges: tuple[Range, ...]

    @classmethod
    def all(cls) -> Self:
        """Every key."""
        return cls((("", None),))

    @classmethod
    def between(cls, low: str, high: str | None) -> Self:
        """The keys from ``low`` up to ``high``, exclusive."""
        return cls(_disjoint([(low, high)]))

    @classmethod
    def starting_with(cls, prefixes: Iterable[str]) -> Self:
        """The keys that start with one of ``prefixes``."""
        return cls(_disjoint((prefix, after_prefix(prefix)) for prefix in prefixes))

    @classmethod
    def exactly(cls, keys: Iterable[str]) -> Self:
        """These keys."""
        return cls(_disjoint((key, key + "\0") for key in keys))

    @property
    def is_all(self) -> bool:
        return self.ranges == (("", None),)

    def may_lie_between(self, first: str, last: str) -> bool:
        """Whether a range may include a key of ``first <= key <= last``; bounds that are too wide only cost a read."""
        position = bisect_right(self.ranges, last, key=lambda r: r[0])
        if position == 0:
            return False
        high = self.ranges[position - 1][1]  # of the last range that begins by then; the ranges before it end earlier
        return high is None or high > first

    def select(self, rows: pa.Table, key: str) -> pa.Table:
        """The ``rows`` within the ranges, as a slice where possible; ``rows`` are sorted by ``key``."""
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
    """The lowest string above all strings that start with ``prefix``; None if there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    last = stem[-1]
    following = _FIRST_AFTER_SURROGATES if last == _LAST_BEFORE_SURROGATES else chr(ord(last) + 1)
    return stem[:-1] + following


def _disjoint(ranges: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
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
