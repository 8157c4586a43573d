"""State of other processes, which may end during the check."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process, words: str) -> bool:
    """Whether a process that has not ended has ``words`` in its command line."""
    try:
        return words in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # also of a zombie
        return False


def stands_still(process: psutil.Process) -> bool:
    """Whether a process is stopped."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
