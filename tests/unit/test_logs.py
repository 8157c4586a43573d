"""Log records that are shown to the user."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path

import pytest

from driftline.flows.commands.main import main
from driftline.flows.output.logs import OwnWarnings, json_lines, wants_json, writes_json


@pytest.fixture(autouse=True)
def no_other_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove Prefect's handler, installed by another test: it writes to a stream that is already closed."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def record(logger: str, level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord(logger, level, __file__, 1, message, None, None)


@pytest.mark.parametrize(
    ("logger", "level", "shown"),
    [
        ("driftline.storage.leases.lease", logging.WARNING, "driftline: not renewed yet\n"),
        ("driftline.storage.leases.lease", logging.INFO, ""),
        ("gcsfs", logging.ERROR, ""),
        ("driftlines", logging.ERROR, ""),
    ],
)
def test_only_warnings_of_driftline_are_shown_in_one_line_each(
    logger: str, level: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.Logger("root")
    root.addHandler(OwnWarnings())
    root.handle(record(logger, level, "not renewed\nyet"))
    assert capsys.readouterr().err == shown


def test_json_lines_hold_events_of_driftline_and_none_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    with json_lines():
        assert writes_json()
        logging.getLogger("driftline.flows.runs.index").info(
            "two\nlines", extra={"fields": {"run_id": "01", "path": Path("a")}}
        )
        logging.getLogger("gcsfs").error("tried again")
        try:
            raise ZeroDivisionError("surprise")
        except ZeroDivisionError:
            logging.getLogger("driftline").exception("failed")
    assert not writes_json()
    logging.getLogger("driftline.flows.runs.index").info("afterwards")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {
        "level": "info",
        "logger": "driftline.flows.runs.index",
        "message": "two\nlines",
        "run_id": "01",
        "path": "a",
    }
    assert (second["level"], "ZeroDivisionError: surprise" in second["traceback"]) == ("error", True)


@pytest.mark.parametrize(
    ("requested", "value", "expected"),
    [(False, "", False), (True, "", True), (False, "json", True), (False, "text", False)],
)
def test_option_or_variable_select_json_logs(requested: bool, value: str, expected: bool) -> None:
    assert wants_json(requested, {"DRIFTLINE_LOG": value}) is expected


def test_an_unknown_value_of_the_variable_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_LOG", "yaml")
    assert main(["runs"]) == 2
    assert "DRIFTLINE_LOG" in capsys.readouterr().err


def test_errors_and_progress_of_a_command_are_json_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--log-json", "index", str(tmp_path / "nowhere"), "--json"]) == 2
    out, err = capsys.readouterr()
    (line,) = (json.loads(line) for line in err.splitlines())
    assert (line["level"], line["error"], json.loads(out)["error"]) == ("error", "source_not_found", "source_not_found")
