"""The lines among which a hybrid search chooses: those of the best blocks by words, and the nearest by meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.lines.indexes import TEXT_COLUMN
from driftline.storage.lines.table import LINES_PER_BLOCK
from driftline.storage.lines.words import telling_words, terms
from driftline.storage.model import Embedder
from driftline.tasks.search.ranking import (
    DEFINITION_BONUS,
    MEANING_OF_CODE,
    MEANING_OF_PROSE,
    CandidateLines,
    Reach,
    count_words,
    definitions,
    document_scores,
    is_prose,
    line_scores,
    meaning_scores,
    text_scores,
    word_weights,
)

JUDGED_LINES = 20
"""For each result wanted, so many lines with the best words are also judged by their meaning."""
MIN_RESULTS = 10
DISTANCE_DIGITS = 6
"""Sums of float32 in another order differ behind it: a line that is the query itself has the distance 0."""


Document = tuple[str, str, str]
"""Entity, path and hash."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """``n`` distinct lines, in the order of ``documents`` and lines.

    ``lines`` says where each line stands (``number`` 0-based) and ``texts`` what it says. ``block`` ``(n,)`` is its row
    among the blocks, -1 if it is none of theirs, and ``block_documents`` has the document of each block. ``near``
    ``(n,) bool`` says whether it is one of the nearest. ``counts``, ``(n, t) float32``, say how often it holds each of
    ``words``, ``t`` terms; ``lengths``, ``(n,) float32``, how long it is.
    """

    words: Sequence[str]
    documents: Sequence[Document]
    lines: CandidateLines
    texts: Sequence[str]
    block: NDArray[np.int64]
    block_documents: NDArray[np.int64]
    near: NDArray[np.bool_]
    counts: NDArray[np.float32]
    lengths: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.texts)

    def row(self, at: int) -> dict[str, Any]:
        """One line as ``storage.queries.nearest_lines`` gives it, without its distance."""
        entity, path, digest = self.documents[self.lines.document[at]]
        number = int(self.lines.number[at])
        return {"entity": entity, "path": path, "line_number": number, "text": self.texts[at], "hash": digest}


def lines_of(blocks: pa.Table, query: str) -> Candidates:
    """The lines of ``blocks`` (``storage.queries.matching_blocks``), and the words of ``query`` in them."""
    words = sorted(set(terms(" ".join(telling_words(query)))))
    of_blocks = _documents(blocks)
    documents = sorted(set(of_blocks))
    block_documents = _positions(of_blocks, documents)
    first = blocks["line_number"].to_numpy().astype(np.int64) // LINES_PER_BLOCK * LINES_PER_BLOCK
    order = np.lexsort((first, block_documents))
    whole = blocks[TEXT_COLUMN].to_pylist()
    split = [whole[at][len(of_blocks[at][1]) + 1 :].split("\n") for at in order.tolist()]
    sizes = np.fromiter(map(len, split), np.int64, len(split))
    block = np.repeat(order, sizes)
    number = first[block] + np.arange(len(block)) - np.repeat(sizes.cumsum() - sizes, sizes)
    texts = [*chain.from_iterable(split)]
    held = np.fromiter(map(bool, texts), np.bool_, len(texts))  # lines without a word have no row
    texts = [text for text in texts if text]
    block = block[held]
    return Candidates(
        words,
        documents,
        CandidateLines(block_documents[block], number[held]),
        texts,
        block,
        block_documents,
        np.zeros(len(texts), np.bool_),
        *count_words(texts, words),
    )


def gather(found: Candidates, nearest: pa.Table) -> Candidates:
    """The distinct lines of ``found`` and of ``nearest`` (``storage.queries.nearest_lines``)."""
    of_nearest = _documents(nearest)
    documents = sorted({*found.documents, *of_nearest})
    moved = _positions(found.documents, documents)
    document, near_document = moved[found.lines.document], _positions(of_nearest, documents)
    near_number = nearest["line_number"].to_numpy().astype(np.int64)
    places, near_places = _places(document, found.lines.number), _places(near_document, near_number)
    new = np.flatnonzero(~np.isin(near_places, places))
    texts = [*found.texts, *nearest["text"].take(pa.array(new)).to_pylist()]
    counts, lengths = count_words(texts[len(found) :], found.words)
    order = np.argsort(np.concatenate([places, near_places[new]]))
    return Candidates(
        found.words,
        documents,
        CandidateLines(
            np.concatenate([document, near_document[new]])[order],
            np.concatenate([found.lines.number, near_number[new]])[order],
        ),
        [texts[at] for at in order.tolist()],
        np.concatenate([found.block, np.full(len(new), -1)])[order],
        moved[found.block_documents],
        np.concatenate([found.near | np.isin(places, near_places), np.ones(len(new), np.bool_)])[order],
        np.concatenate([found.counts, counts])[order],
        np.concatenate([found.lengths, lengths])[order],
    )


def _positions(wanted: Sequence[Document], documents: Sequence[Document]) -> NDArray[np.int64]:
    """``(n,)``: where each of the ``wanted`` ones stands among ``documents``."""
    position = {document: at for at, document in enumerate(documents)}
    return np.fromiter((position[document] for document in wanted), np.int64, len(wanted))


def _places(document: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for each line, in the order of documents and lines."""
    return document << 32 | number


def _documents(rows: pa.Table) -> list[Document]:
    return list(zip(*(rows[name].to_pylist() for name in ("entity", "path", "hash")), strict=True))


def rank(
    vector: NDArray[np.float32],
    candidates: Candidates,
    blocks: pa.Table,
    embedder: Embedder,
    *,
    top_k: int,
    meaning: bool = True,
) -> Iterator[dict[str, Any]]:
    """The best of ``candidates``, which are of ``blocks`` (``lines_of``) and others (``gather``), best first.

    They are rows of ``storage.queries.nearest_lines`` with a ``relevance``, by which they are ordered, and a ``fit``,
    which leaves their neighbours out. ``vector`` ``(dim,) float32`` is the query's. Without ``meaning``, words alone
    decide, and lines without any are left out.
    """
    if not len(candidates):
        return iter(())
    lines, texts = candidates.lines, candidates.texts
    of_words, of_own_words = _text_scores(candidates, blocks)
    chosen = np.flatnonzero(of_words > 0)
    chosen = chosen[np.argsort(-of_words[chosen], kind="stable")][: JUDGED_LINES * max(top_k, MIN_RESULTS)]
    if meaning:
        chosen = np.union1d(chosen, np.flatnonzero(candidates.near))
    relevance, fit = of_words[chosen], of_own_words[chosen]
    if not meaning:
        own_cosines = embedder.embed([texts[number] for number in chosen.tolist()]) @ vector
    else:
        prose = np.fromiter((is_prose(path) for _, path, _ in candidates.documents), np.bool_)[lines.document[chosen]]
        prose &= (relevance > 0).any()  # without words, all are judged alike
        own_cosines, gain, own_gain = np.zeros((3, len(chosen)), np.float32)
        for kind, rows in ((MEANING_OF_CODE, np.flatnonzero(~prose)), (MEANING_OF_PROSE, np.flatnonzero(prose))):
            if len(rows):
                own_cosines[rows], gain[rows] = _meaning(candidates, chosen[rows], kind, vector, embedder)
                own_gain[rows] = kind[0].weight * own_cosines[rows]
        bonus = DEFINITION_BONUS * (
            definitions([texts[number] for number in chosen.tolist()]) & (relevance > 0) & ~prose
        )
        relevance, fit = relevance + gain + bonus, fit + own_gain + bonus
    return (
        {
            **candidates.row(chosen[i]),
            "distance": round(1 - float(own_cosines[i]), DISTANCE_DIGITS),
            "relevance": float(relevance[i]),
            "fit": float(fit[i]),
        }
        for i in np.argsort(-relevance, kind="stable").tolist()
    )


def _meaning(
    candidates: Candidates,
    chosen: NDArray[np.int64],
    meaning: Sequence[Reach],
    vector: NDArray[np.float32],
    embedder: Embedder,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """``(n,)`` each, of the ``chosen`` rows of candidates: their cosines, and their ``meaning_scores``."""
    farthest = max(reach.lines for reach in meaning)
    around = np.unique((chosen[:, None] + np.arange(-farthest, farthest + 1)).clip(0, len(candidates) - 1))
    vectors = embedder.embed([candidates.texts[number] for number in around.tolist()])
    at = np.searchsorted(around, chosen)  # where the chosen ones are among those around them
    lines = CandidateLines(candidates.lines.document[around], candidates.lines.number[around])
    return vectors[at] @ vector, meaning_scores(lines, vectors, vector, meaning)[at]


def _text_scores(candidates: Candidates, blocks: pa.Table) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """``(n,)`` each: what the words around the candidates, and of their documents, say; and their own alone."""
    words, counts, lengths = candidates.words, candidates.counts, candidates.lengths
    in_path, path_lengths = count_words([path for _, path, _ in candidates.documents], words)
    inside = candidates.block >= 0
    block = candidates.block[inside]
    block_counts = np.zeros((len(blocks), len(words)), np.float32)
    np.add.at(block_counts, block, counts[inside])
    block_lengths = np.bincount(block, lengths[inside], minlength=len(blocks)).astype(np.float32)
    document = candidates.block_documents
    bm25 = blocks["bm25"].to_numpy()
    weights = word_weights(block_counts + in_path[document], block_lengths + path_lengths[document], bm25)
    lines = candidates.lines
    scores = text_scores(lines, counts, lengths, in_path[lines.document], weights)
    scores += document_scores(document, bm25, len(candidates.documents))[lines.document] * (scores > 0)
    return scores, line_scores(counts, lengths, weights)
