"""Ignore files mean what they mean to git: random trees and patterns, each compared with ``git check-ignore``."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from driftline.tasks.scanning.ignore import Rules
from driftline.tasks.scanning.walk import Subtree, Walk

TREES = 2_000
NAMES = (
    *("a", "b", "c", "ab", "abc", "foo", "data", "_a", "-", "!a", "#a", "]", "[a]", "a b", "a ", "a\t", "\ta", "\\a"),
    *("é", "日本", "a.py", "x.log", ".hidden", "A", "0", "^", "a*", "**", "{a,b}", "\x0b", "\x7f"),
)
PIECES = (
    *(
        "a",
        "b",
        "c",
        "ab",
        "foo",
        "data",
        "_",
        "é",
        "日",
        "*",
        "**",
        "***",
        "?",
        "/",
        "/**/",
        "**/",
        "/**",
        "\\",
        "\\/",
    ),
    *("[ab]", "[!a]", "[^a]", "[a-c]", "[!_]*", "[]]", "[!]]", "[]-a]", "[a-", "[", "]", "[[:alpha:]]", "[[:space:]]"),
    *("[[:punct:]]", "[[:odd:]]", "[[:alpha:", "[[:]", "[é]", "[a/]", "[\\]]", "[\\", "[--0]", "[b-a]", "[[.a.]]"),
    *(" ", "\t", "\\ ", "!", "\\!", "#", "\\#", ".", "*.py", "*.log", "-", "^", "{a,b}", "$", "+", "(", "|", "\x00"),
)
NO_CONFIGURATION = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


def random_pattern(generator: random.Random) -> str:
    pattern = "".join(generator.choices(PIECES, k=generator.randint(1, 5)))
    if generator.random() < 0.2:
        pattern = "!" + pattern
    return pattern + generator.choice(("", "", "", "/", " ", "\r", "/ ", "//"))


def write_tree(root: Path, generator: random.Random) -> list[str]:
    """Make a tree of a few files with one or two ignore files; returns the paths of its files."""
    root.mkdir()
    files = []
    for _ in range(generator.randint(4, 10)):
        names = generator.choices(NAMES, k=generator.randint(1, 4))
        path = root.joinpath(*names)
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            files.append("/".join(names))
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    for folder in {root, generator.choice([root, *folders])}:
        lines = [random_pattern(generator) for _ in range(generator.randint(1, 4))]
        text = generator.choice(("", "\ufeff")) + "\n".join(lines) + generator.choice(("", "\n"))
        (folder / ".gitignore").write_bytes(text.encode())
    return files


def ignored_by_git(root: Path, paths: list[str]) -> set[str]:
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin"]
    asked = "\0".join(paths).encode()
    run = subprocess.run(
        command, cwd=root, input=asked, capture_output=True, check=False, env=os.environ | NO_CONFIGURATION
    )
    assert run.returncode in (0, 1), run.stderr
    return set(run.stdout.decode().split("\0")[:-1])


@pytest.mark.parametrize("seed", range(3))
def test_random_trees_are_scanned_as_git_sees_them(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    files = [f"t{i}/{path}" for i in range(TREES // 3) for path in write_tree(tmp_path / f"t{i}", generator)]
    ignored = ignored_by_git(tmp_path, files)
    kept = set(Walk(str(tmp_path), Rules(skip_secrets=False)).run([Subtree()]).paths)
    wrong = sorted(path for path in files if (path in kept) == (path in ignored))
    tree = wrong[0].partition("/")[0] if wrong else ""
    rules = {str(path): path.read_bytes() for path in (tmp_path / tree).rglob(".gitignore")} if wrong else {}
    assert not wrong, f"{len(wrong)} files differ from git, such as {wrong[:5]!r}; the first is under {rules}"
    assert len(ignored) > len(files) / 20
