"""Other processes: their state, which may change during the check, and cheap starts of many."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext

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


@contextmanager
def forked_dask_workers() -> Iterator[ForkServerContext]:
    """Fork workers of clusters from a process that has imported what they need, where each would import for seconds.

    The commands that tests start as processes spawn their workers, as everywhere else.
    """
    import dask
    from distributed.utils import get_mp_context

    options = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.nanny.environ": dict.fromkeys(os.environ, ""),  # the process that forks has those of its start
    }
    with dask.config.set(options):
        context: ForkServerContext = get_mp_context()
        names = (
            "distributed.cli.dask_scheduler",
            "distributed.cli.dask_worker",
            "driftline.flows.runs.index",
            "pytest",
        )
        context.set_forkserver_preload(list(names))
        yield context
