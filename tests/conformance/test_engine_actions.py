"""Actions in a workflow engine for YAML agents: imports, template arguments, concurrent calls.

``test_memory_in_engines.py`` covers memory.
"""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import driftline as dl
from driftline.flows.actions import register_actions
from tests.conformance.search_support import (
    ENGINE_ARGUMENTS,
    ROOT,
    Answer,
    Registry,
    action_pages,
    actions,
    error_type,
    locations,
    ok,
    plant,
)
from tests.conformance.table import criterion
from tests.support.yaml_engine import YamlEngine, run_yaml

ENGINE_PINS = {"typer": "0.20.0"}


NEWER_TYPER = {"TyperException", "exceptions"}


FILES = {"docs/a.md": "parser\none\n", "docs/b.md": "group\ntwo\n", "src/c.py": "action\n"}


ODD_FILES = {"2024": "the year 2024 and 42\n", "[odd].md": "parser\n"}


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A read-only project and, next to it, a workspace (small model) over two of its folders."""
    location = tmp_path_factory.mktemp("indexed")
    plant(location / "project", {**FILES, **ODD_FILES})
    sources = [str(location / "project" / name) for name in ("docs", "src")]
    dl.index(sources, workspace=str(location / "ws"), model=str(tiny_model))
    return location


@pytest.fixture(autouse=True)
def _in_the_project(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(indexed / "project")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return actions(tmp_path / "home")


@pytest.fixture
def ws(indexed: Path, tmp_path: Path) -> str:
    """A copy of the workspace; tests may change it."""
    return str(shutil.copytree(indexed / "ws", tmp_path / "ws"))


# -- 3: installed beside the engine ----------------------------------------------------------


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"]]


@criterion("engine", "3", "the versions that the engine pins are allowed")
def test_the_pins_of_the_engine_are_allowed() -> None:
    wanted = {each.name: each.specifier for each in requirements()}
    for name, version in ENGINE_PINS.items():
        assert version in wanted[name], f"{name}{wanted[name]} excludes {version}"


@criterion("engine", "3", "of typer only what 0.20 has is used")
def test_only_features_of_an_old_typer_are_used() -> None:
    used: set[str] = set()
    for path in (ROOT / "flows").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "typer":
                used.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "typer":
                used.update([*(node.module or "").split(".")[1:], *(alias.name for alias in node.names)])
    assert "Typer" in used
    assert used & NEWER_TYPER == set()


@criterion("engine", "3", "the lowest versions that are allowed are tested")
def test_the_lowest_versions_are_tested() -> None:
    """Every dependency has a lower bound, and CI tests these lower bounds."""
    assert [
        each.name for each in requirements() if not any(s.operator in (">=", "~=", "==") for s in each.specifier)
    ] == []
    steps = [*(ROOT / ".github" / "workflows").glob("*.y*ml"), ROOT / "Makefile"]
    assert any("lowest-direct" in path.read_text() for path in steps if path.exists())


# -- 4: imported one by one, and beside the engine's own -------------------------------------

SEARCH = ("search.", "semtools.", "actions.search_", "actions.semtools_")


@criterion("engine", "4", "a group can be imported by itself, as a package of its own")
@pytest.mark.parametrize("group", ["search", "memory"])
def test_a_group_can_be_imported(group: str, tmp_path: Path) -> None:
    """Engines import a module that defines ``register_actions(registry, engine)``."""
    found: Registry = {}
    importlib.import_module(f"driftline.flows.actions.{group}").register_actions(found, YamlEngine())
    everything = set(actions(tmp_path))
    of_search = {name for name in everything if name.startswith(SEARCH)}
    assert set(found) == (of_search if group == "search" else everything - of_search)
    if group == "search":
        assert locations(ok(found["search.semantic"]({}, query="parser", files="docs"))["results"])[0] == ("a.md", 1)


@criterion("engine", "4", "actions can be imported one by one")
def test_actions_can_be_imported_one_by_one() -> None:
    """``only`` names actions or groups."""
    register: Any = register_actions
    for only, expected in (
        (["search.semantic"], {"search.semantic", "actions.search_semantic"}),
        (
            ["semtools.search", "ltm.store"],
            {"semtools.search", "actions.semtools_search", "ltm.store", "actions.ltm_store"},
        ),
        (["search"], {name for name in actions() if name.startswith(SEARCH)}),
    ):
        found: Registry = {}
        register(found, None, only=only)
        assert set(found) == expected, only
    with pytest.raises(dl.DriftlineError, match=r"search\.semantic"):
        register({}, None, only=["search.semantics"])


def _own(state: Any, **_: Any) -> Answer:
    return {"own": True}


@criterion("engine", "4", "names that the engine resolves already are never replaced")
@pytest.mark.parametrize("namespace", ["", "driftline"])
def test_names_of_the_engine_are_never_replaced(namespace: str) -> None:
    """Engines pass an empty registry, then let its actions override their own."""
    own = {"ltm.store": _own, "actions.ltm_store": _own, "ltm.search": _own, "memory.search": _own}
    engine = YamlEngine(own)
    engine.load_actions(register_actions, namespace)
    assert {name: engine.actions_registry[name] for name in own} == own
    prefix = f"{namespace}." if namespace else ""
    assert ok(engine.actions_registry[f"{prefix}search.semantic"]({}, query="parser", files="docs"))["results"]
    if namespace:
        assert "driftline.ltm.store" in engine.actions_registry


@criterion("engine", "4", "below a namespace all actions have their plain names, whatever the engine has of its own")
@pytest.mark.parametrize("group", ["", "search", "memory"])
@pytest.mark.parametrize("namespace", ["dl", "driftline", "a.b"])
def test_every_action_is_below_every_namespace(namespace: str, group: str) -> None:
    """As with ``imports: [{package: driftline.flows.actions, namespace: dl}]``."""
    module: Any = importlib.import_module(f"driftline.flows.actions.{group}" if group else "driftline.flows.actions")
    plain: Registry = {}
    module.register_actions(plain)
    own = dict.fromkeys(plain, _own)
    engine = YamlEngine(own)
    engine.load_actions(module.register_actions, namespace)
    for name in plain:
        assert engine.actions_registry[name] is _own
        assert engine.actions_registry[f"{namespace}.{name}"] is not _own
    found: Registry = {}
    module.register_actions(found, engine)
    for joined in ({namespace + "." + name for name in found}, {f"{namespace}.{name}" for name in found}):
        assert joined >= {f"{namespace}.{name}" for name in plain}
    if group != "memory":
        done = engine.run(
            f"nodes: [{{name: find, uses: {namespace}.semtools.search, with: {{query: parser, files: docs}}}}]"
        )
        assert ok(done["find"])["matches"]


@criterion("engine", "4", "where they are replaced on purpose, results, count and default stay")
def test_the_keys_of_the_engine_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ``replace`` overrides them."""
    plant(tmp_path, {"memory.yaml": "settings: {ltm: {embedding: {enabled: false}}}"})
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    monkeypatch.setenv("LTM_STORAGE_URI", str(tmp_path / "memory"))
    engine = YamlEngine({"ltm.store": _own, "ltm.retrieve": _own, "ltm.search": _own, "ltm.delete": _own})
    engine.load_actions(register_actions, replace=True)
    memory = engine.actions_registry
    ok(memory["ltm.store"]({}, key="plan a", value={"step": 1}, metadata={"phase": "plan"}))
    ok(memory["ltm.store"]({}, key="plan b", value=2))
    found = ok(memory["ltm.search"]({}, query="plan"))
    assert found["count"] == len(found["results"]) == 2
    assert {entry["key"]: entry["value"] for entry in found["results"]} == {"plan a": {"step": 1}, "plan b": 2}
    filtered = ok(memory["ltm.search"]({}, metadata_filter={"phase": "plan"}))
    assert (filtered["count"], filtered["results"][0]["metadata"]) == (1, {"phase": "plan"})
    missing = ok(memory["ltm.retrieve"]({}, key="nothing", default="none yet"))
    assert (missing["found"], missing["value"]) == (False, "none yet")
    there = ok(memory["ltm.retrieve"]({}, key="plan b", default="none yet"))
    assert (there["found"], there["value"]) == (True, 2)
    engine.close()


# -- 6: closed -------------------------------------------------------------------------------


@criterion("engine", "6", "after the engine has closed, every action answers with one typed error")
def test_a_closed_engine_has_one_error(tmp_path: Path, ws: str) -> None:
    engine = YamlEngine()
    registry = actions(tmp_path / "home", engine)
    given: dict[str, dict[str, Any]] = {
        "search.workspace_create": {"workspace": ws},
        "search.workspace_index": {"workspace": ws, "paths": ["docs"]},
        "search.workspace_search": {"workspace": ws, "query": "parser"},
        "search.workspace_stats": {"workspace": ws},
        "search.semantic": {"query": "parser", "files": "docs"},
        "semtools.search": {"query": "parser", "files": "docs"},
    }
    for name, arguments in given.items():
        ok(registry[name]({}, **arguments))
    engine.close()
    engine.close()
    answers = {name: registry[name]({}, **arguments) for name, arguments in given.items()}
    assert len({error_type(answer) for answer in answers.values()}) == 1, answers
    assert all("closed" in answer["error"] for answer in answers.values())


# -- 7: arguments from templates -------------------------------------------------------------


@criterion("engine", "7", "numbers and dates are text where text is meant; text is numbers where numbers are")
def test_scalars_are_converted(registry: Registry, ws: str) -> None:
    for query in (42, 4.2):
        assert ok(registry["search.semantic"]({}, query=query, files="docs"))["query"] == str(query)
    assert ok(registry["search.semantic"]({}, query=2024, files=2024))["results"]
    assert (
        ok(registry["semtools.search"]({}, query=42, files=[2024], max_distance="1.5", n_results="1"))["query"] == "42"
    )
    given = {"workspace": ws, "query": "parser", "top_k": "2", "n_lines": "0", "max_distance": "1.5"}
    found = ok(registry["search.workspace_search"]({}, **given))["results"]
    assert [len(hit["context"]) for hit in found] == [1, 1]
    again = ok(registry["search.workspace_index"]({}, workspace=ws, paths=["docs"], recursive="false"))
    assert again["skipped"] == 2
    assert len(ok(registry["search.workspace_search"]({}, workspace=ws, query="parser", top_k=2.0))["results"]) == 2


@criterion("engine", "7", "an empty or missing optional value means its default")
@pytest.mark.parametrize("empty", ["", "  ", None])
def test_an_empty_value_means_its_default(empty: str | None, registry: Registry, ws: str) -> None:
    optional: dict[str, dict[str, Any]] = {
        "search.workspace_index": {"recursive": empty, "extensions": empty},
        "search.workspace_search": {"paths": empty, "top_k": empty, "max_distance": empty, "n_lines": empty},
        "search.semantic": {"workspace": empty, "top_k": empty, "max_distance": empty, "n_lines": empty},
        "semtools.search": {
            "max_distance": empty,
            "n_results": empty,
            "n_lines": empty,
            "timeout": empty,
            "min_version": empty,
            "check_version": empty,
        },
    }
    required: dict[str, dict[str, Any]] = {
        "search.workspace_index": {"workspace": ws, "paths": ["docs"]},
        "search.workspace_search": {"workspace": ws, "query": "parser"},
        "search.semantic": {"query": "parser", "files": "docs"},
        "semtools.search": {"query": "parser", "files": "docs"},
    }
    for name, given in required.items():
        plain = ok(registry[name]({}, **given))
        assert ok(registry[name]({}, **given, **optional[name])) == plain, name


@criterion("engine", "7", "JSON text is read where a list is expected")
def test_json_text_is_a_list(registry: Registry, ws: str) -> None:
    indexed = ok(registry["search.workspace_index"]({}, workspace=ws, paths='["docs", "src"]', extensions='["md"]'))
    assert indexed["skipped"] == 2
    given = {"workspace": ws, "query": "parser", "top_k": 10}
    found = ok(registry["search.workspace_search"]({}, **given, paths='["docs/a.md"]'))["results"]
    assert {name for name, _ in locations(found)} == {"a.md"}
    assert ok(registry["search.workspace_search"]({}, **given, paths="[]"))["results"] == []
    several = ok(registry["search.semantic"]({}, query="parser", files='["docs/a.md", "src/*.py"]'))["results"]
    assert {name for name, _ in locations(several)} == {"a.md", "c.py"}
    assert locations(ok(registry["search.semantic"]({}, query="parser", files="[odd].md"))["results"]) == [
        ("[odd].md", 1)
    ]


TEMPLATES = """
nodes:
  - name: index
    uses: search.workspace_index
    with: {workspace: "{{ ws }}", paths: "{{ paths | tojson }}", recursive: "{{ deep }}", extensions: "{{ none }}"}
  - name: find
    uses: search.workspace_search
    with:
      workspace: "{{ ws }}"
      query: "{{ question }}"
      paths: "{{ missing }}"
      top_k: "{{ count }}"
      max_distance: "{{ none }}"
      n_lines: "{{ zero }}"
    output: found
  - name: grep
    uses: semtools.search
    with: {query: "{{ question }}", files: "{{ found.results[0].file }}", n_results: "{{ count }}", max_distance: 2}
    output: matches
"""


@criterion("engine", "7", "an agent of templates works, whether they keep types or render to text")
@pytest.mark.parametrize("keeps_types", [True, False])
def test_a_templated_agent_works(keeps_types: bool, registry: Registry, ws: str) -> None:
    state: dict[str, Any] = {"ws": ws, "paths": ["docs", "src"], "deep": True, "none": None}
    state |= {"question": "parser", "count": 1, "zero": 0}
    done = run_yaml(TEMPLATES, registry, state, keeps_types=keeps_types)
    assert ok(done["index"])["skipped"] == 3
    assert locations(ok(done["found"])["results"]) == [("a.md", 1)]
    assert done["found"]["results"][0]["context"] == ["parser"]
    assert ok(done["matches"])["matches"][0]["text"] == "parser"


@criterion("engine", "7", "a misspelt argument is an error that names the nearest")
@pytest.mark.parametrize(
    ("name", "misspelt", "meant"),
    [
        ("search.workspace_search", "topk", "top_k"),
        ("search.workspace_search", "path", "paths"),
        ("search.workspace_search", "max_distanse", "max_distance"),
        ("search.workspace_index", "extension", "extensions"),
        ("search.workspace_index", "recursiv", "recursive"),
        ("search.semantic", "n_line", "n_lines"),
        ("semtools.search", "n_result", "n_results"),
        ("semtools.search", "file", "files"),
        ("search.workspace_create", "workspase", "workspace"),
        ("search.workspace_stats", "work_space", "workspace"),
    ],
)
def test_a_misspelt_argument_is_reported(name: str, misspelt: str, meant: str, registry: Registry, ws: str) -> None:
    given: dict[str, Any] = {}
    if "workspace" in name:
        given["workspace"] = ws
    if name.rpartition("_")[2] in ("search", "semantic") or name.rpartition(".")[2] == "search":
        given["query"] = "parser"
    if name in ("search.semantic", "semtools.search"):
        given = {"query": "parser", "files": "docs"}
    if name == "search.workspace_index":
        given["paths"] = ["docs"]
    answer = registry[name]({}, **given, **ENGINE_ARGUMENTS, **{misspelt: 1})
    assert error_type(answer) == "validation_error"
    assert misspelt in answer["error"]
    assert f"'{meant}'" in answer["error"]


@criterion("engine", "7", "messages are ours, and name the argument")
def test_messages_of_the_parser_are_translated_to_our_own(registry: Registry, ws: str) -> None:
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("search.workspace_search", {"workspace": ws}, "query"),
        ("search.workspace_search", {"workspace": ws, "query": " "}, "query"),
        ("search.workspace_search", {"workspace": ws, "query": ["a", "list"]}, "query"),
        ("search.workspace_search", {"workspace": ws, "query": "x", "top_k": "many"}, "top_k"),
        ("search.workspace_search", {"workspace": ws, "query": "x", "top_k": -1}, "top_k"),
        ("search.workspace_search", {"workspace": ws, "query": "x", "top_k": 1.5}, "top_k"),
        ("search.workspace_search", {"workspace": ws, "query": "x", "max_distance": 3}, "max_distance"),
        ("search.workspace_search", {"workspace": ws, "query": "x", "max_distance": "nan"}, "max_distance"),
        ("search.workspace_search", {"workspace": ws, "query": "x", "paths": {"a": 1}}, "paths"),
        ("search.workspace_index", {"workspace": ws, "paths": []}, "paths"),
        ("search.workspace_index", {"workspace": ws, "paths": ["docs"], "recursive": "perhaps"}, "recursive"),
        ("search.workspace_index", {"workspace": ws}, "paths"),
        ("search.semantic", {"query": "x"}, "files"),
        ("semtools.search", {"query": "x", "files": "docs", "timeout": 0}, "timeout"),
        ("search.workspace_stats", {"workspace": ""}, "workspace"),
        ("search.workspace_create", {}, "workspace"),
    ]
    for name, given, argument in calls:
        answer = registry[name]({}, **given)
        assert error_type(answer) == "validation_error", (name, given)
        assert argument in answer["error"]
        for foreign in ("pydantic", "Input should", "input_value", "Missing required", "String should", "Value error"):
            assert foreign not in answer["error"], answer


@criterion("engine", "7", "impossible names and numbers give dictionaries")
@pytest.mark.parametrize("wrong", ["a\0b", "a\ud800b", "x" * 5_000], ids=["NUL", "surrogate", "long"])
def test_impossible_names_return_errors(wrong: str, registry: Registry, ws: str) -> None:
    for name, given in (
        ("search.workspace_create", {"workspace": wrong}),
        ("search.workspace_create", {"workspace": f"/nonexistent/{wrong}"}),
        ("search.workspace_stats", {"workspace": wrong}),
        ("search.workspace_index", {"workspace": ws, "paths": [wrong]}),
        ("search.semantic", {"query": "parser", "files": wrong}),
        ("search.semantic", {"query": "parser", "files": [f"{wrong}/*.md"]}),
        ("semtools.search", {"query": "parser", "files": [wrong]}),
        ("search.workspace_index", {"workspace": wrong, "paths": ["docs"]}),
        ("search.workspace_search", {"workspace": wrong, "query": "parser"}),
    ):
        answer = registry[name]({}, **given)
        error_type(answer)
        answer["error"].encode()
    for name, given in (
        ("search.workspace_search", {"workspace": ws, "query": wrong}),
        ("search.workspace_search", {"workspace": ws, "query": "parser", "paths": [wrong]}),
        ("search.semantic", {"query": wrong, "files": "docs"}),
        ("semtools.search", {"query": wrong, "files": "docs"}),
    ):
        assert isinstance(registry[name]({}, **given)["success"], bool)


@criterion("engine", "7", "numbers that are too large give dictionaries")
@pytest.mark.parametrize("number", [10**30, 2**63, "1" + "0" * 30, float("inf")])
def test_too_large_numbers_return_errors(number: Any, registry: Registry, ws: str) -> None:
    """The response contains all results or is an error."""
    for name, given, argument in (
        ("search.workspace_search", {"workspace": ws, "query": "parser"}, "top_k"),
        ("search.workspace_search", {"workspace": ws, "query": "parser"}, "n_lines"),
        ("search.semantic", {"query": "parser", "files": "docs"}, "top_k"),
        ("search.semantic", {"query": "parser", "files": "docs"}, "n_lines"),
        ("semtools.search", {"query": "parser", "files": "docs"}, "n_results"),
    ):
        answer = registry[name]({}, **given, **{argument: number})
        if answer["success"]:
            assert answer.get("results") or answer.get("matches")
        else:
            assert error_type(answer) == "validation_error", (name, argument)


@criterion("engine", "7", "every error_type stands in the reference")
def test_the_reference_lists_every_error_type() -> None:
    kinds = {
        "workspace_not_found",
        "file_not_found",
        "validation_error",
        "index_corrupt",
        "lancedb_error",
        "storage_error",
        "prerequisite_missing",
        "deletion_refused",
        "lease_held",
        "cli_error",
        "parse_error",
        "timeout",
    }
    source = "\n".join(path.read_text() for path in (ROOT / "flows" / "actions").glob("*.py"))
    kinds |= set(re.findall(r"\bActionError\(\s*\"(\w+)\"", source))
    page = action_pages()
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()


# -- 8: one meaning, and side by side --------------------------------------------------------


@criterion("engine", "8", "path means the same with a workspace and without")
@pytest.mark.parametrize("files", ["docs", "docs/a.md", "docs/*.md", "./docs", ["docs", "src/c.py"], "{project}/docs"])
def test_path_is_an_alias(files: Any, registry: Registry, ws: str) -> None:
    """A file has the same ``path`` in all responses, with and without a workspace."""
    if isinstance(files, str):
        files = files.format(project=Path.cwd())
    given = {"query": "parser group action", "files": files, "top_k": 20, "n_lines": 0}

    def paths(**options: Any) -> set[str]:
        return {hit["path"] for hit in ok(registry["search.semantic"]({}, **given, **options))["results"]}

    plain = paths()
    assert plain
    assert paths(workspace=ws) == plain


@criterion("engine", "8", "searches in one workspace at once are not slower than in turn")
def test_concurrent_searches_cost_no_more_than_sequential_ones(registry: Registry, ws: str) -> None:
    given = {"query": "parser of groups", "files": ["docs", "src"], "workspace": ws}

    def search(_: int) -> Answer:
        return ok(registry["search.semantic"]({}, **given))

    def seconds(run: Callable[[], object]) -> float:
        started = time.process_time()  # for all threads, but not for other processes
        run()
        return time.process_time() - started

    def at_once() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(search, range(8)))

    def in_turn() -> None:
        list(map(search, range(8)))

    search(0)  # loads the index
    # Compared with each other at once: on a busy machine, the same work takes more CPU time than a moment ago.
    assert any(seconds(at_once) <= 1.3 * seconds(in_turn) + 0.05 for _ in range(5))
