"""The block cache: a search reads blocks from disk that other searches have read, but nothing stale or damaged."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import logging
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import driftline as dl
from driftline.storage.errors import StorageError
from driftline.storage.objects import block_cache
from driftline.storage.objects.block_cache import Block, BlockCache, ReadServer, cached_reads
from driftline.storage.objects.bucket import Bucket
from driftline.storage.workspace.workspace import Workspace
from tests.faults.damage import WAYS, fuzzed
from tests.faults.faults import Crash
from tests.servers.delaying import DelayingProxy, Exchange, delaying
from tests.servers.s3_server import S3Server
from tests.support.oracle import WORDS, save_tiny_model
from tests.support.processes import forked_command
from tests.support.searches import search
from tests.support.waiting import PATIENCE_SECONDS, until

QUERY = " ".join(WORDS[3:6])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache."""
    monkeypatch.setenv("DRIFTLINE_BLOCK_CACHE", str(tmp_path / "blocks"))
    return tmp_path / "blocks"


def test_a_full_disk_pauses_the_cache_and_an_eviction_in_between_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cache, write = BlockCache(tmp_path, 10**6), Path.write_bytes

    def fail_with(code: int) -> None:
        def fail(path: Path, data: bytes) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(Path, "write_bytes", fail)

    def is_kept(name: str) -> bool:
        cache.write(name, Block.of(0, b"x", 1), b"x")
        return bool(cache.blocks(name))

    fail_with(errno.ENOENT)
    assert not is_kept("a")
    monkeypatch.setattr(Path, "write_bytes", write)
    assert is_kept("a")
    for seconds, is_kept_again in ((0.0, True), (PATIENCE_SECONDS, False)):
        monkeypatch.setattr(block_cache, "PAUSE_SECONDS", seconds)
        fail_with(errno.ENOSPC)
        assert not is_kept(f"b{seconds}")
        assert "Cannot cache blocks" in caplog.text
        monkeypatch.setattr(Path, "write_bytes", write)
        assert is_kept(f"b{seconds}") is is_kept_again


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    for number in range(12):
        lines = (" ".join(WORDS[(number + line) % 40 : (number + line) % 40 + 4]) for line in range(30))
        (tmp_path / "tree" / f"{number}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "tree"


@pytest.fixture
def proxy(
    s3_environment: S3Server, s3_bucket: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DelayingProxy]:
    """A proxy that records requests to the bucket of an index."""
    dl.index(str(tree), workspace=s3_bucket, model=str(save_tiny_model(tmp_path / "model")))
    with delaying(s3_environment.endpoint, 0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def searched(proxy: DelayingProxy, workspace: str, query: str = QUERY) -> tuple[list[Any], list[Exchange]]:
    """Search in a new process and return its results and requests."""
    proxy.take()
    command = [str(forked_command()), "search", query, "--workspace", workspace, "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not found.stderr
    results = json.loads(found.stdout)["results"]
    assert results
    return results, proxy.take()


def of_files(requested: list[Exchange]) -> list[str]:
    """Return the requests for the table's immutable files."""
    return [each.path for each in requested if block_cache._IMMUTABLE.search(each.path)]


def test_a_new_process_reads_valid_blocks_of_another_from_the_disk(
    proxy: DelayingProxy, s3_bucket: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, cold = searched(proxy, s3_bucket)
    again, warm = searched(proxy, s3_bucket)
    for number, path in enumerate(path for path in [*folder.rglob("*")] if path.is_file()):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] if number % 2 else bytes([data[0] ^ 1]) + data[1:])
        (path.parent / f".tmp-1-{number}").write_bytes(data[:3])
    damaged, repaired = searched(proxy, s3_bucket)
    monkeypatch.setenv("DRIFTLINE_BLOCK_CACHE", "off")
    direct, requested = searched(proxy, s3_bucket)

    assert expected == again == damaged == direct
    assert of_files(cold)
    assert not of_files(warm)
    assert next(each.path for each in warm if "_versions" in each.path).startswith("/driftline-tests?")  # a newer one?
    assert any(each.path.endswith(".manifest") for each in cold)
    assert not any(each.path.endswith(".manifest") for each in warm)  # the listing contains the etag of a known one
    assert sorted(of_files(repaired)) == sorted(of_files(cold))
    assert len(of_files(requested)) > len(of_files(cold))  # ranges are merged, and small files are read entirely
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_newer_version_and_another_table_at_the_same_location_are_seen(
    proxy: DelayingProxy, s3_bucket: str, tree: Path, folder: Path
) -> None:
    searched(proxy, s3_bucket)
    (tree / "new.txt").write_text(f"{QUERY} zebra\n")
    dl.index(str(tree), workspace=s3_bucket)
    assert "new.txt" in {hit["path"].rpartition("/")[2] for hit in searched(proxy, s3_bucket)[0]}


def test_a_read_only_cache_folder_does_not_change_answers(
    proxy: DelayingProxy, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_BLOCK_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert searched(proxy, s3_bucket)[0]
    monkeypatch.setenv("DRIFTLINE_BLOCK_CACHE_BYTES", "much")
    with pytest.raises(dl.UsageError, match="DRIFTLINE_BLOCK_CACHE_BYTES"):
        search(Workspace.open(s3_bucket), QUERY)


def test_without_loopback_a_process_reads_directly() -> None:
    assert block_cache._is_proxied({"HTTP_PROXY": "http://proxy:3128"})
    assert block_cache._is_proxied({"all_proxy": "socks5://proxy:1080", "NO_PROXY": "localhost"})
    assert not block_cache._is_proxied({"http_proxy": "http://proxy:3128", "no_proxy": "localhost, 127.0.0.1"})
    assert not block_cache._is_proxied({"https_proxy": "http://proxy:3128"})


def test_the_server_answers_only_its_own_process_and_is_read_only(
    s3_environment: S3Server, s3_bucket: str, folder: Path
) -> None:
    prefix = s3_bucket.rpartition("/")[2]
    bucket = Bucket("s3", s3_environment.bucket, prefix, {})
    bucket.create("t.lance/data/x.lance", b"0123456789")
    options = cached_reads(bucket)
    assert options is not None
    url = f"{options['aws_endpoint']}/{s3_environment.bucket}/{prefix}/t.lance/data/x.lance"
    secret = options["aws_access_key_id"]

    def requested(method: str, known: str, **headers: str) -> tuple[int, bytes]:
        credential = {"Authorization": f"AWS4-HMAC-SHA256 Credential={known}/20260101/us-east-1/s3/aws4_request"}
        data = b"x" if method == "PUT" else None
        request = urllib.request.Request(url, data, {**credential, **headers}, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    assert requested("GET", "0" * 32)[0] == 403
    assert requested("PUT", secret)[0] == requested("DELETE", secret)[0] == 405
    assert requested("GET", secret, Range="bytes=2-4") == (206, b"234")
    assert requested("GET", secret) == (200, b"0123456789")
    assert cached_reads(Bucket("s3", s3_environment.bucket, "elsewhere", {})) == options
    others = cached_reads(Bucket("s3", s3_environment.bucket, prefix, {"aws_access_key_id": "another"}))
    assert others is not None
    assert others["aws_access_key_id"] != secret


class ChangingTable:
    """A bucket with one version of a table, which another table at the same location may replace."""

    identity, credentials = "changing", ()
    content, reads, listings = b"one", 0, 0

    @property
    def etag(self) -> str:
        return f'"{self.content.decode()}"'

    def fetch(self, key: str, start: int, end: int | None) -> tuple[bytes, int, str]:
        self.reads += 1
        return self.content[start:end], len(self.content), self.etag

    def page(self, prefix: str, after: str) -> tuple[list[tuple[str, int, str, str]], bool]:
        self.listings += 1
        return [("t.lance/_versions/1.manifest", len(self.content), self.etag, "2026-01-01")], False

    def read(self, server: ReadServer, *, lists: bool = True) -> tuple[bytes, int]:
        """Return the version, and the number of reads that this took."""
        options, before = server.options(self), self.reads
        credential = f"AWS4-HMAC-SHA256 Credential={options['aws_access_key_id']}/20260101/us-east-1/s3/aws4_request"
        for path in (*(["?list-type=2&prefix=t.lance/_versions/"] if lists else []), "/t.lance/_versions/1.manifest"):
            url = f"{options['aws_endpoint']}/bucket{path}"
            request = urllib.request.Request(url, headers={"Authorization": credential})
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                data = answer.read()
        return data, self.reads - before


def test_a_version_of_a_table_is_kept_only_under_the_etag_that_was_just_listed(tmp_path: Path) -> None:
    bucket, server = ChangingTable(), ReadServer(tmp_path, 10**6)
    assert bucket.read(server) == (b"one", 1)
    until(lambda: blocks_in(tmp_path), "the version is on the disk")
    assert bucket.read(server) == bucket.read(ReadServer(tmp_path, 10**6)) == (b"one", 0)
    assert bucket.read(server, lists=False) == (b"one", 1)
    bucket.content = b"two"  # another table at the same location
    assert bucket.read(server, lists=False) == (b"two", 1)
    assert bucket.read(server) == (b"two", 1)
    bucket.content = b"one"
    assert bucket.read(server) == (b"one", 0)


def test_a_table_that_is_opened_ahead_serves_the_next_reader_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, server = ChangingTable(), ReadServer(tmp_path, 0)

    def opened_ahead() -> None:
        listings, reads = bucket.listings, bucket.reads
        server.open_ahead(bucket, ["t.lance"])
        until(lambda: (bucket.listings, bucket.reads) == (listings + 1, reads + 1), "the version is read")

    monkeypatch.setattr(block_cache, "LISTED_AHEAD_SECONDS", PATIENCE_SECONDS)
    opened_ahead()
    assert (bucket.read(server), bucket.listings) == ((b"one", 0), 1)
    bucket.content = b"two"
    assert (bucket.read(server), bucket.listings) == ((b"two", 1), 2)
    opened_ahead()
    bucket.content = b"three"
    monkeypatch.setattr(block_cache, "LISTED_AHEAD_SECONDS", -1)
    assert (bucket.read(server), bucket.listings) == ((b"three", 1), 4)


def test_a_failure_to_open_ahead_is_an_error_of_the_next_reader(tmp_path: Path) -> None:
    class Failing(ChangingTable):
        def page(self, prefix: str, after: str) -> tuple[list[tuple[str, int, str, str]], bool]:
            self.listings += 1
            if self.listings == 1:
                raise StorageError("no answer", prefix)
            return super().page(prefix, after)

    bucket, server = Failing(), ReadServer(tmp_path, 10**6)
    server.open_ahead(bucket, ["t.lance"])
    until(lambda: bucket.listings, "the listing has failed")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        bucket.read(server)
    assert bucket.read(server) == (b"one", 1)


def test_an_unexpected_failure_of_a_read_reaches_all_waiters(tmp_path: Path) -> None:
    class Broken:
        identity, credentials = "broken", ()

        def fetch(self, key: str, start: int, end: int | None) -> tuple[bytes, int, str]:
            raise ValueError(key)

        def page(self, prefix: str, after: str) -> tuple[list[tuple[str, int, str, str]], bool]:
            raise ValueError(prefix)

    options = ReadServer(tmp_path, 1_000).options(Broken())
    credential = f"AWS4-HMAC-SHA256 Credential={options['aws_access_key_id']}/20260101/us-east-1/s3/aws4_request"
    headers = {"Authorization": credential, "Range": "bytes=0-3"}
    requested = urllib.request.Request(f"{options['aws_endpoint']}/bucket/t.lance/data/x.lance", headers=headers)
    with pytest.raises(http.client.RemoteDisconnected):
        urllib.request.urlopen(requested, timeout=300)


def test_the_texts_before_the_end_of_a_data_file_are_read_at_once_and_only_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, end, texts = 10**8, 99 * 10**6, 98 * 10**6
    content = b"0123456789" * (size // 10)
    requested: list[tuple[int, int | None]] = []

    class Recording:
        identity, credentials = "recording", ()

        def fetch(self, key: str, start: int, end: int | None) -> tuple[bytes, int, str]:
            requested.append((start, end))
            return content[start:end], size, "etag"

        def page(self, prefix: str, after: str) -> tuple[list[tuple[str, int, str, str]], bool]:
            return [], False

    server, bucket = ReadServer(tmp_path, 10**8), Recording()
    monkeypatch.setattr(block_cache, "AHEAD_BYTES", end - texts + block_cache.PACKS_BYTES)
    options = server.options(bucket)
    credential = f"AWS4-HMAC-SHA256 Credential={options['aws_access_key_id']}/20260101/us-east-1/s3/aws4_request"

    def read(name: str, start: int, end: int) -> None:
        headers = {"Authorization": credential, "Range": f"bytes={start}-{end - 1}"}
        url = f"{options['aws_endpoint']}/bucket/t.lance/data/{name}.lance"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_SECONDS) as answer:
            assert answer.read() == content[start:end]

    server.read_ahead(bucket, {"t.lance/data/first.lance": (end, size), "t.lance/data/second.lance": (end, size)})
    for name in ("first", "second"):
        read(name, size - block_cache.TAIL_BYTES, size)  # already read, or being read
    assert requested == [(end, size), (end, size)]
    requested.clear()
    read("first", 0, 4)  # far from the end: packs
    read("first", 1000, 1004)
    assert requested == [(0, 4 + block_cache.PACKS_BYTES)]
    requested.clear()
    read("first", size // 2, size // 2 + 4)
    assert requested == [(size // 2, size // 2 + 4)]
    requested.clear()
    read("second", texts, texts + 4)
    read("second", texts + 1000, texts + 1004)
    assert requested == [(texts, end)]
    requested.clear()
    server.read_ahead(bucket, {"t.lance/data/third.lance": (end, size)})
    read("third", end, size)
    read("third", texts, texts + 4)  # the bytes that a process may read ahead are used up
    assert requested == [(end, size), (texts, texts + 4)]


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_fork_waits_for_the_lock_and_leaves_it_free() -> None:
    is_held = threading.Event()

    def hold() -> None:
        with block_cache._one_at_a_time:
            is_held.set()
            time.sleep(0.2)  # without waiting, the fork would come before this ends

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if block_cache._one_at_a_time.acquire(timeout=5) else 1)
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
    assert not block_cache._one_at_a_time.locked()


def test_processes_that_write_and_evict_at_once_read_whole_blocks_or_none(tmp_path: Path) -> None:
    caches = [BlockCache(tmp_path, 50_000) for _ in range(4)]
    contents = [bytes([number]) * (1_000 + number) for number in range(100)]

    def use(number: int) -> None:
        cache, data = caches[number % len(caches)], contents[number % len(contents)]
        block = Block.of(number % 7, data, 5_000)
        name = f"file-{number % 5}"
        cache.write(name, block, data)
        assert cache.read(name, block) in (data, None)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(800)))
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if path.name.startswith(".tmp")]
    # A process measures other processes' blocks when it starts, and again from time to time.
    BlockCache(tmp_path, 50_000).write("last", Block.of(0, b"x", 1), b"x")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 50_000


def test_the_least_recently_used_blocks_are_evicted_first_and_leftovers_of_the_dead_with_them(tmp_path: Path) -> None:
    cache, blocks = BlockCache(tmp_path, 3_500), [Block.of(at, bytes(1_000), 9_000) for at in (0, 2_000, 4_000, 6_000)]
    for age, block in enumerate(blocks[:3]):
        cache.write("file", block, bytes(1_000))
        os.utime(tmp_path / "file" / block.name_in("file"), (1_000_000 + age, 1_000_000 + age))
    leftover = tmp_path / "file" / ".tmp-1-0"
    leftover.touch()
    os.utime(leftover, (1, 1))
    assert cache.read("file", blocks[0])
    cache.write("file", blocks[3], bytes(1_000))

    assert sorted(cache.blocks("file")) == [blocks[0], blocks[2], blocks[3]]
    assert not leftover.exists()


# -- damage and death ----------------------------------------------------------------------------


class Objects:
    """A bucket of immutable files that counts reads."""

    identity, credentials = "objects", ()

    def __init__(self) -> None:
        random = Random(1)
        self.files = {
            f"t.lance/{place}/{n}": random.randbytes(40_000) for place in ("data", "_indices/u") for n in "ab"
        }
        self.reads = 0

    def fetch(self, key: str, start: int, end: int | None) -> tuple[bytes, int, str]:
        self.reads += 1
        return self.files[key][start:end], len(self.files[key]), "etag"

    def page(self, prefix: str, after: str) -> tuple[list[tuple[str, int, str, str]], bool]:
        raise NotImplementedError


def read_all(objects: Objects, server: ReadServer) -> None:
    """Read parts of each file through ``server`` and assert that they are correct."""
    options = server.options(objects)
    credential = f"AWS4-HMAC-SHA256 Credential={options['aws_access_key_id']}/20260101/us-east-1/s3/aws4_request"
    for key, data in objects.files.items():
        for start, end in ((0, 100), (20_000, 30_000), (30_000, 30_100), (0, len(data))):
            headers = {"Authorization": credential, "Range": f"bytes={start}-{end - 1}"}
            request = urllib.request.Request(f"{options['aws_endpoint']}/bucket/{key}", headers=headers)
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(data)}"
                assert answer.read() == data[start:end], (key, start, end)


def blocks_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*-*") if path.is_file() and not path.name.startswith(".tmp"))


def exchange(one: Path, other: Path) -> None:
    """Exchange two files or folders."""
    spare = one.with_name("spare")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


def changed(way: Callable[[bytes], bytes | None]) -> Callable[[list[Path], Random], None]:
    def change(blocks: list[Path], random: Random) -> None:
        for block in blocks:
            data = way(block.read_bytes())
            block.unlink() if data is None else block.write_bytes(data)

    return change


def fuzz(blocks: list[Path], random: Random) -> None:
    for block in blocks:
        block.write_bytes(fuzzed(block.read_bytes(), random))


def swap_contents(blocks: list[Path], random: Random) -> None:
    for one, other in pairwise(blocks):
        exchange(one, other)


def swap_files(blocks: list[Path], random: Random) -> None:
    folders = sorted({block.parent for block in blocks})
    for one, other in pairwise(folders):
        exchange(one, other)


def rename(blocks: list[Path], random: Random) -> None:
    """Rename each block to another range or size, with the checksum of its bytes."""
    for block in blocks:
        start, length, size, *rest = block.name.split("-")
        moved = (f"{int(start) + 1}", length, size) if random.random() < 0.5 else (start, length, f"{int(size) + 9}")
        block.rename(block.with_name("-".join((*moved, *rest))))


def plant_folders(blocks: list[Path], random: Random) -> None:
    for block in blocks:
        block.unlink()
        (block / "inner").mkdir(parents=True)


DAMAGES: dict[str, Callable[[list[Path], Random], None]] = {
    **{name: changed(way) for name, way in WAYS.items() if name != "newer format"},
    **{"fuzzed": fuzz, "swapped contents": swap_contents, "swapped files": swap_files, "renamed": rename},
    "folders in their place": plant_folders,
}


@pytest.mark.parametrize("way", DAMAGES)
def test_no_damage_of_blocks_changes_an_answer(tmp_path: Path, way: str) -> None:
    objects = Objects()

    def is_on_disk() -> bool:
        before = objects.reads
        read_all(objects, ReadServer(tmp_path, 10**6))
        return objects.reads == before

    until(is_on_disk, "all blocks are on the disk")
    reads = objects.reads
    for seed in range(3):
        DAMAGES[way](blocks_in(tmp_path), Random(seed))
        read_all(objects, ReadServer(tmp_path, 10**6))
    assert objects.reads > reads


def test_a_process_that_dies_at_any_step_of_a_write_leaves_whole_blocks_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [bytes([number]) * 1_000 for number in range(6)]
    blocks = [Block.of(1_000 * number, each, 6_000) for number, each in enumerate(data)]
    steps: list[str] = []
    dies_at = -1

    def step(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(path: Path, *arguments: Any, **options: Any) -> Any:
            steps.append(name)
            if len(steps) - 1 == dies_at:
                if name == "write_bytes":
                    work(path, arguments[0][:500])
                raise Crash(name)
            return work(path, *arguments, **options)

        return run

    for at in count():
        folder, steps[:], dies_at = tmp_path / str(at), [], at
        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            for name in ("mkdir", "write_bytes", "replace", "unlink", "rmdir"):
                patch.setattr(Path, name, step(name, getattr(Path, name)))
            cache = BlockCache(folder, 3_500)  # the last blocks evict the first ones
            for block, each in zip(blocks, data, strict=True):
                cache.write("file", block, each)
        survivor = BlockCache(folder, 3_500)
        for block in survivor.blocks("file"):
            assert survivor.read("file", block) == data[block.start // 1_000], (at, steps[-1])
        for block, each in zip(blocks, data, strict=True):
            survivor.write("file", block, each)
        assert survivor.read("file", blocks[-1]) == data[-1]
        if len(steps) <= at:
            break
    assert {*steps} == {"mkdir", "write_bytes", "replace", "unlink", "rmdir"}
    assert at > 4 * len(blocks)
