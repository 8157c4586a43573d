"""Run tasks in this process, in local processes, or on an existing Dask cluster.

All executors accept the same specs and return the same results. A task may run more than once; only one result is used.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from driftline.flows.output.progress import Progress
from driftline.storage.defaults import IndexScope
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, ExecutorError, UsageError
from driftline.storage.lines.indexes import Segment, SegmentSpec, plan_new_segments
from driftline.storage.lines.line_table import LineTable
from driftline.storage.objects.store_requests import Counts, count_all, request_counter
from driftline.storage.sources.source import Source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.commit import SegmentTask, build
from driftline.tasks.task_context import CountsCallback, TaskContext

if TYPE_CHECKING:
    from distributed import Client, Worker
    from tornado.ioloop import IOLoop

DEFAULT_WORKERS = 2
IN_FLIGHT_PER_SLOT = 2
"""Tasks submitted per slot: one runs and one waits, which keeps every worker busy and bounds memory."""
CONNECT_TIMEOUT_SECONDS = 10
LOCAL_CONNECT_TIMEOUT_SECONDS = 300
"""Timeout for workers started by this process, which may be slow on a busy machine."""
STOP_SECONDS = 0.2
"""How often a thread waiting for tasks checks whether the executor was stopped."""
REPORT_SECONDS = 0.1
"""How often a task in this process reports its counts."""
MAX_COUNTS_PER_SECOND = 4
"""Rate limit for the counts that a cluster's workers together send about running tasks. With many workers, tasks finish
often enough to show progress.
"""
WORKER_VARIABLES = {"LANCE_DEFAULT_FRAGMENT_READAHEAD": "1"}
"""The environment of local workers. To index a million lines, Lance would read 100 MB of other fragments ahead."""
SPAWN_VARIABLES = {"MALLOC_ARENA_MAX": "1"}
"""Variables that must be set before a local worker starts: glibc would keep what each of Lance's threads freed."""
NO_WORKERS_TIMEOUT_SECONDS = 60
"""How long a run waits if all workers died. Dask restarts them, unless their host or their supervisor died, too.
Dask's setting ``distributed.scheduler.no-workers-timeout`` of this process takes precedence.
"""
LOCAL_NO_WORKERS_TIMEOUT_SECONDS = 300
"""The same for workers started by this process: if all died, a busy machine needs minutes to start new ones."""
NO_WORKERS_VARIABLE = "DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT"
NO_WORKERS_CHECKS = 20
"""How often a run counts the workers within that time."""

_log = logging.getLogger(__name__)

Spec = TypeVar("Spec")
Result = TypeVar("Result")
Task = Callable[[Spec, TaskContext], Result]


class Executor(Protocol):
    """Runs ``slots`` tasks in parallel, in other processes if ``remote`` is set.

    ``has_repeated`` is set if a task was rerun after its worker died: its first attempt may have left files.
    """

    slots: int
    remote: bool

    @property
    def has_repeated(self) -> bool: ...

    def start(
        self,
        context: TaskContext,
        sources: Sequence[Source],
        *,
        new_workspace: bool = False,
        on_counts: CountsCallback | None = None,
    ) -> None:
        """Send ``context`` to every worker, and check that the worker can reach the workspace and the sources.

        ``new_workspace`` skips the workspace check in a dry run that does not create it. ``on_counts`` receives the
        counts of running tasks, from any thread. Raises ExecutorError.
        """
        ...

    def map(self, task: Task[Spec, Result], specs: Iterable[Spec]) -> Iterator[Result]:
        """Yield the results of ``task(spec, context)`` as tasks finish, in any order.

        Specs are consumed as slots become free. Several threads may map concurrently and share the slots. Requests that
        tasks send to stores are counted in the caller's context. Raises ExecutorError, any error raised by a task, and
        KeyboardInterrupt after ``stop``.
        """
        ...

    def stop(self) -> None:
        """Make every ``map`` raise KeyboardInterrupt soon, without waiting for running tasks."""
        ...


class InlineExecutor(AbstractContextManager["InlineExecutor"]):
    """Runs tasks in threads of this process: Arrow, the tokenizer and Lance release the GIL."""

    remote = False
    has_repeated = False

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="driftline")
        self._one_at_a_time = threading.Lock()
        self._stopped = threading.Event()

    def start(
        self,
        context: TaskContext,
        sources: Sequence[Source],
        *,
        new_workspace: bool = False,
        on_counts: CountsCallback | None = None,
    ) -> None:
        self._context = context
        context.on_counts = None if on_counts is None else partial(self._report_counts, on_counts)
        context.report_seconds = REPORT_SECONDS

    def _report_counts(self, on_counts: CountsCallback, documents: int, lines: int) -> None:
        """Forward a task's counts, or abort the task if the executor was stopped."""
        if self._stopped.is_set():
            raise KeyboardInterrupt
        on_counts(documents, lines)

    def stop(self) -> None:
        self._stopped.set()

    def map(self, task: Task[Spec, Result], specs: Iterable[Spec]) -> Iterator[Result]:
        if self.slots == 1:
            for spec in specs:
                with self._one_at_a_time:
                    if self._stopped.is_set():
                        raise KeyboardInterrupt
                    result = task(spec, self._context)
                yield result
            return
        remaining = iter(specs)
        pending: set[Future[tuple[Result, Counts]]] = set()
        try:
            while True:
                for spec in islice(remaining, self.slots * IN_FLIGHT_PER_SLOT - len(pending)):
                    pending.add(self._pool.submit(_counted, task, spec, self._context))
                if not pending:
                    return
                done, pending = wait(pending, timeout=STOP_SECONDS, return_when=FIRST_COMPLETED)
                if self._stopped.is_set():
                    raise KeyboardInterrupt
                for future in done:
                    result, requests = future.result()
                    count_all(requests)
                    yield result
        finally:
            for future in pending:
                future.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)


@contextmanager
def running_loop() -> Iterator[IOLoop]:
    """Run an event loop for Dask in a thread.

    Dask's own loop fails if a busy machine does not start it within 10 s.
    """
    from tornado.ioloop import IOLoop

    loops, ended = Future[IOLoop](), asyncio.Event()

    async def run() -> None:
        loops.set_result(IOLoop.current())
        await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="Dask loop", daemon=True)
    thread.start()
    loop = loops.result()
    try:
        yield loop
    finally:
        loop.add_callback(ended.set)
        thread.join()


class DaskExecutor(AbstractContextManager["DaskExecutor"]):
    """Runs tasks on Dask: in local processes that exit with the run, or on an existing cluster at ``address``."""

    remote = True

    def __init__(self, address: str | None, slots: int | None) -> None:
        self._address = address
        self._workers = slots or DEFAULT_WORKERS
        self._stack = ExitStack()
        self._key = f"driftline-{uuid.uuid4().hex}"
        self._stopped = threading.Event()
        self._pending: set[Any] = set()
        self._begun: set[str] = set()
        self._lost: ExecutorError | None = None
        self.has_repeated = False

    def __enter__(self) -> Self:
        import dask
        from distributed import Client, LocalCluster

        connect_seconds = CONNECT_TIMEOUT_SECONDS if self._address else LOCAL_CONNECT_TIMEOUT_SECONDS
        no_workers_seconds = NO_WORKERS_TIMEOUT_SECONDS if self._address else LOCAL_NO_WORKERS_TIMEOUT_SECONDS
        if configured := dask.config.get("distributed.scheduler.no-workers-timeout"):
            no_workers_seconds = dask.utils.parse_timedelta(configured)
        with ExitStack() as stack:
            timeouts = {
                "distributed.comm.timeouts.connect": f"{connect_seconds}s",
                # By default, a worker that takes more than 15 s to restart is given up, even if it is the last one.
                "distributed.deploy.lost-worker-timeout": f"{no_workers_seconds}s",
                # Unlike the argument env of a cluster, these leave what the user's own environment sets.
                **{f"distributed.nanny.environ.{name}": each for name, each in WORKER_VARIABLES.items()},
                **{f"distributed.nanny.pre-spawn-environ.{name}": each for name, each in SPAWN_VARIABLES.items()},
            }
            stack.enter_context(dask.config.set(timeouts))
            loop = stack.enter_context(running_loop())
            if self._address is None:
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="driftline-dask-"))
                cluster = stack.enter_context(
                    LocalCluster(
                        loop=loop,
                        n_workers=self._workers,
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address=None,
                        # The HTTP server starts in any case; a free port avoids its warning about a port in use.
                        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                        local_directory=scratch,
                        silence_logs=50,
                    )
                )
                self._client: Client = stack.enter_context(Client(cluster, loop=loop, timeout=connect_seconds))
            else:
                client = Client.__new__(Client)
                try:
                    client.__init__(self._address, loop=loop, timeout=connect_seconds)  # type: ignore[misc]
                except (OSError, TypeError, ValueError) as error:  # TypeError: TLS without certificates
                    client.close()  # or garbage collection would, on a loop that has ended
                    raise UsageError(
                        "No Dask scheduler responds", self._address, "Start one, or use --executor local."
                    ) from error
                self._client = stack.enter_context(client)
            self.slots = sum(self._client.nthreads().values())
            if not self.slots:
                fix = "Start a worker, or give an adaptive cluster a minimum of one."
                raise ExecutorError("The Dask scheduler has no workers", self._address or "local", fix)
            watching: asyncio.AbstractEventLoop = loop.asyncio_loop  # type: ignore[attr-defined]  # of each IOLoop today
            watch = asyncio.run_coroutine_threadsafe(self._watch_workers(no_workers_seconds), watching)
            stack.callback(watch.cancel)
            self._stack = stack.pop_all()
        return self

    async def _watch_workers(self, patience_seconds: float) -> None:
        """Fail the running tasks after ``patience_seconds`` without a worker that accepts or executes tasks.

        By default, a scheduler keeps them forever; the setting that limits this is the scheduler's own, and it counts
        workers that are paused because their memory is full. An adaptive cluster has no workers while it has no tasks.
        """
        since: float | None = None
        while self._lost is None:
            await asyncio.sleep(patience_seconds / NO_WORKERS_CHECKS)
            try:
                scheduler: Any = self._client.scheduler
                workers = (await scheduler.identity())["workers"].values()
            except OSError:  # the scheduler is gone, which ends all tasks
                return
            if not self._pending or any(map(_is_at_work, workers)):
                since = None
            elif since is None:
                since = time.monotonic()
                _log.warning("No Dask worker accepts tasks; waiting up to %.0f s for one", patience_seconds)
            elif time.monotonic() - since >= patience_seconds:
                self._lost = self._no_worker(patience_seconds)
                await self._client.cancel([*self._pending], asynchronous=True, force=True)

    def _no_worker(self, seconds: float) -> ExecutorError:
        fix = "Find out why the workers died or are paused (often because memory ran out), then run the command again."
        if self._address is not None:
            fix += f" An adaptive cluster that starts workers more slowly needs a longer {NO_WORKERS_VARIABLE}."
        return ExecutorError(f"No Dask worker was available for {seconds:.0f} s", self._address or "local", fix)

    def start(
        self,
        context: TaskContext,
        sources: Sequence[Source],
        *,
        new_workspace: bool = False,
        on_counts: CountsCallback | None = None,
    ) -> None:
        from distributed.diagnostics.plugin import WorkerPlugin

        class ContextPlugin(WorkerPlugin):
            """Opens the workspace once per worker, including workers that start later."""

            def __init__(self, context: TaskContext, topic: str, report_seconds: float | None, is_own: bool) -> None:
                self.context, self.topic, self.report_seconds, self.is_own = context, topic, report_seconds, is_own

            def setup(self, worker: Worker) -> None:
                if self.is_own and threading.current_thread() is threading.main_thread():
                    # Ctrl-C reaches all processes of the terminal: exit without a traceback, even in native code.
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
                if self.report_seconds is not None:
                    self.context.on_counts = partial(_send_counts, worker, self.topic)
                    self.context.report_seconds = self.report_seconds

        self._stack.callback(self._forget)
        self._client.subscribe_topic(self._key, partial(self._receive, on_counts))
        report_seconds = None if on_counts is None else self.slots / MAX_COUNTS_PER_SECOND
        plugin = ContextPlugin(context, self._key, report_seconds, self._address is None)
        try:
            self._client.register_plugin(plugin, name=self._key)
        except Exception as error:  # Dask re-raises any worker exception, sometimes only as text
            raise ExecutorError(
                f"A worker cannot load Driftline ({error})",
                self._address or "local",
                "Install the same version of Driftline on every worker.",
            ) from error
        key, workspace = self._key, context.workspace.objects.uri

        def check_worker(dask_worker: Worker) -> tuple[str, Counts]:
            opened = _context_of(dask_worker, key).workspace
            with request_counter() as requests:
                problem = unreachable(None if new_workspace else opened, sources)
            return problem, requests.counts

        for worker, (problem, requests) in self._client.run(check_worker).items():
            count_all(requests)
            if problem:
                raise ExecutorError(
                    f"Worker {worker} cannot reach its inputs: {problem}",
                    workspace,
                    "Give workers on other hosts a shared disk or a bucket, and the same credentials.",
                )

    def map(self, task: Task[Spec, Result], specs: Iterable[Spec]) -> Iterator[Result]:
        from distributed import as_completed
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker, NoWorkerError

        remaining = iter(specs)
        limit = self.slots * IN_FLIGHT_PER_SLOT
        pending = {self._submit(task, spec) for spec in islice(remaining, limit)}
        # The default is the event loop of the client that this process opened last.
        running = as_completed(pending, loop=self._client.loop)
        try:
            for future in running:
                try:
                    result, requests = future.result()
                except KilledWorker as error:
                    raise ExecutorError(
                        "A batch killed several workers in a row",
                        str(error.last_worker),
                        "Give the workers more memory, or exclude the batch's files.",
                    ) from error
                except NoWorkerError as error:
                    raise self._no_worker(error.timeout) from error
                except (FutureCancelledError, CommClosedError) as error:
                    self._check_running()
                    raise ExecutorError(
                        "The connection to the Dask scheduler was lost",
                        self._address or "local",
                        "Run the command again.",
                    ) from error
                pending.remove(future)
                self._pending.discard(future)
                self._begun.discard(future.key)
                # Dask would rerun a finished task if its worker died while the future is held.
                future.release()
                for spec in islice(remaining, 1):
                    following = self._submit(task, spec)
                    pending.add(following)
                    running.add(following)
                count_all(requests)
                yield result
        finally:
            self._pending -= pending
            for future in pending if self._client.status == "running" else ():
                future.cancel()

    def _submit(self, task: Task[Spec, Result], spec: Spec) -> Any:
        self._check_running()
        future = self._client.submit(_run_on_worker, task, spec, self._key, pure=False)
        self._pending.add(future)
        self._check_running()  # a cancellation before this line missed the new future
        return future

    def _check_running(self) -> None:
        """Raise KeyboardInterrupt after ``stop``, and ExecutorError if all workers were lost."""
        if self._stopped.is_set():
            raise KeyboardInterrupt
        if self._lost is not None:
            raise self._lost

    def stop(self) -> None:
        self._stopped.set()
        self._client.cancel([*self._pending], force=True)

    def _receive(self, on_counts: CountsCallback | None, event: tuple[float, dict[str, Any]]) -> None:
        """Handle a task event: note that the task started, forward its counts, or log its record in this process."""
        match event[1]:
            case {"begun": task}:
                self.has_repeated |= task in self._begun
                self._begun.add(task)
            case {"documents": documents, "lines": lines}:
                if on_counts is not None:
                    on_counts(documents, lines)
            case fields:
                record = logging.makeLogRecord(fields)
                logging.getLogger(record.name).handle(record)

    def _forget(self) -> None:
        if self._address is not None and self._client.status == "running":
            with suppress(OSError, LookupError, ValueError):  # scheduler or plugin may be gone
                self._client.unsubscribe_topic(self._key)
                self._client.unregister_worker_plugin(self._key)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _is_at_work(worker: Mapping[str, Any]) -> bool:
    return worker["status"] == "running" or bool(worker["metrics"].get("task_counts", {}).get("executing"))


def _counted(task: Task[Spec, Result], spec: Spec, context: TaskContext) -> tuple[Result, Counts]:
    """Return the result of a task, and the requests that it sent to stores."""
    with request_counter() as requests:
        result = task(spec, context)
    return result, requests.counts


def _run_on_worker(task: Task[Spec, Result], spec: Spec, key: str) -> tuple[Result, Counts]:
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(key, {"begun": worker.get_current_task()})
    with _logged_to(worker, key):
        return _counted(task, spec, _context_of(worker, key))


class _ToCoordinator(logging.Handler):
    """Send one task's log records, without records of concurrent runs, to the subscribers of ``topic``."""

    def __init__(self, worker: Worker, topic: str) -> None:
        super().__init__()
        self._worker, self._topic, self._thread = worker, topic, threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            event = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
            self._worker.log_event(self._topic, event | {"msg": record.getMessage()})


@contextmanager
def _logged_to(worker: Worker, topic: str) -> Iterator[None]:
    own, handler = logging.getLogger("driftline"), _ToCoordinator(worker, topic)
    own.addHandler(handler)
    try:
        yield
    finally:
        own.removeHandler(handler)


def _send_counts(worker: Worker, topic: str, documents: int, lines: int) -> None:
    worker.log_event(topic, {"documents": documents, "lines": lines})


def _context_of(worker: Worker, key: str) -> TaskContext:
    plugin: Any = worker.plugins[key]
    context: TaskContext = plugin.context
    return context


def unreachable(workspace: Workspace | None, sources: Iterable[Source]) -> str:
    """Return why this process cannot reach ``workspace`` or one of ``sources``, or "" if it can."""
    try:
        if workspace is not None and workspace.reread().config.workspace_id != workspace.config.workspace_id:
            return f"another workspace is at {workspace.objects.uri}"
        for source in sources:
            source.check_reachable()
    except DriftlineError as error:
        return str(error)
    return ""


def open_executor(name: str, workers: int | None) -> InlineExecutor | DaskExecutor:
    """Return the executor named ``inline``, ``local`` or ``tcp://host:port``. Raises UsageError."""
    if name == "inline":
        return InlineExecutor(workers or min(DEFAULT_WORKERS, os.cpu_count() or 1))
    if name == "local" or "://" in name:
        return DaskExecutor(None if name == "local" else name, workers)
    raise UsageError("Unknown executor", name, "Use inline, local, or tcp://HOST:PORT of a Dask scheduler.")


def build_on(executor: Executor, owner: Entity, table: LineTable, specs: Iterable[SegmentSpec]) -> Generator[Segment]:
    """Build the segments ``specs`` of ``table`` on ``executor``, in any order."""
    yield from executor.map(build, (SegmentTask(owner, table.fingerprint, spec) for spec in specs))


class SegmentBuilds(AbstractContextManager["SegmentBuilds"]):
    """Builds the segments of new fragments while the next documents are embedded.

    ``finish`` hands them to the holder of the maintenance lease. Unpublished segments are orphans.
    """

    def __init__(self, executor: Executor, scope: IndexScope, progress: Progress) -> None:
        self._executor, self._scope, self._progress = executor, scope, progress
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="segments")
        self._planned: dict[Entity, set[int]] = {}
        self._builds: dict[Entity, list[Future[list[Segment]]]] = {}
        self.have_failed = False
        """Whether a build failed: it may have left files."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def committed(self, owner: Entity, table: LineTable) -> None:
        """Start building segments for the lines committed to ``table``, once there are enough of them."""
        if self._scope == "none":
            return
        with self._lock:
            try:
                specs = plan_new_segments(table, self._scope, self._planned.setdefault(owner, set()))
            except DriftlineError as error:
                self._progress.message(f"Leaving a search index segment of {owner} to the end of the run: {error}")
                return
            if specs:  # requests are counted per context
                work = self._pool.submit(contextvars.copy_context().run, self._build, owner, table, specs)
                self._builds.setdefault(owner, []).append(work)

    def finish(self, owner: Entity) -> list[Segment]:
        """Wait for and return a table's segments. A failed build is reported and left to the end of the run."""
        built: list[Segment] = []
        for work in self._builds.pop(owner, []):
            try:
                built += work.result()
            except DriftlineError as error:
                self.have_failed = True
                self._progress.message(f"Rebuilding a search index segment of {owner}: {error}")
        return built

    def _build(self, owner: Entity, table: LineTable, specs: list[SegmentSpec]) -> list[Segment]:
        built: list[Segment] = []
        with closing(build_on(self._executor, owner, table, specs)) as segments:
            for segment in segments:
                built.append(segment)
                if self._stopped.is_set():
                    break
        return built

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
