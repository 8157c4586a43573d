"""How near a distance is with a model: the share of random pairs of lines that are farther (DESIGN, "Search").

Distances of models differ: what one model holds for near, another holds for far. Their relevance does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from driftline.storage.model import Embedder
from driftline.tasks.search.sample_lines import SAMPLE_LINES

DIGITS = 4
Label = Literal["strong", "likely", "weak"]
LIKELIHOOD = (-2.4, 2.6)
"""The logistic curve from the share of the attainable score that a hit has to how often such hits are right; fitted on
the tuning halves of the benchmarks."""
STRONG, WEAK = 0.45, 0.15
"""From which likelihood on a hit is strong, and below which it is weak: of first hits, two in three strong ones are
right; of all hits, one in seven weak ones."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The ``distances`` of all pairs of SAMPLE_LINES with one model, ``(n,) float32``, ascending."""

    distances: NDArray[np.float32]

    @classmethod
    def of(cls, embedder: Embedder) -> Self:
        """The calibration of a model, measured once in a process."""
        return cls(_distances(_ByFingerprint(embedder)))

    def relevance(self, distance: float) -> float:
        """The share of pairs that are at least as far, from 0 to 1."""
        if not len(self.distances):
            return float(distance < 1)
        nearer = int(np.searchsorted(self.distances, np.float32(distance - 1e-6), side="left"))
        return round(1 - nearer / len(self.distances), DIGITS)

    def max_distance(self, min_relevance: float) -> float:
        """The largest distance whose relevance is at least ``min_relevance``; infinite for 0."""
        farther = math.ceil(min_relevance * len(self.distances))
        return float(self.distances[-farther]) if farther else math.inf

    def limit(self, min_relevance: float | None, max_distance: float | None) -> float | None:
        """Both limits as one distance; None for no limit."""
        if min_relevance is None:
            return max_distance
        allowed = min(self.max_distance(min_relevance), math.inf if max_distance is None else max_distance)
        return allowed if allowed < math.inf else None


def likelihood(score: float, attainable: float) -> float:
    """How likely a hit is right, from 0 to 1, by its score and the one that is attainable; it grows with the score."""
    start, slope = LIKELIHOOD
    return round(1 / (1 + math.exp(-max(-50.0, start + slope * score / attainable))), 2 * DIGITS)


def label(likely: float) -> Label:
    """A likelihood as a word."""
    return "strong" if likely >= STRONG else "weak" if likely < WEAK else "likely"


class _ByFingerprint:
    """An embedder as a key: equal to every other of the same model."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByFingerprint) and other.embedder.fingerprint == self.embedder.fingerprint

    def __hash__(self) -> int:
        return hash(self.embedder.fingerprint)


@lru_cache(maxsize=4)
def _distances(model: _ByFingerprint) -> NDArray[np.float32]:
    vectors = model.embedder.embed(list(SAMPLE_LINES))
    known = vectors[vectors.any(axis=1)]  # lines without a known word are at no distance
    rows, columns = np.triu_indices(len(known), 1)
    return np.sort((1 - (known @ known.T)[rows, columns]).astype(np.float32))
