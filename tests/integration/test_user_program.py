"""The program of a user in a separate folder runs, and strict type checkers accept it."""

from __future__ import annotations

import shutil
import subprocess
import sys
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mypy's cache of the packages, because reading them takes most of its time."""
    return tmp_path_factory.getbasetemp() / "mypy-cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds the program and nothing else."""
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


def test_strict_mypy_accepts_the_program(folder: Path, cache: Path) -> None:
    assert mypy(folder, cache) == ""


def test_strict_pyright_accepts_the_program(folder: Path) -> None:
    assert pyright(folder) == ""


def test_type_checkers_refuse_mistakes(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    for printed in (mypy(tmp_path, cache), pyright(tmp_path)):
        for number in (4, 5, 6, 7):
            assert f"mistakes.py:{number}:" in printed
