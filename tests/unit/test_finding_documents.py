"""Which of the documents that match some letters come first."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from driftline.tasks.search.documents import best_matches

PATHS = st.lists(st.text("abAB./", min_size=1, max_size=8), max_size=12)


@given(PATHS, st.text("ab.", min_size=1, max_size=3), st.integers(1, 5))
def test_names_come_before_paths_and_short_paths_before_long_ones(paths: list[str], sought: str, limit: int) -> None:
    def rank(path: str) -> tuple[bool, bool, bool, int, str]:
        name = path.lower().rpartition("/")[2]
        return not name.startswith(sought), sought not in name, sought not in path.lower(), len(path), path

    table = pa.table({"source": pa.repeat("source", len(paths)), "path": pa.array(paths, pa.string())})
    assert best_matches(table, sought, limit)["path"].to_pylist() == sorted(paths, key=rank)[:limit]
