"""Convert a model's distance to a relevance: the fraction of random line pairs that are more distant (DESIGN,
"Search").

Distances differ between models, but relevance is comparable. ``sample_lines.txt`` contains prose and code of many
kinds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from driftline.storage.embedding import Embedder
from driftline.tasks.search.request import SearchRequest

DIGITS = 4
Label = Literal["strong", "likely", "weak"]
LIKELIHOOD = (-2.9, 1.3, 5.0)
"""The logistic curve that maps a hit's score and the root of its lead, as fractions of the maximum score, to the
fraction of such hits that are relevant: its intercept and its two slopes.

Fitted on first hits, for the tuning halves of the benchmarks."""
ENOUGH_COVERAGE, DEDUCTION = 0.43, 3.0
"""Below this coverage, up to this much is deducted on that curve. Otherwise one rare word of a query about something
else is a likely hit, with a lead that no other file contests. Chosen like the curve, with queries about other topics.
"""
MAX_SHARE, MAX_LEAD = 1.4, 0.4
"""Higher scores and leads, as fractions of the maximum score, are not more certain."""
STRONG, WEAK = 0.55, 0.1
"""The minimum likelihood of a strong hit, and the limit below which a hit is weak. Seven in eight strong first hits are
relevant (fewer for sentences), and one in thirteen weak hits.
"""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The ``distances`` of all sample line pairs for one model, ``(n,) float32``, ascending."""

    distances: NDArray[np.float32]

    @classmethod
    def of(cls, embedder: Embedder) -> Self:
        """Return a model's calibration, measured once per process."""
        return cls(_distances(_ByFingerprint(embedder)))

    def relevance(self, distance: float) -> float:
        """Return the fraction of pairs that are at least ``distance`` apart, from 0 to 1."""
        if not len(self.distances):
            return float(distance < 1)
        nearer = int(np.searchsorted(self.distances, np.float32(distance - 1e-6), side="left"))
        return round(1 - nearer / len(self.distances), DIGITS)

    def max_distance(self, relevance: float) -> float:
        """Return the largest distance with at least this relevance; infinite for 0."""
        farther = math.ceil(relevance * len(self.distances))
        return float(self.distances[-farther]) if farther else math.inf

    def limit(self, request: SearchRequest) -> float | None:
        """Combine a request's two limits into one distance, or return None for no limit."""
        if request.min_relevance is None:
            return request.max_distance
        farthest = math.inf if request.max_distance is None else request.max_distance
        allowed = min(self.max_distance(request.min_relevance), farthest)
        return allowed if allowed < math.inf else None


def likelihood(score: float, lead: float, max_score: float, coverage: float) -> float:
    """Return the probability that a hit with this ``score`` is relevant.

    Args:
        score: The hit's score.
        lead: By how much the score exceeds that of the next file (``Window.lead``): many equally good hits are rarely
            all relevant.
        max_score: The maximum score.
        coverage: The fraction of the query's information that the hit, or one after it, contains (``Window.coverage``).
    """
    start, slope, slope_of_lead = LIKELIHOOD
    share, of_lead = min(score / max_score, MAX_SHARE), min(max(lead / max_score, 0.0), MAX_LEAD)
    uncovered = max(0.0, 1 - coverage / ENOUGH_COVERAGE)
    logit = start + slope * share + slope_of_lead * math.sqrt(of_lead) - DEDUCTION * uncovered
    return round(1 / (1 + math.exp(-max(-50.0, logit))), DIGITS)


def label(likely: float) -> Label:
    """Return a likelihood's label."""
    return "strong" if likely >= STRONG else "weak" if likely < WEAK else "likely"


class _ByFingerprint:
    """An embedder as a cache key, equal for all embedders of the same model."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByFingerprint) and other.embedder.fingerprint == self.embedder.fingerprint

    def __hash__(self) -> int:
        return hash(self.embedder.fingerprint)


@lru_cache(maxsize=4)
def _distances(model: _ByFingerprint) -> NDArray[np.float32]:
    lines = Path(__file__).with_name("sample_lines.txt").read_text(encoding="utf-8").splitlines()
    vectors = model.embedder.embed(lines)
    known = vectors[vectors.any(axis=1)]  # lines with no known words have no distance
    rows, columns = np.triu_indices(len(known), 1)
    return np.sort((1 - (known @ known.T)[rows, columns]).astype(np.float32))
