"""A real PostgreSQL server on loopback, from the binaries on the PATH, and catalogs in both databases."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.servers.ports import free_port
from tests.support.waiting import ended, until

HINT = "PostgreSQL is not installed: put initdb and postgres on PATH (Debian: apt-get install postgresql)"


@dataclass
class PostgresServer:
    """A running server; ``database`` creates an empty database."""

    port: int
    directory: Path
    process: subprocess.Popen[bytes]

    def database(self, template: str = "template1") -> str:
        name = f"driftline_{uuid.uuid4().hex}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.url(name)

    def drop(self, url: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)".encode())

    def url(self, database: str) -> str:
        return f"postgresql://driftline@127.0.0.1:{self.port}/{database}"

    def drop_connections(self) -> int:
        """Close every other connection, as a restart does, and return their number."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            cut = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname <> ''"
            )
            return len(cut.fetchall())


@contextmanager
def postgres(*, fsync: bool = False) -> Iterator[PostgresServer]:
    """Start a server, by default without ``fsync``. Skips the test if PostgreSQL is not installed."""
    if not shutil.which("initdb") or not shutil.which("postgres"):
        pytest.skip(HINT)
    # Nobody but root can enter some folders of a root user.
    is_open = Path(tempfile.gettempdir()).stat().st_mode & stat.S_IXOTH
    directory = Path(tempfile.mkdtemp(prefix="driftline-postgres-", dir=None if is_open else "/tmp"))
    prefix: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        if not shutil.which("setpriv"):
            pytest.skip("PostgreSQL cannot be started as root without setpriv (Debian: apt-get install util-linux)")
        nobody = pwd.getpwnam("nobody")
        os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        prefix = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        prefix += ["--pdeathsig", "KILL"]
    data = directory / "data"
    initialize = ["initdb", "-D", str(data), "-U", "driftline", "-E", "UTF8", "--locale=C", "-A", "trust", "--no-sync"]
    done = subprocess.run([*prefix, *initialize], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"initdb failed:\n{done.stderr[-3000:]}")
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "on" if fsync else "off",
        "max_connections": "200",
    }
    command = ["postgres", "-D", str(data), "-p", str(port)]
    command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen([*prefix, *command], cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    server = PostgresServer(port, directory, process)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        process.send_signal(signal.SIGQUIT)  # a graceful stop waits for clients, and the data is disposable
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server; it starts in about 2 s."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def catalog_database(postgres_server: PostgresServer) -> str:
    """The name of a template database that contains a catalog's tables."""
    url = postgres_server.database()
    _create_catalog(url)
    return url.rpartition("/")[2]


@pytest.fixture
def postgres_catalog(postgres_server: PostgresServer, catalog_database: str) -> Iterator[str]:
    """The URL of a fresh catalog in PostgreSQL, which takes 8 MB and is dropped after the test."""
    url = postgres_server.database(catalog_database)
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="session")
def catalog_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template SQLite file that contains a catalog's tables."""
    path = tmp_path_factory.mktemp("catalog") / "catalog.sqlite"
    _create_catalog(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_catalog(catalog_file: Path, tmp_path: Path) -> str:
    """The URL of a fresh catalog in SQLite."""
    return f"sqlite:///{shutil.copy(catalog_file, tmp_path / 'catalog.sqlite')}"


@pytest.fixture(params=["sqlite", "postgres"])
def catalog_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh catalog in each database."""
    return str(request.getfixturevalue(f"{request.param}_catalog"))


def _create_catalog(url: str) -> None:
    from driftline.storage.memory.catalog.database import Catalog

    catalog = Catalog(url)
    catalog.create()
    catalog.close()


def _wait_until_ready(server: PostgresServer) -> None:
    def answers() -> bool:
        try:
            psycopg.connect(server.url("postgres"), connect_timeout=60).close()
        except psycopg.OperationalError:
            return False
        return True

    log = server.directory / "server.log"
    until(answers, "the start of PostgreSQL", unless=lambda: ended(server.process, log), poll=0.05)
