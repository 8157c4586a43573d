"""``--cache``: searches of a bucket keep an up-to-date copy on the local disk, within a limit."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.commands import web
from driftline.flows.runs import pull
from driftline.flows.runs.pull import RefreshedWorkspace, cache_folder, refreshed_copy
from driftline.storage.errors import AccessDenied, CorruptFile, DriftlineError, WorkspaceNotFound
from driftline.storage.objects.store_requests import request_counter
from driftline.storage.workspace import copies
from driftline.storage.workspace.copies import WorkspaceCopy
from driftline.storage.workspace.workspace import Workspace
from tests.servers.s3_server import S3Server
from tests.support.oracle import WORDS, save_tiny_model
from tests.support.waiting import PATIENCE_SECONDS, until

PLENTY = 10**9


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(pull.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    location = tmp_path / "tree"
    location.mkdir()
    for number in range(20):
        (location / f"{number}.txt").write_text("".join(f"{WORDS[(number + n) % 40]} {number}\n" for n in range(10)))
    return location


@pytest.fixture
def index(tree: Path, tmp_path: Path) -> Callable[[str], str]:
    model = str(save_tiny_model(tmp_path / "model"))

    def run(origin: str) -> str:
        dl.index(str(tree), workspace=origin, model=model)
        return origin

    return run


class Warnings(list[str]):
    """The warnings."""

    __call__ = list.append


def answers(location: str) -> list[tuple[str, int, str]]:
    found = [hit for query in WORDS[:4] for hit in dl.search(location, query, top_k=20, n_lines=0).results]
    return [(hit.path, hit.line, hit.text) for hit in found]


def copied(folder: Path) -> list[Path]:
    return sorted(location for location in folder.glob("*/copy") if location.exists())


def test_a_copy_gives_the_answers_of_the_bucket_and_follows_it(
    index: Callable[[str], str], s3_bucket: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, warned = index(s3_bucket), Warnings()
    location = refreshed_copy(origin, max_bytes=PLENTY, warn=warned)
    assert location != origin
    assert answers(location) == answers(origin)

    with request_counter() as requests:
        assert refreshed_copy(origin, max_bytes=PLENTY, warn=warned) == location
    assert sum(sum(kinds.values()) for kinds in requests.counts.values()) <= 3  # nothing has changed

    (tree / "new.txt").write_text(f"{WORDS[0]} anew\n")
    index(s3_bucket)
    assert refreshed_copy(origin, max_bytes=PLENTY, warn=warned) == location
    assert ("new.txt", 1, f"{WORDS[0]} anew") in answers(location)
    assert answers(location) == answers(origin)
    assert not warned

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert refreshed_copy(origin, {"client_max_retries": "0"}, max_bytes=PLENTY, warn=warned) == location
    assert ("new.txt", 1, f"{WORDS[0]} anew") in answers(location)
    assert len(warned) == 1
    assert "Searching the copy of" in warned[0]


def test_a_copy_has_only_the_newest_runs(
    index: Callable[[str], str], s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "COPIED_RUNS", 2)
    for _ in range(4):
        index(s3_bucket)
    location = refreshed_copy(s3_bucket, max_bytes=PLENTY, warn=Warnings())
    copied = sorted(path.name for path in Path(location).resolve().rglob("_runs/*.json"))
    paths = [info.path for info in Workspace.open(s3_bucket).objects.list()]
    assert copied == sorted(path.rpartition("/")[2] for path in paths if "/_runs/" in path)[-2:]


def test_a_deleted_file_of_a_copy_is_fetched_again(index: Callable[[str], str], s3_bucket: str) -> None:
    origin, warned = index(s3_bucket), Warnings()
    location = refreshed_copy(origin, max_bytes=PLENTY, warn=warned)
    before = answers(location)
    next(Path(location).rglob("*.lance/data/*.lance")).unlink()
    assert refreshed_copy(origin, max_bytes=PLENTY, warn=warned) == location
    assert answers(location) == before


def test_a_local_workspace_is_not_copied(index: Callable[[str], str], tmp_path: Path, folder: Path) -> None:
    origin = index(str(tmp_path / "ws"))
    assert refreshed_copy(origin, max_bytes=PLENTY, warn=Warnings()) == origin
    assert not folder.exists()


def test_copies_stay_within_the_limit(index: Callable[[str], str], s3_bucket: str, folder: Path) -> None:
    first, second, warned = index(f"{s3_bucket}/first"), index(f"{s3_bucket}/second"), Warnings()
    refreshed_copy(first, max_bytes=PLENTY, warn=warned)
    (one,) = folder.iterdir()
    size = pull._size_bytes(one)
    limit = int(1.5 * size)

    assert refreshed_copy(second, max_bytes=limit, warn=warned) == second  # a search may still read the first
    assert "more than the space left" in warned.pop()
    assert copied(folder) == [one / "copy"]

    long_ago = time.time() - 2 * pull.RECENT_SECONDS
    os.utime(one / "used", (long_ago, long_ago))
    location = refreshed_copy(second, max_bytes=limit, warn=warned)
    assert [str(each) for each in copied(folder)] == [location]
    assert sum(map(pull._size_bytes, folder.iterdir())) <= limit
    assert not warned

    assert refreshed_copy(first, max_bytes=10, warn=warned) == first
    assert answers(location) == answers(first)


def test_a_search_works_on_a_full_disk(
    index: Callable[[str], str], s3_bucket: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    origin, warned = index(s3_bucket), Warnings()
    write, left = Path.write_bytes, [5]

    def full(self: Path, data: Any) -> int:
        if folder in self.parents:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        assert refreshed_copy(origin, max_bytes=PLENTY, warn=warned) == origin
    assert "No space left on device" in warned.pop()
    assert copied(folder) == []
    location = refreshed_copy(origin, max_bytes=PLENTY, warn=warned)  # once there is space again
    assert answers(location) == answers(origin)


def test_processes_share_a_copy(index: Callable[[str], str], s3_bucket: str, folder: Path) -> None:
    origin, warned, locations = index(s3_bucket), Warnings(), list[str]()
    refreshed_copy(origin, max_bytes=PLENTY, warn=warned)
    copy = WorkspaceCopy(copied(folder)[0])
    with copy.locked():  # like a concurrent pull by another process
        waiting = threading.Thread(
            target=lambda: locations.append(refreshed_copy(origin, max_bytes=PLENTY, warn=warned))
        )
        waiting.start()
        until(lambda: warned, "the warning")
        assert "waiting for it" in warned[0]
        assert not locations
    waiting.join(PATIENCE_SECONDS)
    assert locations == [str(copy.location)]


def test_errors_of_the_original_are_reported(s3_bucket: str, s3_environment: S3Server) -> None:
    with pytest.raises(WorkspaceNotFound):
        refreshed_copy(s3_bucket, max_bytes=PLENTY, warn=Warnings())
    with pytest.raises(AccessDenied):
        refreshed_copy(s3_bucket, {"aws_secret_access_key": "wrong"}, max_bytes=PLENTY, warn=Warnings())


def test_a_server_refreshes_its_copy_while_searches_go_on(
    index: Callable[[str], str], s3_bucket: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled, may_pull = threading.Event(), threading.Event()

    def prepare(_: Workspace) -> None:
        pulled.set()
        assert may_pull.wait(PATIENCE_SECONDS)

    may_pull.set()
    monkeypatch.setattr(pull, "REFRESH_SECONDS", 0.01)
    newest = RefreshedWorkspace(Workspace.open(index(s3_bucket)), PLENTY, Warnings(), prepare)
    before = newest()
    assert before.objects.is_local
    assert dl.search(before, WORDS[0]).results
    (tree / "new.txt").write_text(f"{WORDS[0]} anew\n")
    index(s3_bucket)
    pulled.clear()
    may_pull.clear()
    with newest.refreshing():
        assert pulled.wait(PATIENCE_SECONDS)
        assert newest() is before  # the newer one is not ready yet
        assert "new.txt" not in {hit.path for hit in dl.search(newest(), f"{WORDS[0]} anew").results}
        may_pull.set()
        until(lambda: newest() is not before)
    assert "new.txt" in {hit.path for hit in dl.search(newest(), f"{WORDS[0]} anew").results}


def test_a_search_says_why_the_copy_of_the_server_cannot_be_refreshed(
    index: Callable[[str], str], s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "REFRESH_SECONDS", 0.01)
    workspace, warned = Workspace.open(index(s3_bucket)), Warnings()
    newest = RefreshedWorkspace(workspace, PLENTY, warned)
    newest()
    config = workspace.objects.get("_workspace.json")
    with newest.refreshing():
        workspace.objects.delete(["_workspace.json"])
        until(lambda: warned)
        with pytest.raises(CorruptFile):
            newest()
        workspace.objects.create("_workspace.json", config)
        until(lambda: not raises(newest))
    assert newest().objects.is_local


def test_an_unexpected_error_of_a_refresh_is_logged_with_its_traceback(
    index: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = Workspace.open(index(str(tmp_path / "ws")))
    copies = iter([workspace])
    monkeypatch.setattr(pull, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(RefreshedWorkspace, "_newest", lambda _: next(copies))
    newest = RefreshedWorkspace(workspace, PLENTY, pytest.fail)
    assert newest() is workspace
    with newest.refreshing():
        until(lambda: len(caplog.records) > 1)  # the thread goes on
    assert caplog.records[0].exc_info
    assert newest() is workspace


def test_the_web_server_uses_a_copy_that_a_search_has_kept(
    index: Callable[[str], str], s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = Workspace.open(index(s3_bucket))

    def is_copied(requested: bool | None) -> bool:
        with web._newest(workspace, requested, []) as newest:
            return newest().objects.is_local

    assert not is_copied(None)
    assert is_copied(True)
    assert is_copied(None)
    assert not is_copied(False)
    (tmp_path / "driftline.toml").write_text("[search]\ncache = false\n")
    assert not is_copied(None)


def raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except DriftlineError:
        return True
    return False


def test_the_command_and_its_settings(
    index: Callable[[str], str], s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from driftline.flows.commands.main import main

    origin = index(s3_bucket)
    monkeypatch.chdir(tmp_path)

    def search(*options: str) -> list[Any]:
        assert main(["search", WORDS[3], "--workspace", origin, "--json", *options]) == 0
        results: list[Any] = json.loads(capsys.readouterr().out)["results"]
        return results

    expected = search()
    assert copied(cache_folder()) == []
    assert search("--cache") == expected
    (location,) = copied(cache_folder())
    (tmp_path / "driftline.toml").write_text("[search]\ncache = true\ncache_bytes = 1000000\n")
    pulled = (location / "_copy.json").read_text()
    assert search() == expected
    assert (location / "_copy.json").read_text() != pulled  # compared again
    pulled = (location / "_copy.json").read_text()
    assert search("--no-cache") == expected
    assert (location / "_copy.json").read_text() == pulled
    assert dl.open(origin, cache=True).storage.objects.is_local

    options = {"client_max_retries": "0"}
    (tmp_path / "driftline.toml").write_text(
        f'workspace = "{origin}"\n[storage_options]\nclient_max_retries = "0"\n[search]\ncache = true\n'
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert search() == expected
    assert dl.open(origin, options, cache=True).storage.objects.is_local
