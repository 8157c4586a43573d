"""Document 002: filtering before the search, named workspaces, and fallbacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from tests.conformance.search_support import ROOT, Driftline, actions, ok, plant
from tests.conformance.table import criterion

STRATEGIES = ("auto", "prefilter", "postfilter", "hybrid")


MODES = ("hybrid", "vector", "text")


WORDS = ("parser", "group", "action", "option", "value", "prefix", "usage", "namespace", "default", "string")


PER_FOLDER = {"work/notes": 6, "work/projects/alpha": 6, "work/projects/beta": 8, "personal": 80}


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


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A read-only folder: the sources ``home`` and ``other``, a ``driftline.toml`` for both, and the workspace
    ``ws``.
    """
    location = tmp_path_factory.mktemp("filters")
    for folder, count in PER_FOLDER.items():
        for n in range(count):
            text = f"{WORDS[n % 10]} {WORDS[n // 10]} {folder.replace('/', ' ')}\n{WORDS[-1 - n % 10]} argument\n"
            plant(location / "home" / folder, {f"{n:02}.txt": text})
    plant(location / "home" / "it's 100% odd [x]/naïve", {"file name.txt": "parser of odd names\n"})
    plant(location / "other", {"work/notes/other.md": "parser elsewhere\n"})
    plant(location, {"driftline.toml": CONFIG})
    for source in ("home", "other"):
        dl.index(
            str(location / source), workspace=str(location / "ws"), entity=f"source:{source}", model=str(tiny_model)
        )
    return location


Search = Callable[..., dict[str, Any]]


@pytest.fixture
def search(location: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch) -> Search:
    """Run ``driftline search --explain --json`` in the folder of the configuration."""
    monkeypatch.chdir(location)

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


@criterion("002", "solution 1", "a filter by directory is pushed into the search, subdirectories included")
@pytest.mark.parametrize("mode", MODES)
def test_a_directory_filters_before_the_search(mode: str, search: Search) -> None:
    answer = search("parser", "--dir", "work", "--mode", mode, "--top-k", 100, "--entity", "source:home")
    assert paths(answer)
    assert all(path.startswith("work/") for path in paths(answer))
    explained = answer["explanation"]
    assert (explained["matches"], explained["lines"]) == (40, 202)
    assert explained["examined"] <= explained["matches"]
    deeper = search("parser", "--dir", "work/projects/alpha", "--mode", mode, "--top-k", 100)
    assert deeper["explanation"]["matches"] == 12
    assert all(path.startswith("work/projects/alpha/") for path in paths(deeper))


@criterion("002", "solution 2", "named workspaces change without indexing again")
def test_views_need_no_new_index(search: Search, location: Path, tmp_path: Path, driftline: Driftline) -> None:
    assert search("parser", "--in", "work")["explanation"]["matches"] == 40
    runs = driftline("runs", "--workspace", location / "ws", "--json").json["runs"]
    source = f'[[sources]]\nuri = "{location}/home"\nentity = "source:home"\n'
    workspaces = f'[workspaces.work]\ndirs = ["{location}/home/personal"]\n'
    plant(tmp_path, {"driftline.toml": f'workspace = "{location}/ws"\n{source}{workspaces}'})
    moved = search("parser", "--in", "work", "--config", tmp_path / "driftline.toml")
    assert moved["explanation"]["matches"] == 160
    assert all(path.startswith("personal/") for path in paths(moved))
    indexing = ("index", "compact", "remove")
    after = driftline("runs", "--workspace", location / "ws", "--json").json["runs"]
    assert [run for run in after if run["kind"] in indexing] == [run for run in runs if run["kind"] in indexing]


@criterion("002", "solution 3", "any directory of any depth can be a filter, whatever its name holds")
@pytest.mark.parametrize("folder", ["it's 100% odd [x]", "it's 100% odd [x]/naïve"])
def test_any_directory_can_be_a_filter(folder: str, search: Search) -> None:
    answer = search("parser", "--dir", folder, "--top-k", 100)
    assert paths(answer) == ["it's 100% odd [x]/naïve/file name.txt"]


@criterion("002", "approach", "filtered first, and afterwards only where that is cheaper: the answer is the same")
@pytest.mark.parametrize("mode", MODES)
def test_each_strategy_gives_the_same_answer(mode: str, search: Search) -> None:
    answers = {
        strategy: search("parser group", "--dir", "work", "--mode", mode, "--strategy", strategy, "--top-k", 15)
        for strategy in STRATEGIES
    }
    assert {strategy: hits(answer) for strategy, answer in answers.items()} == dict.fromkeys(
        STRATEGIES, hits(answers["prefilter"])
    )
    assert len(answers["prefilter"]["results"]) >= 10
    assert {answer["explanation"]["strategy"] for answer in answers.values()} == set(STRATEGIES)


@criterion("002", "normalization", "a directory may end in a slash or not, and be spelt in any way")
@pytest.mark.parametrize("spelling", ["work", "work/", "./work", "work//", "work/.", "work/notes/..", "{home}/work/"])
def test_a_directory_may_be_written_in_any_form(spelling: str, search: Search, location: Path) -> None:
    answer = search("parser", "--dir", spelling.format(home=location / "home"), "--entity", "source:home")
    assert answer["explanation"]["matches"] == 40


@criterion("002", "fallback 1", "what no directory says can be said by globs, endings, paths and names together")
def test_complex_filters_go_together(search: Search) -> None:
    both = search("parser", "--dir", "work", "--dir", "personal", "--glob", "**/0*.txt", "--ext", ".txt", "--top-k", 50)
    assert both["explanation"]["matches"] == 2 * (6 + 6 + 8 + 10)
    named = search("parser", "--in", "work", "--glob", "**/projects/*/00.txt", "--top-k", 50)
    assert set(paths(named)) == {"work/projects/alpha/00.txt", "work/projects/beta/00.txt"}


@criterion("002", "fallback 2", "few matches among many lines are all found, when filtering afterwards, too")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_few_matches_are_all_found(mode: str, strategy: str, search: Search) -> None:
    """The matches are far from the query, so filtering after the search would find them last."""
    options = ("--mode", mode, "--strategy", strategy, "--top-k", 10)
    answer = search("argument default", "--path", "work/notes/00.txt", "--path", "work/notes/01.txt", *options)
    assert {path for path, _ in hits(answer)} == {"work/notes/00.txt", "work/notes/01.txt"}


@criterion("002", "fallback 3", "filtering afterwards stays available, for Python and on the command line")
def test_post_filtering_is_available(search: Search, location: Path) -> None:
    where = dl.LineFilter(dirs=("work",))
    after = dl.search(str(location / "ws"), "parser", where=where, strategy="postfilter", explain=True, n_lines=0)
    command = search("parser", "--dir", "work", "--strategy", "postfilter")
    assert hits(after.to_dict()) == hits(command)
    assert after.to_dict()["explanation"]["strategy"] == "postfilter"


@criterion("002", "configuration", "strategy and fallback_threshold stand in [search] of driftline.toml")
def test_the_strategy_is_configured(
    location: Path, tmp_path: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strategies have Driftline's names or the documents' names; the default threshold is 0.5."""

    def explained(settings: str, *options: object) -> dict[str, Any]:
        plant(tmp_path, {"driftline.toml": f'workspace = "{location}/ws"\n[search]\n{settings}\n'})
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


@criterion("002", "impact 1", "a filter saves most of the comparisons: those of the lines that it excludes")
def test_a_filter_saves_comparisons(search: Search) -> None:
    explained = search("parser", "--dir", "work", "--mode", "vector")["explanation"]
    assert explained["examined"] <= 0.4 * explained["lines"]
    assert search("parser", "--mode", "vector")["explanation"]["examined"] == explained["lines"]


@criterion("002", "impact 2", "a filtered search finds what a search of that directory alone finds")
def test_a_filter_keeps_every_matching_line(search: Search, location: Path, tiny_model: Path, tmp_path: Path) -> None:
    dl.index(str(location / "home/work"), workspace=str(tmp_path / "alone"), model=str(tiny_model))
    alone = dl.search(str(tmp_path / "alone"), "parser group", mode="vector", top_k=12, n_lines=0).to_dict()
    among = search("parser group", "--dir", str(location / "home/work"), "--mode", "vector", "--top-k", 12)
    assert [hit["distance"] for hit in among["results"]] == pytest.approx([hit["distance"] for hit in alone["results"]])


@criterion("002", "impact 3", "the work of a filtered search does not grow with what lies elsewhere")
def test_windows_of_a_filtered_search_do_not_grow(tmp_path: Path, tiny_model: Path) -> None:
    def examined() -> int:
        dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
        where = dl.LineFilter(dirs=("mine",))
        report = dl.search(str(tmp_path / "ws"), "parser", where=where, mode="vector", explain=True).to_dict()
        return int(report["explanation"]["examined"])

    plant(tmp_path / "tree", {f"mine/{n}.txt": "parser\n" for n in range(5)})
    before = examined()
    plant(tmp_path / "tree", {f"theirs/{n}.txt": "parser\ngroup\n" for n in range(50)})
    assert examined() == before == 5


@criterion("002", "monitoring 3", "the quality of answers is measured: recall by compactions and by the benchmark")
def test_quality_is_measured(tmp_path: Path, tiny_model: Path, driftline: Driftline) -> None:
    plant(tmp_path / "tree", {f"{n}.txt": f"{WORDS[n % 10]} {WORDS[n // 10]} {n}\n" * 3 for n in range(100)})
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    (source,) = driftline("sources", "--workspace", tmp_path / "ws", "--json").json["sources"]
    compacted = driftline("compact", "--workspace", tmp_path / "ws", "--entity", source["entity"], "--json").json
    assert compacted["tenants"][0]["after"]["recall_at_10"] >= 0.5
    benchmark = json.loads((ROOT / "tests/benchmarks/results/searching.json").read_text())
    assert "recall@10" in json.dumps(benchmark)


@criterion("002", "monitoring 1", "the hit rate of a filter is told, and kept")
def test_hit_rates_are_reported_and_recorded(
    location: Path, search: Search, driftline: Driftline, tmp_path: Path
) -> None:
    """The run history keeps the hit rates, and the report plots them."""
    rate = search("parser", "--dir", "work", "--entity", "source:home")["explanation"]["hit_rate"]
    assert rate == pytest.approx(40 / 202, abs=0.01)
    assert driftline("report", "--workspace", location / "ws", "-o", tmp_path / "report.html").code == 0
    assert "hit rate" in (tmp_path / "report.html").read_text().lower()


@criterion("002", "monitoring 2", "the times of searches are told by phase, and kept")
def test_search_times_are_reported_and_recorded(location: Path, search: Search, driftline: Driftline) -> None:
    seconds = search("parser", "--dir", "work")["explanation"]["seconds"]
    assert {"vector", "text", "rank"} <= set(seconds)
    assert all(value >= 0 for value in seconds.values())
    rows = driftline("runs", "--workspace", location / "ws", "--json").json["runs"]
    assert any("hit_rate" in row for row in rows), "no search stands in the run history"


# -- its tests -------------------------------------------------------------------------------


@criterion("002", "test 1", "the filter that is made of directories is data, quoted, and may be none or nothing")
def test_filters_are_made_of_directories() -> None:
    assert dl.LineFilter().to_sql() is None
    sql = dl.LineFilter(dirs=("/a/b", "it's/")).to_sql()
    assert sql is not None
    assert "'a/b/'" in sql
    assert "'it''s/'" in sql
    nothing = dl.LineFilter(dirs=()).to_sql()
    assert nothing is not None
    assert "false" in nothing


@criterion("002", "test 2", "no line of another directory is ever found")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", MODES)
def test_no_line_of_another_directory_is_found(mode: str, strategy: str, search: Search) -> None:
    for folder, count in PER_FOLDER.items():
        answer = search("parser value", "--in", "work", "--dir", folder, "--mode", mode, "--strategy", strategy)
        assert all(path.startswith(f"{folder}/") for path in paths(answer))
        assert answer["explanation"]["matches"] == (0 if folder == "personal" else 2 * count)


@criterion("002", "edge 1", "an empty workspace finds nothing, and is no error")
def test_an_empty_workspace_finds_nothing(search: Search, tmp_path: Path) -> None:
    answer = search("parser", "--in", "empty")
    assert (answer["results"], answer["explanation"]["matches"]) == ([], 0)
    registry = actions(tmp_path)
    ok(registry["search.workspace_create"]({}, workspace="new"))
    assert ok(registry["search.workspace_search"]({}, workspace="new", query="parser"))["results"] == []


@criterion("002", "edge 2", "a path that is not there finds nothing, or is named")
def test_an_invalid_path_is_reported_or_finds_nothing(search: Search, location: Path, driftline: Driftline) -> None:
    assert search("parser", "--dir", "nowhere")["results"] == []
    assert search("parser", "--dir", "/nowhere/at/all")["results"] == []
    outside = driftline("search", "parser", "--dir", "../outside")
    assert (outside.code, "../outside" in outside.err) == (2, True) or (outside.code, outside.out) == (1, "")
    unknown = driftline("search", "parser", "--in", "nothing", "--json")
    assert unknown.code == 2
    assert "nothing" in unknown.json["message"]


@criterion("002", "edge 3", "workspaces that overlap return each line once")
def test_overlapping_workspaces_return_each_line_once(search: Search) -> None:
    answer = search("parser", "--in", "overlapping", "--mode", "vector", "--top-k", 100)
    assert len(hits(answer)) == len(set(hits(answer))) == 40
    assert answer["explanation"]["matches"] == 40
    both = search("parser", "--in", "both", "--top-k", 100)
    assert {hit["source"].rpartition(":")[2] for hit in both["results"]} == {"home", "other"}


@criterion("002", "test 3", "filtering before the search looks at fewer lines than filtering after it")
def test_prefiltering_looks_at_fewer_lines(search: Search) -> None:
    """The benchmark measures times: it runs both strategies under the same conditions."""
    before, after = (
        search("parser", "--dir", "work", "--mode", "vector", "--strategy", strategy)["explanation"]["examined"]
        for strategy in ("prefilter", "postfilter")
    )
    assert before <= 42
    assert after == 202
    program = (ROOT / "tests/benchmarks/searching.py").read_text()
    assert "prefilter" in program
    assert "postfilter" in program
