"""Guard the standard streams of a command against full disks, closed pipes, and streams that were never open."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, BinaryIO, TextIO

from driftline.flows.output.plain import warn
from driftline.storage.errors import StorageError

_FAILED = 3


class Unwritable(OSError):
    """A failed write to standard output; a workspace on a full disk fails with another error."""


_failures: list[Unwritable] = []
"""Failed writes; the library of the command line swallows those of its help."""


class _Output(io.TextIOWrapper):
    """Standard output: a closed pipe (``| head``) is not an error, any other failed write raises Unwritable."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            return self._failed(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # Python writes its buffer again at exit
        if isinstance(error, BrokenPipeError):
            return 0
        _failures.append(Unwritable(error.errno, error.strerror))
        raise _failures[0] from error


class _Closed(io.TextIOBase):
    """Standard output of a process that was started without one."""

    encoding = "utf-8"

    @property
    def buffer(self) -> BinaryIO:
        raise Unwritable(errno.EBADF, "it is closed")

    def writable(self) -> bool:
        return True

    def write(self, _: str) -> int:
        raise Unwritable(errno.EBADF, "it is closed")


def guard() -> None:
    """Make failed writes to standard output raise Unwritable, and replace closed streams."""
    if sys.stdin is None:
        sys.stdin = _devnull()
    if sys.stderr is None:
        sys.stderr = _devnull()
    out: object = sys.stdout
    if out is None:
        sys.stdout = _Closed()
    elif isinstance(out, io.TextIOWrapper):
        options: dict[str, Any] = {"line_buffering": out.line_buffering, "write_through": out.write_through}
        encoding, errors = out.encoding, out.errors
        sys.stdout = _Output(out.detach(), encoding=encoding, errors=errors, **options)


def unwritable(error: Unwritable) -> StorageError:
    """Return the error for a failed write to standard output."""
    return StorageError("Standard output cannot be written", str(error.strerror), "Redirect it elsewhere.")


def flushed(code: int) -> int:
    """Write buffered output; return ``code``, or that of a failure."""
    try:
        sys.stdout.flush()
        if _failures and code == 0:
            raise _failures[0]
    except Unwritable as error:
        warn(str(unwritable(error)))
        return _FAILED
    return code


def _devnull() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_RDWR), "w")
