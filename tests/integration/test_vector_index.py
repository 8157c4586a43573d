"""Searches of the vector index agree with exact searches and return the same distances."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from driftline.storage.deltas.manifest import BatchId
from driftline.storage.entities import Entity
from driftline.storage.lance.lance_table import VECTOR
from driftline.storage.layout import new_ulid
from driftline.storage.lines import table_searcher
from driftline.storage.lines.commit_marker import SourceCommit
from driftline.storage.lines.indexes import maintain
from driftline.storage.lines.line_table import LineTable, schema
from driftline.storage.lines.table_searcher import LineFilter, TableSearcher, nearest_lines
from driftline.storage.objects.store import ObjectStore

DIM = 32
ROWS = 2_000
SOURCE = Entity.parse("org:acme/project:alpha/source:web")


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    found = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, vectors: NDArray[np.float32]) -> LineTable:
    table = LineTable(ObjectStore.open(str(tmp_path_factory.mktemp("ws"))), SOURCE, "f00d")
    table.create(DIM)
    names = [f"{'even' if row % 2 == 0 else 'odd'}/{row}.py" for row in range(ROWS)]
    columns = {
        "id": range(ROWS),
        "entity": [str(SOURCE)] * ROWS,
        "path": names,
        "line_number": [0] * ROWS,
        "column_number": [0] * ROWS,
        "text": names,
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float16).reshape(-1)), DIM),
        "parent_dirs": [[name.partition("/")[0] + "/"] for name in names],
        "ext": ["py"] * ROWS,
        "hash": [""] * ROWS,
        "block": [None] * ROWS,
        "outline": [None] * ROWS,
        "block_code": [None] * ROWS,
        "pack": [None] * ROWS,
        "pack_line": [None] * ROWS,
        "grams": [None] * ROWS,
    }
    fragments = table.write_fragments(pa.table(columns, schema=schema(DIM)))
    table.commit([SourceCommit(SOURCE, 1, BatchId(new_ulid(), 1))], fragments)
    assert VECTOR in maintain(table)
    return table


@pytest.mark.parametrize("where", [None, LineFilter(dirs=("odd",))], ids=["everywhere", "in a directory"])
def test_indexed_search_is_nearly_exact(
    table: LineTable, vectors: NDArray[np.float32], where: LineFilter | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_searcher, "EXACT_SEARCH_ROWS", 0)
    monkeypatch.setattr(table_searcher, "EXACT_SEARCH_SHARE", 0)
    common = 0
    for direction in np.random.default_rng(4).standard_normal((10, DIM)).astype(np.float32):
        query = direction / np.linalg.norm(direction)
        by_index, exact = nearest_lines(table, query, 10, where), nearest_lines(table, query, 10, where, exact=True)
        found, wanted = (
            dict(zip(lines["path"].to_pylist(), lines["distance"].to_pylist(), strict=True))
            for lines in (by_index, exact)
        )
        assert len(found) == 10
        assert list(found.values()) == sorted(found.values())
        shared = found.keys() & wanted.keys()
        common += len(shared)
        assert {path: found[path] for path in shared} == pytest.approx(
            {path: wanted[path] for path in shared}, abs=1e-6
        )
        rows = [int(Path(path).stem) for path in wanted]
        np.testing.assert_allclose(list(wanted.values()), 1 - vectors[rows] @ query, atol=2e-3)
    assert common >= 85  # of 100: the index rotates vectors randomly, then quantizes them to one bit per dimension


@pytest.mark.parametrize("masked_rows", [ROWS, 0])
@pytest.mark.parametrize("index", ["whole", "with newer rows", "lost"])
def test_the_index_is_searched_for_the_rows_that_pass_without_evaluating_the_filter_again(
    table: LineTable, tmp_path: Path, index: str, masked_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_searcher, "EXACT_SEARCH_ROWS", 0)
    monkeypatch.setattr(table_searcher, "EXACT_SEARCH_SHARE", 0)
    monkeypatch.setattr(table_searcher, "MAX_MASKED_ROWS", masked_rows)
    root = shutil.copytree(Path(table.uri.removeprefix("file://")).parents[2], tmp_path / "ws")
    table = LineTable(ObjectStore.open(str(root)), SOURCE, "f00d")
    if index == "with newer rows":
        moved = table.open().to_table(filter="parent_dirs = ['odd/'] AND line_number >= 0").slice(0, ROWS // 10)
        fragments = table.write_fragments(moved)
        gone = tuple(moved["path"].to_pylist())
        table.commit([SourceCommit(SOURCE, 1, BatchId(new_ulid(), 2), gone)], fragments)
    if index == "lost":
        for file in tmp_path.rglob("_indices/*/*.idx"):
            file.unlink()
    query = np.eye(DIM, dtype=np.float32)[0]
    where = LineFilter(dirs=("odd",))
    before, first = (TableSearcher(table, where, strategy).nearest(query, 10) for strategy in ("prefilter", "auto"))
    filters = list[object]()
    scan = TableSearcher.scan

    def watched(searcher: TableSearcher, columns: Sequence[str], **search: object) -> pa.Table:
        filters.append(search.get("filter"))
        return scan(searcher, columns, **search)

    monkeypatch.setattr(TableSearcher, "scan", watched)
    monkeypatch.setattr(TableSearcher, "_count", lambda *_: pytest.fail("what is known is counted again"))
    again = TableSearcher(table, where).nearest(query, 10)
    assert before == first == again
    assert len(first) == 10
    assert {path.partition("/")[0] for path in first["path"].to_pylist()} == {"odd"}
    assert {*filters} == {None}


def test_a_filter_that_passes_only_distant_lines_reads_no_more_of_them(
    table: LineTable, vectors: NDArray[np.float32], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EXACT_SEARCH_ROWS", "EXACT_SEARCH_SHARE", "MAX_MASKED_ROWS"):
        monkeypatch.setattr(table_searcher, name, 0)
    query = vectors[0]
    rows = table.open().to_table(filter="line_number >= 0")
    near = vectors[[int(Path(path).stem) for path in rows["path"].to_pylist()]] @ query > 0
    folders = pa.array([[name] for name in np.where(near, "near/", "far/").tolist()], rows["parent_dirs"].type)
    rows = rows.set_column(rows.schema.get_field_index("parent_dirs"), rows.schema.field("parent_dirs"), folders)
    other = LineTable(ObjectStore.open(str(tmp_path)), SOURCE, "f00d")
    other.create(DIM)
    other.commit([SourceCommit(SOURCE, 1, BatchId(new_ulid(), 1))], other.write_fragments(rows))
    assert VECTOR in maintain(other)
    fetched = list[int]()
    scan = TableSearcher.scan

    def watched(searcher: TableSearcher, columns: Sequence[str], **search: Any) -> pa.Table:
        fetched.append(search["nearest"]["k"] if "nearest" in search else 0)
        return scan(searcher, columns, **search)

    monkeypatch.setattr(TableSearcher, "scan", watched)
    found = TableSearcher(other, LineFilter(dirs=("far",))).nearest(query, 10, columns=["path", "line_number"])
    assert len(found) == 10
    assert all(vectors[int(Path(path).stem)] @ query <= 0 for path in found["path"].to_pylist())
    assert max(fetched) < ROWS // 10


def test_lines_not_yet_in_the_index_are_found(table: LineTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_searcher, "EXACT_SEARCH_ROWS", 0)
    monkeypatch.setattr(table_searcher, "EXACT_SEARCH_SHARE", 0)
    late = np.zeros((1, DIM), np.float32)
    late[0, 0] = 1
    columns = {
        "id": [ROWS],
        "entity": [str(SOURCE)],
        "path": ["late.py"],
        "line_number": [0],
        "column_number": [0],
        "text": ["late"],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(late.astype(np.float16).reshape(-1)), DIM),
        "parent_dirs": [[]],
        "ext": ["py"],
        "hash": [""],
        "block": [None],
        "outline": [None],
        "block_code": [None],
        "pack": [None],
        "pack_line": [None],
        "grams": [None],
    }
    fragments = table.write_fragments(pa.table(columns, schema=schema(DIM)))
    table.commit([SourceCommit(SOURCE, 1, BatchId(new_ulid(), 1))], fragments)
    (found,) = nearest_lines(table, late[0], 1).to_pylist()
    assert (found["path"], found["distance"]) == ("late.py", pytest.approx(0, abs=1e-6))
