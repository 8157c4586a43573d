"""A pulled copy: complete, replaced atomically, resumed after an interruption, searched without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.pull import PullRequest, pull_workspace
from driftline.storage.errors import CorruptFile, LeaseHeld, ObjectNotFound, StorageError, UsageError
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.copies import WorkspaceCopy
from tests.support.oracle import WORDS


@pytest.fixture(params=["bucket", "disk"])
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.getfixturevalue('s3_bucket')}/ws" if request.param == "bucket" else str(tmp_path / "original")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text("".join(f"{WORDS[(number + n) % 40]} {number}\n" for n in range(10)))
    return folder


def index(tree: Path, origin: str, model: Path) -> None:
    dl.index(str(tree), workspace=origin, model=str(model))


def answers(folder: str) -> list[tuple[str, int, str]]:
    found = [hit for query in WORDS[:6] for hit in dl.search(folder, query, top_k=20, n_lines=0).results]
    return [(hit.path, hit.line, hit.text) for hit in found]


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_gives_the_answers_of_the_original_and_later_pulls_fetch_new_files(
    origin: str, tree: Path, model: Path, tmp_path: Path
) -> None:
    index(tree, origin, model)
    folder = tmp_path / "copy"
    first = pull_workspace(PullRequest(origin, str(folder)))
    assert first.fetched == first.files > 10
    assert answers(str(folder)) == answers(origin)
    again = pull_workspace(PullRequest(origin, str(folder)))
    assert (again.fetched, again.bytes, again.files) == (0, 0, first.files)

    (tree / "3.txt").write_text(f"{WORDS[3]} changed\n")
    (tree / "new.txt").write_text(f"{WORDS[4]} new\n")
    index(tree, origin, model)
    later = pull_workspace(PullRequest(origin, str(folder)))
    assert 0 < later.fetched < first.fetched
    assert later.requests <= 40 or not origin.startswith("s3")
    assert answers(str(folder)) == answers(origin)
    assert any(text.endswith("changed") for _, _, text in answers(str(folder)))


def test_a_copy_needs_neither_network_nor_credentials(
    s3_bucket: str, tree: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tree, f"{s3_bucket}/ws", model)
    folder = tmp_path / "copy"
    pull_workspace(PullRequest(f"{s3_bucket}/ws", str(folder)))
    expected = answers(str(folder))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert answers(str(folder)) == expected


def test_readers_of_the_version_before_go_on_and_older_ones_are_deleted(
    tree: Path, model: Path, tmp_path: Path
) -> None:
    origin, folder = str(tmp_path / "original"), tmp_path / "copy"
    index(tree, origin, model)
    pull_workspace(PullRequest(origin, str(folder)))
    reader, before = dl.open(str(folder)), answers(str(folder))
    for turn in range(2):
        (tree / f"turn{turn}.txt").write_text(f"{WORDS[0]} turn {turn}\n")
        index(tree, origin, model)
        if turn == 0:
            pull_workspace(PullRequest(origin, str(folder)))
            found = [hit for query in WORDS[:6] for hit in dl.search(reader, query, top_k=20, n_lines=0).results]
            assert [(hit.path, hit.line, hit.text) for hit in found] == before
    compact_workspace(CompactRequest(origin, retention_seconds=0, workers=1))
    pull_workspace(PullRequest(origin, str(folder)))
    assert answers(str(folder)) == answers(origin)
    versions = [path for path in WorkspaceCopy(folder).versions.iterdir() if (path / "_copy.json").exists()]
    assert len(versions) == 2


@pytest.mark.parametrize("fault", [StorageError, KeyboardInterrupt])
def test_an_interrupted_pull_leaves_the_copy_as_it_was_and_the_next_one_continues(
    fault: type[BaseException], tree: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, folder = str(tmp_path / "original"), tmp_path / "copy"
    index(tree, origin, model)
    pull_workspace(PullRequest(origin, str(folder)))
    before = answers(str(folder))
    shutil.rmtree(tree)
    tree.mkdir()
    for number in range(150):
        (tree / f"{number}.txt").write_text(f"{WORDS[number % 40]} second {number}\n")
    dl.index(str(tree), workspace=origin, model=str(model), max_delete_fraction=1.0)

    left = iter(range(3))
    original = ObjectStore.get

    def get(self: ObjectStore, path: str) -> bytes:
        if path.endswith((".lance", ".idx")) and next(left, None) is None:
            raise fault("the line is cut", path)
        return original(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "get", get)
        with pytest.raises(fault):
            pull_workspace(PullRequest(origin, str(folder)))
    assert answers(str(folder)) == before
    kept = {path.name for path in WorkspaceCopy(folder).partial.rglob("*.lance") if path.is_file()}
    assert kept
    fetched: list[str] = []

    def noted(self: ObjectStore, path: str) -> bytes:
        fetched.append(path)
        return original(self, path)

    monkeypatch.setattr(ObjectStore, "get", noted)
    pull_workspace(PullRequest(origin, str(folder)))
    assert not {path.rpartition("/")[2] for path in fetched} & kept
    assert answers(str(folder)) == answers(origin)


def test_a_pull_does_not_switch_to_a_damaged_version(
    tree: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, folder = str(tmp_path / "original"), tmp_path / "copy"
    index(tree, origin, model)
    original = ObjectStore.get

    def get(self: ObjectStore, path: str) -> bytes:
        data = original(self, path)
        return bytes(len(data)) if path.endswith(".parquet") else data

    monkeypatch.setattr(ObjectStore, "get", get)
    with pytest.raises(CorruptFile):
        pull_workspace(PullRequest(origin, str(folder)))
    assert not folder.exists()


def test_reads_start_over_when_files_vanish(
    tree: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, folder = str(tmp_path / "original"), tmp_path / "copy"
    index(tree, origin, model)
    failing, original = iter([True]), ObjectStore.get

    def get(self: ObjectStore, path: str) -> bytes:
        if path.endswith(".parquet") and next(failing, False):
            raise ObjectNotFound("It has vanished", path)
        return original(self, path)

    monkeypatch.setattr(ObjectStore, "get", get)
    pull_workspace(PullRequest(origin, str(folder)))
    assert answers(str(folder)) == answers(origin)


def test_pull_overwrites_only_copies_and_copies_are_read_only(tree: Path, model: Path, tmp_path: Path) -> None:
    origin, folder = str(tmp_path / "original"), tmp_path / "copy"
    index(tree, origin, model)
    before = files_in(tree)
    with pytest.raises(UsageError, match="not a copy"):
        pull_workspace(PullRequest(origin, str(tree)))
    assert files_in(tree) == before
    pull_workspace(PullRequest(origin, str(folder)))
    with pytest.raises(UsageError, match="Cannot write to a copy"):
        index(tree, str(folder), model)


def test_two_pulls_into_one_copy_exclude_each_other(tree: Path, model: Path, tmp_path: Path) -> None:
    origin, folder = str(tmp_path / "original"), tmp_path / "copy"
    index(tree, origin, model)
    copy = WorkspaceCopy(folder)
    copy.partial.mkdir(parents=True)
    with copy.locked(), pytest.raises(LeaseHeld):
        pull_workspace(PullRequest(origin, str(folder)))
    assert pull_workspace(PullRequest(origin, str(folder))).fetched > 0


def test_the_command_pulls_and_status_says_how_old_the_copy_is(
    tree: Path, model: Path, tmp_path: Path, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = str(tmp_path / "original")
    index(tree, origin, model)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    pulled = driftline("pull", origin, "--json")
    assert pulled.code == 0, pulled.err
    assert pulled.json["copy"] == str(tmp_path / "here" / "original")
    status = driftline("status", "--workspace", "./original", "--json").json
    assert (status["copy_of"], status["total_documents"]) == (origin, 40)
    assert "pulled" in status
    assert "copy of" in driftline("status", "--workspace", "./original").out
    found = driftline("search", WORDS[5], "--workspace", "./original", "--json")
    assert json.loads(found.out)["results"]
