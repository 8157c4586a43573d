"""Memory under faults: a failing store, a failing catalog, lost connections, and crashes between any two steps."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.storage.embedding import Embedder
from driftline.storage.errors import (
    AccessDenied,
    CatalogConnectionError,
    CatalogError,
    CommitConflict,
    DriftlineError,
    ObjectNotFound,
    StorageError,
)
from driftline.storage.lance.lance_table import COMMIT_ATTEMPTS
from driftline.storage.memory.catalog import database as catalog_module
from driftline.storage.memory.catalog import entry_writes
from driftline.storage.memory.catalog.database import BULK_ROWS, Catalog
from driftline.storage.memory.catalog.outbox import claim
from driftline.storage.memory.catalog.tables import entries, outbox, retired_blobs
from driftline.storage.memory.memory_indexes import MemoryIndex
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.memory.vectors import VectorTable
from driftline.storage.objects.local_disk import LocalDisk
from driftline.tasks.embedding.embedder import WordTableEmbedder
from tests.faults.faults import Crash, Faults, Mode, injected
from tests.servers.postgres_server import PostgresServer
from tests.support.waiting import until

ACME, S1, S2 = "org:acme", "org:acme/project:p/user:u", "org:acme/project:p/user:v"
LARGE = "a value that is not inlined " * 100


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "RETRY_DELAYS_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def embedder(tiny_model: Path) -> Callable[[], Embedder]:
    loaded = WordTableEmbedder.open(str(tiny_model))
    return lambda: loaded


@pytest.fixture
def store(tmp_path: Path, sqlite_catalog: str) -> Iterator[MemoryStore]:
    with MemoryStore(str(tmp_path / "workspace"), catalog_url=sqlite_catalog) as opened:
        yield opened


@pytest.fixture
def shared_store(tmp_path: Path, postgres_catalog: str) -> Iterator[MemoryStore]:
    with MemoryStore(str(tmp_path / "shared"), catalog_url=postgres_catalog) as opened:
        yield opened


def blobs(store: MemoryStore) -> list[str]:
    return [info.path for info in store.workspace.objects.list(ACME) if info.path.endswith(".json")]


def value(store: MemoryStore, key: str) -> Any:
    entry = store.retrieve(key, ACME)
    return None if entry is None else entry.value


def _blob_of(store: MemoryStore, key: str) -> str | None:
    query = sa.select(entries.c.blob_path).where(entries.c.key == key)
    path: str | None = store.catalog.read(lambda connection: connection.execute(query).scalar_one())
    return path


def retired(store: MemoryStore) -> list[str]:
    return list(store.catalog.read(lambda c: c.execute(sa.select(retired_blobs.c.path)).scalars().all()))


def test_a_blob_that_cannot_be_written_leaves_nothing_in_the_catalog(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise StorageError("The disk is full", "blob")

    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "create", fail)
        with pytest.raises(StorageError, match="disk is full"):
            store.store("key", LARGE, S1)
    assert store.retrieve("key", ACME) is None
    assert store.list_entities(ACME) == []


def test_a_catalog_failure_after_the_blob_write_names_the_blob(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("INSERT", None, Exception("disk I/O error"))

    store.store("key", LARGE, S1)
    with monkeypatch.context() as patch:
        patch.setattr(entry_writes, "_enqueue", fail)
        with pytest.raises(CatalogError) as failure:
            store.store("key", LARGE + "new", S2)
    assert failure.value.blob_path in blobs(store)
    assert pickle.loads(pickle.dumps(failure.value)).blob_path == failure.value.blob_path
    assert value(store, "key") == LARGE
    assert store.get_entity(S2) is None
    assert retired(store) == []


@pytest.mark.parametrize("number", [1, BULK_ROWS], ids=["one entry", "a bulk, which is copied"])
def test_a_dropped_connection_is_reopened_and_the_transaction_repeated(
    shared_store: MemoryStore, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    enqueue, drops = entry_writes._enqueue, iter([True, True, False])

    def drop_then_enqueue(*arguments: Any) -> None:
        if next(drops):
            assert postgres_server.drop_connections()
        enqueue(*arguments)

    monkeypatch.setattr(entry_writes, "_enqueue", drop_then_enqueue)
    shared_store.store_many(MemoryItem(f"key {n}", LARGE if n == 0 else n, S1) for n in range(number))
    entry = shared_store.retrieve("key 0", ACME)
    assert entry is not None
    assert (entry.value, entry.rev) == (LARGE, 1)
    assert shared_store.retrieve_by_entity("org", "acme", within=ACME).total_count == number


def test_a_refused_bulk_insert_raises_and_writes_nothing(
    store: MemoryStore, shared_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_writes, "check_metadata", lambda metadata: None)  # a column that cannot be null
    for each in (store, shared_store):
        with pytest.raises(CatalogError, match=r"NOT NULL|NotNull"):
            each.store_many(MemoryItem(f"key {n}", n, S1) for n in range(BULK_ROWS))
        assert each.get_entity(ACME) is None


def test_an_unreachable_catalog_is_a_connection_error_without_the_password(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    catalog = Catalog("postgresql://someone:secret@127.0.0.1:1/nowhere")
    monkeypatch.setattr("driftline.storage.memory.catalog.database.time.sleep", attempts.append)
    with pytest.raises(CatalogConnectionError) as failure:
        catalog.read(lambda connection: None)
    assert len(attempts) == 3
    assert isinstance(failure.value, ConnectionError)
    assert "secret" not in str(failure.value)
    copy = pickle.loads(pickle.dumps(failure.value))
    assert (str(copy), copy.fix, copy.kind) == (str(failure.value), failure.value.fix, "connection_error")


@pytest.mark.filterwarnings("ignore:transaction already deassociated")  # the simulated fault
def test_a_commit_with_a_lost_acknowledgement_is_repeated_safely(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store("key", LARGE, S1)
    commit, losses = sa.engine.RootTransaction.commit, iter([True])

    def commit_and_lose(transaction: sa.engine.RootTransaction) -> None:
        commit(transaction)
        if next(losses, False):
            raise OperationalError("COMMIT", None, Exception("gone"), connection_invalidated=True)

    monkeypatch.setattr(sa.engine.RootTransaction, "commit", commit_and_lose)
    store.store("key", LARGE + "new", S2)
    assert value(store, "key") == LARGE + "new"
    assert store.retrieve_by_entity("org", "acme", within=ACME).total_count == 1
    entry = store.retrieve("key", ACME)
    assert entry is not None
    assert [path for path in blobs(store) if entry.content_hash in path] not in ([], retired(store))
    assert len(retired(store)) == 1


def test_a_reader_whose_blob_was_replaced_reads_the_catalog_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store("key", LARGE, S1)
    (old,) = blobs(store)
    get = LocalDisk.get

    def replace_first(disk: LocalDisk, path: str) -> tuple[bytes, str]:
        if path == old:
            monkeypatch.setattr(LocalDisk, "get", get)
            store.store("key", LARGE + "new", S1)
            store.workspace.objects.delete([old])
        return get(disk, path)

    monkeypatch.setattr(LocalDisk, "get", replace_first)
    assert value(store, "key") == LARGE + "new"


def test_a_missing_or_damaged_blob_is_an_error(store: MemoryStore) -> None:
    store.store("key", LARGE, S1)
    (path,) = blobs(store)
    store.workspace.objects.delete([path])
    with pytest.raises(StorageError, match="missing"):
        store.retrieve("key", ACME)
    store.workspace.objects.create(path, b'"another value"')
    with pytest.raises(Exception, match="damaged"):
        store.retrieve("key", ACME)
    with pytest.raises(ObjectNotFound):
        store.workspace.objects.get(path + "x")


def test_a_flush_retries_what_another_process_holds(store: MemoryStore) -> None:
    store.store("key", 1, S1)
    tenant, now = store.hierarchy.entity(ACME), datetime.now(UTC)
    until = now + timedelta(minutes=1)
    assert store.catalog.write(lambda connection: claim(connection, tenant, "another", now, until))
    store.store("another key", 1, S1)
    store._flusher.flush(shared=True)
    assert store._flusher.has_waiting
    assert store.flush() >= 1
    assert store.flush() == 0


def test_closing_completes_a_failed_flush(tmp_path: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise StorageError("The disk is full", "delta")

    with MemoryStore(str(tmp_path / "workspace"), catalog_url=sqlite_catalog) as store:
        create = LocalDisk.create
        monkeypatch.setattr(LocalDisk, "create", fail)
        store.store("key", 1, S1)
        with pytest.raises(StorageError):
            store.flush()
        monkeypatch.setattr(LocalDisk, "create", create)
    assert MemoryIndex(store.workspace.objects, ACME).read(columns=["key"])["key"].to_pylist() == ["key"]


def test_the_thread_that_flushes_outlives_failed_reads_of_its_table(
    tmp_path: Path, sqlite_catalog: str, embedder: Callable[[], Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.storage.memory.flush.FLUSH_SECONDS", 0.01)
    failures: list[Exception] = [
        RuntimeError("CUDA out of memory"),
        OSError("LanceError(IO): Generic S3 error: error sending request"),
        OSError("LanceError(IO): Invalid range 0..9"),
    ]
    read = lance.LanceDataset.to_table

    def broken(dataset: lance.LanceDataset, *args: Any, **options: Any) -> pa.Table:
        if failures and threading.current_thread().name == "driftline-memory-flush":
            raise failures.pop()
        return read(dataset, *args, **options)

    with MemoryStore(str(tmp_path / "workspace"), catalog_url=sqlite_catalog, embedder=embedder) as store:
        store.store("key 0", "the first text", S1)
        store.flush()
        monkeypatch.setattr(lance.LanceDataset, "to_table", broken)
        store.store("key 1", "another text", S1)
        until(lambda: not failures and not store._flusher.has_waiting)
    assert not failures


def _changes(store: MemoryStore) -> None:
    store.store_many([MemoryItem(f"key {n}", f"text of entry {n}", S1, {"n": n}) for n in range(4)])
    store.store("key 0", "another text", S2)
    store.delete("key 1", ACME)
    store.move_entity(S1, "org:acme/project:q")


def _state(store: MemoryStore, embedder: Callable[[], Embedder]) -> dict[str, Any]:
    objects = store.workspace.objects
    locations = ["org:acme", "org:acme/project:p", "org:acme/project:q", S1, S1.replace(":p/", ":q/")]
    state: dict[str, Any] = {
        location: sorted(MemoryIndex(objects, location).read(columns=["key", "entity"]).to_pylist(), key=str)
        for location in locations
    }
    table = VectorTable(objects, store.hierarchy.entity(ACME), embedder().fingerprint)
    rows = table.open().to_table(columns=["key", "rev", "entity"], filter="key <> ''").to_pylist()
    state["vectors"] = sorted(rows, key=str)
    state["outbox"] = store.catalog.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(outbox)).scalar())
    return state


@pytest.mark.parametrize("mode", list(Mode))
def test_an_interrupted_store_is_complete_or_has_no_effect(mode: Mode, store: MemoryStore) -> None:
    new = LARGE + "new"
    store._flusher.notify = lambda rows: None  # type: ignore[method-assign]  # nothing else is at work

    def store_under(faults: Faults) -> None:
        store.store("key", LARGE, S1)
        with injected(faults), pytest.MonkeyPatch.context() as patch:
            _through(patch, faults, Catalog, "write")
            with contextlib.suppress(Crash, StorageError):
                store.store("key", new, S2)
        entry = store.retrieve("key", ACME)
        assert entry is not None
        assert (entry.value, str(entry.entity)) in ((LARGE, S1), (new, S2))
        assert store.retrieve_by_entity("org", "acme", within=ACME).total_count == 1
        store.store("key", new, S2)
        assert value(store, "key") == new

    calm = Faults()
    store_under(calm)
    assert len(calm.log) > 1
    for step in range(len(calm.log)):
        store_under(Faults(mode, step))
    uri = store.workspace.objects.uri
    clean_workspace(CleanupRequest(uri, 0.0, dry_run=False, catalog_url=store.catalog.where))
    assert [path for path in blobs(store) if "/_runs/" not in path] == [_blob_of(store, "key")]
    assert value(store, "key") == new


@pytest.mark.parametrize("mode", list(Mode))
def test_a_flush_that_ends_at_any_step_is_finished_by_the_next(
    mode: Mode, tmp_path: Path, sqlite_catalog: str, embedder: Callable[[], Embedder]
) -> None:
    def flush_under(faults: Faults, at: Path) -> dict[str, Any]:
        url = f"sqlite:///{at / 'catalog.sqlite'}"
        (at / "catalog.sqlite").write_bytes(Path(sqlite_catalog.removeprefix("sqlite:///")).read_bytes())
        store = MemoryStore(str(at / "workspace"), catalog_url=url, embedder=embedder)
        store._flusher.notify = lambda rows: None  # type: ignore[method-assign]  # flush here and nowhere else
        try:
            _changes(store)
            with injected(faults), pytest.MonkeyPatch.context() as patch:
                _through(patch, faults, Catalog, "write")
                _through(patch, faults, VectorTable, "_transact")
                with contextlib.suppress(Crash, StorageError):
                    store.flush()
            store.flush()
            return _state(store, embedder)
        finally:
            store.close()

    (tmp_path / "calm").mkdir()
    calm = Faults()
    want = flush_under(calm, tmp_path / "calm")
    assert want["outbox"] == 0
    assert [row["key"] for row in want["vectors"]] == ["key 0", "key 2", "key 3"]
    steps = len(calm.log)
    assert steps > 8
    for step in range(steps):
        (tmp_path / str(step)).mkdir()
        assert flush_under(Faults(mode, step), tmp_path / str(step)) == want, calm.log[step]


def _through(patch: pytest.MonkeyPatch, faults: Faults, owner: Any, method: str) -> None:
    original = getattr(owner, method)
    error = StorageError if owner is Catalog else OSError

    def wrapped(*arguments: Any) -> Any:
        return faults.perform(method, lambda: original(*arguments), error)

    patch.setattr(owner, method, wrapped)


@pytest.mark.parametrize(
    ("failure", "kind", "message", "attempts"),
    [
        ("LanceError(IO): No space left on device (os error 28)", StorageError, "Free some space", 1),
        ("status code: 403 Forbidden: <Code>AccessDenied</Code>", AccessDenied, "denied", 1),
        ("Retryable commit conflict for version 3", CommitConflict, "conflicted", COMMIT_ATTEMPTS),
    ],
    ids=["full disk", "denied", "conflict"],
)
def test_only_conflicting_commits_of_vectors_are_repeated(
    tmp_path: Path,
    sqlite_catalog: str,
    embedder: Callable[[], Embedder],
    monkeypatch: pytest.MonkeyPatch,
    failure: str,
    kind: type[DriftlineError],
    message: str,
    attempts: int,
) -> None:
    with MemoryStore(str(tmp_path / "workspace"), catalog_url=sqlite_catalog, embedder=embedder) as store:
        store.store("a", "hello", ACME)
        store.flush()
        store.store("b", "other", ACME)
        tried = []

        def fail(*_: object) -> None:
            tried.append(1)
            raise OSError(failure)

        with monkeypatch.context() as patch:
            patch.setattr(VectorTable, "_transact", fail)
            with pytest.raises(kind, match=message) as raised:
                store.flush()
        assert (type(raised.value), len(tried)) == (kind, attempts)
        store.flush()
        assert store.search_memory("other", scope=ACME, top_k=1)[0].record.key == "b"
