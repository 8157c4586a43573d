"""The index flow with the small batches and slow commits of ``small_run``, for runs that are to be killed."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).with_name("small_run.py")))

from driftline.flows.index import index  # noqa: E402

__all__ = ["index"]
