"""Document 002: filters that are applied before the search, named workspaces, and what to fall back on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from tests.conformance.search_places import ROOT, Driftline, plant, without_variables
from tests.conformance.table import criterion

STRATEGIES = ("auto", "prefilter", "postfilter", "hybrid")
MODES = ("hybrid", "vector", "text")
WORDS = ("parser", "group", "action", "option", "value", "prefix", "usage", "namespace", "default", "string")
PER_FOLDER = {"work/notes": 6, "work/projects/alpha": 6, "work/projects/beta": 8, "personal": 80}
"""Documents of two lines each: a hundred in all, of which ``work`` has a fifth."""
CONFIG = """
workspace = "ws"
[[sources]]
uri = "home"
entity = "source:home"
[[sources]]
uri = "other"
entity = "source:other"
[workspaces.work]
dirs = ["home/work"]
[workspaces.overlapping]
dirs = ["home/work/projects", "home/work/projects/alpha", "home/work/notes"]
[workspaces.both]
dirs = ["home/work/notes"]
sources = ["source:other"]
[workspaces.empty]
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder with ``home`` and ``other``, ``driftline.toml`` over both, and the workspace ``ws``; only read."""
    place = tmp_path_factory.mktemp("filters")
    for folder, count in PER_FOLDER.items():
        for n in range(count):
            text = f"{WORDS[n % 10]} {WORDS[n // 10]} {folder.replace('/', ' ')}\n{WORDS[-1 - n % 10]} argument\n"
            plant(place / "home" / folder, {f"{n:02}.txt": text})
    plant(place / "home" / "it's 100% odd [x]/naïve", {"file name.txt": "parser of odd names\n"})
    plant(place / "other", {"work/notes/other.md": "parser elsewhere\n"})
    plant(place, {"driftline.toml": CONFIG})
    for source in ("home", "other"):
        dl.index(str(place / source), workspace=str(place / "ws"), entity=f"source:{source}", model=str(tiny_model))
    return place


Search = Callable[..., dict[str, Any]]


@pytest.fixture
def search(place: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch) -> Search:
    """``driftline search --explain --json`` in the folder of the configuration."""
    monkeypatch.chdir(place)

    def run(query: str = "parser", *options: object) -> dict[str, Any]:
        outcome = driftline("search", query, "--json", "--explain", "-n", 0, *options)
        assert outcome.code in (0, 1), outcome.err + outcome.out
        answer: dict[str, Any] = outcome.json
        return answer

    return run


def paths(answer: dict[str, Any]) -> list[str]:
    return [hit["path"] for hit in answer["results"]]


def hits(answer: dict[str, Any]) -> list[tuple[str, int]]:
    return sorted((hit["path"], hit["line"]) for hit in answer["results"])


# -- the solutions ---------------------------------------------------------------------------


@criterion("002", "configuration", "strategy and fallback_threshold stand in [search] of driftline.toml")
def test_the_strategy_is_configured(
    place: Path, tmp_path: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Driftline's names or the documents'; 0.5 is the threshold unless another is set."""

    def explained(settings: str, *options: object) -> dict[str, Any]:
        plant(tmp_path, {"driftline.toml": f'workspace = "{place}/ws"\n[search]\n{settings}\n'})
        monkeypatch.chdir(tmp_path)
        outcome = driftline(
            "search", "parser", "--dir", "personal", "--mode", "vector", "--json", "--explain", *options
        )
        assert outcome.code == 0, outcome.err + outcome.out
        found: dict[str, Any] = outcome.json["explanation"]
        return found

    assert explained('strategy = "postfilter"')["strategy"] == "postfilter"
    assert explained('strategy = "postfilter"', "--strategy", "prefilter")["strategy"] == "prefilter"
    matches, lines = 160, 202
    assert explained('strategy = "hybrid"')["examined"] == lines  # 79 % match: more than half
    assert explained('strategy = "hybrid"\nfallback_threshold = 0.9')["examined"] == matches
    assert explained('strategy = "hybrid"\nfallback_threshold = 0.9', "--fallback-threshold", 0.5)["examined"] == lines
    for written, meant in (("qdrant", "prefilter"), ("post", "postfilter"), ("hybrid", "hybrid")):
        assert (
            explained(f'workspaceFiltering = "{written}"')["strategy"] == explained(f'strategy = "{meant}"')["strategy"]
        )
    assert explained('workspaceFiltering = "hybrid"\nfallbackThreshold = 0.9')["examined"] == matches
    assert explained('workspaceFiltering = "hybrid"\nfallbackThreshold = 0.5')["examined"] == lines


# -- what it is good for ---------------------------------------------------------------------


@criterion("002", "monitoring 1", "the hit rate of a filter is told, and kept")
def test_hit_rates_are_told_and_kept(place: Path, search: Search, driftline: Driftline, tmp_path: Path) -> None:
    """Kept in the run history: the report plots it."""
    rate = search("parser", "--dir", "work", "--entity", "source:home")["explanation"]["hit_rate"]
    assert rate == pytest.approx(40 / 202, abs=0.01)
    assert driftline("report", "--workspace", place / "ws", "-o", tmp_path / "report.html").code == 0
    assert "hit rate" in (tmp_path / "report.html").read_text().lower()


@criterion("002", "monitoring 2", "the times of searches are told by phase, and kept")
def test_times_are_told_and_kept(place: Path, search: Search, driftline: Driftline) -> None:
    seconds = search("parser", "--dir", "work")["explanation"]["seconds"]
    assert {"vector", "text", "rank"} <= set(seconds)
    assert all(value >= 0 for value in seconds.values())
    rows = driftline("runs", "--workspace", place / "ws", "--json").json["runs"]
    assert any("hit_rate" in row for row in rows), "no search stands in the run history"


# -- its tests -------------------------------------------------------------------------------


@criterion("002", "test 3", "filtering before the search looks at fewer lines than filtering after it")
def test_prefiltering_looks_at_fewer_lines(search: Search) -> None:
    """Times are the benchmark's: it runs both strategies beside each other."""
    before, after = (
        search("parser", "--dir", "work", "--mode", "vector", "--strategy", strategy)["explanation"]["examined"]
        for strategy in ("prefilter", "postfilter")
    )
    assert before <= 42
    assert after == 202
    program = (ROOT / "tests/benchmarks/searching.py").read_text()
    assert "prefilter" in program
    assert "postfilter" in program
