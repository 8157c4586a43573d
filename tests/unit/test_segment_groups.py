"""Fragments are grouped into a few segments that replace others entirely and cover nothing twice."""

from __future__ import annotations

import pytest

from driftline.storage.lines import indexes
from driftline.storage.lines.indexes import groups_to_build, packed


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "SEGMENT_ROWS", 100)
    monkeypatch.setattr(indexes, "SMALL_SEGMENT_ROWS", 50)
    monkeypatch.setattr(indexes, "MAX_SMALL_SEGMENTS", 3)
    monkeypatch.setattr(indexes, "MAX_UNINDEXED_ROWS", 10)


def test_fragments_are_packed_in_order_and_large_ones_are_alone() -> None:
    rows = {3: 40, 1: 60, 2: 40, 7: 500, 9: 1, 10: 30}
    assert packed(rows, rows) == [(1,), (2, 3, 9), (7,), (10,)]


def test_the_first_build_covers_even_a_few_rows() -> None:
    assert groups_to_build({0: 1}, []) == [(0,)]
    assert groups_to_build({}, []) == []


def test_a_few_rows_are_scanned_and_more_get_a_segment() -> None:
    assert groups_to_build({0: 90, 1: 10}, [{0}]) == []
    assert groups_to_build({0: 90, 1: 11}, [{0}]) == [(1,)]


def test_one_segment_above_the_limit_merges_only_the_small_ones() -> None:
    rows = {0: 90, 1: 11, 2: 11, 3: 11, 4: 11}
    assert groups_to_build(rows, [{0}, {1}, {2}, {3}]) == [(1, 2, 3, 4)]


def test_segments_of_fragments_that_are_gone_do_not_count() -> None:
    assert groups_to_build({0: 90, 5: 11}, [{0}, {1, 2}, {3}, {4}]) == [(5,)]


def test_a_thorough_plan_covers_every_row_and_merges_small_segments() -> None:
    rows = {0: 90, 1: 11, 2: 6}
    assert groups_to_build(rows, [{0}, {1}], thorough=True) == [(1, 2)]
    assert groups_to_build(rows, [{0}, {1, 2}], thorough=True) == []
    assert groups_to_build({0: 90, 1: 5}, [{0}], thorough=True) == [(1,)]


def test_a_small_segment_is_not_merged_with_new_rows_that_it_outweighs() -> None:
    rows = {0: 90, 1: 40, 2: 11, 3: 2}
    assert groups_to_build(rows, [{0}, {1}, {2}], thorough=True) == [(3,)]
    assert groups_to_build(rows | {4: 6}, [{0}, {1}, {2}, {3}], thorough=True) == [(2, 3, 4)]
    assert groups_to_build(rows | {4: 19}, [{0}, {1}, {2}, {3}], thorough=True) == [(1, 2, 3, 4)]


def test_tiny_segments_are_merged_even_if_they_outweigh_the_rest() -> None:
    assert groups_to_build({0: 90, 1: 8, 2: 1}, [{0}, {1}], thorough=True) == [(1, 2)]
