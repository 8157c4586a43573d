"""The files of a local source: list, stat and read them without following a link (``sources.beneath``)."""

from __future__ import annotations

import errno
import stat
from collections.abc import Sequence

from driftline.storage.errors import ObjectNotFound
from driftline.storage.sources.beneath import Beneath
from driftline.storage.sources.errors import translate
from driftline.storage.sources.file_info import FileInfo

INODE_BITS = (1 << 63) - 1
"""What of an inode's number a signed column holds."""
VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a lookup through a folder that has vanished, or that is now a file or a link."""


def list_folder(root: str, prefix: str) -> tuple[Sequence[str], Sequence[FileInfo]]:
    """The folders (relative paths with a trailing slash) and the regular files directly in ``prefix``, each sorted.

    A missing ``prefix`` is empty. Raises AccessDenied, ObjectNotFound, StorageError.
    """
    folders: list[str] = []
    files: list[FileInfo] = []
    try:
        with Beneath(root) as tree:
            for entry in tree.entries(prefix):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{prefix}{entry.name}/")
                elif info := stat_file(tree, prefix + entry.name):
                    files.append(info)
    except OSError as error:
        if not prefix or error.errno not in VANISHED:
            raise translate(error, f"{root}/{prefix}") from error
    return sorted(folders), sorted(files, key=lambda info: info.path)


def stat_file(tree: Beneath, path: str) -> FileInfo | None:
    """The metadata of a regular file; None if there is none. Raises AccessDenied, StorageError."""
    try:
        status = tree.stat(path)
    except OSError as error:
        if error.errno in VANISHED:
            return None
        raise translate(error, f"{tree.root}/{path}") from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileInfo(
        path, status.st_size, status.st_mtime_ns, ctime_ns=status.st_ctime_ns, inode=status.st_ino & INODE_BITS
    )


def read_file(tree: Beneath, path: str) -> bytes:
    """The bytes of a regular file. Raises ObjectNotFound, AccessDenied, StorageError."""
    try:
        data = tree.read(path)
    except OSError as error:
        raise translate(error, f"{tree.root}/{path}") from error
    if data is None:
        raise ObjectNotFound("Not a regular file", f"{tree.root}/{path}")
    return data
