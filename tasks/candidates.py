"""The lines among which a hybrid search chooses: those of the best blocks by words, and the nearest by meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.lines import LINES_PER_BLOCK
from driftline.storage.model import Embedder
from driftline.tasks.ranking import (
    DEFINITION_BONUS,
    MEANING_REACH,
    MEANING_WEIGHT,
    Lines,
    count_words,
    definitions,
    document_scores,
    meaning_scores,
    text_scores,
    word_weights,
)
from driftline.tasks.terms import terms

EMBEDDED_LINES = 40
"""For each result wanted, so many lines with the best words are also judged by their meaning."""

MIN_RESULTS = 10


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line; ``number`` is 0-based."""

    entity: str
    path: str
    number: int
    text: str
    hash: str


def gather(blocks: pa.Table, nearest: pa.Table) -> list[Candidate]:
    """The distinct lines of ``blocks`` (``storage.queries.matching_blocks``) and ``nearest``, by document and line."""
    found: dict[tuple[str, str, int], Candidate] = {}
    for row in nearest.to_pylist():
        key = row["entity"], row["path"], row["line_number"]
        found[key] = Candidate(*key, row["text"], row["hash"])
    for row in blocks.to_pylist():
        first = row["line_number"] // LINES_PER_BLOCK * LINES_PER_BLOCK
        for number, text in enumerate(_lines(row), start=first):
            if text:  # lines without a word have no row
                key = row["entity"], row["path"], number
                found[key] = Candidate(*key, text, row["hash"])
    return [found[key] for key in sorted(found)]


def rank(
    query: str,
    vector: NDArray[np.float32],
    candidates: Sequence[Candidate],
    blocks: pa.Table,
    nearest: pa.Table,
    embedder: Embedder,
    *,
    top_k: int,
    meaning: bool = True,
) -> list[dict[str, Any]]:
    """The best of ``candidates`` for ``query``, best first, as rows of ``storage.queries.nearest_lines``.

    ``vector`` ``(dim,) float32`` is the query's. Without ``meaning``, words alone decide, and lines without
    any are left out.
    """
    if not candidates:
        return []
    words = sorted(set(terms(query)))
    block_counts, block_lengths = count_words(blocks["block"].to_pylist(), words)
    bm25 = blocks["bm25"].to_pylist()
    weights = word_weights(block_counts, block_lengths, np.array(bm25))
    lines = _as_lines(candidates)
    counts, lengths = count_words(lines.text, words)
    paths = {path: at for at, path in enumerate(dict.fromkeys(lines.path))}
    in_path = count_words(list(paths), words)[0][[paths[path] for path in lines.path]]
    scores = text_scores(lines, counts, lengths, in_path, weights)
    gains = document_scores(list(zip(*(blocks[name].to_pylist() for name in ("entity", "path")), strict=True)), bm25)
    scores += np.array([gains.get((line.entity, line.path), 0.0) for line in candidates], np.float32) * (scores > 0)
    chosen = np.flatnonzero(scores > 0)
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")][: EMBEDDED_LINES * max(top_k, MIN_RESULTS)]
    if meaning:
        scores += DEFINITION_BONUS * definitions(lines.text)
        chosen = np.union1d(chosen, _positions(candidates, nearest))
    around = _with_neighbours(chosen, len(candidates))
    vectors = np.zeros((len(candidates), len(vector)), np.float32)
    vectors[around] = embedder.embed([lines.text[at] for at in around.tolist()])
    if meaning:
        scores += MEANING_WEIGHT * meaning_scores(lines, vectors, vector)
    distances = 1 - vectors[chosen] @ vector
    rows = [
        {**_row(candidates[at]), "distance": distance, "relevance": float(scores[at])}
        for at, distance in zip(chosen.tolist(), distances.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row["relevance"], row["entity"], row["path"], row["line_number"]))


def _lines(block: Mapping[str, Any]) -> Iterator[str]:
    return iter(block["block"][len(block["path"]) + 1 :].split("\n"))


def _as_lines(candidates: Sequence[Candidate]) -> Lines:
    documents: dict[tuple[str, str], int] = {}
    numbers = [documents.setdefault((line.entity, line.path), len(documents)) for line in candidates]
    return Lines(
        np.array(numbers),
        np.array([line.number for line in candidates]),
        [line.text for line in candidates],
        [line.path for line in candidates],
    )


def _positions(candidates: Sequence[Candidate], rows: pa.Table) -> NDArray[np.intp]:
    wanted = set(zip(*(rows[name].to_pylist() for name in ("entity", "path", "line_number")), strict=True))
    found = [at for at, line in enumerate(candidates) if (line.entity, line.path, line.number) in wanted]
    return np.array(found, np.intp)


def _with_neighbours(chosen: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    steps = np.arange(-MEANING_REACH, MEANING_REACH + 1)
    around = np.unique(chosen[:, None] + steps)
    return around[(around >= 0) & (around < count)]


def _row(line: Candidate) -> dict[str, Any]:
    return {
        "entity": line.entity,
        "path": line.path,
        "line_number": line.number,
        "text": line.text,
        "hash": line.hash,
    }
