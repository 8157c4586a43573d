"""The actions for YAML agents, called as by an engine, and the workflows in their reference."""

from __future__ import annotations

import gc
import inspect
import json
import re
import runpy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jinja2.nativetypes import NativeEnvironment

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.actions.memory import MEMORY_ACTIONS
from driftline.flows.actions.search import ACTIONS
from driftline.storage.workspace.workspace import Workspace

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "yaml-actions.md"
WORKFLOWS = re.findall(r"^```yaml\n(.*?)^```$", REFERENCE.read_text(), re.MULTILINE | re.DOTALL)
NAMES = [
    "search.workspace_create",
    "search.workspace_index",
    "search.workspace_search",
    "search.workspace_stats",
    "search.workspace_remove",
    "search.semantic",
    "semtools.search",
]
FILES = {
    "docs/leases.md": "# Leases\nA lease expires when its holder is dead.\nRenew it in time.\n",
    "docs/deep/cooking.md": "Boil the potatoes in salted water.\n",
    "src/a.py": "def renew_lease(holder):\n    return holder.renew()\n",
    "README": "Everything about the project.\n",
}
Registry = dict[str, Callable[..., dict[str, Any]]]


class Engine:
    """A host that closes objects registered with it."""

    def __init__(self) -> None:
        self.to_close: list[Callable[[], None]] = []

    def on_close(self, function: Callable[[], None]) -> None:
        self.to_close.append(function)

    def close(self) -> None:
        for function in self.to_close:
            function()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def registry(tree: Path, engine: Engine) -> Registry:
    actions: Registry = {}
    register_actions(actions, engine, home=str(tree / "home"))
    return actions


@pytest.fixture
def notes(registry: Registry, tree: Path, tiny_model: Path) -> Registry:
    """The registry, and a workspace called notes whose model loads quickly."""
    (tree / "empty").mkdir()
    dl.index(str(tree / "empty"), workspace=str(tree / "home" / "notes"), model=str(tiny_model))
    return registry


def run(registry: Registry, workflow: dict[str, Any], state: dict[str, Any]) -> list[str]:
    """Run a tiny engine and return the names of the visited nodes; like real engines, it passes extra keyword
    arguments.
    """
    render = NativeEnvironment()

    def value(template: Any) -> Any:
        if isinstance(template, str) and "{{" in template:
            return render.from_string(template).render(state=state)
        if isinstance(template, list):
            return [value(item) for item in template]
        return {key: value(item) for key, item in template.items()} if isinstance(template, dict) else template

    nodes = {node["name"]: node for node in workflow["nodes"]}
    visited = [workflow["nodes"][0]["name"]]
    while "uses" in (node := nodes[visited[-1]]):
        state[node["output"]] = registry[node["uses"]](state, **value(node["with"]), run_id="r1", checkpointer=None)
        visited.append(next(edge["to"] for edge in node["goto"] if value(edge.get("if", True))))
    return visited


# Registering.


def test_exactly_the_documented_names_are_registered(registry: Registry) -> None:
    expected = {known for name in [*NAMES, *MEMORY_ACTIONS] for known in (name, "actions." + name.replace(".", "_"))}
    assert set(registry) == expected
    assert list(ACTIONS) == NAMES
    reference = REFERENCE.read_text()
    assert all(f"`{name}`" in reference for name in expected)
    assert all(f"\n## {name}\n" in reference for name in NAMES)


def test_existing_names_of_the_registry_are_kept() -> None:
    def mine(state: Any, **_: Any) -> dict[str, Any]:
        return {"mine": True}

    actions: Registry = {"search.semantic": mine}
    register_actions(actions, None)
    assert actions["search.semantic"] is mine
    assert len(actions) == 2 * len([*NAMES, *MEMORY_ACTIONS])


def test_a_registry_may_be_an_object_and_an_engine_may_be_anything() -> None:
    class Shelf:
        def __init__(self) -> None:
            self.held: Registry = {}

        def register(self, name: str, function: Callable[..., dict[str, Any]]) -> None:
            assert name not in self.held
            self.held[name] = function

        def get(self, name: str) -> Any:
            return self.held.get(name)

    for engine in (None, {}, object(), Engine()):
        shelf = Shelf()
        register_actions(shelf, engine)
        register_actions(shelf, engine)
        assert len(shelf.held) == 2 * len([*NAMES, *MEMORY_ACTIONS])


def test_the_arguments_match_the_reference() -> None:
    hooks = runpy.run_path(str(REFERENCE.parents[1] / "hooks.py"))
    text = hooks["fill"](REFERENCE.read_text()).partition("\n## Memory\n")[0]
    parts = re.split(r"^## (?:search|semtools)\.\w+$", text, flags=re.MULTILINE)[1:]
    sections = dict(zip(NAMES, parts, strict=True))
    for name, function in ACTIONS.items():
        parameters = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in ("state", "handles")
        ]
        rows = re.findall(r"^\| (`.*?`) \|", sections[name].split("error_type")[0], re.M)
        assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(parameters), name


def test_handles_close_with_the_engine(registry: Registry, engine: Engine) -> None:
    assert registry["search.workspace_create"]({}, workspace="notes")["success"]
    engine.close()
    assert registry["search.workspace_stats"]({}, workspace="notes")["error_type"] == "validation_error"


def test_without_a_hook_handles_close_when_the_engine_is_collected(tree: Path) -> None:
    class Plain:
        pass

    engine = Plain()
    actions: Registry = {}
    register_actions(actions, engine, home=str(tree))
    assert actions["search.workspace_create"]({}, workspace="notes")["success"]
    del engine
    gc.collect()
    assert not actions["search.workspace_stats"]({}, workspace="notes")["success"]


# Workspaces.


def test_a_named_workspace_is_created_once(registry: Registry, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = registry["search.workspace_create"]
    location = str(tree / "home" / "notes")
    assert create({}, workspace="notes") == {"success": True, "workspace": location, "created": True}
    assert create(state={}, workspace="notes") == {"success": True, "workspace": location, "created": False}
    assert create({}, workspace=location)["created"] is False
    assert create({}, workspace=tree / "other")["workspace"] == str(tree / "other")
    assert create({}, workspace="./here")["workspace"] == str(tree / "here")
    monkeypatch.setenv("DRIFTLINE_HOME", str(tree / "variable"))
    assert ACTIONS["search.workspace_create"]({}, workspace="notes")["workspace"] == str(tree / "variable" / "notes")


def test_indexing_counts_new_changed_and_unchanged_documents(notes: Registry, tree: Path) -> None:

    def index(paths: Any, deleted: int = 0, **options: Any) -> tuple[int, ...]:
        found = notes["search.workspace_index"]({}, workspace="notes", paths=paths, **options)
        assert found.pop("deleted", 0) == deleted, found
        assert list(found) == ["success", "indexed", "updated", "skipped", "total_lines"], found
        return tuple(found.values())[1:]

    assert index("docs/leases.md") == (1, 0, 0, 3)
    assert index(["src/a.py", "docs/leases.md"]) == (1, 0, 1, 5)
    assert index("docs/**/*.md") == (1, 0, 1, 6)  # the file remains one document
    assert index(["src/a.py", "docs"]) == (2, 0, 1, 6)  # replaces the file and the glob inside it
    assert index(["src/a.py", "src"]) == (1, 0, 0, 6)
    (tree / "docs/leases.md").write_text("A lease.\n")
    assert index(["docs/leases.md", "docs/*.md"]) == (0, 1, 1, 4)  # left to the folder
    assert index("docs", deleted=1, recursive=False) == (0, 0, 1, 3)
    assert index("docs", extensions="md") == (1, 0, 1, 4)
    assert index(".", extensions=[".py"], recursive="true") == (0, 0, 1, 4)  # left to the folder
    assert index("docs/*.none") == (0, 0, 0, 4)
    stats = notes["search.workspace_stats"]({}, workspace="notes")
    assert stats == {"success": True, "total_documents": 3, "total_lines": 4, "has_index": False, "index_type": None}


def test_extensions_that_would_match_nothing_are_refused_and_delete_nothing(notes: Registry) -> None:
    index = notes["search.workspace_index"]
    assert index({}, workspace="notes", paths="src", extensions=["{py,rs}"])["indexed"] == 1
    for wrong in ("*.py", "py,md", "", " ", ".", "src/py", "[p]y", "{py"):
        refused = index({}, workspace="notes", paths="src", extensions=["rs", wrong])
        assert (refused["success"], refused.get("error_type")) == (False, "validation_error"), (wrong, refused)
    assert notes["search.workspace_stats"]({}, workspace="notes")["total_documents"] == 1


@pytest.mark.parametrize(
    ("paths", "options", "expected"),
    [
        ("**", {"extensions": [".py"]}, {"src/a.py", "src/deep/c.py"}),
        ("src/**", {"extensions": ["py", "md"]}, {"src/a.py", "src/deep/c.py", "src/deep/d.md"}),
        ("src/*", {"extensions": ["md"]}, set()),
        ("src/de*/*", {"extensions": ["md"]}, {"src/deep/d.md"}),
        ("src/**/*.py", {"extensions": ["md"]}, {"src/a.py", "src/deep/c.py"}),
        ("src/a.py", {"extensions": ["md"]}, {"src/a.py"}),
        ("src/**", {"recursive": False}, {"src/a.py"}),
        ("**/*.py", {"recursive": False}, set()),
        ("src/de*/**", {"recursive": False}, {"src/deep/c.py", "src/deep/d.md"}),
        ("src", {"recursive": False, "extensions": ["py"]}, {"src/a.py"}),
    ],
)
def test_extensions_and_recursive_apply_to_folders_and_open_globs(
    paths: str, options: dict[str, Any], expected: set[str], notes: Registry, tree: Path
) -> None:
    (tree / "src/deep/more").mkdir(parents=True)
    for name in ("deep/c.py", "deep/d.md"):
        (tree / "src" / name).write_text(f"{name}\n")
    assert notes["search.workspace_index"]({}, workspace="notes", paths=paths, **options)["success"]
    opened = dl.open(tree / "home/notes")
    roots = {source["entity"]: source["uri"] for source in opened.sources()}
    found = {str(Path(roots[each.source], each.path).relative_to(tree)) for each in opened.documents()}
    assert found == expected


def test_documents_that_a_call_deletes_are_counted(notes: Registry, tree: Path) -> None:
    index = notes["search.workspace_index"]
    assert "deleted" not in index({}, workspace="notes", paths=".", extensions=["md"])
    assert index({}, workspace="notes", paths=".", extensions=["py"])["deleted"] == 2


def test_extensions_select_files_in_either_case(notes: Registry, tree: Path) -> None:
    (tree / "src/SHOUT.PY").write_text("loud\n")
    index = notes["search.workspace_index"]
    for extensions in (["py"], [".PY"], "Py"):
        assert index({}, workspace="notes", paths="src", extensions=extensions)["success"]
        assert notes["search.workspace_stats"]({}, workspace="notes")["total_documents"] == 2, extensions


def test_arguments_may_be_numpy_values_sets_and_generators(notes: Registry) -> None:
    index, find = notes["search.workspace_index"], notes["search.workspace_search"]
    for paths in (np.array(["docs", "src"]), {"docs", "src"}, (each for each in ["docs", "src"])):
        assert index({}, workspace="notes", paths=paths)["success"]
    answer = find({}, workspace="notes", query="lease", top_k=np.int64(1), max_distance=np.float32(2))
    assert len(answer["results"]) == 1


def test_nodes_that_run_in_parallel_wait_for_each_other(notes: Registry) -> None:
    def index(_: int) -> dict[str, Any]:
        return notes["search.workspace_index"]({}, workspace="notes", paths=["docs", "src"])

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(index, range(3)))
    assert [result["success"] for result in results] == [True] * 3, results
    assert sum(result["indexed"] for result in results) == 3


def test_names_that_look_like_patterns_are_taken_literally(notes: Registry, tree: Path) -> None:
    names = [
        "a b",
        " lead",
        "trail ",
        "!bang",
        "#hash",
        "br[1]",
        "st*r",
        "q?",
        "back\\slash",
        "nl\n",
        "{a,b}",
        "-",
        "'q\"",
    ]
    for name in names:
        (tree / name).write_text("parser\n")
    requested = {"workspace": "notes", "paths": [str(tree / name) for name in names]}
    assert notes["search.workspace_index"]({}, **requested)["indexed"] == len(names)
    for name in names:
        requested = {"workspace": "notes", "query": "parser", "paths": str(tree / name)}
        assert [hit["path"] for hit in notes["search.workspace_search"]({}, **requested)["results"]] == [name]


def test_a_bucket_is_a_workspace_and_a_source(tree: Path, registry: Registry, s3_bucket: str) -> None:
    import fsspec

    with fsspec.open(f"{s3_bucket}/tree/a.txt", "w") as file:
        file.write("A lease expires.\n")
    at = {"workspace": f"{s3_bucket}/workspace"}
    assert registry["search.workspace_create"]({}, **at) == {"success": True, **at, "created": True}
    assert registry["search.workspace_index"]({}, **at, paths=f"{s3_bucket}/tree")["indexed"] == 1
    found = registry["search.workspace_search"]({}, **at, query="lease", paths=["a.txt"])
    assert [(hit["path"], hit["line"]) for hit in found["results"]] == [("a.txt", 1)]
    missing = registry["search.workspace_stats"]({}, workspace="s3://no-such-bucket/workspace")
    assert missing["error_type"] in ("workspace_not_found", "storage_error")


def test_a_search_is_limited_to_the_given_paths(notes: Registry, tree: Path) -> None:
    notes["search.workspace_index"]({}, workspace="notes", paths=["docs", "src"])

    def paths(**options: Any) -> set[str]:
        found = notes["search.workspace_search"]({}, workspace="notes", query="renew the lease", top_k=50, **options)
        assert list(found)[:3] == ["success", "results", "query"]
        assert ("notes" in found) == all(hit["label"] == "weak" for hit in found["results"])
        json.dumps(found)
        return {hit["path"] for hit in found["results"]}

    everything = {"leases.md", "deep/cooking.md", "a.py"}
    assert paths() == everything
    for named, expected in (
        ("docs", {"leases.md", "deep/cooking.md"}),
        (["docs/deep"], {"deep/cooking.md"}),
        (["deep"], {"deep/cooking.md"}),
        ("leases.md", {"leases.md"}),
        ([str(tree / "docs/leases.md"), "src"], {"leases.md", "a.py"}),
        ("docs/*.md", {"leases.md"}),
        ("**/*.py", {"a.py"}),
        ("elsewhere", set()),
        ([], set()),
    ):
        assert paths(paths=named) == expected, named
    assert paths(max_distance=0) == set()
    notes["search.workspace_index"]({}, workspace="notes", paths=".", extensions="none")
    assert paths(paths="leases.md") == {
        "leases.md"
    }  # although the current folder, which is now a source, would contain it


def test_positions_of_arguments_stay(registry: Registry, tree: Path) -> None:
    by_position = registry["search.semantic"]({}, "lease", ["docs"], None, 1, 1.5, 0, 0.1)
    assert by_position == registry["search.semantic"](
        {}, query="lease", files=["docs"], top_k=1, max_distance=1.5, n_lines=0, min_relevance=0.1
    )
    assert by_position["results"]
    assert registry["search.workspace_create"]({}, "notes")["success"]
    assert registry["search.workspace_index"]({}, workspace="notes", paths=["docs", "src"])["success"]
    first: list[Any] = [["docs"], 1, 1.5, 0, "text", 0.1, None, ["*.md"], ["md"], ["markdown"], None, False, True]
    rest = [None, None, None, None, "auto", 0.1, True]
    found = registry["search.workspace_search"]({}, "notes", "lease", *first, *rest)
    assert (len(found["results"]), found["explanation"]["mode"]) == (1, "text")


def test_semantic_search_needs_no_workspace_and_uses_one_that_is_given(registry: Registry, tree: Path) -> None:
    requested = {
        "query": "the holder of a lease has died",
        "files": ["docs/**/*.md", "README"],
        "top_k": 1,
        "n_lines": 0,
    }
    found = registry["search.semantic"]({}, **requested)
    assert [(hit["path"], hit["line"]) for hit in found["results"]] == [("docs/leases.md", 2)]
    assert registry["search.semantic"]({}, **requested, workspace="notes")["error_type"] == "workspace_not_found"
    registry["search.workspace_create"]({}, workspace="notes")
    found = registry["search.semantic"]({}, **requested, workspace="notes")
    assert [(hit["path"], hit["line"]) for hit in found["results"]] == [("docs/leases.md", 2)]
    assert registry["search.workspace_stats"]({}, workspace="notes")["total_documents"] == 0
    registry["search.workspace_index"]({}, workspace="notes", paths="docs")
    again = registry["search.semantic"]({}, **requested, workspace="notes")
    assert [(hit["path"], hit["line"]) for hit in again["results"]] == [("docs/leases.md", 2)]
    assert again["results"][0]["source"].endswith("source:docs")
    (tree / "docs/leases.md").write_text("\n" + FILES["docs/leases.md"])
    found = registry["search.semantic"]({}, **requested, workspace="notes")
    assert [hit["line"] for hit in found["results"]] == [3]


def test_exact_text_needs_no_query(notes: Registry, tree: Path) -> None:
    (tree / "docs/exact.md").write_text("the marker zq_17\n")
    notes["search.workspace_index"]({}, workspace="notes", paths=["docs"])
    for query in ({}, {"query": None}, {"query": " "}, {"query": "marker"}):
        for exact in ({"regex": r"zq_\d+"}, {"fixed": "zq_17"}):
            found = notes["search.workspace_search"]({}, workspace="notes", **query, **exact)
            assert [hit["path"] for hit in found["results"]] == ["exact.md"], (query, exact, found)


# Errors.


def test_every_failure_is_a_dictionary_with_its_type(registry: Registry, tree: Path) -> None:
    registry["search.workspace_create"]({}, workspace="notes")
    registry["search.workspace_create"]({}, workspace="broken")
    (tree / "home/broken/_workspace.json").write_text("{")
    (tree / "file").write_text("")
    expected: list[tuple[str, dict[str, Any], str]] = [
        ("search.workspace_stats", {"workspace": "nowhere"}, "workspace_not_found"),
        ("search.workspace_search", {"workspace": "nowhere", "query": "x"}, "workspace_not_found"),
        ("search.workspace_index", {"workspace": "nowhere", "paths": "docs"}, "workspace_not_found"),
        ("search.workspace_stats", {"workspace": "broken"}, "index_corrupt"),
        ("search.workspace_index", {"workspace": "notes", "paths": ["docs", "missing"]}, "file_not_found"),
        ("search.semantic", {"query": "x", "files": "missing/**"}, "file_not_found"),
        ("search.workspace_search", {"workspace": "notes"}, "validation_error"),
        ("search.workspace_search", {"workspace": "notes", "query": " "}, "validation_error"),
        ("search.workspace_search", {"workspace": "notes", "fixed": " ", "query": ""}, "validation_error"),
        ("search.workspace_search", {"workspace": "notes", "query": "x", "top_k": -1}, "validation_error"),
        ("search.workspace_search", {"workspace": "notes", "query": "x", "top_k": "many"}, "validation_error"),
        ("search.workspace_index", {"workspace": "notes", "paths": []}, "validation_error"),
        ("search.workspace_stats", {"workspace": ""}, "validation_error"),
        ("search.workspace_stats", {"workspace": "nonsense://x"}, "validation_error"),
        ("search.workspace_create", {"workspace": str(tree / "file" / "below")}, "storage_error"),
    ]
    for name, arguments, error_type in expected:
        found = registry[name]({}, **arguments)
        assert list(found) == ["success", "error", "error_type"], (name, found)
        assert (found["success"], found["error_type"]) == (False, error_type), (name, found)
    assert Workspace.open(str(tree / "home/notes")).stats().total_documents == 0  # nothing was written


def test_a_damaged_table_is_reported_as_index_corrupt(notes: Registry, tree: Path) -> None:
    notes["search.workspace_index"]({}, workspace="notes", paths="docs")
    for file in (tree / "home/notes").rglob("*.lance/data/*"):
        file.write_bytes(b"no data")
    found = notes["search.workspace_search"]({}, workspace="notes", query="lease parser")
    assert (found["success"], found["error_type"]) == (False, "index_corrupt"), found
    assert "driftline verify --repair" in found["error"]


def test_a_defect_is_raised(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from driftline.flows.actions.registry import Handles

    def defect(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Handles, "locate", defect)
    with pytest.raises(ZeroDivisionError):
        registry["search.workspace_stats"]({}, workspace="notes")


# The reference.


def test_the_workflows_of_the_reference_end_at_the_documented_node(registry: Registry) -> None:
    assert len(WORKFLOWS) == 3
    state: dict[str, Any] = {"question": "when does a lease expire"}
    for text in WORKFLOWS:
        workflow = yaml.safe_load(text)
        assert run(registry, workflow, state)[-1] == workflow["ends_at"], (text, state)
    assert state["found"]["best_match"]["file"] == "docs/leases.md"
    assert state["found"]["best_match"]["line"] == 2
