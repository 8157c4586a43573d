"""A cache in memory that the threads of a process share.

The caches of ``cachetools`` are not thread-safe: if two threads evict concurrently, later accesses fail.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from cachetools import Cache

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class SharedCache(Generic[_Key, _Value]):
    """Values in a cache of ``cachetools``, whose size and lifetime limits apply.

    Examples:
        >>> from cachetools import LRUCache
        >>> squares = SharedCache[int, int](LRUCache(2))
        >>> squares.get_or_compute(3, lambda: 9), squares.get(3), squares.get(4)
        (9, 9, None)
    """

    def __init__(self, cache: Cache[_Key, _Value]) -> None:
        self._cache = cache
        self._lock = Lock()

    def get(self, key: _Key) -> _Value | None:
        """Return the value of ``key``, or None."""
        with self._lock:
            return self._cache.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        """Keep a value, unless it alone exceeds the size of the cache."""
        with self._lock:
            if self._cache.getsizeof(value) <= self._cache.maxsize:
                self._cache[key] = value

    def get_or_compute(self, key: _Key, compute: Callable[[], _Value]) -> _Value:
        """Return the value of ``key``, computed unless it is cached; two threads may compute it at the same time."""
        known = self.get(key)
        if known is None:
            known = compute()
            self.put(key, known)
        return known

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._cache.clear()
