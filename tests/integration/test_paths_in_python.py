"""``pathlib`` paths in the Python API, and values that are not paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import pytest

import driftline as dl
from driftline.tasks.search.documents import find_documents, read_excerpt

Form = Literal["NFC", "NFD"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tree = tmp_path / "ü ß"
    tree.mkdir()
    (tree / "naïve.md").write_text("the heron lands\n")
    monkeypatch.chdir(tmp_path)
    return tree


def test_paths_of_pathlib_name_workspaces_sources_and_files(tree: Path) -> None:
    workspace = Path("ws")
    paths: Any = [Path("naïve.md")]
    source: Any = tree
    assert dl.index(tree, workspace=workspace, include=paths).sources[0].lines_total == 1
    assert dl.index(dl.SourceRequest(source), workspace=workspace).sources[0].lines_total == 1
    assert dl.open(workspace).index(Path(tree.name)).sources[0].lines_total == 1
    for where in ({"paths": paths}, {"dirs": tree}, {"dirs": [tree]}, {"globs": paths}):
        options: dict[str, Any] = where
        assert [hit.path for hit in dl.search(workspace, "heron", **options)] == ["naïve.md"]
    assert [hit.path for hit in dl.grep("heron", Path(tree.name))] == ["ü ß/naïve.md"]
    assert dl.sql(workspace, "SELECT path FROM documents").to_pylist() == [{"path": "naïve.md"}]
    states = dl.analyze_document_states((each for each in [tree / "naïve.md"]), workspace)
    assert states == [(str(tree / "naïve.md"), dl.DocumentState.UNCHANGED)]
    with dl.MemoryStore(workspace) as memory:
        memory.store("bird", "heron", "org:acme")
    with dl.create_ltm_backend(storage_uri=workspace) as memory_of_dictionaries:
        assert memory_of_dictionaries.retrieve("bird")["value"] == "heron"


CALLS: dict[str, Callable[[Any], object]] = {
    "index a source": lambda bad: dl.index(bad, workspace="ws"),
    "index into": lambda bad: dl.index("ü ß", workspace=bad),
    "request": lambda bad: dl.index(dl.SourceRequest(bad), workspace="ws"),
    "open": dl.open,
    "search": lambda bad: dl.search(bad, "heron"),
    "sql": lambda bad: dl.sql(bad, "SELECT 1"),
    "grep": lambda bad: dl.grep("heron", bad),
    "states": lambda bad: dl.analyze_document_states([bad], "ws"),
    "connect": dl.connect,
    "lines": dl.LineStore.open,
    "memory": dl.MemoryStore,
}


def is_refused(call: Callable[[Any], object], path: Any) -> bool:
    try:
        call(path)
    except dl.UsageError as error:
        return "must be one path or URI" in str(error)
    return False


@pytest.mark.parametrize("call", CALLS)
def test_anything_else_than_a_path_is_refused_by_name(tree: Path, call: str) -> None:
    dl.index(tree, workspace="ws")
    assert [bad for bad in (5, b"ws", [b"ws"], "w\0s", None) if not is_refused(CALLS[call], bad)] == []


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
def test_documents_are_found_with_accents_in_either_form(tree: Path, stored: Form) -> None:
    (tree / normalize(stored, "Bücher")).mkdir()
    path = normalize(stored, "Bücher/café.md")
    (tree / path).write_text("the stork lands\n")
    dl.index(tree, workspace="ws")
    workspace = dl.open("ws")
    (source,) = {hit.source for hit in workspace.search("stork", mode="text")}
    forms: tuple[Form, ...] = ("NFC", "NFD")
    for typed in forms:
        assert workspace.excerpt(source, normalize(typed, "Bücher/café.md"), 1).path == path
        assert [each.path for each in workspace.documents(dirs=[normalize(typed, "Bücher")])] == [path]
        for text in ("Büca", "CAFÉ", "é.m"):
            found = find_documents(workspace.storage, normalize(typed, text), limit=5)
            assert found.documents == ((source, path),), text


def test_an_excerpt_is_found_for_any_spelling_of_its_path(tree: Path) -> None:
    (tree / "sub").mkdir()
    (tree / "sub/a.py").write_text("one\ntwo\n")
    (tree.parent / "secret.py").write_text("secret\n")
    dl.index([tree, tree / "sub"], workspace="ws")
    workspace = dl.open("ws")
    (source,) = {hit.source for hit in workspace.search("heron", mode="text")}
    inner = "org:default/project:default/source:sub"
    for path in ("a.py", "./a.py", str(tree / "sub/a.py"), f"{tree}/./sub//a.py"):
        found = read_excerpt(workspace.storage, path, 2, n_lines=0)
        assert (found.source, found.path, found.lines) == (inner, "a.py", ("two",))
    assert workspace.excerpt(source, str(tree / "naïve.md"), 1).path == "naïve.md"
    for path in ("../secret.py", str(tree.parent / "secret.py"), f"{tree}/../secret.py", "/a.py", ".", "/"):
        with pytest.raises(dl.NotIndexed, match="No such document"):
            read_excerpt(workspace.storage, path, 1, n_lines=0)
