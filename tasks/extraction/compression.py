"""Decompress files: whole, within limits, or as a stream.

The first bytes of a file determine its format. Decompressed data is limited in size and number of members.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Protocol, cast

import pyarrow as pa

from driftline.storage.documents import SkipReason
from driftline.tasks.extraction.process import Refused

MAX_UNPACKED_BYTES = 64 * 2**20
MAX_MEMBERS = 100_000
"""Compressed files with more members are rejected, even if they are small."""
_SLICE_BYTES = 16 * 1024
"""Bytes to unpack at a time. After the end of a member, the rest of the slice is copied."""
_STREAMED_BYTES = 2**20
_SNIFFED_STREAM_BYTES = 2**20
"""Larger than a bzip2 block, which has up to 900 kB."""
_TAR_HEAD_BYTES = 512
_CHECKSUM = re.compile(rb"[ 0]*([0-7]+)[ \0]*")
_ZSTD, _LZ4 = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
_SKIPPED_FRAME = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18(.{4})", re.DOTALL)
_LZMA_MEMORY_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression format. Files start with ``magic``; ``stream`` unpacks a file incrementally."""

    name: str
    version: int
    suffixes: tuple[str, ...]
    magic: bytes
    unpack: Callable[[bytes], bytes]
    stream: Callable[[bytes], IO[bytes]]

    @property
    def mark(self) -> str:
        return f"{self.name}/{self.version}"


class _Decompressor(Protocol):
    """The common interface of the standard library's decompressors."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _unpack(data: bytes, new: Callable[[], _Decompressor], error: type[Exception]) -> bytes:
    """Decompress a file with one or more members. Raises Refused."""
    parts: list[bytes] = []
    size = members = whole = 0
    member: _Decompressor | None = None
    try:
        for start in range(0, len(data), _SLICE_BYTES):
            rest = data[start : start + _SLICE_BYTES]
            while member is not None or (rest := rest.lstrip(b"\0")):
                if member is None:
                    member, members = new(), members + 1
                parts.append(member.decompress(rest, MAX_UNPACKED_BYTES + 1 - size))
                size += len(parts[-1])
                if size > MAX_UNPACKED_BYTES or members > MAX_MEMBERS:
                    raise Refused(SkipReason.BOMB)
                if not member.eof:
                    break
                rest, member, whole = member.unused_data, None, size
    except error:
        if members == 1 or size > whole:
            raise Refused(SkipReason.DAMAGED) from None
        return b"".join(parts)  # gzip ignores data after the last member
    if member is not None:
        raise Refused(SkipReason.DAMAGED)  # truncated
    return b"".join(parts)


def _gzip(data: bytes) -> bytes:
    return _unpack(data, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), zlib.error)


def _bzip2(data: bytes) -> bytes:
    return _unpack(data, bz2.BZ2Decompressor, OSError)


def _xz(data: bytes) -> bytes:
    return _unpack(data, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _LZMA_MEMORY_BYTES), lzma.LZMAError)


def _streamed(codec: str, magic: bytes, data: bytes) -> bytes:
    """Decompress one or more frames with Arrow's codecs. Raises Refused."""
    if data.count(magic) > MAX_MEMBERS:
        raise Refused(SkipReason.BOMB)
    parts: list[bytes] = []
    size = 0
    try:
        with pa.input_stream(pa.py_buffer(data), compression=codec) as stream:
            while part := stream.read(_STREAMED_BYTES):
                parts.append(part)
                size += len(part)
                if size > MAX_UNPACKED_BYTES:
                    raise Refused(SkipReason.BOMB)
    except OSError:
        raise Refused(SkipReason.DAMAGED) from None
    return b"".join(parts)


def _streams(codec: str) -> Callable[[bytes], IO[bytes]]:
    return lambda data: cast(IO[bytes], pa.input_stream(pa.py_buffer(data), compression=codec))


def _file_of(kind: Callable[..., Any]) -> Callable[[bytes], IO[bytes]]:
    """Return a function that opens a compressed file with a standard library class; their arguments differ."""
    name = "fileobj" if kind is gzip.GzipFile else "filename"
    return lambda data: cast(IO[bytes], kind(**{name: io.BytesIO(data)}))


COMPRESSIONS: tuple[Compression, ...] = (
    Compression("gzip", 2, ("gz",), b"\x1f\x8b\x08", _gzip, _file_of(gzip.GzipFile)),
    Compression("bzip2", 2, ("bz2",), b"BZh", _bzip2, _file_of(bz2.BZ2File)),
    Compression("xz", 2, ("xz",), b"\xfd7zXZ\0", _xz, _file_of(lzma.LZMAFile)),
    Compression("zstd", 2, ("zst", "zstd"), _ZSTD, partial(_streamed, "zstd", _ZSTD), _streams("zstd")),
    Compression("lz4", 2, ("lz4",), _LZ4, partial(_streamed, "lz4", _LZ4), _streams("lz4")),
)
COMPRESSED_SUFFIXES = tuple(f".{suffix}" for each in COMPRESSIONS for suffix in each.suffixes)


def compression_of(data: bytes) -> Compression | None:
    """Return the compression format of a file's content, or None if it is not compressed."""
    start = 0
    while frame := _SKIPPED_FRAME.match(data, start):  # before the first frame of zstd (pzstd) and lz4
        start = frame.end() + int.from_bytes(frame[1], "little")
    return next((each for each in COMPRESSIONS if data.startswith(each.magic, start)), None)


def stream_of(data: bytes) -> IO[bytes]:
    """Open a file's content, decompressing it as it is read."""
    compression = compression_of(data)
    return compression.stream(data) if compression is not None else io.BytesIO(data)


def is_tar(data: bytes) -> bool:
    """Return whether a file is a tar archive, compressed or not."""
    compression = compression_of(data)
    head = data[:_TAR_HEAD_BYTES] if compression is None else _head_of(compression, data[:_SNIFFED_STREAM_BYTES])
    return head[257:262] == b"ustar" or _is_checked(head)


def _is_checked(head: bytes) -> bool:
    """Return whether a tar header of any age has the correct checksum, which counts itself as blanks."""
    stated = _CHECKSUM.fullmatch(head[148:156]) if len(head) == _TAR_HEAD_BYTES else None
    return stated is not None and int(stated[1], 8) == sum(head) - sum(stated[0]) + 8 * ord(" ")


def _head_of(compression: Compression, start: bytes) -> bytes:
    """Return the first bytes of a compressed file's content."""
    try:
        match compression.name:
            case "gzip":
                return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(start, _TAR_HEAD_BYTES)
            case "bzip2":
                return bz2.BZ2Decompressor().decompress(start, _TAR_HEAD_BYTES)
            case "xz":
                unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY_BYTES)
                return unpacker.decompress(start, _TAR_HEAD_BYTES)
            case _:
                return bytes(compression.stream(start).read(_TAR_HEAD_BYTES))
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return b""
