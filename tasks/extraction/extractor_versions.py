"""Decide which documents to reread, from the marks of extractors and settings in the manifest (DESIGN, "Documents").

A new extractor version causes only the affected files to be reread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.defaults import Redaction
from driftline.storage.documents import INSIDE, NAMED_LIKE_ARCHIVE
from driftline.storage.redaction import split_mark
from driftline.tasks.extraction.extractor import (
    NAMED_LIKE_DOCUMENT,
    current_marks,
    is_named_like_document,
)

MISSING_MARK = r"(?:^|\+)\w+/0"
"""The mark of files whose extractor is not installed."""
ENDS_MARK = r"(?:^|\+)ends/"
"""The mark of files that are indexed only with their first and last lines."""


def ends_mark(most: int) -> str:
    """Return the mark of a file that was read only up to ``most`` bytes of its first and last lines."""
    return f"ends/{most}/gap"  # before, empty lines replaced all lines between them


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a run reads files: with which ``redaction``, and at most ``most`` bytes of a large file.

    ``opened`` is the mark of its settings for archives and email, "" if it does not open them. If ``outputs`` is set,
    it reads notebook outputs.
    """

    redaction: Redaction = "off"
    most: int = 0
    opened: str = ""
    outputs: bool = False

    def marks(self) -> frozenset[str]:
        """Return the possible parts of the files' marks, except for the redaction part."""
        own = {ends_mark(self.most), self.opened or UNOPENED, UNOPENED}
        return current_marks(outputs=self.outputs) | own


UNOPENED = "archive/0"
"""The mark of a member that no extractor can index."""


def outdated(paths: pa.ChunkedArray, marks: pa.ChunkedArray, how: ReadSettings) -> NDArray[np.bool_]:
    """Return an ``(n,) bool`` mask of files that a run would read differently than the last run.

    ``marks`` come from the manifest; files without an extractor mark were read as text.
    """
    known, current = pc.fill_null(marks, ""), how.marks()
    old, plain, unopened = list[str](), list[str](), list[str]()
    for mark in pc.unique(known).to_pylist():
        of_extractor, is_redacted = split_mark(mark, how.redaction)
        parts = _parts(of_extractor)
        if not is_redacted or not parts <= current:
            old.append(mark)
        elif not of_extractor:
            plain.append(mark)
        if how.opened and not parts & {how.opened, UNOPENED}:
            unopened.append(mark)
    result = pc.is_in(known, value_set=pa.array(old, pa.string()))
    named = pc.match_substring_regex(paths, NAMED_LIKE_DOCUMENT)
    result = pc.or_(result, pc.and_(pc.is_in(known, value_set=pa.array(plain, pa.string())), named))
    if unopened:
        lacking = pc.and_(
            pc.match_substring_regex(paths, NAMED_LIKE_ARCHIVE),
            pc.invert(pc.match_substring(paths, INSIDE)),  # opening the outermost container opens the nested ones
        )
        result = pc.or_(result, pc.and_(pc.is_in(known, value_set=pa.array(unopened, pa.string())), lacking))
    return np.asarray(result.to_numpy(), dtype=bool)


def is_current(path: str, mark: str, how: ReadSettings) -> bool:
    """Return whether a document with this ``mark`` was read the same way as a run with ``how`` would read it."""
    of_extractor, is_redacted = split_mark(mark, how.redaction)
    return is_redacted and (_parts(of_extractor) <= how.marks() if of_extractor else not is_named_like_document(path))


def _parts(mark: str) -> set[str]:
    return {part.removeprefix("-") for part in mark.split("+")} if mark else set()
