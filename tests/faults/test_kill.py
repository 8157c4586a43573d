"""kill -9 at any moment: the next runs complete the index."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from driftline.storage.entities import Entity
from driftline.storage.workspace.workspace import Workspace
from tests.support.oracle import (
    WORDS,
    assert_in_step,
    assert_nothing_staged,
    files_below,
    indexed_rows,
    save_tiny_model,
)
from tests.support.processes import runs

PROGRAM = Path(__file__).with_name("small_run.py")
ENTITY = Entity.parse("source:tree")
FILES = 48
KILLS = 20


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


def command(tree: Path, workspace: Path, model: Path, *more: str) -> list[str]:
    return [
        sys.executable, str(PROGRAM), "index", str(tree), "--workspace", str(workspace), "--entity", "source:tree",
        "--model", str(model), "--indexes", "none", "--json", *more,
    ]  # fmt: skip


def change_some(tree: Path, chance: random.Random) -> None:
    """Rewrite, delete or create a third of the files; content comes back now and then, racy mtimes included."""
    tree.mkdir(exist_ok=True)
    for number in chance.sample(range(FILES), FILES // 3):
        target = tree / f"{number % 3}" / f"file{number}.txt"
        target.parent.mkdir(exist_ok=True)
        if target.exists() and chance.random() < 0.3:
            target.unlink()
        else:
            target.write_text("\n".join(chance.choices(WORDS[:20], k=chance.randrange(4))))


@pytest.mark.timeout(300)  # 40 s on a quiet machine
def test_runs_killed_at_random_moments_leave_nothing_that_a_last_run_does_not_mend(
    tmp_path: Path, tiny_model: Path
) -> None:
    chance = random.Random(20)
    tree, workspace, fresh = tmp_path / "tree", tmp_path / "workspace", tmp_path / "fresh"
    change_some(tree, chance)
    started = time.monotonic()
    subprocess.run(command(tree, fresh, tiny_model), check=True, capture_output=True, timeout=60)
    duration = time.monotonic() - started

    killed = 0
    for _ in range(KILLS):
        change_some(tree, chance)
        process = subprocess.Popen(
            command(tree, workspace, tiny_model), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # The first third of a run is spent on imports.
        try:
            process.wait(duration * chance.uniform(0.3, 1.1))
        except subprocess.TimeoutExpired:
            process.kill()
            killed += process.wait() == -signal.SIGKILL
    assert killed >= KILLS // 2

    last = subprocess.run(command(tree, workspace, tiny_model), check=False, capture_output=True, text=True, timeout=60)
    assert last.returncode == 0, last.stderr
    opened = Workspace.open(str(workspace))
    assert_in_step(opened, ENTITY, files_below(tree))
    assert_nothing_staged(opened)
    subprocess.run(command(tree, fresh, tiny_model, "--full"), check=True, capture_output=True, timeout=60)
    assert indexed_rows(opened, ENTITY) == indexed_rows(Workspace.open(str(fresh)), ENTITY)


def test_a_worker_killed_in_the_middle_of_a_run_is_made_good(tmp_path: Path, tiny_model: Path) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "workspace"
    for number in range(200):
        target = tree / str(number % 7) / f"file{number}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(WORDS[number : number + 20]))
    environment = os.environ | {"DELAY_SECONDS": "0.2", "BATCH_DOCUMENTS": "10"}
    process = subprocess.Popen(
        command(tree, workspace, tiny_model, "--executor", "local", "--workers", "2"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(workspace.rglob("_index_delta_*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [child for child in psutil.Process(process.pid).children() if runs(child, "spawn_main")]
    assert len(workers) == 2
    workers[0].kill()
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert json.loads(output)["sources"][0]["new"] == 200
    opened = Workspace.open(str(workspace))
    assert_in_step(opened, ENTITY, files_below(tree))
    assert_nothing_staged(opened)
