"""Store objects durably on a local disk: create-only by hard link, replace-if-unchanged under a file lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from driftline.storage.errors import (
    AccessDenied,
    AlreadyExists,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    UnsafeStore,
)
from driftline.storage.layout import ByteRange, ObjectInfo

if TYPE_CHECKING:
    import pyarrow as pa

TEMPORARY_PREFIX = ".tmp-"
LOCK_NAME = ".lock"
LOCK_TIMEOUT_SECONDS = 60.0
"""Equals the TTL of a lease. A holder needs the lock for milliseconds, unless the machine stalls."""
LOCK_POLL_SECONDS = 0.005
DIRECTORY_ATTEMPTS = 20
MTIME_STEPS_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)

_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}
_ANOTHER_DISK = "Put the workspace on another disk or in a bucket."
_NO_DIRECTORY = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
_LATEST_SECONDS = 253_402_300_799
"""The last second of the year 9999; file systems store later ones."""
_NOT_AN_OBJECT = _NO_DIRECTORY | {errno.EISDIR}


class LocalDisk:
    """The objects under one directory.

    A version is ``mtime-inode-size``. A replacement always gets a later mtime than the file it replaces, under the
    lock, so neither a reused inode nor a coarse clock repeats a version. A hash would require reading every listed
    file. Names of deleted files must not be reused with other content (DESIGN: immutable, uniquely named files).
    """

    lance_options: dict[str, str] | None = None

    def __init__(self, root: str) -> None:
        self._root = root

    def make_private(self) -> None:
        """Create the root with mode 0700 unless it exists; everything under a private root gets its mode."""
        with self._reported("create", ""):
            _make_directories(os.path.dirname(self._root), 0o777)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._root, 0o700)

    @property
    def is_private(self) -> bool:
        """Whether the root exists and denies group and others access."""
        try:
            return not stat.S_IMODE(os.stat(self._root).st_mode) & 0o077
        except OSError:
            return False

    def lance_uri(self, path: str) -> str:
        return self._absolute(path)

    def read_ahead(self, ranges: Mapping[str, ByteRange]) -> None:
        """Do nothing: prefetching local files does not pay off."""

    def open_ahead(self, tables: Iterable[str]) -> None:
        """Do nothing, for the same reason."""

    def newest_version(self, table: str) -> tuple[str, str] | None:
        return None

    def only_etag(self, path: str) -> tuple[str, str]:
        return path, ""

    def cached_lance(self, path: str) -> tuple[str, dict[str, str]] | None:
        return None

    def get(self, path: str) -> tuple[bytes, str]:
        with self._reported("read", path), open(self._absolute(path), "rb", opener=_open_regular) as file:
            return file.read(), _version(os.fstat(file.fileno()))

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        with self._reported("read", path):
            absolute = self._absolute(path)
            os.close(_open_regular(absolute, os.O_RDONLY))
            return pa.OSFile(absolute)

    def head(self, path: str) -> ObjectInfo | None:
        with self._reported("look up", path):
            try:
                status = os.stat(self._absolute(path))
            except OSError as error:
                if error.errno in _NO_DIRECTORY:
                    return None
                raise
            return _info(path, status) if stat.S_ISREG(status.st_mode) else None

    def create(self, path: str, data: bytes, same_as: str | None = None) -> str:
        target = self._absolute(path)
        with self._reported("write", path):
            if os.path.lexists(target):  # only saves the write; the link below is the atomic check
                raise AlreadyExists("The object already exists", target)
            if same_as is not None:
                with contextlib.suppress(FileNotFoundError, UnsafeStore):  # deleted meanwhile, or another user's
                    return self._link(self._absolute(same_as), target)
            with self._temporary(target, data) as temporary:
                return self._link(temporary, target)

    def _link(self, flushed: str, target: str) -> str:
        """Give a ``flushed`` file the name ``target`` as well, and return its version."""
        version = _version(os.stat(flushed))
        try:
            os.link(flushed, target)
        except FileExistsError:
            raise AlreadyExists("The object already exists", target) from None
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            # Lance has no other way to commit a version on a disk.
            raise UnsafeStore("The file system has no hard links", self._root, _ANOTHER_DISK) from error
        flush_to_disk(os.path.dirname(target))
        return version

    def replace(self, path: str, data: bytes, version: str) -> str:
        target = self._absolute(path)
        with self._reported("replace", path), self._locked():
            try:
                current = os.stat(target)
            except FileNotFoundError:
                raise PreconditionFailed("The object to replace no longer exists", target) from None
            if _version(current) != version:
                raise PreconditionFailed("Another writer changed the object", target)
            with self._temporary(target, data) as temporary:
                _make_later(temporary, current.st_mtime_ns)
                new_version = _version(os.stat(temporary))
                os.replace(temporary, target)
            flush_to_disk(os.path.dirname(target))
            return new_version

    def walk(self, prefix: str, *, recursive: bool) -> Iterator[ObjectInfo]:
        pending = [prefix]
        while pending:
            directory = pending.pop()
            for entry in self._entries(directory):
                path = f"{directory}/{entry.name}" if directory else entry.name
                if recursive and entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif entry.is_file(follow_symlinks=False) and path != LOCK_NAME:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # deleted after its directory was listed
                        continue
                    yield _info(path, status)

    def directories(self, prefix: str) -> list[str]:
        return [entry.name for entry in self._entries(prefix) if entry.is_dir(follow_symlinks=False)]

    def delete(self, paths: Sequence[str]) -> None:
        if not paths or not os.path.isdir(self._root):
            return
        directories = set()
        with self._reported("lock", LOCK_NAME), self._locked():  # a concurrent replace must not restore the object
            for path in paths:
                target = self._absolute(path)
                with self._reported("delete", path):
                    try:
                        os.unlink(target)
                    except OSError as error:
                        if error.errno in _NOT_AN_OBJECT:
                            continue
                        raise
                    directories.add(os.path.dirname(target))
        for directory in directories:
            self._remove_if_empty(directory)

    def sync(self, paths: Iterable[str]) -> None:
        directories: set[str] = set()
        for path in paths:
            target = self._absolute(path)
            with self._reported("flush", path):
                try:
                    flush_to_disk(target)
                except FileNotFoundError:  # a cleanup that fenced this writer deleted it, so the commit will fail
                    continue
            while target != self._root:
                target = os.path.dirname(target)
                directories.add(target)
        for directory in sorted(directories, reverse=True):
            with self._reported("flush", os.path.relpath(directory, self._root)):
                flush_to_disk(directory)

    def _absolute(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        with self._reported("list", directory):
            try:
                with os.scandir(self._absolute(directory)) as entries:
                    return list(entries)
            except OSError as error:
                if error.errno in _NO_DIRECTORY:
                    return []
                raise

    def _remove_if_empty(self, directory: str) -> None:
        # A concurrent create may lose its directory before it writes its temporary file; it then recreates the
        # directory.
        while directory != self._root:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError:  # not empty, or no permission; empty directories are harmless
                return
            directory = os.path.dirname(directory)

    @contextlib.contextmanager
    def _temporary(self, target: str, data: bytes) -> Iterator[str]:
        """Yield the path of a synced file with ``data``, in the directory of ``target``.

        If the file still exists on exit, it is removed.
        """
        directory = os.path.dirname(target)
        temporary = os.path.join(directory, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        descriptor = _open_new(directory, temporary, 0o700 if self.is_private else 0o777)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the workspace lock, to exclude other processes and other threads in this one.

        The kernel releases it when its holder dies. The ``filelock`` library would take fifty times the CPU time.
        """
        path = os.path.join(self._root, LOCK_NAME)
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        turn = _turns.setdefault(self._root, threading.Lock())
        if not turn.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            raise _locked_out(path)
        try:
            with self._locked_file(path, deadline):
                yield
        finally:
            turn.release()

    @contextlib.contextmanager
    def _locked_file(self, path: str, deadline: float) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC  # a link could create a file anywhere
        try:
            descriptor = os.open(path, flags, 0o600 if self.is_private else 0o644)
        except FileNotFoundError:
            raise PreconditionFailed("The workspace no longer exists", self._root) from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise UnsafeStore("The workspace's lock is a link", path, "Delete the link.") from None
        try:
            self._wait_for_lock(descriptor, path, deadline)
            try:
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also releases it in children forked since
        finally:
            os.close(descriptor)

    def _wait_for_lock(self, descriptor: int, path: str, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _locked_out(path) from None
                time.sleep(LOCK_POLL_SECONDS)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                raise UnsafeStore("The file system has no file locks", self._root, _ANOTHER_DISK) from error
            else:
                return

    @contextlib.contextmanager
    def _reported(self, action: str, path: str) -> Iterator[None]:
        where = self._absolute(path)
        try:
            yield
        except OSError as error:
            if action == "read" and error.errno in _NOT_AN_OBJECT:
                raise ObjectNotFound("The object does not exist", where) from error
            if error.errno in _NO_PERMISSION:
                fix = "Use another disk, or remount it." if error.errno == errno.EROFS else "Check its owner and mode."
                raise AccessDenied(f"No permission to {action} a file ({error.strerror})", where, fix) from error
            fix = "Free some space and run again." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise StorageError(f"Could not {action} a file ({error.strerror})", where, fix) from error


def _open_regular(path: str, flags: int) -> int:
    """Open a file without waiting; raise OSError for a pipe, socket or device, which might never end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


_turns: dict[str, threading.Lock] = {}
"""For each root, this process's lock, so its threads wait for each other without polling the file lock."""
os.register_at_fork(after_in_child=_turns.clear)  # another thread of the parent may have held one


def _locked_out(path: str) -> StorageError:
    what = f"Another process or thread has held the workspace lock for {LOCK_TIMEOUT_SECONDS:.0f} s"
    return StorageError(what, path, "Find the process that does not respond, and end it.")


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    modified = datetime.fromtimestamp(min(status.st_mtime, _LATEST_SECONDS), UTC)
    return ObjectInfo(path, status.st_size, modified, _version(status))


def _make_later(path: str, than_ns: int) -> None:
    """Set the mtime of ``path`` later than ``than_ns``, by the smallest step that the file system can resolve."""
    for step in MTIME_STEPS_NS:
        if os.stat(path).st_mtime_ns > than_ns:
            return
        os.utime(path, ns=(than_ns + step, than_ns + step))


def _open_new(directory: str, path: str, mode: int) -> int:
    for _ in range(DIRECTORY_ATTEMPTS):
        try:
            _make_directories(directory, mode)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode & 0o666)
        except FileNotFoundError:  # a concurrent delete removed the empty directory
            continue
    raise StorageError(
        f"The directory disappeared on all {DIRECTORY_ATTEMPTS} attempts to write into it",
        directory,
        "Look for a process that removes it.",
    )


def _make_directories(directory: str, mode: int) -> None:
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    _make_directories(parent, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, mode)
    flush_to_disk(parent)


def flush_to_disk(path: str) -> None:
    """Flush a file, or the entries of a directory, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
