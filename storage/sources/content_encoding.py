"""Decode objects that a store keeps with a ``Content-Encoding``, as a browser would."""

from __future__ import annotations

import codecs
import re
import zlib
from typing import Self

MAX_DECODED_BYTES = 64 * 2**20
_HEAD_BYTES = 8 * 1024
_PART_BYTES = 2**20
_MEDIA = ("audio/", "font/", "image/", "video/")
_FORMATS = re.compile(
    rb"%PDF|PK[\x03\x05]|\xd0\xcf\x11\xe0|\x89PNG|GIF8|\xff\xd8\xff|\x7fELF|MZ|7z\xbc\xaf|Rar!|SQLite|PAR1|\xca\xfe\xba\xbe"
)
"""Data that begin in one of these ways are not encoded."""
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8});chunk-signature=[0-9a-f]{64}\r\n")
_NO_ENCODINGS = ("", "identity", "aws-chunked")


class StoredBytes(bytes):
    """The content of an object whose ``stored`` bytes have another encoding; empty if ``is_unreadable``."""

    stored: bytes
    is_unreadable: bool

    @classmethod
    def of(cls, stored: bytes, content: bytes | None) -> Self:
        found = cls(content or b"")
        found.stored, found.is_unreadable = stored, content is None
        return found


def may_be_encoded(path: str, data: bytes) -> bool:
    """Return whether an object is neither UTF-8 text nor of a known format, so its metadata are worth a request."""
    if _FORMATS.match(data):
        return False
    import mimetypes

    kind, compression = mimetypes.guess_type(path, strict=False)
    if compression is not None or (kind or "").startswith(_MEDIA):
        return False
    head = data[:_HEAD_BYTES]
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return True
    return b"\0" in head


def decoded(data: bytes, encodings: str) -> bytes | None:
    """Return the content of ``data``, which has the ``encodings`` of a header, the last one outermost.

    Returns None if an encoding is unknown, the data do not have it, or the content is larger than MAX_DECODED_BYTES.
    """
    for encoding in reversed([each.strip().lower() for each in encodings.split(",")]):
        if encoding in _NO_ENCODINGS:
            continue
        try:
            if encoding in ("gzip", "x-gzip"):
                content = _inflated(data, 16 + zlib.MAX_WBITS)
            elif encoding == "deflate":  # some servers leave out the header of zlib
                content = _inflated(data, zlib.MAX_WBITS if _has_zlib_header(data) else -zlib.MAX_WBITS)
            elif encoding in ("br", "zstd"):
                content = _streamed(data, "brotli" if encoding == "br" else "zstd")
            else:
                return None
        except (OSError, zlib.error):
            return None
        if content is None:
            return None
        data = content
    return data


def without_chunks(data: bytes) -> bytes:
    """Return the content of an upload in signed chunks (``aws-chunked``) that a store kept unchanged."""
    parts, position = list[bytes](), 0
    while match := _CHUNK.match(data, position):
        size = int(match[1], 16)
        if not size:
            return b"".join(parts)
        parts.append(data[match.end() : match.end() + size])
        position = match.end() + size + len(b"\r\n")
    return data


def _has_zlib_header(data: bytes) -> bool:
    return len(data) >= 2 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0


def _inflated(data: bytes, window_bits: int) -> bytes | None:
    parts, size = list[bytes](), 0
    while data:
        unpacker = zlib.decompressobj(window_bits)
        parts.append(unpacker.decompress(data, MAX_DECODED_BYTES + 1 - size))
        size += len(parts[-1])
        if not unpacker.eof or size > MAX_DECODED_BYTES:
            return None
        data = unpacker.unused_data
    return b"".join(parts)


def _streamed(data: bytes, codec: str) -> bytes | None:
    import pyarrow as pa  # local sources do not need it

    parts, size = list[bytes](), 0
    with pa.input_stream(pa.py_buffer(data), compression=codec) as stream:
        while part := stream.read(_PART_BYTES):
            parts.append(part)
            size += len(part)
            if size > MAX_DECODED_BYTES:
                return None
    return b"".join(parts)
