"""The quality of answers: queries with known answers, against semble, BM25 and the cosine of single lines.

    .venv/bin/python tests/benchmarks/quality.py

All contenders index the same tree, and those that embed use the same model directory. A result is correct if it is in
the right file and shows a line of the function or paragraph; the table has the average length of results. The ranking
parameters were chosen on the tuning half; the figures are of the reporting half (``--tuning 1`` for the other).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import bm25s
import corpus
import measure
import numpy as np
from quality_sets import Half, Query, QuerySet, code_set, prose_set
from semble.index import SembleIndex
from semble.types import ContentType

from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.query import Mode, search

TOP_K = 10
CHUNK_LINES = 16
OBSTACLE = "weights were chosen on the tuning half, where hybrid is better, and the halves differ by more than this"
"""Lines of a chunk of plain BM25."""
MODES: tuple[Mode, ...] = ("hybrid", "text", "vector")

Result = tuple[str, int, int]
"""Path, first and last line."""
Contender = Callable[[str], Sequence[Result]]


@dataclass(frozen=True, slots=True)
class Score:
    """Means over the queries of a set; ``lines`` is the average length of a result."""

    mrr: float
    recall: float
    ndcg: float
    milliseconds: float
    lines: float


def main() -> int:
    options = measure.begin(__doc__, queries=600, tuning=0)
    half: Half = "tuning" if options.tuning else "reporting"
    verdict = measure.Verdict(options.small)
    code = code_set(("joblib",), 40) if options.small else code_set()
    prose = prose_set(40) if options.small else prose_set()
    with measure.scratch() as folder:
        for queries, mrr_ratio, recall_ratio in ((code, 1.7, 1.6), (prose, 1.2, 1.2)):
            asked = queries.half(half, options.queries)
            print(f"\n{queries.kind}: {len(asked)} queries ({half} half) over {queries.tree}")
            print(f"{'':22} {'MRR@10':>7} {'recall@10':>10} {'NDCG@10':>8} {'p50 ms':>7} {'lines':>6}")
            scores = {name: _score(name, answer, asked) for name, answer in _contenders(queries, folder)}
            measure.bars(f"MRR@10 on {queries.kind}", "", {name: score.mrr for name, score in scores.items()})
            hybrid, semble = scores["driftline, hybrid"], scores["semble 0.7"]
            verdict.at_least(f"MRR@10 on {queries.kind}, of semble's", hybrid.mrr / max(semble.mrr, 1e-9), mrr_ratio)
            verdict.at_least(
                f"recall@10 on {queries.kind}, of semble's", hybrid.recall / max(semble.recall, 1e-9), recall_ratio
            )
            better = max(scores["driftline, text"].mrr, scores["driftline, vector"].mrr)
            verdict.at_least(
                f"MRR@10 on {queries.kind}, of its better half", hybrid.mrr / max(better, 1e-9), 1.0, obstacle=OBSTACLE
            )
    return verdict.exit_code


def _contenders(queries: QuerySet, folder: Path) -> Iterator[tuple[str, Contender]]:
    target = str(folder / f"{queries.kind}.driftline")
    model = corpus.model()
    tree = str(queries.tree.path)
    measure.run([*measure.DRIFTLINE, "index", tree, "--workspace", target, "--model", str(model)])
    workspace = Workspace.open(target)
    for mode in MODES:
        yield f"driftline, {mode}", _driftline(workspace, mode)
    os.environ["SEMBLE_CACHE_LOCATION"] = str(folder / "semble")
    content = ContentType.CODE if queries.kind == "code" else ContentType.DOCS
    yield "semble 0.7", _semble(SembleIndex.from_path(tree, content=content, model_path=str(model)))
    yield f"BM25, {CHUNK_LINES}-line chunks", _bm25(queries.tree.path)


def _driftline(workspace: Workspace, mode: Mode) -> Contender:
    def answer(query: str) -> list[Result]:
        found = search(workspace, query, top_k=TOP_K, mode=mode).results
        return [(hit.path, hit.start_line, hit.end_line) for hit in found]

    return answer


def _semble(index: SembleIndex) -> Contender:
    def answer(query: str) -> list[Result]:
        found = (result.chunk for result in index.search(query, top_k=TOP_K))
        return [(chunk.file_path, chunk.start_line, chunk.end_line) for chunk in found]

    return answer


def _bm25(tree: Path) -> Contender:
    chunks: list[Result] = []
    texts: list[str] = []
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        lines = path.read_text("utf-8").split("\n")
        for start in range(0, len(lines), CHUNK_LINES):
            part = lines[start : start + CHUNK_LINES]
            chunks.append((path.relative_to(tree).as_posix(), start + 1, start + len(part)))
            texts.append("\n".join(part))
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def answer(query: str) -> list[Result]:
        found, _ = retriever.retrieve(bm25s.tokenize(query, show_progress=False), k=TOP_K, show_progress=False)
        return [chunks[number] for number in found[0]]

    return answer


def _score(name: str, answer: Contender, queries: Sequence[Query]) -> Score:
    """Run all ``queries`` and print the row of ``name``."""
    ranks: list[int] = []
    seconds: list[float] = []
    lengths: list[int] = []
    answer(queries[0].text)
    for query in queries:
        started = time.perf_counter()
        found = answer(query.text)
        seconds.append(time.perf_counter() - started)
        lengths += [last - first + 1 for _, first, last in found]
        right = (rank for rank, result in enumerate(found, start=1) if query.met_by(*result))
        ranks.append(next(right, 0))
    hit = np.array([rank for rank in ranks if rank], float)
    count = len(queries)
    score = Score(
        mrr=float((1 / hit).sum()) / count,
        recall=len(hit) / count,
        ndcg=float((1 / np.log2(hit + 1)).sum()) / count,
        milliseconds=1000 * measure.median(seconds),
        lines=float(np.mean(lengths)) if lengths else 0.0,
    )
    print(
        f"{name:22} {score.mrr:7.3f} {score.recall:10.3f} {score.ndcg:8.3f} "
        f"{score.milliseconds:7.1f} {score.lines:6.1f}",
        flush=True,
    )
    return score


if __name__ == "__main__":
    sys.exit(main())
