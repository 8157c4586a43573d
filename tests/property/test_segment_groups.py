"""For any history of a table, maintenance covers enough rows, replaces whole segments, and ends."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.lines import indexes
from driftline.storage.lines.indexes import groups_to_build

STEPS = st.lists(
    st.tuples(st.lists(st.integers(1, 120), max_size=4), st.sets(st.integers(0, 30), max_size=3), st.booleans()),
    max_size=25,
)


@given(STEPS)
def test_segments_follow_the_fragments(steps: list[tuple[list[int], set[int], bool]]) -> None:
    rows: dict[int, int] = {}
    segments: list[set[int]] = []
    born = 0
    with patch.multiple(indexes, SEGMENT_ROWS=100, SMALL_SEGMENT_ROWS=50, MAX_SMALL_SEGMENTS=3, MAX_UNINDEXED_ROWS=10):
        for added, gone, thorough in steps:
            for size in added:
                rows[born], born = size, born + 1
            rows = {fragment: size for fragment, size in rows.items() if fragment not in gone}
            groups = groups_to_build(rows, segments, thorough=thorough)
            covered = set().union(*groups)
            replaced = [segment for segment in segments if segment & covered]
            assert all(segment & rows.keys() <= covered for segment in replaced), "segments are replaced whole"
            segments = [segment for segment in segments if segment not in replaced] + [set(group) for group in groups]
            live = [segment & rows.keys() for segment in segments]
            assert sum(map(len, live)) == len(set().union(*live)), "no fragment is covered twice"
            uncovered = sum(size for fragment, size in rows.items() if not any(fragment in each for each in live))
            assert uncovered <= (0 if thorough else 10)
            small = [each for each in live if each and sum(rows[fragment] for fragment in each) < 50]
            assert len(small) <= 3
            assert groups_to_build(rows, segments) == [], "a second look finds nothing to do"
            if thorough:
                assert groups_to_build(rows, segments, thorough=True) == [], "nor does a second compaction"
