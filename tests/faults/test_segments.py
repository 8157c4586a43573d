"""Index segments whose build or publication is interrupted: nothing is lost, and nothing stale is published or left
behind.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.output.progress import NullProgress
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.flows.runs.executors import SegmentBuilds
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, StorageError
from driftline.storage.lance.lance_table import commit_compaction, plan_compaction, rewrite
from driftline.storage.lines import indexes
from driftline.storage.lines.indexes import COLUMNS, build_segment, coverage, maintain, plan_new_segments, publish
from driftline.storage.lines.line_table import LineTable
from driftline.storage.workspace.workspace import Workspace
from tests.faults.faults import Crash, Faults, Mode, injected, steps
from tests.faults.segment_sizes import small_segments
from tests.support.oracle import WORDS, assert_in_step, files_below
from tests.support.searches import search

ENTITY = Entity.parse("source:tree")


@pytest.fixture(autouse=True)
def several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make several commits and several segments for a few files."""
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCH_DOCUMENTS", 2)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCHES_PER_COMMIT", 1)
    small_segments(monkeypatch, rows=15)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    write(folder, range(7))
    return folder


def write(tree: Path, numbers: range, words: int = 8) -> None:
    for number in numbers:
        chosen = [WORDS[(number * 5 + line) % len(WORDS)] for line in range(words)]
        (tree / f"file{number}.txt").write_text("".join(f"{word}\n" for word in chosen))


def index(tree: Path, uri: str, model: Path, **options: Any) -> None:
    index_sources(IndexRequest((str(tree),), uri, entity="source:tree", model=str(model), workers=1, **options))


def lines(uri: str) -> LineTable:
    return Workspace.open(uri).lines(ENTITY)


def assert_sound(uri: str, tree: Path) -> None:
    """Assert that the table holds the tree, each index covers nearly all of it exactly once, and searches find its
    lines.
    """
    workspace = Workspace.open(uri)
    assert_in_step(workspace, ENTITY, files_below(tree))
    dataset = lines(uri).open()
    for description in dataset.describe_indices():
        covered = list(itertools.chain(*(segment.fragment_ids for segment in description.segments)))
        assert len(covered) == len(set(covered)), description.name
    for mode in ("text", "vector", "hybrid"):
        found = search(workspace, WORDS[11], top_k=50, n_lines=0, mode=mode)
        assert WORDS[11] in {hit.text for hit in found.results}, mode


def assert_covered(uri: str) -> None:
    found = coverage(lines(uri).open())
    assert set(found) == set(COLUMNS)
    assert all(each.unindexed_rows <= 6 for each in found.values())  # MAX_UNINDEXED_ROWS and a commit marker


def assert_no_leftovers(uri: str) -> None:
    clean_workspace(CleanupRequest(uri, 0.0, False))
    table = lines(uri)
    published = {segment.uuid for found in table.open().describe_indices() for segment in found.segments}
    tracked = {path.split("/")[1] for path in table.tracked_files() if path.startswith("_indices/")}
    left = {path for path in table.index_files() if path.split("/")[0] not in tracked}
    assert (left, published - tracked) == (set(), set())


def operations(attempt: Any, mode: Mode) -> Iterator[int]:
    undisturbed = Faults()
    attempt(undisturbed)
    wanted = ("create_index_uncommitted", "commit_existing_index_segments", "_transact", "drop_index")
    found = [at for at in steps(undisturbed.log, mode) if undisturbed.log[at].startswith(wanted)]
    assert {undisturbed.log[at].split()[0] for at in found} >= set(wanted[:3])
    return iter(found)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_run_that_is_interrupted_while_it_builds_segments_is_completed_by_the_next(
    tmp_path: Path, tree: Path, model: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    uri = str(tmp_path / "workspace")

    def attempt(faults: Faults) -> None:
        shutil.rmtree(uri, ignore_errors=True)
        with injected(faults):
            index(tree, uri, model)

    for at in operations(attempt, mode):
        with contextlib.suppress(Crash, DriftlineError):
            attempt(Faults(mode, at))
        index(tree, uri, model)
        write(tree, range(1), 9)  # after a change, the next run checks the indexes
        index(tree, uri, model)
        assert_sound(uri, tree)
        assert_covered(uri)
        assert_no_leftovers(uri)
        assert_sound(uri, tree)
        write(tree, range(1))


def test_a_run_builds_segments_while_it_embeds_and_publishes_each_once(
    tmp_path: Path, tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "workspace")
    started: list[Entity] = []
    original = SegmentBuilds.committed

    def committed(builds: SegmentBuilds, tenant: Entity, table: LineTable) -> None:
        started.append(tenant)
        original(builds, tenant, table)

    monkeypatch.setattr(SegmentBuilds, "committed", committed)
    index(tree, uri, model)
    assert len(started) == 4
    found = coverage(lines(uri).open())
    assert {each.segments for each in found.values()} == {4}, "three of 16 rows; the last 8 and the marker"
    assert_sound(uri, tree)
    assert_no_leftovers(uri)


def test_a_segment_that_fails_is_reported_and_built_at_the_end(
    tmp_path: Path, tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "workspace")
    messages: list[str] = []
    failing = iter([True])

    def build(table: LineTable, spec: Any) -> Any:
        if next(failing, False):
            raise StorageError("Could not build an index", table.uri)
        return build_segment(table, spec)

    class ProgressLog(NullProgress):
        def message(self, text: str) -> None:
            messages.append(text)

    monkeypatch.setattr("driftline.tasks.indexing.commit.build_segment", build)
    index_sources(IndexRequest((str(tree),), uri, entity="source:tree", model=str(model), workers=1), ProgressLog())
    assert [text for text in messages if "Rebuilding a search index segment" in text]
    assert_covered(uri)
    assert_sound(uri, tree)


def test_segments_that_cannot_be_planned_are_built_at_the_end(
    tmp_path: Path, tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "workspace")

    def fail(*_: object) -> list[Any]:
        raise StorageError("Cannot read the lines table (error sending request)", uri)

    monkeypatch.setattr("driftline.flows.runs.executors.plan_new_segments", fail)
    index(tree, uri, model)
    assert_covered(uri)
    assert_sound(uri, tree)


def prebuilt(tree: Path, uri: str, model: Path) -> list[indexes.Segment]:
    """Segments that are built but not published, for a table without indexes."""
    index(tree, uri, model, indexes="none")
    table = lines(uri)
    return [build_segment(table, spec) for spec in plan_new_segments(table, "all", set())]


def test_a_segment_of_rewritten_fragments_is_not_published(tmp_path: Path, tree: Path, model: Path) -> None:
    uri = str(tmp_path / "workspace")
    built = prebuilt(tree, uri, model)
    table = lines(uri)
    plan = plan_compaction(table)
    commit_compaction(table, plan, [rewrite(table, task) for task in plan.tasks])
    assert publish(table, built) == set()
    assert set(maintain(table, built=built)) == set(COLUMNS)
    assert_sound(uri, tree)
    assert_no_leftovers(uri)


def test_a_late_segment_does_not_replace_one_that_covers_more(
    tmp_path: Path, tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "workspace")
    built = prebuilt(tree, uri, model)
    table = lines(uri)
    monkeypatch.setattr(indexes, "SMALL_SEGMENT_ROWS", 100)
    monkeypatch.setattr(indexes, "SEGMENT_ROWS", 100)
    maintain(table, thorough=True)
    before = {name: each.unindexed_rows for name, each in coverage(table.open()).items()}
    wide = [part for found in table.open().describe_indices() for part in found.segments if len(part.fragment_ids) > 2]
    assert wide
    publish(table, built)
    assert {name: each.unindexed_rows for name, each in coverage(table.open()).items()} == before
    assert_sound(uri, tree)


def test_a_segment_whose_files_a_cleanup_has_deleted_is_not_published(tmp_path: Path, tree: Path, model: Path) -> None:
    uri = str(tmp_path / "workspace")
    built = prebuilt(tree, uri, model)
    clean_workspace(CleanupRequest(uri, 0.0, False))
    table = lines(uri)
    assert publish(table, built) == set()
    maintain(table, built=built)
    assert_sound(uri, tree)
