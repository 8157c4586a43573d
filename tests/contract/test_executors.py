"""The contract of executors: same specs, same results, and recovery from a worker's death."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Status, Worker

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.output.run_reports import IndexReport
from driftline.flows.runs import source_run
from driftline.flows.runs.executors import (
    NO_WORKERS_VARIABLE,
    SPAWN_VARIABLES,
    WORKER_VARIABLES,
    DaskExecutor,
    Executor,
    InlineExecutor,
    open_executor,
    running_loop,
)
from driftline.flows.runs.index import index_sources
from driftline.storage.errors import CorruptFile, ExecutorError, UsageError
from driftline.storage.lines.line_table import LineTable
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.batch import BatchSpec
from driftline.tasks.scanning.scan import plan_partitions
from driftline.tasks.task_context import ModelRef, TaskContext
from tests.servers.ports import free_port
from tests.support.processes import forked_dask_workers
from tests.support.waiting import PATIENCE_SECONDS, until

COLUMNS = ("id", "entity", "path", "line_number", "text", "vector", "parent_dirs", "ext", "hash")
ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="module", autouse=True)
def forking() -> Iterator[ForkServerContext]:
    with forked_dask_workers() as context, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)  # workers inherit this process's path and import this file
        yield context


def _schedule(*arguments: str) -> None:
    from distributed.cli.dask_scheduler import main

    main(arguments)


def _work(*arguments: str) -> None:
    from distributed.cli.dask_worker import main

    main(("--no-nanny", *arguments))


def _work_without_driftline(*arguments: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "driftline"]:
        del sys.modules[name]
    sys.modules["driftline"] = None  # type: ignore[assignment]
    _work(*arguments)


@dataclass(frozen=True)
class Cluster:
    address: str
    scheduler: ForkServerProcess
    workers: list[ForkServerProcess]
    add_worker: Callable[[], None]

    def kill_workers(self) -> None:
        for process in self.workers:
            process.kill()


@contextmanager
def cluster(
    forking: ForkServerContext, directory: Path, workers: int, work: Callable[..., None] = _work
) -> Iterator[Cluster]:
    """A scheduler and workers, each in its own process, like a cluster started by a user."""
    from distributed import Client

    address = f"tcp://127.0.0.1:{free_port()}"
    common = ("--no-dashboard", "--local-directory", str(directory))
    scheduling = forking.Process(target=_schedule, args=("--host", address, "--no-dashboard", "--no-show"))
    joining = (address, "--host", "127.0.0.1", "--nthreads", "1", *common)
    working: list[ForkServerProcess] = []

    def add_worker() -> None:
        process = forking.Process(target=work, args=joining)
        process.start()
        working.append(process)

    scheduling.start()
    try:
        for _ in range(workers):
            add_worker()
        with running_loop() as loop, Client(address, loop=loop, timeout=PATIENCE_SECONDS) as client:
            if workers:
                client.wait_for_workers(workers, timeout=PATIENCE_SECONDS)
        yield Cluster(address, scheduling, working, add_worker)
    finally:
        for process in (*working, scheduling):  # workers first: no graceful stop needed
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def scheduler(forking: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(forking, tmp_path_factory.mktemp("dask"), workers=2) as started:
        yield started.address


@dataclass(frozen=True)
class Choice:
    """An executor, selected by the name that users specify."""

    executor: str
    workers: int | None


@pytest.fixture(params=["one thread", "two threads", "local processes", "scheduler"])
def choice(request: pytest.FixtureRequest) -> Choice:
    match request.param:
        case "one thread":
            return Choice("inline", 1)
        case "two threads":
            return Choice("inline", 2)
        case "local processes":
            return Choice("local", 2)
        case _:
            return Choice(request.getfixturevalue("scheduler"), None)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split the small trees into several batches and commits."""
    monkeypatch.setattr(source_run, "BATCH_DOCUMENTS", 10)
    monkeypatch.setattr(source_run, "BATCHES_PER_COMMIT", 3)


def make_tree(root: Path) -> Path:
    for folder in range(7):
        for number in range(9):
            path = root / f"package{folder}" / "deep" / f"module{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"def option_{folder}_{i}(parser): return {number} * {i}\n\n" for i in range(12)))
    (root / "logo.bin").write_bytes(b"\0\1\2")
    (root / "package1" / ".env").write_text("TOKEN=1\n")
    for path in root.rglob("*.*"):  # old enough that no file is racy
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return root


def change_tree(root: Path) -> None:
    for path in sorted((root / "package2").rglob("*.py")):
        path.unlink()
    (root / "package0" / "deep" / "module0.py").write_text("print('the namespace')\n")
    (root / "package3" / "deep" / "module8.py").write_text("")
    (root / "package9").mkdir()
    (root / "package9" / "new.txt").write_text("usage\n\nhelp\n")
    os.utime(root / "package4" / "deep" / "module1.py", ns=(1, 1))


def rows(workspace: Path) -> list[dict[str, Any]]:
    """Return all lines with all columns, in a fixed order."""
    opened = Workspace.open(str(workspace))
    table = opened.lines(opened.tenants()[0])
    found = [row for batch in table.rows(COLUMNS) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["path"], row["line_number"]))


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Assert that the rows are equal; vectors may differ in the last bit, since sums depend on word order."""
    vectors, wanted = ([row["vector"] for row in table] for table in (found, expected))
    assert np.allclose(vectors, wanted, rtol=0, atol=2**-10)
    assert [row | {"vector": None} for row in found] == [row | {"vector": None} for row in expected]


OF_ONE_RUN = {"phases", "worker_phases", "uri", "revision", "deltas", "documents_total"}


def counts(report: IndexReport) -> dict[str, Any]:
    (source,) = report.to_dict()["sources"]
    # The number of deltas depends on how batches are grouped; a dry run does not know the total. How many young files
    # are read again depends on how soon the second run follows.
    return {name: value for name, value in source.items() if name not in (*OF_ONE_RUN, "bytes_read")}


@dataclass(frozen=True)
class Runner:
    tree: Path
    workspace: Path
    model: Path

    def index(self, choice: Choice, **options: Any) -> IndexReport:
        return index_sources(
            IndexRequest(
                sources=(str(self.tree),),
                workspace=str(self.workspace),
                model=str(self.model),
                executor=choice.executor,
                workers=choice.workers,
                indexes="none",
                **options,
            )
        )


@pytest.fixture
def runner(tmp_path: Path, tiny_model: Path) -> Runner:
    return Runner(make_tree(tmp_path / "tree"), tmp_path / "workspace", tiny_model)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[tuple[Any, Any]]:
    """The ``(counts, rows)`` of one thread for the original tree and for the changed tree."""
    location = tmp_path_factory.mktemp("expected")
    runner = Runner(make_tree(location / "tree"), location / "workspace", tiny_model)
    first = counts(runner.index(Choice("inline", 1))), rows(runner.workspace)
    change_tree(runner.tree)
    return [first, (counts(runner.index(Choice("inline", 1))), rows(runner.workspace))]


@pytest.mark.usefixtures("small_batches")
def test_every_executor_gives_the_same_rows_and_the_same_report(
    choice: Choice, runner: Runner, expected: list[tuple[Any, Any]]
) -> None:
    (first, first_rows), (second, second_rows) = expected
    assert (first["new"], first["lines_embedded"]) == (63, 756)
    assert counts(runner.index(choice)) == first
    assert_same(rows(runner.workspace), first_rows)
    change_tree(runner.tree)
    assert second["touched"] == 1
    assert counts(runner.index(choice)) == second
    assert_same(rows(runner.workspace), second_rows)


def test_a_dry_run_on_a_cluster_predicts_the_run(
    runner: Runner, scheduler: str, expected: list[tuple[Any, Any]]
) -> None:
    (first, _), (second, _) = expected
    assert counts(runner.index(Choice(scheduler, None), dry_run=True)) == first | {"lines_total": 0}
    assert not runner.workspace.exists()
    runner.index(Choice("inline", 1))
    change_tree(runner.tree)
    assert counts(runner.index(Choice(scheduler, None), dry_run=True)) == second | {"lines_total": 756}


def test_a_remote_executor_scans_in_partitions(runner: Runner, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_out: list[int] = []
    original = plan_partitions

    def counting(*arguments: Any) -> Any:
        parts = original(*arguments)
        handed_out.append(len(parts))
        return parts

    monkeypatch.setattr(source_run, "plan_partitions", counting)
    runner.index(Choice(scheduler, None))
    assert handed_out[0] >= 2


def test_a_batch_is_pickled_without_the_documents_of_others(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    map_plainly = InlineExecutor.map

    def weighing(executor: InlineExecutor, task: Any, specs: Iterable[Any]) -> Any:
        specs = list(specs)
        sizes.extend(len(pickle.dumps(spec)) for spec in specs if isinstance(spec, BatchSpec))
        return map_plainly(executor, task, specs)

    monkeypatch.setattr(InlineExecutor, "map", weighing)
    runner.index(Choice("inline", 1), dry_run=True)
    (whole,) = sizes
    sizes.clear()
    monkeypatch.setattr(source_run, "BATCH_DOCUMENTS", 1)
    runner.index(Choice("inline", 1), dry_run=True)
    assert len(sizes) > 10
    assert max(sizes) < whole / 2


# Tasks of the tests below.


def _fail(spec: int, _: TaskContext) -> int:
    if spec == 3:
        raise CorruptFile("Number three is damaged", "here", "Restore it.")
    return spec * 2


def _variable(name: str, context: TaskContext) -> tuple[str, str | None]:
    return name, os.environ.get(name)


def _double(spec: int, context: TaskContext) -> tuple[int, int]:
    assert context.workspace.config.workspace_id
    return spec, spec * 2


def _warn(spec: int, _: TaskContext) -> int:
    logging.getLogger("driftline.tests").warning("number %d is odd", spec)
    return spec


@pytest.fixture
def context(runner: Runner) -> TaskContext:
    return make_context(runner.workspace)


def make_context(workspace: Path) -> TaskContext:
    return TaskContext(Workspace.open_for_writing(str(workspace)), ModelRef("none", "0" * 20, 1))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int | None], Executor]]:
    """Open each executor once; its workers can import this file."""
    context = make_context(tmp_path_factory.mktemp("shared") / "workspace")
    opened: dict[str, Executor] = {}
    with ExitStack() as stack:

        def start(name: str, workers: int | None) -> Executor:
            if f"{name} {workers}" not in opened:
                executor = open_executor(name, workers)
                stack.enter_context(executor)
                executor.start(context, [])
                opened[f"{name} {workers}"] = executor
            return opened[f"{name} {workers}"]

        yield start


@pytest.fixture
def executor(choice: Choice, started: Callable[[str, int | None], Executor]) -> Executor:
    return started(choice.executor, choice.workers)


@pytest.fixture
def local(started: Callable[[str, int | None], Executor]) -> Executor:
    return started("local", 2)


def test_each_spec_gives_one_result_and_specs_are_taken_as_slots_become_free(executor: Executor) -> None:
    taken: list[int] = []

    def specs() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            yield number

    results = executor.map(_double, specs())
    first = next(results)
    assert len(taken) <= 2 * executor.slots + 1
    assert sorted([first, *results]) == [(number, 2 * number) for number in range(40)]
    assert list(executor.map(_double, [])) == []


def test_the_error_of_a_task_arrives_as_it_was_raised_and_the_executor_still_works(executor: Executor) -> None:
    with pytest.raises(CorruptFile) as caught:
        list(executor.map(_fail, range(40)))
    assert caught.value.to_dict() == {
        "error": "corrupt_file",
        "message": "Number three is damaged: here. Restore it.",
        "where": "here",
        "fix": "Restore it.",
    }
    assert len(list(executor.map(_double, range(5)))) == 5


def _kill_once(spec: tuple[int, str], context: TaskContext) -> int:
    number, mark = spec
    if number == 5:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return number


def _kill_always(spec: int, context: TaskContext) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return spec


def test_only_local_workers_read_few_fragments_ahead(local: Executor) -> None:
    expected = WORKER_VARIABLES | SPAWN_VARIABLES
    assert dict(local.map(_variable, expected)) == expected
    assert not WORKER_VARIABLES.keys() & os.environ.keys()


def test_the_tasks_of_a_killed_worker_are_run_again(local: Executor, tmp_path: Path) -> None:
    specs = [(number, str(tmp_path / "killed")) for number in range(30)]
    assert sorted(local.map(_kill_once, specs)) == list(range(30))
    assert (tmp_path / "killed").exists()


def test_a_task_that_kills_every_worker_is_one_clear_error(context: TaskContext) -> None:
    # Uses its own cluster: Dask does not restart a worker that dies while starting.
    with DaskExecutor(None, 2) as executor:
        executor.start(context, [])
        with pytest.raises(ExecutorError, match="killed several workers"):
            list(executor.map(_kill_always, [1]))


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "no-port", "tcp://127.0.0.1:none", "unknown://127.0.0.1:1", "tls://127.0.0.1:1"]
)
def test_an_address_without_a_scheduler_is_a_clear_error_that_leaves_nothing_behind(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.flows.runs.executors.CONNECT_TIMEOUT_SECONDS", 0.1)
    later: list[object] = []
    with pytest.raises(UsageError, match="No Dask scheduler responds"):
        DaskExecutor(address, None).__enter__()
    monkeypatch.setattr(sys, "unraisablehook", later.append)
    gc.collect()
    assert later == []


def test_tasks_do_not_wait_forever_for_workers(context: TaskContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.flows.runs.executors.LOCAL_NO_WORKERS_TIMEOUT_SECONDS", 1)
    with DaskExecutor(None, 1) as executor:
        executor.start(context, [])
        executor._client.retire_workers()
        with pytest.raises(ExecutorError, match="No Dask worker"):
            list(executor.map(_double, range(10)))


@pytest.mark.usefixtures("small_batches")
def test_a_run_ends_when_all_workers_are_killed_and_the_next_one_continues(
    forking: ForkServerContext,
    runner: Runner,
    expected: list[tuple[Any, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    transact = LineTable._transact
    with cluster(forking, tmp_path, workers=2) as started, monkeypatch.context() as patch:

        def transact_and_kill(*arguments: Any) -> None:
            transact(*arguments)
            started.kill_workers()

        patch.setattr(LineTable, "_transact", transact_and_kill)
        with (
            dask.config.set({"distributed.scheduler.no-workers-timeout": "500ms"}),
            pytest.raises(ExecutorError, match="No Dask worker was available for 0") as caught,
        ):
            runner.index(Choice(started.address, None))
    assert started.address in str(caught.value)
    assert "No Dask worker accepts tasks" in caplog.text
    report = counts(runner.index(Choice("inline", 1)))
    first, first_rows = expected[0]
    assert 0 < report["unchanged"] < first["new"] == report["unchanged"] + report["new"]
    assert_same(rows(runner.workspace), first_rows)


@pytest.fixture
def losing(
    forking: ForkServerContext, context: TaskContext, tmp_path: Path
) -> Iterator[tuple[Callable[[], None], DaskExecutor]]:
    """A function that kills the only worker of a cluster, and its executor, which soon gives up without a worker."""
    with (
        cluster(forking, tmp_path, workers=1) as started,
        dask.config.set({"distributed.scheduler.no-workers-timeout": "500ms"}),
        DaskExecutor(started.address, None) as executor,
    ):
        executor.start(context, [])
        yield started.kill_workers, executor


def test_results_that_died_with_the_last_worker_are_not_awaited_forever(
    losing: tuple[Callable[[], None], DaskExecutor],
) -> None:
    kill_the_worker, executor = losing
    results = executor.map(_double, range(100))
    next(results)
    until(lambda: all(future.done() for future in executor._pending), "results that nobody has fetched")
    kill_the_worker()
    with pytest.raises(ExecutorError, match="No Dask worker"):
        list(results)
    with pytest.raises(ExecutorError, match="No Dask worker"):
        next(executor.map(_double, [1]))


def _pause(dask_worker: Worker) -> None:
    """Pause a worker as if its memory were full, for good."""
    dask_worker.memory_manager.memory_pause_fraction = False
    dask_worker.status = Status.paused


def test_workers_that_stay_paused_are_not_awaited_forever(losing: tuple[object, DaskExecutor]) -> None:
    _, executor = losing
    executor._client.run(_pause)
    with pytest.raises(ExecutorError, match=f"paused .* {NO_WORKERS_VARIABLE}"):
        list(executor.map(_double, range(4)))


def test_a_worker_that_joins_after_all_others_died_finishes_their_tasks(
    forking: ForkServerContext, context: TaskContext, tmp_path: Path
) -> None:
    with cluster(forking, tmp_path, workers=2) as started, DaskExecutor(started.address, None) as executor:
        executor.start(context, [])
        results = executor.map(_double, range(40))
        first = next(results)
        started.kill_workers()
        until(lambda: not executor._client.nthreads(), "a scheduler without workers")
        started.add_worker()
        assert sorted([first, *results]) == [(number, 2 * number) for number in range(40)]


@pytest.mark.usefixtures("small_batches")
def test_no_row_is_lost_or_doubled_when_workers_are_killed_during_a_run(
    runner: Runner, expected: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[int] = []
    killed: list[int] = []
    start = DaskExecutor.start
    transact = LineTable._transact

    def start_and_tell(executor: DaskExecutor, *arguments: Any, **options: Any) -> None:
        start(executor, *arguments, **options)
        workers.extend(executor._client.run(os.getpid).values())

    def transact_and_kill(*arguments: Any) -> None:
        """Kill one worker after the table's first version and the other after its second."""
        transact(*arguments)
        if len(killed) < len(workers):
            os.kill(workers[len(killed)], signal.SIGKILL)
            killed.append(workers[len(killed)])

    monkeypatch.setattr(DaskExecutor, "start", start_and_tell)
    monkeypatch.setattr(LineTable, "_transact", transact_and_kill)
    # As on a busy machine, where a worker takes longer than that to restart.
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}):
        report = runner.index(Choice("local", 2))
    assert len(killed) == 2
    first, first_rows = expected[0]
    assert_same(rows(runner.workspace), first_rows)
    assert counts(report) == first


# Unusable clusters are rejected with a clear error.


@pytest.mark.parametrize("name", ["many", "", "local:2", "//127.0.0.1"])
def test_an_unknown_executor_is_refused_before_anything_is_written(runner: Runner, name: str) -> None:
    with pytest.raises(UsageError, match="inline, local"):
        runner.index(Choice(name, None))
    assert not runner.workspace.exists()


def test_dask_does_not_start_a_loop_of_its_own(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import utils

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a thread of Dask's own")

    monkeypatch.setattr(utils, "_CollectErrorThread", refuse)
    with DaskExecutor(scheduler, None) as executor:
        assert executor.slots == 2
    with DaskExecutor(None, 1) as executor:
        assert executor.slots == 1


@pytest.mark.parametrize("scheme", ["tcp", "nonsense"])
def test_an_address_without_a_scheduler_is_a_usage_error(
    runner: Runner, driftline: Callable[..., Any], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.flows.runs.executors.CONNECT_TIMEOUT_SECONDS", 1)
    address = f"{scheme}://127.0.0.1:{free_port()}"
    outcome = driftline(
        "index", runner.tree, "--workspace", runner.workspace, "--model", runner.model, "--executor", address
    )
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert address in outcome.err
    assert not runner.workspace.exists()


def test_a_scheduler_without_workers_is_reported(forking: ForkServerContext, runner: Runner, tmp_path: Path) -> None:
    with cluster(forking, tmp_path, workers=0) as started, pytest.raises(ExecutorError, match="no workers"):
        runner.index(Choice(started.address, None))
    assert not runner.workspace.exists()


def test_workers_without_driftline_are_reported(forking: ForkServerContext, runner: Runner, tmp_path: Path) -> None:
    with (
        cluster(forking, tmp_path, workers=1, work=_work_without_driftline) as started,
        pytest.raises(ExecutorError, match="driftline"),
    ):
        runner.index(Choice(started.address, None))


def test_a_worker_that_cannot_reach_the_source_is_detected_before_the_run(
    runner: Runner, context: TaskContext, tmp_path: Path, scheduler: str
) -> None:
    from driftline.storage.sources.source import known_source

    with open_executor(scheduler, None) as executor, pytest.raises(ExecutorError, match="shared disk") as caught:
        executor.start(context, [known_source(str(tmp_path / "only-here"))])
    assert "only-here" in str(caught.value)


def test_a_worker_that_sees_another_workspace_is_detected_before_the_run(
    context: TaskContext, runner: Runner, scheduler: str
) -> None:
    config = runner.workspace / "_workspace.json"
    config.write_text(config.read_text().replace(context.workspace.config.workspace_id, "0" * 32))
    with open_executor(scheduler, None) as executor, pytest.raises(ExecutorError, match="another workspace"):
        executor.start(context, [])


def _slow(spec: int, context: TaskContext) -> int:
    time.sleep(0.1)
    return spec


def test_a_scheduler_that_dies_during_a_run_is_one_clear_error(
    forking: ForkServerContext, context: TaskContext, tmp_path: Path
) -> None:
    with cluster(forking, tmp_path, workers=1) as started, open_executor(started.address, None) as executor:
        executor.start(context, [])
        results = executor.map(_slow, range(1000))
        next(results)
        started.scheduler.kill()
        with pytest.raises(ExecutorError, match="connection to the Dask scheduler was lost"):
            list(results)


def test_logs_of_tasks_reach_the_caller(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    assert sorted(executor.map(_warn, [1, 3])) == [1, 3]
    until(lambda: len(caplog.messages) >= 2, "the messages")
    assert sorted(caplog.messages) == ["number 1 is odd", "number 3 is odd"]
