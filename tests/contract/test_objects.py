"""The contract of object stores: a local disk, memory, a real S3 server, Google Cloud Storage, Azure."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from driftline.storage.errors import (
    AccessDenied,
    AlreadyExists,
    DriftlineError,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    UnknownScheme,
    UnsafeStore,
    UsageError,
)
from driftline.storage.objects.local_disk import TEMPORARY_PREFIX
from driftline.storage.objects.store import ObjectStore
from tests.support.processes import ForkedReader
from tests.support.waiting import PATIENCE_SECONDS

ODD_NAMES = ["a%2Fb", "with space", "~20", "org:acme", "é/日本", "a+b&c=d", "a?b#c", 'it\'s "it"', "[x]{y}^`<>*|"]


@pytest.fixture
def store(every_store_uri: str) -> ObjectStore:
    return ObjectStore.open(every_store_uri)


def names(store: ObjectStore, prefix: str = "", *, recursive: bool = True) -> list[str]:
    return sorted(info.path for info in store.list(prefix, recursive=recursive))


def race(writers: list[Callable[[], str]]) -> list[str | DriftlineError]:
    """Return the result of each writer; all start at the same moment."""
    barrier = threading.Barrier(len(writers))

    def run(writer: Callable[[], str]) -> str | DriftlineError:
        barrier.wait()
        try:
            return writer()
        except DriftlineError as error:
            return error

    with ThreadPoolExecutor(len(writers)) as pool:
        return list(pool.map(run, writers))


def test_a_created_object_can_be_read_and_looked_up(store: ObjectStore) -> None:
    version = store.create("org:acme/_index.parquet", b"some bytes")
    assert store.get("org:acme/_index.parquet") == b"some bytes"
    assert store.get_versioned("org:acme/_index.parquet") == (b"some bytes", version)
    info = store.head("org:acme/_index.parquet")
    assert info is not None
    assert (info.path, info.size_bytes, info.version) == ("org:acme/_index.parquet", 10, version)
    assert abs(info.modified - datetime.now(UTC)) < timedelta(minutes=1)


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.create("empty", b"")
    assert store.get("empty") == b""
    assert names(store) == ["empty"]


def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    store.create("a/b", b"1")
    for path in ("nope", "a", "a/b/c", "x/y/z"):
        assert store.head(path) is None
        with pytest.raises(ObjectNotFound, match=path):
            store.get(path)


def test_a_name_that_is_too_long_for_the_disk_is_missing(store: ObjectStore) -> None:
    path = "sub/" + "n" * 300
    assert store.head(path) is None
    with pytest.raises(ObjectNotFound):
        store.get(path)
    assert list(store.list(path + "/")) == []
    store.delete([path])


def test_create_refuses_an_existing_object_and_does_not_change_it(store: ObjectStore) -> None:
    store.create("a", b"first")
    with pytest.raises(AlreadyExists, match="/a"):
        store.create("a", b"other")
    assert store.get("a") == b"first"


def test_creating_the_same_bytes_again_succeeds(store: ObjectStore) -> None:
    assert store.create("a", b"first") == store.create("a", b"first")


def test_replace_gives_a_new_version_and_refuses_the_old_one(store: ObjectStore) -> None:
    first = store.create("a", b"1")
    second = store.replace("a", b"2", first)
    assert second != first
    assert store.get_versioned("a") == (b"2", second)
    with pytest.raises(PreconditionFailed, match="/a"):
        store.replace("a", b"3", first)
    assert store.get("a") == b"2"


def test_replace_refuses_a_missing_object(store: ObjectStore) -> None:
    version = store.create("a", b"1")
    store.delete(["a"])
    with pytest.raises(PreconditionFailed):
        store.replace("a", b"2", version)
    assert store.head("a") is None


def test_exactly_one_of_eight_racing_creators_wins(store: ObjectStore) -> None:
    for attempt in range(10 if store.is_local else 2):  # the S3 server makes some contenders wait for seconds
        path = f"race/{attempt}"
        results = race([lambda i=i, path=path: store.create(path, f"{i}".encode()) for i in range(8)])  # type: ignore[misc]
        winners = [i for i, result in enumerate(results) if isinstance(result, str)]
        assert len(winners) == 1
        assert all(isinstance(result, AlreadyExists) for i, result in enumerate(results) if i not in winners)
        assert store.get(path) == f"{winners[0]}".encode()


def test_exactly_one_of_eight_racing_replacements_wins(store: ObjectStore) -> None:
    version = store.create("race", b"start")
    for attempt in range(10 if store.is_local else 2):  # the S3 server makes some contenders wait for seconds
        results = race(
            [lambda i=i, v=version, a=attempt: store.replace("race", f"{a}-{i}".encode(), v) for i in range(8)]  # type: ignore[misc]
        )
        winners = [i for i, result in enumerate(results) if isinstance(result, str)]
        assert len(winners) == 1
        assert all(isinstance(result, PreconditionFailed) for i, result in enumerate(results) if i not in winners)
        data, version = store.get_versioned("race")
        assert data == f"{attempt}-{winners[0]}".encode()


INCREMENT = """
import pickle, sys
from driftline.storage.errors import PreconditionFailed
store = pickle.load(sys.stdin.buffer)
done = 0
while done < 20:
    data, version = store.get_versioned("counter")
    try:
        store.replace("counter", b"%d %s" % (int(data.split()[0]) + 1, sys.argv[1].encode()), version)
        done += 1
    except PreconditionFailed:
        pass
"""


def test_increments_by_concurrent_processes_all_count(store: ObjectStore) -> None:
    store.create("counter", b"0")
    processes = [ForkedReader(f"import sys; sys.argv.append('process-{i}')\n{INCREMENT}") for i in range(2)]
    for process in processes:
        process.stdin.write(pickle.dumps(store))
        process.stdin.close()
    assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0, 0]
    assert store.get("counter").split()[0] == b"40"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_unusual_names_are_kept_verbatim(store: ObjectStore, name: str) -> None:
    store.create(f"odd/{name}/x", b"1")
    assert store.get(f"odd/{name}/x") == b"1"
    assert names(store, f"odd/{name}") == [f"odd/{name}/x"]
    assert store.list_dirs("odd") == [name.partition("/")[0]]
    store.delete([f"odd/{name}/x"])
    assert names(store) == []


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b", "a\nb", "a\udc80"]
)
def test_paths_that_leave_the_workspace_or_differ_between_stores_are_refused(tmp_path: Path, path: str) -> None:
    store = ObjectStore.open(str(tmp_path))
    for operation in (
        store.get,
        store.head,
        store.lance_uri,
        lambda p: store.create(p, b""),
        lambda p: store.delete([p]),
    ):
        with pytest.raises(UsageError):
            operation(path)
    assert list(tmp_path.iterdir()) == []


def test_listing_knows_directories(store: ObjectStore) -> None:
    for path in ("top", "a/1", "a/b/2", "a/b/c/3", "ab/4"):
        store.create(path, path.encode())
    assert names(store) == ["a/1", "a/b/2", "a/b/c/3", "ab/4", "top"]
    assert names(store, "a") == names(store, "a/") == ["a/1", "a/b/2", "a/b/c/3"]
    assert names(store, "a", recursive=False) == ["a/1"]
    assert names(store, recursive=False) == ["top"]
    assert store.list_dirs() == ["a", "ab"]
    assert store.list_dirs("a") == ["b"]
    assert names(store, "nothing") == names(store, "top") == store.list_dirs("nothing") == []
    for info in store.list():
        found = store.head(info.path)
        assert found is not None
        assert replace(info, version=found.version) == found


def test_listing_more_than_one_page_is_complete(store_uri: str) -> None:
    store = ObjectStore.open(store_uri)
    paths = [f"many/{i:04}" for i in range(1100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: store.create(path, b"x"), paths))
    assert names(store, "many") == paths
    store.delete(paths)
    assert names(store) == []


def test_delete_accepts_missing_objects_and_nothing_at_all(store: ObjectStore) -> None:
    store.delete([])
    store.delete(["never/was"])
    store.create("a/b", b"1")
    store.delete(["a/x", "a/b", "a/b", "a"])
    assert names(store) == store.list_dirs() == []


def test_a_listing_does_not_show_temporary_files(store: ObjectStore) -> None:
    store.create(f"a/{TEMPORARY_PREFIX}left-by-a-crash", b"1")
    store.create("a/b", b"1")
    assert names(store) == ["a/b"]


class Forgetful:
    """A backend that writes but loses the acknowledgement: the caller receives ``error`` instead."""

    def __init__(self, backend: Any, error: DriftlineError, *, write: bool = True) -> None:
        self._backend, self._error, self._write = backend, error, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def create(self, path: str, data: bytes, same_as: str | None = None) -> str:
        if self._write:
            self._backend.create(path, data, same_as)
        raise self._error

    def replace(self, path: str, data: bytes, version: str) -> str:
        if self._write:
            self._backend.replace(path, data, version)
        raise self._error


def test_an_object_with_the_content_of_another_outlives_it(store: ObjectStore) -> None:
    store.create("a/staged", b"1")
    version = store.create("a/published", b"1", "a/staged")
    assert store.create("a/published", b"1", "a/staged") == version, "again, after a lost acknowledgement"
    store.delete(["a/staged"])
    assert store.get_versioned("a/published") == (b"1", version)
    assert store.create("b/late", b"1", "a/staged") == store.get_versioned("b/late")[1], "the other one is gone"
    with pytest.raises(AlreadyExists):
        store.create("a/published", b"2", "b/late")


@pytest.mark.parametrize("error", [AlreadyExists("412"), StorageError("reset")])
def test_a_creation_whose_acknowledgement_is_lost_succeeds(store: ObjectStore, error: DriftlineError) -> None:
    forgetful = ObjectStore(store.uri, Forgetful(store._backend, error), {})
    assert forgetful.create("a", b"mine") == store.get_versioned("a")[1]


@pytest.mark.parametrize("error", [PreconditionFailed("412"), StorageError("reset")])
def test_a_replacement_whose_acknowledgement_is_lost_succeeds(store: ObjectStore, error: DriftlineError) -> None:
    first = store.create("a", b"1")
    forgetful = ObjectStore(store.uri, Forgetful(store._backend, error), {})
    assert forgetful.replace("a", b"2", first) == store.get_versioned("a")[1]


def test_a_failed_write_raises_the_error_of_the_store(store: ObjectStore) -> None:
    failing = ObjectStore(store.uri, Forgetful(store._backend, StorageError("reset"), write=False), {})
    with pytest.raises(StorageError, match="reset"):
        failing.create("a", b"1")
    version = store.create("a", b"1")
    with pytest.raises(StorageError, match="reset"):
        failing.replace("a", b"2", version)


def test_the_probe_accepts_a_safe_store_and_cleans_up(store: ObjectStore) -> None:
    store.probe_conditional_writes()
    assert [info.path for info in store._backend.walk("", recursive=True)] == []


def test_a_pickled_store_is_the_same_store_and_shows_no_credentials(store_uri: str, s3_server: Any) -> None:
    options = {"aws_access_key_id": s3_server.access_key, "aws_secret_access_key": s3_server.secret_key}
    store = ObjectStore.open(store_uri, options)
    store.create("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.uri == store.uri
    assert copy.get("a") == b"1"
    assert s3_server.secret_key not in repr(copy) + str(copy) + copy.uri


# --- local disk -------------------------------------------------------------------------------------------------------


def test_a_local_path_may_be_given_in_several_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    root = str(tmp_path / "a b%2F")
    for uri in ("a b%2F", "~/a b%2F/", root, Path(root).as_uri()):
        store = ObjectStore.open(uri)
        assert (store.uri, store.is_local, store.lance_options) == (root, True, None)
        assert store.lance_uri("org:acme/t.lance") == f"{root}/org:acme/t.lance"


def test_a_memory_uri_is_private_and_removed_at_exit() -> None:
    code = (
        "from driftline.storage.objects.store import ObjectStore\n"
        "store = ObjectStore.open('memory://')\n"
        "store.create('a', b'1')\n"
        "assert ObjectStore.open('memory://').head('a') is None\n"
        "print(store.uri)"
    )
    root = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert os.path.isabs(root)
    assert not os.path.exists(root)


def test_versions_never_repeat_even_if_the_clock_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standing_still = 1_700_000_000_000_000_000
    monkeypatch.setattr(os, "fsync", lambda file: os.utime(file, ns=(standing_still, standing_still)))
    store = ObjectStore.open(str(tmp_path))
    version = store.create("a", b"0")
    mtimes = [(tmp_path / "a").stat().st_mtime_ns]
    for i in range(50):
        version = store.replace("a", f"{i % 10}".encode(), version)
        mtimes.append((tmp_path / "a").stat().st_mtime_ns)
    assert mtimes == sorted(set(mtimes))


def test_delete_removes_emptied_directories(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path))
    store.create("a/b/c/1", b"1")
    store.create("a/2", b"2")
    store.delete(["a/b/c/1"])
    assert sorted(os.listdir(tmp_path / "a")) == ["2"]


def test_a_directory_removed_by_a_concurrent_delete_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore.open(str(tmp_path))
    really_open = os.open
    removals = iter([tmp_path / "a" / "b", tmp_path / "a" / "b"])

    def open_after_a_delete(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_EXCL and (directory := next(removals, None)):
            directory.rmdir()
        return really_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", open_after_a_delete)
    store.create("a/b/c", b"1")
    assert next(removals, None) is None
    assert store.get("a/b/c") == b"1"


def test_threads_that_create_and_delete_in_one_directory_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path))

    def churn(worker: int) -> None:
        for i in range(50):
            path = f"a/b/{worker}-{i}"
            store.create(path, b"x")
            store.delete([path])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    assert names(store) == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_links)
    store = ObjectStore.open(str(tmp_path))
    with pytest.raises(UnsafeStore, match="no hard links"):
        store.create("a", b"1")
    assert names(store) == []


def test_an_object_of_another_user_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux refuses links to files that a user may not write (``fs.protected_hardlinks``)."""
    link = os.link

    def protected(source: str, target: str) -> None:
        if source.endswith("staged"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        link(source, target)

    store = ObjectStore.open(str(tmp_path))
    store.create("a/staged", b"1")
    monkeypatch.setattr(os, "link", protected)
    version = store.create("a/published", b"1", "a/staged")
    assert store.get_versioned("a/published") == (b"1", version)


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = ObjectStore.open(str(tmp_path))
    version = store.create("a", b"1")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        store.create("b", b"2")
    with pytest.raises(StorageError, match="No space left"):
        store.replace("a", b"2", version)
    assert sorted(os.listdir(tmp_path)) == [".lock", "a"]
    assert store.get("a") == b"1"


def test_a_lock_held_by_a_killed_process_is_free(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path))
    version = store.create("a", b"1")
    code = (
        "import sys, time\n"
        "from driftline.storage.objects.store import ObjectStore\n"
        "with ObjectStore.open(sys.argv[1])._backend._locked():\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        holder.kill()
    store.replace("a", b"2", version)


def test_threads_of_a_process_wait_for_each_other_without_polling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, writers = ObjectStore.open(str(tmp_path)), 8
    versions = {name: store.create(name, b"") for name in map(str, range(writers))}

    def slept(_: float) -> None:
        raise AssertionError("a thread polls the lock")

    monkeypatch.setattr("driftline.storage.objects.local_disk.time.sleep", slept)

    def write(name: str) -> bytes:
        for round_number in range(20):
            versions[name] = store.replace(name, str(round_number).encode(), versions[name])
        return store.get(name)

    with ThreadPoolExecutor(writers) as pool:
        assert set(pool.map(write, versions)) == {b"19"}


def test_a_directory_without_permission_is_access_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)  # root ignores permissions
    with pytest.raises(AccessDenied, match=r"Permission denied.*a/b"):
        ObjectStore.open(str(tmp_path)).create("a/b", b"1")


@pytest.mark.parametrize("uri", ["http://host/x", "ftp://user:secret@host/x", "s3a://b/x"])
def test_an_unknown_scheme_is_reported(uri: str) -> None:
    with pytest.raises(UnknownScheme, match=uri.partition(":")[0]) as caught:
        ObjectStore.open(uri)
    assert "secret" not in str(caught.value)


# --- buckets ----------------------------------------------------------------------------------------------------------


def test_bucket_uris_are_normalized_and_cross_to_lance_encoded(s3_environment: Any) -> None:
    store = ObjectStore.open("s3://bucket//a%2Fb/c d/")
    assert (store.uri, store.is_local) == ("s3://bucket/a%2Fb/c d", False)
    assert store.lance_uri("org:acme/t~20.lance") == "s3://bucket/a%252Fb/c%20d/org%3Aacme/t~20.lance"
    assert ObjectStore.open("s3://bucket").lance_uri("t.lance") == "s3://bucket/t.lance"


def test_azure_and_google_uris_open(monkeypatch: pytest.MonkeyPatch) -> None:
    account = ObjectStore.open("abfss://box@acme.dfs.core.windows.net/p", {"azure_storage_account_key": "c2VjcmV0"})
    assert account.uri == "az://box/p"
    assert account.lance_options is not None
    assert account.lance_options["azure_storage_account_name"] == "acme"
    assert ObjectStore.open("gs://box/p", {"google_skip_signature": "true"}).uri == "gs://box/p"


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://", {}),
        ("s3://key:hunter22@bucket/x", {}),
        ("s3://bucket/a/../b", {}),
        ("s3://bucket", {"aws_nonsense": "hunter22"}),
        ("s3://bucket", {"connect_timeout": "soon"}),
    ],
)
def test_invalid_uris_and_options_are_usage_errors(uri: str, options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        ObjectStore.open(uri, options)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("kind", ["s3_bucket", "google_bucket", "azure_container"])
def test_lance_and_the_store_see_the_same_bucket_with_only_the_environment(
    kind: str, request: pytest.FixtureRequest
) -> None:
    store = ObjectStore.open(f"{request.getfixturevalue(kind)}/a%2Fb é")
    table = lance.write_dataset(
        pa.table({"x": [1]}), store.lance_uri("org:acme/t.lance"), storage_options=store.lance_options
    )
    assert table.count_rows() == 1
    assert store.list_dirs("org:acme") == ["t.lance"]
    assert any(path.startswith("org:acme/t.lance/data/") for path in names(store))


def test_options_given_win_over_the_environment(
    s3_bucket: str, s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    options = {"AWS_SECRET_ACCESS_KEY": s3_server.secret_key, "endpoint": s3_server.endpoint}
    store = ObjectStore.open(s3_bucket, options)
    store.create("a", b"1")
    lance.write_dataset(pa.table({"x": [1]}), store.lance_uri("t.lance"), storage_options=store.lance_options)


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_access_denied_and_not_shown(
    s3_bucket: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "wrong-and-private")
    store = ObjectStore.open(s3_bucket)
    operations: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: store.create("a", b"1"),
        lambda: store.replace("a", b"1", '"x"'),
        lambda: list(store.list()),
        store.list_dirs,
        lambda: store.delete(["a"]),
        store.probe_conditional_writes,
    ]
    for operation in operations:
        with pytest.raises(AccessDenied, match="AWS_SECRET_ACCESS_KEY") as caught:
            operation()
        assert "wrong-and-private" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_missing_bucket_is_reported(s3_environment: Any) -> None:
    store = ObjectStore.open("s3://no-such-bucket/x")
    for operation in (lambda: store.get("a"), lambda: store.create("a", b"1"), lambda: list(store.list())):
        with pytest.raises(AccessDenied, match="does not exist: s3://no-such-bucket"):
            operation()


def test_a_wrong_endpoint_is_a_connection_error(s3_environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StorageError, match="no connection"):
        ObjectStore.open("s3://bucket/x").get("a")


@pytest.mark.parametrize("proxy", [{"lose_answers": 1}], indirect=True)
def test_a_write_whose_connection_breaks_afterwards_succeeds(s3_bucket: str, proxy: Any) -> None:
    store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
    version = store.create("a", b"1")
    assert proxy.answers_to_lose == 0
    proxy.answers_to_lose = 1
    store.replace("a", b"2", version)
    assert proxy.answers_to_lose == 0
    assert store.get("a") == b"2"


@pytest.mark.parametrize("proxy", [{"strip": "If-None-Match"}, {"strip": "If-Match"}], indirect=True)
def test_a_store_that_ignores_conditions_is_refused(s3_bucket: str, proxy: Any) -> None:
    store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
    with pytest.raises(UnsafeStore, match="If-None-Match"):
        store.probe_conditional_writes()
    assert [info.path for info in store._backend.walk("", recursive=True)] == []
