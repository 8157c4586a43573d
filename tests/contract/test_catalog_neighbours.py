"""A database in which another program's tables have the same names as the catalog's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from driftline.storage.memory.catalog.database import parse_url
from driftline.storage.memory.store import MemoryStore
from driftline.storage.memory.workspace_catalog import find_catalog
from driftline.storage.workspace.workspace import Workspace

TABLES = ("ltm_entries", "ltm_entities", "ltm_entity_closure", "ltm_entry_owners")
Rows = Callable[[], list[str]]


@pytest.fixture(params=["sqlite", "postgres"])
def taken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Rows]:
    """The URL of a database that contains such tables, and a function that reads them."""
    url = f"sqlite:///{tmp_path}/app.sqlite"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_server").database()
    engine = sa.create_engine(parse_url(url))
    with engine.begin() as connection:
        for name in TABLES:
            connection.execute(sa.text(f"CREATE TABLE {name} (note text)"))
            connection.execute(sa.text(f"INSERT INTO {name} VALUES ('theirs')"))

    def rows() -> list[str]:
        schema = "" if request.param == "sqlite" else "public."
        with engine.begin() as connection:
            return [connection.execute(sa.text(f"SELECT note FROM {schema}{name}")).scalar_one() for name in TABLES]

    return url, rows


def test_the_catalog_avoids_foreign_tables_of_its_names(taken: tuple[str, Rows], tmp_path: Path) -> None:
    url, theirs = taken
    location = str(tmp_path / "workspace")
    for n in range(2):
        with MemoryStore(location, catalog_url=url) as store:
            store.store(f"key {n}", n, "org:acme")
    with MemoryStore(location, catalog_url=url) as store:
        page = store.retrieve_by_entity("org", "acme")
        assert [entry.key for entry in page.entries] == ["key 0", "key 1"]
    assert theirs() == ["theirs"] * len(TABLES)
    assert find_catalog(Workspace.open(location), url) == url


def test_looking_for_a_catalog_next_to_such_tables_creates_none(taken: tuple[str, Rows], tmp_path: Path) -> None:
    url, theirs = taken
    before = sorted(tmp_path.rglob("*"))
    workspace = Workspace.open_for_writing(str(tmp_path / "workspace"))
    assert find_catalog(workspace, url) is None
    assert [path for path in sorted(tmp_path.rglob("*.driftline*")) if path not in before] == []
    assert theirs() == ["theirs"] * len(TABLES)
