"""How well lines answer a query: their words, their meaning, and whether they define something (DESIGN, "Search").

A line is judged with its neighbours, since one line alone says little:

    score = BM25 of the words around it and of its path, and half of the weights of the words in its path once more
          + 0.04 x BM25 of the four best blocks of its document
          + 8 x cosine of the vectors around it
          + 4 if it begins a definition

The figures were chosen on the tuning half of ``tests/benchmarks/quality.py``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftline.tasks.terms import terms

WORD_REACH, WORD_DECAY = 8, 0.85
"""Lines on either side whose words count for a line, and what they count for each line of distance."""
MEANING_REACH, MEANING_DECAY = 3, 0.7
"""The same of vectors."""
PATH_WEIGHT = 0.5
DOCUMENT_WEIGHT, DOCUMENT_BLOCKS = 0.04, 4
MEANING_WEIGHT = 8.0
DEFINITION_BONUS = 4.0
BM25_K1, BM25_B = 1.2, 0.75
_DEFINITION = re.compile(
    r"\s*(?:(?:export|default|public|private|protected|internal|static|abstract|final|async|inline|pub(?:\([^)]*\))?)\s+)*"
    r"(?:def|class|func|function|fn|fun|interface|struct|enum|trait|impl|module|type|record|namespace)\s+\w"
)


@dataclass(frozen=True, slots=True)
class Lines:
    """Candidates, ``n`` of them, in the order of documents and lines.

    ``document`` ``(n,) int`` tells documents apart, ``number`` ``(n,) int`` holds 0-based lines.
    """

    document: NDArray[np.int64]
    number: NDArray[np.int64]
    text: Sequence[str]
    path: Sequence[str]


def word_weights(
    counts: NDArray[np.float32], lengths: NDArray[np.float32], bm25: NDArray[np.float32]
) -> NDArray[np.float32]:
    """``(t,)``: what each of ``t`` words weighs (its idf), from the scores that an index has given to ``b`` blocks.

    ``counts`` ``(b, t)`` says how often each block holds each word, ``lengths`` ``(b,)`` how many words it has. An
    index tells its scores, not the weights in them; they are what explains the scores best (non-negative least
    squares).
    """
    from scipy.optimize import nnls

    if not counts.size:
        return np.zeros(counts.shape[1], np.float32)
    weights, _ = nnls(_saturated(counts, lengths), bm25.astype(np.float64))
    return np.asarray(weights, np.float32)


def text_scores(
    lines: Lines,
    counts: NDArray[np.float32],
    lengths: NDArray[np.float32],
    in_path: NDArray[np.float32],
    weights: NDArray[np.float32],
) -> NDArray[np.float32]:
    """``(n,)``: BM25 of the words around each line and of its path.

    ``counts`` and ``in_path`` ``(n, t)`` say how often a line and its path hold each word of the query, ``lengths``
    ``(n,)`` how many words a line has, ``weights`` ``(t,)`` what each word weighs.
    """
    around = _around(lines, np.column_stack([counts, lengths]), WORD_REACH, WORD_DECAY)
    scores: NDArray[np.float32] = _saturated(around[:, :-1] + in_path, around[:, -1]) @ weights
    return scores + PATH_WEIGHT * ((in_path > 0) @ weights)


def document_scores(documents: Sequence[Hashable], bm25: Sequence[float]) -> dict[Hashable, float]:
    """What each document gains by its best blocks; ``documents`` names that of each block, best first."""
    of_document: dict[Hashable, list[float]] = {}
    for document, score in zip(documents, bm25, strict=True):
        of_document.setdefault(document, []).append(score)
    return {name: DOCUMENT_WEIGHT * sum(found[:DOCUMENT_BLOCKS]) for name, found in of_document.items()}


def meaning_scores(lines: Lines, vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """``(n,)``: cosine of ``query`` and the weighted mean of the ``vectors``, ``(n, dim)``, around each line."""
    around = _around(lines, vectors, MEANING_REACH, MEANING_DECAY)
    norms = np.linalg.norm(around, axis=1)
    cosines: NDArray[np.float32] = np.divide(around @ query, norms, out=np.zeros_like(norms), where=norms > 0)
    return cosines


def definitions(text: Sequence[str]) -> NDArray[np.bool_]:
    """``(n,)``: which lines begin the definition of a function, a class or a type."""
    return np.fromiter((_DEFINITION.match(line) is not None for line in text), np.bool_, len(text))


def count_words(texts: Sequence[str], words: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """How often each text holds each of ``words``, which are distinct terms, ``(n, t)``; and its length, ``(n,)``."""
    column = {word: at for at, word in enumerate(words)}
    counts = np.zeros((len(texts), len(words)), np.float32)
    lengths = np.zeros(len(texts), np.float32)
    for row, text in enumerate(texts):
        found = terms(text)
        lengths[row] = len(found)
        for term in found:
            at = column.get(term)
            if at is not None:
                counts[row, at] += 1
    return counts, lengths


def _saturated(counts: NDArray[np.float32], lengths: NDArray[np.float32]) -> NDArray[np.float32]:
    """What BM25 makes of counts, before the weights of words (Robertson and Zaragoza, 2009)."""
    mean = lengths.mean() or 1.0
    norm = BM25_K1 * (1 - BM25_B + BM25_B * lengths / mean)
    return np.asarray(counts * (BM25_K1 + 1) / (counts + norm[:, None]), np.float32)


def _around(lines: Lines, values: NDArray[np.float32], reach: int, decay: float) -> NDArray[np.float32]:
    """``(n, c)``: for each line the sum of the ``values``, ``(n, c)``, around it, less of those that are farther."""
    total = values.copy()
    for step in range(1, min(reach, len(values) - 1) + 1):
        distance = lines.number[step:] - lines.number[:-step]
        near = (lines.document[step:] == lines.document[:-step]) & (distance <= reach)
        share = np.where(near, decay ** distance.clip(0, reach), 0).astype(np.float32)[:, None]
        total[step:] += share * values[:-step]
        total[:-step] += share * values[step:]
    return total
