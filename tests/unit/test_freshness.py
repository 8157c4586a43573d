"""The freshness of a hit: whether its line is still where the index says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.errors import AccessDenied, ObjectNotFound
from driftline.tasks.search.freshness import (
    CurrentLines,
    Freshness,
    Read,
    State,
    freshness_after_read,
    freshness_of,
    is_unchanged,
)
from driftline.tasks.search.hits import lines_to_skip
from driftline.tasks.text import MAX_ROW_CHARACTERS, rows_of_line


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (["one", "two", "three"], Freshness(State.FRESH, 2)),
        (["zero", "one", "two"], Freshness(State.MOVED, 3)),
        (["two"], Freshness(State.MOVED, 1)),
        (["two", "x", "two"], Freshness(State.MOVED, 3)),
        (["two", "x", "y", "two"], Freshness(State.MOVED, 1)),
        (["one", "two ", "three"], Freshness(State.STALE)),
        ([], Freshness(State.STALE)),
    ],
)
def test_a_line_is_fresh_moved_or_stale(current: list[str], expected: Freshness) -> None:
    assert freshness_of("two", 2, CurrentLines(current)) == expected


@given(st.lists(st.sampled_from("abc"), max_size=12), st.sampled_from("abc"), st.integers(1, 15))
def test_the_reported_location_is_the_nearest_that_holds_the_line(current: Sequence[str], text: str, line: int) -> None:
    found = freshness_of(text, line, CurrentLines(current))
    locations = [number for number, content in enumerate(current, 1) if content == text]
    assert (found.state is State.STALE) == (not locations)
    if locations:
        assert found.line in locations
        assert abs(found.line - line) == min(abs(location - line) for location in locations)
        assert (found.state is State.FRESH) == (found.line == line)


def test_each_part_of_a_long_line_is_compared_with_the_same_part() -> None:
    long = "word " * MAX_ROW_CHARACTERS
    for column, part in rows_of_line(long):
        assert freshness_of(part, 1, CurrentLines([long]), column) == Freshness(State.FRESH, 1)
        assert freshness_of(part, 1, CurrentLines(["new", long]), column) == Freshness(State.MOVED, 2)
        assert freshness_of(part, 1, CurrentLines([long.replace("w", "W")]), column) == Freshness(State.STALE)


def test_the_outcome_of_the_read_decides() -> None:
    data = b"one\ntwo\n"

    def judged(read: Read | None) -> Freshness | None:
        return freshness_after_read("two", 2, read, unchanged=is_unchanged(read, digest(data)))

    assert judged(data) == Freshness(State.FRESH, 2)
    assert judged(b"two\n") == Freshness(State.MOVED, 1)
    assert judged(b"\0binary") == Freshness(State.STALE)
    assert judged(ObjectNotFound("Not found", "x")) == Freshness(State.GONE)
    assert judged(AccessDenied("Access denied", "x")) is None
    assert judged(None) is None


STARRED = ["use x;", "/**", " * Locks a file.", " * Waits.", " */", "fn lock() {", "    wait();"]
HASHED = ["import os", "# Locks a file.", "# Waits.", "# Retries.", "def lock():", "    wait()"]


@pytest.mark.parametrize(
    ("lines", "first", "best", "skipped"),
    [
        (STARRED, 3, 6, 1),  # inside the comment: shown from its start
        (STARRED, 4, 6, 1),
        (STARRED, 1, 6, 1),
        (STARRED, 5, 6, 5),  # after it
        (STARRED[2:], 1, 4, 3),  # its start is too far away: left out
        (STARRED[2:], 1, 1, 1),  # but never the best line
        (HASHED, 3, 5, 1),
        (HASHED[1:], 2, 4, 3),
        (["#include <a>", "#include <b>", "int x;"], 1, 2, 1),
        (["ls src/*.py", "x", "y"], 1, 2, 1),
    ],
)
def test_a_hit_does_not_begin_in_the_middle_of_a_comment(lines: list[str], first: int, best: int, skipped: int) -> None:
    assert lines_to_skip(lines, 100, 100 + first, 100 + best) == skipped


def test_a_comment_at_the_top_of_a_file_is_shown_from_its_first_line() -> None:
    assert lines_to_skip(HASHED[1:], 0, 2, 4) == 0
    assert lines_to_skip([*HASHED[1:4] * 20, "x = 1"], 0, 59, 60) == 60, "a comment that is too long to show"
