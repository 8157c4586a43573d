"""Queries for an indexed tree, directory filters for the queries, and the recall of results."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.lines.line_table import LineTable
from driftline.tasks.embedding.embedder import WordTableEmbedder

MIN_WORDS = 4
TOLERANCE = 1e-3
"""Cosines that differ by less count as equal, because many lines differ only in whitespace."""
_SEED = 7


@dataclass(frozen=True, slots=True)
class Directories:
    """Directories and their share of all lines. If there are no directories, there is no filter."""

    names: tuple[str, ...]
    share: float


def sample_queries(table: LineTable, embedder: WordTableEmbedder, count: int) -> NDArray[np.float32]:
    """Return the vectors of ``sample_texts``, of shape ``(count, dim)``."""
    return np.stack([embedder.embed_query(text) for text in sample_texts(table, count)])


def sample_texts(table: LineTable, count: int) -> list[str]:
    """Return lines of the table without their first word, so no query is stored verbatim."""
    texts = pa.Table.from_batches(table.rows(["text"]))["text"]
    dice, chosen = random.Random(_SEED), list[str]()
    while len(chosen) < count:
        words = str(texts[dice.randrange(len(texts))].as_py()).split()
        if len(words) >= MIN_WORDS:
            chosen.append(" ".join(words[1:]))
    return chosen


def choose_directories(table: LineTable, shares: Sequence[float]) -> list[Directories]:
    """Return for each share of all lines the directory, or group of directories, with the closest share."""
    counts: Counter[str] = Counter()
    total = 0
    for batch in table.rows(["parent_dirs"]):
        total += len(batch)
        counts.update(batch["parent_dirs"].flatten().to_pylist())
    top = sorted((name for name in counts if name.count("/") == 1), key=lambda name: (-counts[name], name))
    found = []
    for share in shares:
        best = min(sorted(counts) or [""], key=lambda name: abs(counts[name] - share * total))
        names, held = [best], counts[best]
        if held < 0.8 * share * total:
            names, held = [], 0
            for name in top:
                if held + counts[name] <= 1.1 * share * total:
                    names, held = [*names, name], held + counts[name]
        found.append(Directories(tuple(names), held / total))
    return found


def recall(found: Sequence[float], exact: Sequence[float]) -> float:
    """Return the share of the ``k`` best lines that a result contains; both arguments are distances.

    A line counts if it is as near as the ``k``-th line of the exact result.
    """
    if not len(exact):
        return 1.0
    return float(sum(distance <= exact[-1] + TOLERANCE for distance in found[: len(exact)]) / len(exact))
