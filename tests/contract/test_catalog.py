"""The memory catalog over SQLite and PostgreSQL: migrations, versions, and concurrent opening."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from driftline.storage.errors import CatalogMismatch
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.tables import VERSION_TABLE, metadata
from tests.support.first_catalog import create_first_catalog


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    return str(request.getfixturevalue("postgres_server").database())


def test_the_migrations_make_the_tables_that_the_code_knows(catalog_url: str) -> None:
    def differences(connection: sa.Connection) -> Any:
        return compare_metadata(MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}), metadata)

    catalog = Catalog(catalog_url)
    assert catalog.read(differences) == []
    catalog.close()


def test_many_may_open_a_new_catalog_at_once_and_one_workspace_gets_it(empty_url: str) -> None:
    barrier = threading.Barrier(4)

    def open_one(n: int) -> str | None:
        catalog = Catalog(empty_url)
        barrier.wait()
        try:
            catalog.prepare(f"workspace {n % 2}")
        except CatalogMismatch:
            return None
        else:
            return catalog.belongs_to()
        finally:
            catalog.close()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(open_one, range(4)))
    assert found.count(None) == 2
    assert len({each for each in found if each}) == 1


def test_a_catalog_of_a_newer_version_is_refused(catalog_url: str) -> None:
    catalog = Catalog(catalog_url)
    catalog.write(lambda connection: connection.execute(sa.text("UPDATE ltm_version SET version_num = '9999'")))
    with pytest.raises(CatalogMismatch, match="newer"):
        catalog.prepare("workspace")
    catalog.close()


def test_reading_a_catalog_creates_nothing(empty_url: str) -> None:
    catalog = Catalog(empty_url)
    assert catalog.belongs_to() is None
    assert catalog.read(lambda connection: sa.inspect(connection).get_table_names()) == []
    catalog.close()


def test_a_catalog_from_before_the_prefix_is_taken_over(empty_url: str) -> None:
    def write_old(connection: sa.Connection) -> None:
        create_first_catalog(connection)
        connection.execute(sa.text("INSERT INTO about VALUES ('workspace')"))
        connection.execute(sa.text("INSERT INTO tenants (id, path, rev) VALUES (1, 'org:acme', 4)"))

    def found(connection: sa.Connection) -> Any:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return compare_metadata(context, metadata), sa.inspect(connection).get_table_names()

    catalog = Catalog(empty_url)
    catalog.write(write_old)
    assert catalog.belongs_to() == "workspace"
    catalog.prepare("workspace")
    differences, names = catalog.read(found)
    assert differences == []
    assert all(name.startswith("ltm_") for name in names)
    assert catalog.read(lambda connection: connection.execute(sa.text("SELECT rev FROM ltm_tenants")).scalar()) == 4
    catalog.close()


def test_tables_of_an_application_are_no_catalog(empty_url: str) -> None:
    """Neither its Alembic history nor the names of its tables make them one."""

    def write_other(connection: sa.Connection) -> None:
        create_first_catalog(connection)
        connection.execute(sa.text("ALTER TABLE entries DROP COLUMN content_hash"))

    catalog = Catalog(empty_url)
    catalog.write(write_other)
    before = catalog.read(lambda connection: sa.inspect(connection).get_table_names())
    assert catalog.belongs_to() is None
    catalog.prepare("workspace")
    after = catalog.read(lambda connection: sa.inspect(connection).get_table_names())
    assert {name for name in after if not name.startswith("ltm_")} == set(before)
    catalog.close()
