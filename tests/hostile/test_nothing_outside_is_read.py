"""Nothing outside a source's folder is read, even if files are replaced during the scan."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.documents import SkipReason
from driftline.storage.errors import ObjectNotFound, StorageError
from driftline.storage.sources.source import Source, open_source
from driftline.tasks.git.work_tree import find_work_tree
from driftline.tasks.indexing.batch import read_all
from driftline.tasks.scanning.diff import MANIFEST_SCHEMA
from driftline.tasks.scanning.path_patterns import Rules
from driftline.tasks.scanning.scan import ScanSpec, scan
from driftline.tasks.scanning.walk import Subtree, Walk

IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost")
SECRET = "the secret outside\n"
OURS = "ours and harmless\n"
assert len(SECRET) != len(OURS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source that contains ``folder/deep/file.txt``, next to an outside folder that has a file at the same path."""
    for top, text in ((tmp_path / "source", OURS), (tmp_path / "outside", SECRET)):
        (top / "folder/deep").mkdir(parents=True)
        (top / "folder/deep/file.txt").write_text(text)
    (tmp_path / "outside/folder/deep/only-outside.txt").write_text(SECRET)
    return tmp_path / "source"


def swap(root: Path, path: str) -> None:
    """Replace ``path`` under ``root`` with a link to the same path outside."""
    target = root / path
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    target.symlink_to(root.parent / "outside" / path)


@pytest.mark.parametrize("swapped", ["folder", "folder/deep", "folder/deep/file.txt"])
def test_a_link_that_appears_after_the_listing_is_not_followed(root: Path, swapped: str) -> None:
    spec = ScanSpec(open_source(root), "fp")
    new = scan(spec, lambda prefixes: MANIFEST_SCHEMA.empty_table(), now_ns=time.time_ns()).diff.new.to_pylist()
    assert [change["path"] for change in new] == ["folder/deep/file.txt"]
    swap(root, swapped)
    assert [read for _, read in read_all(spec.source, new)] == [SkipReason.UNSTABLE]
    assert spec.source.stat("folder/deep/file.txt") is None
    with pytest.raises(ObjectNotFound):
        spec.source.read("folder/deep/file.txt")
    assert list(spec.source.list()) == []


@pytest.mark.parametrize("swapped", ["folder", "folder/deep"])
def test_a_link_that_appears_during_the_walk_is_not_followed(
    root: Path, swapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_folders = Walk._keep_folders

    def swap_then_keep(walk: Walk, level: Any) -> list[str]:
        if f"{swapped}/" in level.folders:
            swap(root, swapped)
        return keep_folders(walk, level)

    monkeypatch.setattr(Walk, "_keep_folders", swap_then_keep)
    listing = Walk(str(root), Rules()).run([Subtree()])
    assert (root / swapped).is_symlink()
    assert (listing.paths, listing.unread) == ([], [])


def test_a_folder_that_keeps_becoming_a_link_never_exposes_outside_files(root: Path) -> None:
    """As in an attack, the folder and a link to the outside are swapped repeatedly."""
    (root / "other").symlink_to(root.parent / "outside/folder")
    stop = threading.Event()

    def exchange() -> None:
        folder, link, spare = root / "folder", root / "other", root / "spare"
        while not stop.is_set():
            folder.rename(spare)
            link.rename(folder)
            folder.rename(link)
            spare.rename(folder)

    attacker = threading.Thread(target=exchange)
    attacker.start()
    source, shown = open_source(root), set[str]()
    deadline, reads = time.monotonic() + 1.5, 0
    try:
        while time.monotonic() < deadline or reads <= 10:
            shown |= set(Walk(str(root), Rules()).run([Subtree()]).paths)
            for info in source.list():
                shown.add(info.path)
            try:
                assert source.read("folder/deep/file.txt") == OURS.encode()
                reads += 1
            except ObjectNotFound:
                continue
    finally:
        stop.set()
        attacker.join()
    assert {path.rpartition("/")[2] for path in shown} <= {"file.txt"}


@pytest.fixture(params=["pipe", "socket", "folder"])
def replace_file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Replace a file with a pipe, a socket or a folder."""
    listener = socket.socket(socket.AF_UNIX)

    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "folder":
            path.mkdir()
        else:
            monkeypatch.chdir(path.parent)  # socket names have a maximum length
            listener.bind(path.name)

    yield put
    listener.close()


def test_special_files_in_place_of_a_file_are_skipped(root: Path, replace_file: Callable[[Path], None]) -> None:
    source = Source(str(root))
    change = {"path": "folder/deep/file.txt", "size_bytes": len(OURS), "mtime_ns": 1, "etag": ""}
    replace_file(root / "folder/deep/file.txt")
    assert [read for _, read in read_all(source, [change])] in ([SkipReason.UNSTABLE], [SkipReason.UNREADABLE])
    with pytest.raises((ObjectNotFound, StorageError)):
        source.read("folder/deep/file.txt")


@pytest.mark.parametrize("name", [".gitignore", ".driftlineignore", "folder/.gitignore"])
def test_a_special_file_in_place_of_an_ignore_file_does_not_hang(
    root: Path, replace_file: Callable[[Path], None], name: str
) -> None:
    replace_file(root / name)
    assert Walk(str(root), Rules()).run([Subtree()]).paths == ["folder/deep/file.txt"]


@pytest.mark.parametrize("name", ["info/exclude", "HEAD", "config", "index", "packed-refs", "shallow"])
def test_a_special_file_in_place_of_a_git_file_does_not_hang(
    root: Path, replace_file: Callable[[Path], None], name: str, driftline: Callable[..., Any]
) -> None:
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *IDENTITY, *command], cwd=root, check=True)
    replace_file(root / ".git" / name)
    find_work_tree(str(root))
    ran = driftline("index", root, "--workspace", root.parent / "ws", "--indexes", "none", "--json")
    assert (ran.code, ran.json["sources"][0]["new"]) == (0, 1)
