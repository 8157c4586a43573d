"""Waits for events. Limits detect hangs; a busy machine stays far below them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import ForkedProgram

PATIENCE_SECONDS = 900.0
"""How long a test waits for an event that takes seconds. It is below pytest's own limit, so the test reports what is
missing.
"""


def until(
    is_so: Callable[[], object], what: str = "it to happen", *, unless: Callable[[], str] = str, poll: float = 0.02
) -> None:
    """Wait until a condition holds. Fails at once when ``unless`` returns why it never will.

    ``poll`` is the time between checks in seconds. It grows up to half a second where checks would otherwise take more
    than a tenth of a core.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    before = time.process_time()
    while not is_so():
        reason = unless()
        assert not reason or is_so(), f"waited for {what}: {reason}"
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:g} s for {what}"
        time.sleep(max(poll, min(0.5, 9 * (time.process_time() - before))))
        before = time.process_time()


def ended(process: subprocess.Popen[bytes] | subprocess.Popen[str] | ForkedProgram, log: Path | None = None) -> str:
    """Return how a process ended and the end of its log, or nothing while it runs."""
    if process.poll() is None:
        return ""
    said = log.read_text(errors="replace")[-3000:] if log else ""
    return f"{process.args!r} ended with {process.returncode}\n{said}"
