"""Detect whether processes on this host are alive: each locks a file with a random name, and exiting releases the lock.

Process ids are unreliable across containers, with boot ids shared by hosts, and with a hidden ``/proc``. The kernel
releases a lock with its last descriptor, so leases of dead processes on this host can be taken over immediately.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import fcntl
import os
import platform
import re
import stat
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FORGOTTEN_AFTER_SECONDS = 7 * 86_400
"""Age at which files of killed processes are removed. Their leases then expire like leases from other hosts."""
_NAME = re.compile(r"(\d{1,10})-([0-9a-f]{16})")


class Liveness(enum.Enum):
    """A process's state according to its liveness file."""

    UNKNOWN = "the file is not here"
    ALIVE = "a process holds the lock"
    ENDED = "the file is here, and nobody holds its lock"


@dataclass(slots=True)
class _LivenessFile:
    name: str
    descriptor: int
    references: int = 0


class _Process:
    """This process's liveness file; a forked child gets a new one."""

    def __init__(self) -> None:
        self.file: _LivenessFile | None = None
        self.lock = threading.Lock()


_process = _Process()


def liveness_file_name() -> str:
    """Return the name of this process's liveness file, creating it on the first call, or "" if it cannot be created."""
    return _own_liveness_file().name


def change_references(difference: int) -> None:
    """Count the leases that refer to this process's liveness file; while any remain, the file is kept at exit."""
    file = _own_liveness_file()
    with _process.lock:
        file.references += difference


def read(name: str) -> Liveness:
    """Return the state of the process that owns a file called ``name`` (see ``liveness_file_name``)."""
    path = _path(name)
    if path is None or not _is_private(path.parent):
        return Liveness.UNKNOWN
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return Liveness.UNKNOWN
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Liveness.ALIVE
    except OSError:
        return Liveness.UNKNOWN
    finally:
        os.close(descriptor)
    return Liveness.ENDED


def _own_liveness_file() -> _LivenessFile:
    with _process.lock:
        if _process.file is None:
            _process.file = _create_liveness_file() or _LivenessFile("", -1)
        return _process.file


def _create_liveness_file() -> _LivenessFile | None:
    name = f"{os.getuid()}-{os.urandom(8).hex()}"
    path = _path(name)
    if path is None:
        return None
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o755)
        if not _is_private(path.parent):
            return None
        _forget_old(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # no temporary folder, a full or read-only disk, or no file locks
        return None
    return _LivenessFile(name, descriptor)


def _path(name: str) -> Path | None:
    match = _NAME.fullmatch(name)
    with contextlib.suppress(OSError):  # no folder is writable, not even a temporary folder
        return Path(tempfile.gettempdir(), f"driftline-{match[1]}", match[2]) if match else None
    return None


def _is_private(folder: Path) -> bool:
    """Return whether only the effective user can change the content of ``folder``."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_theirs = str(found.st_uid) == folder.name.partition("-")[2]
    return stat.S_ISDIR(found.st_mode) and is_theirs and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _forget_old(folder: Path) -> None:
    limit = time.time() - FORGOTTEN_AFTER_SECONDS
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < limit and read(f"{os.getuid()}-{path.name}") is Liveness.ENDED:
                path.unlink()


def _close_in_child() -> None:
    """Release the parent's lock in a forked child, which gets its own liveness file."""
    file = _process.file
    if file is not None and file.descriptor >= 0:
        with contextlib.suppress(OSError):
            os.close(file.descriptor)
    _process.file = None
    _process.lock = threading.Lock()  # another thread of the parent may have held it


def _remove_at_exit() -> None:
    file = _process.file
    path = _path(file.name) if file is not None and not file.references else None
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


os.register_at_fork(after_in_child=_close_in_child)
atexit.register(_remove_at_exit)


_START_TIME_FIELD = 19  # in /proc/PID/stat after the command name: field 22, in clock ticks since boot
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, identified uniquely across hosts and boots.

    ``start_time`` is "" if the system does not report it, and ``liveness_file`` is "" if the process could not lock a
    file. ``boot_id`` includes the namespace of ``pid``.
    """

    host: str
    boot_id: str
    pid: int
    start_time: str
    liveness_file: str = ""

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of the calling process; a forked child has another identity."""
        pid = os.getpid()
        return cls(platform.node(), _boot_id(), pid, _start_time(pid) or "", liveness_file_name())

    def is_provably_dead(self) -> bool:
        """Return True only if this host, in this boot, can prove it; False may also mean "unknown".

        A process with a liveness file is checked only if this process can find that file, so both run on one machine.
        """
        if self.boot_id.partition("/")[0] != _boot_id().partition("/")[0]:
            return False
        if not self.liveness_file:
            return self.host == platform.node() and self._has_left_its_pid()
        match read(self.liveness_file):
            case Liveness.UNKNOWN:
                return False
            case Liveness.ENDED:
                return not self._is_visible()
            case Liveness.ALIVE:  # perhaps kept alive only by a child that inherited the descriptor
                return self._has_left_its_pid()

    def _is_visible(self) -> bool:
        """Return whether the process is visibly running."""
        return self.boot_id == _boot_id() and self.start_time != "" and _start_time(self.pid) == self.start_time

    def _has_left_its_pid(self) -> bool:
        """Return whether the pid provably belongs to no process or to another; an invisible process may still be
        running.
        """
        if self.boot_id != _boot_id():
            return False
        found = _start_time(self.pid)
        if found is None or (found and self.start_time and found != self.start_time):
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass
        return False


@cache
def _boot_id() -> str:
    """Return the boot id and the pid namespace: containers share a boot id, but have separate process ids."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return f"{platform.node()}/{uuid.getnode():x}"


def _start_time(pid: int) -> str | None:
    """Return the start time in clock ticks since boot, or "" for an invisible process, None for one that exited."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _DEAD_STATES else fields[_START_TIME_FIELD]
