"""Decide which sources a workspace may read, and read files without following links out of their folder (DESIGN,
"Threat model").

A path may change between listing and reading. A lookup by path would follow a folder replaced by a link; a lookup from
descriptor to descriptor cannot.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from driftline.storage.errors import UsageError

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
# must not block on a pipe that replaced a file
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """A policy for reading sources ("Threat model").

    Other users may have written the workspace's records, so a record alone does not grant access.

    Remote sources may only be read at or below one of ``roots``, the URIs and folders given by the caller. Local
    sources may also be read at or below ``folder``, or anywhere if that is None.
    """

    roots: tuple[str, ...] = ()
    folder: str | None = None

    def allows(self, uri: str) -> bool:
        """Return whether the source at the recorded ``uri`` may be read. Accesses neither network nor disk."""
        is_local = "://" not in uri and "::" not in uri
        if is_local and self.folder is None:
            return True
        if is_local and os.path.normpath(uri) != uri:
            return False
        roots = self.roots if self.folder is None or not is_local else (*self.roots, self.folder)
        return any(uri == root or uri.startswith(f"{root.rstrip('/')}/") for root in roots)


LOCAL = SourceAccess()
"""Allows all local sources, and no remote ones."""


class SafeFolder:
    """The tree under ``root``; a context manager. Paths are relative and POSIX-style; folders are "" or end in a slash.

    Keeps a descriptor for each folder on the way to the latest path, so neighbours cost one lookup. Not thread-safe.
    All methods raise OSError (ELOOP or ENOTDIR if a component is a link). Raises UsageError in a process that does not
    decode names as UTF-8.
    """

    def __init__(self, root: str) -> None:
        check_names_are_utf8()
        self.root = root
        self._path: str | None = None
        self._names: list[str] = []
        self._descriptors: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._path = None
        self._keep(0)

    def folder(self, path: str) -> int:
        """Return a folder's descriptor for the ``dir_fd`` of ``os`` functions, valid until the next call."""
        if path == self._path:
            return self._descriptors[-1]
        self._path = None
        names = ["", *path.rstrip("/").split("/")] if path else [""]
        shared = 0
        for name, known in zip(names, self._names, strict=False):
            if name != known:
                break
            shared += 1
        self._keep(shared)
        for name in names[shared:]:
            if not self._descriptors:
                descriptor = os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
            else:
                descriptor = os.open(name, _FOLDER, dir_fd=self._descriptors[-1])
            self._descriptors.append(descriptor)
            self._names.append(name)
        self._path = path
        return self._descriptors[-1]

    def entries(self, path: str) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of a folder.

        Their ``path`` is only their name, and ``stat`` works only during iteration.
        """
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.folder(path))
        try:
            with os.scandir(descriptor) as entries:
                yield from entries
        finally:
            os.close(descriptor)

    def stat(self, path: str) -> os.stat_result:
        """Return the metadata of a file, a link or anything else."""
        start = path.rfind("/") + 1
        return os.stat(path[start:], dir_fd=self.folder(path[:start]), follow_symlinks=False)

    def read(self, path: str, limit: int = -1) -> bytes | None:
        """Return the first ``limit`` bytes (default: all) of a regular file, or None for anything else."""
        start = path.rfind("/") + 1
        return read_regular(path[start:], limit, dir_fd=self.folder(path[:start]))

    def chunks(self, path: str, size: int) -> Iterator[bytes]:
        """Yield a regular file's bytes in parts of ``size``; yield nothing for anything else."""
        start = path.rfind("/") + 1
        with _open_regular(path[start:], self.folder(path[:start])) as file:
            while file is not None and (chunk := file.read(size)):
                yield chunk

    def _keep(self, depth: int) -> None:
        while len(self._descriptors) > depth:
            self._names.pop()
            os.close(self._descriptors.pop())


def check_names_are_utf8() -> None:
    """Raise UsageError unless this process decodes file names as UTF-8; otherwise, documents would seem deleted."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8":
        raise UsageError(
            f"This process decodes file names as {encoding}, so it would not recognize documents",
            fix="Set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8, before Python starts.",
        )


def read_regular(path: str, limit: int = -1, *, dir_fd: int | None = None) -> bytes | None:
    """Return the first ``limit`` bytes (default: all) of a regular file, or None for a folder, pipe, socket or device.

    Follows no link. Raises OSError.
    """
    with _open_regular(path, dir_fd) as file:
        return file.read(limit) if file is not None else None


@contextmanager
def _open_regular(path: str, dir_fd: int | None) -> Iterator[BinaryIO | None]:
    """Open a regular file, or return None for anything else."""
    descriptor = os.open(path, _FILE, dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            yield None
            return
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def only_owner_reads(folder: str) -> bool:
    """Return whether group and others cannot read ``folder``, because of its own mode or a parent folder's."""
    root = Path(os.path.realpath(folder))
    try:
        own = root.stat().st_mode
        above = [parent.stat().st_mode for parent in root.parents]
    except OSError:
        return False
    others = own & stat.S_IROTH and all(mode & stat.S_IXOTH for mode in above)
    group = own & stat.S_IRGRP and all(mode & (stat.S_IXGRP | stat.S_IXOTH) for mode in above)
    return not others and not group
