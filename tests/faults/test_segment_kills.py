"""Processes that die while index segments are built: the same or the next run completes them and leaves no garbage."""

from __future__ import annotations

import json
import random
import signal
from contextlib import suppress
from glob import glob
from pathlib import Path

import psutil
import pytest

from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.storage.entities import Entity
from driftline.storage.lines.indexes import COLUMNS, coverage
from driftline.storage.workspace.workspace import Workspace
from tests.support.oracle import WORDS, assert_in_step, files_below
from tests.support.processes import ForkedProgram, runs
from tests.support.waiting import PATIENCE_SECONDS, until

PROGRAM = Path(__file__).with_name("small_run.py")
ENTITY = Entity.parse("source:tree")
FILES, LINES = 60, 20
KILLS = 8


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    write(folder, 0)
    return folder


def write(tree: Path, turn: int) -> None:
    for number in range(FILES):
        chosen = [WORDS[(turn + number * 7 + line) % len(WORDS)] for line in range(LINES)]
        (tree / f"{number}.txt").write_text("".join(f"{word}\n" for word in chosen))


def started(tree: Path, workspace: Path, model: Path, *more: str) -> ForkedProgram:
    command = ("index", str(tree), "--workspace", str(workspace), "--entity", "source:tree", "--model", str(model))
    return ForkedProgram(
        PROGRAM, *command, "--json", *more, environment={"SEGMENT_ROWS": "150", "BATCH_DOCUMENTS": "6"}
    )


def segments(workspace: Path) -> set[str]:
    # glob, unlike Path.glob, passes over a folder that the run removes meanwhile
    return {Path(found).name for found in glob(f"{workspace}/*/_tables/*.lance/_indices/*")}


def wait_for_segments(process: ForkedProgram, workspace: Path, known: set[str], count: int) -> None:
    """Wait until the run has started to write ``count`` more segments or has ended."""
    until(lambda: len(segments(workspace) - known) >= count or process.poll() is not None, "segments", poll=0.001)


def assert_whole(workspace: Path, tree: Path) -> None:
    """Assert that the index is up to date and has all search indexes, and that cleanup leaves only published
    segments.
    """
    opened = Workspace.open(str(workspace))
    assert_in_step(opened, ENTITY, files_below(tree))
    clean_workspace(CleanupRequest(str(workspace), 0.0, False))
    table = opened.lines(ENTITY)
    found = coverage(table.open())
    assert set(found) == set(COLUMNS)
    assert all(each.unindexed_rows <= 6 for each in found.values())
    tracked = {path.split("/")[1] for path in table.tracked_files() if path.startswith("_indices/")}
    files = {path.split("/")[0] for path in table.index_files()}  # an empty folder is not an object
    assert files == tracked


def test_a_run_killed_while_it_builds_segments_is_completed_by_the_next(
    tmp_path: Path, tree: Path, model: Path
) -> None:
    workspace, chance, killed = tmp_path / "workspace", random.Random(5), 0
    for turn in range(1, KILLS + 1):
        write(tree, turn)
        known = segments(workspace)
        process = started(tree, workspace, model)
        wait_for_segments(process, workspace, known, chance.randrange(1, 9))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed >= KILLS // 2
    write(tree, KILLS + 1)
    last = started(tree, workspace, model)
    _, errors = last.communicate(timeout=PATIENCE_SECONDS)
    assert last.returncode == 0, errors
    assert_whole(workspace, tree)


def test_segments_of_killed_workers_are_built_again(tmp_path: Path, tree: Path, model: Path) -> None:
    workspace = tmp_path / "workspace"
    process = started(tree, workspace, model, "--executor", "local", "--workers", "2")
    wait_for_segments(process, workspace, set(), 1)
    workers = [child for child in psutil.Process(process.pid).children() if runs(child, "spawn_main")]
    assert len(workers) == 2
    workers[0].kill()
    wait_for_segments(process, workspace, set(), 5)
    with suppress(psutil.NoSuchProcess):  # if this test is scheduled so late that the run has ended
        workers[1].kill()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert json.loads(output)["sources"][0]["new"] == FILES
    assert_whole(workspace, tree)
