"""Other processes, which may end while a test looks at them."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process, words: str) -> bool:
    """Whether ``words`` stand in the command line of a process that has not ended."""
    try:
        return words in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # also a zombie, which has ended although nobody has waited for it
        return False


def stands_still(process: psutil.Process) -> bool:
    """Whether a process has been stopped, and not gone on since."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
