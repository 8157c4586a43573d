"""Files of git working trees are read in the encoding that ``.gitattributes`` declares."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.storage.sources import git_isolation
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.git.encodings import declared_encodings
from driftline.tasks.search.documents import read_excerpt

Driftline = Callable[..., Any]

WRITTEN = {
    "CP1254": "Işık hızı ve gümüş çağı",
    "windows-1254": "Şişli'de güneşli öğle",
    "ISO-8859-9": "ağaç ığdır",
    "CP874": "ภาษาไทยเขียนติดกัน",
    "ISO-8859-2": "źdźbło trawy",
    "CP1255": "ספר הלימוד",
    "CP1253": "ο ερωδιός προσγειώνεται",
    "KOI8-R": "цапля садится",
    "UTF-16LE": "çay",
    "UTF-16": "gün",
    "UTF-32BE": "ığ",
    "EUC-JP": "鷺が降りる",
}


def work_tree(folder: Path, files: dict[str, bytes], attributes: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name, content in {**files, **{name: text.encode() for name, text in attributes.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_a_declared_encoding_is_read_by_searches_contexts_and_grep(tmp_path: Path, driftline: Driftline) -> None:
    files = {f"{name}.txt": f"# {text}\nmarker {text}\n".encode(name) for name, text in WRITTEN.items()}
    lines = "".join(f"{name}.txt working-tree-encoding={name}\n" for name in WRITTEN)
    tree = work_tree(tmp_path / "tree", files, {".gitattributes": lines})
    driftline("index", tree, "--workspace", tmp_path / "w")
    found = {hit.path: hit for hit in dl.search(tmp_path / "w", "marker", mode="text", top_k=50, n_lines=1).results}
    assert {path: hit.text for path, hit in found.items()} == {f"{n}.txt": f"marker {t}" for n, t in WRITTEN.items()}
    for name, text in WRITTEN.items():
        hit = found[f"{name}.txt"]
        assert hit.context == (f"# {text}", f"marker {text}")
        assert hit.freshness == "fresh"
        excerpt = read_excerpt(Workspace.open(str(tmp_path / "w")), f"{name}.txt", 2, n_lines=1)
        assert excerpt.lines == (f"# {text}", f"marker {text}")
        assert dl.search(tmp_path / "w", text, mode="text", top_k=1).results[0].path == f"{name}.txt"
    done = driftline("grep", "marker", *(tree / name for name in files), "--top-k", "50", "--json")
    assert {hit["text"] for hit in done.json["results"]} >= {f"marker {text}" for text in WRITTEN.values()}


@pytest.mark.parametrize("below", ["", "source/", "source/inner/"])
def test_a_file_has_the_attributes_of_the_nearest_repository(tmp_path: Path, below: str) -> None:
    """As git has it: of the nearest repository, from its top down, also above the source; the last match counts."""
    top = work_tree(
        tmp_path / "top",
        {},
        {
            ".gitattributes": "[attr]old working-tree-encoding=cp1254\n*.txt old\n*.md working-tree-encoding=cp1250\n",
            "source/.gitattributes": "new.txt -working-tree-encoding\n",
            "source/inner/.gitattributes": "*.md working-tree-encoding=no-such-encoding\n",
        },
    )
    nested = work_tree(top / "source/nested", {}, {".gitattributes": "*.txt working-tree-encoding=cp1251\n"})
    work_tree(nested / "deeper", {"a.txt": b""}, {})
    names = ["source/new.txt", "source/a.txt", "source/inner/a.txt", "source/inner/b.md", "source/b.md"]
    names += ["source/nested/a.txt", "source/nested/b.md", "source/nested/deeper/a.txt"]
    expected = {"source/a.txt": "cp1254", "source/inner/a.txt": "cp1254", "source/b.md": "cp1250"}
    expected["source/nested/a.txt"] = "cp1251"
    inside = [name.removeprefix(below) for name in names if name.startswith(below)]
    want = {name.removeprefix(below): codec for name, codec in expected.items() if name.startswith(below)}
    assert declared_encodings(str(top / below), inside) == want


def test_a_file_that_is_not_in_its_declared_encoding_is_read_as_before(tmp_path: Path, driftline: Driftline) -> None:
    files = {"utf8.txt": "heron çay\n".encode(), "ascii.txt": b"heron\n", "jp.txt": "heron grüße\n".encode("latin-1")}
    lines = "*.txt working-tree-encoding=cp1254\njp.txt working-tree-encoding=EUC-JP\n"
    tree = work_tree(tmp_path / "tree", files, {".gitattributes": lines})
    driftline("index", tree, "--workspace", tmp_path / "w")
    found = dl.search(tmp_path / "w", "heron", mode="text").results
    assert {hit.text for hit in found} == {"heron çay", "heron", "heron grüße"}


def test_a_document_for_which_an_encoding_is_declared_by_mistake_stays_readable(
    tmp_path: Path, driftline: Driftline
) -> None:
    packed = gzip.compress("der Reiher landet: süß\n".encode() * 50)
    files = {"packed.txt.gz": packed, "image.png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8}
    tree = work_tree(tmp_path / "tree", files, {".gitattributes": "* working-tree-encoding=ISO-8859-2\n"})
    driftline("index", tree, "--workspace", tmp_path / "w")
    found = dl.search(tmp_path / "w", "Reiher", mode="text").results
    assert {hit.text for hit in found} == {"der Reiher landet: süß"}


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_special_file_in_place_of_an_attribute_file_does_not_hang(tmp_path: Path, kind: str) -> None:
    tree = work_tree(tmp_path / "tree", {"sub/a.txt": b""}, {".gitattributes": "* working-tree-encoding=cp1254\n"})
    place = tree / "sub/.gitattributes"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to(tree / ".gitattributes")
    else:
        place.mkdir()
    assert declared_encodings(str(tree), ["sub/a.txt"]) == {}
    assert declared_encodings(str(tree), ["a.txt"]) == {"a.txt": "cp1254"}


def test_a_path_deeper_than_the_stack_is_read(tmp_path: Path) -> None:
    tree = work_tree(tmp_path / "tree", {}, {".gitattributes": "* working-tree-encoding=cp1254\n"})
    deep = "a/" * 1_500 + "x.txt"
    assert declared_encodings(str(tree), [deep, "x.txt"]) == {deep: "cp1254", "x.txt": "cp1254"}


@pytest.mark.parametrize("count", [1, 2_000])
def test_a_slow_git_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Also if its input is larger than a pipe."""
    tree = work_tree(tmp_path / "tree", {}, {".gitattributes": "* working-tree-encoding=cp1254\n"})
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 0.2\nexec {shutil.which("git")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_isolation, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(git_isolation, "_ASLEEP_SECONDS", 10_000)
    names = [f"{'x' * 100}{number}.txt" for number in range(count)]
    assert declared_encodings(str(tree), names) == dict.fromkeys(names, "cp1254")


def test_git_is_called_only_if_an_attribute_file_names_an_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = work_tree(tmp_path / "tree", {"sub/a.txt": b""}, {".gitattributes": "*.txt text eol=lf\n"})
    monkeypatch.setattr(git_isolation, "spawn", lambda *_, **__: pytest.fail("git was started"))
    assert declared_encodings(str(tree), ["sub/a.txt", "a.txt"]) == {}


def test_git_is_asked_only_about_names_that_the_patterns_may_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = " *.rc\tworking-tree-encoding=cp1254\n# *.py working-tree-encoding=cp1254\n"
    tree = work_tree(tmp_path / "tree", {}, {".gitattributes": lines})
    monkeypatch.setattr(git_isolation, "spawn", lambda *_, **__: pytest.fail("git was started"))
    assert declared_encodings(str(tree), ["a.py", "rc", "sub/a.rcx"], {""}) == {}
    monkeypatch.undo()
    assert declared_encodings(str(tree), ["a.py", "sub/a.rc"], {""}) == {"sub/a.rc": "cp1254"}


@pytest.mark.parametrize(
    "pattern",
    ["*", "*.TXT", "*.t?t", "*txt", "a.*", "sub/*.txt", '"*.txt"', "/sub/**", "\ufeff*.txt", "*.b\x0bx *.txt"],
)
@pytest.mark.parametrize("ignores_case", [True, False])
def test_patterns_of_any_kind_declare_what_git_says(tmp_path: Path, pattern: str, ignores_case: bool) -> None:
    tree = work_tree(tmp_path / "tree", {}, {".gitattributes": f"{pattern} working-tree-encoding=cp1254\n"})
    subprocess.run(["git", "-C", str(tree), "config", "core.ignorecase", str(ignores_case).lower()], check=True)
    names = ["a.txt", "a.TXT", "b.txt", "sub/a.txt", "a.b", "a.b\x0bx", "txt", "sub/deep/c"]
    assert declared_encodings(str(tree), names, {""}) == declared_encodings(str(tree), names)


def test_changed_attributes_reread_the_unchanged_files_they_concern(tmp_path: Path, driftline: Driftline) -> None:
    """Whether the attribute file is in the source, above it, in a nested repository or excluded from the index."""
    text = "Işık gümüş"
    top = work_tree(tmp_path / "top", {"other/x.txt": b""}, {})
    nested = work_tree(top / "source/nested", {}, {})
    names = ["a.txt", "sub/deep/b.txt", "nested/c.txt"]
    for name in names:
        (top / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (top / "source" / name).write_bytes(f"{text}\n".encode("cp1254"))

    def seen(*changed: tuple[Path, str]) -> tuple[set[str], int]:
        for place, said in changed:
            (place / ".gitattributes").write_text(said)
        done = driftline("index", top / "source", "--include", "*.txt", "--workspace", tmp_path / "w", "--json")
        workspace = Workspace.open(str(tmp_path / "w"))
        right = {name for name in names if read_excerpt(workspace, name, 1, n_lines=0).lines == (text,)}
        return right, done.json["sources"][0]["changed"]

    declared = "*.txt working-tree-encoding=cp1254\n"
    assert seen() == (set(), 0)
    assert seen((top, declared)) == ({"a.txt", "sub/deep/b.txt"}, 2)
    assert seen() == ({"a.txt", "sub/deep/b.txt"}, 0)
    assert seen((nested, declared)) == (set(names), 1)
    assert seen((top, "*.txt eol=lf\n"), (top / "source/sub", declared)) == ({"sub/deep/b.txt", "nested/c.txt"}, 1)
    (nested / ".gitattributes").unlink()
    assert seen((top / "source/sub", "b.txt working-tree-encoding=cp1251\n")) == (set(), 2)
    assert seen((top / "source/sub", "b.txt working-tree-encoding=cp1251\n#\n")) == (set(), 0)


def test_if_git_does_not_answer_files_keep_their_encoding(
    tmp_path: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.txt": "Işık\n".encode("cp1254")}
    tree = work_tree(tmp_path / "tree", files, {".gitattributes": "*.txt working-tree-encoding=cp1254\n"})
    run = "index", tree, "--workspace", tmp_path / "w", "--json"
    assert driftline(*run).json["sources"][0]["new"] == 2
    monkeypatch.setattr("driftline.tasks.git.encodings.run", lambda *_, **__: None)
    assert declared_encodings(str(tree), ["a.txt"]) is None
    (tree / "a.txt").write_bytes("Işık gümüş\n".encode("cp1254"))
    assert driftline(*run).json["sources"][0]["changed"] == 1
    assert read_excerpt(Workspace.open(str(tmp_path / "w")), "a.txt", 1, n_lines=0).lines == ("Işık gümüş",)
