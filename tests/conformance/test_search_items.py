"""What users met who followed documents 000 to 002: items 1 to 12 of search."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import acquire
from driftline.storage.model import new_ulid
from tests.conformance.search_places import (
    Answer,
    Driftline,
    Registry,
    actions,
    error_type,
    files_of,
    names,
    ok,
    places,
    plant,
    without_variables,
)
from tests.conformance.table import criterion
from tests.support.semtools_program import VERSIONS, calls, install

WORDS = ("parser", "group", "action", "option", "value", "prefix", "usage", "namespace", "default", "string")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return actions(tmp_path / "home")


# -- 1: how places are named -----------------------------------------------------------------


@criterion("search", "1", "positional arguments after the state work, in the order of the documents")
def test_positional_arguments_work(registry: Registry, tmp_path: Path) -> None:
    place, tree = str(tmp_path / "place"), plant(tmp_path / "tree", {"a.md": "parser\n", "b/c.txt": "group\n"})
    assert ok(registry["search.workspace_create"]({}, place))["workspace"] == place
    assert ok(registry["search.workspace_index"]({}, place, [str(tree)], False, [".md"]))["indexed"] == 1
    assert ok(registry["search.workspace_index"]({}, place, [str(tree)]))["total_lines"] == 2
    found = ok(registry["search.workspace_search"]({}, place, "parser", [str(tree / "a.md")], 1, 1.5, 0))
    assert (places(found["results"]), found["results"][0]["context"]) == ([("a.md", 1)], ["parser"])
    assert ok(registry["search.workspace_stats"]({}, place))["total_documents"] == 2
    assert places(ok(registry["search.semantic"]({}, "parser", str(tree)))["results"])[0] == ("a.md", 1)
    matches = ok(registry["semtools.search"]({}, "parser", str(tree / "*.md"), 0.9, 1, 0))["matches"]
    assert places(matches) == [("a.md", 1)]


@criterion("search", "1", "too many or too few arguments give a dictionary, never a TypeError")
def test_wrong_numbers_of_arguments_give_dictionaries(registry: Registry) -> None:
    for name, action in registry.items():
        assert error_type(action({}, *range(40))) == "validation_error", name
        if name.startswith(("search.", "semtools.")):
            assert error_type(action({})) == "validation_error", name
    twice = registry["search.workspace_stats"]({}, "one", workspace="another")
    assert error_type(twice) == "validation_error"


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
    """The current folder: files of one line each, no two alike, and links to their folder."""
    files = {"src/a.py": "parser", "src/a.md": "group", "src/deep/b.py": "action", "top.md": "option"}
    project = plant(tmp_path / "project", {name: f"{text}\n" for name, text in files.items()})
    (project / "link").symlink_to("src")
    plant(project / "holder", {"own.md": "value\n"})
    (project / "holder" / "linked").symlink_to("../src")
    monkeypatch.chdir(project)
    return project


@criterion("search", "2", "overlapping places hold and return each file once, by actions")
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
    """The texts of all lines that can be found, none of them twice in any mode."""
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
    for place in order:
        outcome = driftline("index", place, "--workspace", ws)
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
    """A folder of 270 indexed files, 20 of them Markdown."""
    files = {f"{n}.txt": f"{WORDS[n % 10]}\n" for n in range(250)} | {f"{n}.md": "value\n" for n in range(20)}
    tree = plant(tmp_path / "many", files)
    assert ok(registry["search.workspace_index"]({}, workspace=ws, paths=[str(tree)]))["indexed"] == 270
    return tree


@criterion("search", "4", "a folder may be narrowed to fewer endings")
def test_a_folder_may_be_narrowed(many: Path, registry: Registry, ws: str) -> None:
    """What the caller asks for is no accident: no share of deletions is too large for it."""
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
    """A version of semtools, the only one on the path, and where it records its calls; eight files that match."""
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
def test_auto_takes_the_program_that_is_there(
    program: tuple[str, Path], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``engine`` and ``version`` name them; 3.0.1 does not say its version, so that there it may be none, or 3."""
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
    """The project, of which ``src/deep`` and ``holder`` are sources, without what lies between."""
    (project / "holder" / "linked").unlink()
    dl.index(str(project / "src/deep"), str(project / "holder"), workspace=ws)
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
    """What a name is in the current folder comes before what it may be inside a source."""
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
    """A folder with the workspace ``ws`` over ``tree``: 30 documents in ``a``, 10 in ``b``, three lines each."""
    place = tmp_path_factory.mktemp("searched")
    for folder, count in (("a", 30), ("b", 10)):
        for n in range(count):
            plant(place / "tree" / folder, {f"{n:02}.py": f"{WORDS[n % 10]}\n{WORDS[n // 10]} {folder}\nparser {n}\n"})
    dl.index(str(place / "tree"), workspace=str(place / "ws"), model=str(tiny_model))
    return place


# -- 8: named workspaces ---------------------------------------------------------------------


@pytest.fixture
def named(ws: str, project: Path) -> Path:
    """The project, indexed, with a ``driftline.toml`` whose workspace ``sub`` is its folder ``src/deep``."""
    (project / "holder/linked").unlink()
    text = f'workspace = "{ws}"\n[[sources]]\nuri = "."\n[workspaces.sub]\ndirs = ["src/deep"]\n'
    plant(project, {"driftline.toml": text})
    dl.index(str(project), workspace=ws)
    return project


# -- 9: hits can be opened -------------------------------------------------------------------


def assert_opens(hits: list[Mapping[str, Any]]) -> None:
    assert hits
    for hit in hits:
        assert os.path.isabs(hit["file"])
        assert Path(hit["file"]).read_text().splitlines()[hit["line"] - 1] == hit["text"]
        assert hit["file"].endswith(hit["path"].removeprefix("./"))


# -- 10: models, options and thresholds ------------------------------------------------------


def model_of(ws: str) -> str | None:
    return dl.open(ws).stats().model


# -- 11: types of Python ---------------------------------------------------------------------


# -- 12: the rest ----------------------------------------------------------------------------


@criterion("search", "12", "n_results: 0 and max_distance: null are valid")
def test_no_results_and_no_distance_are_valid(registry: Registry, ws: str, project: Path) -> None:
    """An explicit null means what no value means: the default."""
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
    """``skipped`` is a count of unchanged documents in the documents, so that ``skipped_files`` holds these."""
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
def test_places_are_taken_out_of_a_workspace(registry: Registry, ws: str, project: Path) -> None:
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
def test_path_beside_workspace_is_never_ignored(registry: Registry, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    create = registry["search.workspace_create"]
    assert error_type(create({}, path=one, workspace=other)) == "validation_error"
    assert not (tmp_path / "one").exists()
    assert not (tmp_path / "other").exists()
    assert ok(create({}, path=one, workspace=one))["workspace"] == one
    assert error_type(create({})) == "validation_error"


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
