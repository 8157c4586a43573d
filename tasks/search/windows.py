"""Hits that are lines become windows of neighbouring lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driftline.storage.lines.outline import Definition

MAX_WINDOW_LINES = 32
"""A window does not grow beyond so many lines, context apart."""
MAX_WINDOWS_OF_DEFINITION = 3
"""A long function does not take all places, as a long section of prose may."""


@dataclass(slots=True)
class Window:
    """Neighbouring hits of one document; lines are 0-based, both ends included.

    ``best`` is the hit that answers best by itself, ``fit`` says how well; ``distance``, ``text``, ``column``, at which
    the text begins in its line, and ``definition``, the innermost around it, are its. Whether it has one is unknown
    unless it is ``outlined``. ``score`` is that of the hit by which the window has its place: its relevance, or its
    cosine where hits are ordered by that.
    """

    entity: str
    path: str
    hash: str
    best: int
    distance: float
    text: str
    fit: float
    first: int
    last: int
    definition: Definition | None = None
    outlined: bool = False
    score: float = field(default=0.0, compare=False)
    column: int = 0

    @classmethod
    def around(cls, row: Mapping[str, Any]) -> Window:
        """The window of one hit."""
        line, distance = row["line_number"], row["distance"]
        fit = row.get("fit", -distance)
        known: dict[str, Any] = {"score": row.get("relevance", 1 - distance), "column": row.get("column_number", 0)}
        known |= {"definition": row["definition"], "outlined": row["outlined"]} if "definition" in row else {}
        document = row["entity"], row["path"], row["hash"]
        return cls(*document, line, distance, row["text"], fit, first=line, last=line, **known)

    def take_in(self, other: Window) -> None:
        """Become a window of both; the one that fits better names the best line."""
        if other.fit > self.fit:
            self.best, self.distance, self.text, self.fit = other.best, other.distance, other.text, other.fit
            self.definition, self.outlined, self.column = other.definition, other.outlined, other.column
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)


def merge_windows(rows: Iterable[Mapping[str, Any]], reach: int, top_k: int) -> list[Window]:
    """Hits, best first, as at most ``top_k`` windows, in the order of their first hits.

    ``rows`` have ``entity``, ``path``, ``hash``, ``line_number``, ``distance`` and ``text``, and a ``fit`` if that is
    not simply the better the nearer. Hits up to ``reach`` lines apart become one window, unless it would be too long:
    then the later one is left out. Hits are read until there are enough windows, so that none grows by hits that are
    worse than all of them.
    """
    windows: list[Window] = []
    of_document: dict[tuple[str, str], list[Window]] = {}
    for row in rows:
        new = Window.around(row)
        known = of_document.setdefault((new.entity, new.path), [])
        near = [window for window in known if window.first - reach <= new.first <= window.last + reach]
        if near:
            joined = (*near, new)
            if max(w.last for w in joined) - min(w.first for w in joined) < MAX_WINDOW_LINES:
                for other in joined[1:]:
                    near[0].take_in(other)
                for other in near[1:]:
                    known.remove(other)
                    windows.remove(other)
            continue
        defined = new.definition is not None and new.definition.is_code
        if defined and sum(new.definition == each.definition for each in known) >= MAX_WINDOWS_OF_DEFINITION:
            continue
        known.append(new)
        windows.append(new)
        if len(windows) == top_k:
            break
    return windows
