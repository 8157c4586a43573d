"""Make the stopwatches of a process count CPU seconds instead of wall-clock seconds (for ``cluster.py``).

A Dask worker loads this module with ``--preload``; a command imports it before anything else.
"""

from __future__ import annotations

import time

from driftline.tasks.task_context import Stopwatch

Stopwatch.__init__.__defaults__ = (time.process_time,)
