"""Index segments so small that a small tree has several."""

from __future__ import annotations

import pytest

from driftline.storage.lines import indexes


def small_segments(monkeypatch: pytest.MonkeyPatch, *, rows: int) -> None:
    """Make segments of ``rows`` rows during a run, and merge them into segments of twice as many."""
    monkeypatch.setattr(indexes, "MIN_ROWS_FOR_VECTOR_INDEX", 1)
    monkeypatch.setattr(indexes, "SMALL_SEGMENT_ROWS", rows)
    monkeypatch.setattr(indexes, "SMALL_SEGMENT_ROWS", rows)
    monkeypatch.setattr(indexes, "SEGMENT_ROWS", 2 * rows)
    monkeypatch.setattr(indexes, "MAX_SMALL_SEGMENTS", 2)
    monkeypatch.setattr(indexes, "MAX_UNINDEXED_ROWS", 5)
