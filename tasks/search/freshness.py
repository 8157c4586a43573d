"""Whether the line behind a hit is still where the index says, judged by the file as it is now."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from driftline.storage.errors import DriftlineError, ObjectNotFound
from driftline.storage.ids import content_hash
from driftline.tasks.text import decode, rows_of_line, split_lines

Read = bytes | DriftlineError
"""What reading a document came to."""


class State(enum.StrEnum):
    """What has become of an indexed line."""

    FRESH = "fresh"
    MOVED = "moved"
    STALE = "stale"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Freshness:
    """The state of a line; ``line`` is its number now (1-based), None where it is stale or gone."""

    state: State
    line: int | None = None


def judge(text: str, line: int, current: Sequence[str], column: int = 0) -> Freshness:
    """What has become of ``text``, indexed as ``line`` (1-based), in a file whose lines are ``current`` now.

    It is the part of the line that begins at ``column`` (0-based), as ``tasks.text.rows_of_line`` cuts lines.

    A line that stands elsewhere has moved to the nearest place, the later of two that are as near.
    """

    def matches(number: int) -> bool:
        return 1 <= number <= len(current) and (column, text) in rows_of_line(current[number - 1])

    if matches(line):
        return Freshness(State.FRESH, line)
    for away in range(1, max(line, len(current) - line) + 1):
        for number in (line + away, line - away):
            if matches(number):
                return Freshness(State.MOVED, number)
    return Freshness(State.STALE)


def is_unchanged(read: Read | None, indexed_hash: str) -> bool:
    """Whether a document that was read still has the content whose hash stands in its rows."""
    return isinstance(read, bytes) and content_hash(read) == indexed_hash


def judge_read(text: str, line: int, read: Read | None, *, unchanged: bool, column: int = 0) -> Freshness | None:
    """As ``judge``, from what reading the document came to; None where that does not tell.

    A document that is ``unchanged``, as ``is_unchanged`` says, needs no look at its lines.
    """
    if isinstance(read, ObjectNotFound):
        return Freshness(State.GONE)
    if read is None or isinstance(read, DriftlineError):
        return None
    if unchanged:
        return Freshness(State.FRESH, line)
    content, reason = decode(read)
    return Freshness(State.STALE) if reason is not None else judge(text, line, split_lines(content), column)
