"""The memory catalog over SQLite and PostgreSQL: creation, format, and concurrent opening."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from driftline.storage.errors import CatalogMismatch
from driftline.storage.memory.catalog.database import Catalog, parse_url
from driftline.storage.memory.catalog.tables import metadata


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    return str(request.getfixturevalue("postgres_server").database())


def test_a_new_catalog_has_the_tables_and_no_others(catalog_url: str) -> None:
    catalog = Catalog(catalog_url)
    names = catalog.read(lambda connection: set(sa.inspect(connection).get_table_names()))
    assert names - {"sqlite_sequence"} == set(metadata.tables)
    catalog.close()


def test_only_one_of_many_concurrent_workspaces_gets_a_new_catalog(empty_url: str) -> None:
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
    catalog.write(lambda connection: connection.execute(sa.text("UPDATE ltm_version SET format_version = 9999")))
    with pytest.raises(CatalogMismatch, match="newer"):
        catalog.prepare("workspace")
    catalog.close()


def test_reading_a_catalog_creates_nothing(empty_url: str) -> None:
    catalog = Catalog(empty_url)
    assert catalog.belongs_to() is None
    assert catalog.read(lambda connection: sa.inspect(connection).get_table_names()) == []
    catalog.close()


def test_a_catalog_of_an_unreleased_format_is_refused_with_the_command_that_rebuilds_it(empty_url: str) -> None:
    catalog = Catalog(empty_url)
    catalog.write(lambda connection: connection.execute(sa.text("CREATE TABLE ltm_version (version_num VARCHAR(32))")))
    for call in (catalog.identity, lambda: catalog.prepare("workspace")):
        with pytest.raises(CatalogMismatch, match="unreleased") as refused:
            call()
        assert "driftline memory restore" in refused.value.fix
    assert catalog.read(lambda connection: sa.inspect(connection).get_table_names()) == ["ltm_version"]
    catalog.close()


def test_application_tables_are_not_taken_for_a_catalog(empty_url: str) -> None:
    """An Alembic history or table names do not make a database a catalog."""
    tables = ["alembic_version", "entries", "ltm_entries", "outbox"]

    def write_other(connection: sa.Connection) -> None:
        for name in tables:
            connection.execute(sa.text(f"CREATE TABLE {name} (note VARCHAR(32))"))

    catalog = Catalog(empty_url)
    catalog.write(write_other)
    assert catalog.belongs_to() is None
    catalog.prepare("workspace")
    assert catalog.belongs_to() == "workspace"
    catalog.close()
    application = sa.create_engine(parse_url(empty_url))
    schema = "public" if application.dialect.name == "postgresql" else None
    assert set(sa.inspect(application).get_table_names(schema)) == set(tables)
    application.dispose()
