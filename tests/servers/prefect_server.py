"""A real Prefect server on loopback, without telemetry, on PostgreSQL if installed, otherwise on SQLite."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.compose import compose_command
from tests.servers.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS, ended, until

ATTEMPTS = 10
"""Maximum number of attempts for a request that the server asks to retry."""
PATIENT = dict.fromkeys(
    (
        "PREFECT_API_REQUEST_TIMEOUT",
        "PREFECT_SERVER_CONCURRENCY_INITIAL_DEPLOYMENT_LEASE_DURATION",
        "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT",
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_POOL_TIMEOUT",
        "PREFECT_SERVER_DATABASE_TIMEOUT",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS",
    ),
    str(int(PATIENCE_SECONDS)),
)
"""Prefect's server and client limits, 5 s to 5 min by default."""
os.environ |= PATIENT  # before Prefect is imported
os.environ["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "false"
"""Without this, an event outside a server would start a server shared by all users of the home folder."""
UNPRIVILEGED = 65534  # nobody: PostgreSQL refuses to run as root


@dataclass(frozen=True)
class PrefectServer:
    """The address of a server, and the environment for programs and workers that use it."""

    url: str
    environment: dict[str, str]

    def call(self, method: str, path: str, body: Any = None, attempts: int = ATTEMPTS) -> Any:
        """Return the JSON response to a request, which is retried as by Prefect's clients."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code != 503 or attempts == 1:  # 503: the database is busy, and nothing was done
                raise RuntimeError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error
        time.sleep(0.2 * 2 ** (ATTEMPTS - attempts))
        return self.call(method, path, body, attempts - 1)

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: Any) -> Any:
        return self.call("POST", path, body)


GROUP = "@prefect"
"""The name suffix of tests that pytest-xdist runs one after another."""
_RUNNING = ExitStack()


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[PrefectServer]:
    """One server for all tests."""
    with _RUNNING:
        yield _RUNNING.enter_context(running_server())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Stop the server after the last test of its group: even idle, it uses a twentieth of a core."""
    yield
    if item.nodeid.endswith(GROUP) and nextitem is not None and not nextitem.nodeid.endswith(GROUP):
        _RUNNING.close()


@contextmanager
def running_server() -> Iterator[PrefectServer]:
    """Run a server until the block ends; it starts in 6 to 13 s, later on a busy machine."""
    with tempfile.TemporaryDirectory(prefix="driftline-prefect-") as name:
        home = Path(name)
        home.chmod(0o711)
        url = f"http://127.0.0.1:{free_port()}/api"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | {
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_API_URL": url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.2",
            "DO_NOT_TRACK": "1",
            # Shorter intervals than in production, so tests need not wait.
            "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
            "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
            "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            # Longer limits than in production, so nothing fails on a busy machine.
            **PATIENT,
        }
        with _postgresql(home) as database:
            port = url.split(":")[2].partition("/")[0]
            command = compose_command("prefect", {"0.0.0.0": "127.0.0.1", "4200": port})
            with started(command, home / "server.log", {**environment, **database}) as process:
                wait_until(lambda: answers(f"{url}/health"), process, home / "server.log")
                yield PrefectServer(url, environment)


@contextmanager
def _postgresql(home: Path) -> Iterator[Mapping[str, str]]:
    """Yield the environment variables that give Prefect its own PostgreSQL database; none if PostgreSQL is not
    installed.
    """
    if not shutil.which("initdb") or not shutil.which("postgres"):
        yield {}
        return
    data, port = home / "postgresql", free_port()
    data.mkdir(mode=0o700)
    unprivileged: list[str] = []
    if os.geteuid() == 0:
        os.chown(data, UNPRIVILEGED, UNPRIVILEGED)
        unprivileged = ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups"]
    initdb = ["initdb", "--pgdata", str(data), "--username", "prefect", "--auth", "trust", "--no-sync"]
    subprocess.run([*unprivileged, *initdb], check=True, capture_output=True, cwd=data)
    options = ["-c", "fsync=off", "-c", f"unix_socket_directories={data}", "-c", "listen_addresses=127.0.0.1"]
    postgres = [*unprivileged, "postgres", "-D", str(data), "-p", str(port), *options]
    with started(postgres, home / "postgresql.log", dict(os.environ), data) as process:
        wait_until(lambda: _accepts(port), process, home / "postgresql.log")
        yield {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres",
        }


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the block ends or, on Linux, the test run is killed."""
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") and command[0] != "setpriv" else []
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*guard, *command], env=dict(environment), cwd=cwd, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server that writes ``log`` is ready; fail as soon as it exits."""
    until(is_ready, f"the start of {process.args!r}", unless=lambda: ended(process, log), poll=0.1)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=60).close()
    except OSError:
        return False
    return True


def _accepts(port: int) -> bool:
    """Return whether the database serves requests, according to ``pg_isready``: it accepts connections earlier."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    ready = shutil.which("pg_isready")
    return (
        ready is None or subprocess.run([ready, "-q", "-h", "127.0.0.1", "-p", str(port)], check=False).returncode == 0
    )
