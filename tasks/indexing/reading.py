"""Read the files of a batch: consistent bytes and metadata, or the reason why a file cannot be indexed."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from driftline.storage.errors import AccessDenied, DriftlineError, ObjectNotFound, SourceNotFound, StorageError
from driftline.storage.ids import content_hash
from driftline.storage.model import SkipReason
from driftline.storage.sources.file_info import FileInfo
from driftline.storage.sources.local_tree import read_file, stat_file
from driftline.storage.sources.source import Source
from driftline.tasks.scanning.diff import CTIME_TICK_NS, RACY_NS
from driftline.tasks.text import MAX_TEXT_BYTES

READ_ATTEMPTS = 3
_STATUS = ("size_bytes", "mtime_ns", "ctime_ns", "inode")
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The metadata, bytes and hash of a file. A ``racy`` file may change again within the same tick of its clock."""

    info: FileInfo
    data: bytes
    content_hash: str
    racy: bool


def read_all(
    source: Source, changes: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], ReadFile | SkipReason]]:
    """Each of ``changes`` (``diff.CHANGE_SCHEMA``) with its file or skip reason, in order. Raises StorageError."""
    files = (_read_local(source, change) for change in changes) if source.is_local else _read_remote(source, changes)
    return zip(changes, map(_checked, files), strict=True)


def _checked(read: ReadFile | SkipReason) -> ReadFile | SkipReason:
    """A file may have grown since the listing."""
    return SkipReason.TOO_LARGE if isinstance(read, ReadFile) and len(read.data) > MAX_TEXT_BYTES else read


def _read_remote(source: Source, changes: Sequence[dict[str, Any]]) -> Iterator[ReadFile | SkipReason]:
    for change, data in zip(changes, source.read_many([c["path"] for c in changes]), strict=True):
        if isinstance(data, (ObjectNotFound, SourceNotFound)):
            yield SkipReason.UNSTABLE
        elif isinstance(data, AccessDenied):
            yield SkipReason.UNREADABLE
        elif isinstance(data, DriftlineError):
            raise data
        else:
            yield _as_listed(change, data)


def _read_local(source: Source, change: dict[str, Any]) -> ReadFile | SkipReason:
    """Read a local file between two equal stats."""
    path = change["path"]
    for _ in range(READ_ATTEMPTS):
        started_ns = time.time_ns()
        try:
            with source.beneath() as tree:
                before = stat_file(tree, path)
                data = read_file(tree, path)
                after = stat_file(tree, path)
        except ObjectNotFound:
            return SkipReason.UNSTABLE
        except (AccessDenied, SourceNotFound, StorageError):
            return SkipReason.UNREADABLE
        if before is None or after is None:
            return SkipReason.UNSTABLE
        if before == after and len(data) == after.size_bytes:
            as_listed = all(getattr(after, name) == change[name] for name in _STATUS)
            info = replace(after, path=path, etag=change["etag"] if as_listed else "")
            young = after.mtime_ns > started_ns - RACY_NS or after.ctime_ns > started_ns - CTIME_TICK_NS
            racy = not info.etag and young
            return ReadFile(info, data, content_hash(data), racy)
    return SkipReason.UNSTABLE


def _as_listed(change: dict[str, Any], data: bytes) -> ReadFile:
    """A file of a store, with the etag of the listing unless size or MD5 show another version."""
    digest = _MD5_ETAG.fullmatch(change["etag"])
    same = len(data) == change["size_bytes"] and (
        digest is None or hashlib.md5(data, usedforsecurity=False).hexdigest() == digest[1]
    )
    info = FileInfo(change["path"], len(data), change["mtime_ns"], change["etag"] if same else "")
    return ReadFile(info, data, content_hash(data), racy=not info.etag)
