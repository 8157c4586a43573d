"""Cache blocks of a bucket's immutable files on disk, for all reads of Lance tables (decision 0021).

Lance's object stores cannot be replaced from Python. Its searches therefore read a bucket through a server in their own
process, on loopback, which implements the part of S3 that a reader needs. It merges adjacent ranges requested together,
reads small files whole, and stores what it read in ``BlockCache``. Listings always come from the bucket, and a table
version is cached under the etag in the listing, so a search sees the newest version.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import os
import re
import secrets
import sys
import threading
import time
import zlib
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from cachetools import LRUCache

from driftline.storage.environment import byte_limit, cache_folder_of
from driftline.storage.errors import AccessDenied, DriftlineError, ObjectNotFound
from driftline.storage.layout import ByteRange

log = logging.getLogger(__name__)

BLOCK_CACHE_VARIABLE = "DRIFTLINE_BLOCK_CACHE"
BLOCK_CACHE_LIMIT_VARIABLE = "DRIFTLINE_BLOCK_CACHE_BYTES"
OFF = "off"
DEFAULT_BLOCK_CACHE_BYTES = 2_000_000_000
FREED_SHARE = 0.1
"""The share of the limit that an eviction frees in addition so that not every write evicts."""
MEMORY_BYTES = 48 * 2**20
"""Maximum size of the blocks that a process keeps in memory; Lance itself keeps decoded data."""
COUNTED_SHARE = 0.05
"""A process recounts all blocks after writing this share of the limit."""
PAUSE_SECONDS = 60
"""How long writes pause after a failed write."""
STALE_SECONDS = 3600
"""A temporary file older than this was left by a process that exited."""

LINGER_SECONDS = 0.002
"""How long a read waits for other reads of the same file, to merge them."""
MERGED_GAP_BYTES = 2**20
"""Ranges of a file with smaller gaps are read in one request."""
TAIL_BYTES = 2**16
"""How many bytes at the end of a file to read first, because Lance needs them first."""
WHOLE_FILE_BYTES = 8 * 2**20
"""Index files up to this size are read whole."""
DATA_END_BYTES, DATA_END_SHARE = 2**20, 0.018
"""The end of a data file, read in one request: metadata and the columns that every search needs
(``line_table.schema``).
"""
TEXT_SHARE, AHEAD_BYTES = 0.04, 32 * 2**20
"""Block texts take at most TEXT_SHARE of a data file, before the end that every search needs. They are read whole, up
to AHEAD_BYTES per bucket and process, which saves this and later searches many requests.
"""
PACKS_BYTES = 3 * 2**20
"""How much to read where a search first reads packs: about all packs of a file that has a large batch."""
REQUESTS_AT_ONCE = 128
FILES_REMEMBERED = 10_000
CLIENTS_REMEMBERED = 16
LISTED_SECONDS = 60
"""How long a version's etag from a listing is valid; Lance reads the version right after listing it."""
LISTED_AHEAD_SECONDS = 5
"""How long a listing that was requested ahead is valid."""
ATTEMPTS = 3
"""How often a read tries to get its blocks, which other processes may evict concurrently."""

_IMMUTABLE = re.compile(r"\.lance/(?:tree/.+/)?(data|_indices|_deletions)/")
"""Table files whose names are never reused, unlike the names of version files."""
_VERSION = re.compile(r"\.lance/(?:tree/.+/)?_versions/[^/]+\.manifest$")
_BLOCK_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-([0-9a-f]{8})-[0-9a-f]{8}")
_TEMPORARY = ".tmp-"
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)\r\n", re.IGNORECASE)


def cache_folder() -> Path | None:
    """Return the block cache folder: $DRIFTLINE_BLOCK_CACHE, or ``driftline/blocks`` in the user's cache folder.

    Return None if the variable is "off".
    """
    if os.environ.get(BLOCK_CACHE_VARIABLE) == OFF:
        return None
    return cache_folder_of(BLOCK_CACHE_VARIABLE, "blocks")


def cache_bytes() -> int:
    """Return the size limit for all blocks. Raises UsageError."""
    return byte_limit(BLOCK_CACHE_LIMIT_VARIABLE, DEFAULT_BLOCK_CACHE_BYTES)


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """The bytes from ``start`` to ``end`` (exclusive) of a file of ``size`` bytes, and their checksum."""

    start: int
    end: int
    size: int
    checksum: int

    @classmethod
    def of(cls, start: int, data: bytes, size: int) -> Block:
        """Return the block that contains ``data``."""
        return cls(start, start + len(data), size, zlib.crc32(data))

    @classmethod
    def named(cls, file: str, name: str) -> Block | None:
        """Parse a block's name, or return None if it does not belong to ``file``, for example if it is another file's
        block.
        """
        match = _BLOCK_NAME.fullmatch(name)
        if match is None:
            return None
        block = cls(int(match[1]), int(match[1]) + int(match[2]), int(match[3]), int(match[4], 16))
        return block if block.name_in(file) == name else None

    def name_in(self, file: str) -> str:
        """Return the block's name in the folder for ``file``. The name ends with a checksum of itself and ``file``."""
        content = f"{self.start}-{self.end - self.start}-{self.size}-{self.checksum:08x}"
        return f"{content}-{zlib.crc32(f'{file}/{content}'.encode()):08x}"

    def holds(self, data: bytes) -> bool:
        """Return whether ``data`` is the block's content, complete and unchanged."""
        return len(data) == self.end - self.start and zlib.crc32(data) == self.checksum


class BlockCache:
    """Blocks of files under ``folder``, shared by processes: at most ``max_bytes``; the least recently used are
    evicted.

    A block is written under a temporary name and renamed. Its name contains its length and checksum, and a checksum of
    file and name. A block truncated by a crash or a full disk, or renamed over another, is treated as missing. On a
    read-only disk, the cache is useless but correct. Thread-safe.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._lock = threading.Lock()
        self._counted: int | None = None
        """The size of all blocks when this process last counted."""
        self._uncounted = 0
        self._paused_until = 0.0 if max_bytes > 0 else math.inf

    def blocks(self, file: str) -> list[Block]:
        """Return a file's cached blocks."""
        try:
            names = os.listdir(self.folder / file)
        except OSError:
            return []
        return [block for name in names if (block := Block.named(file, name))]

    def read(self, file: str, block: Block) -> bytes | None:
        """Return a block's bytes, or None if it was evicted or is damaged."""
        path = self.folder / file / block.name_in(file)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        if block.holds(data):
            return data
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def write(self, file: str, block: Block, data: bytes) -> None:
        """Store a block. After a failure, for example on a full disk, store none for PAUSE_SECONDS."""
        if len(data) > self.max_bytes or time.monotonic() < self._paused_until:
            return
        folder = self.folder / file
        temporary = folder / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            temporary.write_bytes(data)
            temporary.replace(folder / block.name_in(file))
        except FileNotFoundError:  # an eviction removed the empty folder; the next read of this block stores it
            return
        except OSError as error:
            log.info("Cannot cache blocks of the bucket in %s for now: %s", self.folder, error)
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        with self._lock:
            self._uncounted += len(data)
            if self._counted is None or self._uncounted > self.max_bytes * COUNTED_SHARE:
                self._counted, self._uncounted = sum(size for *_, size in self._entries()), 0
            if self._counted + self._uncounted > self.max_bytes:
                self._counted, self._uncounted = self._evict(), 0

    def _entries(self) -> Iterator[tuple[float, Path, int]]:
        """Yield the last use, path and size of each block; delete leftovers of dead processes."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(OSError):
                    found = path.stat()
                    if not name.startswith(_TEMPORARY):
                        yield found.st_mtime, path, found.st_size
                    elif time.time() - found.st_mtime > STALE_SECONDS:
                        path.unlink()

    def _evict(self) -> int:
        """Delete the least recently used blocks, and return the remaining size in bytes."""
        entries = sorted(self._entries())
        left = sum(size for *_, size in entries)
        for _, path, size in entries:
            if left <= self.max_bytes * (1 - FREED_SHARE):
                break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                left -= size
        for folder in {path.parent for _, path, _ in entries}:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only if it is empty
        return left


class RemoteFiles(Protocol):
    """The server's access to a bucket. Methods raise errors from ``storage/errors.py``."""

    identity: str
    """Identifies the bucket: its store, account and name."""

    @property
    def credentials(self) -> Hashable:
        """A key that distinguishes clients of the same bucket with different permissions."""
        ...

    def fetch(self, key: str, start: int, end: int | None) -> tuple[bytes, int, str]:
        """Return the object's bytes ``[start, end)``, or from ``start`` if ``end`` is None, with its size and etag."""
        ...

    def page(self, prefix: str, after: str) -> _Page:
        """Return key, size, etag and time of objects under ``prefix`` that sort after ``after``, and whether there may
        be more.
        """
        ...


_Part = tuple[int, int]
_Page = tuple[Sequence[tuple[str, int, str, str]], bool]
"""A part of a listing; see ``RemoteFiles.page``."""
_Memory = LRUCache[tuple[str, Block], bytes]
"""Block bytes, by file name."""


@dataclass(slots=True)
class _CachedFile:
    """An immutable file: its cached blocks, and the reads waiting for more of it."""

    key: str
    name: str
    blocks: list[Block]
    waiting: list[tuple[_Part, asyncio.Future[None]]] = field(default_factory=list)
    coming: list[tuple[_Part, asyncio.Future[None]]] = field(default_factory=list)

    @property
    def size(self) -> int | None:
        return self.blocks[0].size if self.blocks else None

    def missing(self, start: int, end: int) -> list[_Part]:
        """Return the ranges between ``start`` and ``end`` that no block covers."""
        found: list[_Part] = []
        for block in self.blocks:
            if block.start >= end:
                break
            if block.start > start:
                found.append((start, block.start))
            start = max(start, block.end)
        return [*found, (start, end)] if start < end else found


def merged(ranges: Sequence[_Part], gap: int = MERGED_GAP_BYTES) -> list[_Part]:
    """Sort ``ranges``, merging those separated by at most ``gap``.

    Examples:
        >>> merged([(50, 60), (0, 10), (15, 20)], gap=5)
        [(0, 20), (50, 60)]
    """
    found: list[_Part] = []
    for start, end in sorted(ranges):
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def versions_in(found: Iterable[tuple[str, int, str, str]]) -> list[tuple[str, str]]:
    """Return key and etag of each table version in a listing; the smallest key is the newest version."""
    return [(key, etag) for key, _, etag, _ in found if _VERSION.search(key)]


class _Files:
    """The immutable files of a bucket, read through the cache; used only by the server's thread."""

    def __init__(self, bucket: RemoteFiles, disk: BlockCache, pool: ThreadPoolExecutor, memory: _Memory) -> None:
        self.bucket, self._disk, self._pool, self._memory = bucket, disk, pool, memory
        self._files: LRUCache[str, _CachedFile] = LRUCache(FILES_REMEMBERED)
        self._ahead_bytes = AHEAD_BYTES
        self._listed: dict[str, tuple[str, float]] = {}
        """The etags of versions in recent listings, with the loop's time."""
        self._pages: dict[str, tuple[asyncio.Future[_Page], float]] = {}
        self._versions: dict[str, asyncio.Task[tuple[bytes, int, str]]] = {}
        """Listings and versions requested ahead; each serves one read."""
        self.only_etags: dict[str, str] = {}
        """The etag with which each version was listed so far, or "" if it was listed with several."""

    async def read(self, key: str, start: int, end: int | None) -> tuple[bytes, int]:
        """Return the bytes from ``start`` to ``end`` (exclusive), or to the end of the file, and the file's size."""
        file = self._file(key)
        if end is None and (others := file.coming or file.waiting):
            await self._arrival(file, [others[0][0]])
        if end is None and (end := file.size) is None:
            return await self._whole(file, start)
        for _ in range(ATTEMPTS):
            missing = file.missing(start, end)
            if not missing and (found := self._assembled(file, start, end)) is not None:
                return found, file.size or 0
            await self._arrival(file, [self._widened(file, *each) for each in missing])
        return await self._fetched(file, start, end)  # it fits neither in memory nor on disk

    async def read_changing(self, key: str, start: int, end: int | None) -> tuple[bytes, int, str]:
        """Same as ``RemoteFiles.fetch``, for objects that may change.

        A table version that was just listed is cached under its etag.
        """
        loop = asyncio.get_running_loop()
        etag, since = self._listed.pop(key, ("", 0.0))
        ahead = self._versions.pop(key, None)
        if start or end is not None or not etag or loop.time() - since > LISTED_SECONDS:
            return await loop.run_in_executor(self._pool, self.bucket.fetch, key, start, end)
        read = await ahead if ahead else None
        return read if read and read[2] == etag else await self._version(key, etag)

    async def _version(self, key: str, etag: str) -> tuple[bytes, int, str]:
        """Read a version that a listing showed with ``etag``."""
        name = hashlib.sha256(f"{self.bucket.identity}\0{key}\0{etag}".encode()).hexdigest()[:40]
        for block in self._disk.blocks(name):
            kept = self._disk.read(name, block) if block.end - block.start == block.size else None
            if kept is not None:
                return kept, block.size, etag
        loop = asyncio.get_running_loop()
        data, size, found = await loop.run_in_executor(self._pool, self.bucket.fetch, key, 0, None)
        if found == etag:
            self._pool.submit(self._disk.write, name, Block.of(0, data, size), data)
        return data, size, found

    async def page(self, prefix: str, after: str) -> _Page:
        """Same as ``RemoteFiles.page``; remembers the etags of versions."""
        loop = asyncio.get_running_loop()
        ahead, since = self._pages.pop(prefix, (None, 0.0))
        if after or ahead is None or loop.time() - since > LISTED_AHEAD_SECONDS:
            ahead = loop.run_in_executor(self._pool, self.bucket.page, prefix, after)
        found, more = await ahead
        if len(self._listed) > FILES_REMEMBERED:
            self._listed.clear()
        versions = versions_in(found)
        self._listed |= {key: (etag, loop.time()) for key, etag in versions}
        for key, etag in versions:
            if key in self.only_etags or len(self.only_etags) < FILES_REMEMBERED:
                self.only_etags[key] = etag if self.only_etags.get(key, etag) == etag else ""
        return found, more

    async def open_ahead(self, table: str) -> None:
        """List the versions of a table, and read the newest one, for the next reader that opens the table."""
        loop, prefix = asyncio.get_running_loop(), f"{table}/_versions/"
        listing = loop.run_in_executor(self._pool, self.bucket.page, prefix, "")
        self._pages[prefix] = listing, loop.time()
        with contextlib.suppress(DriftlineError):  # the reader reports the error
            if versions := versions_in((await listing)[0]):
                newest, etag = min(versions)
                self._versions[newest] = loop.create_task(self._version(newest, etag))
                await self._versions[newest]

    async def read_ahead(self, key: str, start: int, end: int | None) -> None:
        """Read a range, or a whole small file if ``end`` is None, unless part of it is already cached or requested."""
        file = self._file(key)
        if file.blocks or file.coming:
            return
        with contextlib.suppress(DriftlineError):  # a later read of this range reports the error
            if end is None:
                await self._whole(file, start, WHOLE_FILE_BYTES)
            else:
                await self._arrival(file, [(start, end)])

    async def _whole(self, file: _CachedFile, start: int, end: int | None = None) -> tuple[bytes, int]:
        """Read a file of unknown size; all other reads of it wait."""
        future = asyncio.get_running_loop().create_future()
        coming = ((start, sys.maxsize), future)
        file.coming.append(coming)
        try:
            data, size = await self._fetched(file, start, end)
        finally:
            file.coming.remove(coming)
            future.set_result(None)
        return data, size

    def _file(self, key: str) -> _CachedFile:
        file = self._files.get(key)
        if file is None:
            name = hashlib.sha256(f"{self.bucket.identity}\0{key}".encode()).hexdigest()[:40]
            file = self._files[key] = _CachedFile(key, name, sorted(self._disk.blocks(name)))
        return file

    def _widened(self, file: _CachedFile, start: int, end: int) -> _Part:
        """Widen a file's first requested range (its end) or its second."""
        if any(first <= start and end <= last for (first, last), _ in (*file.coming, *file.waiting)):
            return start, end
        if len(file.blocks) == 1 and end - start < TAIL_BYTES and (size := file.size):
            # Searches read a column at many positions, starting at its beginning: block texts, up to the end that is
            # already there, or packs.
            more = file.blocks[0].start - end
            if more > TEXT_SHARE * size:
                more = PACKS_BYTES
            if 0 < more <= self._ahead_bytes:
                self._ahead_bytes -= more
                return start, end + more
        if file.blocks or end - start != TAIL_BYTES:
            return start, end
        if "/_indices/" in file.key:
            return (0, end) if end <= WHOLE_FILE_BYTES else (start, end)
        return max(0, end - max(DATA_END_BYTES, int(end * DATA_END_SHARE))), end

    def _assembled(self, file: _CachedFile, start: int, end: int) -> bytes | None:
        """Assemble bytes from the blocks; if a block is lost, forget it and return None."""
        parts: list[memoryview] = []
        for block in file.blocks:
            if block.start <= start < block.end:
                data = self._bytes_of(file, block)
                if data is None:
                    file.blocks.remove(block)
                    return None
                parts.append(memoryview(data)[start - block.start : end - block.start])
                start = min(end, block.end)
                if start == end:
                    break
        return b"".join(parts)

    def _bytes_of(self, file: _CachedFile, block: Block) -> bytes | None:
        data = self._memory.get((file.name, block))
        if data is None:
            data = self._disk.read(file.name, block)
            if data is not None:
                self._remember(file, block, data)
        return data

    def _remember(self, file: _CachedFile, block: Block, data: bytes) -> None:
        with contextlib.suppress(ValueError):  # larger than the in-memory cache
            self._memory[file.name, block] = data

    async def _arrival(self, file: _CachedFile, ranges: Sequence[_Part]) -> None:
        """Wait until ``ranges`` are read, merged with ranges that other reads are waiting for."""
        futures: list[asyncio.Future[None]] = []
        for start, end in ranges:
            on_the_way = [each for (first, last), each in file.coming if first <= start and end <= last]
            if on_the_way:
                futures.append(on_the_way[0])
                continue
            future = asyncio.get_running_loop().create_future()
            if not file.waiting:
                asyncio.get_running_loop().call_later(LINGER_SECONDS, self._flush, file)
            file.waiting.append(((start, end), future))
            futures.append(future)
        for failure in await asyncio.gather(*futures, return_exceptions=True):
            if failure is not None:
                raise failure

    def _flush(self, file: _CachedFile) -> None:
        """Read the requested parts, in as few ranges as is efficient."""
        waiting, file.waiting = file.waiting, []
        for start, end in merged([requested for requested, _ in waiting]):
            within = [each for (first, last), each in waiting if start <= first and last <= end]
            file.coming += [((start, end), each) for each in within]
            asyncio.get_running_loop().create_task(self._deliver(file, start, end, within))

    async def _deliver(self, file: _CachedFile, start: int, end: int, futures: Sequence[asyncio.Future[None]]) -> None:
        error: Exception | None = None
        try:
            await self._fetched(file, start, end)
        except Exception as failure:  # all reads waiting for these bytes raise the same error
            error = failure
        file.coming = [each for each in file.coming if each[1] not in futures]
        for future in futures:
            if not future.done():
                future.set_exception(error) if error else future.set_result(None)

    async def _fetched(self, file: _CachedFile, start: int, end: int | None) -> tuple[bytes, int]:
        """Read a range from the bucket, and cache it."""
        loop = asyncio.get_running_loop()
        data, size, _ = await loop.run_in_executor(self._pool, self.bucket.fetch, file.key, start, end)
        block = Block.of(start, data, size)
        if data:
            insort(file.blocks, block)
            self._remember(file, block, data)
            self._pool.submit(self._disk.write, file.name, block, data)
        return data, size


CODE = "DriftlineRead"
"""The code of this server's errors; their message comes from the bucket's client."""
_MAX_HEAD_BYTES = 2**16
_CREDENTIAL = re.compile(rb"\r\nauthorization: *AWS4-HMAC-SHA256 Credential=([0-9a-f]+)/", re.IGNORECASE)
_XML = '<?xml version="1.0" encoding="UTF-8"?>'


@dataclass(frozen=True, slots=True)
class _Answer:
    """An HTTP response. ``length`` is the length of the body or, for a HEAD request, of the object."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None

    @classmethod
    def failed(cls, status: int, reason: str) -> _Answer:
        """Return an error in S3's format."""
        return cls(status, f"<Error><Code>{CODE}</Code><Message>{escape(reason)}</Message></Error>".encode())

    def encoded(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"content-length: {len(self.body) if self.length is None else self.length}", "", ""]
        return "\r\n".join(lines).encode() + self.body


class _Connection(asyncio.Protocol):
    """A connection from Lance's client, which sends its next request after the response to the last one."""

    def __init__(self, server: ReadServer) -> None:
        self._server = server
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, rest = bytes(self._received).partition(b"\r\n\r\n")
        if separator:
            self._received = bytearray(rest)
            self._answering = asyncio.get_running_loop().create_task(self._answer(head + b"\r\n"))
            self._answering.add_done_callback(self._answered)
        elif len(self._received) > _MAX_HEAD_BYTES and self._transport:
            self._transport.close()

    def _answered(self, task: asyncio.Task[None]) -> None:
        if self._transport and not task.cancelled() and task.exception():
            self._transport.close()  # close the connection, because no response will come

    async def _answer(self, head: bytes) -> None:
        method, _, rest = head.partition(b" ")
        answer = await self._server.answer(method.decode("latin-1"), rest.partition(b" ")[0].decode("latin-1"), head)
        if self._transport and not self._transport.is_closing():
            self._transport.write(answer.encoded())


class ReadServer:
    """A server on loopback that reads buckets for this process only: requests contain a secret that only it knows."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._disk = BlockCache(folder, max_bytes)
        self._pool = ThreadPoolExecutor(REQUESTS_AT_ONCE, "driftline-blocks")
        self._memory: _Memory = LRUCache(MEMORY_BYTES, len)
        self._clients: LRUCache[Hashable, str] = LRUCache(CLIENTS_REMEMBERED)
        self._files: dict[str, _Files] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        listening = self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=REQUESTS_AT_ONCE * 4)
        server = self._loop.run_until_complete(listening)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        threading.Thread(target=self._loop.run_forever, name="driftline-blocks", daemon=True).start()

    def options(self, bucket: RemoteFiles) -> dict[str, str]:
        """Return the storage options that make Lance read ``bucket`` as ``s3://`` through this server."""
        with self._lock:
            client = (bucket.identity, bucket.credentials)
            secret = self._clients.get(client)
            if secret is None:
                secret = self._clients[client] = secrets.token_hex(16)
                kept = {*self._clients.values()}
                files = {known: each for known, each in self._files.items() if known in kept}
                self._files = files | {secret: _Files(bucket, self._disk, self._pool, self._memory)}
        return {
            "aws_access_key_id": secret,
            "aws_secret_access_key": secret,
            "aws_endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "aws_virtual_hosted_style_request": "false",
            "allow_http": "true",
            "timeout": "300s",
            "client_max_retries": "0",  # the bucket's client already retried
        }

    def _files_of(self, bucket: RemoteFiles) -> _Files:
        secret = self.options(bucket)["aws_access_key_id"]
        return self._files[secret]

    def read_ahead(self, bucket: RemoteFiles, ranges: Mapping[str, ByteRange]) -> None:
        """Prefetch immutable files; see ``ObjectStore.read_ahead``."""
        files = self._files_of(bucket)
        for key, wanted in ranges.items():
            if _IMMUTABLE.search(key):
                asyncio.run_coroutine_threadsafe(files.read_ahead(key, *wanted), self._loop)

    def only_etag(self, bucket: RemoteFiles, key: str) -> str:
        """Return the etag of a version, or "" if this process has listed it with several, or never."""
        return self._files_of(bucket).only_etags.get(key, "")

    def open_ahead(self, bucket: RemoteFiles, tables: Iterable[str]) -> None:
        """See ``ObjectStore.open_ahead``."""
        files = self._files_of(bucket)
        for table in tables:
            asyncio.run_coroutine_threadsafe(files.open_ahead(table), self._loop)

    async def answer(self, method: str, target: str, head: bytes) -> _Answer:
        """Handle one request; ``head`` ends with a line break."""
        match = _CREDENTIAL.search(head)
        files = self._files.get(match[1].decode()) if match else None
        if files is None:
            return _Answer.failed(HTTPStatus.FORBIDDEN, "The request lacks the secret of this process.")
        if method not in ("GET", "HEAD"):
            return _Answer.failed(HTTPStatus.METHOD_NOT_ALLOWED, "This server only reads.")
        url = urlsplit(target)
        key = unquote(url.path).lstrip("/").partition("/")[2]
        try:
            if not key:
                return await self._listing(files, parse_qs(url.query))
            return await self._object(files, key, _RANGE.search(head), is_head=method == "HEAD")
        except ObjectNotFound as error:
            return _Answer.failed(HTTPStatus.NOT_FOUND, error.what)
        except AccessDenied as error:
            return _Answer.failed(HTTPStatus.FORBIDDEN, error.what)
        except DriftlineError as error:
            return _Answer.failed(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    async def _object(self, files: _Files, key: str, ranged: re.Match[bytes] | None, *, is_head: bool) -> _Answer:
        start, end = (int(ranged[1]), int(ranged[2]) + 1) if ranged else (0, None)
        if _IMMUTABLE.search(key):
            data, size = await files.read(key, start, 1 if is_head else end)
            etag = "immutable"
        else:
            data, size, etag = await files.read_changing(key, start, end)
        headers = (("etag", f'"{etag.strip(chr(34))}"'), ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"))
        if is_head:
            return _Answer(200, b"", headers, size)
        if ranged:
            return _Answer(206, data, (*headers, ("content-range", f"bytes {start}-{start + len(data) - 1}/{size}")))
        return _Answer(200, data, headers)

    async def _listing(self, files: _Files, query: dict[str, list[str]]) -> _Answer:
        prefix = query.get("prefix", [""])[0]
        after = (query.get("continuation-token") or query.get("start-after") or [""])[0]
        found, more = await files.page(prefix, after)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified><ETag>{escape(etag)}</ETag>"
            f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, size, etag, modified in found
        )
        token = f"<NextContinuationToken>{escape(found[-1][0])}</NextContinuationToken>" if more else ""
        told = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        return _Answer(200, f"{_XML}<ListBucketResult>{told}{contents}</ListBucketResult>".encode())


_servers: dict[Path, ReadServer] = {}
"""The server of this process; a test may have several, one for each cache."""
_one_at_a_time = threading.Lock()


def _reset_after_fork() -> None:
    """Forget the servers in a forked process, which does not have their threads."""
    _servers.clear()
    _one_at_a_time.release()


# Fork only while the lock is free: a copy of a held lock would never be released in the child.
os.register_at_fork(
    before=_one_at_a_time.acquire, after_in_parent=_one_at_a_time.release, after_in_child=_reset_after_fork
)


def cached_reads(bucket: RemoteFiles) -> dict[str, str] | None:
    """Return the storage options that make Lance read ``bucket`` through this process's cache.

    Returns None if the cache is off, or if Lance could not reach this process's read server (it cannot start, or a
    proxy is in the way). Raises UsageError.
    """
    folder, limit = cache_folder(), cache_bytes()
    if folder is None or _is_proxied(os.environ):
        return None
    with _one_at_a_time:
        if folder not in _servers:
            try:
                _servers[folder] = ReadServer(folder, limit)
            except OSError as error:
                log.debug("Lance reads %s without a cache: %s", bucket.identity, error)
                return None
        return _servers[folder].options(bucket)


def read_ahead(bucket: RemoteFiles, ranges: Mapping[str, ByteRange]) -> None:
    """Prefetch immutable files of ``bucket``, if its reads are cached."""
    if cached_reads(bucket) and (server := _servers.get(cache_folder() or Path())):
        server.read_ahead(bucket, ranges)


def open_ahead(bucket: RemoteFiles, tables: Iterable[str]) -> None:
    """Request the newest versions of ``tables`` in ``bucket``, if its reads are cached."""
    if cached_reads(bucket) and (server := _servers.get(cache_folder() or Path())):
        server.open_ahead(bucket, tables)


def only_etag(bucket: RemoteFiles, key: str) -> str:
    """Return the etag with which Lance has listed a version of a table, if there was only one, or ""."""
    server = _servers.get(cache_folder() or Path()) if cached_reads(bucket) else None
    return server.only_etag(bucket, key) if server else ""


def _is_proxied(environ: Mapping[str, str]) -> bool:
    """Return whether Lance's client would send requests for this host through a proxy."""
    proxies = (environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"))
    direct = f"{environ.get('no_proxy', '')},{environ.get('NO_PROXY', '')}".replace(" ", "").split(",")
    return any(proxies) and not {"127.0.0.1", "*"} & {*direct}
