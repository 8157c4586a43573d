"""Identifies processes across hosts and reboots, so that leases of dead processes on this host need no waiting."""

from __future__ import annotations

import contextlib
import os
import platform
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from driftline.storage.leases import life_sign
from driftline.storage.leases.life_sign import Sign

_START_TIME_FIELD = 19  # of /proc/PID/stat after the command name: field 22, in clock ticks since boot
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, unique across hosts and boots.

    ``start_time`` is "" where the system does not report it, ``sign`` where the process gives no life sign, as earlier
    versions did not. ``boot_id`` includes the namespace of ``pid``.
    """

    host: str
    boot_id: str
    pid: int
    start_time: str
    sign: str = ""

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The identity of the calling process; in a forked child, that of the child."""
        pid = os.getpid()
        return cls(platform.node(), _boot_id(), pid, _start_time(pid) or "", life_sign.own_name())

    def is_provably_dead(self) -> bool:
        """True only if this host, in this boot, can prove it; False also means "unknown".

        A process that gives a life sign is judged only where that is found, which shows that both are on one machine.
        """
        if self.boot_id.partition("/")[0] != _boot_id().partition("/")[0]:
            return False
        if not self.sign:
            return self.host == platform.node() and self._has_left_its_pid()
        match life_sign.read(self.sign):
            case Sign.UNKNOWN:
                return False
            case Sign.ENDED:
                return not self._is_visible()
            case Sign.ALIVE:  # perhaps only what the process has left the descriptor to
                return self._has_left_its_pid()

    def _is_visible(self) -> bool:
        """Whether the process itself is seen running."""
        return self.boot_id == _boot_id() and self.start_time != "" and _start_time(self.pid) == self.start_time

    def _has_left_its_pid(self) -> bool:
        """Whether the pid provably belongs to no process, or to another one; a process that is not visible may run."""
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
    """The boot id and the pid namespace: containers share a boot id but have process ids of their own."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return f"{platform.node()}/{uuid.getnode():x}"


def _start_time(pid: int) -> str | None:
    """Clock ticks since boot; "" for a process that is not visible, and None for one that is seen to have ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _DEAD_STATES else fields[_START_TIME_FIELD]
