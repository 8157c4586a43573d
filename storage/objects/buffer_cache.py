"""Bytes of objects that never change, kept so that a bucket is asked for them once."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa


class KeptBuffers:
    """Buffers by their names, those used last; threads may share them.

    They take ``max_bytes`` together at most; one that is larger is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._buffers: OrderedDict[str, pa.Buffer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> pa.Buffer | None:
        """The buffer of this name, if it is still here."""
        with self._lock:
            if name in self._buffers:
                self._buffers.move_to_end(name)
            return self._buffers.get(name)

    def keep(self, name: str, buffer: pa.Buffer) -> None:
        """Keep a buffer, and forget those used longest ago to make room for it."""
        with self._lock:
            if name in self._buffers or buffer.size > self._max_bytes:
                return
            self._buffers[name] = buffer
            self._bytes += buffer.size
            while self._bytes > self._max_bytes:
                _, oldest = self._buffers.popitem(last=False)
                self._bytes -= oldest.size
