"""Validate memory keys, metadata and values, encode values as JSON, and store large values in blobs."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import orjson
from cachetools import TTLCache

from driftline.storage.documents import content_hash
from driftline.storage.errors import BadEntry, CorruptFile
from driftline.storage.layout import new_ulid
from driftline.storage.memory.catalog.tables import MAX_KEY_BYTES, MAX_KEY_CHARACTERS
from driftline.storage.objects.store import ObjectStore

MAX_METADATA_BYTES = 64 * 1024
CACHED_BYTES = 64 * 1024 * 1024
DEFAULT_CACHE_SECONDS = 600.0

_FORBIDDEN = re.compile("[\x00-\x1f\ud800-\udfff]")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def check_key(key: Any) -> str:
    """Return ``key`` if it is valid: 1 to 1,024 Unicode characters, in at most 2,600 bytes, without control
    characters.

    Raises BadEntry.
    """
    if not isinstance(key, str) or not key:
        raise BadEntry("A key must be a non-empty string", repr(key)[:80])
    if len(key) > MAX_KEY_CHARACTERS:
        raise BadEntry(f"The key has more than {MAX_KEY_CHARACTERS:,} characters", repr(key[:40] + "…"), "Shorten it.")
    if _FORBIDDEN.search(key):
        raise BadEntry("A key must not contain control characters or unpaired surrogates", repr(key)[:80])
    if len(key.encode()) > MAX_KEY_BYTES:
        raise BadEntry(f"The key has more than {MAX_KEY_BYTES:,} bytes in UTF-8", repr(key[:40] + "…"), "Shorten it.")
    return key


def check_metadata(metadata: Mapping[str, Any] | None) -> str:
    """Encode ``metadata`` as a JSON object. Raises BadEntry."""
    if not metadata:
        return "{}"
    if not all(isinstance(name, str) for name in metadata):
        raise BadEntry("Names of metadata fields must be strings", repr(list(metadata))[:80])
    data = encode(metadata if isinstance(metadata, dict) else dict(metadata), "metadata")
    if len(data) > MAX_METADATA_BYTES:
        raise BadEntry(f"The metadata takes more than {MAX_METADATA_BYTES:,} bytes", "", "Put it into the value.")
    if b"u0000" in data and _NUL.search(data):
        raise BadEntry("Metadata must not contain NUL", "", "Databases cannot store it; put it into the value.")
    return data.decode()


def check_fields(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a metadata filter with None fields omitted; values are scalars or lists of scalars.

    Raises BadEntry.
    """
    conditions = {name: value for name, value in (fields or {}).items() if value is not None}
    for name, value in conditions.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(each, (str, int, float)) for each in values):
            raise BadEntry("A filter value must be a string, a number, a boolean, or a list of them", repr(name))
    checked: dict[str, Any] = json.loads(check_metadata(conditions))
    return checked


def check_expiry(expires_at: datetime | None) -> datetime | None:
    """Convert ``expires_at`` to UTC; a time with no zone is taken as UTC. Raises BadEntry."""
    if expires_at is None:
        return None
    if not isinstance(expires_at, datetime):
        raise BadEntry("expires_at must be a datetime", repr(expires_at)[:80])
    try:
        return (expires_at if expires_at.utcoffset() is not None else expires_at.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise BadEntry("expires_at is out of range", str(expires_at)) from error


def encode(value: Any, what: str = "value") -> bytes:
    """Encode ``value`` as JSON in UTF-8. Raises BadEntry."""
    try:
        data = orjson.dumps(value, option=_STRICT)
        if b"null" not in data:
            return data
        has_odd_names = False
    except orjson.JSONEncodeError:
        has_odd_names = True
    # Fall back to the slower encoder: orjson writes NaN as null, and rejects keys and numbers that JSON can represent.
    try:
        text = _ENCODER.encode(value)
        if has_odd_names:
            json.loads(text, object_pairs_hook=_distinct)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise BadEntry(f"Cannot write the {what} as JSON ({error})", "", "Store JSON values.") from error


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    """Raise ValueError if two names of an object are the same in JSON, such as 1 and "1"."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("two names of an object are the same in JSON")


def _as_json(value: object) -> Any:
    """Encode enum members and UUIDs like orjson."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json)
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def decode(data: bytes) -> Any:
    """Decode a value written by ``encode``."""
    return json.loads(data)


class Blobs:
    """Large values as files in their owner's directory. Blobs are immutable, and therefore cached. Thread-safe.

    The cache holds at most ``CACHED_BYTES``, and each blob for ``cache_seconds``; 0 disables it.
    """

    def __init__(
        self,
        objects: ObjectStore,
        cache_seconds: float = DEFAULT_CACHE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._cache: TTLCache[str, bytes] = TTLCache(CACHED_BYTES, cache_seconds, clock, getsizeof=len)

    def write(self, directory: str, key: str, data: bytes) -> str:
        """Write ``data`` durably under a unique name and return its path. Raises StorageError."""
        path = f"{directory}/{content_hash(key.encode())}-{content_hash(data)}-{new_ulid()}.json"
        self._objects.create(path, data)
        return path

    def read(self, path: str, expected_hash: str) -> bytes:
        """Return the bytes at ``path``, after checking their hash. Raises ObjectNotFound, StorageError, CorruptFile."""
        with self._lock:
            cached = self._cache.get(path)
        if cached is not None:
            return cached
        data = self._objects.get(path)
        if content_hash(data) != expected_hash:
            raise CorruptFile("A memory blob is damaged", f"{self._objects.uri}/{path}", "Store the entry again.")
        if len(data) <= CACHED_BYTES // 4:  # one large blob must not evict all others
            with self._lock:
                self._cache[path] = data
        return data
