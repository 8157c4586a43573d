"""Ids: unique names that sort by time, and the hash that identifies content."""

from __future__ import annotations

import hashlib
import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARACTERS, _RANDOM_BYTES = 10, 10


def _encode(number: int, characters: int) -> str:
    return "".join(_ALPHABET[(number >> (5 * i)) & 31] for i in reversed(range(characters)))


def new_ulid(now_ms: int | None = None) -> str:
    """A ULID: 48 bits of milliseconds and 80 random bits, in 26 characters of Crockford's base 32."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return _encode(now, _TIME_CHARACTERS) + _encode(int.from_bytes(os.urandom(_RANDOM_BYTES)), 16)


def derived_ulid(ulid: str, number: int) -> str:
    """The ULID of part ``number`` of the object ``ulid``: deterministic, so that a retry recognizes its own writes."""
    digest = hashlib.blake2b(f"{ulid}/{number}".encode(), digest_size=_RANDOM_BYTES).digest()
    return ulid[:_TIME_CHARACTERS] + _encode(int.from_bytes(digest), 16)


def content_hash(data: bytes) -> str:
    """blake2b-128 of ``data``, as 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
