"""Databases in which another program has tables that are called like the catalog's: there, the catalog keeps apart.

In PostgreSQL it lies in a schema of its own, and for SQLite in a file of its own beside the other one. Where neither is
there, names are not taken, and the catalog lies in the database itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from driftline.storage.memory.catalog import tables

SCHEMA = "driftline"
_TO_SCHEMA = f"SELECT set_config('search_path', '{SCHEMA},' || current_setting('search_path'), false)"


def are_in(connection: Connection) -> bool:
    """Whether tables with names of the catalog are there, but not the table of its version."""
    names = set(sa.inspect(connection).get_table_names())
    return tables.VERSION_TABLE not in names and not names.isdisjoint(tables.metadata.tables)


def file_beside(url: URL) -> URL:
    """The file of a catalog that keeps apart from the SQLite file at ``url``: ``app.driftline.db`` for ``app.db``."""
    path = Path(url.database or "")
    return url.set(database=str(path.with_name(f"{path.stem}.driftline{path.suffix}")))


def file_of(url: URL) -> URL:
    """The SQLite file that holds the catalog of ``url``: the one beside it, once that is there."""
    beside = file_beside(url)
    return beside if Path(beside.database or "").exists() else url


def find_schema(connection: Any, _: object) -> None:
    """Have a new connection to PostgreSQL see the catalog's schema first, if there is a catalog in it."""
    cursor = connection.cursor()
    if cursor.execute(f"SELECT to_regclass('{SCHEMA}.{tables.VERSION_TABLE}')").fetchone()[0] is not None:
        cursor.execute(_TO_SCHEMA)
    connection.commit()


def create_schema(connection: Connection) -> None:
    """Create the catalog's schema, and have this transaction create its tables there."""
    connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    connection.execute(sa.text(_TO_SCHEMA.replace("false", "true")))
