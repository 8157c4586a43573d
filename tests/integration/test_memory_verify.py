"""Verification detects each kind of damage to memory; a repair rebuilds indexes from the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from driftline.flows.config.memory_settings import catalog_to_keep
from driftline.flows.runs import verify_and_repair
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.verify_and_repair import VerifyReport, VerifyRequest, verify_workspace
from driftline.storage.entities import Hierarchy
from driftline.storage.errors import CatalogMismatch
from driftline.storage.memory.memory_indexes import MemoryIndex
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.memory.vectors import VectorRow, vector_tables
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder
from driftline.tasks.maintenance import verification
from driftline.tasks.maintenance.verification import FindingKind

ACME, S1 = "org:acme", "org:acme/project:a b/user:u/session:s1"
S1_DIRECTORY = "org:acme/project:a~20b/user:u/session:s1"
BESIDE = "org:acme/project:a b/user:u-2"
LARGE = "a value that is not inlined " * 100


@pytest.fixture
def store(tmp_path: Path, tiny_model: Path) -> Iterator[MemoryStore]:
    """A store of two tenants in which one entry has expired, one was moved, one was replaced and one was deleted."""
    embedder = WordTableEmbedder.open(str(tiny_model))
    with MemoryStore(str(tmp_path / "workspace"), embedder=lambda: embedder) as opened:
        opened.store_many(MemoryItem(f"key {n}", LARGE + str(n), S1) for n in range(4))
        opened.store("key 0", "parser", BESIDE)
        opened.store("key 1", "namespace", S1)
        opened.delete("key 2", ACME)
        opened.store("expired", LARGE, S1, expires_at=datetime.now(UTC) - timedelta(days=1))
        opened.store("key 0", LARGE, "org:other")
        opened.flush()
        yield opened


def check(store: MemoryStore, repair: bool = False) -> VerifyReport:
    return verify_workspace(VerifyRequest(store.workspace.objects.uri, repair))


def found(report: VerifyReport) -> set[tuple[FindingKind, str, str]]:
    return {(finding.kind, finding.entity, finding.path) for finding in report.findings}


def test_consistent_memory_has_no_findings_flushed_or_not(store: MemoryStore) -> None:
    report = check(store)
    assert (list(report.findings), report.skipped, report.memory_entries) == ([], [], 4)
    store._flusher._ended = True  # no flush from here on
    store.store("key 3", "new", BESIDE)
    store.store("key 9", LARGE, S1)
    store.delete("key 1", ACME)
    report = check(store)
    assert (list(report.findings), report.memory_entries) == ([], 4)


def test_damage_is_detected_and_indexes_are_repaired(store: MemoryStore) -> None:
    objects = store.workspace.objects
    (blob,) = [info.path for info in objects.list("org:other") if info.path.endswith(".json") and "/_" not in info.path]
    objects.delete([blob])
    whole = MemoryIndex(objects, ACME)
    objects.delete([f"{ACME}/{name}" for name in whole.log().deltas])
    damaged = f"{S1_DIRECTORY}/{MemoryIndex(objects, S1_DIRECTORY).log().deltas[0]}"
    objects.delete([damaged])
    objects.create(damaged, b"damaged")
    left_over = MemoryIndex(objects, "org:acme/project:gone")
    left_over.append(*_one_row(store))
    (table,) = vector_tables(objects, store.hierarchy.entity(ACME))
    vector = np.eye(1, 1_000, dtype=np.float16)[0][: table.open().schema.field("vector").type.list_size]
    table.apply({"ghost": 10**6}, [VectorRow("ghost", 1, ACME, {}, vector)], 10**6, len(vector))

    lost = (FindingKind.BLOB, "org:other", "key 0")
    ghost = (FindingKind.MEMORY_VECTORS, ACME, table.path)
    indexes = {(FindingKind.MEMORY_INDEX, ACME, location) for location in (ACME, S1_DIRECTORY, "org:acme/project:gone")}
    assert found(check(store)) == {lost, ghost, *indexes}
    report = check(store, repair=True)
    assert found(report) == {lost, ghost}
    assert report.repaired == 3
    assert any("driftline memory rebuild org:acme" in message for message in report.skipped)
    assert any("'key 0' of org:other" in message for message in report.skipped)
    store.rebuild(ACME)
    assert found(check(store)) == {lost}


def _one_row(store: MemoryStore) -> tuple[str, object]:
    index = MemoryIndex(store.workspace.objects, S1_DIRECTORY.rpartition("/")[0])
    name = index.log().deltas[0]
    rows = pq.read_table(Path(index.objects.uri) / index.directory / name, partitioning=None)
    return name.removeprefix("_index_delta_").removesuffix(".parquet"), rows


def test_memory_written_during_the_check_is_skipped(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = verification._compare

    def write_then_compare(*arguments: object) -> object:
        store.store("late", 1, ACME)
        return compare(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(verification, "_compare", write_then_compare)
    store.workspace.objects.delete(
        [f"{ACME}/{name}" for name in MemoryIndex(store.workspace.objects, ACME).log().deltas]
    )
    report = check(store)
    assert any("Skipped memory of org:acme" in message for message in report.skipped)
    assert all(finding.entity != ACME for finding in report.findings)


def test_another_workspaces_catalog_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    with MemoryStore(str(tmp_path / "other")):
        pass
    catalog = f"sqlite:///{tmp_path / 'other' / '_catalog.sqlite'}"
    with pytest.raises(CatalogMismatch):
        verify_workspace(VerifyRequest(store.workspace.objects.uri, catalog_url=catalog))


def test_maintenance_finds_tenants_of_any_first_level(tmp_path: Path, tiny_model: Path) -> None:
    embedder = WordTableEmbedder.open(str(tiny_model))
    with MemoryStore(
        str(tmp_path / "workspace"), hierarchy=Hierarchy(("team", "user")), embedder=lambda: embedder
    ) as store:
        for n in range(3):
            store.store("key", f"parser {n} {LARGE}", "team:a/user:u")
            store.flush()
        uri = store.workspace.objects.uri
        assert check(store).memory_entries == 1
        (report,) = compact_workspace(CompactRequest(uri, max_deltas=1, retention_seconds=0.0)).tenants
        assert set(report.folded) == {"team:a", "team:a/user:u"}
        cleaned = clean_workspace(CleanupRequest(uri, 0.0, dry_run=False))
        assert len([orphan for orphan in cleaned.deleted if orphan.path.startswith("team:a/user:u/")]) == 2
        assert cleaned.foreign == ()
        store.workspace.objects.delete(["team:a/_index.parquet"])
        assert found(check(store)) == {(FindingKind.MEMORY_INDEX, "team:a", "team:a")}
        assert found(check(store, repair=True)) == set()
        assert [hit.record.key for hit in store.search_memory("parser", 3, None, "team:a")] == ["key"]


def test_memory_created_during_a_verification_is_checked_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, catalog = str(tmp_path / "workspace"), f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    Workspace.open_for_writing(uri)
    monkeypatch.setenv("DATABASE_URL", catalog)
    find_catalog = catalog_to_keep

    def find_before_memory_begins(workspace: Workspace) -> str | None:
        found = find_catalog(workspace)
        with MemoryStore(uri, catalog_url=catalog) as store:
            store.store("key", "value", ACME)
        return found

    monkeypatch.setattr(verify_and_repair, "catalog_to_keep", find_before_memory_begins)
    report = verify_workspace(VerifyRequest(uri))
    assert list(report.findings) == []
    assert any("another run is working on it" in reason for reason in report.skipped)
    monkeypatch.setattr(verify_and_repair, "catalog_to_keep", find_catalog)
    assert verify_workspace(VerifyRequest(uri)).memory_entries == 1
