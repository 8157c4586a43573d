"""Measure questions about a manual in English, German, Japanese and Chinese, in the modes ``words`` and ``hybrid``.

    .venv/bin/python tests/benchmarks/handbook.py --keep 1
    .venv/bin/python tests/benchmarks/handbook.py --half tuning --languages ja-JP,zh-CN

The manual is Debian's handbook (``apt-get``); its translations share section numbers. Each row of
``handbook_questions.tsv`` has the file and number of a section and a question in each language, written before any
search. A result is correct if it shows the section. Every other question is for tuning.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from statistics import mean

import corpus
import measure
from packages import Package, unpacked

from driftline.storage.defaults import Mode
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.hits import Hit
from tests.support.searches import search

HANDBOOK = Package("debian", "debian-handbook", "11.20220922")
PAGES = "usr/share/doc/debian-handbook/html"
QUESTIONS = Path(__file__).with_name("handbook_questions.tsv")
LANGUAGES = ("en-US", "de-DE", "ja-JP", "zh-CN")
TOP_K = 10
MODES: tuple[Mode, ...] = ("hybrid", "text")
TARGETS = {("en-US", "hybrid"): (0.32, 0.55), ("ja-JP", "text"): (0.20, 0.35), ("zh-CN", "text"): (0.20, 0.35)}
"""MRR and recall for one language and mode."""


def main() -> int:
    options = measure.begin(__doc__, half="reporting", languages=",".join(LANGUAGES), keep=0)
    verdict = measure.Verdict(options.small)
    asked = [line.split("\t") for line in QUESTIONS.read_text("utf-8").splitlines()]
    asked = {"tuning": asked[::2], "reporting": asked[1::2], "all": asked}[options.half]
    kept = corpus.CACHE / "handbook-kept"
    kept.mkdir(parents=True, exist_ok=True)
    print(
        f"{len(asked)} questions ({options.half} half)\n{'':14}{'MRR@10':>8}{'recall@10':>11}  first hits: label, right"
    )
    with nullcontext(kept) if options.keep else measure.scratch() as folder:
        for language in options.languages.split(","):
            tree, target = unpacked(HANDBOOK) / PAGES / language, folder / f"{language}.driftline"
            command = [*measure.DRIFTLINE, "index", str(tree), "--workspace", str(target)]
            measure.run([*command, "--model", str(corpus.model())])
            workspace = Workspace.open(str(target))
            for mode in MODES:
                ranks, labels = list[float](), defaultdict[str, list[bool]](list)
                for page, number, *questions in asked:
                    found = search(workspace, questions[LANGUAGES.index(language)], top_k=TOP_K, mode=mode).results
                    right = [_shows(hit, f"sect.{page}.html", number) for hit in found]
                    ranks.append(1 / (right.index(True) + 1) if any(right) else 0.0)
                    for hit, is_right in zip(found[:1], right, strict=False):
                        labels[str(hit.label)].append(is_right)
                first = ", ".join(f"{label} {sum(of)}/{len(of)}" for label, of in sorted(labels.items()))
                mrr, recall = mean(ranks), mean(map(bool, ranks))
                print(f"{language} {mode:8}{mrr:8.3f}{recall:11.3f}  {first}", flush=True)
                if wanted := TARGETS.get((language, mode)):
                    verdict.at_least(f"MRR@10 of a manual, {language}, {mode}", mrr, wanted[0], "")
                    verdict.at_least(f"recall@10 of a manual, {language}, {mode}", recall, wanted[1], "")
    return verdict.exit_code


def _shows(hit: Hit, page: str, number: str) -> bool:
    """Return whether a hit shows a section. A number such as ``9.10.`` stands for a whole page."""
    if hit.path != page:
        return False
    shown = (hit.symbol or "", *hit.context)
    return number.count(".") == 2 or any(number in text for text in shown)


if __name__ == "__main__":
    sys.exit(main())
