"""Runs one Driftline command as on another machine: with its own host name, boot id and clock.

``host.py NAME SKEW_SECONDS TTL_SECONDS ARGUMENT...``. The temporary folder of the machine is ``TMPDIR``.
"""

from __future__ import annotations

import copyreg
import datetime
import os
import platform
import sys
import time
from typing import Any


def skew(seconds: float) -> None:
    """Shift this process's wall clock; call before other imports. The monotonic clock is unchanged."""
    true, true_time, true_time_ns = datetime.datetime, time.time, time.time_ns
    offset = datetime.timedelta(seconds=seconds)

    class Kind(type(true)):  # type: ignore[misc]
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, true)

    class Skewed(true, metaclass=Kind):  # type: ignore[valid-type,misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return true.now(tz) + offset

        @classmethod
        def utcnow(cls) -> Any:
            return true.now(datetime.UTC).replace(tzinfo=None) + offset

    # Other processes' arguments are pickled under their class names.
    Skewed.__module__, Skewed.__name__, Skewed.__qualname__ = "datetime", "datetime", "datetime"
    copyreg.pickle(true, lambda moment: (Skewed.fromisoformat, (moment.isoformat(),)))
    datetime.datetime = Skewed  # type: ignore[misc]
    time.time = lambda: true_time() + seconds
    time.time_ns = lambda: true_time_ns() + int(seconds * 1e9)


def become(name: str, ttl_seconds: float) -> None:
    """Take on the identity of another machine whose leases expire soon."""
    platform.node = lambda: name
    from driftline.storage.leases import lease, liveness

    namespace = os.readlink("/proc/self/ns/pid")
    liveness._boot_id = lambda: f"boot of {name}/{namespace}"  # type: ignore[assignment]
    defaults: dict[str, Any] = lease.acquire.__kwdefaults__ or {}
    defaults["ttl_seconds"] = ttl_seconds


def run(arguments: list[str]) -> int:
    name, seconds, ttl_seconds, *command = arguments
    skew(float(seconds))
    become(name, float(ttl_seconds))
    from driftline.flows.commands.main import main

    return main(command)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
