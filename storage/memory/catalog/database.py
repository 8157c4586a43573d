"""Open the memory catalog, an SQLite or PostgreSQL database: schema, transactions and retries.

If another program's tables already use the catalog's table names, the catalog moves to its own schema (PostgreSQL) or
its own adjacent file (SQLite).
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from driftline.storage.environment import install_command, upgrade_command
from driftline.storage.errors import (
    AccessDenied,
    CatalogConnectionError,
    CatalogError,
    CatalogMismatch,
    MissingExtra,
    StoreClosed,
    UsageError,
)
from driftline.storage.layout import CATALOG, new_ulid
from driftline.storage.memory.catalog import tables

SCHEMA = "driftline"
_TO_SCHEMA = f"SELECT set_config('search_path', '{SCHEMA},' || current_setting('search_path'), false)"


def has_foreign_tables(connection: Connection) -> bool:
    """Return whether another program's tables use the catalog's table names: there is no version table."""
    names = set(sa.inspect(connection).get_table_names())
    return tables.version.name not in names and not names.isdisjoint(tables.metadata.tables)


def separate_file(url: URL) -> URL:
    """Return the URL of a catalog file next to the SQLite file at ``url``: ``app.driftline.db`` for ``app.db``."""
    path = Path(url.database or "")
    return url.set(database=str(path.with_name(f"{path.stem}.driftline{path.suffix}")))


def catalog_file(url: URL) -> URL:
    """Return the SQLite file that contains the catalog for ``url``: the separate file if it exists, otherwise ``url``
    itself.
    """
    separate = separate_file(url)
    return separate if Path(separate.database or "").exists() else url


def find_schema(connection: Any, _: object) -> None:
    """If the catalog has its own schema, put it first on a new PostgreSQL connection's search path."""
    cursor = connection.cursor()
    if cursor.execute(f"SELECT to_regclass('{SCHEMA}.{tables.version.name}')").fetchone()[0] is not None:
        cursor.execute(_TO_SCHEMA)
    connection.commit()


def create_schema(connection: Connection) -> None:
    """Create the catalog's schema, and make this transaction create its tables there."""
    connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    connection.execute(sa.text(_TO_SCHEMA.replace("false", "true")))


RETRY_DELAYS_SECONDS = (0.1, 0.4, 1.6)
"""Delays before each retry of a transaction that lost its connection or was chosen as a deadlock victim."""
BUSY_TIMEOUT_SECONDS = 30
"""How long an SQLite writer waits for another writer."""
CONNECT_TIMEOUT_SECONDS = 10
_WAL_RETRY_SECONDS = 0.02
DEFAULT_POOL_SIZE = 10

MAX_PARAMETERS = 5_000
"""Values per ``IN``; a statement may have 32,766 in SQLite and 65,535 in PostgreSQL."""

BULK_ROWS = 1_000
ANALYZE_SHARE = 0.2
"""After a bulk insert that adds more than this share of the rows in PostgreSQL's statistics, run ANALYZE immediately:
autovacuum checks tables once a minute, and until then the planner may choose full scans.
"""

_LOST_STATES = ("08", "57P")
"""PostgreSQL's SQLSTATE prefixes for connection exceptions, and for a server that is shutting down or starting."""
_REPEATABLE_STATES = ("40",)
"""Deadlocks and serialization failures: the transaction was rolled back."""
_SQLITE = "sqlite:///"
_CREATION_LOCK = 7_240_931_655
"""The PostgreSQL advisory lock that serializes processes that create or claim a catalog."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CatalogIdentity:
    """The workspace that owns a catalog, and the catalog id that the workspace records."""

    workspace_id: str
    catalog_id: str


class Catalog:
    """An open catalog. Thread-safe: each transaction takes a connection from the pool.

    ``read`` and ``write`` run a function in one transaction, and retry it up to ``len(RETRY_DELAYS_SECONDS)`` times
    after a lost connection or a deadlock. The function must therefore be idempotent, even after a commit whose
    acknowledgement was lost. An SQLite catalog in a read-only folder can still be read. Raises CatalogConnectionError,
    CatalogError, and AccessDenied for a write without access.
    """

    def __init__(self, url: str, pool_size: int = DEFAULT_POOL_SIZE) -> None:
        self._pool_size = pool_size
        self._is_closed = False
        parsed = parse_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._connect(catalog_file(parsed) if self.is_sqlite else parsed)

    def _connect(self, url: URL) -> None:
        self.url = url
        self.where = url.set(username=None, password=None, query={}).render_as_string()
        self.is_read_only = self.is_sqlite and _is_read_only(Path(url.database or ""))
        self._engine = _engine(_read_only(url) if self.is_read_only else url, self._pool_size)

    def read(self, work: Callable[[Connection], _Result]) -> _Result:
        """Run ``work`` in a read-only transaction and return its result."""
        try:
            return self._run("BEGIN", work)
        except CatalogError as error:
            if not _lacks_space(error.__cause__) or _has_log(self.url):
                raise
            # Even a reader writes files of its own. Without a log, the catalog itself holds everything.
            return self._read_unchanged(work, error)

    def _read_unchanged(self, work: Callable[[Connection], _Result], failure: CatalogError) -> _Result:
        """Run ``work`` on the catalog's own file without a lock. Raises ``failure`` if the file changes meanwhile."""
        engine, before = _engine(_read_only(self.url, has_log=False), 1), _signature(self.url)
        try:
            return self._run("BEGIN", work, engine)
        finally:
            engine.dispose()
            if _has_log(self.url) or _signature(self.url) != before:
                raise failure

    def write(self, work: Callable[[Connection], _Result]) -> _Result:
        """Run ``work`` in a transaction, commit durably, and return its result.

        Raises StoreClosed, AccessDenied, CatalogError.
        """
        if self.is_read_only:
            raise AccessDenied("Cannot write to the catalog", self.where, "Make its folder writable.")
        # In SQLite, a transaction that starts as a reader and writes later cannot wait for another writer.
        return self._run("BEGIN IMMEDIATE", work)

    def prepare(self, workspace_id: str) -> CatalogIdentity:
        """Create the tables if there are none, and claim the catalog for ``workspace_id``.

        Raises CatalogMismatch if it belongs to another workspace or has an unsupported format.
        """
        self.create()
        found = self.read(_identity) or self.write(lambda connection: _claim(connection, workspace_id))
        return self._expect(found, workspace_id)

    def make_private(self) -> None:
        """Create a new SQLite catalog's file so that only its owner can read it.

        Raises AccessDenied, CatalogError.
        """
        if not self.is_sqlite:
            return
        try:
            os.close(os.open(self.url.database or "", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            kind = AccessDenied if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else CatalogError
            what = f"Cannot create the catalog ({error.strerror})"
            raise kind(what, self.where, "Make its folder writable, or free some space.") from error

    def check(self, workspace_id: str) -> None:
        """Check that the catalog belongs to ``workspace_id``. Raises CatalogMismatch."""
        self._expect(self.identity(), workspace_id)

    def _expect(self, found: CatalogIdentity | None, workspace_id: str) -> CatalogIdentity:
        if found is None or found.workspace_id != workspace_id:
            raise CatalogMismatch(
                f"The catalog belongs to workspace {found.workspace_id if found else None}, not to {workspace_id}",
                self.where,
                "Use a separate catalog for each workspace.",
            )
        return found

    def identity(self) -> CatalogIdentity | None:
        """Return the ids of this catalog and of the workspace that owns it, or None if there is no catalog yet.

        Creates nothing. Raises CatalogMismatch if the catalog has an unsupported format.
        """
        if self.is_sqlite and not Path(self.url.database or "").exists():
            return None
        return self.read(_identity) if self.read(self._exists) else None

    def belongs_to(self) -> str | None:
        """Return the id of the workspace that owns this catalog, or None. Raises CatalogMismatch."""
        found = self.identity()
        return found.workspace_id if found else None

    def create(self) -> None:
        """Create the tables unless they exist. Raises CatalogMismatch if they have an unsupported format."""
        if self.read(self._exists):
            return
        if self.is_sqlite and self.read(has_foreign_tables):
            self._engine.dispose()
            self._connect(separate_file(self.url))
        self.write(self._create)
        self._engine.dispose()  # only new connections see a new schema

    def close(self) -> None:
        """Close all connections; later calls raise StoreClosed."""
        self._is_closed = True
        self._engine.dispose()

    def check_open(self) -> None:
        """Raise StoreClosed if the catalog is closed."""
        if self._is_closed:
            raise StoreClosed("The memory store is closed", self.where, "Open a new one.")

    def _run(self, begin: str, work: Callable[[Connection], _Result], engine: sa.Engine | None = None) -> _Result:
        self.check_open()
        for delay_seconds in (*RETRY_DELAYS_SECONDS, None):
            try:
                with (engine or self._engine).begin() as connection:
                    if self.is_sqlite:
                        connection.exec_driver_sql(begin)
                    return work(connection)
            except DBAPIError as error:
                lost, repeatable = _is_lost(error), _state(error).startswith(_REPEATABLE_STATES)
                if not lost and not repeatable:
                    fix = "Free some space on its disk." if _lacks_space(error) else "Try again."
                    raise CatalogError(f"The catalog failed ({_reason(error)})", self.where, fix) from error
                if delay_seconds is None:
                    kind = CatalogConnectionError if lost else CatalogError
                    attempts = len(RETRY_DELAYS_SECONDS) + 1
                    raise kind(
                        f"The catalog failed on all {attempts} attempts ({_reason(error)})",
                        self.where,
                        "Check that the database is running and reachable.",
                    ) from error
                time.sleep(delay_seconds)
            except SQLAlchemyError as error:  # such as a pool without a free connection
                raise CatalogError(f"The catalog failed ({_reason(error)})", self.where, "Try again.") from error
        raise AssertionError("unreachable")

    def _exists(self, connection: Connection) -> bool:
        """Return whether the catalog has its tables. Raises CatalogMismatch if they have an unsupported format."""
        inspector, version = sa.inspect(connection), tables.version
        if not inspector.has_table(version.name):
            return False
        if version.c.format_version.name not in {column["name"] for column in inspector.get_columns(version.name)}:
            raise CatalogMismatch(
                "The catalog has the format of an unreleased version",
                self.where,
                f"Delete its tables ({tables.about.name} and so on), then run: driftline memory restore",
            )
        found = connection.execute(sa.select(version.c.format_version)).scalar_one()
        if found != tables.FORMAT_VERSION:
            raise CatalogMismatch(
                "A newer version of Driftline wrote the catalog "
                f"(format {found}; this one supports {tables.FORMAT_VERSION})",
                self.where,
                f"Upgrade: {upgrade_command()}",
            )
        return True

    def _create(self, connection: Connection) -> None:
        if not self.is_sqlite:  # SQLite allows one writer at a time in any case
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
        if self._exists(connection):
            return
        if not self.is_sqlite and has_foreign_tables(connection):
            create_schema(connection)
        # Same-named tables in another schema on the search path must not keep ours from being created.
        tables.metadata.create_all(connection, checkfirst=False)
        connection.execute(tables.version.insert().values(format_version=tables.FORMAT_VERSION))


def embedded_url(root: str) -> str:
    """Return the URL of the catalog file inside a local workspace."""
    return f"{_SQLITE}{root}/{CATALOG}"


def upsert(connection: Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT with the ``on_conflict`` methods shared by both dialects."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def bulk_insert(
    connection: Connection, table: sa.Table, columns: Mapping[str, Sequence[Any]], same: Mapping[str, Any]
) -> None:
    """Insert rows: ``columns`` have equal length, and ``same`` contains the values shared by all rows.

    Large inserts bypass SQLAlchemy, which would take several times as long. JSON values are passed as text.
    """
    number = len(next(iter(columns.values())))
    all_columns = {**columns, **{name: [value] for name, value in same.items()}}
    if number >= BULK_ROWS:
        all_columns = {name: _bind(connection, table.c[name], values) for name, values in all_columns.items()}
    rows = zip(*(repeat(v[0], number) if name in same else v for name, v in all_columns.items()), strict=True)
    if number >= BULK_ROWS:
        _insert_fast(connection, table.name, list(all_columns), rows)
    elif number:
        connection.execute(table.insert(), [dict(zip(all_columns, row, strict=True)) for row in rows])


def _insert_fast(connection: Connection, table: str, names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    into = f"{table} ({', '.join(names)})"
    driver, dialect = connection.connection, connection.dialect
    cursor: Any = driver.cursor()
    try:
        if dialect.name == "sqlite":
            cursor.executemany(f"INSERT INTO {into} VALUES ({', '.join('?' * len(names))})", rows)
        else:
            with cursor.copy(f"COPY {into} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            added = cursor.rowcount
            cursor.execute("SELECT reltuples FROM pg_class WHERE oid = to_regclass(%s)", (table,))
            if added > ANALYZE_SHARE * max(0, cursor.fetchone()[0]):
                cursor.execute(f"ANALYZE {table}")
    except dialect.loaded_dbapi.Error as error:  # raise the same error as SQLAlchemy
        lost = dialect.is_disconnect(error, driver, cursor)
        raise DBAPIError(into, None, error, connection_invalidated=lost) from error
    finally:
        cursor.close()


def _bind(connection: Connection, column: sa.Column[Any], values: Sequence[Any]) -> Sequence[Any]:
    """Return ``values`` as bound parameters for ``column``; JSON text and bytes need no conversion."""
    process = column.type.dialect_impl(connection.dialect).bind_processor(connection.dialect)
    if process is None or isinstance(column.type, (sa.JSON, sa.LargeBinary)):
        return values
    return [value if value is None else process(value) for value in values]


def parse_url(text: str) -> URL:
    """Parse a catalog URL: ``sqlite:///path``, or ``postgresql://`` in any of its usual forms.

    Raises UsageError; the message never contains the password.
    """
    if text.startswith(_SQLITE) and text.endswith(f"/{CATALOG}"):
        return URL.create("sqlite", database=text.removeprefix(_SQLITE))  # the workspace's path may contain "?"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        raise UsageError("Invalid catalog URL", "", "Use sqlite:///path or postgresql://…") from None
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database and url.database != ":memory:":
        return url
    raise UsageError(
        "A catalog must be a SQLite file or a PostgreSQL database",
        url.render_as_string(hide_password=True),
        "Use sqlite:///path or postgresql://user@host/database.",
    )


def _engine(url: URL, pool_size: int) -> sa.Engine:
    create = partial(sa.create_engine, url, pool_size=pool_size, hide_parameters=True, json_serializer=_json)
    if url.get_backend_name() == "sqlite":
        engine = create(connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
        sa.event.listen(engine, "connect", _prepare_reader if "mode" in url.query else _prepare_sqlite)
        return engine
    try:
        engine = create(connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS})
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "PostgreSQL needs an optional dependency", "psycopg", f"Run: {install_command('postgres')}"
        ) from error
    sa.event.listen(engine, "connect", find_schema)
    return engine


def _is_read_only(file: Path) -> bool:
    return file.exists() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))


def _has_log(url: URL) -> bool:
    """Return whether a write-ahead log has changes that are not in the catalog's own file yet."""
    with suppress(FileNotFoundError):
        return os.path.getsize(f"{url.database}-wal") > 0
    return False


def _signature(url: URL) -> tuple[int, int, int]:
    """Return what changes when the catalog's own file does."""
    status = os.stat(url.database or "")
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_only(url: URL, *, has_log: bool | None = None) -> URL:
    """Return ``url`` for reading a file whose folder SQLite cannot write its journal files to.

    If a write-ahead log exists, the file may change. Otherwise, nothing has it open for writing.
    """
    path = os.path.abspath(url.database or "")
    may_change = os.path.exists(f"{path}-wal") if has_log is None else has_log
    query = {"mode": "ro", "uri": "true"} | ({} if may_change else {"immutable": "1"})
    return url.set(database=f"file:{quote(path)}", query=query)


def _prepare_reader(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None


def _json(value: Any) -> str:
    """Encode ``value`` as JSON. Strings are already JSON text, because JSON columns hold only objects."""
    return value if isinstance(value, str) else json.dumps(value)


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # keeps Python's sqlite3 module from starting transactions on its own
    _enter_wal_mode(connection)
    # FULL: in WAL mode, each commit is on disk before it returns.
    for pragma in ("synchronous = FULL", "foreign_keys = ON", "cache_size = -65536"):
        connection.execute(f"PRAGMA {pragma}")


def _enter_wal_mode(connection: sqlite3.Connection) -> None:
    # If several connections enter WAL mode concurrently, SQLite fails for all but one without waiting for the timeout.
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_WAL_RETRY_SECONDS)
        else:
            return


def _identity(connection: Connection) -> CatalogIdentity | None:
    row = connection.execute(sa.select(tables.about.c.workspace_id, tables.about.c.catalog_id)).one_or_none()
    return CatalogIdentity(row.workspace_id, row.catalog_id) if row is not None else None


def _claim(connection: Connection, workspace_id: str) -> CatalogIdentity:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
    found = _identity(connection)
    if found is not None:
        return found
    claimed = CatalogIdentity(workspace_id, new_ulid())
    connection.execute(tables.about.insert().values(workspace_id=workspace_id, catalog_id=claimed.catalog_id))
    return claimed


def _is_lost(error: DBAPIError) -> bool:
    if error.connection_invalidated or _state(error).startswith(_LOST_STATES):
        return True
    # A failed connection attempt has no SQLSTATE.
    return type(error.orig).__module__.startswith("psycopg") and type(error.orig).__name__ in (
        "OperationalError",
        "ConnectionTimeout",
        "InterfaceError",
    )


_NEEDS_SPACE = frozenset(
    (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_IOERR_SHMSIZE)
)
"""Failures of SQLite to write."""


def _lacks_space(error: object) -> bool:
    """Return whether SQLite could not write its files, as on a full disk."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", None) in _NEEDS_SPACE


def _state(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _reason(error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"
