"""A run interrupted at each of its steps: the next run completes the index."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.workspace.workspace import Workspace
from tests.faults.faults import Crash, Faults, Mode, injected, steps
from tests.support.oracle import assert_in_step, assert_nothing_staged, files_below

ENTITY = Entity.parse("source:tree")
OLD_NS = 1_600_000_000_000_000_000
FIRST = {
    "changed.txt": "word1 word2\nword3\n",
    "gone.txt": "word4\nword5\n",
    "moved.txt": "word6\nword7\n",
    "same.txt": "word8\n",
    "sub/touched.txt": "word9\nword10\n",
    "shrunk.txt": "word11\nword12\nword13\n",
}
LATER = {
    "changed.txt": "word20\nword1 word2\nword21\n",
    "sub/moved.txt": FIRST["moved.txt"],
    "same.txt": FIRST["same.txt"],
    "sub/touched.txt": FIRST["sub/touched.txt"],
    "shrunk.txt": "",
    "new.txt": "word22\nword23\n",
}


def write_tree(root: Path, files: dict[str, str], mtime_ns: int) -> None:
    """Make ``root`` hold exactly ``files``; callers use a different mtime for each version of the tree."""
    shutil.rmtree(root, ignore_errors=True)
    for path, text in files.items():
        write_file(root / path, text, mtime_ns)


def write_file(target: Path, text: str, mtime_ns: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    os.utime(target, ns=(mtime_ns, mtime_ns))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split a small run into several commits; skip fsync, which only protects against power loss."""
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCH_DOCUMENTS", 5)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCHES_PER_COMMIT", 1)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def index(tree: Path, workspace: str, model: Path, **options: Any) -> None:
    index_sources(
        IndexRequest(
            (str(tree),), workspace, entity="source:tree", model=str(model), workers=1, indexes="none", **options
        )
    )


def again(tree: Path) -> None:
    """Keep the interrupted run's tree."""


def back_to_old(tree: Path) -> None:
    """Restore the tree from before the interrupted run, mtimes included."""
    write_tree(tree, FIRST, OLD_NS)


def vanished(tree: Path) -> None:
    """Delete the files that the interrupted run should have indexed."""
    for name in ("changed.txt", "new.txt", "sub/moved.txt"):
        (tree / name).unlink()


THEN = (again, back_to_old, vanished)
CASES = [
    *(pytest.param(Mode.CRASH_AFTER, (then,), id=f"crash, then {then.__name__}") for then in THEN),
    pytest.param(Mode.LOST_ACKNOWLEDGEMENT, THEN, id="lost acknowledgement"),
    pytest.param(Mode.FAIL, THEN, id="failure"),
]


@pytest.mark.parametrize(("mode", "then"), CASES)
@pytest.mark.usefixtures("small_batches")
def test_a_run_that_is_interrupted_anywhere_is_completed_by_the_next(
    tmp_path: Path, model: Path, mode: Mode, then: Sequence[Callable[[Path], None]]
) -> None:
    tree, template, workspace = (tmp_path / name for name in ("tree", "template", "workspace"))
    write_tree(tree, FIRST, OLD_NS)
    index(tree, str(template), model)

    def prepare() -> str:
        shutil.rmtree(workspace, ignore_errors=True)
        shutil.copytree(template, workspace)
        write_tree(tree, LATER, OLD_NS + 10**9)
        return str(workspace)

    interrupt_everywhere(tree, model, prepare, mode, then)


@pytest.mark.parametrize("mode", [Mode.CRASH_AFTER, Mode.FAIL])
@pytest.mark.usefixtures("small_batches")
def test_a_first_run_that_is_interrupted_anywhere_is_completed_by_the_next(
    tmp_path: Path, model: Path, mode: Mode
) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "workspace"

    def prepare() -> str:
        shutil.rmtree(workspace, ignore_errors=True)
        write_tree(tree, LATER, OLD_NS)
        return str(workspace)

    interrupt_everywhere(tree, model, prepare, mode, (again, vanished))


@pytest.mark.parametrize(
    ("mode", "operations"), [(Mode.CRASH_AFTER, "_transact|_index_delta_"), (Mode.LOST_ACKNOWLEDGEMENT, "_transact")]
)
@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_run_into_a_bucket_is_completed_by_the_next(
    tmp_path: Path, model: Path, s3_bucket: str, mode: Mode, operations: str
) -> None:
    """All interruptions share one bucket; each run continues from the state that the last one left."""
    tree, flips = tmp_path / "tree", count()

    def prepare() -> str:
        flip = next(flips)
        write_tree(tree, FIRST if flip % 2 else LATER, OLD_NS + flip * 10**9)
        return s3_bucket

    write_tree(tree, FIRST, OLD_NS)
    index(tree, s3_bucket, model)
    interrupt_everywhere(tree, model, prepare, mode, (again,), only=operations)


def interrupt_everywhere(
    tree: Path,
    model: Path,
    prepare: Callable[[], str],
    mode: Mode,
    then: Sequence[Callable[[Path], None]],
    *,
    only: str = "",
) -> None:
    """Fail each step of a run in turn; after each, each of ``then`` changes the tree."""

    def attempt(faults: Faults) -> str:
        uri = prepare()
        with injected(faults):
            try:
                index(tree, uri, model)
            except (Crash, DriftlineError):
                return uri
        assert_in_step(Workspace.open(uri), ENTITY, files_below(tree))
        return uri

    undisturbed = Faults()
    attempt(undisturbed)
    assert any("_transact" in operation for operation in undisturbed.log)
    for at in steps(undisturbed.log, mode):
        operation = undisturbed.log[at]
        if not re.search(only, operation):
            continue
        outcome = f"{mode} operation {at}, {operation}"
        try:
            uri = attempt(Faults(mode, at))
            then[at % len(then)](tree)
            index(tree, uri, model)
            assert_in_step(Workspace.open(uri), ENTITY, files_below(tree))
            assert_nothing_staged(Workspace.open(uri))
        except Exception as error:
            raise AssertionError(f"after {outcome}") from error


@pytest.mark.parametrize("names", [("one",), ("one", "two"), tuple(f"small{number}" for number in range(6))])
@pytest.mark.parametrize("stopped_in", ["driftline.flows.runs.index._maintain", "driftline.flows.runs.index.maintain"])
def test_the_next_run_builds_the_indexes_of_a_run_that_stopped_before(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, stopped_in: str, names: Sequence[str]
) -> None:
    for name in names:
        write_file(tmp_path / name / "a.txt", "word1\nword2\n", OLD_NS)
    workspace = str(tmp_path / "workspace")

    def run() -> set[str]:
        trees = tuple(str(tmp_path / name) for name in names)
        return set(index_sources(IndexRequest(trees, workspace, model=str(model), workers=1)).indexes)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(stopped_in, stop)
        for _ in range(2):  # the second run changes nothing
            with pytest.raises(KeyboardInterrupt):
                run()
    assert "text_idx" in run()
    monkeypatch.setattr(stopped_in, lambda *_, **__: pytest.fail("the indexes are current"))
    assert run() == set()


@pytest.mark.parametrize("scope", ["none", "text"])
def test_only_a_run_of_all_indexes_completes_those_that_were_left_out(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, scope: Literal["none", "text"]
) -> None:
    write_file(tmp_path / "tree/a.txt", "word1\nword2\n", OLD_NS)
    some = IndexRequest((str(tmp_path / "tree"),), str(tmp_path / "workspace"), model=str(model), indexes=scope)
    index_sources(some)
    monkeypatch.setattr("driftline.flows.runs.index.maintain", lambda *_, **__: ["maintained"])
    for request, changed in ((some, []), (replace(some, indexes="all"), ["maintained"]), (some, [])):
        assert index_sources(request).indexes == changed
