"""Two processes at once: on two sources, on the same source, and a stale holder that wakes up after a takeover."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from driftline.storage.entities import Entity
from driftline.storage.layout import lease_path
from driftline.storage.workspace.workspace import Workspace
from tests.support.oracle import WORDS, assert_in_step, assert_nothing_staged, files_below
from tests.support.processes import ForkedProgram, stands_still
from tests.support.waiting import PATIENCE_SECONDS, ended, until

PROGRAM = Path(__file__).with_name("small_run.py")
LEASE_SECONDS = 1


class Writers:
    """Starts ``driftline index`` runs into one workspace, and stops them when the test ends."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.workspace = folder / "workspace"
        self.processes: list[ForkedProgram] = []

    def tree(self, name: str, files: int) -> Path:
        for number in range(files):
            target = self.folder / name / f"file{number}.txt"
            target.parent.mkdir(exist_ok=True)
            target.write_text("\n".join(WORDS[number : number + 3]))
        return self.folder / name

    def start(self, tree: Path, *more: str, **environment: str) -> ForkedProgram:
        command = [
            "index", str(tree), "--workspace", str(self.workspace), "--entity", f"source:{tree.name}",
            "--model", str(self.model), "--indexes", "none", "--json", *more,
        ]  # fmt: skip
        process = ForkedProgram(PROGRAM, *command, environment=environment)
        self.processes.append(process)
        return process

    def finish(self, process: ForkedProgram) -> dict[str, object]:
        """Return the JSON output, with the exit code as ``exit``."""
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        answer: dict[str, object] = json.loads(output) if output else {"errors": errors}
        return answer | {"exit": process.returncode}

    def wait_for_lease(self, tree: Path, holder: ForkedProgram) -> None:
        lease = self.workspace / lease_path(Entity.parse(f"source:{tree.name}"))
        until(lease.exists, "the lease", unless=lambda: ended(holder))

    def wait_for_pause(self, process: ForkedProgram) -> None:
        known = psutil.Process(process.pid)
        until(lambda: stands_still(known), "the pause", unless=lambda: ended(process))

    def assert_in_step(self, *trees: Path) -> None:
        opened = Workspace.open(str(self.workspace))
        for tree in trees:
            assert_in_step(opened, Entity.parse(f"source:{tree.name}"), files_below(tree))
        assert_nothing_staged(opened)


@pytest.fixture
def writers(tmp_path: Path, model: Path) -> Iterator[Writers]:
    found = Writers(tmp_path, model)
    yield found
    for process in found.processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_two_sources_of_one_tenant_may_be_indexed_concurrently(writers: Writers) -> None:
    trees = [writers.tree("one", 20), writers.tree("two", 24)]
    for _ in range(2):  # in the first round, both also create the workspace and the table
        answers = [writers.finish(process) for process in [writers.start(tree, "--full") for tree in trees]]
        assert [answer["exit"] for answer in answers] == [0, 0], answers
        writers.assert_in_step(*trees)


def test_a_second_run_of_a_source_names_the_lease_holder(writers: Writers) -> None:
    tree = writers.tree("one", 12)
    first = writers.start(tree, PAUSE="before 1")
    writers.wait_for_pause(first)
    second = writers.finish(writers.start(tree))
    first.send_signal(signal.SIGCONT)
    assert (second["exit"], second["error"]) == (3, "lease_held")
    answer = writers.finish(first)
    assert answer["exit"] == 0
    for part in (f"Run {answer['run_id']}", f"process {first.pid}", f"host {os.uname().nodename}"):
        assert part in str(second["message"])
    writers.assert_in_step(tree)


def test_a_second_run_of_a_source_waits_if_allowed(writers: Writers) -> None:
    tree = writers.tree("one", 12)
    first = writers.start(tree, DELAY_SECONDS="0.7", LEASE_SECONDS=str(PATIENCE_SECONDS))
    writers.wait_for_lease(tree, first)
    (tree / "late.txt").write_text("word99")
    second = writers.finish(writers.start(tree, "--wait", str(PATIENCE_SECONDS)))
    assert writers.finish(first)["exit"] == 0
    assert second["exit"] == 0, second
    writers.assert_in_step(tree)


@pytest.mark.parametrize("pause", ["before 1", "before 2", "after 2"])
def test_a_stale_lease_holder_publishes_nothing(writers: Writers, pause: str) -> None:
    tree = writers.tree("one", 12)
    sleeper = writers.start(tree, PAUSE=pause, LEASE_SECONDS=str(LEASE_SECONDS))
    writers.wait_for_pause(sleeper)
    for number in range(0, 12, 2):
        (tree / f"file{number}.txt").unlink()
    (tree / "file1.txt").write_bytes(b"\0")
    (tree / "file3.txt").write_text("word77\nword78")
    successor = writers.finish(writers.start(tree, "--wait", str(PATIENCE_SECONDS)))
    assert successor["exit"] == 0, successor
    sleeper.send_signal(signal.SIGCONT)
    answer = writers.finish(sleeper)
    assert (answer["exit"], answer["error"]) == (3, "lease_lost"), answer

    opened, entity = Workspace.open(str(writers.workspace)), Entity.parse("source:one")
    files = files_below(tree)
    del files["file1.txt"]  # binary
    assert_in_step(opened, entity, files)
    last = writers.finish(writers.start(tree))
    assert last["exit"] == 0
    assert_in_step(opened, entity, files)
    assert_nothing_staged(opened)
