"""Another process finds a document's definitions; documents that end it have none, and do not end this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import driftline
from driftline.storage import helper_process
from driftline.tasks.definitions import find_definitions
from driftline.tasks.definitions.find_definitions import definitions, definitions_in_worker
from tests.support.waiting import until

PARSER = """
import os, time
from driftline.tasks.definitions import find_definitions
found = find_definitions.definitions
def hostile(path, text):
    if text.startswith("die"): os.abort()
    if text.startswith("spin"):
        while True: pass
    if text.startswith("raise"): raise RecursionError
    if text.startswith("lie"): find_definitions.marshal.dumps = lambda _: b"["
    if text.startswith("once") and not os.path.exists(path):
        open(path, "w").close()
        os._exit(0)
    return found(path, text)
find_definitions.definitions, find_definitions.CPU_SECONDS = hostile, 0
find_definitions.serve()
"""


@pytest.fixture
def pool() -> Iterator[helper_process.HelperPool[helper_process.HelperProcess]]:
    """The pool of this process, without processes."""
    find_definitions._pool().end()
    yield find_definitions._pool()
    find_definitions._pool().end()


@pytest.fixture
def started(
    pool: helper_process.HelperPool[helper_process.HelperProcess], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The programs of the parser processes that a test starts, which some documents end."""
    found: list[str] = []
    start = helper_process._start

    def log_start(code: str, *args: object) -> object:
        found.append(code)
        return start(PARSER, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(helper_process, "_start", log_start)
    return found


def idle_process(pool: helper_process.HelperPool[helper_process.HelperProcess]) -> helper_process.HelperProcess:
    (process,) = pool._idle[os.getpid()]
    return process


def test_the_answers_equal_those_of_this_process(pool: helper_process.HelperPool[helper_process.HelperProcess]) -> None:
    package = Path(driftline.__file__).parent / "storage" / "lines"
    documents = [(path.name, path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))]
    documents.append(("page.md", "# Größe\n\nText \U0001f680\n"))
    expected = [definitions(*document) for document in documents]
    first, second = definitions_in_worker(documents), definitions_in_worker(documents[::-1])
    assert first() == expected
    assert second() == expected[::-1]
    assert idle_process(pool).pid != os.getpid()
    assert definitions_in_worker([])() == []


def test_a_process_that_was_killed_while_idle_is_replaced(
    pool: helper_process.HelperPool[helper_process.HelperProcess],
) -> None:
    expected = definitions_in_worker([("a.py", "def f(): pass\n")])()
    os.kill(idle_process(pool).pid, signal.SIGKILL)
    assert definitions_in_worker([("a.py", "def f(): pass\n")])() == expected
    assert [each.name for each in expected[0]] == ["f"]


@pytest.mark.parametrize(("text", "processes"), [("die", 5), ("raise", 5), ("spin", 3), ("lie", 3)])
def test_a_document_that_crashes_the_parser_has_no_definitions(
    text: str, processes: int, started: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    documents = [("a.py", "def f(): pass\n"), ("odd.py", text), ("b.py", "def g(): pass\n")]
    found = definitions_in_worker(documents)()
    assert [[each.name for each in one] for one in found] == [["f"], [], ["g"]]
    assert "odd.py" in caplog.text
    assert "a.py" not in caplog.text
    assert len(started) == processes


def test_a_parser_that_dies_once_is_replaced(started: list[str], tmp_path: Path) -> None:
    assert definitions_in_worker([(str(tmp_path / "a.py"), "once = 1\ndef f(): pass\n")])()[0]
    assert len(started) == 2


def test_the_process_ends_with_its_parent() -> None:
    program = """
import os, signal
from driftline.tasks.definitions import find_definitions
assert find_definitions.definitions_in_worker([("a.py", "def f(): pass")])()
print(find_definitions._pool()._idle[os.getpid()][0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    command_line = Path(f"/proc/{int(outcome.stdout)}/cmdline")
    until(lambda: not command_line.exists() or not command_line.read_bytes(), "the end of the process")
