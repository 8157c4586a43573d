"""Pull a workspace's newest version to local disk so that searches need no network (decision 0011).

Only files that are new since the last pull are fetched. An interrupted pull leaves the copy unchanged, and the next one
continues with the fetched files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driftline.flows.output.progress import NullProgress, Progress
from driftline.storage.errors import ObjectNotFound, StorageError
from driftline.storage.json_records import as_dict
from driftline.storage.layout import CONFIG, SOURCE, ObjectInfo, ObjectKind, parse_name
from driftline.storage.objects.local_disk import flush_to_disk
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel, request_counter
from driftline.storage.workspace.copies import (
    WorkspaceCopy,
    files_of_newest_version,
    is_version_metadata,
    version_metadata_files,
)
from driftline.storage.workspace.records import CopyRecord
from driftline.storage.workspace.workspace import Workspace

ATTEMPTS = 3
"""Attempts to copy a snapshot before the pull fails; a compaction of the original may invalidate one."""
THREADS = 4
"""Number of files to fetch in parallel; each is held in memory, and may be about 100 MB."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The inputs of a pull: the original's URI and the copy's folder.

    ``admit`` is called with the number of bytes that the pull is about to write, and raises an error to reject them. If
    ``wait`` is set, the pull waits for another process's pull.
    """

    origin: str
    location: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    admit: Callable[[int], None] = field(default=lambda size_bytes: None, repr=False)
    wait: bool = False


@dataclass(frozen=True, slots=True)
class PullReport:
    """The result of a pull: the copy's number of ``files``, how many were ``fetched``, and their total ``bytes``."""

    origin: str
    copy: str
    files: int
    fetched: int
    bytes: int
    requests: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the ``pull --json`` object."""
        return as_dict(self)


def pull_workspace(request: PullRequest, progress: Progress | None = None) -> PullReport:
    """Update the copy to the newest version of the original.

    Raises WorkspaceNotFound, WorkspaceTooNew, UsageError if the location is not a copy, LeaseHeld if another process is
    updating it, CorruptFile, AccessDenied, StorageError.
    """
    started = time.monotonic()
    copy = WorkspaceCopy(Path(os.path.abspath(os.path.expanduser(request.location))))
    with request_counter() as requests:
        workspace = Workspace.open(request.origin, request.storage_options)
        copy.check_location()
        copy.partial.mkdir(parents=True, exist_ok=True)
        with copy.locked(wait=request.wait):
            fetched = _pull_newest(workspace, copy, request.admit, progress or NullProgress())
    record = copy.record()
    size = sum(info.size_bytes for info in fetched)
    count = sum(sum(kinds.values()) for kinds in requests.counts.values())
    seconds = time.monotonic() - started
    files = len(record.files) if record is not None else 0
    return PullReport(workspace.objects.uri, str(copy.location), files, len(fetched), size, count, seconds)


def _pull_newest(
    workspace: Workspace, copy: WorkspaceCopy, admit: Callable[[int], None], progress: Progress
) -> list[ObjectInfo]:
    for attempt in range(ATTEMPTS):
        try:
            return _pull(workspace.reread() if attempt else workspace, copy, admit, progress)
        except ObjectNotFound as error:  # a compaction replaced it after the listing
            vanished = error
    raise StorageError(
        f"Files disappeared on all {ATTEMPTS} attempts to copy a version", vanished.where, "Pull again."
    ) from vanished


def _pull(
    workspace: Workspace, copy: WorkspaceCopy, admit: Callable[[int], None], progress: Progress
) -> list[ObjectInfo]:
    progress.phase(f"surveying {workspace.objects.uri}")
    known = copy.record()
    started = datetime.now(UTC)
    listing = {info.path: info for info in workspace.objects.list()}
    is_newest = known is not None and _is_newest(known, version_metadata_files(workspace, listing))
    if known is not None and is_newest and copy.is_complete(known.files):
        copy.confirm(replace(known, pulled=started))
        return []
    files = {info.path: info for info in files_of_newest_version(workspace, listing)}
    versions = {path: (info.size_bytes, info.version) for path, info in files.items()}
    origin, workspace_id = workspace.objects.uri, workspace.config.workspace_id
    record = CopyRecord(origin=origin, workspace_id=workspace_id, pulled=started, files=versions)
    copy.reuse(known.files if known is not None else {}, versions)
    missing = [info for info in files.values() if not _is_fetched(copy.partial / info.path, info)]
    admit(sum(info.size_bytes for info in missing))
    progress.phase(f"pulling {workspace.objects.uri}", total=len(missing))
    _fetch(workspace.objects, missing, copy.partial, progress)
    _check(copy.partial, workspace)
    copy.switch(record)
    return missing


def _is_newest(known: CopyRecord, heads: Sequence[ObjectInfo]) -> bool:
    """Return whether a copy has the version with these ``heads``, which determine all other files."""
    copied = {path: identity for path, identity in known.files.items() if is_version_metadata(path)}
    return copied == {info.path: (info.size_bytes, info.version) for info in heads}


def _is_fetched(target: Path, info: ObjectInfo) -> bool:
    """Return whether the file was linked, or fetched by an interrupted pull.

    Only files with unique names are trusted without checking.
    """
    try:
        status = target.stat()
    except OSError:
        return False
    if status.st_size != info.size_bytes:
        return False
    changes = target.name in (CONFIG, SOURCE) or parse_name(info.path).kind is ObjectKind.BASE
    return status.st_nlink > 1 or not changes


def _fetch(objects: ObjectStore, missing: Sequence[ObjectInfo], folder: Path, progress: Progress) -> None:
    def fetch(info: ObjectInfo) -> None:
        data = objects.get(info.path)
        if len(data) != info.size_bytes:
            raise ObjectNotFound("The object changed since it was listed", f"{objects.uri}/{info.path}")
        target = folder / info.path
        temporary = target.with_name(f".tmp-{target.name}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            flush_to_disk(str(temporary))
            temporary.replace(target)
        except OSError as error:
            fix = "Free some space, then pull again: fetched files are kept."
            raise StorageError(f"Cannot write a file ({error.strerror})", str(target), fix) from error

    for _ in in_parallel(fetch, missing, THREADS):
        progress.advance()


def _check(folder: Path, original: Workspace) -> None:
    """Open every table and manifest of the version. Raises CorruptFile, StorageError."""
    copied = Workspace.open(folder.as_uri())
    for entity, _ in copied.sources():
        copied.manifest(entity).check()
    for tenant in copied.tenants() if copied.config.fingerprint is not None else ():
        table = copied.lines(tenant)
        if table.exists():
            table.count()
