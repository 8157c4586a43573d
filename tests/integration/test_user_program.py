"""A user's program in a separate folder runs, and strict type checkers accept it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.type_checkers import mypy, pyright

pytestmark = pytest.mark.xdist_group("type checkers")

PROGRAM = Path(__file__).parents[1] / "support" / "user_program.py"
MISTAKES = """
import driftline

driftline.serach("workspace", "query")
driftline.index("folder", workspace="workspace", max_delete_fractoin=0.5)
driftline.search("workspace", "query", mode="hybird")
driftline.grep("query", "file").results[0].line.upper()
"""


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


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_strict_type_checker_accepts_the_program_and_refuses_mistakes(
    checker: Callable[..., str], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "mistakes.py").write_text(MISTAKES)
    # mypy's cache for the packages is shared: reading the packages takes most of its time.
    cache = [tmp_path_factory.getbasetemp() / "mypy-cache"] if checker is mypy else []
    printed = checker(folder, *cache)
    for number in (4, 5, 6, 7):
        assert f"mistakes.py:{number}:" in printed
    assert PROGRAM.name not in printed
