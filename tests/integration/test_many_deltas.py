"""A source that is indexed often but never compacted stays fast: its runs fold their deltas."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.deltas import manifest
from driftline.storage.deltas.delta_index import DeltaIndex
from driftline.storage.entities import Entity
from driftline.storage.errors import StorageError
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing import batch
from driftline.tasks.scanning import diff
from tests.support.oracle import WORDS, assert_in_step, files_below, save_tiny_model

SOURCE = "org:default/project:default/source:tree"


@pytest.fixture
def run(
    driftline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    for module in (diff, batch):  # however soon a run follows a change, the next one need not read the file again
        monkeypatch.setattr(module, "CTIME_TICK_NS", 0)
    (tmp_path / "tree").mkdir()
    model = save_tiny_model(tmp_path / "model")

    def index(*changed: int) -> dict[str, Any]:
        for n in changed:
            file = tmp_path / "tree" / f"{n % 3}.txt"
            file.write_text(f"{WORDS[n]}\n")
            os.utime(file, (10**9 + n, 10**9 + n))
        options = () if (tmp_path / "ws" / "_workspace.json").exists() else ("--model", model)
        done = driftline("index", tmp_path / "tree", "--workspace", tmp_path / "ws", "--json", *options)
        assert done.code == 0, done.err
        return dict(done.json["sources"][0], messages=done.err)

    return index


def test_runs_fold_deltas_that_no_compaction_folded(
    run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "RUNS_FOLD_DELTAS", 3)
    assert [run(n)["deltas"] for n in range(7)] == [1, 2, 0, 1, 2, 0, 1]
    assert_in_step(Workspace.open(str(tmp_path / "ws")), Entity.parse(SOURCE), files_below(tmp_path / "tree"))


def test_an_unchanged_run_and_one_of_a_large_manifest_fold_nothing(
    run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(1)
    run(2)
    monkeypatch.setattr(manifest, "RUNS_FOLD_DELTAS", 1)
    assert run()["deltas"] == 2
    monkeypatch.setattr(manifest, "RUNS_FOLD_BYTES", 10)
    assert run(3)["deltas"] == 3


def test_a_run_succeeds_although_its_deltas_cannot_be_folded(
    run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: DeltaIndex) -> None:
        raise StorageError("The disk is full")

    monkeypatch.setattr(manifest, "RUNS_FOLD_DELTAS", 1)
    monkeypatch.setattr(DeltaIndex, "compact", fail)
    report = run(1)
    assert report["deltas"] == 1
    assert "The disk is full" in report["messages"]
    assert_in_step(Workspace.open(str(tmp_path / "ws")), Entity.parse(SOURCE), files_below(tmp_path / "tree"))
