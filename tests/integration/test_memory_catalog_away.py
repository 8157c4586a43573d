"""While the catalog is unavailable, nothing in memory counts as garbage, and no catalog replaces it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.memory_settings import MEMORY_CONFIG_VARIABLE, VARIABLES
from driftline.storage.errors import CatalogMismatch
from driftline.storage.layout import CATALOG, CATALOG_RECORD
from driftline.storage.memory.catalog import database
from driftline.storage.memory.catalog.database import Catalog, embedded_url
from driftline.storage.memory.store import MemoryStore
from driftline.storage.memory.workspace_catalog import restore_catalog
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.verification import FindingKind

Driftline = Callable[..., Any]
OWNER, LARGE = "org:acme/project:p/user:u", "a value that is not inlined " * 100


@pytest.fixture
def location(tmp_path: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A workspace with an external catalog that is not configured in the environment."""
    for name in (MEMORY_CONFIG_VARIABLE, *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    uri = str(tmp_path / "workspace")
    with MemoryStore(uri, catalog_url=sqlite_catalog) as store:
        store.store("large", LARGE, OWNER)
        store.store("small", 1, OWNER)
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", uri)
    return uri


def blobs(location: str) -> list[Path]:
    return [path for path in Path(location).rglob("*.json") if path.stem.count("-") == 2]


def expect_kept_and_found(driftline: Driftline, location: str, why: str) -> None:
    cleaned = driftline("cleanup", "--delete", "--max-age-seconds", 0, "--json")
    assert (cleaned.code, cleaned.json["deleted_count"]) == (0, 0)
    assert why in str(cleaned.json["skipped"])
    assert len(blobs(location)) == 1
    for command in (["verify"], ["verify", "--repair"]):
        verified = driftline(*command, "--json")
        assert (verified.code, [each["kind"] for each in verified.json["findings"]]) == (3, [FindingKind.CATALOG])
        assert why in verified.json["findings"][0]["detail"]


def test_a_catalog_that_is_not_configured_is_a_finding_and_cleanup_deletes_no_memory(
    driftline: Driftline, location: str
) -> None:
    expect_kept_and_found(driftline, location, "is not set in DATABASE_URL")


def test_a_table_that_no_record_names_is_deleted_too(driftline: Driftline, location: str) -> None:
    (Path(location) / CATALOG_RECORD).unlink()
    expect_kept_and_found(driftline, location, "not known")


def test_cleanup_deletes_no_memory_if_the_catalog_is_unreachable(
    driftline: Driftline, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RETRY_DELAYS_SECONDS", ())
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody:planted@127.0.0.1:1/none")
    expect_kept_and_found(driftline, location, "cannot be read")
    assert "planted" not in driftline("verify", "--json").out


def test_cleanup_deletes_no_memory_if_the_catalog_is_damaged(
    driftline: Driftline, location: str, sqlite_catalog: str
) -> None:
    with MemoryStore(location, catalog_url=sqlite_catalog) as store:
        assert store.retrieve("small", "org:acme") is not None
    Path(sqlite_catalog.removeprefix("sqlite:///")).write_bytes(b"no database" * 1_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_URL", sqlite_catalog)
        expect_kept_and_found(driftline, location, "cannot be read")


def test_an_empty_stray_catalog_is_not_recorded(location: str, sqlite_catalog: str) -> None:
    (Path(location) / CATALOG_RECORD).unlink()
    stray = Catalog(embedded_url(location))
    stray.prepare(Workspace.open(location).config.workspace_id)
    stray.close()
    with pytest.raises(CatalogMismatch, match="older"):
        MemoryStore(location)
    assert not (Path(location) / CATALOG_RECORD).exists()
    with MemoryStore(location, catalog_url=sqlite_catalog) as store:
        assert store.retrieve("small", "org:acme") is not None


def test_restoring_a_catalog_elsewhere_needs_an_option(
    driftline: Driftline, location: str, sqlite_catalog: str
) -> None:
    refused = driftline("memory", "restore", "--json")
    assert (refused.code, refused.json["error"]) == (2, "catalog_mismatch")
    assert "--elsewhere" in refused.json["fix"]
    assert not (Path(location) / CATALOG).exists()
    with MemoryStore(location, catalog_url=sqlite_catalog) as store:
        assert store.retrieve("small", "org:acme") is not None
    assert driftline("memory", "restore", "--elsewhere").code == 0
    assert json.loads(driftline("memory", "get", "small", "--in", "org:acme").out) == 1


def test_a_lost_configuration_gets_its_id_back_without_the_catalog(
    driftline: Driftline, location: str, sqlite_catalog: str
) -> None:
    (Path(location) / "_workspace.json").unlink()
    driftline("verify", "--repair")
    with MemoryStore(location, catalog_url=sqlite_catalog) as store:
        assert store.retrieve("small", "org:acme") is not None


def test_an_entry_in_a_move_is_restored_at_its_last_owner(location: str, sqlite_catalog: str) -> None:
    """A flush that is interrupted between two indexes leaves the entry in both indexes."""
    before, after = OWNER, "org:acme/project:z"  # restored in this order
    objects = Workspace.open(location).objects
    with MemoryStore(location, catalog_url=sqlite_catalog) as store:
        kept = {info.path: objects.get(info.path) for info in objects.list(before) if "_index" in info.path}
        store.store("small", 2, after)
        store.flush()
    for info in list(objects.list(before)):
        if "_index" in info.path and info.path not in kept:
            objects.delete([info.path])
    Path(sqlite_catalog.removeprefix("sqlite:///")).unlink()
    restore_catalog(Workspace.open(location), sqlite_catalog)
    with MemoryStore(location, catalog_url=sqlite_catalog) as store:
        entry = store.retrieve("small", "org:acme")
        assert entry is not None
        assert (entry.value, entry.entity.directory) == (2, after)
        assert store.retrieve_by_entity("org", "acme", within="org:acme").total_count == 2
        assert store.retrieve_by_entity("project", "p", within="org:acme").total_count == 1


def test_adopting_an_empty_catalog_needs_discard(driftline: Driftline, location: str, sqlite_catalog: str) -> None:
    stray = Catalog(embedded_url(location))
    stray.prepare(Workspace.open(location).config.workspace_id)
    stray.close()
    refused = driftline("memory", "adopt", "--json")
    assert (refused.code, refused.json["error"]) == (2, "catalog_mismatch")
    assert "--discard" in refused.json["fix"]
    (Path(location) / CATALOG_RECORD).write_text("damaged")
    assert driftline("verify", "--repair").code == 3
    assert driftline("cleanup", "--delete", "--max-age-seconds", 0, "--json").json["deleted_count"] == 0
    assert len(blobs(location)) == 1
    adopted = driftline("memory", "adopt", "--discard", "--json")
    assert (adopted.json["catalog"], adopted.json["given_up"]) == (CATALOG, ["org:acme"])


def test_an_empty_catalog_does_not_prevent_a_restore(driftline: Driftline, location: str) -> None:
    stray = Catalog(embedded_url(location))
    stray.prepare(Workspace.open(location).config.workspace_id)
    stray.close()
    assert driftline("memory", "restore", "--elsewhere").code == 0
    assert json.loads(driftline("memory", "get", "small", "--in", "org:acme").out) == 1
    assert driftline("verify").code == 0
