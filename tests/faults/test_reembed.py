"""Re-embedding with another model: interrupted anywhere, abandoned, and mixed with ordinary runs."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.remove import remove_source
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, FingerprintMismatch
from driftline.storage.workspace.workspace import Workspace
from tests.faults.faults import Crash, Faults, Mode, injected, steps
from tests.support.oracle import (
    WORDS,
    assert_in_step,
    assert_nothing_staged,
    files_below,
    indexed_rows,
    save_tiny_model,
)
from tests.support.searches import search

ENTITY = Entity.parse("source:tree")


class Mover:
    """One source in one workspace, and two models."""

    def __init__(self, folder: Path, models: tuple[Path, Path]) -> None:
        self.tree, self.folder = folder / "tree", folder / "workspace"
        self.old, self.new = map(str, models)
        self.write(**{f"f{number}": WORDS[number] for number in range(7)})
        self.run()

    def write(self, **files: str) -> None:
        self.tree.mkdir(exist_ok=True)
        for name, text in files.items():
            (self.tree / f"{name}.txt").write_text(text)

    def run(self, model: str | None = None, tree: Path | None = None, **options: Any) -> None:
        index_sources(
            IndexRequest(
                (str(tree or self.tree),), str(self.folder), entity=f"source:{(tree or self.tree).name}",
                model=model or self.old, workers=1, indexes="none", **options,
            )
        )  # fmt: skip

    def move(self, **options: Any) -> None:
        self.run(self.new, reembed=True, **options)

    def give_up_half_way(self) -> None:
        """Re-embed, and crash in the transaction after the first lines commit."""
        with injected(CrashAtTransaction(3)), pytest.raises(Crash):
            self.move()
        assert self.opened().config.model == self.old
        assert len(self.opened().line_tables(ENTITY)) == 2

    def opened(self) -> Workspace:
        return Workspace.open(str(self.folder))

    def assert_in_step(self, model: str) -> None:
        opened = self.opened()
        assert opened.config.model == model
        assert_in_step(opened, ENTITY, files_below(self.tree))
        assert_nothing_staged(opened)


class CrashAtTransaction(Faults):
    def __init__(self, number: int) -> None:
        super().__init__(Mode.CRASH_AFTER)
        self.number = number

    def perform(self, name: str, operation: Any, error: type[Exception]) -> Any:
        if name.startswith("_transact") and sum("_transact" in done for done in self.log) == self.number - 1:
            self.at = len(self.log)
        return super().perform(name, operation, error)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return save_tiny_model(folder / "old"), save_tiny_model(folder / "new", seed=8, dim=24)


@pytest.fixture
def mover(tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Mover:
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCH_DOCUMENTS", 3)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCHES_PER_COMMIT", 1)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    return Mover(tmp_path, models)


def test_another_model_is_refused_without_reembed_and_accepted_with_it(mover: Mover) -> None:
    with pytest.raises(FingerprintMismatch):
        mover.run(mover.new)
    mover.assert_in_step(mover.old)
    mover.move()
    mover.assert_in_step(mover.new)
    (hit,) = search(mover.opened(), WORDS[3], top_k=1).results
    assert (hit.path, hit.text) == ("f3.txt", WORDS[3])
    with pytest.raises(FingerprintMismatch):
        mover.run(mover.old)


def test_an_interrupted_reembedding_serves_the_old_table_and_is_finished_by_the_next_run(
    mover: Mover, tmp_path: Path
) -> None:
    template = tmp_path / "template"
    shutil.copytree(mover.folder, template)
    before = indexed_rows(mover.opened(), ENTITY)
    undisturbed = Faults()
    with injected(undisturbed):
        mover.move()
    mover.assert_in_step(mover.new)
    for at in steps(undisturbed.log, Mode.CRASH_AFTER):
        operation = undisturbed.log[at]
        shutil.rmtree(mover.folder)
        shutil.copytree(template, mover.folder)
        mode = list(Mode)[at % len(Mode)]
        try:
            with injected(Faults(mode, at)), suppress(Crash, DriftlineError):
                mover.move()
            opened = mover.opened()
            if opened.config.model == mover.old:
                assert indexed_rows(opened, ENTITY) == before
                assert search(opened, WORDS[3], top_k=1).results[0].text == WORDS[3]
                mover.move()
            mover.run(mover.new)
            mover.assert_in_step(mover.new)
        except Exception as error:
            raise AssertionError(f"after {mode} operation {at}, {operation}") from error


def test_documents_deleted_after_an_abandoned_reembedding_stay_deleted_in_the_next(mover: Mover) -> None:
    mover.give_up_half_way()
    (mover.tree / "f0.txt").unlink()
    (mover.tree / "f1.txt").write_bytes(b"\0")
    mover.run()
    (mover.tree / "f1.txt").unlink()
    mover.run()
    mover.assert_in_step(mover.old)
    mover.write(f1="word50")
    mover.move()
    mover.assert_in_step(mover.new)


def test_documents_deleted_by_an_abandoned_reembedding_leave_the_old_table(mover: Mover) -> None:
    mover.give_up_half_way()
    (mover.tree / "f0.txt").unlink()
    (mover.tree / "f6.txt").unlink()
    with injected(CrashAtTransaction(3)), pytest.raises(Crash):
        mover.move()
    mover.write(f6="word60", f7="word61")
    mover.run()
    mover.assert_in_step(mover.old)


def test_the_old_table_serves_until_every_source_has_moved(mover: Mover, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "o.txt").write_text("word70")
    mover.run(tree=other)
    mover.move()
    assert mover.opened().config.model == mover.old
    assert search(mover.opened(), "word3", top_k=1).results[0].text == "word3"
    mover.run(mover.new, tree=other, reembed=True)
    mover.assert_in_step(mover.new)
    assert_in_step(mover.opened(), Entity.parse("source:other"), files_below(other))


def test_a_source_removed_during_a_reembedding_is_in_no_table(mover: Mover, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "o.txt").write_text("word70")
    mover.run(tree=other)
    mover.give_up_half_way()
    remove_source(str(mover.folder), str(ENTITY))
    for table in mover.opened().line_tables(ENTITY):
        assert table.paths(ENTITY) == set()
    mover.run(mover.new, tree=other, reembed=True)
    assert mover.opened().config.model == mover.new
    assert indexed_rows(mover.opened(), ENTITY) == []


def test_a_removed_source_can_be_indexed_again(mover: Mover) -> None:
    report = remove_source(str(mover.folder), str(ENTITY))
    assert (report.documents, report.lines) == (7, 7)
    assert list(mover.opened().sources()) == []
    assert indexed_rows(mover.opened(), ENTITY) == []
    assert search(mover.opened(), "word3").results == ()
    mover.run()
    mover.assert_in_step(mover.old)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_removal_that_is_interrupted_anywhere_is_finished_by_the_next(
    mover: Mover, tmp_path: Path, mode: Mode
) -> None:
    template = tmp_path / "template"
    shutil.copytree(mover.folder, template)
    undisturbed = Faults()
    with injected(undisturbed):
        remove_source(str(mover.folder), str(ENTITY))
    for at in steps(undisturbed.log, mode):
        operation = undisturbed.log[at]
        shutil.rmtree(mover.folder)
        shutil.copytree(template, mover.folder)
        try:
            with injected(Faults(mode, at)), suppress(Crash, DriftlineError):
                remove_source(str(mover.folder), str(ENTITY))
            if mover.opened().source(ENTITY) is not None:
                remove_source(str(mover.folder), str(ENTITY))
            assert indexed_rows(mover.opened(), ENTITY) == []
            assert_nothing_staged(mover.opened())
            mover.run()
            mover.assert_in_step(mover.old)
        except Exception as error:
            raise AssertionError(f"after {mode} operation {at}, {operation}") from error
