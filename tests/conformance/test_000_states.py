"""Document 000: workspaces that are created at a path, the states of files, and lines that are stored by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import driftline as dl
from driftline.tasks.search.grep import open_embedder
from tests.conformance.search_places import (
    NOTES,
    Answer,
    Driftline,
    Registry,
    actions,
    names,
    ok,
    places,
    plant,
    without_variables,
)
from tests.conformance.table import criterion
from tests.support.yaml_engine import run_yaml

WORKSPACE_ACTIONS = (
    "search.workspace_create",
    "search.workspace_index",
    "search.workspace_search",
    "search.workspace_stats",
)
OLD_NS = 1_600_000_000_000_000_000


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tree ``project`` and the workspace ``ws`` over it, which tests only read."""
    place = tmp_path_factory.mktemp("notes")
    plant(place / "project", NOTES)
    dl.index(str(place / "project"), workspace=str(place / "ws"))
    return place


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return actions(tmp_path / "home")


@pytest.fixture
def own(ws: str, tmp_path: Path) -> Path:
    """A folder with an empty workspace ``ws`` of the small model, and ``tree`` with three files of an old time."""
    plant(tmp_path / "tree", {"a.md": "parser\none\n", "b.md": "group\ntwo\n", "c.md": "action\nthree\n"})
    for name in "abc":
        os.utime(tmp_path / "tree" / f"{name}.md", ns=(OLD_NS, OLD_NS))
    return tmp_path


def index(registry: Registry, own: Path, **options: object) -> Answer:
    given = {"workspace": str(own / "ws"), "paths": [str(own / "tree")], **options}
    return ok(registry["search.workspace_index"]({}, **given))


def state_of(own: Path, name: str) -> str:
    """What ``analyze_document_states`` says of one file of the tree."""
    path = str(own / "tree" / name)
    analyze: Any = dl.analyze_document_states
    ((answered, state),) = analyze([path], workspace=str(own / "ws"))
    assert answered == path
    return str(state.value)


def embedded(driftline: Driftline, own: Path) -> list[int]:
    """The lines that each run over the workspace has embedded, newest first."""
    runs = driftline("runs", "--workspace", own / "ws", "--json").json["runs"]
    return [run["lines_embedded"] for run in runs if run["kind"] == "index"]


# -- acceptance criteria ---------------------------------------------------------------------


@criterion("000", "AC 1", "create makes or opens a workspace at a path")
@criterion("000", "T11", "the action creates a workspace")
def test_a_workspace_is_created_at_a_path(registry: Registry, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "workspace"
    first = ok(registry["search.workspace_create"]({}, path=str(place)))
    assert first == {"success": True, "workspace": str(place), "created": True}
    assert dl.open(str(place)).stats().total_documents == 0
    again = ok(registry["search.workspace_create"]({}, path=f"{place}/"))
    assert again == {"success": True, "workspace": str(place), "created": False}


@criterion("000", "AC 1", "a tilde in the path is the home folder")
def test_a_path_may_begin_in_the_home_folder(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = ok(registry["search.workspace_create"]({}, path="~/workspaces/project/"))
    assert made["workspace"] == str(tmp_path / "workspaces" / "project")


@criterion("000", "AC 5", "files are new, changed or unchanged by size, time and version")
def test_states_are_told_for_paths(own: Path, registry: Registry) -> None:
    """Paths and a workspace are all that it takes: which source a path lies in, the workspace knows."""
    index(registry, own)
    (own / "tree/b.md").write_text("group\ntwo\nand more\n")
    (own / "tree/new.md").write_text("new\n")
    paths = [str(own / "tree" / name) for name in ("new.md", "a.md", "b.md")]
    analyze: Any = dl.analyze_document_states
    found = analyze(paths, workspace=str(own / "ws"))
    assert found == [
        (paths[0], dl.DocumentState.NEW),
        (paths[1], dl.DocumentState.UNCHANGED),
        (paths[2], dl.DocumentState.CHANGED),
    ]
    assert [dl.DocumentState(value).name for value in ("new", "changed", "unchanged")] == [
        "NEW",
        "CHANGED",
        "UNCHANGED",
    ]


@criterion("000", "AC 9", "a workspace may lie anywhere that fsspec reaches")
@criterion("000", "T17", "a workspace in S3 works")
@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_workspace_may_be_a_uri(kind: str, registry: Registry, own: Path, request: pytest.FixtureRequest) -> None:
    uri = f"file://{own}/remote" if kind == "file" else f"{request.getfixturevalue('s3_bucket')}/workspace"
    made = ok(registry["search.workspace_create"]({}, path=uri))
    assert made["created"] is True
    assert ok(registry["search.workspace_create"]({}, path=uri))["created"] is False
    given = {"workspace": made["workspace"]}
    assert ok(registry["search.workspace_index"]({}, **given, paths=[str(own / "tree")]))["indexed"] == 3
    found = ok(registry["search.workspace_search"]({}, **given, query="parser", top_k=1))
    assert places(found["results"]) == [("a.md", 1)]
    assert ok(registry["search.workspace_stats"]({}, **given))["total_lines"] == 6


AGENT = """
nodes:
  - name: open
    uses: search.workspace_create
    with: {path: "~/workspaces/notes/"}
    output: place
  - name: learn
    uses: search.workspace_index
    with:
      workspace: "{{ place.workspace }}"
      paths: [src/, lib/]
      extensions: [".py", ".rs"]
    output: learned
  - name: ask
    uses: search.workspace_search
    with:
      workspace: "{{ place.workspace }}"
      query: "what happens when a login fails"
      top_k: 10
    output: found
"""


@criterion("000", "AC 11", "uses, with and output of YAML work")
@criterion("000", "example 1", "an agent creates, indexes and searches")
@pytest.mark.parametrize("keeps_types", [True, False])
def test_an_agent_creates_indexes_and_searches(
    keeps_types: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(plant(tmp_path / "project", NOTES))
    state = run_yaml(AGENT, actions(), {}, keeps_types=keeps_types)
    assert ok(state["place"])["workspace"] == str(tmp_path / "workspaces" / "notes")
    assert (ok(state["learned"])["indexed"], state["learned"]["total_lines"]) == (4, 8)
    assert places(ok(state["found"])["results"])[0] in (("login.py", 1), ("login.py", 2), ("errors.rs", 1))
    assert "notes.txt" not in names(state["found"])


@criterion("000", "AC 13", "each state is told for what it is, whatever changed")
def test_every_state_is_told(own: Path, registry: Registry) -> None:
    assert state_of(own, "a.md") == "new"
    index(registry, own)
    assert state_of(own, "a.md") == "unchanged"
    (own / "tree/a.md").write_text("PARSER\none\n")
    assert state_of(own, "a.md") == "changed"
    index(registry, own)
    assert state_of(own, "a.md") == "unchanged"


@pytest.fixture
def store(own: Path) -> dl.LineStore:
    """The lines of one source by hand, in the small model's 24 dimensions."""
    return dl.LineStore(dl.open(str(own / "ws")), "source:by-hand")


def vector(text: str, tiny_model: Path) -> np.typing.NDArray[np.float32]:
    return open_embedder(str(tiny_model)).embed_query(text)


@criterion("000", "AC 14", "lines are put in, found and deleted by hand")
@criterion("000", "T6", "embeddings are stored; those of a path replace the ones before")
def test_line_embeddings_are_stored_by_hand(store: dl.LineStore, tiny_model: Path) -> None:
    """A row is a path, a line counted from 0, and its embedding: no text is needed."""
    line: Any = dl.LineEmbedding
    parser, group = (vector(word, tiny_model) for word in ("parser", "group"))
    rows = [line("a.md", 0, list(parser)), line("a.md", 1, list(group))]
    store.upsert_line_embeddings([*rows, line("b.md", 0, list(group))])
    (best,) = store.search_line_embeddings(parser, top_k=1).to_pylist()
    assert (best["path"], best["line_number"]) == ("a.md", 0)
    assert best["distance"] == pytest.approx(0, abs=1e-3)
    store.upsert_line_embeddings([line(path="a.md", line_number=5, embedding=list(parser))])
    found = store.search_line_embeddings(parser, top_k=10).to_pylist()
    assert sorted((row["path"], row["line_number"]) for row in found) == [("a.md", 5), ("b.md", 0)]


@criterion("000", "AC 15", "index, modify, index again, search")
def test_the_whole_flow(registry: Registry, tmp_path: Path) -> None:
    tree = plant(tmp_path / "tree", {"a.txt": "Boil the potatoes.\n", "b.txt": "Fry the onions.\n"})
    made = ok(registry["search.workspace_create"]({}, path=str(tmp_path / "ws")))
    given = {"workspace": made["workspace"]}

    def best(query: str) -> tuple[str, int]:
        return places(ok(registry["search.workspace_search"]({}, **given, query=query, top_k=1))["results"])[0]

    assert ok(registry["search.workspace_index"]({}, **given, paths=[str(tree)]))["indexed"] == 2
    assert best("how to cook potatoes") == ("a.txt", 1)
    (tree / "a.txt").write_text("Wash the dishes.\n")
    (tree / "c.txt").write_text("Dinner\nMash the potatoes.\n")
    again = ok(registry["search.workspace_index"]({}, **given, paths=[str(tree)]))
    assert (again["indexed"], again["updated"], again["skipped"]) == (1, 1, 1)
    assert best("how to cook potatoes") == ("c.txt", 2)


# -- listed test cases that no criterion above is the same as ---------------------------------


@criterion("000", "T1", "a new file is new")
def test_a_new_file_is_new(own: Path, registry: Registry) -> None:
    index(registry, own)
    (own / "tree/d.md").write_text("usage\n")
    assert state_of(own, "d.md") == "new"
    assert index(registry, own)["indexed"] == 1


@criterion("000", "T2", "another size is a change, even at the same time")
def test_another_size_is_a_change(own: Path, registry: Registry) -> None:
    index(registry, own)
    (own / "tree/a.md").write_text("parser\none more\n")
    os.utime(own / "tree/a.md", ns=(OLD_NS, OLD_NS))
    assert state_of(own, "a.md") == "changed"
    assert index(registry, own)["updated"] == 1


@criterion("000", "T3", "another time is noticed, even at the same size")
def test_another_time_is_noticed(own: Path, registry: Registry) -> None:
    """A file with another time and the same content may be called touched: it is not embedded again."""
    index(registry, own)
    (own / "tree/a.md").write_text("PARSER\none\n")
    os.utime(own / "tree/a.md", ns=(OLD_NS + 10**9, OLD_NS + 10**9))
    os.utime(own / "tree/b.md", ns=(OLD_NS + 10**9, OLD_NS + 10**9))
    assert state_of(own, "a.md") == "changed"
    assert state_of(own, "b.md") in ("changed", "touched")
    answer = index(registry, own)
    assert (answer["updated"], answer["skipped"]) in ((1, 2), (2, 1))


@criterion("000", "T4", "another version of the embedding embeds everything again")
def test_another_version_embeds_again(own: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model with a newer preparation of text: no more is needed than to index again."""
    index(registry, own)
    newer = dl.CURRENT_EMBEDDING_VERSION + 1
    for module in ("driftline", "driftline.storage.model", "driftline.tasks.embedding.models"):
        monkeypatch.setattr(f"{module}.CURRENT_EMBEDDING_VERSION", newer, raising=False)
    assert state_of(own, "a.md") == "changed"
    answer = index(registry, own)
    assert (answer["indexed"], answer["updated"], answer["skipped"]) == (0, 3, 0)
    assert state_of(own, "a.md") == "unchanged"
    found = ok(registry["search.workspace_search"]({}, workspace=str(own / "ws"), query="parser", top_k=1))
    assert places(found["results"]) == [("a.md", 1)]


@criterion("000", "T5", "an unchanged file is skipped")
def test_an_unchanged_file_is_skipped(own: Path, registry: Registry, driftline: Driftline) -> None:
    index(registry, own)
    assert state_of(own, "a.md") == "unchanged"
    assert index(registry, own)["skipped"] == 3
    assert embedded(driftline, own)[0] == 0
