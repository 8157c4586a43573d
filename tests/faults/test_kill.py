"""kill -9 at any moment: the next runs complete the index."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import psutil
import pytest

from driftline.flows.commands.main import _stop_on_signals
from driftline.flows.runs.source_run import interrupt_deferred
from driftline.storage.entities import Entity
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import peek
from driftline.storage.workspace.workspace import Workspace
from tests.support.oracle import (
    WORDS,
    assert_in_step,
    assert_nothing_staged,
    files_below,
    indexed_rows,
)
from tests.support.processes import ForkedProgram, runs, stands_still
from tests.support.waiting import PATIENCE_SECONDS, ended, until

PROGRAM = Path(__file__).with_name("small_run.py")
ENTITY = Entity.parse("source:tree")
FILES = 48
KILLS = 20


def command(tree: Path, workspace: Path, model: Path, *more: str) -> list[str]:
    return [
        "index", str(tree), "--workspace", str(workspace), "--entity", "source:tree", "--model", str(model),
        "--indexes", "none", "--json", *more,
    ]  # fmt: skip


def finished(command: list[str]) -> dict[str, Any]:
    """Run the program to completion and return its output."""
    process = ForkedProgram(PROGRAM, *command)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    answer: dict[str, Any] = json.loads(output)
    return answer


def change_some(tree: Path, chance: random.Random) -> None:
    """Rewrite, delete or create a third of the files; sometimes restore old content, also with racy mtimes."""
    tree.mkdir(exist_ok=True)
    for number in chance.sample(range(FILES), FILES // 3):
        target = tree / f"{number % 3}" / f"file{number}.txt"
        target.parent.mkdir(exist_ok=True)
        if target.exists() and chance.random() < 0.3:
            target.unlink()
        else:
            target.write_text("\n".join(chance.choices(WORDS[:20], k=chance.randrange(4))))


def run_killed_after(seconds: float, command: list[str], workspace: Path) -> float | None:
    """Start a run and kill it ``seconds`` after it took its lease. Return its duration if it ended before that."""
    lease = workspace / lease_path(ENTITY)
    before = lease.read_bytes() if lease.exists() else b""
    process = ForkedProgram(PROGRAM, *command)
    until(
        lambda: lease.exists() and lease.read_bytes() != before, "the lease", unless=lambda: ended(process), poll=2e-3
    )
    started = time.monotonic()
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return time.monotonic() - started if process.returncode == 0 else None


def test_a_last_run_repairs_what_runs_killed_at_random_moments_left(tmp_path: Path, model: Path) -> None:
    chance = random.Random(20)
    tree, workspace, fresh = tmp_path / "tree", tmp_path / "workspace", tmp_path / "fresh"
    change_some(tree, chance)
    seconds = run_killed_after(PATIENCE_SECONDS, command(tree, fresh, model), fresh)
    assert seconds is not None

    kills = attempts = 0
    while attempts < KILLS or kills < KILLS // 2:
        assert attempts < 10 * KILLS, "runs end before they are killed"
        change_some(tree, chance)
        ended_after = run_killed_after(seconds * chance.uniform(0.0, 1.1), command(tree, workspace, model), workspace)
        seconds, attempts = ended_after or seconds, attempts + 1  # at the machine's current speed
        kills += ended_after is None

    finished(command(tree, workspace, model))
    opened = Workspace.open(str(workspace))
    assert_in_step(opened, ENTITY, files_below(tree))
    assert_nothing_staged(opened)
    finished(command(tree, fresh, model, "--full"))
    assert indexed_rows(opened, ENTITY) == indexed_rows(Workspace.open(str(fresh)), ENTITY)


def test_the_batch_of_a_killed_worker_is_repeated(tmp_path: Path, model: Path) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "workspace"
    for number in range(200):
        target = tree / str(number % 7) / f"file{number}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(WORDS[number : number + 20]))
    arguments = command(tree, workspace, model, "--executor", "local", "--workers", "2")
    process = ForkedProgram(PROGRAM, *arguments, environment={"PAUSE": "after 1", "BATCH_DOCUMENTS": "10"})
    coordinator = psutil.Process(process.pid)
    until(lambda: stands_still(coordinator), "the first commit", unless=lambda: ended(process))
    # Of the first five files, one marks the commit and at most three are batches of one worker.
    written = f"{workspace}/*/_tables/line_*/data/*"
    until(lambda: len(glob(written)) >= 5, "a batch of each worker")
    workers = [child for child in coordinator.children() if runs(child, "spawn_main")]
    assert len(workers) == 2
    workers[0].kill()
    coordinator.resume()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert json.loads(output)["sources"][0]["new"] == 200
    opened = Workspace.open(str(workspace))
    assert_in_step(opened, ENTITY, files_below(tree))
    assert_nothing_staged(opened)
    assert peek(opened.objects, lease_path(ENTITY)).failures  # makes cleanup look for the killed worker's files


@pytest.mark.parametrize("on_interrupt", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def test_a_first_sigterm_waits_for_the_commit_and_a_second_does_not(on_interrupt: Any) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    reached: list[str] = []

    @interrupt_deferred()
    def commit(*places: str) -> None:
        for place in places:
            signal.raise_signal(signal.SIGTERM)
            reached.append(place)

    try:
        signal.signal(signal.SIGINT, on_interrupt)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _stop_on_signals()
        handlers = {number: signal.getsignal(number) for number in before}
        with pytest.raises(KeyboardInterrupt):
            commit("the end")
        with pytest.raises(KeyboardInterrupt):
            commit("the middle", "the end")
        assert handlers == {number: signal.getsignal(number) for number in before}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert reached == ["the end", "the middle"]


@pytest.mark.parametrize(
    ("executor", "number"), [("inline", signal.SIGINT), ("local", signal.SIGINT), ("local", signal.SIGTERM)]
)
def test_an_interrupted_run_reports_its_commits_and_the_next_one_continues(
    tmp_path: Path, model: Path, executor: str, number: signal.Signals
) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "workspace"
    for file in range(200):
        target = tree / str(file % 7) / f"file{file}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(WORDS[file : file + 20]))
        target.with_suffix(".bin").write_bytes(b"\0\1")  # read, but binary: not a document
    arguments = command(tree, workspace, model, "--executor", executor, "--workers", "2")
    process = ForkedProgram(
        PROGRAM, *arguments, environment={"PAUSE": "after 2", "BATCH_DOCUMENTS": "10"}, session=True
    )
    coordinator = psutil.Process(process.pid)
    until(lambda: stands_still(coordinator), "the second commit", unless=lambda: ended(process))
    workers = coordinator.children(recursive=True)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)  # as a scheduler does
    coordinator.resume()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, json.loads(output)["error"]) == (3, "interrupted"), errors
    assert "Traceback" not in errors
    psutil.wait_procs(workers, PATIENCE_SECONDS)
    assert not any(map(psutil.Process.is_running, workers))
    kept = re.search(r"committed (\d+) documents with .* are kept: run the same command again", output)
    assert kept is not None, output

    # Any executor may continue; two workers take six seconds to start.
    (source,) = finished(command(tree, workspace, model, "--executor", "inline"))["sources"]
    assert source["new"] < 200
    assert source["new"] + source["unchanged"] == 200
    assert source["unchanged"] == int(kept[1])
    opened = Workspace.open(str(workspace))
    texts = {path: data for path, data in files_below(tree).items() if path.endswith(".txt")}
    assert_in_step(opened, ENTITY, texts)
    assert_nothing_staged(opened)
