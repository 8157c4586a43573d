"""Searches of the web server at once: in processes that start when needed, may die, and end with the server."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

import driftline as dl
from driftline.flows.output.logs import writes_json
from driftline.flows.web import search_processes
from driftline.flows.web.search_processes import SearchProcesses
from driftline.storage.errors import StorageError, UsageError
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.query import search
from tests.support.oracle import WORDS
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.web import ask


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Workspace:
    folder = tmp_path_factory.mktemp("search-processes")
    (folder / "tree").mkdir()
    for number in range(20):
        (folder / f"tree/{number}.md").write_text("".join(f"{WORDS[(number + n) % 40]} {number}\n" for n in range(10)))
    dl.index(str(folder / "tree"), workspace=str(folder / "ws"), model=str(tiny_model), executor="inline")
    return Workspace.open(str(folder / "ws"))


@pytest.fixture
def two(workspace: Workspace) -> Iterator[SearchProcesses]:
    """Two processes, of which the other one has started."""
    with closing(SearchProcesses(2)) as processes:
        searched_beside_each_other(processes, workspace)
        yield processes


def searched_beside_each_other(processes: SearchProcesses, workspace: Workspace) -> None:
    """Search in several threads until another process is there."""
    with ThreadPoolExecutor(4) as pool:

        def another_answers() -> bool:
            list(pool.map(lambda query: processes.search(workspace, query), WORDS[:8]))
            return bool(processes._helpers)

        until(another_answers, "another process")


def kill_other(processes: SearchProcesses) -> None:
    (helper,) = processes._helpers
    for pid, process in helper.pool._processes.items():
        psutil.Process(pid).kill()
        process.join(PATIENCE_SECONDS)


def test_another_process_answers_as_this_one(two: SearchProcesses, workspace: Workspace) -> None:
    assert len(two._helpers) == 1
    here = two._free.get()
    assert here == (0, None)  # from now on the other process answers
    for query in WORDS[:5]:
        assert two.search(workspace, query, top_k=3) == search(workspace, query, top_k=3)
    with pytest.raises(UsageError, match="top_k"):
        two.search(workspace, "x", top_k=-1)
    assert len(two.search(workspace, WORDS[0], top_k=1).results) == 1


def test_a_process_that_dies_takes_no_search_with_it(two: SearchProcesses, workspace: Workspace) -> None:
    here = two._free.get()
    kill_other(two)
    two._free.put(here)
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda query: two.search(workspace, query, top_k=3), WORDS[:8]))
    assert reports == [search(workspace, query, top_k=3) for query in WORDS[:8]]
    searched_beside_each_other(two, workspace)
    assert two._free.qsize() == 2


def test_one_process_starts_no_other_and_tells_who_waits_too_long(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_processes, "WAIT_SECONDS", 0.01)
    processes = SearchProcesses(1)
    here = [processes._free.get() for _ in range(search_processes.SEARCHES_BESIDE_EACH_OTHER)]
    with pytest.raises(StorageError, match="No search has ended"):
        processes.search(workspace, "x")
    processes._free.put(here[0])
    assert processes.search(workspace, WORDS[0]).results
    assert not processes._helpers
    assert not processes._is_starting


def test_a_process_that_searches_for_too_long_is_ended(
    two: SearchProcesses, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = two._free.get()  # only the other process can answer
    (helper,) = two._helpers
    monkeypatch.setattr(search_processes, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(search_processes, "WAIT_SECONDS", 0.5)
    with pytest.raises(StorageError, match="No search has ended"):  # in its second attempt
        two.search(workspace, "x")
    until(lambda: not psutil.pid_exists(helper.pid))
    assert not two._helpers
    two._free.put(here)
    assert two.search(workspace, WORDS[0]).results


def test_other_processes_log_as_the_first_one_does() -> None:
    with search_processes._LOGGING:
        search_processes._begin_logging(as_json=True)
        assert writes_json()
    assert not writes_json()


def test_a_process_that_cannot_start_is_done_without_for_a_while(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search_processes, "_begin", sys.exit)
    with closing(SearchProcesses(2)) as processes:
        here = processes._free.get()
        waiting = threading.Thread(target=processes.search, args=(workspace, "x"))
        waiting.start()
        until(lambda: "did not start" in caplog.text)
        processes._free.put(here)
        waiting.join(PATIENCE_SECONDS)
        assert processes._starts_after > time.monotonic()
        assert not processes._helpers


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_other_processes_end_with_the_server_however_it_ends(workspace: Workspace, stop: signal.Signals) -> None:
    command = [sys.executable, "-m", "driftline", "web", "--workspace", workspace.objects.uri, "--port", "0"]
    with subprocess.Popen([*command, "--processes", "2"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            place = urlsplit(next(line for line in server.stderr if "serving" in line).split()[-1]).netloc
            process, others = psutil.Process(server.pid), list[psutil.Process]()

            def has_started() -> bool:
                with ThreadPoolExecutor(6) as pool:
                    answers = list(pool.map(lambda query: ask(place, f"/api/v1/search?q={query}"), WORDS[:12]))
                assert {answer.status for answer in answers} == {200}
                others[:] = [child for child in process.children() if "spawn_main" in " ".join(child.cmdline())]
                return bool(others)

            until(has_started)
            server.send_signal(stop)
            server.wait(PATIENCE_SECONDS)
        finally:
            server.kill()
    psutil.wait_procs(others, PATIENCE_SECONDS)
    assert not [other for other in others if other.is_running()]
