"""What a memory entry may hold, how its value becomes bytes, and the blobs that larger values lie in."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

import orjson

from driftline.storage.errors import BadEntry, CorruptFile
from driftline.storage.ids import new_ulid
from driftline.storage.memory.catalog.tables import MAX_KEY_CHARACTERS
from driftline.storage.objects.store import ObjectStore

MAX_METADATA_BYTES = 64 * 1024
CACHED_BYTES = 64 * 1024 * 1024
DEFAULT_CACHE_SECONDS = 300.0

_HASH_BYTES = 16
_UNFIT = re.compile("[\x00-\x1f\ud800-\udfff]")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def check_key(key: Any) -> str:
    """``key`` itself. Raises BadEntry unless it is 1 to 1,024 characters of Unicode, none of them a control."""
    if not isinstance(key, str) or not key:
        raise BadEntry("A key is a text that is not empty", repr(key)[:80])
    if len(key) > MAX_KEY_CHARACTERS:
        raise BadEntry(f"A key has more than {MAX_KEY_CHARACTERS:,} characters", repr(key[:40] + "…"), "Shorten it.")
    if _UNFIT.search(key):
        raise BadEntry("A key must not contain control characters or half characters", repr(key)[:80])
    return key


def check_metadata(metadata: Mapping[str, Any] | None) -> str:
    """``metadata`` as a JSON object. Raises BadEntry."""
    if not metadata:
        return "{}"
    if not all(isinstance(name, str) for name in metadata):
        raise BadEntry("The names of metadata fields are texts", repr(list(metadata))[:80])
    data = encode(metadata if isinstance(metadata, dict) else dict(metadata), "metadata")
    if len(data) > MAX_METADATA_BYTES:
        raise BadEntry(f"The metadata takes more than {MAX_METADATA_BYTES:,} bytes", "", "Put it into the value.")
    if b"u0000" in data and _NUL.search(data):
        raise BadEntry("Metadata must not contain NUL", "", "Databases cannot hold it; put it into the value.")
    return data.decode()


def check_expiry(expires_at: datetime | None) -> datetime | None:
    """``expires_at`` itself. Raises BadEntry for a time without zone."""
    if expires_at is not None and expires_at.utcoffset() is None:
        raise BadEntry("A time of expiry needs a time zone", str(expires_at), "Use datetime.now(UTC) + timedelta(…).")
    return expires_at


def encode(value: Any, what: str = "value") -> bytes:
    """``value`` as JSON in UTF-8. Raises BadEntry for what JSON cannot hold."""
    try:
        data = orjson.dumps(value, option=_STRICT)
        if b"null" not in data:
            return data
    except orjson.JSONEncodeError:
        pass
    # Slower, and the judge: orjson would take NaN for null, and refuse keys and numbers that JSON can hold.
    try:
        return _ENCODER.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise BadEntry(f"The {what} cannot be written as JSON ({error})", "", "Store JSON values.") from error


def _as_json(value: object) -> Any:
    """What orjson makes of the types that it knows and JSON does not."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json)
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def decode(data: bytes) -> Any:
    """The value that ``encode`` wrote."""
    return json.loads(data)


def digest(data: bytes) -> str:
    """The content hash: 32 hex digits of blake2b."""
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).hexdigest()


class Blobs:
    """Values in the workspace, below the directory of their owner. They never change, so they alone are cached.

    The least recently used of ``CACHED_BYTES`` go first; none is kept for more than ``cache_seconds``, 0 for no cache.
    """

    def __init__(
        self,
        objects: ObjectStore,
        cache_seconds: float = DEFAULT_CACHE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._cached_bytes = 0

    def write(self, directory: str, key: str, data: bytes) -> str:
        """Write ``data`` under a name of its own, durably, and return its path. Raises StorageError."""
        path = f"{directory}/{digest(key.encode())}-{digest(data)}-{new_ulid()}.json"
        self._objects.create(path, data)
        return path

    def read(self, path: str, content_hash: str) -> bytes:
        """The bytes at ``path``. Raises ObjectNotFound, StorageError, CorruptFile."""
        found = self._recall(path)
        if found is None:
            found = self._objects.get(path)
            if digest(found) != content_hash:
                raise CorruptFile("A memory blob is damaged", f"{self._objects.uri}/{path}", "Store the entry again.")
            self._remember(path, found)
        return found

    def _recall(self, path: str) -> bytes | None:
        with self._lock:
            since, data = self._cached.get(path, (0.0, None))
            if data is None or self._clock() - since > self._cache_seconds:
                return None
            self._cached.move_to_end(path)
            return data

    def _remember(self, path: str, data: bytes) -> None:
        if not self._cache_seconds or len(data) > CACHED_BYTES // 4:
            return
        with self._lock:
            _, before = self._cached.pop(path, (0.0, b""))
            self._cached[path] = (self._clock(), data)
            self._cached_bytes += len(data) - len(before)
            while self._cached_bytes > CACHED_BYTES:
                _, (_, oldest) = self._cached.popitem(last=False)
                self._cached_bytes -= len(oldest)
