"""Concurrent searches in the web server: in processes that start on demand, may die, and end with the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

import driftline as dl
from driftline.flows.config.memory_settings import load_memory_configuration
from driftline.flows.output.logs import writes_json
from driftline.flows.served_memory import search_memory
from driftline.flows.web import search_processes
from driftline.flows.web.search_processes import SearchProcesses
from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import CorruptFile, StorageError, UsageError
from driftline.storage.lance.reader_process import WorkerProcess
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder
from driftline.tasks.search.hits import SearchReport
from driftline.tasks.search.request import SearchRequest
from driftline.tasks.search.search import search as search_lines
from tests.support.oracle import WORDS
from tests.support.searches import search
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.web import ask

TIED = 2e-4
"""Hits whose scores differ by less may swap places."""


def searched(processes: SearchProcesses, workspace: Workspace, query: str, **options: Any) -> SearchReport:
    return processes.run(search_lines, workspace, SearchRequest(query, **options))


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
    """Two processes that have both started."""
    with closing(SearchProcesses(2)) as processes:
        processes.start(workspace)
        searched_concurrently(processes, workspace, 2)
        yield processes


def searched_concurrently(processes: SearchProcesses, workspace: Workspace, count: int) -> None:
    """Search in several threads until ``count`` processes have started."""
    with ThreadPoolExecutor(4) as pool:

        def enough_answer() -> bool:
            if len(processes._helpers) < count:
                list(pool.map(lambda query: searched(processes, workspace, query), WORDS[:8]))
            return len(processes._helpers) >= count

        until(enough_answer, "another process")


def check_answers(found: SearchReport, expected: SearchReport) -> None:
    """Compare the notes, all scores, and every hit that is not tied. The order of summation decides ties, including
    ties between the last result and an omitted one.
    """
    assert found.notes == expected.notes
    scores = [hit.score for hit in expected.results]
    assert [hit.score for hit in found.results] == pytest.approx(scores, abs=TIED)
    for at, (hit, other) in enumerate(zip(found.results, expected.results, strict=True)):
        is_tied = any(abs(score - other.score) <= TIED for score in scores[:at] + scores[at + 1 :])
        if at + 1 < len(scores) and not is_tied:
            same = replace(hit, distance=other.distance, score=other.score)
            assert same.to_dict() == other.to_dict()
            assert hit.distance == pytest.approx(other.distance, abs=1e-5)


def test_another_process_gives_the_same_answers(two: SearchProcesses, workspace: Workspace) -> None:
    for query in WORDS[:5]:
        check_answers(searched(two, workspace, query, top_k=3), search(workspace, query, top_k=3))
    with pytest.raises(UsageError, match="top_k"):
        searched(two, workspace, "x", top_k=-1)
    assert two.run(Workspace.stats, workspace, None) == workspace.stats(None)


def test_memory_is_searched_in_another_process(two: SearchProcesses, tmp_path: Path, tiny_model: Path) -> None:
    with dl.MemoryStore(str(tmp_path), embedder=lambda: WordTableEmbedder.open(str(tiny_model))) as memory:
        memory.store("plan", {"text": "parser plan"}, "org:acme")
    settings = load_memory_configuration(environ={}, embedding={"model": str(tiny_model)})
    workspace = Workspace.open(str(tmp_path))
    within, beyond = (Boundary.of(Entity.parse(name)) for name in ("org:acme", "org:other"))
    psutil.Process(next(iter(two._helpers)).pid).kill()  # another process responds
    (hit,) = two.run(search_memory, workspace, settings, within, "parser", top_k=1)
    assert (hit.record.key, hit.record.value) == ("plan", {"text": "parser plan"})
    assert two.run(search_memory, workspace, settings, beyond, "parser", top_k=1) == []
    with pytest.raises(UsageError, match="top_k"):
        two.run(search_memory, workspace, settings, None, "parser", top_k=-1)


@pytest.mark.parametrize("killed", [1, 2])
def test_a_search_survives_the_death_of_its_process(two: SearchProcesses, workspace: Workspace, killed: int) -> None:
    for helper in list(two._helpers)[:killed]:
        psutil.Process(helper.pid).kill()
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda query: searched(two, workspace, query, top_k=3), WORDS[:8]))
    for report, query in zip(reports, WORDS[:8], strict=True):
        check_answers(report, search(workspace, query, top_k=3))
    searched_concurrently(two, workspace, 2)
    until(lambda: two._free.qsize() == 2)


def end_the_process(_: Workspace) -> None:
    os.abort()


def test_a_read_that_kills_its_process_fails_alone(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SearchProcesses(1)) as processes:
        for _ in range(2):
            with pytest.raises(CorruptFile, match="verify --repair"):
                processes.run(end_the_process, workspace)
            assert searched(processes, workspace, WORDS[0]).results


def panic(_: Workspace) -> None:
    raise type("PanicException", (BaseException,), {})("range end index 7 out of range")


def test_a_panic_raises_an_error_and_does_not_end_the_process(two: SearchProcesses, workspace: Workspace) -> None:
    before = set(two._helpers)
    with pytest.raises(CorruptFile, match=r"range end index 7.*verify --repair"):
        two.run(panic, workspace)
    assert two._helpers == before


def test_waiting_too_long_is_an_error(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SearchProcesses(1)) as processes:
        processes.start(workspace)
        taken = processes._free.get()
        monkeypatch.setattr(search_processes, "WAIT_SECONDS", 0.01)
        with pytest.raises(StorageError, match="No search finished within"):
            searched(processes, workspace, "x")
        processes._free.put(taken)
        assert searched(processes, workspace, WORDS[0]).results
        assert len(processes._helpers) == 1
        assert not processes._is_starting


def sleep(_: Workspace, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


MEETING = threading.Barrier(4)


def meet(_: Workspace) -> int:
    """Return once four calls run at the same time in the same process."""
    return MEETING.wait(PATIENCE_SECONDS)


def test_one_process_runs_several_reads_at_once(workspace: Workspace) -> None:
    with closing(SearchProcesses(1, at_once=4)) as processes, ThreadPoolExecutor(4) as pool:
        processes.start(workspace)
        assert sorted(pool.map(lambda _: processes.run(meet, workspace), range(4))) == [0, 1, 2, 3]
        assert len(processes._helpers) == 1


def test_a_process_that_searches_for_too_long_is_ended(
    two: SearchProcesses, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(two._helpers)
    with monkeypatch.context() as changed:
        changed.setattr(search_processes, "SEARCH_SECONDS", 0.5)
        with pytest.raises(StorageError, match="Narrow the search"):
            two.run(sleep, workspace, 2 * PATIENCE_SECONDS)
    until(lambda: not any(helper.is_alive for helper in before))
    assert searched(two, workspace, WORDS[0]).results


def second_time(workspace: Workspace, seen: Path) -> int:
    """Sleep on the first call; return on the second."""
    if not seen.exists():
        seen.touch()
        time.sleep(2 * PATIENCE_SECONDS)
    return 7


def test_a_search_that_is_stopped_with_its_process_is_repeated(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    with closing(SearchProcesses(1, at_once=4)) as processes, ThreadPoolExecutor(1) as pool:
        processes.start(workspace)
        neighbour = pool.submit(processes.run, second_time, workspace, seen)
        until(seen.exists)
        run = WorkerProcess.run

        def hurried(helper: WorkerProcess, seconds: float, function: Any, *args: Any) -> Any:
            return run(helper, 0.1 if function is sleep else seconds, function, *args)

        monkeypatch.setattr(WorkerProcess, "run", hurried)
        monkeypatch.setattr(search_processes, "ATTEMPTS", 1)
        with pytest.raises(StorageError, match="Narrow the search"):
            processes.run(sleep, workspace, 2 * PATIENCE_SECONDS)
        monkeypatch.undo()
        assert neighbour.result() == 7


def test_other_processes_log_like_the_first_one() -> None:
    with search_processes._LOGGING:
        search_processes._begin_logging(as_json=True)
        assert writes_json()
    assert not writes_json()


def test_work_continues_without_a_process_that_cannot_start(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    with closing(SearchProcesses(2)) as processes:
        processes.start(workspace)
        monkeypatch.setattr(search_processes, "_BEGIN", "no_such_module:begin")
        here = processes._free.get()
        waiting = threading.Thread(target=searched, args=(processes, workspace, "x"))
        waiting.start()
        until(lambda: "did not start" in caplog.text)
        processes._free.put(here)
        waiting.join(PATIENCE_SECONDS)
        assert processes._starts_after >= began + search_processes.RETRY_SECONDS
        assert len(processes._helpers) == 1


def fail(_: Workspace) -> None:
    raise StorageError("The bucket is away")


def test_a_process_that_cannot_prepare_ends(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[WorkerProcess] = []

    class Started(WorkerProcess):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(search_processes, "WorkerProcess", Started)
    with closing(SearchProcesses(2)) as processes:
        processes.start(workspace)
        monkeypatch.setattr("driftline.tasks.search.search.prepare", fail)
        here = processes._free.get()
        waiting = threading.Thread(target=searched, args=(processes, workspace, "x"))
        waiting.start()
        until(lambda: "The bucket is away" in caplog.text)
        processes._free.put(here)
        waiting.join(PATIENCE_SECONDS)
        assert [helper.is_alive for helper in started] == [True, False]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_other_processes_end_with_the_server_even_if_it_is_killed(workspace: Workspace, stop: signal.Signals) -> None:
    command = [sys.executable, "-m", "driftline", "web", "--workspace", workspace.objects.uri, "--port", "0"]
    with subprocess.Popen([*command, "--processes", "2"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = urlsplit(next(line for line in server.stderr if "serving" in line).split()[-1]).netloc
            process, others = psutil.Process(server.pid), list[psutil.Process]()

            def has_started() -> bool:
                with ThreadPoolExecutor(6) as pool:
                    answers = list(pool.map(lambda query: ask(address, f"/api/v1/search?q={query}"), WORDS[:12]))
                assert {answer.status for answer in answers} == {200}
                others[:] = [
                    child for child in process.children() if "storage.lance.reader_process" in " ".join(child.cmdline())
                ]
                return len(others) == 2

            until(has_started)
            server.send_signal(stop)
            server.wait(PATIENCE_SECONDS)
        finally:
            server.kill()
    psutil.wait_procs(others, PATIENCE_SECONDS)
    assert not [other for other in others if other.is_running()]
