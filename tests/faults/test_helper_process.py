"""A helper process may die, hang or misbehave in any state: its requests fail, and none waits forever."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from driftline.storage.errors import CorruptFile
from driftline.storage.helper_process import HelperDied, HelperPool, HelperProcess, HelperStopped
from driftline.storage.lance.reader_process import ProcessDied, ProcessStopped, WorkerProcess, run_in_worker
from tests.support.waiting import PATIENCE_SECONDS

HELPER = """
import os, struct, sys, time
from driftline.storage.helper_process import serve
def answer(data, name):
    if name == b"abort": os.abort()
    if name == b"sleep": time.sleep(10**6)
    if name == b"raise": raise KeyError("x")
    if name == b"hungry": raise MemoryError
    if name == b"half": os.write(1, b""), os.write(ANSWERS, struct.pack("<QQQ", 0, 0, 10) + b"half"), os._exit(0)
    if name == b"huge": os.write(ANSWERS, struct.pack("<QQQ", 0, 0, 2**62))
    if name == b"other": os.write(ANSWERS, struct.pack("<QQQ", 99, 0, 0))
    return data * 2
ANSWERS = os.dup(1)
serve(answer, threads=2)
"""
DEAF = "import time; time.sleep(10**6)"


@pytest.fixture
def helper() -> Iterator[HelperProcess]:
    process = HelperProcess(HELPER, quiet=True)
    yield process
    process.end()


@pytest.mark.parametrize(
    ("name", "is_beyond_limit"),
    [("abort", False), ("raise", False), ("half", False), ("other", False), ("hungry", True), ("huge", True)],
)
def test_a_request_that_gets_no_answer_fails(name: str, is_beyond_limit: bool, helper: HelperProcess) -> None:
    with pytest.raises(HelperDied) as died:
        helper.ask(PATIENCE_SECONDS, b"x", name.encode())
    assert died.value.is_beyond_limit == is_beyond_limit
    with pytest.raises(HelperDied):
        helper.ask(PATIENCE_SECONDS, b"x")


def test_requests_are_answered_concurrently_until_one_is_too_slow(helper: HelperProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        neighbour = pool.submit(helper.ask, PATIENCE_SECONDS, b"x", b"sleep")
        assert helper.ask(PATIENCE_SECONDS, b"x" * 2**20) == b"x" * 2**21
        with pytest.raises(TimeoutError):
            helper.ask(0.1, b"x", b"sleep")
        with pytest.raises(HelperStopped):
            neighbour.result()
    assert not helper.is_alive


def test_a_helper_that_reads_nothing_is_killed() -> None:
    helper = HelperProcess(DEAF)
    with pytest.raises(TimeoutError):
        helper.ask(0.1, bytes(2**24))
    assert not helper.is_alive


def test_a_helper_killed_while_a_request_is_written_fails_it() -> None:
    helper = HelperProcess(DEAF)
    threading.Timer(0.1, os.kill, [helper.pid, signal.SIGKILL]).start()
    with pytest.raises(HelperDied):
        helper.ask(PATIENCE_SECONDS, bytes(2**24))


def test_an_undecodable_answer_kills_only_its_helper() -> None:
    pool = HelperPool(lambda environment: HelperProcess(HELPER, environment))
    with pytest.raises(ValueError, match="Expecting value"):
        pool.ask(PATIENCE_SECONDS, json.loads, b"x")
    assert pool.ask(PATIENCE_SECONDS, json.loads, b"1") == 11
    pool.end()


def test_a_helper_with_other_variables_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_in_worker(os.getpid) == run_in_worker(os.getpid)
    before = run_in_worker(os.getpid)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    assert run_in_worker(os.getpid) != before


class Unreadable:
    """A value that cannot be unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("x",)


def test_a_result_that_cannot_be_unpickled_is_an_error() -> None:
    process = WorkerProcess()
    with pytest.raises(CorruptFile):
        process.run(PATIENCE_SECONDS, Unreadable)
    with pytest.raises(ProcessDied):
        run_in_worker(Unreadable)
    process.end()


def test_a_call_that_dies_once_is_repeated(tmp_path: os.PathLike[str]) -> None:
    assert run_in_worker(dies_once, os.path.join(tmp_path, "died")) == 7
    with pytest.raises(ProcessDied):
        run_in_worker(os.abort)
    with pytest.raises(ProcessStopped):
        run_in_worker(is_killed)


def is_killed() -> None:
    """Die as if the system lacked memory, which says nothing about the files that a process reads."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(path: str) -> int:
    if not os.path.exists(path):
        with open(path, "w"):
            os._exit(1)
    return 7
