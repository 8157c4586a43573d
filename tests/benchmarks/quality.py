"""Measure result quality for queries with known answers, against semble, BM25 and the cosine of single lines.

    .venv/bin/python tests/benchmarks/quality.py
    .venv/bin/python tests/benchmarks/quality.py --sets go,questions --queries 100 --tuning 1
    .venv/bin/python tests/benchmarks/quality.py --sets questions --rerank 1
    .venv/bin/python tests/benchmarks/quality.py --sets go,cpp --tuning 1 --keep 1

Doc comments in seven languages, paragraphs of prose, and questions as a newcomer asks them (``questions.tsv``, written
before any search). All contenders index the same trees, and those that embed use the same model directory. A result is
correct if it is in the right file and shows a line of the function or paragraph; ``strict`` counts a result only if its
best line (the first line if a contender names none) is in it, and ``lines`` is the average length of results. The
weights were chosen on the tuning halves, without C++; the figures come from the reporting halves (``--tuning 1`` shows
the others). ``--rerank 1`` adds a row with a transformer. ``--keep 1`` keeps the indexes next to the corpora, so the
next run only updates them. Languages other than Python need npm, pip and apt-get.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s
import corpus
import measure
import numpy as np
from language_sets import LANGUAGES, language_set, question_sets
from quality_sets import Half, Query, QuerySet, code_set, prose_set
from semble.index import SembleIndex
from semble.types import ContentType

from driftline.storage.defaults import Mode
from driftline.storage.workspace.workspace import Workspace
from tests.support.searches import search

TOP_K = 10
CHUNK_LINES = 16
"""Lines per chunk of plain BM25."""
RATIOS = {"prose": (1.2, 1.2), "questions": (1.0, 1.0)}
"""Targets for MRR and recall relative to semble, where they differ from other languages' targets."""
SETS = ("python", *LANGUAGES, "prose", "questions")
MODES: tuple[Mode, ...] = ("hybrid", "text", "vector")
_UP_TO_DATE: set[Path] = set()
"""The workspaces that this run has indexed. Questions share them with their language's set."""

Result = tuple[str, int, int, int]
"""Path, first line, last line, and best line."""
Contender = Callable[[str], Sequence[Result]]


@dataclass(frozen=True, slots=True)
class Score:
    """Means over the queries of a set; ``lines`` is the average length of a result."""

    mrr: float
    recall: float
    strict: float
    ndcg: float
    milliseconds: float
    lines: float


def main() -> int:
    options = measure.begin(__doc__, queries=300, tuning=0, rerank=0, deep=0, keep=0, sets=",".join(SETS))
    half: Half = "tuning" if options.tuning else "reporting"
    verdict = measure.Verdict(options.small)
    with index_folder(keep=bool(options.keep)) as folder:
        for name in ["python", "prose"] if options.small else options.sets.split(","):
            _compare(name, half, options, folder, verdict)
    return verdict.exit_code


def index_folder(*, keep: bool) -> AbstractContextManager[Path]:
    """Return the folder for indexes, which is removed unless they are kept for the next run."""
    if not keep:
        return measure.scratch()
    folder = corpus.CACHE / "quality-kept"
    folder.mkdir(parents=True, exist_ok=True)
    return nullcontext(folder)


def query_sets(name: str, *, small: bool) -> tuple[QuerySet, ...]:
    """Return the queries of a set; questions cover several trees."""
    if name == "python":
        return (code_set(("toolz",), 4) if small else code_set(),)
    if name == "prose":
        return (prose_set(4, packages=3) if small else prose_set(),)
    return question_sets() if name == "questions" else (language_set(name),)


def _compare(name: str, half: Half, options: Any, folder: Path, verdict: measure.Verdict) -> None:
    """Run a set's queries with every contender; print and judge its scores."""
    found: dict[str, list[Answer]] = {}
    for queries in query_sets(name, small=options.small):
        requested = queries.half(half, options.queries)
        print(f"\n{name}: {len(requested)} queries ({half} half) over {queries.tree}")
        for contender, answer in _contenders(queries, folder, rerank=bool(options.rerank), deep=bool(options.deep)):
            answer(requested[0].text)
            found.setdefault(contender, []).extend(answers(answer, requested))
    print(f"{'':22} {'MRR@10':>7} {'recall@10':>10} {'strict':>7} {'NDCG@10':>8} {'p50 ms':>7} {'lines':>6}")
    scores = {contender: _score(contender, answered) for contender, answered in found.items()}
    measure.bars(f"MRR@10 on {name}", "", {contender: score.mrr for contender, score in scores.items()})
    hybrid, semble = scores["driftline, hybrid"], scores["semble 0.7"]
    mrr_ratio, recall_ratio = RATIOS.get(name, (2.2, 1.8))
    verdict.at_least(f"MRR@10 on {name}, of semble's", hybrid.mrr / max(semble.mrr, 1e-9), mrr_ratio)
    verdict.at_least(f"recall@10 on {name}, of semble's", hybrid.recall / max(semble.recall, 1e-9), recall_ratio)
    better = max(scores["driftline, text"].mrr, scores["driftline, vector"].mrr)
    verdict.at_least(f"MRR@10 on {name}, of its better half", hybrid.mrr / max(better, 1e-9), 1.05)
    if name == "questions":
        verdict.at_least("MRR@10 on questions", hybrid.mrr, 0.16)
        verdict.at_least("recall@10 on questions", hybrid.recall, 0.32)


def _contenders(queries: QuerySet, folder: Path, *, rerank: bool, deep: bool) -> Iterator[tuple[str, Contender]]:
    workspace = indexed(queries, folder, deep=deep)
    for mode in MODES:
        yield f"driftline, {mode}", of_driftline(workspace, mode)
    if rerank:
        yield "driftline, reranked", of_driftline(workspace, "hybrid", rerank=True)
    if deep:
        yield "driftline, deep", of_driftline(workspace, "hybrid", deep=True)
    if rerank and deep:
        yield "driftline, deep, reranked", of_driftline(workspace, "hybrid", rerank=True, deep=True)
    os.environ["SEMBLE_CACHE_LOCATION"] = str(folder / "semble")
    tree, model = str(queries.tree.path), corpus.model()
    content = ContentType.DOCS if queries.kind == "prose" else ContentType.CODE
    yield "semble 0.7", _semble(SembleIndex.from_path(tree, content=content, model_path=str(model)))
    if queries.kind in ("code", "prose"):
        yield f"BM25, {CHUNK_LINES}-line chunks", _bm25(queries.tree.path)


def indexed(queries: QuerySet, folder: Path, *, deep: bool = False) -> Workspace:
    """Return the workspace with the tree of ``queries``, which is indexed once in a run."""
    target = folder / f"{queries.tree.path.parent.name}.driftline"
    if target not in _UP_TO_DATE:
        command = [*measure.DRIFTLINE, "index", str(queries.tree.path), "--workspace", str(target)]
        measure.run([*command, "--model", str(corpus.model()), *(["--deep"] if deep else [])])
        _UP_TO_DATE.add(target)
    return Workspace.open(str(target))


def of_driftline(workspace: Workspace, mode: Mode, *, rerank: bool = False, deep: bool = False) -> Contender:
    def answer(query: str) -> list[Result]:
        found = search(workspace, query, top_k=TOP_K, mode=mode, rerank=rerank, deep=deep).results
        return [(hit.path, hit.start_line, hit.end_line, hit.line) for hit in found]

    return answer


def _semble(index: SembleIndex) -> Contender:
    def answer(query: str) -> list[Result]:
        found = (result.chunk for result in index.search(query, top_k=TOP_K))
        return [(chunk.file_path, chunk.start_line, chunk.end_line, chunk.start_line) for chunk in found]

    return answer


def _bm25(tree: Path) -> Contender:
    chunks: list[Result] = []
    texts: list[str] = []
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        lines = path.read_text("utf-8").split("\n")
        for start in range(0, len(lines), CHUNK_LINES):
            part = lines[start : start + CHUNK_LINES]
            chunks.append((path.relative_to(tree).as_posix(), start + 1, start + len(part), start + 1))
            texts.append("\n".join(part))
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def answer(query: str) -> list[Result]:
        found, _ = retriever.retrieve(bm25s.tokenize(query, show_progress=False), k=TOP_K, show_progress=False)
        return [chunks[number] for number in found[0]]

    return answer


@dataclass(frozen=True, slots=True)
class Answer:
    """The loose and strict ranks of the first correct result (0: none), the search time, and the lengths of the
    results.
    """

    rank: int
    strict_rank: int
    seconds: float
    lengths: tuple[int, ...]


def answers(answer: Contender, queries: Sequence[Query]) -> Iterator[Answer]:
    for query in queries:
        started = time.perf_counter()
        found = answer(query.text)
        seconds = time.perf_counter() - started
        right = [rank for rank, (path, first, last, _) in enumerate(found, 1) if query.met_by(path, first, last)]
        strict = [rank for rank, (path, _, _, best) in enumerate(found, 1) if query.met_by(path, best, best)]
        lengths = tuple(last - first + 1 for _, first, last, _ in found)
        yield Answer(min(right, default=0), min(strict, default=0), seconds, lengths)


def _score(name: str, answers: Sequence[Answer]) -> Score:
    """Return the means over ``answers`` and print them in the row of ``name``."""
    hit = np.array([each.rank for each in answers if each.rank], float)
    strict = np.array([each.strict_rank for each in answers if each.strict_rank], float)
    lengths = [length for each in answers for length in each.lengths]
    score = Score(
        mrr=float((1 / hit).sum()) / len(answers),
        recall=len(hit) / len(answers),
        strict=float((1 / strict).sum()) / len(answers),
        ndcg=float((1 / np.log2(hit + 1)).sum()) / len(answers),
        milliseconds=1000 * measure.median([each.seconds for each in answers]),
        lines=float(np.mean(lengths)) if lengths else 0.0,
    )
    print(
        f"{name:22} {score.mrr:7.3f} {score.recall:10.3f} {score.strict:7.3f} {score.ndcg:8.3f} "
        f"{score.milliseconds:7.1f} {score.lines:6.1f}",
        flush=True,
    )
    return score


if __name__ == "__main__":
    sys.exit(main())
