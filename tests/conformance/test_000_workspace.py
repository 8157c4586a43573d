"""Document 000: a workspace of line embeddings, indexed and searched by actions."""

from __future__ import annotations

import inspect
import os
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import driftline as dl
from driftline.tasks.search.unindexed import open_embedder
from tests.conformance.search_support import (
    ENGINE_ARGUMENTS,
    NOTES,
    Answer,
    Driftline,
    Registry,
    actions,
    error_type,
    files_of,
    locations,
    names,
    ok,
    plant,
)
from tests.conformance.table import criterion
from tests.support.yaml_engine import YamlEngine, run_yaml

WORKSPACE_ACTIONS = (
    "search.workspace_create",
    "search.workspace_index",
    "search.workspace_search",
    "search.workspace_stats",
)


OLD_NS = 1_600_000_000_000_000_000


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that contains the tree ``project`` and its workspace ``ws``; tests must not change it."""
    location = tmp_path_factory.mktemp("notes")
    plant(location / "project", NOTES)
    dl.index(str(location / "project"), workspace=str(location / "ws"))
    return location


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return actions(tmp_path / "home")


@pytest.fixture
def own(ws: str, tmp_path: Path) -> Path:
    """A folder that contains an empty workspace ``ws`` (small model) and ``tree``: three files with an old mtime."""
    plant(tmp_path / "tree", {"a.md": "parser\none\n", "b.md": "group\ntwo\n", "c.md": "action\nthree\n"})
    for name in "abc":
        os.utime(tmp_path / "tree" / f"{name}.md", ns=(OLD_NS, OLD_NS))
    return tmp_path


def index(registry: Registry, own: Path, **options: object) -> Answer:
    given = {"workspace": str(own / "ws"), "paths": [str(own / "tree")], **options}
    return ok(registry["search.workspace_index"]({}, **given))


def state_of(own: Path, name: str) -> str:
    """Return the state that ``analyze_document_states`` reports for one file of the tree."""
    path = str(own / "tree" / name)
    analyze: Any = dl.analyze_document_states
    ((answered, state),) = analyze([path], workspace=str(own / "ws"))
    assert answered == path
    return str(state.value)


def embedded(driftline: Driftline, own: Path) -> list[int]:
    """Return the number of lines embedded by each run over the workspace, newest first."""
    runs = driftline("runs", "--workspace", own / "ws", "--json").json["runs"]
    return [run["lines_embedded"] for run in runs if run["kind"] == "index"]


# -- acceptance criteria ---------------------------------------------------------------------


@criterion("000", "AC 2", "index stores the lines of files and directories, and counts")
@criterion("000", "T12", "the action indexes files")
def test_files_and_directories_are_indexed(registry: Registry, own: Path) -> None:
    plant(own / "tree", {"deep/d.py": "value\n", "deep/e.txt": "value\n"})
    assert index(registry, own, paths=[str(own / "tree/a.md")]) == {
        "success": True,
        "indexed": 1,
        "updated": 0,
        "skipped": 0,
        "total_lines": 2,
    }
    whole = index(registry, own)
    assert (whole["updated"], whole["total_lines"]) == (0, 8)
    assert whole["indexed"] + whole["skipped"] == 5
    assert dl.open(str(own / "ws")).status().total_documents == 5


@criterion("000", "AC 2", "recursive and extensions choose the files of a directory")
@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, 8),
        ({"recursive": False}, 6),
        ({"extensions": [".py"]}, 1),
        ({"extensions": [".py", ".md"]}, 7),
        ({"extensions": ["txt"]}, 1),
        ({"extensions": [".md"], "recursive": False}, 6),
    ],
)
def test_the_files_of_a_directory_are_chosen(
    options: dict[str, object], lines: int, registry: Registry, own: Path
) -> None:
    plant(own / "tree", {"deep/d.py": "value\n", "deep/e.txt": "value\n"})
    answer = index(registry, own, **options)
    assert answer["total_lines"] == lines
    assert set(answer) >= {"success", "indexed", "updated", "skipped", "total_lines"}


@criterion("000", "AC 3", "search finds indexed lines, in some paths or in all")
@criterion("000", "T13", "the action searches")
def test_indexed_lines_are_found(registry: Registry, notes: Path) -> None:
    def search(**options: object) -> Answer:
        given = {"workspace": str(notes / "ws"), "query": "when does a lease expire", **options}
        return ok(registry["search.workspace_search"]({}, **given))

    found = search()
    assert found["query"] == "when does a lease expire"
    assert ("leases.md", 2) in locations(found["results"])[:3]
    assert [hit["rank"] for hit in found["results"]] == list(range(1, len(found["results"]) + 1))
    project = notes / "project"
    everything = ["leases.py", "login.py", "parser.py", "errors.rs", "notes.txt", "leases.md", "cooking.md"]
    for paths, allowed in (
        ([project / "src"], everything[:3]),
        ([project / "src/leases.py", project / "lib"], [everything[0], *everything[3:5]]),
        (["docs"], everything[5:]),
        ([project], everything),
    ):
        found = search(paths=[str(path) for path in paths], top_k=20)
        assert names(found) == set(allowed), paths
    assert search(paths=[])["results"] == []


@criterion("000", "AC 3", "ten results at most and three lines around each, unless told otherwise")
def test_a_search_has_the_documented_defaults(registry: Registry, tmp_path: Path, tiny_model: Path) -> None:
    lines = ["---\n"] * 40
    lines[20] = "parser\n"
    plant(tmp_path / "tree", {f"{number:02}.txt": "".join([*lines, f"end {number}\n"]) for number in range(12)})
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    search = registry["search.workspace_search"]
    found = ok(search({}, workspace=str(tmp_path / "ws"), query="parser"))["results"]
    assert len(found) == 10
    assert {(hit["line"], hit["start_line"], hit["end_line"], len(hit["context"])) for hit in found} == {
        (21, 18, 24, 7)
    }
    few = ok(search({}, workspace=str(tmp_path / "ws"), query="parser", top_k=2, n_lines=0))["results"]
    assert [hit["context"] for hit in few] == [["parser"], ["parser"]]


@criterion("000", "AC 4", "stats counts documents and lines, and names the index")
@criterion("000", "T14", "the action counts")
def test_the_figures_of_a_workspace_are_reported(registry: Registry, notes: Path) -> None:
    stats = ok(registry["search.workspace_stats"]({}, workspace=str(notes / "ws")))
    lines = sum(text.count("\n") for text in NOTES.values()) - 1  # a line with only a brace has no words
    assert stats == {
        "success": True,
        "total_documents": len(NOTES),
        "total_lines": lines,
        "has_index": False,
        "index_type": None,
    }


@criterion("000", "AC 6", "only changed files are embedded again")
@criterion("000", "T15", "a modified file is indexed again, the others are skipped")
def test_only_changed_files_are_embedded_again(own: Path, registry: Registry, driftline: Driftline) -> None:
    assert index(registry, own)["indexed"] == 3
    (own / "tree/b.md").write_text("group\ntwo\nand more\n")
    again = index(registry, own)
    assert (again["indexed"], again["updated"], again["skipped"], again["total_lines"]) == (0, 1, 2, 7)
    still = index(registry, own)
    assert (still["indexed"], still["updated"], still["skipped"]) == (0, 0, 3)
    assert embedded(driftline, own)[:3] == [0, 3, 6]


@criterion("000", "AC 7", "a vector index is made at 256 rows")
@criterion("000", "T10", "255 rows have no index, 256 have one")
def test_the_vector_index_is_made_at_256_rows(own: Path, registry: Registry) -> None:
    """The document says IVF_PQ; a better IVF index may replace it."""
    plant(own / "tree", {"long.md": "word\n" * 249})

    def stats() -> Answer:
        return ok(registry["search.workspace_stats"]({}, workspace=str(own / "ws")))

    assert index(registry, own)["total_lines"] == 255
    assert (stats()["has_index"], stats()["index_type"]) == (False, None)
    plant(own / "tree", {"last.md": "word\n"})
    assert index(registry, own)["total_lines"] == 256
    assert stats()["has_index"] is True
    assert stats()["index_type"].startswith("IVF_")


@criterion("000", "AC 8", "the actions live and close with their engine")
def test_the_actions_close_with_their_engine(tmp_path: Path) -> None:
    engine = YamlEngine()
    registry = actions(tmp_path / "home", engine)
    ok(registry["search.workspace_create"]({}, workspace="notes", **ENGINE_ARGUMENTS))
    ok(registry["search.workspace_stats"]({}, workspace="notes", **ENGINE_ARGUMENTS))
    engine.close()
    error_type(registry["search.workspace_stats"]({}, workspace="notes", **ENGINE_ARGUMENTS))
    another = actions(tmp_path / "home", YamlEngine())
    ok(another["search.workspace_stats"]({}, workspace="notes"))


@criterion("000", "AC 10", "search.semantic may use a workspace")
def test_semantic_search_may_use_a_workspace(own: Path, registry: Registry) -> None:
    index(registry, own)
    given = {"query": "parser", "files": [str(own / "tree")], "top_k": 1, "n_lines": 0}
    plain = ok(registry["search.semantic"]({}, **given))
    quick = ok(registry["search.semantic"]({}, **given, workspace=str(own / "ws")))
    assert locations(plain["results"]) == locations(quick["results"]) == [("a.md", 1)]
    assert error_type(registry["search.semantic"]({}, **given, workspace=str(own / "nowhere"))) == "workspace_not_found"


AGENT = """
nodes:
  - name: open
    uses: search.workspace_create
    with: {path: "~/workspaces/notes/"}
    output: location
  - name: learn
    uses: search.workspace_index
    with:
      workspace: "{{ location.workspace }}"
      paths: [src/, lib/]
      extensions: [".py", ".rs"]
    output: learned
  - name: ask
    uses: search.workspace_search
    with:
      workspace: "{{ location.workspace }}"
      query: "what happens when a login fails"
      top_k: 10
    output: found
"""


@criterion("000", "AC 12", "without a workspace the searches work as before, and leave nothing behind")
def test_searches_need_no_workspace(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(plant(tmp_path / "project", NOTES))
    before = files_of(tmp_path)
    found = ok(registry["search.semantic"]({}, query="when does a lease expire", files="docs/**/*.md"))
    assert locations(found["results"])[0] == ("leases.md", 2)
    match = ok(registry["semtools.search"]({}, query="a lease expires", files=["docs"], max_distance=1))["best_match"]
    assert (match["file"], match["line"]) == ("docs/leases.md", 2)
    assert files_of(tmp_path) == before


@pytest.fixture
def store(own: Path) -> dl.LineStore:
    """The lines of one source, written directly, with 24-dimensional vectors."""
    return dl.LineStore(dl.open(str(own / "ws")), "source:by-hand")


def vector(text: str, tiny_model: Path) -> np.typing.NDArray[np.float32]:
    return open_embedder(str(tiny_model)).embed_query(text)


@criterion("000", "T7", "a search by vector is limited to paths")
def test_a_search_by_vector_is_limited_to_paths(own: Path, registry: Registry, tiny_model: Path) -> None:
    index(registry, own)
    lines = dl.LineStore(dl.open(str(own / "ws")), "source:tree")

    def paths(**options: Any) -> set[str]:
        found = lines.search_line_embeddings(vector("parser", tiny_model), **options)
        return set(found["path"].to_pylist())

    assert paths(top_k=10) == {"a.md", "b.md", "c.md"}
    assert paths(paths=["b.md"]) == {"b.md"}
    assert paths(paths=["b.md", "c.md", "none.md"], top_k=10) == {"b.md", "c.md"}
    assert paths(paths=[]) == set()


@criterion("000", "T8", "a search by vector is limited by distance")
def test_a_search_by_vector_is_limited_by_distance(own: Path, registry: Registry, tiny_model: Path) -> None:
    index(registry, own)
    lines = dl.LineStore(dl.open(str(own / "ws")), "source:tree")
    parser = vector("parser", tiny_model)
    distances = lines.search_line_embeddings(parser, top_k=10)["distance"].to_pylist()
    assert distances == sorted(distances)
    limit = (distances[1] + distances[2]) / 2
    near = lines.search_line_embeddings(parser, top_k=10, max_distance=limit)["distance"].to_pylist()
    assert near == distances[:2]
    given = {"workspace": str(own / "ws"), "query": "parser", "n_lines": 0}
    close = ok(registry["search.workspace_search"]({}, **given, max_distance=0.01))["results"]
    assert [hit["text"] for hit in close] == ["parser"]


@criterion("000", "T3", "Store.open makes a workspace, takes embeddings and finds them")
def test_a_store_is_opened_by_the_path_of_its_workspace(own: Path, registry: Registry, tiny_model: Path) -> None:
    store = dl.Store.open(str(own / "new"))
    dim = store.workspace.config.dim
    assert dim
    near, far = np.eye(dim, dtype=np.float32)[:2]
    embeddings = [dl.LineEmbedding("a.md", 0, near.tolist()), dl.LineEmbedding("b.md", 3, far.tolist())]
    with pytest.raises(dl.NotIndexed):
        store.search_line_embeddings(near)
    assert store.upsert_line_embeddings(embeddings=embeddings[:1]) == 1
    assert store.upsert_line_embeddings(embeddings[1:]) == 1
    again = dl.Store.open(workspace_path=str(own / "new"))
    found = again.search_line_embeddings(query_vec=near.tolist(), paths=None, top_k=5, max_distance=0.5).to_pylist()
    assert [(row["path"], row["line_number"]) for row in found] == [("a.md", 0)]
    with pytest.raises(dl.UsageError, match="shape"):
        again.search_line_embeddings(near[:-1])
    index(registry, own)
    everything = dl.Store.open(str(own / "ws")).search_line_embeddings(vector("parser", tiny_model), ["a.md"])
    assert set(everything["path"].to_pylist()) == {"a.md"}
    file, indexed = str(own / "tree/a.md"), dl.Store.open(str(own / "ws"))
    assert indexed.search_line_embeddings(vector("parser", tiny_model), [file]).equals(everything)
    meta = indexed.get_document_meta(file)
    assert meta is not None
    assert meta == indexed.get_document_meta("a.md")
    for found_states in (
        dl.analyze_document_states([file], indexed),
        dl.analyze_document_states(paths=[file], store=indexed),
    ):
        assert [state for _, state in found_states] == ["unchanged"]
    with pytest.raises(dl.UsageError, match="either"):
        dl.analyze_document_states([file], str(own / "ws"), store=indexed)  # type: ignore[call-overload]
    stats = dl.WorkspaceStats(total_documents=42, total_lines=1234, has_index=True, index_type="IVF_PQ")
    assert dl.WorkspaceStats(42, 1234, True, "IVF_PQ") == stats


@criterion("000", "T9", "a document is deleted with its lines")
def test_a_document_is_deleted_with_its_lines(own: Path, registry: Registry, tiny_model: Path) -> None:
    index(registry, own)
    lines = dl.LineStore(dl.open(str(own / "ws")), "source:tree")
    assert lines.delete_documents(["a.md", "unknown.md"]) == 1
    found = lines.search_line_embeddings(vector("parser", tiny_model), top_k=10)["path"].to_pylist()
    assert set(found) == {"b.md", "c.md"}
    assert ok(registry["search.workspace_stats"]({}, workspace=str(own / "ws")))["total_documents"] == 2


@criterion("000", "AC 16", "the public functions are typed")
def test_the_public_functions_are_typed(registry: Registry) -> None:
    """Each parameter and return has a resolvable type, and the package is marked as typed."""
    public: list[Any] = [dl.index, dl.search, dl.grep, dl.open, dl.analyze_document_states]
    methods = [method for name, method in inspect.getmembers(dl.LineStore, callable) if not name.startswith("_")]
    for function in [*public, *methods, *(inspect.unwrap(registry[name]) for name in WORKSPACE_ACTIONS)]:
        signature = inspect.signature(function)
        assert signature.return_annotation is not signature.empty, function
        for parameter in signature.parameters.values():
            assert parameter.name == "self" or parameter.annotation is not parameter.empty, (function, parameter)
    for function in public:
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, f"{function.__name__} hides its keywords"
    for shape in (dl.LineEmbedding, dl.DocMeta, dl.WorkspaceStats):
        assert typing.get_type_hints(shape)
    assert (Path(dl.__file__).parent / "py.typed").exists()


@criterion("000", "AC 17", "damage and lost connections are errors with a type")
def test_damage_and_lost_connections_have_types(registry: Registry, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(registry, own)
    given = {"workspace": str(own / "ws")}
    for file in (own / "ws").rglob("*.lance/data/*"):
        file.write_bytes(b"no data")
    broken = registry["search.workspace_search"]({}, **given, query="parser group")
    assert error_type(broken) in ("lancedb_error", "index_corrupt")
    (own / "ws" / "_workspace.json").write_text("{")
    for name, arguments in (
        ("search.workspace_stats", {}),
        ("search.workspace_search", {"query": "parser"}),
        ("search.workspace_index", {"paths": [str(own / "tree")]}),
        ("search.workspace_create", {}),
    ):
        assert error_type(registry[name]({}, **given, **arguments)) == "index_corrupt", name
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    away = registry["search.workspace_stats"]({}, workspace="s3://bucket/workspace")
    assert error_type(away) in ("lancedb_error", "storage_error")


@criterion("000", "AC 1", "create makes or opens a workspace at a path")
@criterion("000", "T11", "the action creates a workspace")
def test_a_workspace_is_created_at_a_path(registry: Registry, tmp_path: Path) -> None:
    location = tmp_path / "deep" / "workspace"
    first = ok(registry["search.workspace_create"]({}, path=str(location)))
    assert first == {"success": True, "workspace": str(location), "created": True}
    assert dl.open(str(location)).status().total_documents == 0
    again = ok(registry["search.workspace_create"]({}, path=f"{location}/"))
    assert again == {"success": True, "workspace": str(location), "created": False}


@criterion("000", "AC 1", "a tilde in the path is the home folder")
def test_a_path_may_begin_in_the_home_folder(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = ok(registry["search.workspace_create"]({}, path="~/workspaces/project/"))
    assert made["workspace"] == str(tmp_path / "workspaces" / "project")


@criterion("000", "AC 5", "files are new, changed or unchanged by size, time and version")
def test_states_are_reported_for_paths(own: Path, registry: Registry) -> None:
    """The call needs only paths and a workspace, because the workspace knows each path's source."""
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
    assert locations(found["results"]) == [("a.md", 1)]
    assert ok(registry["search.workspace_stats"]({}, **given))["total_lines"] == 6


@criterion("000", "AC 11", "uses, with and output of YAML work")
@criterion("000", "example 1", "an agent creates, indexes and searches")
@pytest.mark.parametrize("keeps_types", [True, False])
def test_an_agent_creates_indexes_and_searches(
    keeps_types: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(plant(tmp_path / "project", NOTES))
    state = run_yaml(AGENT, actions(), {}, keeps_types=keeps_types)
    assert ok(state["location"])["workspace"] == str(tmp_path / "workspaces" / "notes")
    assert (ok(state["learned"])["indexed"], state["learned"]["total_lines"]) == (4, 8)
    assert locations(ok(state["found"])["results"])[0] in (("login.py", 1), ("login.py", 2), ("errors.rs", 1))
    assert "notes.txt" not in names(state["found"])


@criterion("000", "AC 13", "each state is told for what it is, whatever changed")
def test_every_state_is_reported(own: Path, registry: Registry) -> None:
    assert state_of(own, "a.md") == "new"
    index(registry, own)
    assert state_of(own, "a.md") == "unchanged"
    (own / "tree/a.md").write_text("PARSER\none\n")
    assert state_of(own, "a.md") == "changed"
    index(registry, own)
    assert state_of(own, "a.md") == "unchanged"


@criterion("000", "AC 14", "lines are put in, found and deleted by hand")
@criterion("000", "T6", "embeddings are stored; those of a path replace the ones before")
def test_line_embeddings_are_stored_by_hand(store: dl.LineStore, tiny_model: Path) -> None:
    """A row has a path, a 0-based line number and an embedding; the text is optional."""
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


@criterion("000", "T7", "a document has one path, however a program spells it")
def test_a_store_spells_the_paths_of_documents_in_one_way(store: dl.LineStore, tiny_model: Path) -> None:
    parser = vector("parser", tiny_model)
    given = ("src/a.md", "./src/a.md", "/src/a.md", "src//a.md", Path("src/a.md"))
    for path in given:
        stored: Any = path
        assert store.upsert_line_embeddings(dl.LineEmbedding(stored, n, parser) for n in range(2)) == 2
        assert store.search_line_embeddings(parser, [stored])["line_number"].to_pylist() == [0, 1]
        assert store.search_line_embeddings(parser, stored)["path"].to_pylist() == ["src/a.md"] * 2
    assert len(store.search_line_embeddings(parser, top_k=99)) == 2
    assert store.delete_documents(path for path in ["./src/a.md"]) == 1


@criterion("000", "AC 5", "a store compares documents as its specification does")
def test_a_store_returns_the_metadata_of_documents(own: Path, store: dl.LineStore, tiny_model: Path) -> None:
    file = own / "tree/a.md"
    stat = file.stat()
    lines = [dl.LineEmbedding(name, 0, vector("parser", tiny_model)) for name in ("a.md", "b.md")]
    store.upsert_line_embeddings(lines, [dl.DocMeta("a.md", stat.st_size, stat.st_mtime)])
    assert store.get_document_meta("b.md") is store.get_document_meta("none.md") is None
    known = store.get_document_meta("a.md")
    assert known is not None
    assert (known.path, known.size_bytes, known.version) == ("a.md", stat.st_size, dl.CURRENT_EMBEDDING_VERSION)
    assert known.mtime == pytest.approx(stat.st_mtime)
    states = dl.analyze_document_states([file, own / "none.md"], store)
    assert [(state.name, path) for path, state in states] == [("NEW", str(file)), ("MISSING", str(own / "none.md"))]


@criterion("000", "AC 5", "files are compared with what a program stored of them")
@pytest.mark.parametrize("stored_by", ["path", "absolute path", "path below the current folder"])
def test_files_are_compared_with_the_metadata_that_a_program_stored(
    stored_by: str, own: Path, store: dl.LineStore, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own)
    files = [str(own / "tree/a.md"), str(own / "tree/b.md"), "tree/new.md"]
    if stored_by == "path":
        files = [os.path.relpath(file) for file in files]
    names = [os.path.relpath(file) if "current" in stored_by else file for file in files[:2]]
    stats = [os.stat(file) for file in files[:2]]
    lines = [dl.LineEmbedding(name, 0, vector("parser", tiny_model)) for name in names]
    kept = [dl.DocMeta(name, stat.st_size, stat.st_mtime) for name, stat in zip(names, stats, strict=True)]
    store.upsert_line_embeddings(lines, kept)
    Path("tree/new.md").write_text("new\n")

    def states() -> list[str]:
        return [state.name for _, state in dl.analyze_document_states(files, store)]

    assert states() == ["UNCHANGED", "UNCHANGED", "NEW"]
    os.utime(files[0], (1, 1))
    Path(files[1]).unlink()
    assert states() == ["CHANGED", "DELETED", "NEW"]


BAD_LINES: list[tuple[Any, ...]] = [
    *(("r.md", 0, embedding) for embedding in ([], [1.0], ["a"] * 24, None, [float("nan")] * 24, [[1.0] * 24])),
    *(("r.md", number, [1.0] * 24) for number in (-1, 2**31, 1.5, "1", None)),
    *((path, 0, [1.0] * 24) for path in ("", ".", "/", "../r.md", None, 5, b"r.md", "r\0", "r\udc80")),
    *(("r.md", 0, [1.0] * 24, text) for text in (None, 5, b"r", "\udc80")),
    *((path, 0, [2.0] * 24, "given twice") for path in ("good.md", "./good.md")),
]
BAD_DOCUMENTS: list[tuple[Any, ...]] = [
    *(("r.md", 1, mtime) for mtime in (float("nan"), float("inf"), 1e30, None, "1")),
    *(("r.md", size, 1.0) for size in (-1, 2**64, "1", None)),
]


@pytest.mark.parametrize("bad", BAD_LINES, ids=repr)
def test_a_store_refuses_a_line_that_it_cannot_hold(store: dl.LineStore, bad: tuple[Any, ...]) -> None:
    good = dl.LineEmbedding("good.md", 0, [1.0] * 24)
    with pytest.raises(dl.UsageError):
        store.upsert_line_embeddings([good, dl.LineEmbedding(*bad)])
    assert store.delete_documents(["good.md"]) == 0


@pytest.mark.parametrize("bad", [*(dl.DocMeta(*bad) for bad in BAD_DOCUMENTS), "r.md", None], ids=repr)
def test_a_store_refuses_metadata_that_it_cannot_hold(store: dl.LineStore, bad: Any) -> None:
    with pytest.raises(dl.UsageError):
        store.upsert_line_embeddings([dl.LineEmbedding("good.md", 0, [1.0] * 24)], [bad])
    assert store.delete_documents(["good.md"]) == 0


@pytest.mark.parametrize(
    ("query", "options"),
    [
        *((query, {}) for query in ([1.0], None, "text", [float("nan")] * 24, [[1.0] * 24])),
        *(([1.0] * 24, {"top_k": top_k}) for top_k in (-1, "5", None, 2**70)),
        ([1.0] * 24, {"max_distance": "near"}),
        *(([1.0] * 24, {"paths": paths}) for paths in ([None], [5], 5, ["../a.md"])),
    ],
    ids=repr,
)
def test_a_store_refuses_nonsensical_searches(store: dl.LineStore, query: Any, options: dict[str, Any]) -> None:
    store.upsert_line_embeddings([dl.LineEmbedding("good.md", 0, [1.0] * 24)])
    with pytest.raises(dl.UsageError):
        store.search_line_embeddings(query, **options)


def test_nothing_to_store_is_not_an_error(store: dl.LineStore) -> None:
    nothing: Any = None
    assert store.upsert_line_embeddings([]) == store.upsert_line_embeddings(nothing, nothing) == 0
    assert store.delete_documents([]) == store.delete_documents(nothing) == 0
    huge = dl.LineEmbedding("huge.md", 0, [1e300] * 24)
    store.upsert_line_embeddings([huge])
    assert store.search_line_embeddings([1.0] * 24)["path"].to_pylist() == ["huge.md"]


@criterion("000", "AC 15", "index, modify, index again, search")
def test_the_example_workflow_runs_from_start_to_end(registry: Registry, tmp_path: Path) -> None:
    tree = plant(tmp_path / "tree", {"a.txt": "Boil the potatoes.\n", "b.txt": "Fry the onions.\n"})
    made = ok(registry["search.workspace_create"]({}, path=str(tmp_path / "ws")))
    given = {"workspace": made["workspace"]}

    def best(query: str) -> tuple[str, int]:
        return locations(ok(registry["search.workspace_search"]({}, **given, query=query, top_k=1))["results"])[0]

    assert ok(registry["search.workspace_index"]({}, **given, paths=[str(tree)]))["indexed"] == 2
    assert best("how to cook potatoes") == ("a.txt", 1)
    (tree / "a.txt").write_text("Wash the dishes.\n")
    (tree / "c.txt").write_text("Dinner\nMash the potatoes.\n")
    again = ok(registry["search.workspace_index"]({}, **given, paths=[str(tree)]))
    assert (again["indexed"], again["updated"], again["skipped"]) == (1, 1, 1)
    assert best("how to cook potatoes") == ("c.txt", 2)


# -- listed test cases that no criterion above is the same as ---------------------------------


@criterion("000", "T16", "a workspace that is not there is an error of its own")
def test_a_missing_workspace_has_its_own_error(registry: Registry, tmp_path: Path) -> None:
    given = {"workspace": str(tmp_path / "nowhere")}
    for name, arguments in (
        ("search.workspace_index", {"paths": [str(tmp_path)]}),
        ("search.workspace_search", {"query": "parser"}),
        ("search.workspace_stats", {}),
    ):
        answer = registry[name]({}, **given, **arguments)
        assert set(answer) == {"success", "error", "error_type"}
        assert error_type(answer) == "workspace_not_found", name
        assert str(tmp_path / "nowhere") in answer["error"]
    assert not (tmp_path / "nowhere").exists()


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
def test_another_mtime_is_noticed(own: Path, registry: Registry) -> None:
    """A file with a new mtime and the same content may be reported as touched: it is not embedded again."""
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
    """If text preparation changes for the same model, another index run is enough."""
    index(registry, own)
    newer = dl.CURRENT_EMBEDDING_VERSION + 1
    for module in ("driftline", "driftline.storage.embedding", "driftline.tasks.embedding.models"):
        monkeypatch.setattr(f"{module}.CURRENT_EMBEDDING_VERSION", newer, raising=False)
    assert state_of(own, "a.md") == "changed"
    answer = index(registry, own)
    assert (answer["indexed"], answer["updated"], answer["skipped"]) == (0, 3, 0)
    assert state_of(own, "a.md") == "unchanged"
    found = ok(registry["search.workspace_search"]({}, workspace=str(own / "ws"), query="parser", top_k=1))
    assert locations(found["results"]) == [("a.md", 1)]


@criterion("000", "T5", "an unchanged file is skipped")
def test_an_unchanged_file_is_skipped(own: Path, registry: Registry, driftline: Driftline) -> None:
    index(registry, own)
    assert state_of(own, "a.md") == "unchanged"
    assert index(registry, own)["skipped"] == 3
    assert embedded(driftline, own)[0] == 0
