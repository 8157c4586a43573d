"""A workspace knows its catalog: a second one cannot appear, a lost one is restored, and an old one is recognized."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.config.memory_settings import MEMORY_CONFIG_VARIABLE, VARIABLES
from driftline.flows.runs.cleanup import CleanupReport, CleanupRequest, clean_workspace
from driftline.flows.runs.verify_and_repair import VerifyReport, VerifyRequest, verify_workspace
from driftline.storage.errors import CatalogMismatch, CatalogMissing, StorageError
from driftline.storage.layout import CATALOG, CATALOG_RECORD
from driftline.storage.memory import workspace_catalog
from driftline.storage.memory.catalog.database import Catalog, embedded_url
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.memory.workspace_catalog import adopt, restore_catalog
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder
from driftline.tasks.maintenance.verification import FindingKind
from tests.faults.faults import Crash, Faults, Mode, injected

ACME, OWNER = "org:acme", "org:acme/project:alpha/user:alice"
LARGE = "a value that is not inlined " * 100


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (MEMORY_CONFIG_VARIABLE, *VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "workspace")


@pytest.fixture
def embedder(tiny_model: Path) -> Callable[[], WordTableEmbedder]:
    loaded = WordTableEmbedder.open(str(tiny_model))
    return lambda: loaded


def fill(location: str, **options: Any) -> None:
    with MemoryStore(location, **options) as store:
        store.store_many(MemoryItem(f"large {n}", LARGE + str(n), OWNER) for n in range(3))
        store.store("small", {"n": 1}, ACME, metadata={"kind": "note"})


def values(location: str, **options: Any) -> dict[str, Any]:
    with MemoryStore(location, **options) as store:
        found = {key: store.retrieve(key, ACME) for key in ("small", "large 0", "large 1", "large 2", "later")}
        return {key: entry.value for key, entry in found.items() if entry is not None}


EVERYTHING = {"small": {"n": 1}, **{f"large {n}": LARGE + str(n) for n in range(3)}}


def blobs(location: str) -> set[str]:
    return {path.name for path in Path(location).rglob("*.json") if path.stem.count("-") == 2}


def cleaned(location: str) -> CleanupReport:
    return clean_workspace(CleanupRequest(location, 0.0, False))


def findings(report: VerifyReport) -> list[FindingKind]:
    return [finding.kind for finding in report.findings]


def verified(location: str, repair: bool = False) -> VerifyReport:
    return verify_workspace(VerifyRequest(location, repair))


def lose_catalog(location: str) -> None:
    for path in Path(location).glob(f"{CATALOG}*"):
        path.unlink()


# -- no second catalog -----------------------------------------------------------------------


def test_without_its_url_no_second_catalog_appears_and_no_blob_is_deleted(
    location: str, postgres_catalog: str, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(location, catalog_url=postgres_catalog)
    kept = blobs(location)
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", location)
    for command in (["put", "stray", "1", "--entity", OWNER], ["get", "small", "--in", ACME], ["list", ACME]):
        refused = driftline("memory", *command, "--json")
        assert (refused.code, refused.json["error"]) == (2, "catalog_missing")
        assert "postgresql" in refused.json["message"]
        assert "DATABASE_URL" in refused.json["fix"]
    assert not (Path(location) / CATALOG).exists()
    swept = driftline("cleanup", "--delete", "--max-age-seconds", 0, "--json")
    assert swept.code == 0
    assert "Cannot check memory blobs" in str(swept.json["skipped"])
    assert blobs(location) == kept
    monkeypatch.setenv("DATABASE_URL", postgres_catalog)
    assert json.loads(driftline("memory", "get", "small", "--in", ACME).out) == {"n": 1}


def test_the_record_names_no_user_and_no_password(location: str, postgres_catalog: str) -> None:
    fill(location, catalog_url=postgres_catalog.replace("driftline@", "driftline:hunter2@"))
    text = (Path(location) / CATALOG_RECORD).read_text()
    assert "postgresql" in text
    assert "hunter2" not in text
    assert "driftline@" not in text


def test_an_empty_database_is_refused_if_the_workspace_has_memory(location: str, postgres_catalog: str) -> None:
    fill(location)
    with pytest.raises(CatalogMissing, match=CATALOG):
        MemoryStore(location, catalog_url=postgres_catalog)
    catalog = Catalog(postgres_catalog)
    assert catalog.identity() is None
    catalog.close()
    assert values(location) == EVERYTHING


def test_the_catalog_of_another_workspace_is_refused(location: str, tmp_path: Path) -> None:
    fill(location)
    fill(str(tmp_path / "other"))
    other = embedded_url(str(tmp_path / "other"))
    with pytest.raises(CatalogMismatch, match="belongs to workspace"):
        MemoryStore(location, catalog_url=other)
    catalog = Catalog(other)
    with pytest.raises(CatalogMismatch, match="belongs to workspace"):
        adopt(Workspace.open(location), catalog)
    catalog.close()


def test_memory_without_its_record_is_refused_by_an_empty_catalog(location: str, postgres_catalog: str) -> None:
    fill(location, catalog_url=postgres_catalog)
    (Path(location) / CATALOG_RECORD).unlink()
    with pytest.raises(CatalogMissing, match=r"_catalog\.json is missing"):
        MemoryStore(location)
    assert values(location, catalog_url=postgres_catalog) == EVERYTHING


def test_concurrently_opened_stores_agree_on_one_catalog(location: str) -> None:
    Workspace.open_for_writing(location)
    with ThreadPoolExecutor(4) as pool:
        for store in pool.map(lambda _: MemoryStore(location), range(4)):
            store.close()
    fill(location)
    assert values(location) == EVERYTHING


@pytest.mark.parametrize("mode", list(Mode))
def test_a_first_opening_that_is_interrupted_anywhere_is_completed_by_the_next(
    location: str, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Faults()
    with injected(undisturbed):
        fill(location)
    at = next(n for n, name in enumerate(undisturbed.log) if CATALOG_RECORD in name)
    for step in range(max(0, at - 1), at + 2):
        shutil.rmtree(location)
        try:
            with injected(Faults(mode, step)):
                fill(location)
        except (Crash, StorageError):
            fill(location)
        assert values(location) == EVERYTHING


def test_actions_report_a_lost_catalog_by_its_type(location: str) -> None:
    fill(location)
    lose_catalog(location)
    actions: dict[str, Any] = {}
    register_actions(actions, settings={"ltm": {"storage": {"uri": location}}})
    answer = actions["ltm.store"](state={}, key="stray", value=1, entity=OWNER)
    assert (answer["success"], answer["error_type"]) == (False, "catalog_missing")


# -- a lost catalog --------------------------------------------------------------------------


def test_every_interface_reports_a_lost_catalog_and_one_command_restores_it(
    location: str, driftline: Callable[..., Any], embedder: Callable[[], WordTableEmbedder]
) -> None:
    fill(location, embedder=embedder)
    kept = blobs(location)
    lose_catalog(location)
    with pytest.raises(CatalogMissing, match="is empty"):
        MemoryStore(location)
    assert "is lost" in str(cleaned(location).skipped)
    assert blobs(location) == kept
    report = verified(location)
    assert findings(report) == [FindingKind.CATALOG]
    assert "is lost" in report.findings[0].detail
    assert findings(verified(location, repair=True)) == [FindingKind.CATALOG]
    assert not (Path(location) / CATALOG).exists()

    restored = driftline("memory", "restore", "--workspace", location, "--json")
    assert restored.code == 0, restored
    assert (restored.code, restored.json["entries"]) == (0, 4)
    assert values(location) == EVERYTHING
    assert findings(verified(location)) == []
    with MemoryStore(location, embedder=embedder) as store:
        entry = store.retrieve("small", ACME)
        assert entry is not None
        assert entry.metadata == {"kind": "note"}
        store.store("later", "a namespace parser", OWNER)
        store.flush()
        assert "later" in {hit.record.key for hit in store.search_memory("parser", scope=ACME)}
        assert store.retrieve_by_entity("org", "acme", True).total_count == 5
    assert findings(verified(location)) == []
    cleaned(location)
    assert blobs(location) == kept


def test_a_catalog_in_postgresql_is_restored(location: str, postgres_server: Any, postgres_catalog: str) -> None:
    fill(location, catalog_url=postgres_catalog)
    fresh = postgres_server.database()
    restored = restore_catalog(Workspace.open(location), fresh)
    assert restored.entries == 4
    assert values(location, catalog_url=fresh) == EVERYTHING
    with pytest.raises(CatalogMismatch, match="another catalog"):
        MemoryStore(location, catalog_url=postgres_catalog)


def test_an_existing_catalog_is_not_restored(location: str) -> None:
    fill(location)
    with pytest.raises(CatalogMismatch, match="nothing was restored"):
        restore_catalog(Workspace.open(location), None)


def test_an_interrupted_restore_is_continued_and_unused_until_complete(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(location)
    kept = blobs(location)
    lose_catalog(location)
    original, calls = workspace_catalog.insert, iter([False, True])

    def insert(*arguments: Any, **options: Any) -> int:
        if next(calls, False):
            raise StorageError("The disk is full", location)
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(workspace_catalog, "insert", insert)
        with pytest.raises(StorageError):
            restore_catalog(Workspace.open(location), None)
    with pytest.raises(CatalogMismatch, match="being restored"):
        MemoryStore(location)
    cleaned(location)
    assert blobs(location) == kept
    restore_catalog(Workspace.open(location), None)
    assert values(location) == EVERYTHING


def test_a_damaged_record_is_reported_and_rewritten(location: str) -> None:
    fill(location)
    (Path(location) / CATALOG_RECORD).write_text("{")
    assert "is damaged" in str(cleaned(location).skipped)
    assert findings(verified(location)) == [FindingKind.CATALOG]
    assert findings(verified(location, repair=True)) == []
    assert values(location) == EVERYTHING


# -- an old catalog --------------------------------------------------------------------------


@pytest.fixture
def backup(location: str, tmp_path: Path) -> str:
    """A workspace whose catalog was replaced by a backup from before the last entry."""
    fill(location)
    shutil.copy(Path(location) / CATALOG, tmp_path / "backup")
    with MemoryStore(location) as store:
        store.store("later", LARGE, OWNER)
    lose_catalog(location)
    shutil.copy(tmp_path / "backup", Path(location) / CATALOG)
    return location


def test_a_catalog_from_a_backup_deletes_nothing_and_writes_to_no_index(backup: str) -> None:
    kept = blobs(backup)
    assert "older than the index" in str(cleaned(backup).skipped)
    assert blobs(backup) == kept
    assert findings(verified(backup)) == [FindingKind.CATALOG]
    with MemoryStore(backup) as store:
        with pytest.raises(CatalogMismatch, match="older than the index"):
            store.store("stray", LARGE, OWNER)
        writes: list[Callable[[], object]] = [
            lambda: store.delete("small", ACME),
            lambda: store.register_entity(f"{ACME}/project:new"),
            lambda: store.move_entity(OWNER, f"{ACME}/project:beta"),
            lambda: store.delete_entity(OWNER, cascade=True),
            store.collect_expired,
            lambda: store.rebuild(ACME),
        ]
        for write in writes:
            with pytest.raises(CatalogMismatch, match="older than the index"):
                write()
    assert blobs(backup) == kept


def test_a_catalog_from_a_backup_may_be_adopted(backup: str, driftline: Callable[..., Any]) -> None:
    adopted = driftline("memory", "adopt", "--workspace", backup, "--json")
    assert (adopted.code, adopted.json["catalog"]) == (0, CATALOG)
    verified(backup, repair=True)
    assert findings(verified(backup)) == []
    assert values(backup) == EVERYTHING
    with MemoryStore(backup) as store:
        store.store("later", 2, OWNER)
    assert values(backup)["later"] == 2
    assert findings(verified(backup)) == []


def test_entries_stored_after_an_adoption_are_found_by_search(
    location: str, tmp_path: Path, embedder: Callable[[], WordTableEmbedder]
) -> None:
    fill(location, embedder=embedder)
    shutil.copy(Path(location) / CATALOG, tmp_path / "backup")
    with MemoryStore(location, embedder=embedder) as store:
        store.store_many(MemoryItem(f"later {n}", f"something else {n}", ACME) for n in range(5))
    lose_catalog(location)
    shutil.copy(tmp_path / "backup", Path(location) / CATALOG)
    catalog = Catalog(embedded_url(location))
    adopt(Workspace.open(location), catalog)
    catalog.close()
    with MemoryStore(location, embedder=embedder) as store:
        store.store("new", "the dog barks at the moon", ACME)
        assert store.search_memory("the dog barks", 1, scope=ACME)[0].record.key == "new"


def test_the_path_of_a_workspace_may_contain_a_question_mark(tmp_path: Path) -> None:
    location = tmp_path / "w?timeout=3"
    fill(str(location))
    assert (location / CATALOG).exists()
    assert values(str(location)) == EVERYTHING


def test_memory_on_a_read_only_file_system_can_be_read(tmp_path: Path) -> None:
    """``get``, ``search``, ``list`` and ``verify`` need no write access; ``put`` reports that it is missing."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed (Debian: apt-get install util-linux)")
    location = tmp_path / "memory"
    with dl.create_ltm_backend(
        storage_uri=str(location), catalog_url=f"sqlite:///{location}/_catalog.sqlite"
    ) as backend:
        backend.store("plan", {"step": 1}, "org:acme")
    driftline = f"{sys.executable} -m driftline"
    script = f"""
        mount --bind {location} {location} && mount -o remount,ro,bind {location} || exit 77
        for command in 'get plan' 'list' 'search plan'; do
            {driftline} memory $command --workspace {location} --json || exit 1
        done
        {driftline} verify --workspace {location} --json || exit 2
        {driftline} memory put plan 2 --entity org:acme --workspace {location}; test $? = 2 || exit 3
    """
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("LTM_", "DATABASE_"))}
    done = subprocess.run([*unshare, "sh", "-c", script], capture_output=True, text=True, env=variables, check=False)
    if done.returncode == 77:
        pytest.skip("a read-only mount needs root, or user namespaces")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Cannot write to the catalog" in done.stderr


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EROFS, dl.AccessDenied), (errno.EACCES, dl.AccessDenied), (errno.ENOSPC, dl.CatalogError)],
)
def test_a_catalog_that_cannot_be_created_is_an_error_of_the_tree(
    code: int, kind: type[dl.DriftlineError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if os.fsdecode(path).endswith("_catalog.sqlite"):
            raise OSError(code, os.strerror(code))
        return really(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(kind, match=f"Cannot create the catalog \\({os.strerror(code)}"):
        Catalog(f"sqlite:///{tmp_path}/_catalog.sqlite").make_private()


@pytest.mark.parametrize("call", ["retrieve", "retrieve_by_entity", "search", "search_memory", "delete"])
def test_a_catalog_from_a_backup_is_an_error_of_every_read(call: str, tmp_path: Path, tiny_model: Path) -> None:
    """With and without a configured root, an entry that the catalog lost is not reported as missing."""
    location, backup = tmp_path / "memory", tmp_path / "backup.sqlite"
    options: dict[str, Any] = {"storage_uri": str(location), "embedding": {"model": str(tiny_model)}}
    with dl.create_ltm_backend(**options) as backend:
        backend.store("old", 1, "org:acme")
    shutil.copy(location / "_catalog.sqlite", backup)
    with dl.create_ltm_backend(**options) as backend:
        backend.store("new", 2, "org:acme")
        backend.store("other", 3, "org:globex")
    shutil.copy(backup, location / "_catalog.sqlite")
    arguments = ("org", "acme") if call == "retrieve_by_entity" else ("new",)
    for root in (None, {"root_entity": {"type": "org", "id": "acme"}}):
        with dl.create_ltm_backend(**options, hierarchy=root) as backend:
            answer = getattr(backend, call)(*arguments)
            assert (answer["success"], answer.get("error_type")) == (False, "catalog_mismatch"), answer
    with dl.create_ltm_backend(**options) as backend:
        assert backend.retrieve("old")["value"] == 1
        assert backend.retrieve("other")["error_type"] == "catalog_mismatch"
