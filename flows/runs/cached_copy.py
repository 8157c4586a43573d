"""Copies of workspaces in buckets that searches keep by themselves, in one folder with a limit (decision 0011)."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy as duplicate
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from driftline.flows.output.progress import Progress
from driftline.flows.runs.pull_run import PullRequest, pull_workspace
from driftline.storage.errors import DriftlineError, LeaseHeld, StorageError
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.copies import WorkspaceCopy
from driftline.storage.workspace.workspace import Workspace

FOLDER_VARIABLE = "DRIFTLINE_CACHE"
REFRESH_SECONDS = 60
"""How often a server compares its copy with the bucket."""
STOP_SECONDS = 10
"""How long the end of a server waits for a copy that is being refreshed; the next pull goes on where it was cut off."""
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
    folder = _folder_of(objects)
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
    """The newest copy of ``workspace`` for the searches of a server, which wait for the first one only.

    Searches keep the version that they have begun with. The next one is ``prepared`` before searches see it.
    """

    workspace: Workspace
    max_bytes: int
    warn: Callable[[str], None]
    prepare: Callable[[Workspace], object] = lambda _: None
    _copy: Workspace | None = None
    _failure: DriftlineError | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> Workspace:
        """The copy as the last comparison left it. Raises what ``follow`` raised then."""
        with self._lock:
            if self._copy is None:
                self._copy, self._failure = self._newest(), None
        if self._failure is not None:
            raise duplicate(self._failure)  # an exception that is raised again and again collects tracebacks
        return self._copy

    @contextmanager
    def following(self) -> Iterator[None]:
        """Compare the copy, once there is one, with the bucket every REFRESH_SECONDS, until the end of the block."""
        stop = threading.Event()
        thread = threading.Thread(target=self._follow, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(STOP_SECONDS)

    def _follow(self, stop: threading.Event) -> None:
        while not stop.wait(REFRESH_SECONDS):
            if self._copy is None:
                continue
            try:
                self._copy, self._failure = self._newest(), None
            except DriftlineError as error:
                self._failure = error
                self.warn(str(error))
            except Exception as error:  # the thread must outlive whatever fails once
                self.warn(f"The copy of {self.workspace.objects.uri} could not be refreshed: {error}")

    def _newest(self) -> Workspace:
        found = open_copy(self.workspace, max_bytes=self.max_bytes, warn=self.warn)
        if found.objects.is_local:
            # The place of a copy leads to another version after the next pull.
            found = Workspace.open(os.path.realpath(found.objects.uri), None, self.workspace.reach)
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
    """What opens the newest ``workspace`` for each search of a server: in its copy with ``cache``, if in a bucket."""
    if not cache or workspace.objects.is_local:
        yield workspace.reread
        return
    followed = FollowedWorkspace(workspace, max_bytes, warn, prepare)
    with followed.following():
        yield followed


def has_copy(workspace: Workspace) -> bool:
    """Whether a search has kept a copy of ``workspace``, which is in a bucket."""
    return WorkspaceCopy(_folder_of(workspace.objects) / "copy").current is not None


def _folder_of(objects: ObjectStore) -> Path:
    return cache_folder() / hashlib.sha256(objects.uri.encode()).hexdigest()[:20]


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
