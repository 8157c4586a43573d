"""Put the text of a page into reading order if it was drawn in another order.

Most programs draw a page in reading order, and know more about it than its geometry reveals. Only two kinds of pages
are therefore changed: pages drawn from the bottom up, and columns of prose drawn row by row. Everything else, such as a
table, which is read by row, keeps its order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from math import inf
from statistics import median, quantiles
from typing import NamedTuple

MIN_ROWS = 4
"""Columns with fewer rows cannot be distinguished from tables."""
_GAP = 0.8
"""The smallest gap between columns, in heights of a line."""
_WIDE = 6
"""The width of the narrowest lines of prose, in heights of a line."""
_BAND_GAP = 1.5
"""The smallest gap between a running head and columns, in heights of a line."""
_BINS = 400
"""Parts of a page's width."""
_MIN_WORDS = 3
_MIN_FILLED = 0.7
"""The share of the longest lines' width that half of a column's lines have."""
_MIN_CONTINUED = 0.5
"""The share of a column's lines that do not begin like a sentence or a cell."""
_MIN_DISTINCT = 0.6
"""The share of a column's lines that begin with different words; cells often begin alike."""
_RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")


class Piece(NamedTuple):
    """A piece of a line, with its position on the page: x grows to the right, y upwards."""

    left: float
    bottom: float
    right: float
    top: float
    text: str = ""

    @property
    def height(self) -> float:
        return self.top - self.bottom

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2

    def joined(self, other: Piece) -> Piece:
        """Return the place of both, at this piece's height."""
        return Piece(min(self.left, other.left), self.bottom, max(self.right, other.right), self.top, self.text)


def is_row(before: Piece, piece: Piece) -> bool:
    """Return whether two pieces are in the same row."""
    return abs(before.middle - piece.middle) < 0.5 * max(before.height, piece.height)


def is_apart(before: Piece, piece: Piece) -> bool:
    """Return whether the gap between two pieces of a row may separate columns."""
    gap = max(piece.left - before.right, before.left - piece.right)
    return gap > _GAP * max(before.height, piece.height)


def is_suspect(runs: Sequence[Piece]) -> bool:
    """Return whether the drawing order of ``runs`` of characters may differ from their reading order.

    It may if they go up, or if pieces that are wide enough for prose have aligned gaps between them.
    """
    if len(runs) < 2 * MIN_ROWS:
        return _is_upwards(runs)
    least = _WIDE * median(run.height for run in runs)
    pieces: list[Piece] = []
    for run in runs:
        if pieces and is_row(pieces[-1], run) and not is_apart(pieces[-1], run):
            pieces[-1] = pieces[-1].joined(run)
        else:
            pieces.append(run)
    ends: list[tuple[float, int]] = []
    for one, other in pairwise(pieces):
        near = abs(one.middle - other.middle) < max(one.height, other.height) and is_apart(one, other)
        if near and min(one.right - one.left, other.right - other.left) >= least:
            ends += [(min(one.right, other.right), 1), (max(one.left, other.left), -1)]
    return max(accumulate(step for _, step in sorted(ends)), default=0) >= MIN_ROWS or _is_upwards(pieces)


def _is_upwards(pieces: Sequence[Piece]) -> bool:
    """Return whether most rows are drawn above the row before."""
    up = down = 0
    row = None
    for piece in pieces:
        if row is None or not is_row(row, piece):
            if row is not None and piece.left < row.right and row.left < piece.right:
                up, down = up + (piece.bottom > row.bottom), down + (piece.bottom < row.bottom)
            row = piece
        else:
            row = row.joined(piece)
    return up >= MIN_ROWS - 1 and up > 4 * down


def ordered(pieces: Sequence[Piece]) -> list[str] | None:
    """Return the lines of a page whose ``pieces`` are in drawing order, or None if they should keep this order."""
    if not all(-inf < piece.left <= piece.right < inf for piece in pieces):  # a broken file
        return None
    order = _Order({id(piece): at for at, piece in enumerate(pieces)}, _is_upwards(pieces), _is_right_to_left(pieces))
    found = [line.text for line in order.lines(pieces)]
    return None if found == [line.text for line in _joined(pieces)] else found


def _is_right_to_left(pieces: Sequence[Piece]) -> bool:
    return 2 * sum(bool(_RIGHT_TO_LEFT.search(piece.text)) for piece in pieces) > len(pieces)


@dataclass(frozen=True, slots=True)
class _Order:
    """The order of a page; ``drawn`` is the position of each piece, by its id, in drawing order."""

    drawn: dict[int, int]
    upwards: bool
    right_to_left: bool

    def lines(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the lines of a part of the page, which may consist of bands with columns."""
        cut = _cut(pieces)
        bands = [] if cut is None else _bands(pieces, cut)
        found = [self._columns(band, cut) for band in bands if cut is not None]
        if not any(found):
            return self._rows(pieces)
        return [line for band, columns in zip(bands, found, strict=True) for line in columns or self._rows(band)]

    def _columns(self, pieces: Sequence[Piece], cut: float) -> list[Piece]:
        """Return the lines of the columns on both sides of ``cut``, or nothing if these are not columns of prose."""
        sides = [[each for each in pieces if (each.left < cut) != self.right_to_left]]
        sides.append([each for each in pieces if (each.left < cut) == self.right_to_left])
        changes = [each.left < cut for each in self._drawn(pieces)]
        mixed = self.upwards or sum(a != b for a, b in pairwise(changes)) >= min(map(len, sides))
        if mixed and all(_is_prose(self._rows(side)) for side in sides):
            return [line for side in sides for line in self.lines(side)]
        return []

    def _rows(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the lines of pieces as drawn, or from the top down."""
        if not self.upwards:
            return _joined(self._drawn(pieces))
        rows: list[list[Piece]] = []
        for piece in sorted(pieces, key=lambda each: -each.middle):
            if rows and is_row(rows[-1][0], piece):
                rows[-1].append(piece)
            else:
                rows.append([piece])
        way = -1 if self.right_to_left else 1
        return _joined([piece for row in rows for piece in sorted(row, key=lambda each: way * each.left)])

    def _drawn(self, pieces: Sequence[Piece]) -> list[Piece]:
        return sorted(pieces, key=lambda each: self.drawn[id(each)])


def _cut(pieces: Sequence[Piece]) -> float | None:
    """Return the position with the fewest pieces, between positions with more, or None."""
    if not pieces:
        return None
    start, width = min(each.left for each in pieces), max(each.right for each in pieces)
    scale = _BINS / max(width - start, 1)
    steps = [0] * (_BINS + 2)
    for each in pieces:
        steps[int((each.left - start) * scale)] += 1
        steps[int((each.right - start) * scale) + 1] -= 1
    cover = [*accumulate(steps)][: _BINS + 1]
    before, after = [*accumulate(cover, max)], [*accumulate(reversed(cover), max)][::-1]
    runs = [(count, [at for at, _ in run]) for count, run in groupby(enumerate(cover), key=lambda each: each[1])]
    deep = [(n, -len(run), run[0]) for n, run in runs if min(before[run[0]], after[run[0]]) - n >= MIN_ROWS]
    if not deep:
        return None
    _, size, at = min(deep)
    return start + (at - size / 2) / scale


def _bands(pieces: Sequence[Piece], cut: float) -> list[list[Piece]]:
    """Split a part of the page, from the top down, at lines that cross ``cut`` and at wide gaps."""
    bands: list[list[Piece]] = [[]]
    end, crosses = inf, False
    for piece in sorted(pieces, key=lambda each: -each.middle):
        does = piece.left < cut < piece.right
        if bands[-1] and (does != crosses or end - piece.top > _BAND_GAP * piece.height):
            bands.append([])
        bands[-1].append(piece)
        crosses, end = does, piece.bottom
    return bands


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join successive pieces in a row to lines."""
    lines: list[Piece] = []
    for piece in pieces:
        if lines and is_row(lines[-1], piece):
            last = lines.pop()
            lines.append(last.joined(piece)._replace(text=f"{last.text} {piece.text}"))
        else:
            lines.append(piece)
    return lines


def _is_prose(lines: Sequence[Piece]) -> bool:
    """Return whether lines are running text, not the cells of a table."""
    if len(lines) < MIN_ROWS:
        return False
    words = [line.text.split() for line in lines]
    firsts = [each[0] for each in words if each]
    continued = sum(not (word[0].isupper() or word[0].isdigit()) for word in firsts)
    widths = [line.right - line.left for line in lines]
    return (
        median(map(len, words)) >= _MIN_WORDS
        and median(widths) >= _MIN_FILLED * quantiles(widths, n=10)[-1]
        and continued >= _MIN_CONTINUED * len(lines)
        and len(set(firsts)) >= _MIN_DISTINCT * len(lines)
    )
