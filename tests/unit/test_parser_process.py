"""Another process finds the same definitions as this process, even if the other one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import driftline
from driftline.tasks.definitions import outlines
from driftline.tasks.definitions.outlines import MIN_CHARACTERS, definitions, definitions_in_worker
from tests.support.waiting import until


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Enough modules that another process parses them, on a machine with two cores."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    helper = outlines._Helper()
    monkeypatch.setattr(outlines, "_helper", lambda: helper)
    package = Path(driftline.__file__).parent
    modules = [(path.name, path.read_text("utf-8")) for path in sorted((package / "storage").rglob("*.py"))]
    modules.append(("page.md", "# Größe\n\nText \U0001f680\n"))
    return modules * (1 + MIN_CHARACTERS // sum(len(text) for _, text in modules))


def pid() -> int:
    process = outlines._helper()._process
    assert process is not None
    return process.pid


def test_the_answers_equal_those_of_this_process(documents: list[tuple[str, str]]) -> None:
    expected = [definitions(*document) for document in documents]
    first, second = definitions_in_worker(documents, allowed=True), definitions_in_worker(documents[::-1], allowed=True)
    assert first() == expected
    assert second() == expected[::-1]
    assert pid() != os.getpid()
    outlines._helper()._end()


def test_few_documents_start_no_process(documents: list[tuple[str, str]]) -> None:
    assert definitions_in_worker(documents[:1], allowed=True)() == [definitions(*documents[0])]
    assert outlines._helper()._process is None


def test_a_worker_of_an_executor_starts_no_process(documents: list[tuple[str, str]]) -> None:
    assert definitions_in_worker(documents, allowed=False)() == [definitions(*document) for document in documents]
    assert outlines._helper()._process is None


def test_a_killed_process_loses_no_answer(documents: list[tuple[str, str]]) -> None:
    expected = definitions_in_worker(documents, allowed=True)()
    os.kill(pid(), signal.SIGKILL)
    assert definitions_in_worker(documents, allowed=True)() == expected
    assert definitions_in_worker(documents, allowed=True)() == expected


def test_the_process_ends_with_its_parent() -> None:
    program = """
import os, signal, sys
from driftline.tasks.definitions import outlines
os.cpu_count = lambda: 2
assert outlines.definitions_in_worker([("a.py", "def f(): pass\\n" * 50_000)], allowed=True)()
print(outlines._helper()._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    other = int(outcome.stdout)
    command_line = Path(f"/proc/{other}/cmdline")
    until(lambda: not command_line.exists() or not command_line.read_bytes(), "the end of the process")
