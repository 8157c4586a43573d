"""Ask the field's public benchmark (63 repositories, 19 languages) of Driftline and of semble with the same model.

    .venv/bin/python tests/benchmarks/public_repositories.py --trees REPOS --annotations SEMBLE/benchmarks --keep 1

The questions and their answers are semble's (https://github.com/MinishLab/semble, MIT): ``--annotations`` is its folder
``benchmarks``, and ``--trees`` holds a checkout of each repository of ``repos.json``, named like the repository, at the
pinned commit; by default, they are the folders ``public/annotations`` and ``public/trees`` next to the other
benchmarks' corpora. NDCG@10 is defined as in its ``metrics.py``: each relevant file counts once, at the first result
that shows it. ``tokens`` counts the results up to the first correct one, or all if none is correct, at four characters
per token. Missing repositories are reported and skipped. The weights of the ranking were tuned on repositories whose
names begin with a to l (``--half tuning``); the others are for reporting. ``--keep 1`` keeps the indexes for the next
run, which then reports no CPU time for indexing.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import log2
from pathlib import Path
from typing import Any

import corpus
import measure
from semble.index import SembleIndex

from driftline.storage.workspace.workspace import Workspace
from tests.support.searches import search

TOP_K = 10
FIRST_OF_REPORTING = "m"
HALVES = ("tuning", "reporting")
KINDS = ("semantic", "architecture", "symbol")
CHARACTERS_PER_TOKEN = 4
WITHIN_TOKENS = 1_000
TARGETS = (
    ("NDCG@10 of public questions", "all", 0.87),
    ("the same, reporting half", "reporting", 0.87),
    ("the same, names", "symbol", 0.98),
    ("the same, architecture", "architecture", 0.81),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A file that answers a query, and its relevant lines unless all are."""

    path: str
    first: int = 0
    last: int = sys.maxsize

    def met_by(self, path: str, first: int, last: int) -> bool:
        """Return whether a result shows the target; either path may have additional leading folders."""
        same = path == self.path or path.endswith(f"/{self.path}") or self.path.endswith(f"/{path}")
        return same and first <= self.last and last >= self.first


@dataclass(frozen=True, slots=True)
class Question:
    """A query and all its targets."""

    text: str
    kind: str
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Repository:
    """A tree and questions about it."""

    name: str
    language: str
    tree: Path
    questions: tuple[Question, ...]

    @property
    def half(self) -> str:
        """The half that a repository belongs to: weights are tuned on one half only."""
        return "tuning" if self.name < FIRST_OF_REPORTING else "reporting"


@dataclass(frozen=True, slots=True)
class Result:
    """A result that a contender shows."""

    path: str
    first: int
    last: int
    text: str


Contender = Callable[[str], Sequence[Result]]


@dataclass(slots=True)
class Scores:
    """The scores of one contender per question."""

    ndcg: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    files: list[int] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    early: list[bool] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    index_cpu: float = 0.0

    def add(self, question: Question, repository: Repository, found: Sequence[Result], cpu: float) -> None:
        """Score one result list."""
        score = ndcg(found, question.targets)
        for key in ("all", repository.half, question.kind, repository.language):
            self.ndcg[key].append(score)
        sizes = [len(result.text) / CHARACTERS_PER_TOKEN for result in found]
        right = [any(target.met_by(each.path, each.first, each.last) for target in question.targets) for each in found]
        until = sum(sizes[: right.index(True) + 1]) if any(right) else sum(sizes)
        self.files.append(len({result.path for result in found}))
        self.tokens.append(until)
        self.early.append(any(right) and until <= WITHIN_TOKENS)
        self.cpu.append(cpu)


def main() -> int:
    options = measure.begin(__doc__, trees="", annotations="", half="all", keep=0, peer=1)
    trees, annotations = (getattr(options, name) or corpus.CACHE / "public" / name for name in ("trees", "annotations"))
    found = list(_repositories(Path(trees), Path(annotations), options.half))
    scores: dict[str, Scores] = defaultdict(Scores)
    kept = corpus.CACHE / "public-kept"
    kept.mkdir(parents=True, exist_ok=True)
    with nullcontext(kept) if options.keep else measure.scratch() as folder:
        for repository in found[:2] if options.small else found:
            for name, answer, index_cpu in _contenders(repository, folder, peer=bool(options.peer)):
                answer(repository.questions[0].text)
                scores[name].index_cpu += index_cpu
                for question in repository.questions:
                    started = time.process_time()
                    results = answer(question.text)
                    scores[name].add(question, repository, results, time.process_time() - started)
    _print(scores)
    verdict = measure.Verdict(options.small)
    ours = {key: statistics.mean(each) for key, each in scores["driftline"].ndcg.items()}
    for name, key, target in TARGETS:
        if key in ours:
            verdict.at_least(name, ours[key], target, "")
    if "semble" in scores:
        theirs = {key: statistics.mean(each) for key, each in scores["semble"].ndcg.items()}
        verdict.at_least("the same, of semble's", ours["all"] / theirs["all"], 1.0)
        above = sum(ours[each] > theirs[each] for each in {repository.language for repository in found})
        verdict.at_least("languages with a higher NDCG@10 than semble", float(above), 17.0, "languages")
    return verdict.exit_code


def ndcg(found: Sequence[Result], targets: Sequence[Target]) -> float:
    """Normalized discounted cumulative gain of the first TOP_K results; one that shows two targets counts once."""
    ranks = set()
    for target in targets:
        met = (at for at, each in enumerate(found[:TOP_K]) if target.met_by(each.path, each.first, each.last))
        ranks.add(next(met, None))
    gain = sum(1 / log2(rank + 2) for rank in ranks if rank is not None)
    ideal = sum(1 / log2(rank + 2) for rank in range(min(TOP_K, len(targets))))
    return gain / ideal if ideal else 0.0


def _repositories(trees: Path, annotations: Path, half: str) -> Iterator[Repository]:
    missing = []
    for spec in sorted(json.loads((annotations / "repos.json").read_text("utf-8")), key=lambda spec: spec["name"]):
        name, tree = spec["name"], trees / spec["name"] / (spec.get("benchmark_root") or "")
        if half not in ("all", "tuning" if name < FIRST_OF_REPORTING else "reporting"):
            continue
        requested = json.loads((annotations / "annotations" / f"{name}.json").read_text("utf-8"))
        questions = tuple(_question(each) for each in requested)
        paths = [path.relative_to(trees / name).as_posix() for path in tree.rglob("*")] if tree.is_dir() else []
        absent = [
            t.path for q in questions for t in q.targets if not any(t.met_by(path, 1, sys.maxsize) for path in paths)
        ]
        if absent:
            missing.append(f"{name} ({len(absent)} answers absent, such as {absent[0]})")
        if len(absent) < sum(len(question.targets) for question in questions):
            yield Repository(name, spec["language"], tree, questions)
    print(f"\nMissing: {', '.join(missing) or 'none'}", flush=True)


def _question(requested: dict[str, Any]) -> Question:
    text = requested["query"]
    guessed = "symbol" if " " not in text.strip() else "architecture" if text.lower().startswith("how ") else "semantic"
    targets = [_target(each) for each in (*requested.get("relevant", ()), *requested.get("secondary", ()))]
    return Question(text, requested.get("category") or guessed, tuple(targets))


def _target(raw: str | dict[str, Any]) -> Target:
    if isinstance(raw, str):
        return Target(raw)
    if raw.get("start_line") is None or raw.get("end_line") is None:
        return Target(raw["path"])
    return Target(raw["path"], int(raw["start_line"]), int(raw["end_line"]))


def _contenders(repository: Repository, folder: Path, *, peer: bool) -> Iterator[tuple[str, Contender, float]]:
    """Yield the name, the results and the indexing CPU seconds of each contender."""
    model, target = corpus.model(), folder / f"{repository.name}.driftline"
    command = [*measure.DRIFTLINE, "index", str(repository.tree), "--workspace", str(target), "--model", str(model)]
    cpu = 0.0 if target.exists() else measure.run(command).cpu_seconds
    yield "driftline", _driftline(Workspace.open(str(target))), cpu
    if peer:
        os.environ["SEMBLE_CACHE_LOCATION"] = str(folder / "semble")
        started = time.process_time()
        index = SembleIndex.from_path(str(repository.tree), model_path=str(model))
        yield "semble", _semble(index), time.process_time() - started


def _driftline(workspace: Workspace) -> Contender:
    def answer(query: str) -> list[Result]:
        found = search(workspace, query, top_k=TOP_K).results
        return [Result(hit.path, hit.start_line, hit.end_line, "\n".join(hit.context)) for hit in found]

    return answer


def _semble(index: SembleIndex) -> Contender:
    def answer(query: str) -> list[Result]:
        found = [result.chunk for result in index.search(query, top_k=TOP_K)]
        return [Result(chunk.file_path, chunk.start_line, chunk.end_line, chunk.content) for chunk in found]

    return answer


def _print(scores: dict[str, Scores]) -> None:
    first = next(iter(scores.values()))
    print(f"\n{len(first.cpu)} questions; NDCG@{TOP_K}")
    print(f"{'':12}" + "".join(f"{name:>11}" for name in scores))
    languages = sorted({*first.ndcg} - {"all", *HALVES, *KINDS})
    for key in ("all", *HALVES, *KINDS, *languages):
        if key in first.ndcg:
            print(f"{key:12}" + "".join(f"{statistics.mean(each.ndcg[key]):11.3f}" for each in scores.values()))
    rows: dict[str, Callable[[Scores], str]] = {
        "files of 10": lambda each: f"{statistics.mean(each.files):.1f}",
        "tokens": lambda each: f"{statistics.mean(each.tokens):.0f}",
        "right in 1k": lambda each: f"{statistics.mean(each.early):.3f}",
        "CPU ms": lambda each: f"{1000 * statistics.mean(each.cpu):.1f}",
        "index CPU s": lambda each: f"{each.index_cpu:.1f}",
    }
    for name, outcome in rows.items():
        print(f"{name:12}" + "".join(f"{outcome(each):>11}" for each in scores.values()))


if __name__ == "__main__":
    sys.exit(main())
