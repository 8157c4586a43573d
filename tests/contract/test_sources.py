"""The contract of sources of every kind."""

from __future__ import annotations

import os
import pickle
import re
import socket
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from driftline import index
from driftline.storage.documents import DocumentState
from driftline.storage.environment import install_command
from driftline.storage.errors import (
    AccessDenied,
    MissingExtra,
    ObjectNotFound,
    SourceNotFound,
    StorageError,
    UnknownScheme,
)
from driftline.storage.sources.source import Source, open_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.scanning.diff import MANIFEST_SCHEMA
from driftline.tasks.scanning.path_patterns import Rules
from driftline.tasks.scanning.scan import ScanSpec, plan_partitions, scan, scan_paths
from driftline.tasks.search.documents import document_page

Put = Callable[[str, bytes], None]
ODD_NAMES = ["with space", "per%20cent", "a%2Fb", "quote'\"", "new\nline", "🙂", "é", "*?[a]", "#x", "a+b&c=d", "~"]


@pytest.fixture(params=["local", "memory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Put]]:
    """A URI and an independent client that writes files there."""
    if request.param == "local":
        root = tmp_path / "tree"
        root.mkdir()

        def put(path: str, data: bytes) -> None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)

        yield str(root), put
    elif request.param == "memory":
        name = uuid.uuid4().hex
        fs = fsspec.filesystem("memory")
        yield f"memory://{name}", lambda path, data: fs.pipe_file(f"/{name}/{path}", data)
        if fs.exists(f"/{name}"):
            fs.rm(f"/{name}", recursive=True)
    else:
        server = request.getfixturevalue("s3_environment")
        uri = request.getfixturevalue("s3_bucket")
        prefix = uri.removeprefix(f"s3://{server.bucket}/")
        client: Any = server.client()

        def put(path: str, data: bytes) -> None:
            client.put_object(Bucket=server.bucket, Key=f"{prefix}/{path}", Body=data)

        yield uri, put


def listed(source: Source, prefix: str = "", *, recursive: bool = True) -> list[str]:
    return sorted(info.path for info in source.list(prefix, recursive=recursive))


def test_a_tree_is_listed_whole_by_prefix_and_by_level(location: tuple[str, Put]) -> None:
    uri, put = location
    for path in ("a", "b/c", "b/d/e", "bc/f"):
        put(path, path.encode())
    source = open_source(uri)
    assert listed(source) == ["a", "b/c", "b/d/e", "bc/f"]
    assert listed(source, "b/") == ["b/c", "b/d/e"]
    assert listed(source, "b/", recursive=False) == ["b/c"]
    assert listed(source, "none/") == []
    assert list(source.list_top()[0]) == ["b/", "bc/"]
    assert list(source.list_top("b/")[0]) == ["b/d/"]
    assert list(source.list_top("none/")[0]) == []


def test_a_listing_is_never_stale(location: tuple[str, Put]) -> None:
    uri, put = location
    put("a", b"1")
    source = open_source(uri)
    assert listed(source) == ["a"]
    before = source.stat("a")
    put("folder/b", b"1")
    put("a", b"22")
    assert listed(source) == ["a", "folder/b"]
    assert list(source.list_top()[0]) == ["folder/"]
    after = source.stat("a")
    assert before is not None
    assert after is not None
    assert after.size_bytes == 2
    assert (after.etag, after.mtime_ns) != (before.etag, before.mtime_ns)


def test_listed_files_can_be_read_and_stated(location: tuple[str, Put]) -> None:
    uri, put = location
    names = [*ODD_NAMES, *(f"folder {name}/{name}" for name in ODD_NAMES)]
    for name in names:
        put(name, name.encode())
    source = open_source(uri)
    assert listed(source) == sorted(names)
    for info in source.list():
        assert source.read(info.path) == info.path.encode()
        assert source.stat(info.path) == info
        assert info.mtime_ns > 10**18
    assert source.read_many(names) == [name.encode() for name in names]


def test_missing_files_have_their_own_error(location: tuple[str, Put]) -> None:
    uri, put = location
    put("a", b"1")
    put("folder/b", b"")
    source = open_source(uri)
    assert source.stat("none") is None
    assert source.stat("folder") is None
    with pytest.raises(ObjectNotFound):
        source.read("none")
    first, second, third = source.read_many(["a", "none", "folder/b"])
    assert (first, third) == (b"1", b"")
    assert isinstance(second, ObjectNotFound)
    assert source.read_many([]) == []


def test_a_source_crosses_processes(location: tuple[str, Put]) -> None:
    uri, put = location
    put("a", b"1")
    source = open_source(uri)
    assert listed(pickle.loads(pickle.dumps(source))) == ["a"]
    assert open_source(uri + "/") == source


def test_a_scan_finds_changes_in_partitions(location: tuple[str, Put]) -> None:
    uri, put = location
    for path in ("a.py", "b/c.py", "b/d/e.py", "f/g.py", "f/x.log", "key.pem"):
        put(path, b"x = 1\n")
    source = open_source(uri)
    rules = Rules(exclude=("*.log",))
    parts = plan_partitions(source, 3, rules)
    put("later/h.py", b"x = 2\n")
    results = [
        scan(ScanSpec(source, "fp", part, rules), lambda _: MANIFEST_SCHEMA.empty_table(), now_ns=0) for part in parts
    ]
    found = sorted(path for result in results for path in result.diff.new["path"].to_pylist())
    assert found == ["a.py", "b/c.py", "b/d/e.py", "f/g.py", "later/h.py"]
    skips = {row["path"]: row["reason"] for result in results for row in result.skipped.to_pylist()}
    assert skips == {"f/x.log": "excluded", "key.pem": "secret"}
    some = scan_paths(ScanSpec(source, "fp"), ["b/c.py", "no.py"], lambda _: MANIFEST_SCHEMA.empty_table(), now_ns=0)
    assert some.diff.new["path"].to_pylist() == ["b/c.py"]


def test_a_source_that_was_emptied_can_still_be_opened(location: tuple[str, Put]) -> None:
    uri, _ = location
    assert listed(open_source(uri, allow_empty=True)) == []


def test_an_empty_prefix_and_a_single_key_are_rejected_as_sources(
    location: tuple[str, Put], tiny_model: Path, tmp_path: Path
) -> None:
    uri, put = location
    put("docs/a.txt", b"the heron lands\n")
    put("docs2/b.txt", b"the otter dives\n")
    workspace = str(tmp_path / "ws")
    first = index(f"{uri}/docs", workspace=workspace, model=str(tiny_model), indexes="none")
    assert first.sources[0].states[DocumentState.NEW] == 1
    for wrong, why in {
        "dosc": "no files|No such folder",
        "doc": "no files|No such folder",
        "docs/a.txt": "not a file",
    }.items():
        with pytest.raises(SourceNotFound, match=why):
            index(f"{uri}/{wrong}", workspace=workspace, model=str(tiny_model), indexes="none")
    assert [document.path for document in document_page(Workspace.open(workspace), limit=9).documents] == ["a.txt"]


def test_an_empty_known_prefix_is_an_error_and_deletes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    fs = fsspec.filesystem("memory")
    fs.pipe_file(f"/{name}/a.txt", b"the heron lands\n")
    workspace = str(tmp_path / "ws")
    index(f"memory://{name}", workspace=workspace, model=str(tiny_model), indexes="none")
    fs.rm(f"/{name}", recursive=True)
    with pytest.raises(SourceNotFound, match="driftline remove"):
        index(f"memory://{name}", workspace=workspace, model=str(tiny_model), indexes="none")
    assert [document.path for document in document_page(Workspace.open(workspace), limit=9).documents] == ["a.txt"]


def test_a_listing_that_fails_part_way_yields_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    name = uuid.uuid4().hex
    fs = fsspec.filesystem("memory")
    fs.pipe({f"/{name}/a": b"1", f"/{name}/b/c": b"1"})
    source = open_source(f"memory://{name}")
    list_folder = type(fs).ls

    def fail(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("/b"):
            raise OSError("connection reset")
        return list_folder(self, path, *arguments, **options)

    monkeypatch.setattr(type(fs), "ls", fail)
    with pytest.raises(StorageError, match="Listing failed"):
        next(source.list())


def test_an_archive_is_a_source(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("folder/a b.txt", "1")
        archive.writestr("c.txt", "22")
    source = open_source(f"zip://::{tmp_path}/x.zip")
    assert listed(source) == ["c.txt", "folder/a b.txt"]
    assert source.read_many(["folder/a b.txt", "c.txt"]) == [b"1", b"22"]


def test_s3_etags_identify_content(s3_bucket: str, s3_environment: Any) -> None:
    client = s3_environment.client()
    prefix = s3_bucket.removeprefix(f"s3://{s3_environment.bucket}/")
    client.put_object(Bucket=s3_environment.bucket, Key=f"{prefix}/a", Body=b"1")
    source = open_source(s3_bucket)
    first = source.stat("a")
    client.put_object(Bucket=s3_environment.bucket, Key=f"{prefix}/a", Body=b"2")
    second = source.stat("a")
    client.put_object(Bucket=s3_environment.bucket, Key=f"{prefix}/a", Body=b"1")
    third = source.stat("a")
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.etag == third.etag != second.etag
    assert '"' not in first.etag
    assert next(iter(source.list())).etag == first.etag


def test_wrong_keys_and_missing_buckets_are_one_line_errors(
    s3_bucket: str, s3_environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceNotFound, match="no files"):
        open_source(s3_bucket)
    for allow_empty in (False, True):
        with pytest.raises(SourceNotFound, match="No such bucket"):
            open_source("s3://no-such-bucket-here/x", allow_empty=allow_empty)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessDenied) as caught:
        open_source(s3_bucket)
    assert "\n" not in str(caught.value)
    assert "wrong" not in str(caught.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(AccessDenied):
        open_source(s3_bucket)


def test_an_unreachable_server_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "k", "secret": "hidden", "retries": 0}
    with pytest.raises(SourceNotFound) as caught:
        open_source("s3://bucket/x", options)
    assert "\n" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_keys_that_are_not_paths_are_reported(s3_bucket: str, s3_environment: Any) -> None:
    client = s3_environment.client()
    prefix = s3_bucket.removeprefix(f"s3://{s3_environment.bucket}/")
    for key in ("a.py", "folder/", "folder/b.py"):
        client.put_object(Bucket=s3_environment.bucket, Key=f"{prefix}/{key}", Body=b"" if key.endswith("/") else b"1")
    result = scan(ScanSpec(open_source(s3_bucket), "fp"), lambda _: MANIFEST_SCHEMA.empty_table(), now_ns=0)
    assert result.diff.new["path"].to_pylist() == ["a.py", "folder/b.py"]
    assert len(result.skipped) == 0


@pytest.mark.parametrize("key", ["a//b.py", "/a.py", "a/../b.py", "./a.py", "a?versionId=1"])
def test_a_key_that_cannot_round_trip_is_skipped_with_its_reason(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from driftline.storage.sources.source import FileInfo

    source = Source("memory://x", {}, is_local=False)
    infos = [FileInfo(key, 1, 1, "e"), FileInfo("good.py", 1, 1, "e")]
    monkeypatch.setattr(Source, "list", lambda self, prefix="", *, recursive=True: iter(infos))
    result = scan(ScanSpec(source, "fp"), lambda _: MANIFEST_SCHEMA.empty_table(), now_ns=0)
    assert result.diff.new["path"].to_pylist() == ["good.py"]
    assert result.skipped.to_pylist() == [{"path": key, "reason": "key is not a plain path"}]


@pytest.mark.parametrize(
    ("uri", "error", "text"),
    [
        ("nonsense://bucket/x", UnknownScheme, "nonsense"),
        ("s3://", SourceNotFound, "has no bucket"),
        ("/no/such/folder", SourceNotFound, "No such folder"),
        ("file:///no/such/folder", SourceNotFound, "No such folder"),
        ("git.example.com/acme/web", SourceNotFound, "write https://git.example.com/acme/web"),
        ("nul\0byte", SourceNotFound, "Cannot read the folder"),
        (__file__, SourceNotFound, "not a file"),
    ],
)
def test_invalid_sources_are_one_line_errors(uri: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        open_source(uri)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("uri", "extra"), [("gs://b/x", "gcs"), ("az://b/x", "azure"), ("abfs://b@a/x", "azure")])
def test_a_missing_extra_is_reported(uri: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"Please install the library for {name}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(MissingExtra, match=re.escape(install_command(extra))):
        open_source(uri)


def test_credentials_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "first_look", lambda self, prefix="": (["a/"], False, True))
    source = open_source("ftp://user:hidden@host:21/folder/", {"timeout": 1})
    assert source.uri == "ftp://host:21/folder"
    assert "hidden" not in repr(source) + str(source)
    assert source.storage_options["password"] == "hidden"
    assert open_source("s3a://bucket/x/", {"secret": "hidden"}).uri == "s3://bucket/x"


def test_a_local_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = os.path.realpath(tmp_path / "tree")
    for given in ("tree", "./tree/", "~/tree", tmp_path / "tree", f"file://{tmp_path}/tree"):
        assert open_source(given).uri == expected


def test_a_local_file_that_became_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    source = open_source(tmp_path)
    for path in ("link", "pipe"):
        with pytest.raises(ObjectNotFound):
            source.read(path)
        assert source.stat(path) is None
