"""A power failure loses no committed data: files are flushed before anything that refers to them."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

import pytest

import driftline as dl
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.pull import PullRequest, pull_workspace
from driftline.storage.errors import StorageError
from driftline.storage.lance.lance_table import LanceTable
from driftline.storage.objects import local_disk
from driftline.storage.objects.local_disk import LocalDisk
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.workspace import Workspace
from tests.support.oracle import WORDS, save_tiny_model


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths of all objects that Lance wrote and flushed."""
    paths: set[str] = set()
    sync = LocalDisk.sync

    def recorded(disk: LocalDisk, some: Iterable[str]) -> None:
        some = list(some)
        sync(disk, some)
        paths.update(some)

    monkeypatch.setattr(LocalDisk, "sync", recorded)
    return paths


def files_of(table: LanceTable) -> set[str]:
    """Return the files needed by the newest version of a table, and that version."""
    dataset = table.open()
    metadata = [(fragment.fragment_id, fragment.metadata) for fragment in dataset.get_fragments()]
    files = {f"data/{file.path}" for _, each in metadata for file in each.files if file.base_id is None}
    files |= {each.deletion_file.path(number) for number, each in metadata if each.deletion_file is not None}
    for segment in (part for index in dataset.describe_indices() for part in index.segments):
        folder = Path(table.uri)
        found = (folder / "_indices" / str(segment.uuid)).rglob("*")
        files |= {path.relative_to(folder).as_posix() for path in found if path.is_file()}
    version = f"_versions/{2**64 - 1 - dataset.version}.manifest"
    return {f"{table.path}/{path}" for path in (*files, version)}


def test_lines_are_flushed_before_the_manifest_refers_to_them(
    tmp_path: Path, flushed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, workspace = tmp_path / "tree", str(tmp_path / "ws")
    tree.mkdir()
    model = str(save_tiny_model(tmp_path / "model"))
    published: list[str] = []
    create = LocalDisk.create

    def tables() -> Iterable[LanceTable]:
        opened = Workspace.open(workspace)
        return (table for tenant in opened.tenants() for table in opened.line_tables(tenant))

    def checked(disk: LocalDisk, path: str, data: bytes, same_as: str | None = None) -> str:
        if "/_index_delta_" in path:
            published.append(path)
            for table in tables():
                assert files_of(table) - flushed == set(), path
        return create(disk, path, data, same_as)

    monkeypatch.setattr(LocalDisk, "create", checked)
    for state in range(3):
        for number in range(12):
            (tree / f"{number}.txt").write_text(f"{WORDS[(number + state) % 40]} {number}\n" * (number + 2))
        (tree / "0.txt").unlink(missing_ok=True)
        dl.index(str(tree), workspace=workspace, model=model)
    assert len(published) >= 3
    compact_workspace(CompactRequest(workspace))
    (table,) = tables()
    assert files_of(table) - flushed == set()


def test_a_copy_is_flushed_before_it_replaces_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, workspace, copy = tmp_path / "tree", str(tmp_path / "ws"), tmp_path / "copy"
    tree.mkdir()
    (tree / "a.txt").write_text(f"{WORDS[0]}\n")
    dl.index(str(tree), workspace=workspace, model=str(save_tiny_model(tmp_path / "model")))
    flushed: list[str] = []
    for module in ("flows.runs.pull", "storage.workspace.copies"):
        monkeypatch.setattr(f"driftline.{module}.flush_to_disk", flushed.append)
    pull_workspace(PullRequest(workspace, str(copy)))
    current = copy.resolve()
    names = {Path(path).name.removeprefix(".tmp-") for path in flushed}
    assert {path.name for path in current.rglob("*") if path.is_file()} <= names
    assert {folder.name for folder in current.rglob("*") if folder.is_dir()} <= names


@pytest.mark.parametrize("cut", [0, 10])
def test_a_copy_that_lost_data_is_fetched_again(tmp_path: Path, cut: int) -> None:
    tree, workspace, copy = tmp_path / "tree", str(tmp_path / "ws"), tmp_path / "copy"
    tree.mkdir()
    (tree / "a.txt").write_text(f"{WORDS[0]}\n")
    model = str(save_tiny_model(tmp_path / "model"))
    dl.index(str(tree), workspace=workspace, model=model)
    pull_workspace(PullRequest(workspace, str(copy)))

    def lose() -> int:
        lost = [*copy.resolve().glob("*/_tables/*/data/*")]
        for file in lost:
            with file.open("r+b") as opened:
                opened.truncate(cut)
        return len(lost)

    lost = lose()
    assert pull_workspace(PullRequest(workspace, str(copy))).fetched == lost
    assert [hit.path for hit in dl.search(str(copy), WORDS[0]).results] == ["a.txt"]
    lose()
    (tree / "b.txt").write_text(f"{WORDS[1]}\n")
    dl.index(str(tree), workspace=workspace, model=model)
    pull_workspace(PullRequest(workspace, str(copy)))
    found = {hit.path for word in WORDS[:2] for hit in dl.search(str(copy), word).results}
    assert found == {"a.txt", "b.txt"}


def test_a_write_that_cannot_be_flushed_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = ObjectStore.open(str(tmp_path / "ws"))
    version = objects.create("d/first", b"1")
    flush = local_disk.flush_to_disk

    def fail(path: str) -> None:
        if Path(path).is_dir():
            raise OSError(errno.EIO, "Input/output error", path)
        flush(path)

    monkeypatch.setattr(local_disk, "flush_to_disk", fail)
    with pytest.raises(StorageError):
        objects.create("d/second", b"2")
    with pytest.raises(StorageError):
        objects.create("d/linked", b"1", "d/first")
    with pytest.raises(StorageError):
        objects.replace("d/first", b"2", version)
