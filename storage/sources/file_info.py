"""The metadata of one file of a source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file: ``path`` is relative to the source and posix; ``etag`` is "" and the other metadata 0 where unknown."""

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""
    ctime_ns: int = 0
    inode: int = 0
