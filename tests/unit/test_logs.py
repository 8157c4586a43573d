"""What of the logs reaches a person."""

from __future__ import annotations

import logging

import pytest

from driftline.flows.logs import OwnWarnings


def record(logger: str, level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord(logger, level, __file__, 1, message, None, None)


@pytest.mark.parametrize(
    ("logger", "level", "shown"),
    [
        ("driftline.storage.leases", logging.WARNING, "driftline: not renewed yet\n"),
        ("driftline.storage.leases", logging.INFO, ""),
        ("gcsfs", logging.ERROR, ""),
        ("driftlines", logging.ERROR, ""),
    ],
)
def test_only_warnings_of_our_own_are_shown_and_in_one_line(
    logger: str, level: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.Logger("root")
    root.addHandler(OwnWarnings())
    root.handle(record(logger, level, "not renewed\nyet"))
    assert capsys.readouterr().err == shown
