"""What the command line lets through of the logs: warnings of Driftline's own, or on request all it does, as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from driftline.storage.errors import UsageError

LOG_VARIABLE = "DRIFTLINE_LOG"
_OWN = "driftline"


class OwnWarnings(logging.Handler):
    """Prints warnings of ``driftline`` loggers to standard error and drops those of libraries.

    Libraries log tracebacks of what they try again; what matters of them arrives as an error, in one line.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(logging.Filter(_OWN))

    def emit(self, record: logging.LogRecord) -> None:
        print(f"driftline: {' '.join(record.getMessage().split())}", file=sys.stderr)


class JsonLines(logging.Handler):
    """Prints one JSON object a line to standard error: ``{time, level, logger, message, ...}``, of our own loggers.

    What a record carries as ``extra={"fields": {...}}`` stands beside these.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(logging.Filter(_OWN))

    def emit(self, record: logging.LogRecord) -> None:
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            entry["traceback"] = logging.Formatter().formatException(record.exc_info)
        print(json.dumps(entry, default=str), file=sys.stderr, flush=True)


def wants_json(asked: bool, environ: Mapping[str, str]) -> bool:
    """Whether logs are to be JSON: by ``--log-json``, or DRIFTLINE_LOG=json. Raises UsageError for another value."""
    value = environ.get(LOG_VARIABLE, "")
    if value not in ("", "text", "json"):
        raise UsageError(f"{LOG_VARIABLE} cannot be {value!r}", fix="Set it to json or text.")
    return asked or value == "json"


def quiet_libraries() -> None:
    """Install ``OwnWarnings``, once; a program that has configured its logging keeps it."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(OwnWarnings())


@contextmanager
def json_lines() -> Iterator[None]:
    """Write our own logs as JSON meanwhile, from level info on, and nothing else of ours beside them."""
    root, own, handler = logging.getLogger(), logging.getLogger(_OWN), JsonLines()
    before, level = [h for h in root.handlers if isinstance(h, OwnWarnings)], own.level
    for other in before:
        root.removeHandler(other)
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        own.setLevel(level)
        root.removeHandler(handler)
        for other in before:
            root.addHandler(other)


def writes_json() -> bool:
    """Whether logs are written as JSON now."""
    return any(isinstance(handler, JsonLines) for handler in logging.getLogger().handlers)
