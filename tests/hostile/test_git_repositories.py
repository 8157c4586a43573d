"""Hostile repositories and hosts: nothing they refer to is executed, followed, written elsewhere or read forever."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.errors import DriftlineError, SourceNotFound, StorageError, UsageError
from driftline.storage.sources import commit_tree, mirror
from driftline.storage.sources.commit_tree import CommitTree
from driftline.storage.sources.mirror import parse_remote
from driftline.storage.sources.source import open_source
from tests.hostile.test_git_executes_nothing import COMMAND_KEYS
from tests.servers.git_server import Checkout, GitServer, git

Driftline = Callable[..., Any]


def blob(repository: Path, content: bytes) -> str:
    return git(repository, "hash-object", "-w", "--stdin", text=content)


def tree(repository: Path, *entries: tuple[str, bytes, str]) -> str:
    """Write a tree with these ``(mode, name, id)`` entries in this order, even if git considers it invalid."""
    raw = b"".join(mode.encode() + b" " + name + b"\0" + bytes.fromhex(each) for mode, name, each in entries)
    return git(repository, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", text=raw)


def publish(repository: Path, tree_id: str) -> str:
    commit = git(repository, "commit-tree", tree_id, "-m", "hostile")
    git(repository, "update-ref", "refs/heads/main", commit)
    return commit


@pytest.fixture(params=["served", "on this disk"])
def hostile(request: pytest.FixtureRequest, git_server: GitServer) -> tuple[Path, str]:
    """A bare repository, and its URI."""
    folder = git_server.create("hostile.git")
    return folder, git_server.url("hostile.git") if request.param == "served" else f"git+file://{folder}"


def test_paths_that_lead_elsewhere_or_collide_are_reasons_or_documents_of_their_own(
    hostile: tuple[Path, str], tmp_path: Path, tiny_model: Path, driftline: Driftline
) -> None:
    folder, uri = hostile
    text = blob(folder, b"a word\n")
    inner = tree(folder, ("100644", b"config", text))
    entries = [
        ("40000", b"..", inner),
        ("40000", b".", inner),
        ("40000", b".git", inner),
        ("100644", b"../../escaped", text),
        ("100644", b"/etc/passwd", text),
        ("100644", b"\xff.md", text),
        ("100644", b"x" * 5000, text),
        ("40000", b".svn", inner),
        ("100644", b"README.md", text),
        ("100644", b"readme.md", text),
        ("100644", "caf\u00e9.md".encode(), text),
        ("100644", "cafe\u0301.md".encode(), text),
        ("100644", b"new\nline.md", text),
        ("100644", b":(glob)**", text),
        ("100644", b"twice.md", text),
        ("100644", b"twice.md", blob(folder, b"another word\n")),
    ]
    publish(folder, tree(folder, *entries))
    outcome = driftline("index", uri, "--workspace", tmp_path / "index", "--model", tiny_model, "--json")
    (source,) = outcome.json["sources"]
    reasons = {skipped["path"]: skipped["reason"] for skipped in source["skipped"]}
    plain = "key is not a plain path"
    odd = dict.fromkeys(("../config", "./config", ".git/config", "../../escaped", "/etc/passwd", "x" * 5000), plain)
    assert reasons == odd | {"\\xff.md": "undecodable name"}
    documents = {info.path for info in open_source(uri).list()} - {".svn/config"}
    assert documents == {
        "README.md", "readme.md", "caf\u00e9.md", "cafe\u0301.md", "new\nline.md", ":(glob)**", "twice.md",
    }  # fmt: skip
    assert source["new"] == len(documents)
    assert not list(tmp_path.rglob("escaped"))
    publish(folder, tree(folder, ("100644", b":(glob)**", blob(folder, b"changed\n")), *entries[8:13]))
    outcome = driftline("index", uri, "--workspace", tmp_path / "index", "--json")
    (source,) = outcome.json["sources"]
    assert (source["changed"], source["deleted"]) == (1, 1)


def test_an_endless_tree_is_an_error_and_a_huge_blob_is_not_read(
    hostile: tuple[Path, str], tmp_path: Path, tiny_model: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, uri = hostile
    huge = blob(folder, bytes(20_000_000))
    publish(folder, tree(folder, ("100644", b"huge.md", huge), ("100644", b"small.md", blob(folder, b"word\n"))))
    outcome = driftline("index", uri, "--workspace", tmp_path / "index", "--model", tiny_model, "--json")
    (source,) = outcome.json["sources"]
    assert (source["new"], source["skipped"], source["bytes_read"]) == (
        1, [{"path": "huge.md", "reason": "too large"}], len("word\n"),
    )  # fmt: skip
    level = blob(folder, b"word\n")
    mode = "100644"
    for _ in range(12):  # 10 ** 12 paths
        level, mode = tree(folder, *((mode, b"%d" % number, level) for number in range(10))), "40000"
    publish(folder, level)
    monkeypatch.setattr(commit_tree, "MAX_TREE_BYTES", 1_000_000)
    monkeypatch.setattr(commit_tree, "MAX_DIFF_BYTES", 1_000_000)
    outcome = driftline("index", uri, "--workspace", tmp_path / "index")
    assert (outcome.code, "millions of files" in outcome.err) == (3, True), outcome.err


def test_huge_folders_are_refused_before_all_of_them_are_read(
    hostile: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, uri = hostile
    text = blob(folder, b"word\n")
    old = publish(folder, tree(folder, ("100644", b"a.md", text)))
    assert len(CommitTree(uri, old).entries()) == 1
    levels = [
        tree(folder, *(("100644", b"%d %d" % (number, each), text) for each in range(1_000))) for number in range(20)
    ]
    new = publish(folder, tree(folder, *(("40000", b"%d" % number, each) for number, each in enumerate(levels))))
    read: list[int] = []
    original = commit_tree._CatFile._read

    def counted(self: Any, requests: Any, kind: Any) -> Any:
        found = original(self, requests, kind)
        read.extend(len(each.data) for each in found if each is not None)
        return found

    monkeypatch.setattr(commit_tree._CatFile, "_read", counted)
    monkeypatch.setattr(commit_tree, "_FOLDERS_AT_ONCE_BYTES", 50_000)
    mirrored = CommitTree(uri, new)
    with monkeypatch.context() as patch:
        patch.setattr(commit_tree, "MAX_TREE_BYTES", 200_000)
        with pytest.raises(StorageError, match="millions of files"):
            mirrored.entries()
    assert sum(read) < 150_000, "of 600,000"
    read.clear()
    with monkeypatch.context() as patch:
        patch.setattr(commit_tree, "MAX_DIFF_BYTES", 200_000)
        assert mirrored.changed_since(old) is None
    assert sum(read) < 150_000
    read.clear()
    with monkeypatch.context() as patch:
        patch.setattr(commit_tree, "MAX_TREE_BYTES", 20_000)
        with pytest.raises(StorageError, match="millions of files"):
            mirrored.entries()
    assert sum(read) < 5_000, "no folder that alone is too large is read"


@pytest.mark.parametrize("mode", ["7" * 30, "644", "0o1006", "-10064", "1_0064"])
def test_an_entry_with_an_invalid_mode_is_an_error(hostile: tuple[Path, str], mode: str) -> None:
    folder, uri = hostile
    commit = publish(folder, tree(folder, (mode, b"a.md", blob(folder, b"word\n"))))
    with pytest.raises(StorageError, match="Git cannot"):
        CommitTree(uri, commit).entries()


def test_symbolic_refs_and_line_breaks_in_names_do_not_hide_branches(hostile: tuple[Path, str]) -> None:
    folder, uri = hostile
    commit = publish(folder, tree(folder, ("100644", b"a.md", blob(folder, b"word\n"))))
    other = git(folder, "commit-tree", f"{commit}^{{tree}}", "-m", "other")
    names = ["topic", "topic\u2028x", "topic\u0085x", "zz\u2028"]
    for name in names:
        git(folder, "update-ref", f"refs/heads/{name}", commit if name == "topic" else other)
    git(folder, "symbolic-ref", "refs/heads/zzz", "refs/heads/topic")
    remote = parse_remote(uri)
    assert remote is not None
    branches = dict.fromkeys(names, other) | {"topic": commit, "zzz": commit}
    assert mirror.current_branches(remote) == (commit, branches)


@pytest.mark.parametrize(
    "uri",
    [
        "git+ssh://-oProxyCommand=touch${IFS}made/x.git",
        "-oProxyCommand=touch@host:x.git",
        "git+https://--upload-pack=touch made/x.git",
        "git+ext::sh -c touch% made",
        "git+ext://sh/-c/touch.git",
        "git+https://host/x.git@--upload-pack=touch",
        "git+https://host/x.git@main..other",
        "git+https://host/x.git@a b",
        "git+https://host/x.git\nhost=other",
        "git+https:///x.git",
    ],
)
def test_urls_and_refs_that_git_would_read_otherwise_are_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(DriftlineError) as caught:
        open_source(uri)
    assert isinstance(caught.value, (UsageError, SourceNotFound))
    assert not list(tmp_path.rglob("made"))


def test_branches_of_odd_names_are_read(git_server: GitServer, tmp_path: Path) -> None:
    project = Checkout.of(git_server.create("odd.git"), tmp_path / "odd")
    for name in ("quote'\"`$(made)&|;", "\u00fcber/\u540d\u524d", "{-1}", "HEAD"):
        project.write("name.md", name)
        project.push(name)
        assert open_source(f"{git_server.url('odd.git')}@{name}").read("name.md") == name.encode()
        assert open_source(f"git+file://{project.remote}@{name}").read("name.md") == name.encode()


def test_commands_of_repositories_and_templates_are_never_executed(
    hostile: tuple[Path, str],
    tmp_path: Path,
    tiny_model: Path,
    driftline: Driftline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, uri = hostile
    made = tmp_path / "made"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch '{made}'\n")
    script.chmod(0o755)
    hooks = tmp_path / "hooks"
    for location in (folder / "hooks", hooks):
        location.mkdir(exist_ok=True)
        for name in ("post-checkout", "reference-transaction", "post-rewrite", "pre-auto-gc", "post-index-change"):
            (location / name).write_text(script.read_text())
            (location / name).chmod(0o755)
    publish(folder, tree(folder, ("100644", b"a.md", blob(folder, b"word\n"))))
    made.unlink(missing_ok=True)  # by the hook for that update
    for key in COMMAND_KEYS:
        git(folder, "config", key, str(script))
    if uri.startswith("git+file"):
        (folder / "objects/info").mkdir(exist_ok=True)
    own = tmp_path / "gitconfig"
    own.write_text(f"[core]\n\thooksPath = {hooks}\n[init]\n\ttemplateDir = {tmp_path}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))
    outcome = driftline("index", uri, "--workspace", tmp_path / "index", "--model", tiny_model, "--json")
    assert outcome.json["sources"][0]["new"] == 1
    assert not made.exists()


def test_a_pipe_that_replaces_a_file_of_git_is_an_error(git_server: GitServer) -> None:
    folder = git_server.create("pipes.git")
    os.remove(folder / "config")
    os.mkfifo(folder / "config")
    with pytest.raises(SourceNotFound, match="not a regular"):
        open_source(str(folder))


def test_a_fetch_stops_at_the_limit_of_the_cache(
    git_server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Checkout.of(git_server.create("grown.git"), tmp_path / "grown")
    (project.folder / "noise").write_bytes(os.urandom(3_000_000))
    project.push()
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE_BYTES", "1000000")
    with pytest.raises(StorageError, match="DRIFTLINE_GIT_CACHE_BYTES"):
        open_source(git_server.url("grown.git")).read("noise")
    assert not [*Path(os.environ["DRIFTLINE_GIT_CACHE"]).rglob("tmp_*")]


def test_only_the_user_reads_mirrors(git_server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE", str(tmp_path / "cache" / "git"))
    project = Checkout.of(git_server.create("own.git"), tmp_path / "own")
    project.write("a.md", "word\n")
    project.push()
    source = open_source(git_server.url("own.git"))
    assert source.read("a.md") == b"word\n"
    remote = parse_remote(source.uri)
    assert remote is not None
    assert stat.S_IMODE(mirror.Mirror.of(remote).folder.stat().st_mode) == 0o700
