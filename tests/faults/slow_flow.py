"""The index flow with ``small_run``'s small batches and pause, for tests that kill a run."""

import runpy
from pathlib import Path

from prefect.events.worker import EventsWorker

runpy.run_path(str(Path(__file__).with_name("small_run.py")))

from driftline.flows.prefect_flows import index  # noqa: E402
from driftline.storage.lines.line_table import LineTable  # noqa: E402

transact = LineTable._transact


def told_first(*arguments: object) -> None:
    """Send a heartbeat to the server before the run can be stopped."""
    EventsWorker.instance().wait_until_empty()
    transact(*arguments)  # type: ignore[arg-type]


LineTable._transact = told_first  # type: ignore[method-assign, assignment]

__all__ = ["index"]
