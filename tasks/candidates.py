"""The lines among which a hybrid search chooses: those of the best blocks by words, and the nearest by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.lines import LINES_PER_BLOCK
from driftline.storage.model import Embedder
from driftline.tasks.ranking import (
    DEFINITION_BONUS,
    MEANING_REACH,
    MEANING_WEIGHT,
    PROSE_MEANING_WEIGHT,
    Lines,
    count_words,
    definitions,
    document_scores,
    is_prose,
    line_scores,
    meaning_scores,
    text_scores,
    word_weights,
)
from driftline.tasks.terms import telling_words, terms

JUDGED_LINES = 20
"""For each result wanted, so many lines with the best words are also judged by their meaning."""
MIN_RESULTS = 10
DISTANCE_DIGITS = 6
"""Sums of float32 in another order differ behind it: a line that is the query itself has the distance 0."""


class Candidate(NamedTuple):
    """A line; ``line_number`` is 0-based. ``block`` is its row among the blocks, -1 if it is none of theirs.

    ``near`` says whether it is one of the nearest.
    """

    entity: str
    path: str
    line_number: int
    text: str
    hash: str
    block: int
    near: bool


def gather(blocks: pa.Table, nearest: pa.Table) -> list[Candidate]:
    """The distinct lines of ``blocks`` (``storage.queries.matching_blocks``) and ``nearest``, by document and line."""
    found: dict[tuple[str, str, int], Candidate] = {}
    for row in nearest.to_pylist():
        key = row["entity"], row["path"], row["line_number"]
        found[key] = Candidate(*key, row["text"], row["hash"], block=-1, near=True)
    for at, row in enumerate(blocks.to_pylist()):
        entity, path, digest = row["entity"], row["path"], row["hash"]
        first = row["line_number"] // LINES_PER_BLOCK * LINES_PER_BLOCK
        lines = row["block"][len(path) + 1 :].split("\n")
        for number, text in enumerate(lines, start=first):
            if text:  # lines without a word have no row
                key = entity, path, number
                found[key] = Candidate(*key, text, digest, at, near=key in found)
    return [found[key] for key in sorted(found)]


def rank(
    query: str,
    vector: NDArray[np.float32],
    candidates: Sequence[Candidate],
    blocks: pa.Table,
    embedder: Embedder,
    *,
    top_k: int,
    meaning: bool = True,
) -> list[dict[str, Any]]:
    """The best of ``candidates``, which are ``gather``'s, for ``query``, best first.

    They are rows of ``storage.queries.nearest_lines`` with a ``relevance``, by which they are ordered, and a ``fit``,
    which leaves their neighbours out. ``vector`` ``(dim,) float32`` is the query's. Without ``meaning``, words alone
    decide, and lines without any are left out.
    """
    if not candidates:
        return []
    documents: dict[tuple[str, str], int] = {}
    numbers = [documents.setdefault((line.entity, line.path), len(documents)) for line in candidates]
    lines = Lines(np.array(numbers), np.array([line.line_number for line in candidates]))
    texts = [line.text for line in candidates]
    of_words, of_own_words = _text_scores(query, lines, texts, candidates, documents, blocks)
    chosen = np.flatnonzero(of_words > 0)
    chosen = chosen[np.argsort(-of_words[chosen], kind="stable")][: JUDGED_LINES * max(top_k, MIN_RESULTS)]
    if meaning:
        chosen = np.union1d(chosen, np.flatnonzero([line.near for line in candidates]))
    steps = np.arange(-MEANING_REACH, MEANING_REACH + 1)
    around = np.unique((chosen[:, None] + steps).clip(0, len(candidates) - 1))
    at = np.searchsorted(around, chosen)  # where the chosen ones are among those around them
    vectors = embedder.embed([texts[number] for number in around.tolist()])
    own_cosines = vectors[at] @ vector
    relevance, fit = of_words[chosen], of_own_words[chosen]
    if meaning:
        cosines = meaning_scores(Lines(lines.document[around], lines.number[around]), vectors, vector)
        prose = np.array([is_prose(candidates[number].path) for number in chosen.tolist()])
        words_tell = bool((relevance > 0).any())
        weight = np.where(prose & words_tell, PROSE_MEANING_WEIGHT, MEANING_WEIGHT)
        defines = definitions([texts[number] for number in chosen.tolist()]) & (relevance > 0) & ~prose
        relevance = relevance + weight * cosines[at] + DEFINITION_BONUS * defines
        fit = fit + weight * own_cosines + DEFINITION_BONUS * defines
    return [
        {
            **candidates[chosen[i]]._asdict(),
            "distance": round(1 - float(own_cosines[i]), DISTANCE_DIGITS),
            "relevance": float(relevance[i]),
            "fit": float(fit[i]),
        }
        for i in np.argsort(-relevance, kind="stable").tolist()
    ]


def _text_scores(
    query: str,
    lines: Lines,
    texts: Sequence[str],
    candidates: Sequence[Candidate],
    documents: dict[tuple[str, str], int],
    blocks: pa.Table,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """``(n,)`` each: what the words around the candidates, and of their documents, say; and their own alone."""
    words = sorted(set(terms(" ".join(telling_words(query)))))
    counts, lengths = count_words(texts, words)
    in_path, path_lengths = count_words([path for _, path in documents], words)
    block = np.array([line.block for line in candidates])
    inside = block >= 0
    block_counts = np.zeros((len(blocks), len(words)), np.float32)
    np.add.at(block_counts, block[inside], counts[inside])
    block_lengths = np.bincount(block[inside], lengths[inside], minlength=len(blocks)).astype(np.float32)
    document = [documents[key] for key in zip(blocks["entity"].to_pylist(), blocks["path"].to_pylist(), strict=True)]
    bm25 = blocks["bm25"].to_numpy()
    weights = word_weights(block_counts + in_path[document], block_lengths + path_lengths[document], bm25)
    scores = text_scores(lines, counts, lengths, in_path[lines.document], weights)
    scores += document_scores(document, bm25, len(documents))[lines.document] * (scores > 0)
    return scores, line_scores(counts, lengths, weights)
