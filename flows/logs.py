"""What the command line lets through of the logs: warnings of Driftline's own, one line each."""

from __future__ import annotations

import logging
import sys


class OwnWarnings(logging.Handler):
    """Prints warnings of ``driftline`` loggers to standard error and drops those of libraries.

    Libraries log tracebacks of what they try again; what matters of them arrives as an error, in one line.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(logging.Filter("driftline"))

    def emit(self, record: logging.LogRecord) -> None:
        print(f"driftline: {' '.join(record.getMessage().split())}", file=sys.stderr)


def quiet_libraries() -> None:
    """Install ``OwnWarnings``, once; a program that has configured its logging keeps it."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(OwnWarnings())
