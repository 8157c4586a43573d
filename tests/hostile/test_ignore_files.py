"""Ignore files and git files of a source that are written to exhaust memory or time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from driftline.storage.sources.source import RepositorySource, open_source
from driftline.tasks.scanning import path_patterns
from driftline.tasks.scanning.path_patterns import (
    MAX_IGNORE_BYTES,
    MAX_PATTERN_BYTES,
    IgnoreFileLimits,
    PatternList,
    Rules,
    translate,
)
from driftline.tasks.scanning.scan import ScanSpec, _list_commit
from driftline.tasks.scanning.walk import Subtree, Walk
from tests.servers.git_server import GitServer, git

HUGE = 2**40


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize("name", [".gitignore", ".driftlineignore"])
def test_only_the_start_of_a_huge_ignore_file_has_an_effect(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in ("a.txt", "b.txt"):
        (tmp_path / file).write_text("a\n")
    (tmp_path / name).write_text("b.txt\n")
    with (tmp_path / name).open("ab") as ignore_file:
        ignore_file.truncate(HUGE)
    with caplog.at_level(logging.WARNING):
        listing = Walk(str(tmp_path), Rules()).run([Subtree()])
    assert "a.txt" in listing.paths
    assert "b.txt" not in listing.paths
    assert f"{tmp_path}/{name} has no effect after its first {MAX_IGNORE_BYTES} bytes" in caplog.text


def test_a_huge_ignore_file_of_a_commit_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    limits = IgnoreFileLimits()
    assert limits.admit("big/.driftlineignore", MAX_IGNORE_BYTES + 1)
    assert not limits.admit("huge/.driftlineignore", HUGE)
    assert "huge/.driftlineignore is larger than" in caplog.text


@pytest.mark.parametrize("name", [".git", ".git/config", ".git/info/exclude"])
def test_a_huge_file_of_git_in_a_nested_folder_is_not_read_whole(name: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.txt").write_text("a\n")
    if name != ".git":
        git(inner, "init", "--quiet")
        (inner / name).parent.mkdir(exist_ok=True)
    sparse(inner / name, HUGE)
    listing = Walk(str(tmp_path), Rules()).run([Subtree()])
    assert "inner/a.txt" in listing.paths


def test_blank_lines_in_the_configuration_of_a_nested_repository_take_linear_time(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.txt").write_text("a\n")
    git(inner, "init", "--quiet")
    with (inner / ".git/config").open("a") as file:
        file.write("\n" * 1_000_000)
    assert "inner/a.txt" in Walk(str(tmp_path), Rules()).run([Subtree()]).paths


@pytest.mark.parametrize("limit", ["MAX_SCAN_PATTERNS", "MAX_SCAN_IGNORE_BYTES"])
def test_an_ignore_file_that_git_stores_once_for_many_folders_is_limited(
    limit: str, git_server: GitServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = git_server.create("hostile.git")
    rules = git(folder, "hash-object", "-w", "--stdin", text=b"a\n" * 100)
    text = git(folder, "hash-object", "-w", "--stdin", text=b"a word\n")
    names = ".driftlineignore", "a", "b.txt"
    entries = "".join(f"100644 blob {rules if name == names[0] else text}\t{name}\n" for name in names)
    inner = git(folder, "mktree", text=entries.encode())
    root = git(folder, "mktree", text="".join(f"040000 tree {inner}\td{i:02d}\n" for i in range(30)).encode())
    git(folder, "update-ref", "refs/heads/main", git(folder, "commit-tree", root, "-m", "hostile"))
    monkeypatch.setattr(path_patterns, limit, 500)
    source = open_source(f"git+file://{folder}")
    assert isinstance(source, RepositorySource)
    with caplog.at_level(logging.WARNING):
        paths = _list_commit(ScanSpec(source, "f"), source).paths
    source.close()
    assert_limited(paths, 5 if limit == "MAX_SCAN_PATTERNS" else 2, caplog.text)


@pytest.mark.parametrize("limit", ["MAX_SCAN_PATTERNS", "MAX_SCAN_IGNORE_BYTES"])
def test_the_ignore_files_of_a_folder_are_limited(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(30):
        inner = tmp_path / f"d{i:02d}"
        inner.mkdir()
        for name in ("a", "b.txt"):
            (inner / name).write_text("a word\n")
        (inner / ".gitignore").write_text("a\n" * 100)
    monkeypatch.setattr(path_patterns, limit, 500)
    with caplog.at_level(logging.WARNING):
        paths = Walk(str(tmp_path), Rules()).run([Subtree()]).paths
    assert_limited(paths, 5 if limit == "MAX_SCAN_PATTERNS" else 2, caplog.text)


def assert_limited(paths: list[str], read: int, warnings: str) -> None:
    """Check that only the first ``read`` of 30 ignore files had an effect, and that one warning says so."""
    assert sum(path.endswith("/b.txt") for path in paths) == 30
    assert sum(path.endswith("/a") for path in paths) == 30 - read
    assert warnings.count("too many ignore rules") == 1


def test_brackets_take_space_in_proportion_to_their_pattern() -> None:
    pattern = translate(b"[!a]" * (MAX_PATTERN_BYTES // 4))
    assert pattern is not None
    assert len(pattern.regex) < 10 * MAX_PATTERN_BYTES


@pytest.mark.parametrize("line", [b"*a" * 500_000, b"[!a]" * 250_000, b"?" * 1_000_000], ids=["stars", "sets", "any"])
def test_a_pattern_that_is_longer_than_any_path_matches_nothing(line: bytes) -> None:
    assert not PatternList([line])
