"""Identifies processes across hosts and reboots, so that leases of dead processes on this host need no waiting."""

from __future__ import annotations

import contextlib
import os
import platform
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_START_TIME_FIELD = 19  # of /proc/PID/stat after the command name: field 22, in clock ticks since boot
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, unique across hosts and boots. ``start_time`` is "" where the system does not report it."""

    host: str
    boot_id: str
    pid: int
    start_time: str

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The identity of the calling process; in a forked child, that of the child."""
        pid = os.getpid()
        return cls(platform.node(), _boot_id(), pid, _start_time(pid))

    def is_provably_dead(self) -> bool:
        """True only if this host, in this boot, can prove it; False also means "unknown"."""
        if self.boot_id != _boot_id():
            return False
        if self.start_time:
            return _start_time(self.pid) != self.start_time
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


@cache
def _boot_id() -> str:
    """The boot id and the pid namespace: containers share a boot id but have process ids of their own."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return f"{platform.node()}/{uuid.getnode():x}"


def _start_time(pid: int) -> str:
    """Clock ticks since boot, or "" for a process that has ended or is not visible."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in _DEAD_STATES else fields[_START_TIME_FIELD]
