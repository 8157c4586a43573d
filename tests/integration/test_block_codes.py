"""Block search by vector codes: it finds the same as exact search, with filters, after commits, and without repeated
reads.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from driftline.storage.deltas.manifest import BatchId, ManifestRow
from driftline.storage.entities import Entity
from driftline.storage.layout import new_ulid
from driftline.storage.lines import block_codes, table_searcher
from driftline.storage.lines.commit_marker import SourceCommit
from driftline.storage.lines.indexes import maintain
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.line_table import CODE_COLUMN, LINES_PER_BLOCK, LineTable
from driftline.storage.lines.table_searcher import RowIds, TableSearcher, nearest_blocks
from driftline.storage.objects.store import ObjectStore
from driftline.tasks.indexing.rows import line_rows

DIM = 96
"""Not a multiple of the word size, so codes are padded."""
SOURCE = Entity.parse("org:acme/project:alpha/source:web")


def vectors_of(documents: int, lines: int, seed: int) -> NDArray[np.float32]:
    """Return unit vectors of shape ``(documents, lines, DIM)``; the lines of a block are similar."""
    random = np.random.default_rng(seed)
    blocks = random.standard_normal((documents, -(-lines // LINES_PER_BLOCK), DIM))
    found = blocks.repeat(LINES_PER_BLOCK, axis=1)[:, :lines] + random.standard_normal((documents, lines, DIM))
    found /= np.linalg.norm(found, axis=2, keepdims=True)
    return found.astype(np.float32)


def committed(
    table: LineTable, vectors: NDArray[np.float32], paths: Sequence[str], replaced: Sequence[str] = ()
) -> None:
    """Commit documents that have a line of text for each vector."""
    documents, lines = vectors.shape[:2]
    rows = line_rows(
        SOURCE,
        [ManifestRow(path, 1, 1, "", path, "f00d") for path in paths],
        pa.array(np.arange(documents).repeat(lines), pa.int32()),
        pa.array(np.tile(np.arange(lines), documents), pa.int32()),
        pa.array(["a line"] * documents * lines),
        vectors.reshape(-1, DIM).astype(np.float16),
    )
    table.commit([SourceCommit(SOURCE, 1, BatchId(new_ulid(), 1), tuple(replaced))], table.write_fragments(rows))


def exact(vectors: NDArray[np.float32], paths: Sequence[str], query: NDArray[np.float32]) -> list[tuple[str, int]]:
    """Return the documents' blocks, nearest first."""
    sums = [
        ((path, first), vectors[at, first : first + LINES_PER_BLOCK].sum(axis=0))
        for at, path in enumerate(paths)
        for first in range(0, vectors.shape[1], LINES_PER_BLOCK)
    ]
    return [
        location for location, total in sorted(sums, key=lambda each: -float(each[1] @ query / np.linalg.norm(each[1])))
    ]


def near_blocks(searcher: TableSearcher, vector: NDArray[np.float32], limit: int) -> pa.Table:
    """Return the blocks found by ``TableSearcher.near``, with their cosines."""
    found = searcher.near(vector, limit)
    return searcher.blocks_at(found.rows.tolist()).append_column("cosine", pa.array(found.scores))


def locations(found: pa.Table) -> list[tuple[str, int]]:
    return list(zip(found["path"].to_pylist(), found["line_number"].to_pylist(), strict=True))


@pytest.fixture
def table(tmp_path: Path) -> LineTable:
    table = LineTable(ObjectStore.open(str(tmp_path)), SOURCE, "f00d")
    table.create(DIM)
    return table


def test_codes_find_most_blocks_that_vectors_find(table: LineTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_codes, "MIN_SELECTED", 16)  # so only signs select
    paths = [f"{at % 10}/{at}.py" for at in range(200)]
    vectors = vectors_of(200, 50, seed=5)
    committed(table, vectors, paths)
    found, total = 0, 0
    for document, first in ((3, 0), (70, 16), (199, 48)):
        query = vectors[document, first]
        best = exact(vectors, paths, query)
        near = near_blocks(TableSearcher(table), query, 10)
        assert locations(near)[0] == best[0] == (paths[document], first)
        assert near["cosine"].to_pylist() == sorted(near["cosine"].to_pylist(), reverse=True)
        found, total = found + len({*locations(near)} & {*best[:5]}), total + 5
    assert found / total >= 0.6  # unrelated blocks: chance finds 2 %


@pytest.mark.parametrize("copied_bytes", [0, table_searcher.MAX_COPIED_BYTES])
@pytest.mark.parametrize("strategy", ["auto", "prefilter", "postfilter"])
@pytest.mark.parametrize("folders", [1, 5])
def test_a_filter_keeps_the_nearest_allowed_lines(
    table: LineTable, folders: int, strategy: str, copied_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_searcher, "MAX_COPIED_BYTES", copied_bytes)
    paths = [f"{at % 10}/{at}.py" for at in range(200)]
    vectors = vectors_of(200, 32, seed=6)
    committed(table, vectors, paths)
    where = LineFilter(dirs=tuple(f"{folder}/" for folder in range(folders)))
    query = vectors[123, 7]  # in folder 3
    allowed = {path for path in paths if int(path[0]) < folders}
    found = locations(near_blocks(TableSearcher(table, where, strategy), query, 8))  # type: ignore[arg-type]
    assert len(found) == 8
    assert {path for path, _ in found} <= allowed
    best = [location for location in exact(vectors, paths, query) if location[0] in allowed]
    assert {*found} & {*best[:2]}
    everything = near_blocks(TableSearcher(table, where, strategy), query, 10_000)  # type: ignore[arg-type]
    assert {*locations(everything)} == {(path, first) for path in allowed for first in (0, 16)}
    assert len(TableSearcher(table, LineFilter(dirs=("none/",))).near(query, 8)) == 0


def test_the_rows_of_a_filter_take_memory_for_each_document_not_for_each_line(table: LineTable) -> None:
    paths = [f"{at % 10}/{at}.py" for at in range(50)]
    committed(table, vectors_of(50, 200, seed=13), paths)
    searcher = TableSearcher(table, LineFilter(dirs=("1/", "3/")))
    assert len(searcher._allowed) == searcher.matches == 2_000
    assert searcher._allowed.nbytes <= 10 * 16


@given(st.lists(st.sets(st.integers(0, 60), max_size=20).map(list), max_size=5))
def test_row_ids_are_a_set(parts: list[list[int]]) -> None:
    distinct = [[row for row in part if row % len(parts) == at] for at, part in enumerate(parts)]
    rows = RowIds.of(pa.chunked_array(distinct, pa.uint64()))
    known = [row for part in distinct for row in part]
    assert len(rows) == len(known)
    assert rows.has(np.arange(62, dtype=np.uint64)).tolist() == [row in known for row in range(62)]
    assert rows.nbytes <= 16 * len(known)


def test_tables_with_filters_are_compared_together(table: LineTable) -> None:
    paths = [f"{at % 10}/{at}.py" for at in range(100)]
    vectors = vectors_of(100, 32, seed=8)
    committed(table, vectors, paths)
    tables = [TableSearcher(table, LineFilter(dirs=dirs)) for dirs in (("0/", "3/"), ("none/",), ("1/", "2/", "4/"))]
    query = vectors[42, 0]
    best = sorted(np.concatenate([each.near(query, 100).scores for each in tables]).tolist(), reverse=True)[:8]
    for _ in range(2):  # the joined codes are known from the second time on
        found = nearest_blocks(tables, query, 8)
        assert sorted(np.concatenate([each.scores for each in found]).tolist(), reverse=True) == pytest.approx(best)
        for each, near in zip(tables, found, strict=True):
            assert near.rows.tolist() == each.near(query, len(near)).rows.tolist()
    assert [len(near) for near in nearest_blocks(tables[1:2] * 2, query, 8)] == [0, 0]


def test_only_new_fragments_are_read_and_replaced_documents_are_gone(
    table: LineTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int | None] = []
    original = block_codes.codes_of

    def counting(dataset: object, reads: block_codes._Read, announce: object) -> block_codes.BlockCodes:
        def count(fragments: object) -> pa.Table:
            read.append(None if fragments is None else len(fragments))  # type: ignore[arg-type]
            return reads(fragments)  # type: ignore[arg-type]

        return original(dataset, count, announce)  # type: ignore[arg-type]

    monkeypatch.setattr("driftline.storage.lines.table_searcher.codes_of", counting)
    old, new = vectors_of(40, 20, seed=7), vectors_of(1, 20, seed=8)
    paths = [f"{at}.py" for at in range(40)]
    committed(table, old, paths)
    assert locations(near_blocks(TableSearcher(table), old[4, 2], 1)) == [("4.py", 0)]
    committed(table, new, ["4.py"], replaced=["4.py"])
    assert locations(near_blocks(TableSearcher(table), new[0, 2], 1)) == [("4.py", 0)]
    assert read[0] is None
    assert all(count in (1, 2) for count in read[1:])  # the rows and a commit marker without a code
    gone = locations(near_blocks(TableSearcher(table), old[4, 2], 100))
    assert len(gone) == len({*gone}) == 80
    cached = original(table.open(), *[lambda _: pytest.fail("codes of a known version are read again")] * 2)
    block_codes._CODES.clear()
    afresh = TableSearcher(table)._codes
    assert {*afresh.rows.tolist()} < {*cached.rows.tolist()}  # cached codes include the replaced blocks
    by_row = dict(zip(cached.rows.tolist(), cached.signs.T.tolist(), strict=True))
    assert [by_row[row] for row in afresh.rows.tolist()] == afresh.signs.T.tolist()


def arrow_codes(count: int, dim: int = 256) -> tuple[pa.Table, NDArray[np.uint64]]:
    """Return rows as a scan yields them, in batches, one a slice and one empty, and their words ``(count, w)``."""
    words = np.random.default_rng(3).integers(0, 2**64, (count, dim // 32), np.uint64)
    rows = pa.table(
        {
            CODE_COLUMN: pa.array([each.tobytes() for each in words], pa.binary()),
            "_rowid": pa.array(range(1, count + 1), pa.uint64()),
            "_rowaddr": pa.array(range(count), pa.uint64()),
        }
    )
    return pa.concat_tables([rows[: count // 3], rows[:0], rows[count // 3 :]]), words


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_codes_are_read_as_stored(order: Literal["ascending", "descending"]) -> None:
    rows, words = arrow_codes(100)
    codes = block_codes._read_codes([(0, "file")], rows.sort_by([("_rowid", order)]) if order[0] == "d" else rows)
    assert codes.rows.tolist() == [*range(1, 101)]
    assert codes.ranges == {(0, "file"): (0, 100)}
    assert np.concatenate([codes.signs, codes.large]).T.tolist() == words.tolist()


@pytest.mark.parametrize("limit", [1, 7, 99, 100, 1_000])
@pytest.mark.parametrize("at_once", [1, 13, 64, 8_192])
def test_blocks_are_preselected_by_the_product_of_their_signs(
    limit: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_codes, "_COMPARED_AT_ONCE", at_once)
    codes = block_codes._read_codes([(0, "file")], arrow_codes(100)[0])
    query = np.random.default_rng(4).standard_normal(256).astype(np.float32)
    levels = np.rint((query - query.min()) * ((2**block_codes.QUERY_BITS - 1) / (query.max() - query.min())))
    bits = np.unpackbits(np.ascontiguousarray(codes.signs.T).view(np.uint8), axis=1)
    steps = (query.max() - query.min()) / (2**block_codes.QUERY_BITS - 1)
    products = bits @ (levels * steps + query.min())
    found = block_codes._preselected(codes.signs, query, limit)
    assert found.tolist() == sorted({*found.tolist()})
    assert np.sort(products[found]) == pytest.approx(np.sort(products)[-limit:], abs=1e-4)


def test_reading_and_comparing_codes_takes_little_more_memory_than_the_codes() -> None:
    rows, _ = arrow_codes(60_000)
    query = np.random.default_rng(4).standard_normal(256).astype(np.float32)
    tracemalloc.start()
    try:
        codes = block_codes._read_codes([(0, "file")], rows)
        read = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        codes.nearest(query, 10)
        compared = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert read < 1.5 * codes.nbytes  # without a Python object for each code
    assert compared < 0.5 * codes.nbytes  # buffers of a fixed size


def test_a_query_or_a_table_without_vectors_finds_nothing(table: LineTable) -> None:
    assert len(near_blocks(TableSearcher(table), np.ones(DIM, np.float32), 5)) == 0
    committed(table, np.zeros((1, 20, DIM), np.float32), ["zero.py"])
    assert len(near_blocks(TableSearcher(table), np.ones(DIM, np.float32), 5)) == 0
    committed(table, vectors_of(1, 20, seed=9), ["one.py"])
    assert len(near_blocks(TableSearcher(table), np.zeros(DIM, np.float32), 5)) == 0
    assert {path for path, _ in locations(near_blocks(TableSearcher(table), np.ones(DIM, np.float32), 5))} == {"one.py"}


@pytest.mark.parametrize("copied_bytes", [0, table_searcher.MAX_COPIED_BYTES])
@pytest.mark.parametrize("where", [None, LineFilter(dirs=("3/", "4/"))])
def test_repeated_searches_read_nothing_until_a_commit(
    table: LineTable, where: LineFilter | None, copied_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_searcher, "MAX_COPIED_BYTES", copied_bytes)
    paths = [f"{at % 10}/{at}.py" for at in range(40)]
    vectors = vectors_of(40, 20, seed=10)
    committed(table, vectors, paths)
    query = vectors[14, 2]
    first, second = (near_blocks(TableSearcher(table, where), query, 5) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(TableSearcher, "scan", lambda *_, **__: pytest.fail("what is known is read again"))
        third = near_blocks(TableSearcher(table, where), query, 5)
    assert first == second == third
    assert locations(first)[0] == ("4/14.py", 0)
    committed(table, vectors_of(1, 20, seed=11), ["4/14.py"], replaced=["4/14.py"])
    assert "4/14.py" in {path for path, _ in locations(near_blocks(TableSearcher(table, where), query, 100))}
    assert locations(near_blocks(TableSearcher(table, where), query, 5)) != locations(first)


@pytest.mark.parametrize(
    ("index", "masked_rows"), [("none", 2_000), ("of half", 2_000), ("of half", 0), ("lost", 2_000)]
)
@pytest.mark.parametrize("folders", [0, 1, 5])
def test_words_are_found_alike_with_and_without_a_mask(
    table: LineTable, tmp_path: Path, folders: int, index: str, masked_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_searcher, "MAX_MASKED_ROWS", masked_rows)
    paths = [f"{at % 10}/{at}.py" for at in range(60)]
    committed(table, vectors_of(30, 20, seed=12), paths[:30])
    if index != "none":
        maintain(table, "text")
    committed(table, vectors_of(30, 20, seed=12), paths[30:])
    if index == "lost":
        for file in tmp_path.rglob("_indices/*/*.lance"):
            file.unlink()
    where = LineFilter(globs=tuple(f"{folder}/**" for folder in range(folders)) or ("elsewhere/**",))
    before, after = (TableSearcher(table, where, strategy).blocks("line", 500) for strategy in ("prefilter", "auto"))
    assert (
        sorted(locations(before))
        == sorted(locations(after))
        == sorted((path, first) for path in paths if int(path[0]) < folders for first in (0, 16))
    )


def test_a_search_for_words_does_not_evaluate_a_filter_again(table: LineTable, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(table, vectors_of(120, 20, seed=12), [f"{at % 10}/{at}.py" for at in range(120)])
    where = LineFilter(globs=("**/113.py",))
    first = TableSearcher(table, where).matching("line", 10)
    scanned = list[dict[str, object]]()
    scan = TableSearcher.scan

    def watched(searcher: TableSearcher, columns: Sequence[str], **search: object) -> pa.Table:
        scanned.append(search)
        return scan(searcher, columns, **search)

    monkeypatch.setattr(TableSearcher, "scan", watched)
    again = TableSearcher(table, where).matching("line", 10)
    assert len(again) == len(first) == 2
    assert [search.get("filter") for search in scanned] == [None]
