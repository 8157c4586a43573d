"""Work on many rows that belong to many parts costs what the rows cost, not rows times parts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from driftline.storage.entities import Entity
from driftline.storage.layout import ObjectInfo
from driftline.storage.lines.line_table import COUNTS, Inventory, each_document
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.copies import _tables
from driftline.storage.workspace.records import WorkspaceConfig
from driftline.storage.workspace.workspace import Branch, Workspace
from driftline.tasks.scanning.scan import _covered
from driftline.tasks.scanning.walk import Subtree

ROWS = 100_000
FEW, MANY = 10, 1_000
MOST_TIMES = 3
"""Much less than MANY / FEW, by which rows times parts grow."""
CALLS_SECONDS = 0.3
"""What MANY calls may cost besides."""


def subtrees(parts: int, _: Path) -> Callable[[], object]:
    paths = pa.chunked_array([pa.array([f"d{row % parts:05d}/f{row}.py" for row in range(ROWS)])])
    folders = [Subtree(f"d{part:05d}/", (f"d{part:05d}/x/",)) for part in range(parts)]
    return lambda: _covered(paths, folders)


def inventories(parts: int, _: Path) -> Callable[[], object]:
    names = [f"org:o/source:{part:05d}" for part in range(parts)]
    rows = [name for name in names for _ in range(ROWS // parts)]
    columns = [rows, [str(row) for row in range(ROWS)], ["h"] * ROWS, [1] * ROWS]
    inventory = Inventory(1, pa.table(columns, schema=COUNTS), frozenset(), {})
    return lambda: [inventory.of(name) for name in names]


def documents(parts: int, _: Path) -> Callable[[], object]:
    lines = pa.array([row % (ROWS // parts) for row in range(ROWS)], pa.int32())
    names = [f"d/{row * parts // ROWS:05d}.py" for row in range(ROWS)]
    rows = pa.table({"path": names, "line_number": lines, "column_number": pa.nulls(ROWS, pa.int32()), "text": names})
    return lambda: [*each_document(rows, sorted({*names}))]


def branches(parts: int, folder: Path) -> Callable[[], object]:
    sources = [Entity((("org", "o"), ("source", str(part)))) for part in range(parts)]
    workspace = Workspace(ObjectStore.open(folder), WorkspaceConfig()).on([Branch(each, "b", "c") for each in sources])
    return lambda: [workspace.branch_of(sources[row % parts]) for row in range(ROWS)]


def tenants(parts: int, folder: Path) -> Callable[[], object]:
    config = WorkspaceConfig(model="m", fingerprint="f", dim=1)
    workspace = Workspace(ObjectStore.open(folder), config)
    owners = [Entity((("org", str(part)),)) for part in range(parts)]
    versions = [f"{workspace.lines(owner).path}/_versions" for owner in owners]
    paths = [f"{versions[row % parts]}/{row}.manifest" for row in range(ROWS // 4)]
    now = datetime.now(UTC)
    listing = {path: ObjectInfo(path, 1, now, "") for path in paths}
    return lambda: [*_tables(workspace, listing)]


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


@pytest.mark.parametrize("prepare", [subtrees, inventories, documents, branches, tenants])
def test_more_parts_of_as_many_rows_cost_little_more(
    prepare: Callable[[int, Path], Callable[[], object]], tmp_path: Path
) -> None:
    few, many = prepare(FEW, tmp_path), prepare(MANY, tmp_path)
    few()  # loads what the first call needs
    assert min(cpu_seconds(many) for _ in range(2)) < MOST_TIMES * cpu_seconds(few) + CALLS_SECONDS


def test_subtrees_cover_what_begins_with_their_prefix_and_not_with_an_excluded_folder() -> None:
    chance = random.Random(5)

    def name() -> str:
        return "".join(chance.choice(("a", "b", "é", "\ud7ff", "\ue000", "\U0010ffff", " ")) for _ in range(2))

    def folder(depth: int) -> str:
        return "".join(f"{name()[: chance.randint(1, 2)]}/" for _ in range(depth))

    def covered(path: str, parts: Sequence[Subtree]) -> bool:
        return any(path.startswith(part.prefix) and not path.startswith(part.without) for part in parts)

    for _ in range(300):
        paths = [folder(chance.randint(0, 3)) + name() for _ in range(30)]
        above = [folder(chance.randint(0, 2)) for _ in range(chance.randint(0, 4))]
        parts = [Subtree(each, tuple({each + folder(1) for _ in range(chance.randint(0, 3))})) for each in above]
        chunks = pa.chunked_array([pa.array(paths[:10]), pa.array(paths[10:])])
        assert _covered(chunks, parts).tolist() == [covered(path, parts) for path in paths]
    assert _covered(pa.chunked_array([], pa.string()), [Subtree()]).tolist() == []


def test_documents_are_cut_from_rows_in_any_order() -> None:
    rows = [("b", 2, 0), ("a", 1, 0), ("b", 1, 9), ("b", 1, 0)]
    table = pa.table(dict(zip(("path", "line_number", "column_number"), zip(*rows, strict=True), strict=True)))
    found = [[tuple(row.values()) for row in each.to_pylist()] for each in each_document(table, ["b", "none", "a"])]
    assert found == [[("b", 1, 0), ("b", 1, 9), ("b", 2, 0)], [], [("a", 1, 0)]]
    assert [len(each) for each in each_document(table[:0], ["b"])] == [0]
