"""Pages of PDF are read by column and from the top down, however they were drawn, and tables by row."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

import pytest

from driftline.tasks.extraction.extractor import read_document
from driftline.tasks.extraction.html_pdf import Piece, ordered
from tests.support.documents import drawn, pdf

WORDS = """
the herons stand still at dawn and wait below a weir until some fish swim past which they catch then swallow while other
birds watch from reeds or willows near that pond because nobody else dares come close before noon
""".split()  # noqa: SIM905
ROWS = 6
HEADING = (60, 760, "Proceedings of the society for the observation of herons and of other birds, volume twelve")
FOOTNOTE = (60, 60, "This diary is kept in the archive of the society, where members may read it on weekdays only")
Drawn = tuple[float, float, str]


def columns(count: int, *, rows: int = ROWS) -> list[list[Drawn]]:
    """Return columns of lines of about the same width, each with its own first word."""
    starts = [[(column * rows + row) % len(WORDS) for row in range(rows)] for column in range(count)]
    width = 500 // count
    size = width // 28
    lines = [[" ".join((WORDS * 2)[start : start + size]) for start in each] for each in starts]
    return [[(50 + width * at, 700 - 14 * row, text) for row, text in enumerate(each)] for at, each in enumerate(lines)]


def read(*texts: Drawn, quarters: int = 0) -> list[str]:
    return read_document("a.pdf", pdf(drawn(*texts, quarters=quarters))).extracted.text.splitlines()


def by_row(found: Sequence[Sequence[Drawn]]) -> list[Drawn]:
    return [text for row in zip(*found, strict=True) for text in row]


def texts(found: Sequence[Drawn]) -> list[str]:
    return [text for _, _, text in found]


def in_columns(found: Sequence[Sequence[Drawn]]) -> list[str]:
    return [text for column in found for text in texts(column)]


@pytest.mark.parametrize("quarters", range(4))
@pytest.mark.parametrize("upwards", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_columns_drawn_row_by_row_are_read_one_by_one(count: int, upwards: bool, quarters: int) -> None:
    found = columns(count)
    order = sorted(by_row(found), key=lambda text: text[1]) if upwards else by_row(found)
    assert read(*order, quarters=quarters) == in_columns(found)


def test_columns_whose_lines_are_not_level_are_read_one_by_one() -> None:
    left, right = columns(2)
    right = [(x, y - 7, text) for x, y, text in right]
    assert read(*by_row([left, right])) == in_columns([left, right])


@pytest.mark.parametrize("upwards", [False, True])
def test_lines_across_the_columns_stay_above_and_below(upwards: bool) -> None:
    found = columns(2, rows=8)
    order = [HEADING, *by_row(found), FOOTNOTE]
    if upwards:
        order.reverse()
    assert read(*order) == [HEADING[2], *in_columns(found), FOOTNOTE[2]]


def test_a_head_beside_its_page_number_precedes_the_columns() -> None:
    found = columns(2)
    assert read((50, 760, "HERONS"), (540, 760, "12"), *by_row(found)) == ["HERONS 12", *in_columns(found)]


@pytest.mark.parametrize("quarters", range(4))
def test_a_page_drawn_from_the_bottom_up_is_read_from_the_top_down(quarters: int) -> None:
    (found,) = columns(1)
    assert read(*reversed(found), quarters=quarters) == texts(found)


TABLES: list[list[list[str]]] = [
    [[f"heron {row}", str(row * 77)] for row in range(8)],
    [[f"bird {row}", str(row * 77), str(row * 5), "north"] for row in range(8)],
    [[f"Option {word} of the program", f"Sets how many {word} nests it counts"] for word in WORDS[:8]],
    [[f"number of nests {word} the pond", f"as counted by wardens in {1990 + len(word)}"] for word in WORDS[:8]],
]


@pytest.mark.parametrize("upwards", [False, True])
@pytest.mark.parametrize("rows", TABLES)
def test_a_table_is_read_by_row(rows: list[list[str]], upwards: bool) -> None:
    width = 500 // len(rows[0])
    cells = [(50 + width * at, 700 - 14 * y, cell) for y, row in enumerate(rows) for at, cell in enumerate(row)]
    order = sorted(cells, key=lambda cell: cell[1]) if upwards else cells
    assert " ".join(read(*order)) == " ".join(" ".join(row) for row in rows)


@pytest.mark.parametrize("found", [columns(2)[::-1], [[FOOTNOTE, HEADING], *columns(3)]])
def test_an_order_that_is_neither_upwards_nor_by_row_is_kept(found: list[list[Drawn]]) -> None:
    order = [text for column in found for text in column]
    assert read(*order) == texts(order)


def test_a_page_with_text_in_two_directions_is_kept() -> None:
    found = by_row(columns(2))
    page = drawn(*found) + " " + drawn((20, 300, "arXiv"), quarters=1)
    assert " ".join(read_document("a.pdf", pdf(page)).extracted.text.split()) == " ".join([*texts(found), "arXiv"])


def test_the_right_column_of_a_right_to_left_page_is_read_first() -> None:
    rows = [
        [Piece(x, 100 - y, x + 90, 109 - y, f"\u05d0{chr(0x5D0 + y // 10)} \u05d1 {x}") for x in (110, 0)]
        for y in range(0, 60, 10)
    ]
    found = ordered([piece for row in rows for piece in row])
    assert found == [row[at].text for at in (0, 1) for row in rows]


@pytest.mark.parametrize("broken", [(inf, inf), (-inf, 0), (nan, nan), (200, 100)])
def test_a_page_with_an_impossible_box_is_kept(broken: tuple[float, float]) -> None:
    rows = [Piece(0, 14 * row, 100, 14 * row + 10, f"line {row}") for row in range(ROWS)]
    left, right = broken
    assert ordered([*rows, Piece(left, 0, right, 10, "broken")]) is None
