"""``compact`` and ``cleanup`` cover memory: they fold deltas, and delete expired entries and blobs without an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from driftline.flows.runs.cleanup import CleanupReport, CleanupRequest, clean_workspace
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.storage.entities import Entity
from driftline.storage.errors import CatalogError, CatalogMismatch
from driftline.storage.garbage import Reason
from driftline.storage.layout import BASE, ObjectInfo, ObjectKind, delta_name, lease_path, new_ulid
from driftline.storage.leases.lease import acquire
from driftline.storage.memory.catalog import entry_writes, outbox
from driftline.storage.memory.catalog.tables import retired_blobs
from driftline.storage.memory.memory_indexes import LEASE, MemoryIndex, MemoryListing, Totals, index_files
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder

ACME, S1, S2 = "org:acme", "org:acme/project:p/user:u/session:s1", "org:acme/project:p/user:u/session:s2"
LARGE = "a value that is not inlined " * 100


@pytest.fixture
def store(tmp_path: Path, tiny_model: Path) -> Iterator[MemoryStore]:
    """A store whose catalog is in its workspace."""
    embedder = WordTableEmbedder.open(str(tiny_model))
    with MemoryStore(str(tmp_path / "workspace"), embedder=lambda: embedder) as opened:
        yield opened


def clean(store: MemoryStore, max_age_seconds: float = 0.0, **options: Any) -> CleanupReport:
    return clean_workspace(CleanupRequest(store.workspace.objects.uri, max_age_seconds, dry_run=False, **options))


def blobs(store: MemoryStore) -> set[str]:
    return {info.path for info in store.workspace.objects.list("org:acme/project:p") if info.path.endswith(".json")}


def test_only_blobs_without_an_entry_are_deleted(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.store_many(
        [MemoryItem("kept", LARGE, S1), MemoryItem("replaced", LARGE + "1", S1), MemoryItem("deleted", LARGE + "2", S1)]
    )
    store.store("replaced", LARGE + "3", S2)
    store.delete("deleted", ACME)
    with monkeypatch.context() as patch:
        patch.setattr(entry_writes, "put", _fail)
        with pytest.raises(CatalogError) as failure:
            store.store("lost", LARGE, S1)
    store.flush()
    assert len(blobs(store)) == 5
    assert clean(store, 3600).orphans == ()
    report = clean(store)
    assert {orphan.reason for orphan in report.orphans} == {Reason.UNOWNED}
    assert len(report.deleted) == 3
    assert failure.value.blob_path in {orphan.path for orphan in report.deleted}
    assert report.foreign == ()
    assert len(blobs(store)) == 2
    entries = store.retrieve_batch(["kept", "replaced", "deleted", "lost"], ACME)
    assert {key: entry.value for key, entry in entries.items()} == {"kept": LARGE, "replaced": LARGE + "3"}
    assert store.catalog.read(lambda c: c.execute(retired_blobs.select()).all()) == []
    assert clean(store).orphans == ()


def test_a_cleanup_does_not_look_up_retired_blobs_that_it_has_listed(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        store.store("key", LARGE + str(number), S1)
    store.flush()

    def retired() -> set[str]:
        return {row.path for row in store.catalog.read(lambda c: c.execute(retired_blobs.select()).all())}

    recent = retired()
    store.workspace.objects.delete([lost := min(recent)])  # as a cleanup that was killed
    head, asked = ObjectStore.head, list[str]()

    def counted(objects: ObjectStore, path: str) -> ObjectInfo | None:
        asked.append(path)
        return head(objects, path)

    monkeypatch.setattr(ObjectStore, "head", counted)
    assert clean(store, 3600).deleted == []
    assert recent.intersection(asked) == {lost}
    assert retired() == recent - {lost}


def _fail(*_: object) -> None:
    raise CatalogError("The catalog failed", "")


def test_a_retired_blob_ages_from_the_moment_it_was_retired(tmp_path: Path) -> None:
    now = [datetime.now(UTC) - timedelta(hours=3)]
    with MemoryStore(str(tmp_path / "workspace"), now=lambda: now[0]) as store:
        store.store("key", LARGE, S1)
        store.delete("key", ACME)
        assert len(clean(store, 7200).deleted) == 0  # the object itself is only seconds old
        now[0] += timedelta(hours=3)
        store.store("key", LARGE, S1)
        store.delete("key", ACME)
        assert [orphan.path in blobs(store) for orphan in clean(store, 0.0).deleted] == [False, False]


def test_expired_entries_are_collected(tmp_path: Path) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    with MemoryStore(str(tmp_path / "workspace")) as store:
        store.store_many([MemoryItem("expired", LARGE, S1, None, past), MemoryItem("alive", LARGE, S1)])
        store.flush()
        report = clean(store)
        assert [orphan.reason for orphan in report.deleted] == [Reason.UNOWNED]
        assert MemoryIndex(store.workspace.objects, ACME).read(columns=["key"])["key"].to_pylist() == ["alive"]
        assert store.retrieve_by_entity("org", "acme", within=ACME).total_count == 1


def test_blobs_stay_without_their_catalog_and_a_foreign_catalog_aborts(
    tmp_path: Path, sqlite_catalog: str, s3_bucket: str
) -> None:
    with MemoryStore(s3_bucket, catalog_url=sqlite_catalog) as store:
        store.store("key", LARGE, S1)
        store.delete("key", ACME)
        report = clean(store)
        assert report.orphans == ()
        assert "DATABASE_URL" in report.skipped[0]
        with MemoryStore(str(tmp_path / "other"), catalog_url=f"sqlite:///{tmp_path}/other.sqlite") as other:
            other.store("key", LARGE, S1)
        with pytest.raises(CatalogMismatch):
            clean(store, catalog_url=f"sqlite:///{tmp_path}/other.sqlite")
        assert len(blobs(store)) == 1
        assert len(clean(store, catalog_url=sqlite_catalog).deleted) == 1


def test_compaction_folds_the_memory_of_every_level_and_cleanup_keeps_it(store: MemoryStore) -> None:
    for n in range(4):
        store.store(f"key {n}", f"text {n}", S1)
        store.flush()
    store.delete("key 0", ACME)
    store.flush()
    objects = store.workspace.objects
    before = {location: MemoryIndex(objects, location).read() for location in (ACME, "org:acme/project:p", S1)}
    hits = [hit.record.key for hit in store.search_memory("text", 10, None, ACME)]
    report = compact_workspace(CompactRequest(objects.uri, max_deltas=2, retention_seconds=0.0))
    assert report.tenants[0].folded == dict.fromkeys((ACME, "org:acme/project:p", "org:acme/project:p/user:u", S1), 5)
    assert report.tenants[0].skipped == []
    for location, rows in before.items():
        assert MemoryIndex(objects, location).log().deltas == ()
        assert MemoryIndex(objects, location).read() == rows
    assert [hit.record.key for hit in store.search_memory("text", 10, None, ACME)] == hits
    report_of_cleanup = clean(store)
    assert (report_of_cleanup.orphans, report_of_cleanup.foreign, report_of_cleanup.skipped) == ((), (), [])
    assert compact_workspace(CompactRequest(objects.uri, max_deltas=0)).tenants[0].folded == {}


def test_the_manifests_of_sources_are_not_memory_indexes(store: MemoryStore) -> None:
    directories = (ACME, S1, "org:acme/project:p/source:web")
    paths = [f"{directory}/{name}" for directory in directories for name in (BASE, delta_name(new_ulid()), "x.json")]
    found = [(name.directory, name.kind) for name in index_files(store.workspace, paths)]
    assert found == [(directory, kind) for directory in (ACME, S1) for kind in (ObjectKind.BASE, ObjectKind.DELTA)]


@pytest.mark.parametrize("location", ["local", "s3"])
def test_listings_come_from_the_indexes(
    location: str, request: pytest.FixtureRequest, tmp_path: Path, sqlite_catalog: str
) -> None:
    uri = str(tmp_path / "it's a workspace") if location == "local" else request.getfixturevalue("s3_bucket")
    past = datetime.now(UTC) - timedelta(seconds=1)
    with MemoryStore(uri, catalog_url=sqlite_catalog) as store:
        listing = MemoryListing(store.workspace.objects)
        assert listing.totals(ACME) == Totals(0, 0)
        store.store_many(MemoryItem(f"k{n:03}", n, S1 if n % 2 else S2, {"n": n}) for n in range(100))
        store.store("expired", 1, S1, expires_at=past)
        store.flush()
        MemoryIndex(store.workspace.objects, ACME).compact()
        store.delete("k000", ACME)
        store.store("k001", "longer than before", S2)
        store.store("é", 1, S1)
        store.flush()

        def keys(**given: Any) -> list[str]:
            return [str(key) for key in listing.list(ACME, **given)["key"].to_pylist()]

        assert keys() == [*(f"k{n:03}" for n in range(1, 100)), "é"]
        assert keys(prefix="k01") == [f"k{n:03}" for n in range(10, 20)]
        assert keys(low="k098") == ["k098", "k099", "é"]
        assert keys(low="k010", high="k013", after="k010") == ["k011", "k012"]
        assert keys(prefix="k", limit=2) == ["k001", "k002"]
        assert keys(prefix="' OR 1=1 --") == []
        assert listing.totals(ACME).entries == 100
        assert listing.totals(ACME, prefix="k00").entries == 9
        owners = listing.by_owner("org:acme/project:p")
        assert {owner: totals.entries for owner, totals in owners.items()} == {S1: 50, S2: 50}
        assert sum(totals.size_bytes for totals in owners.values()) == listing.totals(S1).size_bytes + (
            listing.totals(S2).size_bytes
        )
        for key in ("k002", "k003"):  # each new base has the name of a base whose footer is cached
            store.delete(key, ACME)
            store.flush()
            MemoryIndex(store.workspace.objects, ACME).compact()
            assert key not in keys()
        assert listing.totals(ACME).entries == 98


def test_a_workspace_of_memory_alone_is_a_workspace(store: MemoryStore, driftline: Callable[..., Any]) -> None:
    store.store("key", LARGE, S1)
    store.flush()
    assert Workspace.open(store.workspace.objects.uri).stats().total_documents == 0
    assert driftline("verify", "--workspace", store.workspace.objects.uri, "--json").code == 0
    assert driftline("cleanup", "--workspace", store.workspace.objects.uri, "--json").json["orphan_count"] == 0


def test_a_store_compacts_its_indexes_above_the_threshold(tmp_path: Path) -> None:
    """Every index of the tenant keeps at most ``compaction_threshold`` deltas and one flush; no entry is lost."""
    with MemoryStore(str(tmp_path / "workspace"), compaction_threshold=3) as store:
        objects = store.workspace.objects
        for number in range(10):
            store.store(f"key {number}", number, S1)
            store.flush()
            assert len(MemoryIndex(objects, ACME).log().deltas) <= 4
        assert [row["key"] for row in store.query_index(scope=ACME)] == [f"key {number}" for number in range(10)]
        assert MemoryIndex(objects, S1).log().has_base


def test_a_store_flushes_while_another_process_compacts(tmp_path: Path) -> None:
    with MemoryStore(str(tmp_path / "workspace"), compaction_threshold=1) as store:
        objects = store.workspace.objects
        with acquire(objects, lease_path(Entity.of_directory("org:acme"), LEASE), new_ulid()):
            for number in range(4):
                store.store(f"key {number}", number, S1)
                assert store.flush() == 1
        assert len(store.query_index(scope=ACME)) == 4
        assert len(MemoryIndex(objects, ACME).log().deltas) == 4


def test_catalog_queries_use_their_indexes(store: MemoryStore) -> None:
    """One tenant's expired entries, or its changes that wait for a model, must not slow the calls of another."""
    statements: list[tuple[str, Any]] = []

    def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        statements.append((statement, parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", record)
    try:
        store.store("key", 1, S1)
        store.retrieve_by_entity("session", "s1")
        store.catalog.read(lambda connection: outbox.waiting(connection, for_vectors=False))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", record)
    explained = [
        (f"EXPLAIN QUERY PLAN {statement}", values)
        for statement, values in statements
        if ("sum(" in statement and "expires" in statement) or ("EXISTS" in statement and "is_indexed" in statement)
    ]

    def explain(connection: sa.Connection) -> list[str]:
        return [" ".join(row[3] for row in connection.exec_driver_sql(*each)) for each in explained]

    plans = store.catalog.read(explain)
    assert len(plans) == 2
    assert "ltm_entries_by_expiry (tenant_id=? AND expires<?)" in plans[0]
    assert "ltm_outbox_to_index" in plans[1]
