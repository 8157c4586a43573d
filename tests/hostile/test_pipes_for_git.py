"""A pipe instead of a git configuration file, in or above a source, blocks nothing (git would wait for a writer)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import driftline as dl
from driftline.storage.sources import git_isolation
from driftline.storage.sources.git_isolation import find_repository, run
from tests.servers.git_server import GitServer
from tests.support.waiting import until

Driftline = Callable[..., Any]

IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost")
LOCATIONS = (
    *(".gitignore", ".gitattributes", ".driftlineignore", ".gitmodules", ".git/info/exclude", ".git/info/attributes"),
    *("above/.gitignore", "above/.gitattributes", "above/source/.gitignore", "above/source/.gitattributes"),
    *("above/source/new/.gitignore", "beside/.gitignore", ".git/refs/heads/main", ".git/objects/info/alternates"),
    *(".git/config.worktree", ".git/shallow", "../home/.config/git/ignore", "../home/excludes", "../.gitignore"),
    *("above/source/inner/.git", "above/.git", "../.git"),
)


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often: a git process that waits for a CPU is not asleep, however busy the machine is."""
    monkeypatch.setattr(git_isolation, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(git_isolation, "_ASLEEP_SECONDS", 0.15)
    monkeypatch.setattr(git_isolation, "_TIMEOUT_SECONDS", 10_000)  # longer than pytest waits


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work tree with a source two levels below its top."""
    home, top = tmp_path / "home", tmp_path / "top"
    (home / ".config/git").mkdir(parents=True)
    (home / ".gitconfig").write_text(f"[core]\n\texcludesFile = {home}/excludes\n")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL"):
        monkeypatch.delenv(name, raising=False)
    (top / "above/source/sub").mkdir(parents=True)
    (top / "above/source/sub/a.txt").write_text("the heron lands\n")
    (top / "beside").mkdir()
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *IDENTITY, *command], cwd=top, check=True)
    return top


def put_pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_pipe_in_place_of_a_git_file_does_not_block_commands(
    root: Path, tmp_path: Path, driftline: Driftline, location: str
) -> None:
    if location == "../home/.config/git/ignore":
        (tmp_path / "home/.gitconfig").unlink()
    put_pipe(root / location)
    source = root / "above/source"
    for command in ("index", "ci", "grep"):
        at = ("heron", source) if command == "grep" else (source, "--workspace", tmp_path / command)
        done = driftline(command, *at, "--json")
        assert done.code == 0, done.err
        hits = dl.search(str(at[-1]), "heron", mode="text") if command != "grep" else None
        texts = [hit.text for hit in hits.results] if hits else [hit["text"] for hit in done.json["results"]]
        assert texts == ["the heron lands"]


def test_git_that_waits_for_a_pipe_is_killed_and_busy_git_is_not(root: Path) -> None:
    repository = find_repository(str(root))
    assert repository is not None
    put_pipe(root / "beside/.gitignore")
    assert run(repository, str(root), "status", "--porcelain", "--untracked-files=all") is None
    os.unlink(root / "beside/.gitignore")
    assert run(repository, str(root), "status", "--porcelain", "--untracked-files=all") is not None


def test_git_that_waits_for_a_slow_host_is_not_killed(root: Path, git_server: GitServer) -> None:
    git_server.create("slow.git")
    top = root / "above"
    subprocess.run(["git", "remote", "add", "origin", f"http://{git_server.host}/slow.git"], cwd=top, check=True)
    subprocess.run(["git", "push", "-q", git_server.root / "slow.git", "main"], cwd=top, check=True)
    held = threading.Event()

    def hold(path: str, headers: object) -> None:
        held.wait(0.4)  # longer than two looks at git, which sleeps
        held.set()

    git_server.api = hold
    answer = git_isolation.ask_remote(str(top), "ls-remote", "--heads")
    assert answer is not None
    assert answer.endswith(b"refs/heads/main\n")
    assert held.is_set()


@pytest.mark.parametrize(("work", "is_asleep"), [("while :; do :; done", False), ("exec sleep 10000", True)])
def test_git_counts_as_busy_while_its_child_works(work: str, is_asleep: bool) -> None:
    with subprocess.Popen(["sh", "-c", f"sh -c '{work}'; true"], start_new_session=True) as process:
        parent = psutil.Process(process.pid)
        try:
            until(lambda: parent.children() and parent.status() == psutil.STATUS_SLEEPING, "the child")
            if is_asleep:
                until(lambda: git_isolation._context_switches(process.pid) is not None, "its sleep")
            else:
                assert git_isolation._context_switches(process.pid) is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
