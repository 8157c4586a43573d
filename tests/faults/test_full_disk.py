"""A disk that fills up during a run: the run fails with a clear error, and the next run with free space completes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from driftline.flows.memory_backend import create_ltm_backend
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.storage.entities import Entity
from driftline.storage.errors import CatalogError
from driftline.storage.lines.indexes import COLUMNS, coverage
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance import search_quality
from driftline.tasks.maintenance.search_quality import SearchQuality
from tests.faults.faults import Faults, injected
from tests.faults.segment_sizes import small_segments
from tests.support.oracle import WORDS, assert_in_step, assert_nothing_staged, files_below

ENTITY = Entity.parse("source:tree")
DISK_BYTES = 8 * 1024 * 1024
PAGE_BYTES = 4096
TURNS = 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An 8 MiB tmpfs in a mount namespace that disappears with the process that holds it. Its path leads through that
    process's folder in ``/proc`` and must not be resolved, so workspaces on it are ``file://`` URIs.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && echo mounted && exec cat'
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed (Debian: apt-get install util-linux)")
    holder = subprocess.Popen(
        [*unshare, "sh", "-c", mount, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "mounted\n":
            pytest.skip(f"a small disk needs root, or user namespaces: {holder.communicate()[1].strip()}")
        inside = Path(f"/proc/{holder.pid}/root{folder}")
        assert shutil.disk_usage(inside).total == DISK_BYTES
        yield inside
    finally:
        holder.kill()
        holder.communicate()


class Ballast:
    """A file that fills a disk, except for a number of bytes."""

    def __init__(self, disk: Path) -> None:
        self.file = disk / "ballast"

    def leave(self, free_bytes: int) -> None:
        free = shutil.disk_usage(self.file.parent).free
        with self.file.open("ab") as file:
            file.write(bytes(max(0, free - free_bytes)))

    def away(self) -> None:
        self.file.unlink()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    change(folder, 0)
    return folder


def change(tree: Path, turn: int) -> None:
    """Change the lines of every file, and create or delete one file."""
    for number in range(12):
        words = [WORDS[(turn * 7 + number + i) % len(WORDS)] for i in range(60)]
        (tree / f"file{number}.txt").write_text("".join(f"{word} {turn}\n" for word in words))
    if turn % 2:
        (tree / "odd.txt").write_text("word1\n")
    else:
        (tree / "odd.txt").unlink(missing_ok=True)


@pytest.fixture
def index(
    driftline: Callable[..., Any], tree: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Index the tree in small batches, so the disk may fill up at any step."""
    monkeypatch.setattr(search_quality, "measure", lambda table: SearchQuality(0.001, 1.0))
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCH_DOCUMENTS", 4)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCHES_PER_COMMIT", 1)

    def run(workspace: Path) -> Any:
        command = ("index", tree, "--workspace", workspace.as_uri(), "--entity", "source:tree", "--model", model)
        return driftline(*command, "--workers", 1, "--json")

    return run


def assert_reported(outcome: Any) -> None:
    assert (outcome.code, outcome.json["error"]) == (3, "storage_error"), outcome.out + outcome.err
    assert "No space left" in outcome.json["message"]
    assert "Free some space" in outcome.json["fix"]


def test_an_index_run_into_a_full_disk_is_reported_and_completed_by_the_next(
    small_disk: Path, tree: Path, index: Callable[..., Any]
) -> None:
    workspace, ballast = small_disk / "workspace", Ballast(small_disk)
    assert index(workspace).code == 0
    failures = 0
    for turn, pages in enumerate([0, 1, 3, 7, 9, 12, 20, 34], start=1):
        change(tree, turn)
        ballast.leave(pages * PAGE_BYTES)
        with injected(Faults()):  # in its own process: its exit proves that an unreleased lease is abandoned
            outcome = index(workspace)
        if outcome.code != 0:
            assert_reported(outcome)
            failures += 1
        ballast.away()
        assert index(workspace).code == 0
        assert_in_step(Workspace.open(str(workspace)), ENTITY, files_below(tree))
        assert_nothing_staged(Workspace.open(str(workspace)))
    assert failures >= 5


@pytest.mark.parametrize(("max_deltas", "steps"), [(0, 2), (100, 6)], ids=["folding frees some", "nothing is folded"])
def test_a_compaction_on_a_full_disk_is_reported_and_completed_by_the_next(
    max_deltas: int, steps: int, small_disk: Path, tree: Path, index: Callable[..., Any], driftline: Callable[..., Any]
) -> None:
    template, workspace, ballast = small_disk / "template", small_disk / "workspace", Ballast(small_disk)
    for turn in range(TURNS):
        change(tree, turn)
        assert index(template).code == 0
    command = (
        "compact",
        "--workspace",
        workspace.as_uri(),
        "--max-deltas",
        max_deltas,
        "--retention-seconds",
        0,
        "--json",
    )
    failures = 0
    for pages in [0, 1, 2, 4, 8, 12, 16, 20, 26, 40]:
        shutil.copytree(template, workspace)
        ballast.leave(pages * PAGE_BYTES)
        with injected(Faults()):
            outcome = driftline(*command)
        if outcome.code != 0:
            assert_reported(outcome)
            failures += 1
        ballast.away()
        assert_in_step(Workspace.open(str(workspace)), ENTITY, files_below(tree))
        outcome = driftline(*command)
        assert outcome.code == 0, outcome.err
        assert (outcome.json["tenants"][0]["after"]["deltas"] == 0) == (max_deltas == 0)
        assert_in_step(Workspace.open(str(workspace)), ENTITY, files_below(tree))
        shutil.rmtree(workspace)
    assert failures >= steps


def test_segments_of_indexes_on_a_full_disk_are_reported_and_built_by_the_next_run(
    small_disk: Path, tree: Path, index: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch, rows=100)
    workspace, ballast = small_disk / "workspace", Ballast(small_disk)
    assert index(workspace).code == 0
    failures = 0
    for turn, pages in enumerate([8, 16, 24, 32, 40, 48, 56, 64, 72, 80], start=1):
        change(tree, turn)
        ballast.leave(pages * PAGE_BYTES)
        with injected(Faults()):
            outcome = index(workspace)
        if outcome.code != 0:
            assert_reported(outcome)
            failures += 1
        ballast.away()
        assert index(workspace).code == 0
        assert_in_step(Workspace.open(str(workspace)), ENTITY, files_below(tree))
        assert len(coverage(Workspace.open(str(workspace)).lines(ENTITY).open())) == len(COLUMNS)
        clean_workspace(CleanupRequest(workspace.as_uri(), 0.0, False))
    assert failures >= 3


def test_a_pull_onto_a_full_disk_is_reported_and_completed_by_the_next(
    small_disk: Path, tmp_path: Path, tree: Path, index: Callable[..., Any], driftline: Callable[..., Any]
) -> None:
    origin, folder, ballast = tmp_path / "origin", small_disk / "copy", Ballast(small_disk)
    assert index(origin).code == 0
    pull = ("pull", origin.as_uri(), folder, "--json")
    assert driftline(*pull).code == 0
    failures = 0
    for turn, pages in enumerate([0, 1, 2, 4, 8, 16, 32], start=1):
        before = files_below(tree)
        change(tree, turn)
        assert index(origin).code == 0
        ballast.leave(pages * PAGE_BYTES)
        outcome = driftline(*pull)
        if outcome.code != 0:
            assert_reported(outcome)
            failures += 1
            assert_in_step(Workspace.open(folder.as_uri()), ENTITY, before)  # the copy has not changed
        ballast.away()
        assert driftline(*pull).code == 0
        assert_in_step(Workspace.open(folder.as_uri()), ENTITY, files_below(tree))
    assert failures >= 4


def test_a_cleanup_frees_a_full_disk(small_disk: Path, tree: Path, index: Callable[..., Any]) -> None:
    """If no lease can be written, orphans that do not require a lease are deleted first, then the others."""
    workspace, ballast = small_disk / "workspace", Ballast(small_disk)
    assert index(workspace).code == 0
    left = workspace / "org:default" / f".tmp-{'0' * 32}"
    left.write_bytes(bytes(512 * 1024))
    fragment = next(workspace.rglob("*.lance/data/*.lance"))
    uncommitted = fragment.with_name(f"{'0' * 24}.lance")
    uncommitted.write_bytes(fragment.read_bytes())
    ballast.leave(0)
    report = clean_workspace(CleanupRequest(workspace.as_uri(), 0.0, False))
    assert not left.exists()
    assert {Path(orphan.path).name for orphan in report.deleted} >= {left.name}
    ballast.away()
    assert index(workspace).code == 0
    assert_in_step(Workspace.open(str(workspace)), ENTITY, files_below(tree))


@contextmanager
def no_space() -> Iterator[None]:
    """Let no file grow: SQLite would follow the path of a small disk out of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_memory_can_be_read_on_a_full_disk(tmp_path: Path) -> None:
    values = {"small": 1, "large": "word " * 3_000}
    memory = create_ltm_backend(storage_uri=tmp_path / "workspace")
    for key, value in values.items():
        assert memory.store(key, value)["success"]
    memory.close()
    with no_space():
        memory = create_ltm_backend(storage_uri=tmp_path / "workspace")
        found = [memory.retrieve(key) for key in values]
        listed, stored = memory.search(), memory.store("other", 2)
        memory.close()
    assert [each.get("value") for each in found] == [*values.values()]
    assert {each["key"] for each in listed["entries"]} == {*values}
    assert (stored["error_type"], "Free some space" in stored["error"]) == ("catalog_error", True)
    memory = create_ltm_backend(storage_uri=tmp_path / "workspace")
    assert memory.store("other", 2)["success"]
    assert memory.retrieve("small")["value"] == 1
    memory.close()


def test_a_catalog_that_changes_during_a_read_on_a_full_disk_is_not_trusted(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    memory = create_ltm_backend(storage_uri=workspace)
    assert memory.store("small", 1)["success"]
    memory.close()
    file = workspace / "_catalog.sqlite"
    catalog = Catalog(f"sqlite:///{file}")

    def read(connection: Connection) -> int:
        os.utime(file)
        return int(connection.execute(sa.text("SELECT count(*) FROM sqlite_master")).scalar_one())

    def damaged(connection: Connection) -> int:
        os.utime(file)
        raise CatalogError("malformed")

    with no_space():
        assert catalog.identity() is not None
        for work in (read, damaged):
            with pytest.raises(CatalogError, match="Free some space"):
                catalog.read(work)
    assert catalog.read(read) > 0
