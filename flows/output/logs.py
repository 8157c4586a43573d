"""Set up command-line logging: Driftline's own warnings as text or, on request, all its records as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from driftline.flows.output.plain_text import log_line, warn
from driftline.storage.errors import UsageError, without_secrets

LOG_VARIABLE = "DRIFTLINE_LOG"
_OWN = "driftline"


class OwnWarnings(logging.Handler):
    """Print warnings from ``driftline`` loggers to standard error, and drop library warnings.

    Libraries log a traceback for every failure that they retry. Permanent failures are reported as errors.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(logging.Filter(_OWN))

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


class JsonLines(logging.Handler):
    """Print each record from ``driftline`` loggers to standard error as a JSON line.

    A line is ``{time, level, logger, message, ...}``; a record's ``extra={"fields": {...}}`` adds more keys.
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
            "message": without_secrets(record.getMessage()),
            **fields,
        }
        if record.exc_info:
            entry["traceback"] = without_secrets(logging.Formatter().formatException(record.exc_info))
        log_line(json.dumps(entry, default=str))


def wants_json(requested: bool, environ: Mapping[str, str]) -> bool:
    """Return whether ``--log-json`` (``requested``) or DRIFTLINE_LOG=json selects JSON logs. Raises UsageError."""
    value = environ.get(LOG_VARIABLE, "")
    if value not in ("", "text", "json"):
        raise UsageError(f"{LOG_VARIABLE} cannot be {value!r}", fix="Set it to json or text.")
    return requested or value == "json"


def quiet_libraries() -> None:
    """Install ``OwnWarnings`` unless the program already configured logging."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(OwnWarnings())


@contextmanager
def log_levels() -> Iterator[None]:
    """Let ``log_more`` change which records ``OwnWarnings`` prints until the context exits."""
    own = logging.getLogger(_OWN)
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, OwnWarnings)]
    before, levels = own.level, [handler.level for handler in handlers]
    try:
        yield
    finally:
        own.setLevel(before)
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)


def log_more(level: int) -> None:
    """Print records from ``driftline`` loggers at ``level`` and above."""
    logging.getLogger(_OWN).setLevel(level)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, OwnWarnings | JsonLines):
            handler.setLevel(level)


@contextmanager
def json_lines() -> Iterator[None]:
    """Log JSON at level info and above instead of using ``OwnWarnings`` until the context exits."""
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
    """Return whether ``json_lines`` is in effect."""
    return any(isinstance(handler, JsonLines) for handler in logging.getLogger().handlers)
