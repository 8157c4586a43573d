"""Searches for usage questions find the documentation, although the source contains the same words."""

from __future__ import annotations

from pathlib import Path

import driftline as dl

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = {
    "how to run it on kubernetes": "operate/kubernetes",
    "how do I index from GitHub Actions": "guides/ci",
    "how do I index an S3 bucket": "guides/buckets",
    "how do I index all repositories of an organization": "guides/fleet",
    "how do I connect it to claude code": "guides/mcp guides/agents",
    "how often should I compact": "operate/compact",
    "how do I free disk space": "operate/cleanup operate/troubleshooting",
    "how do I search a branch": "guides/branches",
    "how do I repair a damaged index": "operate/damage operate/verify",
    "how do I require a password for the web page": "guides/web operate/web",
    "can it read PDF files": "guides/documents",
    "how do I upgrade to a new version": "operate/upgrading",
    "how do I keep the index up to date while I edit": "guides/watch",
    "how do I search with a regular expression": "guides/exact-search",
    "how do I install it": "start/install README",
    "how do I use memory in a YAML agent": "guides/yaml-agents",
    "what is a fencing token": "how-it-works/glossary how-it-works/design",
    "what is compaction": "operate/compact how-it-works/glossary",
    "what is a fleet": "guides/fleet",
    "what is not protected against": "how-it-works/threat-model",
    "what is the difference to ripgrep": "start/compare",
    "what do the exit codes mean": "reference/exit-codes",
}
"""Questions, and the pages that answer each of them; both were written before any search."""


def test_questions_about_use_find_their_pages_before_the_source(tmp_path: Path) -> None:
    sources = [str(ROOT / name) for name in ("docs", "flows", "tasks", "storage")]
    dl.index(sources, workspace=str(tmp_path / "ws"), indexes="none")
    opened = dl.open(str(tmp_path / "ws"))
    ranks: list[float] = []
    for question, pages in QUESTIONS.items():
        paths = [hit.path for hit in opened.search(question, top_k=10)]
        right = (rank for rank, path in enumerate(paths, 1) if any(page in path for page in pages.split()))
        ranks.append(1 / next(right, float("inf")))
    assert sum(rank == 1 for rank in ranks) >= len(ranks) / 2, dict(zip(QUESTIONS, ranks, strict=True))
    assert sum(ranks) / len(ranks) >= 0.6
