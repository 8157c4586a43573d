"""Compare a hit with the current file: fresh, moved, stale or gone (DESIGN, "Search").

Every interface shows this state, so that an outdated index does not mislead.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from driftline.storage.defaults import DEFAULT_REDACTION, Redaction
from driftline.storage.documents import content_hash
from driftline.storage.errors import DriftlineError, ObjectNotFound
from driftline.storage.redaction import is_redacted, redact
from driftline.tasks.extraction.extractor import is_extracted
from driftline.tasks.text import decode, rows_of_line, split_lines

Read = bytes | DriftlineError
"""The result of reading a document."""


class State(enum.StrEnum):
    """The state of an indexed line."""

    FRESH = "fresh"
    MOVED = "moved"
    STALE = "stale"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Freshness:
    """A line's state; ``line`` is its current number (1-based), None if it is stale or gone."""

    state: State
    line: int | None = None


class CurrentLines:
    """The ``lines`` of a document as it is now."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines

    @cached_property
    def numbers(self) -> Mapping[tuple[int, str], Sequence[int]]:
        """The numbers (1-based, ascending) of the lines that have each row, ``(column, text)``."""
        numbers: dict[tuple[int, str], list[int]] = {}
        for number, line in enumerate(self.lines, start=1):
            for row in rows_of_line(line):
                numbers.setdefault(row, []).append(number)
        return numbers


def freshness_of(text: str, line: int, current: CurrentLines, column: int = 0) -> Freshness:
    """Determine the freshness of ``text``, indexed as ``line`` (1-based), in a file whose lines are now ``current``.

    ``text`` is the part of the line that starts at ``column`` (0-based), as split by ``tasks.text.rows_of_line``. A
    line found elsewhere is treated as moved to the nearest equal line, or to the later of two equally near ones.
    """
    if 1 <= line <= len(current.lines) and (column, text) in rows_of_line(current.lines[line - 1]):
        return Freshness(State.FRESH, line)
    numbers = current.numbers.get((column, text))
    if numbers is None:
        return Freshness(State.STALE)
    return Freshness(State.MOVED, min(numbers, key=lambda number: (abs(number - line), -number)))


LinesOfData = Callable[[bytes, Redaction | None], CurrentLines | None]


def current_lines(data: bytes, redaction: Redaction | None) -> CurrentLines | None:
    """Return the lines of a document's ``data``, redacted unless ``redaction`` is None, or None if it is not text."""
    content, reason = decode(data)
    if reason is not None:
        return None
    return CurrentLines(split_lines(redact([content], redaction)[0][0] if redaction is not None else content))


def is_unchanged(read: Read | None, indexed_hash: str) -> bool:
    """Return whether a document that was read still has the indexed hash."""
    return isinstance(read, bytes) and content_hash(read) == indexed_hash


def freshness_after_read(
    text: str,
    line: int,
    read: Read | None,
    *,
    unchanged: bool,
    column: int = 0,
    path: str = "",
    redaction: Redaction = DEFAULT_REDACTION,
    lines_of_data: LinesOfData = current_lines,
) -> Freshness | None:
    """Like ``freshness_of``, from the result of reading the document, or None if that is inconclusive.

    Lines of an ``unchanged`` document (``is_unchanged``) are not compared. Text is not extracted again from a changed
    document. ``redaction`` is the source's setting. A search passes a cached ``current_lines``: many of its hits may
    be in one large changed file.
    """
    if isinstance(read, ObjectNotFound):
        return Freshness(State.GONE)
    if read is None or isinstance(read, DriftlineError):
        return None
    if unchanged:
        return Freshness(State.FRESH, line)
    if is_extracted(path, read):
        return None
    current = lines_of_data(read, redaction if is_redacted(text) else None)
    return freshness_of(text, line, current, column) if current is not None else Freshness(State.STALE)
