"""The state of other processes, which may change during a check, and cheap ways to start many processes."""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache, partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import psutil

from driftline.flows.commands.main import COMMANDS, main
from driftline.storage import helper_process


def runs(process: psutil.Process, words: str) -> bool:
    """Return whether a running process has ``words`` in its command line."""
    try:
        return words in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # also of a zombie
        return False


def stands_still(process: psutil.Process) -> bool:
    """Return whether a process is stopped."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def forked_dask_workers() -> Iterator[ForkServerContext]:
    """Fork cluster workers from a process that has imported their modules; imports would take each worker seconds.
    Commands that tests start as processes still spawn their workers.
    """
    import dask
    from distributed.utils import get_mp_context

    options = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.nanny.environ": dict.fromkeys(os.environ, ""),  # the forking process has its start-up values
    }
    with dask.config.set(options):
        context: ForkServerContext = get_mp_context()
        names = (
            "distributed.cli.dask_scheduler",
            "distributed.cli.dask_worker",
            "driftline.flows.runs.index",
            "pytest",
        )
        context.set_forkserver_preload(list(names))
        yield context


PRELOADED = (
    *(f"driftline.flows.commands.{name}" for name in sorted({*COMMANDS.values()} - {"serve", "mcp", "web"})),
    *("driftline.flows.runs.index", "driftline.flows.runs.compact", "driftline.flows.runs.cleanup", "model2vec"),
    *("driftline.flows.output.terminal_reports", "driftline.tasks.embedding.embedder", "tree_sitter_python"),
    *("dateutil.relativedelta", "lance.commit", "lance.dataset", "numpy.ma", "pyarrow.dataset", "safetensors.numpy"),
    *("rich.console", "rich.table", "jinja2", "numpy.random", "pyarrow.acero", "lance.optimize", "duckdb"),
    *("driftline.tasks.search.search", "driftline.tasks.search.unindexed", "driftline.storage.sql_process"),
    *("driftline.flows.runs.verify_and_repair", "driftline.flows.memory_backend", "encodings.utf_8_sig"),
    *("driftline.flows.output.report_page", "driftline.flows.ci.job"),
)
"""Modules imported by commands; importing them takes most of a second."""


LIMITS = (
    ("driftline.flows.client", "TIMEOUT_SECONDS"),
    ("driftline.flows.runs.executors", "CONNECT_TIMEOUT_SECONDS"),
    ("driftline.flows.runs.executors", "LOCAL_CONNECT_TIMEOUT_SECONDS"),
    ("driftline.flows.runs.executors", "NO_WORKERS_TIMEOUT_SECONDS"),
    ("driftline.flows.runs.executors", "LOCAL_NO_WORKERS_TIMEOUT_SECONDS"),
    ("driftline.flows.http_server", "REQUEST_SECONDS"),
    ("driftline.flows.http_server", "WRITE_SECONDS"),
    ("driftline.flows.web.search_processes", "SEARCH_SECONDS"),
    ("driftline.flows.web.search_processes", "WAIT_SECONDS"),
    ("driftline.flows.web.guard", "ANSWER_SECONDS"),
    ("driftline.storage.objects.block_cache", "LISTED_AHEAD_SECONDS"),
    ("driftline.storage.objects.bucket", "READ_TIMEOUT_SECONDS"),
    ("driftline.storage.objects.local_disk", "LOCK_TIMEOUT_SECONDS"),
    ("driftline.storage.workspace.early_reads", "EARLY_SECONDS"),
    ("driftline.storage.sources.mirror", "ASK_SECONDS"),
    ("driftline.storage.sources.git_isolation", "_TIMEOUT_SECONDS"),
)
"""Driftline's time limits that a busy machine would reach; a test of a limit sets it itself."""


SAMPLES = (
    ("driftline.tasks.maintenance.search_quality", "QUERIES"),
    ("driftline.storage.lines.indexes", "SAMPLE_ROWS"),
)
"""Numbers of searches that measure or check the indexes; those of the product take half the time of a compaction and of
a verification.
"""
FEW_SAMPLES = 6


def loaded(names: Iterable[tuple[str, str]]) -> Iterator[tuple[ModuleType, str]]:
    """Yield the module and name of each of ``names`` whose module is imported."""
    for module, name in names:
        if module in sys.modules:
            yield sys.modules[module], name


def without_fsync() -> None:
    """Let this process and its forks skip fsync: it takes milliseconds and only protects against power loss."""
    os.fsync = _check  # type: ignore[assignment]


def _check(file: int | IO[Any]) -> None:
    os.fstat(file if isinstance(file, int) else file.fileno())


class _Forked:
    """A process forked from one that has imported Driftline. Use it like ``subprocess.Popen``."""

    def __init__(
        self, args: list[str], streams: Sequence[IO[Any]], environment: Mapping[str, str], session: bool
    ) -> None:
        self.args = args
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        request = {"argv": args, "environment": {**os.environ, **environment}, "session": session}
        self._connection = _request(_forking(), request, streams)
        self.pid = _number(self._connection)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._waiting:
            if self.returncode is None:
                if not select.select([self._connection], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = _number(self._connection)
                self._connection.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended, and will say so
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedReader(_Forked):
    """The process in which Driftline runs native code: a fork that runs ``code`` between two pipes."""

    def __init__(self, code: str, quiet: bool = True) -> None:
        (requests, stdin), (stdout, answers) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        errors = None if quiet else sys.__stderr__
        with os.fdopen(requests, "rb") as read, os.fdopen(answers, "wb") as write, Path(os.devnull).open("w") as null:
            super().__init__(["-c", code, *sys.path], (read, write, errors or null), {}, session=True)


def forked_helpers(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts Driftline's helper processes as forks; ``start`` starts extractors, which get few
    variables, and limits for their whole lives.
    """

    def fork(code: str, environment: Mapping[str, str], quiet: bool) -> Any:
        return start(code, environment, quiet) if "extraction.process" in code else ForkedReader(code, quiet)

    return fork


class ForkedProgram(_Forked):
    """A Python program in its own process, forked from one that has imported Driftline: much cheaper than a new
    interpreter. Arguments, environment, folder, signals and exit work as in any process; output goes to files. Tests of
    interpreter start-up and imports need a new interpreter.
    """

    def __init__(
        self, program: Path, *arguments: str, environment: Mapping[str, str] | None = None, session: bool = False
    ) -> None:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        with Path(os.devnull).open() as nothing:
            streams: tuple[IO[Any], ...] = (nothing, self._out, self._err)
            super().__init__([str(program), *arguments], streams, environment or {}, session)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until the program ends, and return its output and errors; bytes that are not UTF-8 become surrogates."""
        self.wait(timeout)
        with self._out as out, self._err as err:
            return _text(out), _text(err)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="surrogateescape")


@cache
def _forking() -> Path:
    return _start_forking()


def _start_forking(*more: str, environment: Mapping[str, str] | None = None) -> Path:
    """Start a process that forks others and ends with this one, and return the path of its socket. It imports the
    commands' modules and ``more``.
    """
    folder = Path(tempfile.mkdtemp(prefix="driftline-tests-"))
    path = folder / "socket"
    from tests.support.waiting import PATIENCE_SECONDS  # which imports this module

    command = [sys.executable, "-W", "ignore:lance is not fork-safe", __file__, str(path), str(PATIENCE_SECONDS), *more]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return path


_CLIENT = """#!{python} -IS
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
request = {{"argv": [*{program!r}, *sys.argv[1:]], "environment": dict(os.environ)}}
data = json.dumps(request).encode() + b"\\n"
connection.sendall(data[socket.send_fds(connection, [data], [0, 1, 2, os.open(".", os.O_RDONLY)]) :])
with connection.makefile() as answer:
    _, code = answer.readline(), int(answer.readline())
sys.exit(code if code >= 0 else 128 - code)
"""


@cache
def forked_command() -> Path:
    """Return a program that scripts can use like the ``driftline`` command: it runs in a forked process.

    A signal ends only the program, not the command.
    """
    return _client_of(_forking(), str(Path(sys.executable).with_name("driftline")))


@cache
def forked_python() -> Path:
    """Return a program used like ``python PROGRAM ARGUMENT...``: it runs in a forked process."""
    return _client_of(_forking(), name="python")


@cache
def forked_engine(*variables: tuple[str, str]) -> Path:
    """Return a program used like ``python -m prefect.engine`` with ``variables``, without its seconds of imports."""
    modules = (
        "prefect.engine",
        "prefect.flow_engine",
        "driftline.flows.prefect_flows",
        "driftline.flows.scheduling.flow_execution",
    )
    return _client_of(_start_forking(*modules, environment=dict(variables)), "-m", "prefect.engine")


def _client_of(path: Path, *program: str, name: str = "driftline") -> Path:
    client = path.with_name(name)
    client.write_text(_CLIENT.format(python=sys.executable, path=str(path), program=program))
    client.chmod(0o755)
    return client


def _request(path: Path | str, request: dict[str, object], streams: Sequence[IO[Any]]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    data = json.dumps(request).encode() + b"\n"
    folder = os.open(".", os.O_RDONLY)  # by its descriptor: its name may be gone
    try:
        sent = socket.send_fds(connection, [data], [*(stream.fileno() for stream in streams), folder])
    finally:
        os.close(folder)
    connection.sendall(data[sent:])
    return connection


def _number(connection: socket.socket) -> int:
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        assert byte, "the process that forks has ended"
        line += byte
    return int(line)


def _serve(path: str, patience_seconds: float, more: Sequence[str]) -> Callable[[], object]:
    """For each request, fork a process and another that waits for it. Return in the first, with the program to run."""
    prepare(*more)
    helper_process._start = forked_helpers(helper_process._start)
    globals()["_forking"] = lambda: path
    for module, name in loaded(LIMITS):
        setattr(module, name, patience_seconds)
    for module, name in loaded(SAMPLES):
        setattr(module, name, FEW_SAMPLES)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            if sys.stdin.fileno() in select.select([sys.stdin.fileno(), listener], [], [])[0]:
                sys.exit()
            connection, _ = listener.accept()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            with connection:
                if os.fork() == 0:
                    listener.close()
                    return _forked(connection)


def prepare(*more: str) -> None:
    """Prepare, before this process forks, what would take each command most of a second.

    Import what commands import and the modules ``more``, load the default model, whose files commands still check,
    and build the arguments of all commands.
    """
    for name in (*PRELOADED, *more):
        importlib.import_module(name)
    without_fsync()
    from driftline.storage.defaults import DEFAULT_REDACTION
    from driftline.storage.redaction import _redactor
    from driftline.tasks.embedding.models import DEFAULT_MODEL, model_of
    from driftline.tasks.task_context import ModelRef, load_embedder

    known = model_of(DEFAULT_MODEL)
    load_embedder(ModelRef(known.name, known.fingerprint, known.dim))
    _redactor(DEFAULT_REDACTION)  # compiles a hundred expressions
    with redirect_stdout(io.StringIO()):
        main(["--version"])
    gc.freeze()


def _forked(connection: socket.socket) -> Callable[[], object]:
    data, files, _, _ = socket.recv_fds(connection, 1 << 20, 4)
    while not data.endswith(b"\n"):
        more = connection.recv(1 << 20)
        if not more:  # the test was killed before it sent a request
            os._exit(1)
        data += more
    if child := os.fork():
        for file in files:
            os.close(file)
        connection.sendall(b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        with suppress(OSError):  # nobody is waiting any more
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    request = json.loads(data)
    if request.get("session"):
        os.setsid()
    *streams, folder = files
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.fchdir(folder)
    os.close(folder)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # depends on the environment
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["argv"][0] == "-m":
        _, module, *arguments = request["argv"]
        sys.path += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.argv = [module, *arguments]
        return partial(runpy.run_module, module, run_name="__main__", alter_sys=True)
    if request["argv"][0] == "-c":
        _, code, *sys.path = request["argv"]
        sys.argv = ["-c"]
        return partial(exec, code, {"__name__": "__main__"})
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    return partial(runpy.run_path, sys.argv[0], run_name="__main__")


def _end(status: object) -> None:
    """End a fork with the ``status`` of a SystemExit, but without interpreter teardown: that would touch every object
    and so copy all pages of the forking process, which takes a tenth of a second.
    """
    if status is not None and not isinstance(status, int):
        sys.stderr.write(f"{status}\n")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    run = _serve(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
    try:
        run()
    except SystemExit as ended:
        _end(ended.code)
    _end(None)
