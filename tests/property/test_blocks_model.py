"""Line blocks and hit windows, compared with models in plain Python."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline.storage.deltas.manifest import ManifestRow
from driftline.storage.entities import Entity
from driftline.storage.lines.line_table import LINES_PER_BLOCK, SPELLED
from driftline.storage.lines.outline import Definition
from driftline.tasks.indexing.rows import RowPositions, blocks, line_rows
from driftline.tasks.search.candidates import UNKNOWN, gather, lines_of
from driftline.tasks.search.ranking import MAX_WINDOW_LINES, FoundLine, merge_windows

texts = st.text(st.characters(exclude_characters=f"\r\n{SPELLED}", codec="utf-8"), min_size=1, max_size=6)
documents = st.dictionaries(
    st.text(st.sampled_from("ab/\n 🚀'"), min_size=1, max_size=6),
    st.dictionaries(st.integers(0, 5 * LINES_PER_BLOCK), texts, max_size=24),
    max_size=5,
)
Documents = dict[str, dict[int, str]]


def defined(kind: str, name: str, first: int, line: int, last: int) -> Definition:
    return Definition(kind, name, line, first, last)


definitions = st.lists(
    st.tuples(st.sampled_from(("function", "section")), st.text("abé. ", min_size=1), *[st.integers(0, 80)] * 3).map(
        lambda drawn: defined(*drawn[:2], *sorted(drawn[2:]))
    ),
    max_size=4,
).map(lambda found: sorted(found, key=lambda each: each.first))


def as_rows(given_documents: Documents) -> tuple[list[str], list[tuple[int, int, str]]]:
    """Return unordered paths, and rows (path index, line, text) in document and line order."""
    paths = list(given_documents)
    return paths, [
        (at, number, text) for at, path in enumerate(paths) for number, text in sorted(given_documents[path].items())
    ]


def numbers_of(rows: list[tuple[int, int, str]]) -> RowPositions:
    documents, numbers, columns = ([row[0] for row in rows], [row[1] for row in rows], [0] * len(rows))
    return RowPositions.of(*(pa.array(each, pa.int32()) for each in (documents, numbers, columns)))


def head_of(block: str) -> str:
    """Return a block without the words added for the index."""
    return re.sub(f"{SPELLED}[^\n]*", "", block, count=1)


def blocks_by_hand(given_documents: Documents) -> dict[tuple[str, int], str]:
    """Return the expected text of each block, by its path and its first line that has a row."""
    found: dict[tuple[str, int], str] = {}
    for path, lines in given_documents.items():
        for first in range(0, 6 * LINES_PER_BLOCK, LINES_PER_BLOCK):
            inside = [number for number in lines if first <= number < first + LINES_PER_BLOCK]
            if inside:
                shown = [lines.get(number, "") for number in range(first, max(inside) + 1)]
                found[path, min(inside)] = "\n".join([path, *shown])
    return found


@settings(max_examples=150, deadline=None)
@given(given_documents=documents)
def test_blocks_contain_their_path_and_lines(given_documents: Documents) -> None:
    paths, rows = as_rows(given_documents)
    found = blocks(
        paths,
        numbers_of(rows),
        pa.array([text for _, _, text in rows], pa.string()),
    ).to_pylist()
    assert len(found) == len(rows)
    whole = [None if block is None else head_of(block) for block in found]
    held = {(paths[at], number): block for (at, number, _), block in zip(rows, whole, strict=True) if block is not None}
    assert held == blocks_by_hand(given_documents)


@settings(max_examples=75, deadline=None)
@given(given_documents=documents, data=st.data())
def test_the_head_of_a_block_names_the_definition_that_it_begins_in(
    given_documents: Documents, data: st.DataObject
) -> None:
    paths, rows = as_rows(given_documents)
    outlines = [data.draw(definitions) for _ in paths]
    found = blocks(
        paths,
        numbers_of(rows),
        pa.array([text for _, _, text in rows], pa.string()),
        outlines,
    ).to_pylist()
    plain = blocks_by_hand(given_documents)
    for (at, number, _), block in zip(rows, found, strict=True):
        if block is not None:
            around = [each.name for each in outlines[at] if each.line < number <= each.last]
            head = f"{paths[at]}\t{around[-1]}" if around else paths[at]
            assert head_of(block) == head + plain[paths[at], number][len(paths[at]) :]


@settings(max_examples=75, deadline=None)
@given(given_documents=documents, data=st.data())
def test_candidates_are_the_lines_of_blocks_and_the_nearest_once_and_in_order(
    given_documents: Documents, data: st.DataObject
) -> None:
    paths, rows = as_rows(given_documents)
    outlines = [data.draw(definitions) for _ in paths]
    entity = Entity.parse("source:x")
    table = line_rows(
        entity,
        [ManifestRow(path, 0, 0, hash=f"hash of {path}") for path in paths],
        pa.array([at for at, _, _ in rows], pa.int32()),
        pa.array([number for _, number, _ in rows], pa.int32()),
        pa.array([text for _, _, text in rows], pa.string()),
        np.ones((len(rows), 4), np.float16),
        outlines,
    )
    starts = [at for at, block in enumerate(table["block"].to_pylist()) if block is not None]
    some = st.permutations(starts).flatmap(lambda order: st.integers(0, len(order)).map(lambda count: order[:count]))
    chosen = data.draw(some)
    near = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True, max_size=5) if rows else st.just([]))
    candidates = gather(lines_of(table.take(pa.array(chosen, pa.int64())), "x"), table.take(pa.array(near, pa.int64())))
    of_blocks = {(rows[at][0], rows[at][1] // LINES_PER_BLOCK) for at in chosen}
    expected = []
    for position, (at, number, text) in enumerate(rows):
        inside = (at, number // LINES_PER_BLOCK) in of_blocks
        if inside or position in near:
            around = [each for each in outlines[at] if inside and each.first <= number <= each.last]
            definition = around[-1] if around else None
            expected.append(((str(entity), paths[at], f"hash of {paths[at]}"), number, text, definition, inside))
    documents = [candidates.documents[at] for at in candidates.lines.document.tolist()]
    numbers = candidates.lines.number.tolist()
    innermost = [candidates.definition_of(at) for at in range(len(candidates))]
    known = (candidates.definition != UNKNOWN).tolist()
    found = [*zip(documents, numbers, candidates.texts, innermost, known, strict=True)]
    assert found == sorted(expected, key=lambda row: row[:2])
    for (_, path, _), number, block in zip(documents, numbers, candidates.block.tolist(), strict=True):
        if block >= 0:
            at, of_block, _ = rows[chosen[block]]
            assert (paths[at], of_block // LINES_PER_BLOCK) == (path, number // LINES_PER_BLOCK)


parts_of_lines = st.dictionaries(
    st.integers(0, 3 * LINES_PER_BLOCK), st.lists(texts, min_size=1, max_size=2 * LINES_PER_BLOCK + 2), max_size=6
)


@settings(max_examples=75, deadline=None)
@given(lines=parts_of_lines)
def test_the_rows_of_long_lines_come_back_from_their_blocks(lines: dict[int, list[str]]) -> None:
    rows = [
        (number, sum(map(len, parts[:at])), part)
        for number, parts in sorted(lines.items())
        for at, part in enumerate(parts)
    ]
    numbers, columns, parts = ([row[at] for row in rows] for at in range(3))
    table = line_rows(
        Entity.parse("source:x"),
        [ManifestRow("a.txt", 0, 0, hash="hash")],
        pa.array([0] * len(rows), pa.int32()),
        pa.array(numbers, pa.int32()),
        pa.array(parts, pa.string()),
        np.ones((len(rows), 4), np.float16),
        [[defined("section", "A", 0, 0, 99)]],
        pa.array(columns, pa.int32()),
    )
    assert len(set(table["id"].to_pylist())) == len(rows)
    begin = [at for at, block in enumerate(table["block"].to_pylist()) if block is not None]
    assert all(end - start <= LINES_PER_BLOCK for start, end in pairwise([*begin, len(rows)]))
    none = table.take(pa.array([], pa.int64()))
    candidates = gather(lines_of(table.take(pa.array(begin[::-1], pa.int64())), "x"), none)
    found = zip(candidates.lines.number.tolist(), candidates.column.tolist(), candidates.texts, strict=True)
    assert [*found] == rows
    assert all(candidates.definition_of(at) is not None for at in range(len(candidates)))


hits = st.lists(st.tuples(st.sampled_from(("a", "b")), st.integers(0, 90)), unique=True, max_size=40).map(
    lambda found: [hit(path, number, rank) for rank, (path, number) in enumerate(found)]
)


def hit(path: str, number: int, rank: int) -> FoundLine:
    distance = rank / 100
    return FoundLine(("e", path, "h"), number, 0, f"{path} {number}", distance, 1 - distance, -distance)


@settings(max_examples=300, deadline=None)
@given(rows=hits, reach=st.integers(0, 9), top_k=st.integers(1, 12))
def test_windows_contain_nearby_lines_and_never_touch(rows: list[FoundLine], reach: int, top_k: int) -> None:
    windows = merge_windows(rows, reach, top_k)
    assert len(windows) <= top_k
    assert [w.distance for w in windows] == sorted(w.distance for w in windows)
    if rows:
        assert (windows[0].path, windows[0].best) == (rows[0].document[1], rows[0].number)
    numbers = {(row.document[1], row.number) for row in rows}
    for at, window in enumerate(windows):
        assert window.first <= window.best <= window.last < window.first + MAX_WINDOW_LINES
        assert {(window.path, window.first), (window.path, window.last)} <= numbers
        assert window.text == f"{window.path} {window.best}"
        for other in windows[:at]:
            assert other.path != window.path or other.last + reach < window.first or window.last + reach < other.first
    if len(windows) < top_k:  # all hits were read: each is in a window or would make one too long
        for row in rows:
            of_file = [w for w in windows if w.path == row.document[1]]
            assert any(w.first - reach <= row.number <= w.last + reach for w in of_file), row
