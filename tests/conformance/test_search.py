"""Searches that follow documents 000 to 002, through every interface: names, filters, settings, responses and types."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

import driftline as dl
from driftline.storage.layout import lease_path, new_ulid
from driftline.storage.leases.lease import acquire
from tests.conformance.search_support import (
    ENGINE_ARGUMENTS,
    ROOT,
    Answer,
    Driftline,
    Registry,
    actions,
    ask_mcp,
    error_type,
    files_of,
    locations,
    names,
    ok,
    plant,
)
from tests.conformance.table import criterion
from tests.support.mcp import hits_of
from tests.support.semtools_program import VERSIONS, calls, install

WORDS = ("parser", "group", "action", "option", "value", "prefix", "usage", "namespace", "default", "string")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return actions(tmp_path / "home")


# -- 1: how locations are named -----------------------------------------------------------------


@criterion("search", "1", "positional arguments after the state work, in the order of the documents")
def test_positional_arguments_work(registry: Registry, tmp_path: Path) -> None:
    location, tree = str(tmp_path / "location"), plant(tmp_path / "tree", {"a.md": "parser\n", "b/c.txt": "group\n"})
    assert ok(registry["search.workspace_create"]({}, location))["workspace"] == location
    assert ok(registry["search.workspace_index"]({}, location, [str(tree)], False, [".md"]))["indexed"] == 1
    assert ok(registry["search.workspace_index"]({}, location, [str(tree)]))["total_lines"] == 2
    found = ok(registry["search.workspace_search"]({}, location, "parser", [str(tree / "a.md")], 1, 1.5, 0))
    assert (locations(found["results"]), found["results"][0]["context"]) == ([("a.md", 1)], ["parser"])
    assert ok(registry["search.workspace_stats"]({}, location))["total_documents"] == 2
    assert locations(ok(registry["search.semantic"]({}, "parser", str(tree)))["results"])[0] == ("a.md", 1)
    matches = ok(registry["semtools.search"]({}, "parser", str(tree / "*.md"), 0.9, 1, 0))["matches"]
    assert locations(matches) == [("a.md", 1)]


@criterion("search", "1", "too many or too few arguments give a dictionary, never a TypeError")
def test_wrong_numbers_of_arguments_return_errors(registry: Registry) -> None:
    for name, action in registry.items():
        assert error_type(action({}, *range(40))) == "validation_error", name
        if name.startswith(("search.", "semtools.")):
            assert error_type(action({})) == "validation_error", name
    twice = registry["search.workspace_stats"]({}, "one", workspace="another")
    assert error_type(twice) == "validation_error"


@criterion("search", "1", "a name is one place for actions, the command line and Python")
def test_a_plain_name_is_one_location(
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
    assert dl.open("@notes").status().total_documents == 2
    assert {hit.text for hit in dl.search("@notes", "parser").results} == {"parser", "group"}
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", "@notes")
    assert driftline("status", "--json").json["total_documents"] == 2


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
    assert dl.open("notes").uri == str(tmp_path / "here/notes")  # everywhere else, a word is a folder
    assert dl.open("@notes").uri == str(tmp_path / "home/notes")


@criterion("search", "1", "memory in a workspace with a name is one place, too")
def test_memory_in_a_plain_name_is_one_location(
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


# -- 2: one file is one document -------------------------------------------------------------

OVERLAPS: Mapping[str, list[tuple[list[str], dict[str, Any]]]] = {
    "inner then outer": [(["src"], {}), (["."], {})],
    "outer then inner": [(["."], {}), (["src"], {})],
    "a folder with endings, then a glob over it": [(["src"], {"extensions": [".py"]}), (["src/**/*"], {})],
    "a glob, then its folder with endings": [(["src/**/*"], {}), (["src"], {"extensions": [".py"]})],
    "a file, then its folder": [(["src/a.py"], {}), (["."], {})],
    "a folder with endings, then a file": [([".",], {"extensions": [".md"]}), (["src/a.py", "src/a.md"], {})],
    "a link": [(["src"], {}), (["link"], {})],
    "a link inside": [(["src"], {}), (["holder"], {})],
    "three at once": [(["src", ".", "src/deep/**/*.py"], {})],
    "not recursive": [(["src"], {"recursive": False}), (["src/deep"], {}), (["."], {})],
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which contains different one-line files, and links to it."""
    files = {"src/a.py": "parser", "src/a.md": "group", "src/deep/b.py": "action", "top.md": "option"}
    project = plant(tmp_path / "project", {name: f"{text}\n" for name, text in files.items()})
    (project / "link").symlink_to("src")
    plant(project / "holder", {"own.md": "value\n"})
    (project / "holder" / "linked").symlink_to("../src")
    monkeypatch.chdir(project)
    return project


@criterion("search", "2", "overlapping locations hold and return each file once, by actions")
@pytest.mark.parametrize("steps", OVERLAPS.values(), ids=OVERLAPS)
def test_a_file_is_one_document_for_actions(
    steps: list[tuple[list[str], dict[str, Any]]], registry: Registry, ws: str, project: Path
) -> None:
    for paths, options in steps:
        ok(registry["search.workspace_index"]({}, workspace=ws, paths=paths, **options))
    first = assert_once(registry, ws)
    (project / "src/a.py").write_text("namespace\n")
    for paths, options in steps:
        ok(registry["search.workspace_index"]({}, workspace=ws, paths=paths, **options))
    assert assert_once(registry, ws) == first - {"parser"} | {"namespace"}


def assert_once(registry: Registry, ws: str) -> set[str]:
    """Return the texts of all findable lines; assert that no mode returns a line twice."""
    texts: list[str] = []
    for mode in ("vector", "hybrid"):
        found = dl.search(ws, "parser namespace", mode=mode, top_k=50, n_lines=0).results
        texts = [hit.text for hit in found]
        assert len(texts) == len(set(texts)), [(hit.source, hit.path) for hit in found]
    stats = ok(registry["search.workspace_stats"]({}, workspace=ws))
    assert (stats["total_documents"], stats["total_lines"]) == (len(texts), len(texts))
    return set(texts)


@criterion("search", "2", "the same holds for the command line")
@pytest.mark.parametrize("order", [("src", "."), (".", "src"), ("src", "link")])
def test_a_file_is_one_document_for_commands(
    order: tuple[str, str], driftline: Driftline, registry: Registry, ws: str, project: Path
) -> None:
    for location in order:
        outcome = driftline("index", location, "--workspace", ws)
        assert outcome.code == 0, outcome.err
    assert {"parser", "group", "action"} <= assert_once(registry, ws)


# -- 3: a search changes nothing -------------------------------------------------------------


@criterion("search", "3", "a search in a workspace changes nothing of it, and embeds the rest in memory")
def test_a_search_changes_nothing(registry: Registry, ws: str, project: Path, driftline: Driftline) -> None:
    plant(project, {"other/c.txt": "prefix\n", "src/new.txt": "usage\n"})
    ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"], extensions=[".py", ".md"]))

    def state() -> object:
        sources = driftline("sources", "--workspace", ws, "--json").json["sources"]
        stats = ok(registry["search.workspace_stats"]({}, workspace=ws))
        kinds = [run["kind"] for run in driftline("runs", "--workspace", ws, "--json").json["runs"]]
        tables = {name: size for name, size in files_of(Path(ws)).items() if "_runs" not in name}
        return sources, stats, kinds.count("index"), tables

    before = state()
    given = {"workspace": ws, "query": "parser", "top_k": 50, "n_lines": 0}
    for files, texts in (
        ("src", {"parser", "group", "action", "usage"}),
        (["src/a.py", "other"], {"parser", "prefix"}),
        (["src/**/*.txt", "top.md"], {"usage", "option"}),
        (".", {"parser", "group", "action", "usage", "option", "value", "prefix"}),
    ):
        found = ok(registry["search.semantic"]({}, **given, files=files))["results"]
        assert {hit["text"] for hit in found} == texts, files
        assert len(found) == len(texts)
        assert state() == before, files
    again = ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"], extensions=[".py", ".md"]))
    assert (again["indexed"], again["updated"], again["skipped"]) == (0, 0, 3)


@criterion("search", "3", "what is indexed and what is not share one ranking")
def test_both_parts_share_one_ranking(registry: Registry, ws: str, project: Path) -> None:
    plant(project, {"other/exact.txt": "the quick parser of values\n", "src/near.py": "the parser of values\n"})
    ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"]))
    given = {"workspace": ws, "query": "the quick parser of values", "n_lines": 0}
    found = ok(registry["search.semantic"]({}, **given, files=["src", "other"], top_k=2))["results"]
    assert [os.path.basename(hit["path"]) for hit in found] == ["exact.txt", "near.py"]
    assert [hit["rank"] for hit in found] == [1, 2]
    assert found[0]["score"] > found[1]["score"]


# -- 4: deletions and leases -----------------------------------------------------------------


@pytest.fixture
def many(ws: str, tmp_path: Path, registry: Registry) -> Path:
    """A folder of 270 indexed files, of which 20 are Markdown."""
    files = {f"{n}.txt": f"{WORDS[n % 10]}\n" for n in range(250)} | {f"{n}.md": "value\n" for n in range(20)}
    tree = plant(tmp_path / "many", files)
    assert ok(registry["search.workspace_index"]({}, workspace=ws, paths=[str(tree)]))["indexed"] == 270
    return tree


@criterion("search", "4", "a folder may be narrowed to fewer endings")
def test_a_folder_may_be_narrowed(many: Path, registry: Registry, ws: str) -> None:
    """The caller requests these deletions, so they are not rejected as suspiciously many."""
    given = {"workspace": ws, "paths": [str(many)], "extensions": [".md"]}
    assert ok(registry["search.workspace_index"]({}, **given))["total_lines"] == 20
    again = ok(registry["search.workspace_index"]({}, **given))
    assert (again["indexed"], again["updated"], again["skipped"]) == (0, 0, 20)


@criterion("search", "4", "a refused deletion has a type of its own, dry_run shows it, max_delete_fraction allows it")
def test_a_refused_deletion_has_its_own_type(many: Path, registry: Registry, ws: str) -> None:
    for path in many.glob("*.txt"):
        path.unlink()
    index, given = registry["search.workspace_index"], {"workspace": ws, "paths": [str(many)]}
    refused = index({}, **given)
    assert error_type(refused) == "deletion_refused"
    assert "max_delete_fraction" in refused["error"]
    assert "trying again" not in refused["error"]
    before = files_of(Path(ws))
    shown = ok(index({}, **given, dry_run=True, max_delete_fraction=1))
    assert (shown["indexed"], shown["updated"], shown["skipped"]) == (0, 0, 20)
    assert {name for name in before if "_runs" not in name} == {
        name for name in files_of(Path(ws)) if "_runs" not in name
    }
    assert ok(registry["search.workspace_stats"]({}, workspace=ws))["total_documents"] == 270
    assert ok(index({}, **given, max_delete_fraction=1))["total_lines"] == 20


@criterion("search", "4", "dry_run counts and writes nothing")
def test_a_dry_run_writes_nothing(registry: Registry, ws: str, project: Path) -> None:
    shown = ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"], dry_run=True))
    assert (shown["indexed"], shown["total_lines"]) == (3, 0)
    assert ok(registry["search.workspace_stats"]({}, workspace=ws))["total_documents"] == 0


@criterion("search", "4", "a lease that another run holds has a type of its own")
def test_a_held_lease_has_its_own_type(
    registry: Registry, ws: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.flows.actions.sources.WAIT_SECONDS", 0.0, raising=False)
    ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"]))
    workspace = dl.open(ws).storage
    (entity,) = (entity for entity, record in workspace.sources() if record.uri == str(project / "src"))
    plant(project, {"src/new.txt": "usage\n"})
    with acquire(workspace.objects, lease_path(entity), new_ulid()):
        assert error_type(registry["search.workspace_index"]({}, workspace=ws, paths=["src"])) == "lease_held"
    assert ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"]))["indexed"] == 1


# -- 5: the programs of semtools -------------------------------------------------------------


@pytest.fixture(params=VERSIONS)
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """Put only one semtools version on the PATH, and return the file that records its calls; eight files match."""
    lines = "first\n\nthe quality gate\n\n"
    monkeypatch.chdir(plant(tmp_path / "files", {f"{n}.md": lines for n in range(8)}))
    return request.param, install(tmp_path / "bin", request.param, monkeypatch)


GATE: Mapping[str, Any] = {"query": "the quality gate", "files": "*.md"}


@criterion("search", "5", "each real program is called as it wants to be")
def test_each_program_is_understood(program: tuple[str, Path], registry: Registry) -> None:
    version, record = program
    found = ok(registry["semtools.search"]({}, **GATE, engine="cli", n_lines=2))
    assert len(found["matches"]) == 8
    assert {(match["line"], match["text"]) for match in found["matches"]} == {(3, "the quality gate")}
    assert found["best_match"]["score"] == pytest.approx(1.0)
    assert all(("--json" in call) == (version >= "3") for call in calls(record))


@criterion("search", "5", "in a workspace of semtools no more results are lost than n_results leaves out")
def test_a_workspace_of_semtools_does_not_cut_results(
    program: tuple[str, Path], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMTOOLS_WORKSPACE", "mine")
    assert len(ok(registry["semtools.search"]({}, **GATE, engine="cli"))["matches"]) == 8
    assert len(ok(registry["semtools.search"]({}, **GATE, engine="cli", n_results=5))["matches"]) == 5
    assert len(ok(registry["semtools.search"]({}, **GATE, engine="cli", n_results=4, max_distance=0.9))["matches"]) == 4


@criterion("search", "5", "blank lines at the end of a context stay")
def test_blank_lines_stay_in_the_context(program: tuple[str, Path], registry: Registry) -> None:
    found = ok(registry["semtools.search"]({}, **GATE, engine="cli", n_lines=1))
    assert {tuple(match["context"]) for match in found["matches"]} == {("", "the quality gate", "")}
    wide = ok(registry["semtools.search"]({}, **GATE, engine="cli", n_lines=9))
    assert {tuple(match["context"]) for match in wide["matches"]} == {("first", "", "the quality gate", "")}
    blank = registry["semtools.search"]({}, query="?", files="0.md", engine="cli", max_distance=1.5, n_lines=1)
    assert {1, 3} <= {match["line"] for match in ok(blank)["matches"]} <= {1, 2, 3, 4}


@criterion("search", "5", "auto takes the program that is there, and the answer names engine and version")
def test_auto_selects_the_installed_program(
    program: tuple[str, Path], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``engine`` and ``version`` report it; 3.0.1 cannot report its version, so it may be None or 3."""
    version, record = program
    found = ok(registry["semtools.search"]({}, **GATE, engine="auto"))
    assert found["engine"] == "cli"
    assert found["version"] == version or (version == "3.0.1" and str(found["version"] or 3).startswith("3"))
    assert len(calls(record)) == 1
    monkeypatch.setenv("PATH", "/nonexistent")
    own = ok(registry["semtools.search"]({}, **GATE, engine="auto"))
    assert (own["engine"], bool(own["version"])) == ("driftline", True)
    assert len(own["matches"]) == 8
    assert ok(registry["semtools.search"]({}, **GATE))["engine"] == "driftline"


@criterion("search", "5", "a program called search that is another one is not taken for semtools")
def test_another_program_called_search_is_not_taken(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plant(tmp_path / "files", {"a.md": "the quality gate\n"}))
    other = plant(tmp_path / "bin", {"search": "#!/bin/sh\necho 'usage: search SOMETHING'\nexit 0\n"}) / "search"
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert error_type(registry["semtools.search"]({}, **GATE, engine="cli")) == "prerequisite_missing"
    assert ok(registry["semtools.search"]({}, **GATE, engine="auto"))["engine"] == "driftline"


# -- 6: folders, dots and links as filters ---------------------------------------------------


@pytest.fixture
def two(ws: str, project: Path) -> Path:
    """The project with the sources ``src/deep`` and ``holder``, but without the folders in between."""
    (project / "holder" / "linked").unlink()
    dl.index([project / "src/deep", project / "holder"], workspace=ws)
    return project


@pytest.mark.parametrize(
    ("folder", "given", "texts"),
    [
        ("/", "{project}", {"action", "value"}),
        ("/", "{project}/src", {"action"}),
        ("/", "{project}/", {"action", "value"}),
        (".", ".", {"action", "value"}),
        ("src", ".", {"action"}),
        ("src/deep", ".", {"action"}),
        ("holder", ".", {"value"}),
        (".", "src", {"action"}),
        (".", "./src/", {"action"}),
        ("src", "..", {"action", "value"}),
        (".", "link", {"action"}),
        (".", "link/deep", {"action"}),
        ("/", "{project}/link", {"action"}),
        ("..", "empty", set()),
        ("empty", ".", set()),
    ],
)
@criterion("search", "6", "folders above a source, dots and links are filters for actions and commands")
def test_folders_dots_and_links_are_filters(
    folder: str,
    given: str,
    texts: set[str],
    two: Path,
    ws: str,
    registry: Registry,
    driftline: Driftline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name in the current folder takes precedence over the same name inside a source."""
    (two / "empty").mkdir()
    (two.parent / "empty").mkdir()
    monkeypatch.chdir(two / folder)
    name = given.format(project=two)
    options = {"workspace": ws, "query": "parser", "paths": [name], "n_lines": 0}
    assert {hit["text"] for hit in ok(registry["search.workspace_search"]({}, **options))["results"]} == texts
    outcome = driftline("search", "parser", "--workspace", ws, "--dir", name, "--json")
    assert outcome.code == (0 if texts else 1), outcome.out
    assert {hit["text"] for hit in outcome.json["results"]} == texts


# -- 7: the settings of searches -------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder with the workspace ``ws`` over ``tree``: 30 documents in ``a`` and 10 in ``b``, three lines each."""
    location = tmp_path_factory.mktemp("searched")
    for folder, count in (("a", 30), ("b", 10)):
        for n in range(count):
            plant(
                location / "tree" / folder, {f"{n:02}.py": f"{WORDS[n % 10]}\n{WORDS[n // 10]} {folder}\nparser {n}\n"}
            )
    dl.index(str(location / "tree"), workspace=str(location / "ws"), model=str(tiny_model))
    return location


@criterion("search", "7", "[search] of driftline.toml sets what a command is not told")
def test_the_configuration_sets_what_a_command_leaves_out(
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
    reported = search("--top-k", 3, "-n", 1, "--mode", "text", "--strategy", "prefilter")
    assert (len(reported["results"]), reported["explanation"]["mode"]) == (3, "text")
    assert reported["explanation"]["strategy"] == "prefilter"
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


@criterion("search", "7", "hit rates and times are kept in the run history, and plotted")
def test_hit_rates_and_times_are_plotted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ws: str, driftline: Driftline, registry: Registry
) -> None:
    """A report made after some filtered searches shows them, however often they are recorded."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # copies of a workspace share their records
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
    """Filtering after the search also finds blocks in other folders by word matches, then drops them."""
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
    """The indexed project, and a ``driftline.toml`` that defines the workspace ``sub`` for its folder ``src/deep``."""
    (project / "holder/linked").unlink()
    text = f'workspace = "{ws}"\n[[sources]]\nuri = "."\n[workspaces.sub]\ndirs = ["src/deep"]\n'
    plant(project, {"driftline.toml": text})
    dl.index(str(project), workspace=ws)
    return project


@criterion("search", "8", "a named workspace can be searched from Python and actions")
def test_views_are_searched_everywhere(named: Path, ws: str, registry: Registry) -> None:
    search: Any = dl.search
    assert {hit.text for hit in search(ws, "parser", workspace_name="sub").results} == {"action"}
    given = {"workspace": ws, "query": "parser", "workspace_name": "sub"}
    assert {hit["text"] for hit in ok(registry["search.workspace_search"]({}, **given))["results"]} == {"action"}
    narrowed = ok(registry["search.workspace_search"]({}, **given, paths=["top.md"]))
    assert narrowed["results"] == []


@criterion("search", "8", "a named workspace narrows a filter whose paths are absolute")
def test_a_view_narrows_absolute_paths(named: Path, ws: str) -> None:
    def found(*paths: str) -> set[str]:
        where = dl.LineFilter(paths=tuple(str(named / path) for path in paths))
        return {hit.text for hit in dl.search(ws, "parser", where=where, workspace_name="sub").results}

    assert found("src/deep/b.py", "top.md") == {"action"}
    assert found("top.md") == set()


@criterion("search", "8", "a name that is not there is an error that lists those that are")
def test_an_unknown_view_is_an_error(named: Path, ws: str, registry: Registry) -> None:
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
    (text,) = ask_mcp(ws, ("search_lines", {"query": "parser", "n_lines": 0}))
    root = os.getcwd()  # otherwise, the answer would name the folder
    assert "Paths are relative" not in text
    assert_opens(
        [{"path": path, "line": line, "text": found, "file": f"{root}/{path}"} for path, line, found in hits_of(text)]
    )
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
    return dl.open(ws).status().model


@criterion("search", "10", "actions take a model")
def test_actions_take_a_model(registry: Registry, project: Path, tmp_path: Path, tiny_model: Path) -> None:
    given: dict[str, Any] = {"model": str(tiny_model)}
    for number, make in enumerate((given, {})):
        ws = str(tmp_path / f"location{number}")
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
def test_a_model_other_than_the_workspaces_is_an_error(
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
def test_auto_selects_the_engine_that_has_the_model(
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
    """As in the first example, a distance threshold of 0.3 finds nothing with the default model."""
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


# -- 12: the rest ----------------------------------------------------------------------------


@criterion("search", "12", "n_results: 0 and max_distance: null are valid")
def test_no_results_and_no_distance_are_valid(registry: Registry, ws: str, project: Path) -> None:
    """An explicit null means the default, like a missing value."""
    none = ok(registry["semtools.search"]({}, query="parser", files="src", n_results=0))
    assert (none["matches"], none["best_match"], none["has_matches"], none["total_matches"]) == ([], None, False, 0)
    for name, given in (
        ("semtools.search", {"files": "src"}),
        ("search.semantic", {"files": "src"}),
        ("search.workspace_search", {"workspace": ws}),
    ):
        ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src"]))
        plain = ok(registry[name]({}, query="parser", **given))
        assert ok(registry[name]({}, query="parser", **given, max_distance=None)) == plain
        assert plain.get("matches") or plain.get("results")


@criterion("search", "12", "files that are left out are in the answer, with their reasons")
def test_skipped_files_are_in_the_answer(registry: Registry, ws: str, tmp_path: Path) -> None:
    """They are in ``skipped_files``: the specification's ``skipped`` counts unchanged documents."""
    files: dict[str, str | bytes] = {"a.md": "parser\n", "photo.bin": b"\0\1\2\0" * 50, ".env": "TOKEN=1\n"}
    tree = plant(tmp_path / "tree", files)
    reasons = {"photo.bin": "binary", ".env": "secret"}
    for answer in (
        registry["search.workspace_index"]({}, workspace=ws, paths=[str(tree)]),
        registry["search.workspace_index"]({}, workspace=ws, paths=[str(tree)]),
        registry["search.semantic"]({}, query="parser", files=[str(tree)]),
        registry["semtools.search"]({}, query="parser", files=[str(tree)]),
    ):
        skipped = {os.path.basename(each["path"]): each["reason"] for each in ok(answer)["skipped_files"]}
        assert skipped == reasons
        json.dumps(answer)


@criterion("search", "12", "an action drops a single file that was deleted")
def test_a_deleted_file_can_be_dropped(registry: Registry, ws: str, project: Path) -> None:
    ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src/a.py", "top.md"]))
    (project / "top.md").unlink()
    ok(registry["search.workspace_remove"]({}, workspace=ws, paths=["top.md"]))
    found = registry["search.workspace_search"]({}, workspace=ws, query="option parser")
    assert names(found) == {"a.py"}
    assert ok(registry["search.workspace_stats"]({}, workspace=ws))["total_documents"] == 1
    ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src/a.py"]))


@criterion("search", "12", "search.workspace_remove takes places out of a workspace, and leaves the files alone")
def test_locations_are_removed_from_a_workspace(registry: Registry, ws: str, project: Path) -> None:
    remove = registry["search.workspace_remove"]
    assert "actions.search_workspace_remove" in registry
    before = files_of(project)

    def documents() -> int:
        return int(ok(registry["search.workspace_stats"]({}, workspace=ws))["total_documents"])

    ok(registry["search.workspace_index"]({}, workspace=ws, paths=["src", "top.md"]))
    assert documents() == 4
    ok(remove({}, workspace=ws, paths=["src/a.md"]))
    assert documents() == 3
    ok(remove({}, ws, "src"))
    assert documents() == 1
    assert names(registry["search.workspace_search"]({}, workspace=ws, query="parser")) == {"top.md"}
    assert files_of(project) == before
    assert error_type(remove({}, workspace=ws, paths=["nowhere"])) == "file_not_found"
    assert error_type(remove({}, workspace=f"{ws}x", paths=["src"])) == "workspace_not_found"
    assert documents() == 1


@criterion("search", "12", "results of mode vector are sorted by score")
@pytest.mark.parametrize("n_lines", [0, 1, 3])
def test_results_by_vector_are_sorted(n_lines: int, searched: Path, driftline: Driftline, registry: Registry) -> None:
    ws = str(searched / "ws")
    answers: list[Answer] = [
        dl.search(ws, "parser of groups", mode="vector", top_k=40, n_lines=n_lines).to_dict(),
        driftline("search", "value prefix", "--workspace", ws, "--mode", "vector", "-n", n_lines, "--json").json,
        ok(registry["search.workspace_search"]({}, workspace=ws, query="usage", mode="vector", n_lines=n_lines)),
    ]
    for answer in answers:
        scores = [hit["score"] for hit in answer["results"]]
        assert len(scores) >= 10
        assert scores == sorted(scores, reverse=True)


@criterion("search", "1", "path beside workspace is one place, or an error")
def test_path_together_with_workspace_is_never_ignored(registry: Registry, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    create = registry["search.workspace_create"]
    assert error_type(create({}, path=one, workspace=other)) == "validation_error"
    assert not (tmp_path / "one").exists()
    assert not (tmp_path / "other").exists()
    assert ok(create({}, path=one, workspace=one))["workspace"] == one
    assert error_type(create({})) == "validation_error"


@criterion("search", "11", "states are told of each path in the order given, absolute and missing ones included")
def test_states_are_reported_of_each_path(named: Path, ws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspace is the one that a command would use in this folder, or the second argument.

    A path that does not exist and was never indexed is ``missing``, not ``deleted``.
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
