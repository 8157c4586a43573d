"""Segments of indexes so small that a small tree has several."""

from __future__ import annotations

import pytest

from driftline.storage.lines import segment_groups, segments


def small_segments(monkeypatch: pytest.MonkeyPatch, *, rows: int) -> None:
    """Make segments of ``rows`` rows while a run goes on, and merge them into twice as many."""
    monkeypatch.setattr(segments, "MIN_ROWS_FOR_VECTOR_INDEX", 1)
    monkeypatch.setattr(segments, "SMALL_SEGMENT_ROWS", rows)
    monkeypatch.setattr(segment_groups, "SMALL_SEGMENT_ROWS", rows)
    monkeypatch.setattr(segment_groups, "SEGMENT_ROWS", 2 * rows)
    monkeypatch.setattr(segment_groups, "MAX_SMALL_SEGMENTS", 2)
    monkeypatch.setattr(segment_groups, "MAX_UNINDEXED_ROWS", 5)
