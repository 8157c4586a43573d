from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from driftline.tasks.git.work_tree import clean_blobs, find_work_tree, git_origin


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "protocol.file.allow=always"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "sub" / "deep").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    for path in ("a.py", "b.py", "sub/c.py", "sub/deep/d d.py", "sub/é\n.py"):
        (root / path).write_text(f"content of {path}\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def etags(root: Path, *prefixes: str) -> dict[str, str]:
    tree = find_work_tree(str(root))
    assert tree is not None
    return {row["path"].decode(): row["etag"].decode() for row in clean_blobs(tree, prefixes).to_pylist()}


def test_clean_files_have_the_ids_of_their_blobs(repository: Path) -> None:
    found = etags(repository)
    assert set(found) == {"a.py", "b.py", "sub/c.py", "sub/deep/d d.py", "sub/é\n.py"}
    assert all(etag == f"git:{git(repository, 'hash-object', path)}" for path, etag in found.items())


def test_paths_are_relative_to_a_source_inside_the_work_tree(repository: Path) -> None:
    (repository / "sub" / "c.py").write_text("changed, another size")
    assert set(etags(repository / "sub")) == {"deep/d d.py", "é\n.py"}
    assert set(etags(repository / "sub", "deep/")) == {"deep/d d.py"}


def test_changed_deleted_and_new_files_have_no_id(repository: Path) -> None:
    (repository / "a.py").write_text("changed, another size")
    (repository / "b.py").unlink()
    (repository / "new.py").write_text("not tracked")
    assert not {"a.py", "b.py", "new.py"} & etags(repository).keys()


def test_a_change_of_the_same_size_within_the_clock_tick_of_the_commit_is_seen(repository: Path) -> None:
    text = (repository / "a.py").read_text()
    index_time = (repository / ".git" / "index").stat().st_mtime_ns
    (repository / "a.py").write_text(text.upper())
    os.utime(repository / "a.py", ns=(index_time, index_time))
    assert "a.py" not in etags(repository)


def test_a_staged_change_has_the_id_of_what_is_staged(repository: Path) -> None:
    (repository / "a.py").write_text("staged")
    git(repository, "add", "a.py")
    assert etags(repository)["a.py"] == f"git:{git(repository, 'hash-object', 'a.py')}"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_files_with_assume_unchanged_or_skip_worktree_have_no_id(repository: Path, flag: str) -> None:
    git(repository, "update-index", flag, "a.py")
    (repository / "a.py").write_text("changed behind git's back")
    assert "a.py" not in etags(repository)


def test_conflicts_and_intended_files_have_no_id(repository: Path) -> None:
    git(repository, "switch", "-qc", "other")
    (repository / "a.py").write_text("theirs")
    git(repository, "commit", "-qam", "theirs")
    git(repository, "switch", "-q", "main")
    (repository / "a.py").write_text("ours")
    git(repository, "commit", "-qam", "ours")
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "merge", "other")
    (repository / "later.py").write_text("")
    git(repository, "add", "-N", "later.py")
    assert set(etags(repository)) == {"b.py", "sub/c.py", "sub/deep/d d.py", "sub/é\n.py"}


def test_links_and_submodules_have_no_id(repository: Path, tmp_path: Path) -> None:
    (repository / "link").symlink_to("a.py")
    git(repository, "submodule", "add", "-q", str(repository), "module")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    assert set(etags(repository)) == {"a.py", "b.py", "sub/c.py", "sub/deep/d d.py", "sub/é\n.py", ".gitmodules"}
    assert "a.py" in etags(repository / "module")


def test_a_linked_work_tree_and_a_clone_have_the_same_ids(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "linked"))
    git(tmp_path, "clone", "-q", str(repository), "clone")
    assert etags(tmp_path / "linked") == etags(tmp_path / "clone") == etags(repository)


def test_a_repository_of_sha256_ids_works(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", ".")
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    assert etags(tmp_path) == {"a": f"git:{git(tmp_path, 'hash-object', 'a')}"}


def test_an_empty_repository_has_no_ids(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    assert etags(tmp_path) == {}


def test_a_file_system_monitor_of_the_repository_is_not_run(repository: Path, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(hook))
    assert etags(repository)
    assert not (tmp_path / "ran").exists()


def test_the_variables_that_git_sets_for_hooks_are_ignored(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert "a.py" in etags(repository)


def test_a_plain_tree_a_missing_git_and_a_broken_repository_are_plain_trees(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_work_tree(str(tmp_path)) is None
    assert git_origin(str(tmp_path)) is None
    tree = find_work_tree(str(repository))
    assert tree is not None
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert find_work_tree(str(repository)) is None
        assert len(clean_blobs(tree)) == 0
    (repository / ".git" / "index").write_bytes(b"broken")
    assert len(clean_blobs(tree)) == 0
    (repository / ".git" / "HEAD").unlink()
    assert find_work_tree(str(repository)) is None


def test_a_repository_of_another_user_is_a_plain_tree(repository: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(repository, 65534, 65534)
    os.chown(repository / ".git", 65534, 65534)
    assert find_work_tree(str(repository)) is None


def test_a_source_that_the_repository_around_it_ignores_is_a_plain_tree(repository: Path) -> None:
    (repository / ".gitignore").write_text("projects/\n")
    (repository / "projects" / "mine").mkdir(parents=True)
    assert find_work_tree(str(repository / "projects" / "mine")) is None
    assert find_work_tree(str(repository / "sub")) is not None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://token@example.org/a/b.git", "https://example.org/a/b.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("ssh://git@example.org/a@b.git", "ssh://example.org/a@b.git"),
    ],
)
def test_the_origin_has_no_credentials(repository: Path, url: str, shown: str) -> None:
    git(repository, "remote", "add", "origin", url)
    origin = git_origin(str(repository / "sub"))
    assert origin is not None
    assert (origin.url, origin.subpath, origin.commit) == (shown, "sub/", git(repository, "rev-parse", "HEAD"))


def test_no_ids_are_returned_while_another_process_writes_the_index(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = find_work_tree(str(repository))
    assert tree is not None
    ticks = iter(range(100))
    monkeypatch.setattr("driftline.tasks.git.work_tree._signature", lambda path: (next(ticks), 0, 0))
    assert len(clean_blobs(tree)) == 0
    assert next(ticks) <= 4, "bounded attempts"


def test_a_large_index_is_read_quickly(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    blob = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    entries = "".join(f"100644 {blob} 0\tfolder{i % 100}/file{i}.py\n" for i in range(100_000))
    subprocess.run(["git", "update-index", "--index-info"], cwd=tmp_path, input=entries.encode(), check=True)
    tree = find_work_tree(str(tmp_path))
    assert tree is not None
    started = time.process_time()
    assert len(clean_blobs(tree)) == 0  # no file is on disk
    assert time.process_time() - started < 5
