"""The compact command: what it folds, merges, removes, keeps and reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs import compact as compaction
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.remove import remove_source
from driftline.storage.deltas.manifest import BatchId
from driftline.storage.entities import Entity
from driftline.storage.errors import LeaseHeld, RecallTooLow
from driftline.storage.lance.lance_table import VECTOR, plan_compaction
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import acquire
from driftline.storage.lines import indexes
from driftline.storage.lines.commit_marker import SourceCommit
from driftline.storage.lines.indexes import coverage
from driftline.storage.lines.table_searcher import TableSearcher
from driftline.storage.workspace.records import RunHistory
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.search_quality import SearchQuality, measure
from tests.support.oracle import WORDS, assert_in_step, files_below, manifest_of
from tests.support.waiting import until

ENTITY = Entity.parse("source:tree")
SMALL_RUN = Path(__file__).parents[1] / "faults" / "small_run.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for number in range(12):
        write(root, number, 0)
    return root


def write(root: Path, number: int, turn: int, lines: int = 30) -> None:
    root.mkdir(exist_ok=True)
    words = [WORDS[(number * 31 + turn * 7 + i) % len(WORDS)] for i in range(lines)]
    (root / f"file{number}.txt").write_text("\n".join(f"{word} {turn}" for word in words))


def index(tree: Path, workspace: str, model: Path) -> dict[str, Any]:
    request = IndexRequest((str(tree),), workspace, entity="source:tree", model=str(model), workers=1)
    return index_sources(request).to_dict()


def index_often(tree: Path, workspace: str, model: Path, turns: int = 4) -> None:
    """Index ``turns`` times; each turn after the first changes some documents and removes one."""
    index(tree, workspace, model)
    for turn in range(1, turns):
        for number in range(turn, 12, 3):
            write(tree, number, turn)
        (tree / f"file{11 - turn}.txt").unlink(missing_ok=True)
        index(tree, workspace, model)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A folder with a tree and its workspace after ``index_often``, and with a copy of the tree."""
    folder = tmp_path_factory.mktemp("history")
    for number in range(12):
        write(folder / "tree", number, 0)
    index_often(folder / "tree", str(folder / "workspace"), model)
    shutil.copytree(folder / "tree", folder / "copy")
    return folder


@pytest.fixture
def indexed(history: Path, tmp_path: Path) -> tuple[Path, str]:
    """The tree after ``index_often``, and a copy of the workspace, whose name no process has cached."""
    shutil.rmtree(history / "tree")
    shutil.copytree(history / "copy", history / "tree")
    return history / "tree", str(shutil.copytree(history / "workspace", tmp_path / "workspace"))


class ProgressLog:
    """Records a run's messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def phase(self, name: str, total: int | None = None) -> None: ...

    def advance(self, documents: int = 1, lines: int = 0) -> None: ...

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture(params=["local", "s3"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "workspace") if request.param == "local" else str(request.getfixturevalue("s3_bucket"))


def test_a_compaction_does_not_change_the_content_of_the_workspace(
    workspace: str, tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "MIN_ROWS_FOR_VECTOR_INDEX", 20)
    index_often(tree, workspace, model)
    report = compact_workspace(CompactRequest(workspace, max_deltas=2, retention_seconds=0)).to_dict()
    (part,) = report["tenants"]
    before, after = part["before"], part["after"]
    assert part["folded"] == [{"entity": str(ENTITY), "deltas": before["deltas"]}]
    assert before["deltas"] > 2
    assert after["deltas"] == 0
    assert after["fragments"] == 1 < before["fragments"]
    assert after["versions"] == 1 < before["versions"]
    assert after["files"] < before["files"]
    assert after["recall_at_10"] == 1.0
    assert after["p50_seconds"] > 0
    assert part["skipped"] == []
    opened = Workspace.open(workspace)
    assert_in_step(opened, ENTITY, files_below(tree))
    table = opened.lines(ENTITY).open()
    assert coverage(table)[VECTOR].unindexed_rows == 0, "compaction keeps what the indexes cover"
    last = RunHistory(opened.objects, ENTITY.tenant).last()
    assert last is not None
    assert (last.kind, last.outcome, last.run_id) == ("compact", "done", report["run_id"])

    again = compact_workspace(CompactRequest(workspace, max_deltas=0, retention_seconds=0)).to_dict()["tenants"][0]
    assert again["folded"] == []
    assert again["after"]["versions"] == 1

    write(tree, 0, 9)
    index(tree, workspace, model)
    assert_in_step(opened, ENTITY, files_below(tree))


@pytest.mark.usefixtures("forked_workers")
def test_workers_of_a_dask_cluster_rewrite_the_fragments(tmp_path: Path, tree: Path, model: Path) -> None:
    workspace = str(tmp_path / "workspace")
    index_often(tree, workspace, model, turns=3)
    report = compact_workspace(CompactRequest(workspace, retention_seconds=0, executor="local", workers=1)).to_dict()
    assert report["tenants"][0]["after"]["fragments"] == 1
    assert_in_step(Workspace.open(workspace), ENTITY, files_below(tree))


def test_few_deltas_are_kept_unless_their_source_is_given(tmp_path: Path, tree: Path, model: Path) -> None:
    workspace = str(tmp_path / "workspace")
    index(tree, workspace, model)
    assert compact_workspace(CompactRequest(workspace)).tenants[0].folded == {}
    assert compact_workspace(CompactRequest(workspace, entity=str(ENTITY))).tenants[0].folded == {str(ENTITY): 1}


def test_the_commit_marker_survives_so_that_a_commit_still_counts_once(indexed: tuple[Path, str]) -> None:
    _, workspace = indexed
    opened = Workspace.open(workspace)
    before = opened.lines(ENTITY).commit_marker(ENTITY)
    compact_workspace(CompactRequest(workspace, retention_seconds=0))
    table = opened.lines(ENTITY)
    assert table.commit_marker(ENTITY) == before
    version = table.open().version
    table.commit([SourceCommit(ENTITY, before.token, BatchId(before.run_id, before.batch))], ())
    assert table.open().version == version, "a batch that is there already is not committed again"


def test_a_compaction_that_conflicts_with_a_commit_is_planned_again(
    indexed: tuple[Path, str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, workspace = indexed
    plans = []

    def overtaken(table: Any) -> Any:
        plan = plan_compaction(table)
        plans.append(plan.version)
        if len(plans) == 1:
            write(tree, 0, 9)
            index(tree, workspace, model)
        return plan

    monkeypatch.setattr(compaction, "plan_compaction", overtaken)
    report = compact_workspace(CompactRequest(workspace, retention_seconds=0)).to_dict()["tenants"][0]
    assert len(plans) == 2
    assert report["after"]["fragments"] == 1
    assert_in_step(Workspace.open(workspace), ENTITY, files_below(tree))


def test_a_commit_that_conflicts_with_a_compaction_is_planned_again(
    indexed: tuple[Path, str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, workspace = indexed
    table_class = type(Workspace.open(workspace).lines(ENTITY))
    original = table_class._transact
    transactions = []

    def overtaken(table: Any, transaction: Any) -> None:
        transactions.append(transaction)
        if len(transactions) == 1:
            report = compact_workspace(CompactRequest(workspace)).to_dict()["tenants"][0]
            assert report["after"]["fragments"] == 1
        original(table, transaction)

    monkeypatch.setattr(table_class, "_transact", overtaken)
    write(tree, 0, 9)
    index(tree, workspace, model)
    assert len(transactions) > 1
    assert_in_step(Workspace.open(workspace), ENTITY, files_below(tree))


def test_fragments_that_writers_change_all_the_time_are_left_with_a_message(
    indexed: tuple[Path, str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, workspace = indexed
    turns = iter(range(9, 99))

    def overtaken(table: Any) -> Any:
        plan = plan_compaction(table)
        write(tree, 0, next(turns))
        index(tree, workspace, model)
        return plan

    monkeypatch.setattr(compaction, "plan_compaction", overtaken)
    reported = ProgressLog()
    report = compact_workspace(CompactRequest(workspace, retention_seconds=0), reported)
    assert ["left to the next compaction" in message for message in reported.messages] == [True]
    assert report.tenants[0].skipped == reported.messages
    assert_in_step(Workspace.open(workspace), ENTITY, files_below(tree))


def test_held_leases_are_skipped_and_reported_or_refused_if_named(
    indexed: tuple[Path, str], driftline: Callable[..., Any]
) -> None:
    tree, workspace = indexed
    opened = Workspace.open(workspace)
    with acquire(opened.objects, lease_path(ENTITY), "another-run"):
        outcome = driftline(
            "compact", "--workspace", workspace, "--max-deltas", "0", "--retention-seconds", "0", "--json"
        )
        (part,) = outcome.json["tenants"]
        assert outcome.code == 0
        assert part["folded"] == []
        assert part["versions_removed"] == 0, "a writer may be at work"
        assert part["after"]["fragments"] == 1, "which is no reason not to merge fragments"
        assert all("another-run" in message for message in part["skipped"])
        assert len(part["skipped"]) == 2
        refused = driftline("compact", "--workspace", workspace, "--entity", "source:tree", "--json")
        assert (refused.code, refused.json["error"]) == (3, "lease_held")
    with (
        acquire(opened.objects, lease_path(ENTITY.tenant, "maintenance"), "another-run"),
        pytest.raises(LeaseHeld, match="another-run"),
    ):
        compact_workspace(CompactRequest(workspace, entity="source:tree"))
    assert_in_step(opened, ENTITY, files_below(tree))


def test_low_recall_stops_the_compaction_before_any_removal(
    indexed: tuple[Path, str], driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, workspace = indexed
    monkeypatch.setattr("driftline.tasks.maintenance.search_quality.measure", lambda table: SearchQuality(0.001, 0.94))
    outcome = driftline("compact", "--workspace", workspace, "--retention-seconds", "0", "--json")
    assert (outcome.code, outcome.json["error"]) == (3, RecallTooLow.kind)
    assert "94.0%" in outcome.json["message"]
    table = Workspace.open(workspace).lines(ENTITY).open()
    assert len(table.versions()) > 2
    last = RunHistory(Workspace.open(workspace).objects, ENTITY.tenant).last()
    assert last is not None
    assert last.outcome == RecallTooLow.kind


def test_recall_distinguishes_a_good_index_from_a_bad_one(
    tmp_path: Path, tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = str(tmp_path / "workspace")
    index(tree, workspace, model)
    table = Workspace.open(workspace).lines(ENTITY)
    found = measure(table)
    assert found is not None
    assert found.recall == 1.0
    original = TableSearcher.nearest

    def blind(self: TableSearcher, query: Any, *options: Any, **named: Any) -> Any:
        return original(self, query if self.exact else -query, *options, **named)

    monkeypatch.setattr(TableSearcher, "nearest", blind)
    missed = measure(table)
    assert missed is not None
    assert missed.recall < 0.2


def test_recall_is_measured_in_one_version_of_a_table_that_grows(
    tmp_path: Path, tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = str(tmp_path / "workspace")
    index(tree, workspace, model)
    original = TableSearcher.nearest

    def then_more(self: TableSearcher, query: Any, *options: Any, **named: Any) -> Any:
        found = original(self, query, *options, **named)
        if not self.exact:  # now more lines are tied for nearest
            copied = "".join(path.read_text() for path in sorted(tree.rglob("*.txt")))
            (tree / "copies.txt").write_text(20 * copied)
            index(tree, workspace, model)
        return found

    monkeypatch.setattr(TableSearcher, "nearest", then_more)
    table = Workspace.open(workspace).lines(ENTITY)
    before = table.open().count_rows()
    found = measure(table, queries=1)
    assert table.open().count_rows() > before
    assert found is not None
    assert found.recall == 1.0


def test_earlier_runs_can_be_read_until_their_deltas_are_folded(tmp_path: Path, tree: Path, model: Path) -> None:
    workspace = str(tmp_path / "workspace")
    first = index(tree, workspace, model)["run_id"]
    opened = Workspace.open(workspace)
    then = manifest_of(opened, ENTITY)
    write(tree, 0, 9)
    (tree / "file1.txt").unlink()
    index(tree, workspace, model)
    revision = RunHistory(opened.objects, ENTITY.tenant).revision(first, ENTITY)
    looked_back = opened.manifest(ENTITY).read(columns=["path", "hash"], as_of=revision)
    assert dict(zip(*looked_back.to_pydict().values(), strict=True)) == {path: h for path, (h, _) in then.items()}


def test_indexing_says_when_it_is_time_to_compact(
    tmp_path: Path, tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.flows.runs.source_run.DEFAULT_MAX_DELTAS", 1)
    reported = ProgressLog()
    for turn in range(2):
        write(tree, 0, 20 + turn)
        request = IndexRequest((str(tree),), str(tmp_path / "w"), entity="source:tree", model=str(model), workers=1)
        index_sources(request, reported)
    (message,) = reported.messages
    assert "2 deltas" in message
    assert "driftline compact" in message


@pytest.fixture
def writer(tmp_path: Path, tree: Path, model: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that indexes the tree in many slow commits."""
    for number in range(12, 60):
        write(tree, number, 0, lines=3)
    command = [sys.executable, str(SMALL_RUN), "index", str(tree), "--workspace", str(tmp_path / "workspace")]
    command += ["--entity", "source:tree", "--model", str(model), "--json"]
    environment = {**os.environ, "DELAY_SECONDS": "0.2", "PYTHONPATH": str(SMALL_RUN.parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        process.kill()


def test_compactions_during_writes_lose_nothing(
    tmp_path: Path, tree: Path, model: Path, writer: subprocess.Popen[str]
) -> None:
    workspace = str(tmp_path / "workspace")
    until(lambda: writer.poll() is not None or (tmp_path / "workspace/org:default/_tables").exists(), "a table")
    compactions = 0
    while writer.poll() is None:
        compact_workspace(CompactRequest(workspace, max_deltas=0, retention_seconds=0))
        compactions += 1
    assert writer.stdout is not None
    assert writer.returncode == 0
    assert json.loads(writer.stdout.read())["sources"][0]["new"] == 60
    assert compactions >= 2
    compact_workspace(CompactRequest(workspace, max_deltas=0, retention_seconds=0))
    assert_in_step(Workspace.open(workspace), ENTITY, files_below(tree))


def test_a_table_that_lost_all_its_lines_is_compacted_and_indexed_again(
    tmp_path: Path, tree: Path, model: Path
) -> None:
    workspace = str(tmp_path / "workspace")
    index(tree, workspace, model)
    assert Workspace.open(workspace).stats().has_index
    remove_source(workspace, str(ENTITY))

    compact_workspace(CompactRequest(workspace))
    assert not Workspace.open(workspace).stats().has_index

    index(tree, workspace, model)
    assert Workspace.open(workspace).stats().has_index
    assert_in_step(Workspace.open(workspace), ENTITY, files_below(tree))
