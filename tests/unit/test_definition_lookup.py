"""Definitions are found by the ends of their names, in the block with the name."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from driftline.storage.lines.definition_lookup import _Definitions
from driftline.storage.lines.line_table import LINES_PER_BLOCK
from driftline.storage.lines.outline import Anchor, Definition, encode

TABLE = Definition("class", "Table", 0, 0, 999)
DEFINED = (
    TABLE,
    Definition("method", "Table.get", 17, 16, 20),
    Definition("method", "Table.widget", 18, 18, 20),
    Definition("function", "GET", 33, 33, 34),
    Definition("function", "straße", 49, 49, 50),
    Definition("function", "read_the_whole_table", 50, 50, 51),
    Definition("function", "write_the_whole_table", 51, 51, 52),
    Definition("function", "İstanbul", 52, 52, 53),
    Definition("function", "ΣΊΣΥΦΟΣ", 53, 53, 54),
    Definition("section", "Why get", 65, 65, 70),
    Definition("key", "get", 81, 81, 81),
)


def blocks(definitions: Sequence[Definition], count: int, *, batch: int = 1_000) -> pa.Table:
    """Return the outlines of a document's first blocks, with an anchor in each, and row ids from 100 on."""
    outlines = []
    for first in range(0, count * LINES_PER_BLOCK, LINES_PER_BLOCK):
        last = first + LINES_PER_BLOCK - 1
        outlines.append(
            encode(
                [each for each in definitions if each.first <= last and each.last >= first],
                [Anchor("get", first, last)],
            )
        )
    rows = pa.table(
        {
            "outline": pa.array(["", *outlines], pa.string()),
            "line_number": pa.array([0, *range(0, count * LINES_PER_BLOCK, LINES_PER_BLOCK)], pa.int32()),
            "_rowid": pa.array(range(99, 100 + count), pa.uint64()),
        }
    )
    return pa.concat_tables([rows[at : at + batch] for at in range(0, len(rows), batch)])


@pytest.mark.parametrize("batch", [1, 3, 1_000])
@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("get", [(101, "Table.get"), (102, "GET"), (104, "Why get")]),
        ("Table", [(100, "Table")]),
        ("STRASSE", []),
        ("STRAßE", [(103, "straße")]),
        ("read_the_whole_table", [(103, "read_the_whole_table"), (103, "write_the_whole_table")]),
        ("İSTANBUL", [(103, "İstanbul")]),
        ("ΣΊΣΥΦΟΣ", [(103, "ΣΊΣΥΦΟΣ")]),
        ("missing", []),
    ],
)
def test_each_definition_is_found_in_the_block_with_its_name(
    part: str, found: list[tuple[int, str]], batch: int
) -> None:
    definitions = _Definitions.of(blocks(DEFINED, 10, batch=batch))
    assert [(row, each.name) for row, each in definitions.ending_in(part)] == found


def test_a_table_without_blocks_has_no_definitions() -> None:
    for empty in (blocks((), 0)[:0], blocks((), 3)):
        definitions = _Definitions.of(empty)
        assert [*definitions.ending_in("get")] == []


def test_definitions_take_memory_once_not_in_each_of_their_blocks() -> None:
    one, many = (_Definitions.of(blocks((TABLE,), count)) for count in (1, 60))
    assert many.nbytes == one.nbytes < 100


def test_definitions_of_many_batches_are_taken_from_one_chunk() -> None:
    assert _Definitions.of(blocks(DEFINED, 10, batch=1)).entries.num_chunks == 1
