"""``driftline`` with batches so small that a small tree needs many commits, for tests that kill or pause it.

DELAY_SECONDS slows down every table transaction, LEASE_SECONDS shortens leases, SEGMENT_ROWS makes index segments
small, and PAUSE ("before 2", "after 3") stops the process (SIGSTOP) right before or after its nth transaction.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from driftline.flows.commands.main import command_line
from driftline.flows.runs import source_run
from driftline.storage.leases import lease as leases
from driftline.storage.lines import indexes
from driftline.storage.lines.line_table import LineTable

source_run.BATCH_DOCUMENTS = int(os.environ.get("BATCH_DOCUMENTS", "4"))
source_run.BATCHES_PER_COMMIT = 1
if "SEGMENT_ROWS" in os.environ:
    rows = int(os.environ["SEGMENT_ROWS"])
    indexes.MIN_ROWS_FOR_VECTOR_INDEX = 1
    indexes.SMALL_SEGMENT_ROWS = rows
    vars(indexes)["SMALL_SEGMENT_ROWS"] = rows  # imported from there
    indexes.SEGMENT_ROWS = 2 * rows
    indexes.MAX_SMALL_SEGMENTS = 2
    indexes.MAX_UNINDEXED_ROWS = 5
assert leases.acquire.__kwdefaults__ is not None
leases.acquire.__kwdefaults__["ttl_seconds"] = float(os.environ.get("LEASE_SECONDS", leases.LEASE_TTL_SECONDS))

delay = float(os.environ.get("DELAY_SECONDS", "0"))
moment, _, number = os.environ.get("PAUSE", "never 0").partition(" ")
transactions = 0
transact = LineTable._transact


def disturbed(*arguments: object) -> None:
    global transactions  # noqa: PLW0603
    transactions += 1
    time.sleep(delay)
    if moment == "before" and transactions == int(number):
        os.kill(os.getpid(), signal.SIGSTOP)
    transact(*arguments)  # type: ignore[arg-type]
    if moment == "after" and transactions == int(number):
        os.kill(os.getpid(), signal.SIGSTOP)


LineTable._transact = disturbed  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    sys.exit(command_line())
