"""Bytes of objects that never change, cached so that a bucket is asked for them once."""

from __future__ import annotations

import threading

import pyarrow as pa
from cachetools import LRUCache


class BufferCache:
    """Buffers by name, up to ``max_bytes`` in all; the least recently used go first. Threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self._lock = threading.Lock()
        self._buffers: LRUCache[str, pa.Buffer] = LRUCache(max_bytes, getsizeof=lambda buffer: buffer.size)

    def get(self, name: str) -> pa.Buffer | None:
        """The buffer of this name, or None."""
        with self._lock:
            return self._buffers.get(name)

    def put(self, name: str, buffer: pa.Buffer) -> None:
        """Cache a buffer; one of more than ``max_bytes`` is left out."""
        if buffer.size <= self._buffers.maxsize:
            with self._lock:
                self._buffers[name] = buffer
