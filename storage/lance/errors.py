"""Translates the exceptions of Lance into Driftline's errors."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from driftline.storage.errors import StorageError

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


@contextmanager
def writing(what: str, where: str) -> Iterator[None]:
    """Translate the exceptions of Lance into a StorageError that begins with ``what``."""
    try:
        yield
    except OSError as error:
        raise write_failed(what, where, error) from error
