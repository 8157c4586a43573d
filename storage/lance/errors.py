"""What Lance raises when it cannot write, as an error of ours."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from driftline.storage.errors import StorageError

REASON_CHARACTERS = 300
_FULL = re.compile(rf"os error ({errno.ENOSPC}|{errno.EDQUOT})\b")
_SOURCE_LINE = re.compile(r",? \S+\.rs:\d+:\d+")
"""Where in its own source Lance noticed it: of no use to the reader."""


def write_failed(what: str, where: str, error: BaseException) -> StorageError:
    """``error`` as a StorageError about ``where``; a full disk asks for room, anything else for another run."""
    text = str(error).partition("\n")[0]
    reason = _SOURCE_LINE.sub("", text)[:REASON_CHARACTERS]
    fix = "Free some space and run again." if _FULL.search(text) else "Run it again."
    return StorageError(f"{what} ({reason})", where, fix)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, shortened."""
    return str(error).partition("\n")[0][:REASON_CHARACTERS]


@contextmanager
def writing(what: str, where: str) -> Iterator[None]:
    """Raises a StorageError, which begins with ``what``, when Lance fails."""
    try:
        yield
    except OSError as error:
        raise write_failed(what, where, error) from error
