"""What users met who followed documents 000 to 002: names, settings, hits, options and types in every door."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

import driftline as dl
from tests.conformance.search_places import (
    ENGINE_ARGUMENTS,
    ROOT,
    Driftline,
    Registry,
    actions,
    ask_mcp,
    error_type,
    mcp_parameters,
    ok,
    plant,
    without_variables,
)
from tests.conformance.table import criterion
from tests.support.semtools_program import VERSIONS, install

WORDS = ("parser", "group", "action", "option", "value", "prefix", "usage", "namespace", "default", "string")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return actions(tmp_path / "home")


# -- 1: how places are named -----------------------------------------------------------------


@criterion("search", "1", "path beside workspace is one place, or an error")
def test_path_beside_workspace_is_never_ignored(registry: Registry, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    create = registry["search.workspace_create"]
    assert error_type(create({}, path=one, workspace=other)) == "validation_error"
    assert not (tmp_path / "one").exists()
    assert not (tmp_path / "other").exists()
    assert ok(create({}, path=one, workspace=one))["workspace"] == one
    assert error_type(create({})) == "validation_error"


@criterion("search", "1", "a name is one place for actions, the command line and Python")
def test_a_plain_name_is_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driftline: Driftline, tiny_model: Path
) -> None:
    monkeypatch.setenv("DRIFTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(plant(tmp_path / "project", {"tree/a.md": "parser\n", "more/b.md": "group\n"}))
    registry = actions()
    create = registry["search.workspace_create"]
    assert ok(create({}, path="notes"))["workspace"] == ok(create({}, workspace="notes"))["workspace"]
    indexed = driftline("index", "tree", "--workspace", "@notes", "--model", tiny_model, "--json")
    assert indexed.code == 0, indexed.err
    assert ok(registry["search.workspace_stats"]({}, workspace="notes"))["total_documents"] == 1
    assert ok(registry["search.workspace_index"]({}, workspace="notes", paths=["more"]))["indexed"] == 1
    assert driftline("status", "--workspace", "@notes", "--json").json["total_documents"] == 2
    assert dl.open("@notes").stats().total_documents == 2
    assert {hit.text for hit in dl.search("@notes", "parser").results} == {"parser", "group"}
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", "@notes")
    assert driftline("status", "--json").json["total_documents"] == 2


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: files of one line each, no two alike, and links to their folder."""
    files = {"src/a.py": "parser", "src/a.md": "group", "src/deep/b.py": "action", "top.md": "option"}
    project = plant(tmp_path / "project", {name: f"{text}\n" for name, text in files.items()})
    (project / "link").symlink_to("src")
    plant(project / "holder", {"own.md": "value\n"})
    (project / "holder" / "linked").symlink_to("../src")
    monkeypatch.chdir(project)
    return project


@criterion("search", "1", "actions find a workspace in the current folder by its name")
def test_a_workspace_in_the_current_folder_is_found_until_the_home_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driftline: Driftline, registry: Registry, ws: str
) -> None:
    monkeypatch.setenv("DRIFTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(plant(tmp_path / "here", {"tree/a.md": "parser\n", "notes/b.md": "group\n"}))
    assert error_type(registry["search.workspace_stats"]({}, workspace="notes")) == "workspace_not_found"
    dl.index("tree", workspace="./notes", model=model_of(ws))
    assert ok(registry["search.workspace_stats"]({}, workspace="notes"))["total_documents"] == 1
    assert driftline("status", "--workspace", "notes", "--json").json["workspace"] == str(tmp_path / "here/notes")
    assert dl.open("notes").uri == str(tmp_path / "here/notes")
    shutil.copytree(ws, tmp_path / "home/notes")
    assert ok(registry["search.workspace_stats"]({}, workspace="notes"))["total_documents"] != 1
    assert dl.open("notes").uri == str(tmp_path / "here/notes")  # a word is a folder everywhere else
    assert dl.open("@notes").uri == str(tmp_path / "home/notes")


@criterion("search", "1", "memory in a workspace with a name is one place, too")
def test_memory_in_a_plain_name_is_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driftline: Driftline
) -> None:
    plant(tmp_path, {"memory.yaml": "settings: {ltm: {embedding: {enabled: false}}}"})
    monkeypatch.setenv("DRIFTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    monkeypatch.chdir(tmp_path)
    assert driftline("memory", "put", "plan", "1", "--workspace", "@notes").code == 0
    monkeypatch.setenv("LTM_STORAGE_URI", "@notes")
    assert driftline("memory", "get", "plan", "--json").json["value"] == 1
    assert ok(actions()["ltm.retrieve"]({}, key="plan"))["value"] == 1
    with dl.create_ltm_backend() as backend:
        assert backend.retrieve("plan")["value"] == 1
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["notes"]
    assert not (tmp_path / "notes").exists()


# -- 7: the settings of searches -------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder with the workspace ``ws`` over ``tree``: 30 documents in ``a``, 10 in ``b``, three lines each."""
    place = tmp_path_factory.mktemp("searched")
    for folder, count in (("a", 30), ("b", 10)):
        for n in range(count):
            plant(place / "tree" / folder, {f"{n:02}.py": f"{WORDS[n % 10]}\n{WORDS[n // 10]} {folder}\nparser {n}\n"})
    dl.index(str(place / "tree"), workspace=str(place / "ws"), model=str(tiny_model))
    return place


@criterion("search", "7", "[search] of driftline.toml sets what a command is not told")
def test_the_configuration_sets_what_a_command_is_not_told(
    searched: Path, tmp_path: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = '[search]\nstrategy = "postfilter"\nfallback_threshold = 0.2\ntop_k = 2\nn_lines = 0\nmode = "vector"\n'
    plant(tmp_path, {"driftline.toml": f'workspace = "{searched}/ws"\n{settings}'})
    monkeypatch.chdir(tmp_path)

    def search(*options: object) -> dict[str, Any]:
        outcome = driftline("search", "parser", "--json", "--explain", *options)
        assert outcome.code == 0, outcome.out
        answer: dict[str, Any] = outcome.json
        return answer

    found = search()
    assert (len(found["results"]), {len(hit["context"]) for hit in found["results"]}) == (2, {1})
    assert (found["explanation"]["mode"], found["explanation"]["strategy"]) == ("vector", "postfilter")
    told = search("--top-k", 3, "-n", 1, "--mode", "text", "--strategy", "prefilter")
    assert (len(told["results"]), told["explanation"]["mode"]) == (3, "text")
    assert told["explanation"]["strategy"] == "prefilter"
    for wrong in ('strategy = "sometimes"', "top_k = -1", "fallback_threshold = 2", "topk = 3"):
        plant(tmp_path, {"driftline.toml": f'workspace = "{searched}/ws"\n[search]\n{wrong}\n'})
        refused = driftline("search", "parser", "--json")
        assert refused.code == 2
        assert "[search]" in refused.json["message"]


@criterion("search", "7", "--fallback-threshold says when hybrid filters afterwards")
def test_the_threshold_is_an_option(searched: Path, driftline: Driftline) -> None:
    def examined(threshold: float) -> int:
        at = ("--workspace", searched / "ws", "--dir", "b", "--mode", "vector", "--json", "--explain")
        outcome = driftline("search", "parser", *at, "--strategy", "hybrid", "--fallback-threshold", threshold)
        assert outcome.code == 0, outcome.err + outcome.out
        return int(outcome.json["explanation"]["examined"])

    assert (examined(0.5), examined(0.2)) == (30, 120)


@criterion("search", "7", "strategy and fallback_threshold are arguments of actions and MCP")
def test_the_strategy_is_an_argument_everywhere(searched: Path, registry: Registry) -> None:
    given = {"workspace": str(searched / "ws"), "query": "parser", "paths": [str(searched / "tree/b")], "explain": True}
    for options, examined in (
        ({"strategy": "prefilter"}, 30),
        ({"strategy": "postfilter"}, 120),
        ({"strategy": "hybrid"}, 30),
        ({"strategy": "hybrid", "fallback_threshold": 0.2}, 120),
    ):
        found = ok(registry["search.workspace_search"]({}, **given, mode="vector", **options))
        assert found["explanation"]["strategy"] == options["strategy"]
        assert found["explanation"]["examined"] == examined, options
    assert "strategy" in mcp_parameters(str(searched / "ws"), "search_lines")


@criterion("search", "7", "hit rates and times are kept in the run history, and plotted")
def test_hit_rates_and_times_are_plotted(tmp_path: Path, ws: str, driftline: Driftline, registry: Registry) -> None:
    """However often they are written down, a report after some searches with a filter shows them."""
    tree = plant(tmp_path / "tree", {f"{folder}/{n}.txt": "parser\n" for folder in "ab" for n in range(5)})
    dl.index(str(tree), workspace=ws)
    page = tmp_path / "report.html"
    assert driftline("report", "--workspace", ws, "-o", page).code == 0
    assert "hit rate" not in page.read_text().lower()
    for _ in range(3):
        assert driftline("search", "parser", "--workspace", ws, "--dir", "a").code == 0
        ok(registry["search.workspace_search"]({}, workspace=ws, query="parser", paths=[str(tree / "a")]))
    assert driftline("report", "--workspace", ws, "-o", page).code == 0
    html = page.read_text().lower()
    assert "hit rate" in html
    assert "search time" in html
    rows = [row for row in driftline("runs", "--workspace", ws, "--json").json["runs"] if "hit_rate" in row]
    assert rows
    assert {row["hit_rate"] for row in rows} == {0.5}


@criterion("search", "7", "postfilter is applied to words as well as to vectors")
def test_postfilter_covers_words(searched: Path) -> None:
    """Filtering afterwards meets the blocks of words of other folders, too, before it drops them."""
    where = dl.LineFilter(dirs=("b",))

    def search(strategy: Any, mode: Any) -> dict[str, Any]:
        found = dl.search(
            str(searched / "ws"), "parser", where=where, strategy=strategy, mode=mode, n_lines=0, explain=True
        )
        return found.to_dict()

    for mode in ("text", "hybrid"):
        before, after = (search(strategy, mode) for strategy in ("prefilter", "postfilter"))
        assert [hit["path"] for hit in before["results"]] == [hit["path"] for hit in after["results"]]
        assert after["explanation"]["blocks"] > before["explanation"]["blocks"], mode


@criterion("search", "7", "the benchmark runs prefilter and postfilter beside each other")
def test_the_benchmark_compares_strategies() -> None:
    results = (ROOT / "tests/benchmarks/results/searching.json").read_text()
    program = (ROOT / "tests/benchmarks/searching.py").read_text()
    for strategy in ("prefilter", "postfilter"):
        assert strategy in program
        assert strategy in results, "the recorded run has no such row"


# -- 8: named workspaces ---------------------------------------------------------------------


@pytest.fixture
def named(ws: str, project: Path) -> Path:
    """The project, indexed, with a ``driftline.toml`` whose workspace ``sub`` is its folder ``src/deep``."""
    (project / "holder/linked").unlink()
    text = f'workspace = "{ws}"\n[[sources]]\nuri = "."\n[workspaces.sub]\ndirs = ["src/deep"]\n'
    plant(project, {"driftline.toml": text})
    dl.index(str(project), workspace=ws)
    return project


@criterion("search", "8", "a named workspace can be searched from Python, actions and MCP")
def test_named_workspaces_are_searched_everywhere(named: Path, ws: str, registry: Registry) -> None:
    search: Any = dl.search
    assert {hit.text for hit in search(ws, "parser", workspace_name="sub").results} == {"action"}
    given = {"workspace": ws, "query": "parser", "workspace_name": "sub"}
    assert {hit["text"] for hit in ok(registry["search.workspace_search"]({}, **given))["results"]} == {"action"}
    narrowed = ok(registry["search.workspace_search"]({}, **given, paths=["top.md"]))
    assert narrowed["results"] == []
    (answer,) = ask_mcp(ws, ("search_lines", {"query": "parser", "workspace_name": "sub"}))
    assert {hit["text"] for hit in answer["results"]} == {"action"}


@criterion("search", "8", "a named workspace narrows a filter whose paths are absolute")
def test_a_named_workspace_narrows_absolute_paths(named: Path, ws: str) -> None:
    def found(*paths: str) -> set[str]:
        where = dl.LineFilter(paths=tuple(str(named / path) for path in paths))
        return {hit.text for hit in dl.search(ws, "parser", where=where, workspace_name="sub").results}

    assert found("src/deep/b.py", "top.md") == {"action"}
    assert found("top.md") == set()


@criterion("search", "8", "a name that is not there is an error that lists those that are")
def test_an_unknown_named_workspace_is_an_error(named: Path, ws: str, registry: Registry) -> None:
    search: Any = dl.search
    with pytest.raises(dl.DriftlineError, match="sub"):
        search(ws, "parser", workspace_name="sup")
    answer = registry["search.workspace_search"]({}, workspace=ws, query="parser", workspace_name="sup")
    assert error_type(answer) == "validation_error"
    assert "sub" in answer["error"]


@criterion("search", "8", "an argument that no action has is an error; what engines pass is not")
def test_an_unknown_argument_is_an_error(named: Path, ws: str, registry: Registry) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "search.workspace_create": {"workspace": ws},
        "search.workspace_index": {"workspace": ws, "paths": ["src"]},
        "search.workspace_search": {"workspace": ws, "query": "parser"},
        "search.workspace_stats": {"workspace": ws},
        "search.semantic": {"query": "parser", "files": "src"},
        "semtools.search": {"query": "parser", "files": "src"},
    }
    for name, given in arguments.items():
        ok(registry[name]({}, **{**ENGINE_ARGUMENTS, **given}))
        answer = registry[name]({}, **given, **{"in": "sub"})
        assert error_type(answer) == "validation_error", name
        assert "'in'" in answer["error"]


# -- 9: hits can be opened -------------------------------------------------------------------


def assert_opens(hits: list[Mapping[str, Any]]) -> None:
    assert hits
    for hit in hits:
        assert os.path.isabs(hit["file"])
        assert Path(hit["file"]).read_text().splitlines()[hit["line"] - 1] == hit["text"]
        assert hit["file"].endswith(hit["path"].removeprefix("./"))


@criterion("search", "9", "file is where a hit can be opened, in every answer")
def test_each_hit_can_be_opened(named: Path, ws: str, registry: Registry, driftline: Driftline) -> None:
    assert_opens(driftline("search", "parser", "--workspace", ws, "--json").json["results"])
    assert_opens(driftline("grep", "parser", "src", "--json").json["results"])
    assert_opens(ok(registry["search.workspace_search"]({}, workspace=ws, query="parser"))["results"])
    assert_opens(ok(registry["search.semantic"]({}, query="parser", files="src", workspace=ws))["results"])
    assert_opens(ok(registry["search.semantic"]({}, query="parser", files=["src", "./top.md"]))["results"])
    assert_opens(ask_mcp(ws, ("search_lines", {"query": "parser"}))[0]["results"])
    assert_opens(list(dl.search(ws, "parser").to_dict()["results"]))


@criterion("search", "9", "of a bucket, file is a URI")
def test_a_hit_in_a_bucket_has_a_uri(ws: str, s3_bucket: str, registry: Registry) -> None:
    import fsspec

    with fsspec.open(f"{s3_bucket}/tree/deep/a.txt", "w") as file:
        file.write("parser\n")
    ok(registry["search.workspace_index"]({}, workspace=ws, paths=[f"{s3_bucket}/tree"]))
    (hit,) = ok(registry["search.workspace_search"]({}, workspace=ws, query="parser"))["results"]
    assert hit["file"] == f"{s3_bucket}/tree/deep/a.txt"


@criterion("search", "9", "file is null where there is nothing that can be opened")
def test_a_hit_in_a_pipe_cannot_be_opened(project: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"parser\n")))
    (hit,) = driftline("grep", "parser", "-", "--json").json["results"]
    assert (hit["path"], hit["file"]) == ("-", None)


# -- 10: models, options and thresholds ------------------------------------------------------


def model_of(ws: str) -> str | None:
    return dl.open(ws).stats().model


@criterion("search", "10", "actions take a model")
def test_actions_take_a_model(registry: Registry, project: Path, tmp_path: Path, tiny_model: Path) -> None:
    given: dict[str, Any] = {"model": str(tiny_model)}
    for number, make in enumerate((given, {})):
        ws = str(tmp_path / f"place{number}")
        ok(registry["search.workspace_create"]({}, workspace=ws, **make))
        ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"], **({} if make else given)))
        assert model_of(ws) == str(tiny_model)
    tiny = [
        ok(registry["search.semantic"]({}, query="parser of groups", files="src", **given))["results"],
        ok(registry["semtools.search"]({}, query="parser of groups", files="src", max_distance=2, **given))["matches"],
    ]
    usual = ok(registry["search.semantic"]({}, query="parser of groups", files="src"))["results"]
    scores = [{round(hit["score"], 4) for hit in hits} for hits in (*tiny, usual)]
    assert scores[0] != scores[2]
    assert scores[1] & scores[0]
    assert error_type(registry["search.semantic"]({}, query="x", files="src", model="/nowhere")) == (
        "prerequisite_missing"
    )


@criterion("search", "10", "a model is never ignored: a workspace of another one is an error")
def test_a_model_beside_a_workspace_of_another_is_an_error(
    registry: Registry, project: Path, ws: str, tiny_model: Path
) -> None:
    other = "wordllama:l2_supercat_256"
    ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"]))
    for name, given in (
        ("search.workspace_create", {"path": ws}),
        ("search.workspace_index", {"workspace": ws, "paths": ["src"]}),
        ("search.semantic", {"query": "parser", "files": ["src", "top.md"], "workspace": ws}),
    ):
        answer = registry[name]({}, **given, model=other)
        assert error_type(answer) == "validation_error", name
        assert other in answer["error"]
        ok(registry[name]({}, **given, model=str(tiny_model)))


@criterion("search", "10", "a program of semtools does not know models: auto takes our own engine then")
def test_auto_takes_the_engine_that_knows_the_model(
    registry: Registry, project: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", VERSIONS[-1], monkeypatch)
    given: dict[str, Any] = {"query": "parser", "files": "src", "max_distance": 2}
    assert ok(registry["semtools.search"]({}, **given, engine="auto"))["engine"] == "cli"
    for options in ({"model": str(tiny_model)}, {"min_relevance": 0.5}):
        assert ok(registry["semtools.search"]({}, **given, **options, engine="auto"))["engine"] == "driftline"
        assert error_type(registry["semtools.search"]({}, **given, **options, engine="cli")) == "validation_error"


@criterion("search", "10", "DRIFTLINE_MODEL is the model wherever none is named")
def test_the_model_may_come_from_the_environment(
    project: Path, tmp_path: Path, tiny_model: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_MODEL", str(tiny_model))
    registry = actions(tmp_path / "home")
    by_action = ok(registry["search.workspace_create"]({}, workspace="notes"))["workspace"]
    ok(registry["search.workspace_index"]({}, workspace="notes", paths=["src"]))
    dl.index("src", workspace=str(tmp_path / "python"))
    assert driftline("index", "src", "--workspace", tmp_path / "command").code == 0
    for ws in (by_action, str(tmp_path / "python"), str(tmp_path / "command")):
        assert model_of(ws) == str(tiny_model), ws
    found = driftline("grep", "parser of groups", "src", "--json").json["results"]
    named = driftline("grep", "parser of groups", "src", "--json", "--model", tiny_model).json["results"]
    assert found == named
    semantic = ok(registry["search.semantic"]({}, query="parser of groups", files="src"))["results"]
    assert [hit["score"] for hit in semantic] == pytest.approx([hit["score"] for hit in named])


@criterion("search", "10", "mode, dirs, globs, exts, entity and explain are arguments of the actions")
def test_the_actions_take_the_options_of_the_command(searched: Path, registry: Registry) -> None:
    given = {"workspace": str(searched / "ws"), "query": "parser", "top_k": 100, "n_lines": 0, "mode": "vector"}

    def paths(**options: Any) -> set[str]:
        return {hit["path"] for hit in ok(registry["search.workspace_search"]({}, **given, **options))["results"]}

    b = {f"b/{n:02}.py" for n in range(10)}
    assert paths(dirs=["b"]) == paths(dirs="b") == b
    assert paths(globs=["b/*.py"]) == b
    assert paths(exts=[".md"]) == set()
    assert len(paths(exts="py")) == 40
    assert paths(globs="**/00.*", dirs=["b"]) == {"b/00.py"}
    assert len(paths(entity="source:tree")) == 40
    assert paths(entity=["source:other"]) == set()
    assert len(paths(entity=["source", "tree"])) == len(paths(entity='["source", "tree"]')) == 40
    assert paths(entity=["source:other", ["source", "tree"]]) == paths(entity="source:tree")
    for nothing in ("dirs", "globs", "exts", "entity", "paths"):
        assert paths(**{nothing: []}) == set(), "a list that a template has left empty allows nothing"
    explained = ok(registry["search.workspace_search"]({}, **given, dirs=["b"], explain=True))["explanation"]
    assert (explained["mode"], explained["matches"], explained["hit_rate"]) == ("vector", 30, 0.25)
    assert "explanation" not in ok(registry["search.workspace_search"]({}, **given))
    words = ok(registry["search.workspace_search"]({}, **{**given, "mode": "text", "query": "parser"}))["results"]
    assert all("parser" in hit["text"] for hit in words)


@criterion("search", "10", "each hit has a relevance, the share of random pairs of lines that are farther")
def test_each_hit_has_a_relevance(tmp_path: Path, registry: Registry, tiny_model: Path, driftline: Driftline) -> None:
    prose = [line.strip() for name in sorted(topics) for line in topics[name].splitlines() if len(line.split()) > 7]
    lines = prose[:: len(prose) // 120]
    tree = plant(tmp_path / "tree", {"all.txt": "\n".join(lines) + "\n"})
    for model in (None, str(tiny_model)):
        options = {} if model is None else {"model": model}
        relevances = []
        for query in lines[3:110:12]:
            given = {"query": query, "files": str(tree), "top_k": 200, "n_lines": 0, **options}
            hits = ok(registry["search.semantic"]({}, **given))["results"]
            found = [hit["relevance"] for hit in hits]
            assert all(0 <= each <= 1 for each in found)
            assert found[0] > 0.99, "a line is as near to itself as can be"
            assert found == sorted(found, reverse=True)
            relevances += found[1:]
        assert 0.25 < sorted(relevances)[len(relevances) // 2] < 0.85, "about half of all pairs are farther than one"


@criterion("search", "10", "min_relevance filters, with any model and in every door")
def test_min_relevance_filters(tmp_path: Path, registry: Registry, driftline: Driftline) -> None:
    """The case of the first example: a threshold of .3 on the distance finds nothing with the default model."""
    tree = plant(
        tmp_path / "tree",
        {
            "story.md": "The gate stands at CONCERNS because of several issues.\nThe weather was fine all week.\n",
            "more.md": "Boil the potatoes in salted water.\nA lease expires.\nBirds sing in spring.\n",
        },
    )
    query = "quality gate concerns issues problems"
    ws = str(tmp_path / "ws")
    dl.index(str(tree), workspace=ws)
    given: dict[str, Any] = {"query": query, "min_relevance": 0.95}
    wide: dict[str, Any] = {"query": query, "min_relevance": 0, "top_k": 50}
    search: Any = dl.search
    grep: Any = dl.grep
    for found, everything in (
        (
            ok(registry["search.semantic"]({}, files=str(tree), n_lines=0, **given))["results"],
            ok(registry["search.semantic"]({}, files=str(tree), n_lines=0, **wide))["results"],
        ),
        (
            ok(registry["search.workspace_search"]({}, workspace=ws, mode="vector", n_lines=0, **given))["results"],
            ok(registry["search.workspace_search"]({}, workspace=ws, mode="vector", n_lines=0, **wide))["results"],
        ),
        (
            search(ws, query, min_relevance=0.95, mode="vector", n_lines=0).to_dict()["results"],
            search(ws, query, min_relevance=0, mode="vector", n_lines=0).to_dict()["results"],
        ),
        (
            grep(query, str(tree), min_relevance=0.95, n_lines=0).to_dict()["results"],
            grep(query, str(tree), min_relevance=0, n_lines=0).to_dict()["results"],
        ),
        (
            driftline("search", query, "--workspace", ws, "--min-relevance", 0.95, "--json").json["results"],
            driftline("search", query, "--workspace", ws, "--min-relevance", 0, "-n", 0, "--json").json["results"],
        ),
        (
            ask_mcp(ws, ("search_lines", given))[0]["results"],
            ask_mcp(ws, ("search_lines", {"query": query}))[0]["results"],
        ),
    ):
        assert [os.path.basename(hit["path"]) for hit in found] == ["story.md"]
        assert found[0]["line"] == 1
        assert found[0]["relevance"] >= 0.95
        assert len(everything) >= 2
    answer = registry["semtools.search"]({}, files=str(tree), max_distance=2, **given)
    assert [match["line"] for match in ok(answer)["matches"]] == [1]
    assert answer["best_match"]["relevance"] >= 0.95
    wrong = registry["search.semantic"]({}, query=query, files=str(tree), min_relevance=2)
    assert error_type(wrong) == "validation_error"


# -- 11: types of Python ---------------------------------------------------------------------


@criterion("search", "11", "LineEmbedding and DocMeta have the documented fields, in the documented order")
def test_the_types_have_the_documented_fields() -> None:
    new_line: Any = dl.LineEmbedding
    line = new_line("a.md", 3, [0.5, 0.25])
    assert (line.path, line.line_number, list(line.embedding)) == ("a.md", 3, [0.5, 0.25])
    assert list(new_line(path="a.md", line_number=3, embedding=[1.0]).embedding) == [1.0]
    new_meta: Any = dl.DocMeta
    meta = new_meta("a.md", 120, 1_700_000_000.5, dl.CURRENT_EMBEDDING_VERSION)
    assert (meta.path, meta.size_bytes, meta.mtime) == ("a.md", 120, 1_700_000_000.5)
    assert meta.version == dl.CURRENT_EMBEDDING_VERSION
    assert new_meta(path="a.md", size_bytes=1, mtime=2.0, version=1).version == 1


@criterion("search", "11", "states are told of each path in the order given, absolute and missing ones included")
def test_states_are_told_of_each_path(named: Path, ws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspace is the one that a command in this folder would use; it may also be the second argument.

    A path that was never indexed and is not there is ``missing``, not ``deleted``.
    """
    analyze: Any = dl.analyze_document_states
    plant(named, {"src/new.md": "usage\n", "src/a.md": "group and more\n"})
    (named / "top.md").unlink()
    paths = ["src/new.md", str(named / "src/a.md"), "nowhere.md", str(named / "src/a.py"), "top.md", "/no/where.md"]
    found = analyze(paths)
    assert [path for path, _ in found] == paths
    assert [state.value for _, state in found[:2]] == ["new", "changed"]
    assert found[2][1].value == "missing"
    assert [state.value for _, state in found[3:5]] == ["unchanged", "deleted"]
    assert found[5][1].value == "missing"
    assert analyze(paths, ws) == analyze(paths, workspace=dl.open(ws)) == found
    assert analyze([]) == []
    (source,) = (str(entity) for entity, record in dl.open(ws).storage.sources() if record.uri == str(named))
    assert analyze(ws, source, ["src/a.py"]) == [("src/a.py", dl.DocumentState.UNCHANGED)]
