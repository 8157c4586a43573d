"""Vary each weight of the ranking on the tuning halves of all query sets.

    .venv/bin/python tests/benchmarks/weights.py --queries 60
    .venv/bin/python tests/benchmarks/weights.py --sets go,prose

Every variant answers each query by a whole search. ``mean`` is the mean MRR@10 over all sets except the questions,
which are few. A weight in ``tasks/search/ranking.py`` or a constant in ``tasks/search/ranked.py`` was changed if the
mean rose and no set lost much; the reporting halves were not used. ``--keep 1`` keeps the indexes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import measure
import numpy as np
import quality

from driftline.tasks.search import ranked
from driftline.tasks.search.ranking import WEIGHTS, WEIGHTS_OF_FORMS, Neighbourhood, Weights

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
    {"quoted": 0.0},
    {"definition": 0.0},
    {"definition": 3.0},
    {"definition": 7.0},
    {"name": 10.0},
    {"test": 0.5},
    {"test": 0.9},
    {"text": 1.0},
    {"file": 0.0},
    {"file": 0.5},
    {"stem": 0.0},
    {"stem": 0.4},
    {"again": 0.0},
    {"again": -1.0},
    {"code": (Neighbourhood(4.0, 3, 0.7),)},
    {"code": (Neighbourhood(12.0, 3, 0.7),)},
    {"prose": (Neighbourhood(4.0, 3, 0.7), Neighbourhood(4.0, 16, 0.95))},
    {"prose": (Neighbourhood(2.0, 3, 0.7), Neighbourhood(8.0, 16, 0.95))},
    {"BM25_OF_COSINE": 10.0},
    {"BM25_OF_COSINE": 50.0},
    {"JUDGED_WINDOWS": 40},
)
"""Weights have lower-case names, constants of ``ranked`` upper-case ones."""


def main() -> int:
    options = measure.begin(__doc__, queries=60, keep=0, sets=",".join(quality.SETS))
    names = ["python"] if options.small else options.sets.split(",")
    print(f"\n{'':42}" + "".join(f"{name[:10]:>11}" for name in names) + f"{'mean':>8}")
    with quality.index_folder(keep=bool(options.keep)) as folder:
        searched = {
            name: [
                (quality.of_driftline(quality.indexed(queries, folder), "hybrid"), queries.half("tuning", count))
                for queries in quality.query_sets(name, small=options.small)
            ]
            for name in names
            for count in [None if name == "questions" else options.queries]
        }
        for variant in VARIANTS[:2] if options.small else VARIANTS:
            with _varied(variant):
                scores = {
                    name: np.mean([_reciprocal_rank(each) for of_set in found for each in quality.answers(*of_set)])
                    for name, found in searched.items()
                }
            mean = np.mean([score for name, score in scores.items() if name != "questions"])
            row = ", ".join(f"{name} {value}" for name, value in variant.items()).replace("Neighbourhood", "")
            row = f"{row or 'as they are':42.42}" + "".join(f"{score:11.3f}" for score in scores.values())
            print(f"{row}{mean:8.4f}", flush=True)
    return 0


def _varied(variant: Mapping[str, Any]) -> ExitStack:
    """Search with other values; a form with a weight of its own keeps it."""
    weights = {name: value for name, value in variant.items() if name.islower()}

    def vary(form: Weights) -> Weights:
        return replace(
            form, **{name: weights[name] for name in weights if getattr(form, name) == getattr(WEIGHTS, name)}
        )

    stack = ExitStack()
    stack.enter_context(patch.object(ranked, "WEIGHTS", vary(WEIGHTS)))
    stack.enter_context(patch.dict(WEIGHTS_OF_FORMS, {form: vary(each) for form, each in WEIGHTS_OF_FORMS.items()}))
    for name in variant.keys() - weights:
        stack.enter_context(patch.object(ranked, name, variant[name]))
    return stack


def _reciprocal_rank(answer: quality.Answer) -> float:
    return 1 / answer.rank if answer.rank else 0.0


if __name__ == "__main__":
    sys.exit(main())
