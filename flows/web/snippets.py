"""Choose the lines of each result that the pages show, and shorten paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftline.tasks.search.hits import Hit

MAX_PATH_CHARACTERS = 120
"""Longer paths lose their middle."""


def shortened(path: str) -> str:
    """Replace the middle folders of a long path by an ellipsis.

    Examples:
        >>> shortened("src/lease.py"), shortened("src/" + "very-long-name/" * 10 + "lease.py")
        ('src/lease.py', 'src/…/very-long-name/lease.py')
    """
    parts = path.split("/")
    if len(path) <= MAX_PATH_CHARACTERS or len(parts) < 5:
        return path
    return "/".join([parts[0], "…", *parts[-2:]])


def joined(hits: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join hits of a file whose snippets touch; ``also`` has the numbers and links of the later ones' lines."""
    found: list[dict[str, Any]] = []
    for each in hits:
        before = found[-1] if found else None
        if before and len(each["lines"]) > 1:
            first, last = before["lines"][0][0], before["lines"][-1][0]
            if first <= each["lines"][0][0] <= last + 1:
                before["lines"] += [line for line in each["lines"] if line[0] > last]
                before["best"] += each["best"]
                before["also"].append((each["hit"].line, each["link"]))
                continue
        found.append(each)
    return found


def shown_lines(hit: Hit, *, is_exact: bool) -> tuple[int, Sequence[str], int]:
    """Return the 0-based first line to colour in a hit's context, the lines, and how many of them are not shown."""
    best = hit.line - hit.start_line
    if hit.label == "weak" or (is_exact and hit.label is None and hit.line != hit.symbol_start):
        around = _AROUND_WEAK if hit.label else _AROUND_EXACT
        first, last = max(0, best - around), min(best + around + 1, len(hit.context))
        first += next(at for at, line in enumerate(hit.context[first:]) if line.strip() or first + at == best)
        last -= next(at for at, line in enumerate(hit.context[:last][::-1]) if line.strip() or last - at - 1 == best)
    else:
        begin = hit.symbol_start - hit.start_line if hit.symbol_start is not None else None
        end = hit.symbol_end - hit.start_line + 1 if hit.symbol_end is not None else None
        first, last = _snippet(hit.context, best, begin, end)
    read = max(0, first - _READ_BEFORE)
    return read, hit.context[read:last], first - read


_AROUND_EXACT, _AROUND_WEAK = 2, 1
"""Lines before and after an exact hit that is not a definition, and a weak one."""
_BEFORE, _AFTER, LINES_BEFORE = 4, 8, 12
"""Lines of a snippet before and after the best line, and the most before it if a definition begins there."""
_MOST_LINES = 16
"""A snippet that begins with its definition ends after this many lines, but not before the best line's neighbours."""
_READ_BEFORE = 8
"""How many preceding lines to colour with a snippet, for strings and comments that start there."""


def _snippet(lines: Sequence[str], best: int, begin: int | None = None, end: int | None = None) -> tuple[int, int]:
    """Return the 0-based bounds of the lines to show around line ``best``.

    They start at ``begin``, the first line of the definition, if it is near, otherwise where a block starts; they end
    where the definition ends, before ``end``.

    Examples:
        >>> _snippet(["    return 1", "", "def f():", "    x = 2", ""], 3)
        (2, 4)
        >>> _snippet(["def f():", "", "    return 1", "x = 2"], 2, 0, 3)
        (0, 3)
    """
    first, last = max(0, best - _BEFORE), min(len(lines), best + _AFTER + 1)
    last = min(last, max(end, best + 1)) if end is not None else last
    if begin is not None and max(0, best - LINES_BEFORE) <= begin <= best:
        first, last = begin, min(last, max(begin + _MOST_LINES, best + 3))
    else:
        blank = [at for at in range(first, best) if not lines[at].strip()]
        first = blank[-1] + 1 if blank else first
    while last > best + 1 and not lines[last - 1].strip():
        last -= 1
    return first, last
