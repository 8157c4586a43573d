"""Translates the exceptions of Lance into Driftline's errors."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from driftline.storage.errors import StorageError, is_panic

REASON_CHARACTERS = 300
_FULL = re.compile(rf"os error ({errno.ENOSPC}|{errno.EDQUOT})\b")
_SOURCE_LINE = re.compile(r",? \S+\.rs:\d+:\d+")
"""The position in Lance's own source, which does not help the user."""


def write_failed(what: str, where: str, error: BaseException) -> StorageError:
    """``error`` as a StorageError about ``where``; the fix depends on whether the disk is full."""
    text = str(error).partition("\n")[0]
    reason = _SOURCE_LINE.sub("", text)[:REASON_CHARACTERS]
    fix = "Free some space and run again." if _FULL.search(text) else "Run it again."
    return StorageError(f"{what} ({reason})", where, fix)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, shortened."""
    return str(error).partition("\n")[0][:REASON_CHARACTERS]


def is_lance_failure(error: BaseException) -> bool:
    """Whether Lance raised ``error`` for a file that it could not read."""
    return isinstance(error, (OSError, ValueError)) or is_panic(error)


def is_conflict(error: BaseException) -> bool:
    """Whether Lance raised ``error`` because another commit came first."""
    return "commit conflict" in str(error).lower() or type(error).__name__ == "CommitConflictError"


@contextmanager
def writing(what: str, where: str) -> Iterator[None]:
    """Translate the exceptions of Lance into a StorageError that begins with ``what``."""
    try:
        yield
    except BaseException as error:
        if not is_lance_failure(error):
            raise
        raise write_failed(what, where, error) from error
