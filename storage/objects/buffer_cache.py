"""A cache of immutable objects, which avoids repeated requests to a bucket."""

from __future__ import annotations

import threading

import pyarrow as pa
from cachetools import LRUCache


class BufferCache:
    """Buffers by name, up to ``max_bytes`` in total, with LRU eviction. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._lock = threading.Lock()
        self._buffers: LRUCache[str, pa.Buffer] = LRUCache(max_bytes, getsizeof=lambda buffer: buffer.size)

    def get(self, name: str) -> pa.Buffer | None:
        """The buffer of this name, or None."""
        with self._lock:
            return self._buffers.get(name)

    def put(self, name: str, buffer: pa.Buffer) -> None:
        """Cache a buffer, unless it is larger than ``max_bytes``."""
        if buffer.size <= self._buffers.maxsize:
            with self._lock:
                self._buffers[name] = buffer
