"""A compaction interrupted at each of its steps: readers see all rows, and the next compaction finishes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs import compact as compaction
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, StorageError
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing import commit
from driftline.tasks.maintenance import search_quality
from driftline.tasks.maintenance.search_quality import SearchQuality
from tests.faults.faults import Crash, Faults, Mode, injected, steps
from tests.support.effort import examples
from tests.support.oracle import assert_in_step, assert_nothing_staged, files_below, save_tiny_model

ENTITY = Entity.parse("source:tree")
STEPS_OF_TABLES = (
    (compaction, "maintain"),
    (commit, "rewrite"),
    (compaction, "commit_compaction"),
    (compaction, "remove_old_versions"),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree, and a workspace after several runs over it: deltas, fragments and versions to compact."""
    root = tmp_path_factory.mktemp("template")
    model = save_tiny_model(root / "model")
    tree = root / "tree"
    tree.mkdir()
    for turn in range(4):
        for number in range(turn, 5):
            (tree / f"file{number}.txt").write_text(f"word{number} word{turn}\nword{turn + 50}\n")
        request = IndexRequest((str(tree),), str(root / "workspace"), entity="source:tree", model=str(model), workers=1)
        index_sources(request)
    (tree / "file4.txt").unlink()
    index_sources(request)
    return root


@pytest.mark.parametrize("mode", list(Mode))
def test_a_compaction_that_is_interrupted_anywhere_is_finished_by_the_next(
    tmp_path: Path, template: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_quality, "measure", lambda table: SearchQuality(0.001, 1.0))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    uri, files = str(tmp_path / "workspace"), files_below(template / "tree")

    def attempt(faults: Faults) -> bool:
        """Compact a fresh copy and return whether the compaction completed."""
        shutil.rmtree(uri, ignore_errors=True)
        shutil.copytree(template / "workspace", uri)
        return compacted(uri, faults)

    interrupt_everywhere(attempt, lambda: uri, mode, files)


@pytest.mark.timeout(examples(1800))
def test_a_compaction_in_a_bucket_that_is_interrupted_is_finished_by_the_next(
    s3_bucket: str, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests a sample of a compaction's steps, or all of them under ``make soak``."""
    monkeypatch.setattr(search_quality, "measure", lambda table: SearchQuality(0.001, 1.0))
    attempts = count()
    uri = ""

    def attempt(faults: Faults) -> bool:
        nonlocal uri
        uri = f"{s3_bucket}/{next(attempts)}"
        objects = ObjectStore.open(uri)
        found = [path for path in (template / "workspace").rglob("*") if path.is_file()]
        with ThreadPoolExecutor(8) as pool:
            names = (path.relative_to(template / "workspace").as_posix() for path in found)
            list(pool.map(objects.create, names, (path.read_bytes() for path in found)))
        return compacted(uri, faults)

    only = "" if examples(1) > 1 else "|".join([r"_index\.parquet", *(name for _, name in STEPS_OF_TABLES)])
    interrupt_everywhere(attempt, lambda: uri, Mode.CRASH_AFTER, files_below(template / "tree"), only=only)


def compacted(uri: str, faults: Faults) -> bool:
    """Run a compaction and return whether it completed."""
    with injected(faults), pytest.MonkeyPatch.context() as patch:
        for module, name in STEPS_OF_TABLES:
            patch.setattr(module, name, _disturbed(faults, name, getattr(module, name)))
        try:
            compact_workspace(CompactRequest(uri, max_deltas=0, retention_seconds=0, workers=1))
        except (Crash, DriftlineError):
            return False
    return True


def interrupt_everywhere(
    attempt: Callable[[Faults], bool], where: Callable[[], str], mode: Mode, files: dict[str, bytes], *, only: str = ""
) -> None:
    """Fail each step of a compaction in turn; check its result and the next compaction's."""
    undisturbed = Faults()
    assert attempt(undisturbed)
    assert {name for _, name in STEPS_OF_TABLES} <= set(undisturbed.log)
    assert any("_index.parquet" in operation for operation in undisturbed.log)
    for at in steps(undisturbed.log, mode):
        operation = undisturbed.log[at]
        if not re.search(only, operation):
            continue
        try:
            attempt(Faults(mode, at))
            uri = where()
            assert_in_step(Workspace.open(uri), ENTITY, files)
            report = compact_workspace(CompactRequest(uri, max_deltas=0, retention_seconds=0, workers=1))
            assert_in_step(Workspace.open(uri), ENTITY, files)
            assert_nothing_staged(Workspace.open(uri))
            after = report.tenants[0].after
            assert after is not None
            assert (after.deltas, after.versions) == (0, 1)
            assert after.fragments <= 2, "fencing a dead compactor off writes a commit marker, in a fragment of its own"
        except Exception as error:
            raise AssertionError(f"after {mode} operation {at}, {operation}") from error


def _disturbed(faults: Faults, name: str, original: Any) -> Any:
    return lambda *arguments, **options: faults.perform(name, lambda: original(*arguments, **options), StorageError)
