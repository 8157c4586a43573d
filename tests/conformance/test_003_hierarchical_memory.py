"""Document 003, hierarchical memory: values owned by entities, a SQL catalog, blobs and indexes in folders."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.config.memory_settings import MemoryConfiguration, load_memory_configuration
from driftline.flows.memory_backend import HierarchicalLTMBackend
from driftline.storage.errors import BadEntity, CatalogError, StorageError
from driftline.storage.memory.catalog import entry_writes
from driftline.storage.objects.local_disk import LocalDisk
from tests.conformance.memory_support import (
    ACME,
    ALICE,
    ALPHA,
    GLOBEX,
    LARGE,
    LEVELS,
    LINEAGE,
    NOWHERE,
    PARENTS,
    S123,
    blob_reads,
    blobs,
    decided,
    files,
    keys,
    ok,
    open_backend,
)
from tests.conformance.table import criterion
from tests.servers.postgres_server import PostgresServer
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.yaml_engine import run_yaml

SESSION: Any = ("session", "s123")
CONFIGURATION = """
settings:
  ltm:
    backend: hierarchical
    catalog:
      type: sqlalchemy
      url: "${DATABASE_URL}"
      pool_size: 10
    storage:
      uri: "STORAGE"
    hierarchy:
      levels: [org, project, user, session]
      root_entity:
        type: org
        id: "${ORG_ID}"
      defaults:
        org: "default"
        project: "_unassigned"
    performance:
      metadata_cache:
        enabled: true
        ttl_seconds: 600
      parallel_reads:
        threads: 8
    index:
      format: parquet
      row_group_size: 122880
      compression: zstd
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The store's folder."""
    return tmp_path / "memory"


@pytest.fixture
def backend(folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[HierarchicalLTMBackend]:
    """A store whose root is ``org:acme``."""
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "acme")
    with open_backend(folder, sqlite_catalog) as opened:
        yield opened


@pytest.fixture
def registered(backend: HierarchicalLTMBackend) -> HierarchicalLTMBackend:
    """The same store with alice's session s123 registered in project alpha."""
    assert backend.register_entity_with_defaults("session", "s123", parents=PARENTS) == S123
    return backend


def failing_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the catalog reject all new entries."""

    def fail(*_: object) -> None:
        raise CatalogError("The catalog failed", "")

    monkeypatch.setattr(entry_writes, "put", fail)


def orphan(backend: HierarchicalLTMBackend, folder: Path, key: str = "lost") -> str:
    """Store a large value whose entry the catalog rejects, and return the path of its blob."""
    before = set(blobs(folder))
    with pytest.MonkeyPatch.context() as patch:
        failing_catalog(patch)
        assert not backend.store(key, LARGE + key, S123)["success"]
    (path,) = set(blobs(folder)) - before
    return path


def age(path: Path, seconds: float) -> None:
    """Make a file older."""
    then = time.time() - seconds
    os.utime(path, (then, then))


# -- configuration ---------------------------------------------------------------------------


@criterion("003", "AC 1", "settings.ltm of an agent's YAML configures the store")
def test_every_key_of_the_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(CONFIGURATION.replace("STORAGE", "gs://team-memory/ltm/"))
    found = load_memory_configuration(path, {"DATABASE_URL": "postgresql://db/memory", "ORG_ID": "acme"})
    assert (found.catalog.url, found.catalog.pool_size) == ("postgresql://db/memory", 10)
    assert found.storage.uri == "gs://team-memory/ltm/"
    assert found.hierarchy.levels == tuple(LEVELS)
    assert found.hierarchy.root_entity is not None
    assert (found.hierarchy.root_entity.type, found.hierarchy.root_entity.id) == ("org", "acme")
    assert found.hierarchy.defaults == {"org": "default", "project": "_unassigned"}
    assert found.performance.metadata_cache.ttl_seconds == 600
    assert found.performance.parallel_reads.threads == 8


@criterion("003", "AC 1", "a store opens with that YAML, PostgreSQL and file://")
def test_a_store_opens_with_that_configuration(
    tmp_path: Path, postgres_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.yaml").write_text(CONFIGURATION.replace("STORAGE", f"file://{tmp_path}/ltm/"))
    monkeypatch.setenv("DATABASE_URL", postgres_catalog)
    monkeypatch.setenv("ORG_ID", "acme")
    with dl.create_ltm_backend(config=str(tmp_path / "agent.yaml"), embedding={"enabled": False}) as backend:
        assert ok(backend.store("goal", "ship it"))["entity"] == ACME
        assert ok(backend.retrieve("goal"))["value"] == "ship it"
    assert files(tmp_path / "ltm", "_index_delta_*.parquet")


@criterion("003", "AC 2", "the factory takes a kind and flat arguments")
def test_the_factory_makes_a_hierarchical_backend(folder: Path, postgres_catalog: str) -> None:
    with dl.create_ltm_backend(
        "hierarchical",
        catalog_url=postgres_catalog,
        storage_uri=f"file://{folder}/",
        hierarchy_levels=["org", "team", "member"],
        hierarchy_defaults={"team": "_none"},
        index_config={"row_group_size": 122880, "compression": "zstd"},
        performance_config={"metadata_cache_ttl": 600, "threads": 8},
        embedding={"enabled": False},
    ) as backend:
        assert type(backend).__name__ == "HierarchicalLTMBackend"
        assert ok(backend.store("key", 1, "member:alice"))["entity"] == "org:default/team:_none/member:alice"
        assert ok(backend.retrieve("key"))["value"] == 1


@criterion("003", "design", "the class opens a store by itself, with the documented arguments in their order")
def test_the_class_opens_a_store(folder: Path, sqlite_catalog: str) -> None:
    given: list[Any] = [sqlite_catalog, f"file://{folder}", LEVELS, {"org": "acme"}]
    given += [{"row_group_size": 122880, "compression": "zstd"}, {"metadata_cache_ttl": 60, "threads": 2}]
    with HierarchicalLTMBackend(*given) as backend:
        assert ok(backend.store("key", 1))["entity"] == ACME
        assert ok(backend.register_entity("org", "acme"))["entity"] == ACME
        assert ok(backend.register_entity(entity_type="org", entity_id="acme"))["entity"] == ACME
        assert ok(backend.register_entity("project", "alpha", parent=("org", "acme")))["entity"] == ALPHA
        assert ok(backend.register_entity(entity_type="project", entity_id="alpha", parent=ACME))["entity"] == ALPHA
        assert ok(backend.register_entity(("user", "bob")))["entity"] == f"{ACME}/project:_unassigned/user:bob"
        wrong: list[dict[str, Any]] = [
            {},
            {"entity_type": "org"},
            {"entity": "org", "entity_type": "org", "entity_id": "acme"},
            {"entity": "user:bob", "parent": ACME},
            {"entity": "galaxy", "entity_id": "acme"},
            {"entity": ("org", "acme"), "entity_id": "acme"},
        ]
        for each in wrong:
            assert backend.register_entity(**each)["error_type"] in ("usage", "bad_entity")
    with HierarchicalLTMBackend(catalog_url=sqlite_catalog, storage_uri=str(folder), hierarchy_levels=LEVELS) as again:
        assert ok(again.retrieve("key"))["value"] == 1


@criterion("003", "AC 6", "_generate_hierarchical_path gives the URI of an entity's folder")
def test_the_path_of_an_entity_is_a_uri(registered: HierarchicalLTMBackend, folder: Path) -> None:
    assert registered._generate_hierarchical_path(SESSION) == f"{folder}/{S123}/"
    ok(registered.store("key", LARGE, SESSION))
    assert list(Path(registered._generate_hierarchical_path(SESSION)).glob("*.json"))


@criterion("003", "AC 6", "the path of an entity may begin and end with a slash, as in the write flow")
def test_a_path_of_an_entity_may_have_slashes_around_it(registered: HierarchicalLTMBackend) -> None:
    for number, entity in enumerate((f"/{S123}", f"/{S123}/", "session:s123/")):
        assert ok(registered.store(f"key {number}", number, entity))["entity"] == S123
    assert len(keys(registered.retrieve_by_entity("session", "s123", allowed_ancestors=[f"/{ACME}/"]))) == 3
    assert ok(registered.compact_indexes(f"/{S123}"))["compacted_paths"] == [S123]
    refused = registered.store("key", 1, "/")
    assert refused["error_type"] == "bad_entity"


# -- entries ---------------------------------------------------------------------------------


@criterion("003", "AC 3", "a value that is no JSON is refused, wherever it holds what JSON lacks")
@pytest.mark.parametrize("value", [{(1, 2): 3}, [{("a",): 1}], {"a": {frozenset(): 1}}, {b"a": 1}, {1, 2}], ids=repr)
def test_a_value_that_is_not_json_is_refused(backend: HierarchicalLTMBackend, value: object) -> None:
    assert backend.store("key", value, S123)["error_type"] == "bad_entry"


@criterion("003", "AC 4", "retrieve by key: inlined, from a blob, and a miss")
def test_retrieve_finds_a_value_by_its_key(backend: HierarchicalLTMBackend) -> None:
    ok(backend.store("small", {"n": 1}, S123))
    ok(backend.store("large", LARGE, S123))
    assert ok(backend.retrieve("small"))["value"] == {"n": 1}
    assert ok(backend.retrieve("large"))["value"] == LARGE
    missing = backend.retrieve("nothing")
    assert (missing["success"], missing["found"], missing["entry"]) == (True, False, None)


@criterion("003", "AC 4", "a blob that was read is cached")
def test_a_value_that_was_read_is_read_from_the_cache(
    backend: HierarchicalLTMBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(backend.store("large", LARGE, S123))
    reads = blob_reads(monkeypatch)
    assert [ok(backend.retrieve("large"))["value"] for _ in range(3)] == [LARGE] * 3
    assert len(reads) <= 1


@criterion("003", "AC 3", "store keeps a value of an entity: blob, catalog, index")
def test_store_associates_a_value_with_an_entity(registered: HierarchicalLTMBackend, folder: Path) -> None:
    value = {"messages": [LARGE]}
    stored = registered.store(key="conversation:001", value=value, entity=SESSION)
    assert ok(stored)["entity"] == S123
    (blob,) = blobs(folder)
    assert blob.startswith(f"{S123}/")
    entry = ok(registered.retrieve("conversation:001"))["entry"]
    assert (entry["value"], entry["entity"]) == (value, S123)
    registered.core.flush()
    for directory in LINEAGE:
        assert files(folder / directory, "_index_delta_*.parquet")


@criterion("003", "AC 3", "store takes metadata and a time of expiry")
def test_store_takes_metadata_and_a_time_of_expiry(registered: HierarchicalLTMBackend) -> None:
    from datetime import UTC, date, datetime, timedelta

    past, later = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
    ok(registered.store("a day", 1, SESSION, expires_at=date(2020, 1, 1)))
    assert not ok(registered.retrieve("a day"))["found"]
    ok(registered.store("gone", 1, SESSION, {"phase": 1}, past))
    ok(registered.store("kept", 2, SESSION, metadata={"phase": 2}, expires_at=later))
    assert not ok(registered.retrieve("gone"))["found"]
    assert ok(registered.retrieve("kept"))["entry"]["metadata"] == {"phase": 2}


@criterion("003", "AC 5", "retrieve_by_entity gives an entity with its descendants, in pages")
def test_retrieve_by_entity_includes_descendants(registered: HierarchicalLTMBackend) -> None:
    """The positional arguments are type, id, include_descendants, limit and offset."""
    for n in range(5):
        ok(registered.store(f"of the session {n}", n, S123))
    ok(registered.store("of the project", 0, ALPHA))
    ok(registered.store("of another", 0, f"{ACME}/project:beta"))
    page = registered.retrieve_by_entity("project", "alpha")
    assert (len(page["entries"]), page["total_count"], page["has_more"]) == (6, 6, False)
    assert keys(registered.retrieve_by_entity("project", "alpha", False)) == ["of the project"]
    positional: Any = registered.retrieve_by_entity
    first = positional("project", "alpha", True, 4)
    rest = positional("project", "alpha", True, 4, 4)
    assert (len(first["entries"]), first["total_count"], first["has_more"]) == (4, 6, True)
    assert (len(rest["entries"]), rest["total_count"], rest["has_more"]) == (2, 6, False)
    assert sorted(keys(first) + keys(rest)) == keys(page)


# -- blobs and indexes -----------------------------------------------------------------------


@criterion("003", "AC 7", "each write makes delta files at every level; removals are kept as tombstones")
def test_indexes_grow_by_delta_files(backend: HierarchicalLTMBackend, folder: Path) -> None:
    """A tombstone is a delta file row for a removed key."""
    ok(backend.store("kept", 1, S123))
    ok(backend.store("removed", 2, S123))
    backend.core.flush()
    first = {directory: set(files(folder / directory, "_index_delta_*.parquet")) for directory in LINEAGE}
    assert all(first.values())
    ok(backend.delete("removed"))
    backend.core.flush()
    for directory in LINEAGE:
        (new,) = {path.name for path in (folder / directory).glob("_index_delta_*.parquet")} - first[directory]
        rows = pq.read_table(folder / directory / new, columns=["key", "op"]).to_pylist()
        assert rows == [{"key": "removed", "op": "remove"}]


@criterion("003", "AC 8", "compact_indexes folds deltas into the main index and counts")
@criterion("003", "INT-008", "a compaction merges the deltas into one index")
def test_compact_indexes_folds_what_has_many_deltas(backend: HierarchicalLTMBackend, folder: Path) -> None:
    for n in range(4):
        ok(backend.store(f"key {n}", n, S123))
        backend.core.flush()
    ok(backend.delete("key 1"))
    backend.core.flush()
    assert ok(backend.compact_indexes())["compacted_paths"] == []  # by default, those with more than 100
    answer = ok(backend.compact_indexes(None, 4))
    assert sorted(answer["compacted_paths"]) == LINEAGE
    assert answer["entries_processed"] == 3
    for directory in LINEAGE:
        assert (folder / directory / "_index.parquet").exists()
        assert not list((folder / directory).glob("_index_delta_*.parquet"))
        table = pq.read_table(folder / directory / "_index.parquet", columns=["key", "op"]).to_pylist()
        assert sorted(row["key"] for row in table if row["op"] == "add") == ["key 0", "key 2", "key 3"]
    assert ok(backend.retrieve_by_entity("project", "alpha"))["total_count"] == 3


@criterion("003", "AC 6", "a value lies below the whole path of its entity")
@criterion("003", "UNIT-001", "a path includes every level of the hierarchy")
@criterion("003", "INT-001", "a blob lies at the path of its entity")
def test_the_path_of_a_value_comes_from_the_closure_table(registered: HierarchicalLTMBackend, folder: Path) -> None:
    ok(registered.store("key", {"text": LARGE}, SESSION))
    (path,) = blobs(folder)
    assert path.rpartition("/")[0] == S123
    assert [part.partition(":")[0] for part in S123.split("/")] == LEVELS
    assert json.loads((folder / path).read_text()) == {"text": LARGE}


# -- queries ---------------------------------------------------------------------------------


@criterion("003", "AC 10", "retrieve_batch reads blobs side by side")
def test_a_batch_is_read_in_parallel(backend: HierarchicalLTMBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [f"key {n}" for n in range(16)]
    for key in wanted:
        ok(backend.store(key, LARGE + key, S123))
    get, both = LocalDisk.get, threading.Barrier(2)

    def paired(disk: LocalDisk, path: str) -> tuple[bytes, str]:
        both.wait(PATIENCE_SECONDS)  # each of the 16 reads waits for another
        return get(disk, path)

    monkeypatch.setattr(LocalDisk, "get", paired)
    answer = ok(backend.retrieve_batch([*wanted, "missing"]))
    assert {key: entry["value"] for key, entry in answer["entries"].items()} == {key: LARGE + key for key in wanted}
    assert answer["missing"] == ["missing"]


@criterion("003", "AC 9", "the metadata cache lasts 600 s, and 8 threads read")
def test_the_cache_and_the_threads_have_the_documented_defaults() -> None:
    """A decision record may justify a different default."""
    performance = MemoryConfiguration().performance
    assert performance.metadata_cache.enabled
    assert performance.metadata_cache.ttl_seconds == 600 or decided("LTM_METADATA_CACHE_TTL", "600")
    assert performance.parallel_reads.threads == 8 or decided("LTM_PARALLEL_THREADS", "8")


@criterion("003", "AC 9", "performance_config has metadata_cache_ttl and threads")
def test_the_time_to_live_of_the_cache_is_configurable(
    folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_backend(folder, sqlite_catalog, performance_config={"metadata_cache_ttl": 0, "threads": 2}) as backend:
        performance = backend.configuration.performance
        assert (performance.metadata_cache.ttl_seconds, performance.parallel_reads.threads) == (0, 2)
        ok(backend.store("large", LARGE, "session:s1"))
        reads = blob_reads(monkeypatch)
        assert [ok(backend.retrieve("large"))["value"] for _ in range(3)] == [LARGE] * 3
        assert len(reads) == 3


# -- isolation -------------------------------------------------------------------------------


@criterion("003", "AC 11", "each organization has a tree and answers of its own")
def test_organizations_are_isolated(
    backend: HierarchicalLTMBackend, folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LTM_ROOT_ENTITY_ID")
    ok(backend.store("plan", "ours " + LARGE, S123))
    with open_backend(folder, sqlite_catalog, hierarchy={"root_entity": {"type": "org", "id": "globex"}}) as theirs:
        ok(theirs.store("plan", "theirs " + LARGE, GLOBEX))
    assert backend.store("plan", 1, GLOBEX)["error_type"] == "bad_entity"
    assert {path.partition("/")[0] for path in blobs(folder)} == {ACME, "org:globex"}
    assert ok(backend.retrieve("plan"))["value"].startswith("ours")
    for kind, name in [("org", "acme"), ("project", "alpha"), ("user", "alice"), ("session", "s123")]:
        page = backend.retrieve_by_entity(kind, name)
        assert [entry["value"][:4] for entry in ok(page)["entries"]] == ["ours"]
    assert [entry["value"][:4] for entry in ok(backend.search("plan"))["entries"]] == ["ours"]


@criterion("003", "AC 11", "under a root every call that names another organization is refused, whatever that holds")
@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_no_call_names_another_organization_under_a_root(
    catalog: str, request: pytest.FixtureRequest, folder: Path, tiny_model: Path
) -> None:
    url = request.getfixturevalue(f"{catalog}_catalog")
    options: dict[str, Any] = {"embedding": {"model": str(tiny_model)}}
    other: Any = ("org", "globex")
    with open_backend(folder, url, **options) as everyone:
        ok(everyone.store("plan", "theirs", GLOBEX))
        for call in READS.values():
            assert "theirs" in str(ok(call(everyone, other))) or "org:globex" in str(ok(call(everyone, other)))
    with open_backend(folder, url, hierarchy={"root_entity": {"type": "org", "id": "acme"}}, **options) as ours:
        for name, call in {**READS, **WRITES}.items():
            for entity in (other, "org:globex", "org:initech"):  # initech does not exist
                answer = call(ours, entity)
                assert (name, answer["success"], answer["error_type"]) == (name, False, "bad_entity")
                assert "outside the root" in answer["error"]


def _org(entity: Any) -> str:
    return str(entity[1] if isinstance(entity, tuple) else entity.partition(":")[2])


READS: dict[str, Callable[[HierarchicalLTMBackend, Any], Any]] = {
    "retrieve": lambda backend, entity: backend.retrieve("plan", entity),
    "retrieve_batch": lambda backend, entity: backend.retrieve_batch(["plan"], entity),
    "retrieve_by_entity": lambda backend, entity: backend.retrieve_by_entity("org", _org(entity)),
    "within": lambda backend, entity: backend.retrieve_by_entity("project", "alpha", within=entity),
    "search": lambda backend, entity: backend.search("plan", None, entity),
    "search_memory": lambda backend, entity: backend.search_memory("theirs", entity=entity),
    "filter": lambda backend, entity: backend.search_memory("theirs", filter={"entity": entity}),
    "filter of several": lambda backend, entity: backend.search_memory(
        "theirs", filter={"entity": [f"org:{_org(entity)}", f"org:{_org(entity)}/project:new"]}
    ),
    "query_index": lambda backend, entity: backend.query_index(entity=entity),
    "list_entities": lambda backend, entity: backend.list_entities(entity),
}
WRITES: dict[str, Callable[[HierarchicalLTMBackend, Any], Any]] = {
    "store": lambda backend, entity: backend.store("mine", 1, entity),
    "store_many": lambda backend, entity: backend.store_many([{"key": "mine", "value": 1, "entity": entity}]),
    "delete": lambda backend, entity: backend.delete("plan", entity),
    "register_entity": lambda backend, entity: backend.register_entity("org", _org(entity)),
    "parent": lambda backend, entity: backend.register_entity("project", "new", parent=entity),
    "register_entity_with_defaults": lambda backend, entity: backend.register_entity_with_defaults(
        "user", "u", {"org": _org(entity)}
    ),
    "delete_entity": lambda backend, entity: backend.delete_entity(entity, cascade=True),
    "compact_indexes": lambda backend, entity: backend.compact_indexes(entity),
}


@criterion("003", "AC 13", "register_entity_with_defaults fills the levels that nobody names")
def test_registering_fills_missing_levels(folder: Path, sqlite_catalog: str) -> None:
    with open_backend(
        folder, sqlite_catalog, hierarchy_defaults={"org": "default", "project": "_unassigned"}
    ) as backend:
        full = backend.register_entity_with_defaults("session", "s123", parents=PARENTS)
        assert full == S123
        filled = "org:default/project:_unassigned/user:alice/session:s123"
        for _ in range(2):
            again = backend.register_entity_with_defaults("session", "s123", parents={"user": "alice"})
            assert again == filled
        unnamed: Any = {"user": "alice", "project": None, "org": None}
        assert backend.register_entity_with_defaults("session", "s123", parents=unnamed) == filled
        known = ok(backend.list_entities("org:default"))["entities"]
        assert known == ["org:default/project:_unassigned", filled.rpartition("/")[0], filled]


@criterion("003", "AC 12", "allowed_ancestors decide who may read an entity")
def test_an_entity_outside_the_allowed_ancestors_gives_nothing(registered: HierarchicalLTMBackend) -> None:
    ok(registered.store("plan", 1, S123))
    allowing: list[Any] = [[ALPHA], [ACME], ["project:beta", "project:alpha"], [("project", "alpha")]]
    for allowed in allowing:
        page = registered.retrieve_by_entity("session", "s123", allowed_ancestors=allowed)
        assert keys(page) == ["plan"]
    refusing: list[Any] = [[], ["project:beta"], ["org:globex"]]
    for allowed in refusing:
        page = registered.retrieve_by_entity("session", "s123", allowed_ancestors=allowed)
        assert (page["success"], page["error_type"]) == (False, "access_denied")
        assert "entries" not in page


# -- failures --------------------------------------------------------------------------------


@criterion("003", "AC 14", "a blob that cannot be written leaves the catalog alone")
def test_a_failed_blob_leaves_no_entry(backend: HierarchicalLTMBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise StorageError("The disk is full", "")

    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "create", full)
        answer = backend.store("key", LARGE, S123)
        with pytest.raises(StorageError):
            backend.core.store("key", LARGE, S123)
    assert (answer["success"], answer["error_type"]) == (False, "storage_error")
    assert not ok(backend.retrieve("key"))["found"]
    assert ok(backend.list_entities())["entities"] == []
    assert ok(backend.store("key", LARGE, S123))


@criterion("003", "AC 15", "a lost connection is made again")
def test_a_lost_connection_is_reopened(
    folder: Path, postgres_catalog: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "acme")
    with open_backend(folder, postgres_catalog) as backend:
        ok(backend.store("key", 1, S123))
        assert postgres_server.drop_connections()
        assert ok(backend.retrieve("key"))["value"] == 1


@criterion("003", "AC 15", "three retries, each after a longer wait, then ConnectionError")
def test_a_catalog_that_stays_unavailable_is_a_connection_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(ConnectionError) as failure:
        open_backend(folder, NOWHERE)
    assert getattr(failure.value, "kind", None) == "connection_error"
    assert len(waits) == 3
    assert waits[1] / waits[0] == pytest.approx(waits[2] / waits[1])
    assert waits[1] > waits[0]


@criterion("003", "AC 15", "the pool has the size that is configured")
def test_the_pool_has_the_configured_size(
    folder: Path, postgres_catalog: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "memory.yaml").write_text("settings: {ltm: {catalog: {pool_size: 3}}}")
    with open_backend(folder, postgres_catalog, config=str(tmp_path / "memory.yaml")) as backend:
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda n: ok(backend.store(f"key {n}", n, S123)), range(24)))
        import psycopg

        with psycopg.connect(postgres_server.url("postgres")) as connection:
            name = postgres_catalog.rpartition("/")[2]
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
            row = connection.execute(query, (name,)).fetchone()
        assert row is not None
        assert 1 <= row[0] <= 3


@criterion("003", "AC 16", "writers need no lock: each has delta files of its own, readers take them together")
def test_concurrent_writers_lose_nothing(
    folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch, driftline: Callable[..., Any]
) -> None:
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "acme")

    def work(writer: int) -> None:
        with open_backend(folder, sqlite_catalog) as backend:
            for n in range(5):
                ok(backend.store(f"{writer} {n}", n, S123))
                backend.core.flush()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(list((folder / S123).glob("_index_delta_*.parquet"))) >= 4
    monkeypatch.setenv("DATABASE_URL", sqlite_catalog)
    listed = driftline("memory", "list", ALPHA, "--workspace", folder, "--json").json
    assert {entry["key"] for entry in listed["entries"]} == {f"{writer} {n}" for writer in range(4) for n in range(5)}
    assert listed["total_count"] == 20


@criterion("003", "AC 17", "a compaction that fails at any step is finished by the next")
def test_a_compaction_that_fails_is_finished_by_the_next(
    backend: HierarchicalLTMBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each index write and each deletion fails once; nothing is lost."""
    steps: list[str] = []
    failing: list[int] = []

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(LocalDisk, name)

        def call(disk: LocalDisk, *arguments: Any) -> Any:
            touched = arguments[0] if isinstance(arguments[0], str) else " ".join(arguments[0])
            if "_index" in touched:
                steps.append(name)
                if len(steps) in failing:
                    raise StorageError("The disk is away", "")
            return original(disk, *arguments)

        return call

    def fill(number: int) -> None:
        for n in range(2):
            ok(backend.store(f"key {number} {n}", n, ACME))
            backend.core.flush()
        steps.clear()

    for name in ("create", "replace", "delete"):
        monkeypatch.setattr(LocalDisk, name, counted(name))
    for number in range(2):  # the second compaction finds a base, like the failing ones
        fill(number)
        ok(backend.compact_indexes(None, 0))
    assert len(steps) > 1
    for step in range(1, len(steps) + 1):
        fill(step + 1)
        failing[:] = [step]
        backend.compact_indexes(None, 0)
        assert len(steps) >= step
        failing.clear()
        assert ok(backend.retrieve_by_entity("org", "acme"))["total_count"] == 2 * (step + 2)
        ok(backend.compact_indexes(None, 0))
        assert not list((folder / ACME).glob("_index_delta_*.parquet"))
        rows = pq.read_table(folder / ACME / "_index.parquet", columns=["key"])["key"].to_pylist()
        assert len(rows) == len(set(rows)) == 2 * (step + 2)


@criterion("003", "AC 18", "cleanup_orphans reports or deletes old blobs without an entry")
@criterion("003", "INT-009", "an old orphan is removed, a young one stays")
def test_orphans_are_counted_and_deleted(
    backend: HierarchicalLTMBackend, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ok(backend.store("kept", LARGE, S123))
    (kept,) = blobs(folder)
    path = orphan(backend, folder)
    young = ok(backend.cleanup_orphans())
    assert (young["orphan_count"], young["deleted_count"]) == (0, 0)
    for each in (kept, path):
        age(folder / each, 3_700)
    left = orphan(backend, folder, "young")
    dry = ok(backend.cleanup_orphans(3600, True))
    assert (dry["orphan_count"], dry["deleted_count"], dry["deleted_paths"]) == (1, 0, [])
    assert dry["scanned_count"] >= 2
    with caplog.at_level(logging.INFO):
        done = ok(backend.cleanup_orphans())
    assert (done["orphan_count"], done["deleted_count"]) == (1, 1)
    assert [each.endswith(path) for each in done["deleted_paths"]] == [True]
    assert path in caplog.text
    assert sorted(blobs(folder)) == sorted([kept, left])


@criterion("003", "AC 14", "a failed catalog names the blob, in the error and in the log")
@criterion("003", "INT-004", "a failed catalog logs the orphan")
def test_a_failed_catalog_names_the_blob(
    backend: HierarchicalLTMBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing_catalog(monkeypatch)
    with caplog.at_level(logging.WARNING), pytest.raises(CatalogError) as failure:
        backend.core.store("key", LARGE, S123)
    (path,) = blobs(folder)
    assert failure.value.blob_path is not None
    assert failure.value.blob_path.endswith(path)
    assert any(path in record.getMessage() for record in caplog.records if record.name.startswith("driftline"))
    answer = backend.store("key", LARGE, S123)
    assert (answer["success"], answer["error_type"]) == (False, "catalog_error")
    assert (folder / answer["blob_path"]).exists()


# -- the listed test cases -------------------------------------------------------------------


@criterion("003", "UNIT-003", "defaults stand in for levels that nobody names")
def test_defaults_replace_missing_levels(folder: Path, sqlite_catalog: str) -> None:
    defaults = {"org": "default", "project": "_unassigned", "user": "nobody"}
    with open_backend(folder, sqlite_catalog, hierarchy_defaults=defaults) as backend:
        assert ok(backend.store("a", 1, "session:s1"))["entity"] == (
            "org:default/project:_unassigned/user:nobody/session:s1"
        )
        assert ok(backend.store("b", 1, "org:acme/user:alice"))["entity"] == "org:acme/project:_unassigned/user:alice"


@criterion("003", "INT-003", "a failed blob does not reach the catalog")
def test_a_failed_blob_does_not_replace_an_entry(
    backend: HierarchicalLTMBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(backend.store("key", "before", S123))

    link = os.link

    def full(source: str, target: str) -> None:
        if target.endswith(".json"):
            raise OSError(28, "No space left on device")
        link(source, target)

    monkeypatch.setattr(os, "link", full)
    answer = backend.store("key", LARGE, f"{ALICE}/session:s2")
    assert (answer["success"], answer["error_type"]) == (False, "storage_error")
    entry = ok(backend.retrieve("key"))["entry"]
    assert (entry["value"], entry["entity"]) == ("before", S123)


@criterion("003", "INT-005", "retrieve_by_entity gives the entries of that entity and no others")
def test_retrieve_by_entity_gives_the_right_entries(backend: HierarchicalLTMBackend) -> None:
    owners = {"project": ALPHA, "user": ALICE, "session": S123, "beside": f"{ALPHA}/user:bob", "org": ACME}
    for key, owner in owners.items():
        ok(backend.store(key, owner, owner))
    for kind, name, expected in [
        ("org", "acme", ["beside", "org", "project", "session", "user"]),
        ("project", "alpha", ["beside", "project", "session", "user"]),
        ("user", "alice", ["session", "user"]),
        ("session", "s123", ["session"]),
        ("user", "bob", ["beside"]),
        ("user", "carol", []),
    ]:
        assert keys(backend.retrieve_by_entity(kind, name)) == expected
        assert all(entry["value"] == entry["entity"] for entry in backend.retrieve_by_entity(kind, name)["entries"])


@criterion("003", "INT-006", "one organization cannot see another's entries")
@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_one_organization_cannot_see_another(
    catalog: str, request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(f"{catalog}_catalog")
    for name in ("acme", "globex"):
        monkeypatch.setenv("LTM_ROOT_ENTITY_ID", name)
        with open_backend(folder, url) as backend:
            ok(backend.store("plan", name, f"org:{name}/project:alpha"))
    for name in ("acme", "globex"):
        monkeypatch.setenv("LTM_ROOT_ENTITY_ID", name)
        with open_backend(folder, url) as backend:
            assert ok(backend.retrieve("plan"))["value"] == name
            page = ok(backend.retrieve_by_entity("project", "alpha"))
            assert ([entry["value"] for entry in page["entries"]], page["total_count"]) == ([name], 1)
            assert ok(backend.list_entities())["entities"] == [f"org:{name}/project:alpha"]


@criterion("003", "INT-007", "a write makes delta files")
def test_a_write_makes_delta_files(backend: HierarchicalLTMBackend, folder: Path) -> None:
    """Delta files may appear shortly after the write, but no later than when the store closes."""
    ok(backend.store("key", 1, S123))
    backend.close()
    found = files(folder, "_index_delta_*.parquet")
    assert [path.rpartition("/")[0] for path in found] == LINEAGE
    assert len({path.rpartition("/")[2] for path in found}) == len(found)


AGENT = """
nodes:
  - name: remember
    uses: ltm.store
    with:
      key: "{{ topic }}:001"
      value: {messages: ["{{ question }}"]}
      entity: [session, s123]
      metadata: {phase: 2}
    output: stored
  - name: recall
    uses: ltm.retrieve
    with: {key: "{{ stored.key }}"}
    output: recalled
  - name: all_of_the_session
    uses: ltm.retrieve_by_entity
    with: {entity_type: session, entity_id: s123, limit: "10"}
    output: page
  - name: find
    uses: memory.search
    with: {query: "{{ question }}", top_k: "1"}
    output: found
"""


@pytest.fixture(scope="module")
def benchmark_help() -> str:
    """Return the memory store benchmark's description on one line."""
    program = Path(__file__).parents[1] / "benchmarks" / "memory_store.py"
    done = subprocess.run([sys.executable, str(program), "--help"], capture_output=True, text=True, check=True)
    return " ".join((done.stdout + program.read_text()).split())


@criterion("003", "PERF-001", "the benchmark measures a session at 1 million entries against 100 ms")
def test_the_benchmark_measures_a_session(benchmark_help: str) -> None:
    assert "--entries" in benchmark_help
    assert "--postgres" in benchmark_help
    assert '"by session, p95", sessions, 0.95, 100' in benchmark_help


@criterion("003", "INT-002", "the catalog learns of the entry and its metadata")
def test_store_updates_the_catalog(backend: HierarchicalLTMBackend, sqlite_catalog: str) -> None:
    import sqlite3

    ok(backend.store("key", LARGE, S123, {"phase": "plan"}))
    with sqlite3.connect(sqlite_catalog.removeprefix("sqlite:///")) as connection:
        rows = connection.execute("SELECT key, metadata FROM ltm_entries").fetchall()
    assert [(key, "plan" in metadata) for key, metadata in rows] == [("key", True)]
    assert [entry["key"] for entry in ok(backend.search("", {"phase": "plan"}))["entries"]] == ["key"]


@criterion("003", "UNIT-002", "an unknown entity type is refused")
def test_an_unknown_entity_type_is_refused(backend: HierarchicalLTMBackend) -> None:
    unknown: Any = ("galaxy", "m31")
    answers: tuple[Any, ...] = (
        backend.store("key", 1, "galaxy:m31"),
        backend.store("key", 1, unknown),
        backend.register_entity_with_defaults("galaxy", "m31"),
        backend.register_entity_with_defaults("session", "s1", parents={"galaxy": "m31"}),
        backend.retrieve_by_entity("galaxy", "m31"),
    )
    for answer in answers:
        assert (answer["success"], answer.get("error_type")) == (False, "bad_entity")
        assert "galaxy" in answer["error"]
        assert all(level in answer["error"] for level in LEVELS)
    with pytest.raises(BadEntity):
        backend.core.retrieve_by_entity("galaxy", "m31")


@criterion("003", "E2E-001", "an agent writes, reads, queries and searches")
def test_an_agent_writes_reads_and_queries(
    tmp_path: Path, tiny_model: Path, postgres_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = f"settings: {{ltm: {{embedding: {{model: '{tiny_model}'}}, storage: {{uri: 'file://{tmp_path}/ltm'}}}}}}"
    (tmp_path / "memory.yaml").write_text(settings)
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    monkeypatch.setenv("DATABASE_URL", postgres_catalog)
    registry: dict[str, Callable[..., Any]] = {}
    register_actions(registry)
    state = run_yaml(AGENT, registry, {"topic": "conversation", "question": "where is the parser"})
    assert ok(state["stored"])["key"] == "conversation:001"
    assert ok(state["recalled"])["value"] == {"messages": ["where is the parser"]}
    assert ok(state["page"])["total_count"] == 1
    assert [hit["record"]["key"] for hit in ok(state["found"])["results"]] == ["conversation:001"]


@criterion("003", "E2E-002", "two organizations work side by side and never meet")
def test_two_organizations_never_share_data(
    tmp_path: Path, tiny_model: Path, postgres_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memory"
    for name in ("acme", "globex"):
        monkeypatch.setenv("LTM_ROOT_ENTITY_ID", name)
        with open_backend(folder, postgres_catalog, embedding={"model": str(tiny_model)}) as backend:
            for n in range(3):
                ok(backend.store(f"note {n}", {"of": name, "text": f"a note on parsers {n} {LARGE}"}, "user:alice"))
    for name in ("acme", "globex"):
        monkeypatch.setenv("LTM_ROOT_ENTITY_ID", name)
        with open_backend(folder, postgres_catalog, embedding={"model": str(tiny_model)}) as backend:
            found = [hit["record"] for hit in ok(backend.search_memory("parsers", 20))["results"]]
            found += ok(backend.retrieve_by_entity("user", "alice"))["entries"]
            found += ok(backend.search("note"))["entries"]
            found += ok(backend.retrieve_batch(["note 0", "note 1"]))["entries"].values()
            assert len(found) == 3 + 3 + 3 + 2
            assert {entry["value"]["of"] for entry in found} == {name}
    assert {path.partition("/")[0] for path in blobs(folder)} == {ACME, "org:globex"}


@criterion("003", "PERF-002", "the benchmark measures a project at 5 million entries against 500 ms")
def test_the_benchmark_measures_a_project(benchmark_help: str) -> None:
    assert "postgres=5_000_000" in benchmark_help or "--postgres 5000000" in benchmark_help
    assert "by project" in benchmark_help
    assert "0.95, 500" in benchmark_help


# -- environment variables -------------------------------------------------------------------


@criterion("003", "Environment", "seven variables configure the store")
def test_environment_variables_configure_the_store(
    folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "DATABASE_URL": sqlite_catalog,
        "LTM_STORAGE_URI": f"file://{folder}",
        "LTM_ROOT_ENTITY_TYPE": "org",
        "LTM_ROOT_ENTITY_ID": "acme",
        "LTM_METADATA_CACHE_TTL": "60",
        "LTM_PARALLEL_THREADS": "4",
        "LTM_COMPACTION_THRESHOLD": "7",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with dl.create_ltm_backend("hierarchical") as backend:
        found = backend.configuration
        assert (found.performance.metadata_cache.ttl_seconds, found.performance.parallel_reads.threads) == (60, 4)
        assert found.index.compaction_threshold == 7
        assert ok(backend.store("key", 1))["entity"] == ACME
    assert files(folder, "_index_delta_*.parquet")


@criterion("003", "Environment", "what is not set has the documented default")
def test_variables_that_are_not_set_have_their_defaults(folder: Path, sqlite_catalog: str) -> None:
    with open_backend(folder, sqlite_catalog) as backend:
        assert ok(backend.store("key", 1))["entity"] == "org:default"
        assert backend.configuration.index.compaction_threshold == 100
        performance = backend.configuration.performance
        assert performance.metadata_cache.ttl_seconds == 600 or decided("LTM_METADATA_CACHE_TTL", "600")
        assert performance.parallel_reads.threads == 8 or decided("LTM_PARALLEL_THREADS", "8")
