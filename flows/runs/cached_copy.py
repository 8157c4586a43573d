"""Copies of workspaces in buckets that searches keep by themselves, in one folder with a limit (decision 0011)."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from driftline.flows.output.progress import Progress
from driftline.flows.runs.pull_run import PullRequest, pull_workspace
from driftline.storage.errors import LeaseHeld, StorageError
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.copies import WorkspaceCopy
from driftline.storage.workspace.workspace import Workspace

FOLDER_VARIABLE = "DRIFTLINE_CACHE"
REFRESH_SECONDS = 60
"""How long a server searches a copy before it asks the bucket for a newer version."""
RECENT_SECONDS = 3600
"""A copy that was searched since then stays: a search may still read it."""
_USED = "used"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of all copies: $DRIFTLINE_CACHE, else ``driftline`` in the user's cache folder."""
    if named := environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "driftline" / "workspaces"


def follow(
    origin: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    max_bytes: int,
    warn: Callable[[str], None],
    progress: Progress | None = None,
) -> str:
    """Where to search the newest version of the workspace ``origin``: in a copy, or in ``origin`` if none can be kept.

    All copies together take at most ``max_bytes`` on the disk; those searched least recently make room. Without a
    connection, the copy is searched as it is. ``warn`` tells what goes wrong with the copy, which stops no search.
    Raises WorkspaceNotFound, WorkspaceTooNew, CorruptFile, AccessDenied.
    """
    objects = ObjectStore.open(origin, storage_options)
    if objects.is_local:
        return origin
    folder = cache_folder() / hashlib.sha256(objects.uri.encode()).hexdigest()[:20]
    copy = WorkspaceCopy(folder / "copy")
    request = PullRequest(origin, str(copy.place), storage_options, partial(_make_room, folder, max_bytes=max_bytes))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _USED).touch()
        try:
            pull_workspace(request, progress)
        except LeaseHeld:
            warn(f"Another process updates the copy of {objects.uri}: waiting for it.")
            pull_workspace(replace(request, wait=True), progress)
    except (StorageError, OSError, _DoesNotFit) as error:
        record = copy.record()
        out_of_reach = isinstance(error, StorageError) and not error.where.startswith(str(folder))
        if record is None or not out_of_reach:
            warn(f"The cache is not used: {error}")
            return origin
        warn(f"The search is of the copy of {record.pulled:%Y-%m-%d %H:%M} UTC: {error}")
    return str(copy.place)


@dataclass(slots=True)
class FollowedWorkspace:
    """Opens ``workspace`` for each search of a server: its copy, which is compared with the bucket now and then."""

    workspace: Workspace
    max_bytes: int
    warn: Callable[[str], None]
    _copy: Workspace | None = None
    _compared: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> Workspace:
        """The copy, at most REFRESH_SECONDS older than the original. Raises what ``follow`` raises."""
        with self._lock:
            if self._copy is None or time.monotonic() - self._compared > REFRESH_SECONDS:
                self._copy = open_copy(self.workspace, max_bytes=self.max_bytes, warn=self.warn)
                self._compared = time.monotonic()
            return self._copy


def open_copy(
    workspace: Workspace, *, max_bytes: int, warn: Callable[[str], None], progress: Progress | None = None
) -> Workspace:
    """``workspace`` in its copy, or itself; sources are read as far as it reaches. Raises what ``follow`` raises."""
    objects = workspace.objects
    place = follow(objects.uri, objects.storage_options, max_bytes=max_bytes, warn=warn, progress=progress)
    return workspace if objects.is_local or place == objects.uri else Workspace.open(place, None, workspace.reach)


class _DoesNotFit(Exception):
    """A copy does not fit into the cache."""


def _make_room(folder: Path, size_bytes: int, *, max_bytes: int) -> None:
    """Delete the copies that were searched least recently, but that in ``folder``, for ``size_bytes`` more."""
    used = {each: _size_bytes(each) for each in cache_folder().iterdir() if each.is_dir()}
    excess = sum(used.values()) + size_bytes - max_bytes
    for other in sorted(used.keys() - {folder}, key=_last_used):
        if excess > 0 and time.time() - _last_used(other) > RECENT_SECONDS and _remove(other):
            excess -= used[other]
    if excess > 0:
        raise _DoesNotFit(
            f"the copy takes {(used[folder] + size_bytes) / 1e9:.1f} GB, {excess / 1e9:.1f} GB more than there is room "
            f"for in {cache_folder()}. Raise cache_bytes in [search] of driftline.toml, or search without --cache."
        )


def _remove(folder: Path) -> bool:
    """Delete a copy unless another process is changing it; returns whether it is gone."""
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
    """The bytes that a copy takes on the disk: its versions share files."""
    files: dict[int, int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(place, name))
            files[status.st_ino] = status.st_size
    return sum(files.values())
