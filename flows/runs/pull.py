"""Pull a workspace's newest version to local disk so that searches need no network (decision 0011).

Only files that are new since the last pull are fetched. An interrupted pull leaves the copy unchanged, and the next one
continues with the fetched files. Searches with the ``cache`` option pull workspaces in buckets into one folder, whose
least recently searched copies are evicted to limit its size.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy as duplicate
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from driftline.flows.output.progress import NullProgress, Progress
from driftline.storage.environment import cache_folder_of
from driftline.storage.errors import DriftlineError, LeaseHeld, ObjectNotFound, StorageError
from driftline.storage.json_records import as_dict
from driftline.storage.layout import CONFIG, SOURCE, ObjectInfo, ObjectKind, parse_name
from driftline.storage.objects.local_disk import flush_to_disk
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel, request_counter
from driftline.storage.sources.access import SourceAccess
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
CACHE_VARIABLE = "DRIFTLINE_CACHE"
REFRESH_SECONDS = 60
"""How often a server compares its copy with the bucket."""
STOP_SECONDS = 10
"""How long a server waits for a refresh of its copy at shutdown; the next pull continues an interrupted refresh."""
RECENT_SECONDS = 3600
"""Keep copies searched within this time, because a search may still be reading them."""
_USED = "used"

_log = logging.getLogger(__name__)


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
    _check(copy.partial)
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


def _check(folder: Path) -> None:
    """Open every table and manifest of the version. Raises CorruptFile, StorageError."""
    copied = Workspace.open(folder.as_uri())
    for entity, _ in copied.sources():
        copied.manifest(entity).check()
    for tenant in copied.tenants() if copied.config.fingerprint is not None else ():
        table = copied.lines(tenant)
        if table.exists():
            table.count()


# -- copies for searches -------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder of all copies: $DRIFTLINE_CACHE, or ``driftline`` in the user's cache folder."""
    return cache_folder_of(CACHE_VARIABLE, "workspaces")


def refreshed_copy(
    origin: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    max_bytes: int,
    warn: Callable[[str], None],
    progress: Progress | None = None,
) -> str:
    """Return the URI to search for the newest version of ``origin``: a copy's, or ``origin`` if there can be no copy.

    All copies together use at most ``max_bytes`` of disk; the least recently searched copies are evicted. If there is
    no connection, the existing copy is searched. ``warn`` receives failures to update the copy, which never fail a
    search. Raises WorkspaceNotFound, WorkspaceTooNew, CorruptFile, AccessDenied.
    """
    objects = ObjectStore.open(origin, storage_options)
    if objects.is_local:
        return origin
    folder = _folder_of(objects)
    copy = WorkspaceCopy(folder / "copy")
    request = PullRequest(origin, str(copy.location), storage_options, partial(_make_room, folder, max_bytes=max_bytes))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _USED).touch()
        try:
            pull_workspace(request, progress)
        except LeaseHeld:
            warn(f"Another process is updating the copy of {objects.uri}: waiting for it.")
            pull_workspace(replace(request, wait=True), progress)
    except (StorageError, OSError, _DoesNotFit) as error:
        record = copy.record()
        out_of_reach = isinstance(error, StorageError) and not error.where.startswith(str(folder))
        if record is None or not out_of_reach:
            warn(f"The cache is not used: {error}")
            return origin
        warn(f"Searching the copy of {record.pulled:%Y-%m-%d %H:%M} UTC: {error}")
    return str(copy.location)


@dataclass(slots=True)
class RefreshedWorkspace:
    """The newest copy of ``workspace`` for a server's searches; only the first search waits for it.

    Searches keep the version that they started with. ``prepare`` is called with the next version before searches see
    it.
    """

    workspace: Workspace
    max_bytes: int
    warn: Callable[[str], None]
    prepare: Callable[[Workspace], object] = lambda _: None
    _copy: Workspace | None = None
    _failure: DriftlineError | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> Workspace:
        """Return the copy as of the last comparison. Raises the same errors as ``refreshed_copy``."""
        with self._lock:
            if self._copy is None:
                self._copy, self._failure = self._newest(), None
        if self._failure is not None:
            raise duplicate(self._failure)  # re-raising the same exception would accumulate tracebacks
        return self._copy

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Once there is a copy, compare it with the bucket every REFRESH_SECONDS until the context exits."""
        stop = threading.Event()
        thread = threading.Thread(target=self._refresh, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(STOP_SECONDS)

    def _refresh(self, stop: threading.Event) -> None:
        while not stop.wait(REFRESH_SECONDS):
            if self._copy is None:
                continue
            try:
                self._copy, self._failure = self._newest(), None
            except DriftlineError as error:
                self._failure = error
                self.warn(str(error))
            except Exception:  # a bug that one refresh hits must not end the next ones
                _log.exception("Cannot refresh the copy of %s, will retry", self.workspace.objects.uri)

    def _newest(self) -> Workspace:
        objects, access = self.workspace.objects, self.workspace.access
        found = open_copy(objects.uri, objects.storage_options, access, max_bytes=self.max_bytes, warn=self.warn)
        if found.objects.is_local:
            # The copy's link points to another version after the next pull.
            found = Workspace.open(os.path.realpath(found.objects.uri), None, access)
        self.prepare(found)
        return found


@contextmanager
def newest_of(
    workspace: Workspace,
    *,
    cache: bool,
    max_bytes: int,
    warn: Callable[[str], None],
    prepare: Callable[[Workspace], object] = lambda _: None,
) -> Iterator[Callable[[], Workspace]]:
    """Yield a function that opens the newest version of ``workspace`` for each of a server's searches.

    With ``cache``, it opens the local copy of a bucket's workspace.
    """
    if not cache or workspace.objects.is_local:
        yield workspace.reread
        return
    refreshed = RefreshedWorkspace(workspace, max_bytes, warn, prepare)
    with refreshed.refreshing():
        yield refreshed


def has_copy(workspace: Workspace) -> bool:
    """Return whether an earlier search left a copy of ``workspace``, which is in a bucket."""
    return WorkspaceCopy(_folder_of(workspace.objects) / "copy").current is not None


def _folder_of(objects: ObjectStore) -> Path:
    return cache_folder() / hashlib.sha256(objects.uri.encode()).hexdigest()[:20]


def open_copy(
    uri: str,
    storage_options: Mapping[str, Any] | None,
    access: SourceAccess | None = None,
    *,
    max_bytes: int,
    warn: Callable[[str], None],
    progress: Progress | None = None,
) -> Workspace:
    """Open the copy of the workspace at ``uri``, or that workspace if there can be no copy, without a connection if
    there is none. Propagates errors from ``refreshed_copy``.
    """
    location = refreshed_copy(uri, storage_options, max_bytes=max_bytes, warn=warn, progress=progress)
    return Workspace.open(location, storage_options if location == uri else None, access)


class _DoesNotFit(Exception):
    """The cache has no space for a copy."""


def _make_room(folder: Path, size_bytes: int, *, max_bytes: int) -> None:
    """Evict the least recently searched copies, except the copy in ``folder``, until ``size_bytes`` more fit."""
    used = {each: _size_bytes(each) for each in cache_folder().iterdir() if each.is_dir()}
    excess = sum(used.values()) + size_bytes - max_bytes
    for other in sorted(used.keys() - {folder}, key=_last_used):
        if excess > 0 and time.time() - _last_used(other) > RECENT_SECONDS and _remove(other):
            excess -= used[other]
    if excess > 0:
        raise _DoesNotFit(
            f"the copy takes {(used[folder] + size_bytes) / 1e9:.1f} GB, {excess / 1e9:.1f} GB more than the space "
            f"left in {cache_folder()}. Raise cache_bytes in [search] of driftline.toml, or search without --cache."
        )


def _remove(folder: Path) -> bool:
    """Delete a copy unless another process is changing it; return whether it was deleted."""
    copy = WorkspaceCopy(folder / "copy")
    try:
        copy.versions.mkdir(exist_ok=True)
        with copy.locked():
            shutil.rmtree(folder, ignore_errors=True)
    except LeaseHeld:
        return False
    return not folder.exists()


def _last_used(folder: Path) -> float:
    used = folder / _USED
    return used.stat().st_mtime if used.exists() else 0.0


def _size_bytes(folder: Path) -> int:
    """Return the number of bytes that a copy uses on disk; its versions share files."""
    files: dict[int, int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(parent, name))
            files[status.st_ino] = status.st_size
    return sum(files.values())
