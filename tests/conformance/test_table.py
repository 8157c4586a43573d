"""The conformance table is complete: each line has a test, and each test has a line."""

from __future__ import annotations

import pytest

from tests.conformance.table import ROWS, Row, carried_rows

pytestmark = pytest.mark.xdist_group("conformance table")


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_no_row_is_missing(row: Row) -> None:
    assert carried_rows().get(row), f"no test carries {row.document} {row.number}"


def test_every_row_appears_once() -> None:
    assert len(set(ROWS)) == len(ROWS)


def test_every_conformance_test_names_an_existing_row() -> None:
    assert {row: tests for row, tests in carried_rows().items() if row not in ROWS} == {}


def test_no_test_is_excused(request: pytest.FixtureRequest) -> None:
    """Conformance tests pass or fail: none is skipped or expected to fail."""
    excuses = ("skip", "skipif", "xfail")
    ours = [item for item in request.session.items if item.get_closest_marker("criterion")]
    assert [item.nodeid for item in ours if any(map(item.get_closest_marker, excuses))] == []
