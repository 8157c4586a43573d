"""The memory catalog: one SQL database, SQLite or PostgreSQL, and how its transactions begin, fail and are repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from driftline.storage import catalog_tables as tables
from driftline.storage.errors import CatalogConnectionError, CatalogError, CatalogMismatch, MissingExtra, UsageError

RETRY_DELAYS_SECONDS = (0.1, 0.4, 1.6)
"""Waits before a transaction is repeated whose connection was lost, or that met another in a deadlock."""
BUSY_TIMEOUT_SECONDS = 30
"""How long a writer waits for another one in SQLite."""
CONNECT_TIMEOUT_SECONDS = 10
DEFAULT_POOL_SIZE = 5
CATALOG_FILE = "_catalog.sqlite"
"""Where the catalog lies in a local workspace that was given no other."""
MAX_PARAMETERS = 5_000
"""Values in one ``IN``; SQLite takes 32,766 and PostgreSQL 65,535 in one statement."""

BULK_ROWS = 1_000

_MIGRATIONS = Path(__file__).with_name("catalog_migrations")
_HEAD = "0001"
_LOST_STATES = ("08", "57P")
"""SQLSTATEs of PostgreSQL: connection exceptions, and a server that shuts down or starts."""
_REPEATABLE_STATES = ("40",)
"""Deadlocks and serialization failures: nothing has happened."""
_MIGRATION_LOCK = 7_240_931_655
_WRITES = "driftline_writes"

_Result = TypeVar("_Result")


class Catalog:
    """An open catalog. Threads share it; each transaction takes a connection from the pool.

    ``read`` and ``write`` run a function in one transaction. If the connection is lost, or the database breaks a
    deadlock, they run it again, up to ``len(RETRY_DELAYS_SECONDS)`` times; so it must do the same when it is repeated,
    even after a commit whose acknowledgement was lost. Raises CatalogConnectionError, and CatalogError for the rest.
    """

    def __init__(self, url: str, pool_size: int = DEFAULT_POOL_SIZE) -> None:
        parsed = parse_url(url)
        self.where = parsed.render_as_string(hide_password=True)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._engine = _engine(parsed, pool_size)

    def read(self, work: Callable[[Connection], _Result]) -> _Result:
        """The result of ``work`` in a transaction that only reads."""
        return self._run(self._engine, work)

    def write(self, work: Callable[[Connection], _Result]) -> _Result:
        """The result of ``work`` in a transaction, committed durably."""
        return self._run(self._engine.execution_options(**{_WRITES: True}), work)

    def prepare(self, workspace_id: str) -> None:
        """Create or update the tables, and see that this is the catalog of ``workspace_id``.

        Raises CatalogMismatch for another workspace's catalog, or one that a newer Driftline wrote.
        """
        self.migrate()
        owner = self.read(_workspace_id) or self.write(lambda connection: _claim(connection, workspace_id))
        self._expect(owner, workspace_id)

    def check(self, workspace_id: str) -> None:
        """Raises CatalogMismatch unless this is the catalog of ``workspace_id``."""
        self._expect(self.belongs_to(), workspace_id)

    def _expect(self, owner: str | None, workspace_id: str) -> None:
        if owner != workspace_id:
            raise CatalogMismatch(
                f"This catalog belongs to workspace {owner}, not to {workspace_id}",
                self.where,
                "Give each workspace a catalog of its own.",
            )

    def belongs_to(self) -> str | None:
        """The id of the workspace that this catalog serves; None while it serves none. Raises CatalogMismatch."""
        return self.read(_workspace_id) if self.read(self._version) is not None else None

    def migrate(self) -> None:
        """Create or update the tables, unless they are of this version. Raises CatalogMismatch."""
        if self.read(self._version) != _HEAD:
            self.write(self._upgrade)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _run(self, engine: sa.Engine, work: Callable[[Connection], _Result]) -> _Result:
        for delay_seconds in (*RETRY_DELAYS_SECONDS, None):
            try:
                with engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                lost, repeatable = _is_lost(error), _state(error).startswith(_REPEATABLE_STATES)
                if not lost and not repeatable:
                    raise CatalogError(f"The catalog failed ({_reason(error)})", self.where, "Try again.") from error
                if delay_seconds is None:
                    kind = CatalogConnectionError if lost else CatalogError
                    attempts = len(RETRY_DELAYS_SECONDS) + 1
                    raise kind(
                        f"The catalog failed in each of {attempts} attempts ({_reason(error)})",
                        self.where,
                        "See that the database runs and can be reached.",
                    ) from error
                time.sleep(delay_seconds)
            except SQLAlchemyError as error:  # such as a pool without a free connection
                raise CatalogError(f"The catalog failed ({_reason(error)})", self.where, "Try again.") from error
        raise AssertionError("unreachable")

    def _version(self, connection: Connection) -> str | None:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        if version is not None and version > _HEAD:
            raise CatalogMismatch(
                f"The catalog was written by a newer Driftline (version {version}, ours is {_HEAD})",
                self.where,
                "Upgrade: pip install -U driftline",
            )
        return version

    def _upgrade(self, connection: Connection) -> None:
        from alembic import command
        from alembic.config import Config

        if not self.is_sqlite:  # where a transaction that writes is alone anyway
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        if self._version(connection) == _HEAD:
            return
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, _HEAD)


def embedded_url(root: str) -> str:
    """The URL of the catalog that lies in a local workspace."""
    return f"sqlite:///{root}/{CATALOG_FILE}"


def upsert(connection: Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can say what happens ``on_conflict``; both databases say it alike."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def bulk_insert(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert ``rows``, which all have the same columns: many of them several times faster than SQLAlchemy would."""
    if len(rows) < BULK_ROWS:
        connection.execute(table.insert(), rows)
        return
    names = list(rows[0])
    by_column = []
    for name in names:
        kind = table.c[name].type.dialect_impl(connection.dialect)
        process = kind.bind_processor(connection.dialect)
        if process is not None and isinstance(table.c[name].type, tables.UtcTime):
            process = lru_cache(maxsize=100)(process)  # most rows have the same few times
        given = [row[name] for row in rows]
        by_column.append(given if process is None else list(map(process, given)))
    values = zip(*by_column, strict=True)
    columns = ", ".join(f'"{name}"' for name in names)
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" for _ in names)
        statement = f"INSERT INTO {table.name} ({columns}) VALUES ({marks})"
        connection.exec_driver_sql(statement, list(values))
    else:
        cursor: Any = connection.connection.cursor()
        with cursor, cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN") as copy:
            for row in values:
                copy.write_row(row)


def parse_url(text: str) -> URL:
    """The URL of a catalog: ``sqlite:///path``, or ``postgresql://`` with any of its usual spellings.

    Raises UsageError, without showing a password.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        raise UsageError("This is not the URL of a catalog", "", "Write sqlite:///path or postgresql://…") from None
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database and url.database != ":memory:":
        return url
    raise UsageError(
        "A catalog is a file of SQLite or a database of PostgreSQL",
        url.render_as_string(hide_password=True),
        "Write sqlite:///path or postgresql://user@host/database.",
    )


def _engine(url: URL, pool_size: int) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(
            url, pool_size=pool_size, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_SECONDS}
        )
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        return sa.create_engine(
            url,
            pool_size=pool_size,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS},
        )
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "PostgreSQL needs an optional part", "psycopg", "pip install 'driftline[postgres]'"
        ) from error


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # or Python's module would begin transactions as it sees fit
    # FULL: in WAL mode, each commit is on the disk before it returns.
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "cache_size = -65536"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A reader that became a writer half-way could not wait for another one.
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _workspace_id(connection: Connection) -> str | None:
    found: str | None = connection.execute(sa.select(tables.about.c.workspace_id)).scalar()
    return found


def _claim(connection: Connection, workspace_id: str) -> str:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    found = _workspace_id(connection)
    if found is None:
        connection.execute(tables.about.insert().values(workspace_id=workspace_id))
    return found or workspace_id


def _is_lost(error: DBAPIError) -> bool:
    if error.connection_invalidated or _state(error).startswith(_LOST_STATES):
        return True
    # What cannot connect at all has no state.
    return type(error.orig).__module__.startswith("psycopg") and type(error.orig).__name__ in (
        "OperationalError",
        "ConnectionTimeout",
        "InterfaceError",
    )


def _state(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _reason(error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"
