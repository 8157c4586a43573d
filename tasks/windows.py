"""Hits that are lines become windows of neighbouring lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_WINDOW_LINES = 32
"""A window does not grow beyond so many lines, context apart."""


@dataclass(slots=True)
class Window:
    """Neighbouring hits of one document; lines are 0-based and both ends included. ``best`` is the first hit."""

    entity: str
    path: str
    hash: str
    best: int
    distance: float
    text: str
    first: int
    last: int


def merge_windows(rows: Iterable[Mapping[str, Any]], reach: int, top_k: int) -> list[Window]:
    """Hits, best first, as at most ``top_k`` windows, in the order of their best hits.

    ``rows`` have ``entity``, ``path``, ``hash``, ``line_number``, ``distance`` and ``text``. Hits up to ``reach`` lines
    apart become one window, unless it would be too long: then the later one is left out. Hits are
    read until there are enough windows, so that none grows by hits that are worse than all of them.
    """
    windows: list[Window] = []
    of_document: dict[tuple[str, str], list[Window]] = {}
    for row in rows:
        number = row["line_number"]
        known = of_document.setdefault((row["entity"], row["path"]), [])
        near = [window for window in known if window.first - reach <= number <= window.last + reach]
        if near:
            first = min(number, *(window.first for window in near))
            last = max(number, *(window.last for window in near))
            if last - first < MAX_WINDOW_LINES:
                near[0].first, near[0].last = first, last
                for merged in near[1:]:
                    known.remove(merged)
                    windows.remove(merged)
            continue
        text, distance = row["text"], row["distance"]
        window = Window(row["entity"], row["path"], row["hash"], number, distance, text, first=number, last=number)
        known.append(window)
        windows.append(window)
        if len(windows) == top_k:
            break
    return windows
