"""The best windows of a search in the order of a transformer that reads query and windows (DESIGN, "Search")."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from driftline.storage.errors import UsageError
from driftline.storage.lines.queries import LineQuery, Passage
from driftline.tasks.deep.texts import FOLDERS, as_words
from driftline.tasks.search.defaults import DEFAULT_RERANKED, MAX_RERANKED
from driftline.tasks.search.hits import add_definitions
from driftline.tasks.search.windows import Window

LINES_AROUND, HEAD_LINES = 3, 6
"""Lines on each side of a window that are read, and lines from the head of its definition where that is farther up."""
WEIGHT_OF_COSINE = 25.0
"""What the cosine weighs against a score by words and meaning; chosen on the tuning halves of the benchmark."""
WEIGHT_IN_VECTOR_MODE = 1.0
"""There, the scores are cosines themselves."""


class Encoder(Protocol):
    """What embeds queries and windows alike."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """``(n, dim) float32``: unit vectors of ``texts``."""


def windows_to_rerank(rerank: bool | int) -> int:
    """How many windows are read: True is DEFAULT_RERANKED, False is none. Raises UsageError."""
    count = DEFAULT_RERANKED if rerank is True else int(rerank)
    if not 0 <= count <= MAX_RERANKED:
        raise UsageError(f"rerank must be between 0 and {MAX_RERANKED} windows", str(count))
    return count


def weight_in(mode: str) -> float:
    """What the cosine weighs in a search of this mode."""
    return WEIGHT_IN_VECTOR_MODE if mode == "vector" else WEIGHT_OF_COSINE


def reranked(
    windows: Sequence[Window], query: str, tables: Sequence[LineQuery], encoder: Encoder, weight: float
) -> list[Window]:
    """``windows``, best first, by their scores, which gain ``weight`` times the cosine of ``query`` and their texts.

    Alone, the cosine would take what sounds alike for what answers.
    """
    if len(windows) < 2:
        return list(windows)
    add_definitions(tables, windows)
    texts = texts_of(windows, tables)
    distinct = {text: at for at, text in enumerate(dict.fromkeys(texts))}  # windows of one definition share its text
    vectors = encoder.embed([query, *distinct])
    cosines = (vectors[1:] @ vectors[0])[[distinct[text] for text in texts]]
    # Gains of at least 0 leave them before the windows that are not read.
    gains = (weight * (cosines - cosines.min())).tolist()
    scored = (replace(window, score=window.score + gain) for window, gain in zip(windows, gains, strict=True))
    return sorted(scored, key=lambda window: -window.score)


def texts_of(windows: Sequence[Window], tables: Sequence[LineQuery]) -> list[str]:
    """What the encoder reads of each window: the name and the head of its definition, its lines, and its path.

    The lines are those that were indexed.
    """
    parts = [_passages(window) for window in windows]
    known: dict[tuple[str, str, int], str] = {}
    for table in tables:
        for row in table.passages([part for each in parts for part in each]).to_pylist():
            known[row["entity"], row["path"], row["line_number"]] = row["text"]
    found = []
    for window, passages in zip(windows, parts, strict=True):
        name = window.definition.name if window.definition else ""
        places = [(part.entity, part.path, line) for part in passages for line in range(part.first, part.last + 1)]
        text = " ".join(as_words(known[place]) for place in places if place in known)
        folders = os.path.splitext(window.path)[0].split("/")[-FOLDERS:]
        found.append(f"{as_words(name)} . {text} . {as_words(' '.join(folders))}")
    return found


def _passages(window: Window) -> list[Passage]:
    """The lines around a window, not beyond its definition, and before them the head of that."""
    first, last = max(0, window.first - LINES_AROUND), window.last + LINES_AROUND
    definition = window.definition
    head: list[Passage] = []
    if definition is not None and definition.is_code:
        if definition.first <= window.first:
            first = max(first, definition.first)
        if window.last <= definition.last:
            last = min(last, definition.last)
        if definition.first < first:
            end = min(definition.first + HEAD_LINES, first) - 1
            head.append(Passage(window.entity, window.path, definition.first, end))
    return [*head, Passage(window.entity, window.path, first, last)]
