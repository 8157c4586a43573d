"""Hits that are lines become windows of neighbouring lines."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from driftline.storage.lines.outline import Definition
from driftline.tasks.search.ranking import count_words
from driftline.tasks.search.weights import WEIGHTS, Weights

MAX_WINDOW_LINES = 32
"""A window does not grow beyond so many lines, context apart."""
JUDGED_WINDOWS = 60
"""So many windows tell which files a query is about."""
MAX_WINDOWS_OF_DEFINITION = 3
"""A long function does not take all places, as a long section of prose may."""


@dataclass(slots=True)
class Window:
    """Neighbouring hits of one document; lines are 0-based, both ends included.

    ``best`` is the hit that answers best by itself, ``fit`` says how well; ``distance``, ``text``, ``column``, at which
    the text begins in its line, and ``definition``, the innermost around it, are its. Whether it has one is unknown
    unless it is ``outlined``. ``score`` is that of the hit by which the window has its place: its relevance, of which
    so much is ``attainable``, or its cosine where hits are ordered by that; nothing is attainable then. ``copies`` are
    other documents of its source with the same content. If the query has ``named`` the definition, the window stays
    inside it.
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
    attainable: float = 0.0
    copies: tuple[str, ...] = ()
    named: bool = False

    @property
    def file(self) -> tuple[str, str]:
        """What tells its document from others."""
        return self.entity, self.path

    @classmethod
    def around(cls, row: Mapping[str, Any]) -> Window:
        """The window of one hit."""
        line, distance = row["line_number"], row["distance"]
        fit = row.get("fit", -distance)
        known: dict[str, Any] = {"score": row.get("relevance", 1 - distance), "column": row.get("column_number", 0)}
        known |= {name: row[name] for name in ("attainable", "named") if name in row}
        known |= {"definition": row["definition"], "outlined": row["outlined"]} if "definition" in row else {}
        document = row["entity"], row["path"], row["hash"]
        return cls(*document, line, distance, row["text"], fit, first=line, last=line, **known)

    def may_take_in(self, line: int) -> bool:
        """Whether it may grow to a line; any, unless its definition is what was asked for."""
        return not self.named or self.definition is None or self.definition.first <= line <= self.definition.last

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
            if not all(window.may_take_in(new.first) for window in near):
                continue
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


def arranged(windows: Sequence[Window], words: Sequence[str], weights: Weights = WEIGHTS) -> list[Window]:
    """``windows``, best first, by their scores and by their files: what these hold besides, and how they are called.

    ``words`` are the distinct terms of the query. Each window gets the score by which it has its place.
    """
    windows = _without_copies(windows)
    if not windows or not words:
        return list(windows)
    least, best = min(window.score for window in windows), max(0.0, *(window.score for window in windows))
    of_file: dict[tuple[str, str], float] = defaultdict(float)
    for window in windows:
        of_file[window.file] += window.score - least
    most = max(of_file.values()) or 1.0
    named, _ = count_words([posixpath.splitext(posixpath.basename(path))[0] for _, path in of_file], words)
    share = dict(zip(of_file, (named > 0).mean(axis=1).tolist(), strict=True))
    unit = best * min(1.0, weights.telling_words / len(words)) ** 3
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for window in windows:
        first = not seen[window.file]
        seen[window.file] += 1
        gain = weights.file * of_file[window.file] / most if first else 0.0
        window.score += unit * (gain + weights.stem * share[window.file])
    seen.clear()
    for window in by_score(windows):
        window.score += unit * weights.again * seen[window.file]
        seen[window.file] += 1
    return by_score(windows)


def _without_copies(windows: Sequence[Window]) -> list[Window]:
    """``windows``, best first, without those of documents whose content an earlier one shows; it names their paths."""
    shown: dict[tuple[str, str], Window] = {}
    kept: list[Window] = []
    for window in windows:
        first = shown.setdefault((window.entity, window.hash), window)
        if first.file == window.file:
            kept.append(window)
        elif window.path not in first.copies:
            first.copies += (window.path,)
    return kept


def by_score(windows: Sequence[Window]) -> list[Window]:
    """``windows``, best first; of equal ones the first."""
    return sorted(windows, key=lambda window: -window.score)
