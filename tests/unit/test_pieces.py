"""A batch is split into pieces that are embedded one after another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.lines.line_table import LINES_PER_BLOCK
from driftline.tasks.indexing.batch import pieces
from driftline.tasks.text import split_documents

TEXTS = st.lists(st.text(st.sampled_from("ab \n"), max_size=300), max_size=5)


@given(TEXTS, st.integers(1, 120))
def test_all_pieces_together_have_the_lines_of_the_batch(texts: list[str], most: int) -> None:
    found: list[tuple[int, int, int, str]] = []
    for piece in pieces(texts, most):
        lines = piece.split()
        columns = (lines.doc_index, lines.line_number, lines.column_number, lines.text)
        found += zip(*(each.to_pylist() for each in columns), strict=True)
        assert piece.first_line % LINES_PER_BLOCK == 0
    whole = split_documents(texts, every_document=True)
    columns = (whole.doc_index, whole.line_number, whole.column_number, whole.text)
    assert found == [*zip(*(each.to_pylist() for each in columns), strict=True)]


@pytest.mark.parametrize("most", [100, 1_000])
def test_a_piece_exceeds_its_limit_only_slightly(most: int) -> None:
    text = "0123456789\n" * 5_000
    parts = [*pieces(["small", text, "small"], most)]
    assert max(len(part) for piece in parts for part in piece.texts) <= most + 11 * LINES_PER_BLOCK
    assert "".join(part for piece in parts for part in piece.texts) == f"small{text}small"


def test_omitted_text_of_long_lines_is_counted_by_document() -> None:
    assert [piece.split().left_out for piece in pieces(["a\n", "b" * 65_600 + "\n"], 1_000)] == [{}, {1: 64}]
