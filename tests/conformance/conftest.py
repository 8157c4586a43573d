"""The marker for conformance tests, the table of their outcomes, and initial workspaces."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.memory_support import without_variables
from tests.conformance.table import ROWS, Row, carried_rows

OPTION = "--conformance-table"
_PROPERTY = "criterion"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="Print which line of which document passed.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "criterion(document, number, what): the line of a specification that it checks")
    if config.getoption(OPTION):
        config.pluginmanager.register(_Table(), "conformance-table")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add each test's criteria to its report, so the workers of a parallel run transmit them."""
    for mark in item.iter_markers(_PROPERTY):
        item.user_properties.append((_PROPERTY, mark.args))


class _Table:
    """Collects the outcome of each test and prints them in the order of ``ROWS``."""

    def __init__(self) -> None:
        self._passed: dict[tuple[str, str, str, str], bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome: all phases of all parameters of a test must pass. A skipped test has not passed."""
        test = report.nodeid.partition("[")[0].partition("@")[0].rpartition("/")[2]
        for name, value in report.user_properties:
            if name == _PROPERTY:
                document, number, what = map(str, _sequence(value))
                key = (document, number, what, test)
                self._passed[key] = self._passed.get(key, True) and report.passed

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines, carried = [("document", "number", "what", "test", "passed")], carried_rows()
        for row in (*ROWS, *sorted({Row(*key[:2]) for key in self._passed} - set(ROWS))):
            tests = [(*key, "yes" if passed else "NO") for key, passed in self._passed.items() if key[:2] == row]
            lines += tests or [(*row, "", "not run" if row in carried else "missing", "NO")]
        rows = {Row(*line[:2]) for line in lines[1:]}
        failed = {Row(*line[:2]) for line in lines[1:] if line[-1] == "NO"}
        terminalreporter.section("conformance")
        for line in _columns(lines):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"{len(rows) - len(failed)} of {len(rows)} lines pass, {len(self._passed)} tests")


def _columns(lines: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def _sequence(value: object) -> Sequence[object]:
    assert isinstance(value, list | tuple)  # a tuple locally, a list from a worker
    return value


@pytest.fixture(scope="session")
def empty_workspace(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A workspace that uses the small model, over an empty folder. Tests copy it: that is faster than creating one."""
    import driftline as dl

    folder = tmp_path_factory.mktemp("empty-workspace")
    (folder / "nothing").mkdir()
    dl.index(str(folder / "nothing"), workspace=str(folder / "ws"), model=str(tiny_model))
    return folder / "ws"


@pytest.fixture
def ws(empty_workspace: Path, tmp_path: Path) -> str:
    """An empty workspace that uses the small model; tests may change it."""
    return str(shutil.copytree(empty_workspace, tmp_path / "ws"))
