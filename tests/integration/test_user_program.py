"""A user's program in a separate folder runs, and a strict type checker accepts it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.type_checkers import PROGRAM, assert_checks, pyright

pytestmark = pytest.mark.xdist_group("type checkers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that contains only the program."""
    location = tmp_path / "program"
    location.mkdir()
    shutil.copy(PROGRAM, location)
    return location


def test_the_example_program_runs(folder: Path, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "tree" / "guides").mkdir(parents=True)
    (tmp_path / "tree" / "guides" / "parse.md").write_text("# Parse\na parser of text\n")
    (tmp_path / "tree" / "other.md").write_text("a lexer\n")
    arguments = [tmp_path / "tree", tmp_path / "workspace", tiny_model]
    ended = subprocess.run(
        [sys.executable, PROGRAM.name, *arguments], check=False, cwd=folder, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    printed = ended.stdout.splitlines()
    assert any(line.startswith("['guides/parse.md:2 ") for line in printed)
    assert "[('guides/parse.md', True)]" in printed
    assert "['alpha']" in printed
    assert "['fact 0', 'fact 1', 'fact 2', 'lunch', 'plan']" in printed
    assert printed[-1] == "workspace_not_found"


def test_pyright_accepts_the_program_against_the_checkout_and_refuses_mistakes(tmp_path: Path) -> None:
    """mypy checks it against the wheel: tests/integration/test_packaging.py."""
    assert_checks(pyright, tmp_path, sys.executable)
