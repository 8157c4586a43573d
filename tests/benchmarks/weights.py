"""Vary each weight of the ranking on the tuning halves of all query sets.

    .venv/bin/python tests/benchmarks/weights.py --queries 60

Candidates are looked up once, then ranked by each variant. ``mean`` is the mean MRR@10 over all sets except the
questions, which are few. A weight in ``tasks/search/ranking.py`` was changed if the mean rose and no set lost much; the
reporting halves were not used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import corpus
import measure
import numpy as np
import pyarrow as pa
from language_sets import LANGUAGES, language_set, question_sets
from numpy.typing import NDArray
from quality_sets import Query, QuerySet, code_set, prose_set

from driftline.storage.defaults import DEFAULT_N_LINES
from driftline.storage.embedding import Embedder
from driftline.storage.lines.table_searcher import TableSearcher
from driftline.storage.lines.tokenizer import keywords, normalize_query
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.candidates import Candidates, gather, lines_of, rank
from driftline.tasks.search.ranked import CANDIDATE_BLOCKS, CANDIDATE_LINES
from driftline.tasks.search.ranking import WEIGHTS, Neighbourhood, Weights, merge_windows
from driftline.tasks.task_context import ModelRef, load_embedder

TOP_K = 10
REACH = 2 * DEFAULT_N_LINES + 1
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"word_reach": 8},
    {"word_reach": 24},
    {"word_decay": 0.8},
    {"word_decay": 0.9},
    {"path": 0.0},
    {"path": 0.5},
    {"names": 0.0},
    {"names": 0.25},
    {"names": 1.0},
    {"document": 0.03},
    {"document": 0.1},
    {"definition": 0.0},
    {"definition": 3.0},
    {"definition": 7.0},
    {"test": 0.0},
    {"test": -2.0},
    {"test": -6.0},
    {"code": (Neighbourhood(4.0, 3, 0.7),)},
    {"code": (Neighbourhood(12.0, 3, 0.7),)},
    {"prose": (Neighbourhood(4.0, 3, 0.7), Neighbourhood(4.0, 16, 0.95))},
    {"prose": (Neighbourhood(2.0, 3, 0.7), Neighbourhood(8.0, 16, 0.95))},
)


@dataclass(frozen=True, slots=True)
class SearchCase:
    """A query, its vector and its candidates."""

    query: Query
    vector: NDArray[np.float32]
    blocks: pa.Table
    candidates: Candidates


def main() -> int:
    options = measure.begin(__doc__, queries=60)
    requested: dict[str, list[SearchCase]] = {}
    with measure.scratch() as folder:
        for name, queries in _sets(small=options.small):
            count = None if name == "questions" else options.queries
            embedder, found = _look_up(queries, queries.half("tuning", count), folder)
            requested.setdefault(name, []).extend(found)
    print(f"\n{'':42}" + "".join(f"{name[:10]:>11}" for name in requested) + f"{'mean':>8}")
    for variant in VARIANTS[:2] if options.small else VARIANTS:
        scores = {name: _mrr(found, embedder, replace(WEIGHTS, **variant)) for name, found in requested.items()}
        mean = np.mean([score for name, score in scores.items() if name != "questions"])
        outcome = (
            ", ".join(f"{name} {value}" for name, value in variant.items()).replace("Neighbourhood", "")
            or "as they are"
        )
        print(f"{outcome:42.42}" + "".join(f"{score:11.3f}" for score in scores.values()) + f"{mean:8.4f}", flush=True)
    return 0


def _sets(*, small: bool) -> Iterator[tuple[str, QuerySet]]:
    if small:
        yield "python", code_set(("joblib",), 40)
        return
    yield "python", code_set()
    for language in LANGUAGES:
        yield language, language_set(language)
    yield "prose", prose_set()
    for queries in question_sets():
        yield "questions", queries


def _look_up(queries: QuerySet, requested: Sequence[Query], folder: Path) -> tuple[Embedder, list[SearchCase]]:
    """Return each query's candidates, as found by a search."""
    target = folder / f"{queries.tree.path.parent.name}.driftline"
    if not target.exists():
        tree, model = str(queries.tree.path), str(corpus.model())
        measure.run([*measure.DRIFTLINE, "index", tree, "--workspace", str(target), "--model", model])
    workspace = Workspace.open(str(target))
    config = workspace.config
    assert config.model is not None
    assert config.fingerprint is not None
    assert config.dim is not None
    embedder = load_embedder(ModelRef(config.model, config.fingerprint, config.dim))
    table = TableSearcher(workspace.lines(workspace.tenants()[0]))
    found = []
    for query in requested:
        vector = embedder.embed_query(query.text)
        blocks = table.blocks(normalize_query(keywords(query.text)), CANDIDATE_BLOCKS)
        nearest = table.nearest(vector, CANDIDATE_LINES)
        found.append(SearchCase(query, vector, blocks, gather(lines_of(blocks, query.text), nearest)))
    return embedder, found


def _mrr(requested: Sequence[SearchCase], embedder: Embedder, weights: Weights) -> float:
    total = 0.0
    for each in requested:
        rows = rank(each.vector, each.candidates, each.blocks, embedder, n_windows=TOP_K, weights=weights)
        for location, window in enumerate(merge_windows(rows, REACH, TOP_K), start=1):
            first, last = window.first + 1 - DEFAULT_N_LINES, window.last + 1 + DEFAULT_N_LINES
            if each.query.met_by(window.path, first, last):
                total += 1 / location
                break
    return total / len(requested)


if __name__ == "__main__":
    sys.exit(main())
