"""How well entries of memory answer a query: their words and their meaning; pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from driftline.storage.memory.vectors import Found

Mode = Literal["hybrid", "vector", "text"]
MODES: tuple[Mode, ...] = ("hybrid", "vector", "text")


def relevance(entry: Found, mode: Mode) -> float:
    """By which hits are ordered, at most 1: the cosine, the match of the words, or both.

    A match closes its share of what the cosine lacks of 1, so that without any match the score is the cosine.
    """
    cosine = 1.0 - entry.distance
    match mode:
        case "vector":
            return cosine
        case "text":
            return entry.match
        case _:
            return cosine + entry.match * (1.0 - cosine)


def ranked(
    near: Iterable[Found], worded: Iterable[Found], mode: Mode, max_distance: float | None = None
) -> list[Found]:
    """The distinct entries of both searches within ``max_distance``, best first; of ties the nearest, then by key."""
    by_entry = {(entry.key, entry.rev): entry for entry in worded}
    for entry in near:  # its distance is the one that Lance has ordered by
        known = by_entry.get((entry.key, entry.rev))
        by_entry[entry.key, entry.rev] = entry._replace(match=known.match if known else 0.0)
    allowed = (each for each in by_entry.values() if max_distance is None or each.distance <= max_distance)
    return sorted(allowed, key=lambda entry: (-relevance(entry, mode), entry.distance, entry.key))
