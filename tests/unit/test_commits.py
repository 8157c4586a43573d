"""Paths changed between two commits and on disk, and the cases that require a full scan."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from driftline.storage.sources.commit_tree import _time_of
from driftline.storage.sources.git_isolation import parse_commit_time
from driftline.storage.workspace.records import IndexedCommit
from driftline.tasks.git import commits
from driftline.tasks.git.commits import commit_time, head, is_ancestor
from driftline.tasks.git.work_tree import WorkTree, find_work_tree
from driftline.tasks.scanning.path_patterns import IGNORE_FILES
from driftline.tasks.scanning.since_commit import WorkTreeAtCommit

changes_between = partial(commits.changes_between, ignore_files=IGNORE_FILES)
changes_on_disk = partial(commits.changes_on_disk, ignore_files=IGNORE_FILES)


def git(folder: Path, *arguments: str) -> str:
    settings = ("user.name=test", "user.email=test@localhost", "protocol.file.allow=always")
    options = [part for setting in settings for part in ("-c", setting)]
    done = subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a commit")
    return git(folder, "rev-parse", "HEAD")


def tree_at(folder: Path) -> WorkTree:
    tree = find_work_tree(str(folder))
    assert tree is not None
    return tree


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "sub").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    for name in ("a.py", "b b.py", "sub/c.py", "sub/é\n.py"):
        (root / name).write_text(f"content of {name}\n")
    commit(root)
    return root


def test_edits_additions_deletions_and_both_ends_of_a_rename_differ(repository: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    (repository / "a.py").write_text("edited\n")
    (repository / "new.py").write_text("new\n")
    git(repository, "mv", "b b.py", "sub/moved.py")
    (repository / "sub" / "é\n.py").unlink()
    now = commit(repository)
    assert changes_between(tree_at(repository), base, now).paths == (
        "a.py",
        "b b.py",
        "new.py",
        "sub/moved.py",
        "sub/é\n.py",
    )
    assert changes_between(tree_at(repository / "sub"), base, now).paths == ("moved.py", "é\n.py")
    assert changes_between(tree_at(repository), base, base).paths == ()


def test_a_rewritten_history_is_compared_by_its_files(repository: Path) -> None:
    (repository / "a.py").write_text("pushed\n")
    pushed = commit(repository)
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    (repository / "b b.py").write_text("pushed instead\n")
    assert changes_between(tree_at(repository), pushed, commit(repository)).paths == ("a.py", "b b.py")


@pytest.mark.parametrize("base", ["f" * 40, "--output=x", "", "HEAD"])
def test_a_base_missing_from_the_clone_requires_a_full_scan(repository: Path, base: str) -> None:
    changes = changes_between(tree_at(repository), base, git(repository, "rev-parse", "HEAD"))
    assert changes.paths is None
    assert "last indexed commit" in changes.why


def test_a_shallow_clone_without_the_base_requires_a_full_scan(repository: Path, tmp_path: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    (repository / "a.py").write_text("edited\n")
    now = commit(repository)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    assert changes_between(tree_at(tmp_path / "shallow"), base, now).paths is None
    git(tmp_path / "shallow", "fetch", "-q", "--depth", "2", "origin", "main")
    assert changes_between(tree_at(tmp_path / "shallow"), base, now).paths == ("a.py",)


@pytest.mark.parametrize("name", [".gitignore", "sub/.driftlineignore", ".gitattributes"])
def test_a_changed_ignore_or_attributes_file_requires_a_full_scan(repository: Path, name: str) -> None:
    base = git(repository, "rev-parse", "HEAD")
    (repository / name).write_text("*.log\n")
    assert changes_on_disk(tree_at(repository / "sub")).paths is None
    now = commit(repository)
    changes = changes_between(tree_at(repository / "sub"), base, now)
    assert changes.paths is None
    assert name in changes.why


def test_a_submodule_requires_a_full_scan(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(repository), "inner")
    base = git(repository, "rev-parse", "HEAD")
    git(repository, "submodule", "add", "-q", str(tmp_path / "inner"), "inner")
    now = commit(repository)
    assert changes_between(tree_at(repository), base, now).paths is None
    assert changes_on_disk(tree_at(repository)).paths is None


def test_edited_deleted_and_untracked_files_differ_from_the_commit(repository: Path) -> None:
    tree = tree_at(repository)
    assert changes_on_disk(tree).paths == ()
    (repository / "a.py").write_text("edited\n")
    (repository / "b b.py").unlink()
    (repository / "fresh").mkdir()
    (repository / "fresh" / "new.py").write_text("new\n")
    (repository / "staged.py").write_text("staged\n")
    git(repository, "add", "staged.py")
    assert changes_on_disk(tree).paths == ("a.py", "b b.py", "fresh/new.py", "staged.py")
    assert changes_on_disk(tree_at(repository / "sub")).paths == ()


def test_files_that_the_user_ignores_everywhere_are_left_out(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    git(repository, "config", "--global", "core.excludesFile", str(tmp_path / "global-ignore"))
    (repository / "x.log").write_text("ignored by a file that is written later\n")
    assert changes_on_disk(tree_at(repository)).paths == ("x.log",)
    before = look(repository)
    (tmp_path / "global-ignore").write_text("*.log\n")
    assert changes_on_disk(tree_at(repository)).paths == ()
    assert look(repository).scanned_with != before.scanned_with


def test_an_ignore_file_outside_the_repository_that_configures_it_has_no_effect(
    repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "global-ignore").write_text("*.log\n")
    git(repository, "config", "core.excludesFile", str(tmp_path / "global-ignore"))
    (repository / "x.log").write_text("indexed all the same\n")
    assert changes_on_disk(tree_at(repository)).paths == ("x.log",)


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_files_with_assume_unchanged_or_skip_worktree_require_a_full_scan(repository: Path, flag: str) -> None:
    git(repository, "update-index", flag, "a.py")
    assert changes_on_disk(tree_at(repository)).paths is None


def test_a_nested_repository_requires_a_full_scan(repository: Path) -> None:
    (repository / "inner").mkdir()
    git(repository / "inner", "init", "-q")
    (repository / "inner" / "x.py").write_text("x\n")
    assert changes_on_disk(tree_at(repository)).paths is None


def test_undecodable_names_are_left_out_as_in_a_scan(repository: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    Path(os.fsdecode(os.fsencode(repository) + b"/bad\xff.py")).write_text("x\n")
    assert changes_on_disk(tree_at(repository)).paths == ()
    assert changes_between(tree_at(repository), base, commit(repository)).paths == ()


def test_the_head_has_a_time_and_a_branch(repository: Path) -> None:
    found = head(str(repository))
    assert found is not None
    assert (found.id, found.branch) == (git(repository, "rev-parse", "HEAD"), "main")
    assert abs((datetime.now(UTC) - found.committed).total_seconds()) < 600
    assert commit_time(str(repository), found.id) == found.committed
    git(repository, "checkout", "-q", "--detach")
    detached = head(str(repository))
    assert detached is not None
    assert detached.branch is None


@pytest.mark.parametrize("seconds", [b"9999999999999", b"-99999999999999", b"", b"9" * 30, b"x"])
def test_a_commit_may_have_any_time(seconds: bytes) -> None:
    assert parse_commit_time(seconds) == datetime.fromtimestamp(0, UTC)
    assert _time_of(b"tree x\ncommitter A <a@b> %s +0000\n\n" % seconds) == datetime.fromtimestamp(0, UTC)
    assert _time_of(b"tree x\ncommitter A > B <a@b> 60 -0700\n\n") == datetime.fromtimestamp(60, UTC)


def test_the_time_of_a_commit_may_be_out_of_range(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "@9999999999999 +0000")
    git(repository, "commit", "-q", "--allow-empty", "-m", "a commit")
    found = head(str(repository))
    assert found is not None
    assert found.committed == datetime.fromtimestamp(0, UTC)


def test_without_git_or_a_first_commit_there_is_no_head(tmp_path: Path) -> None:
    assert head(str(tmp_path)) is None
    git(tmp_path, "init", "-q")
    assert head(str(tmp_path)) is None


def test_a_commit_descends_from_earlier_ones(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    (repository / "a.py").write_text("edited\n")
    second = commit(repository)
    assert is_ancestor(str(repository), first, second)
    assert not is_ancestor(str(repository), second, first)
    assert not is_ancestor(str(repository), "f" * 40, second)


# A run's recorded commit, and when it is valid.


def look(repository: Path, rules: object = ()) -> WorkTreeAtCommit:
    found = WorkTreeAtCommit.of(str(repository), rules)
    assert found is not None
    return found


@pytest.fixture
def last(repository: Path) -> IndexedCommit:
    """Return the record of a run with token 4."""
    reached = look(repository).commit_to_record(4)
    assert reached is not None
    return reached


def test_a_recorded_commit_is_void_after_another_lease_holder(repository: Path, last: IndexedCommit) -> None:
    (repository / "a.py").write_text("edited\n")
    assert look(repository).changes_since(last, 5).paths == ("a.py",)
    assert look(repository).changes_since(last, 6).paths is None
    assert look(repository).changes_since(None, 5).paths is None


def test_changed_settings_require_a_full_scan(repository: Path, last: IndexedCommit) -> None:
    assert look(repository, ("*.py",)).changes_since(last, 5).paths is None
    (repository / ".git" / "info" / "exclude").write_text("*.py\n")
    assert look(repository).changes_since(last, 5).paths is None


def test_a_commit_is_recorded_only_if_the_disk_is_at_it(repository: Path) -> None:
    began = look(repository)
    (repository / "a.py").write_text("edited\n")
    assert began.commit_to_record(1) is None
    commit(repository)
    assert began.commit_to_record(1) is None
    assert look(repository).commit_to_record(1) is not None


def test_a_large_blob_does_not_hide_others(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = commits.PushedCommit(tree_at(repository).repository, git(repository, "rev-parse", "HEAD"))
    contents = {name: (repository / name).read_bytes() for name in ("sub/c.py", "a.py", "b b.py")}
    blobs = commits.blobs_at(pushed, [*contents])
    monkeypatch.setattr(commits, "MAX_BLOBS_BYTES", len(contents["a.py"]))
    asked = [blobs["sub/c.py"], "0" * 40, blobs["a.py"], blobs["b b.py"]]
    assert commits.blob_contents(pushed, asked) == {blobs["a.py"]: contents["a.py"]}
