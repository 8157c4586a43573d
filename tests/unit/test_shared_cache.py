"""The cache keeps recently used values within its limit, whatever its threads do."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cachetools import LRUCache, TTLCache

from driftline.storage.shared_cache import SharedCache


def cache_of(max_bytes: int) -> SharedCache[str, bytes]:
    return SharedCache(LRUCache(max_bytes, len))


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache = cache_of(10)
    for name in ("a", "b"):
        cache.put(name, name.encode() * 5)
    assert cache.get("a") == b"aaaaa"
    cache.put("c", b"c")
    assert [cache.get(name) is not None for name in "abc"] == [True, False, True]


def test_an_oversized_entry_is_not_cached_and_evicts_nothing() -> None:
    cache = cache_of(3)
    cache.put("a", b"aaa")
    cache.put("b", b"bbbb")
    assert (cache.get("a"), cache.get("b")) == (b"aaa", None)
    assert cache.get_or_compute("b", lambda: b"bbbb") == b"bbbb"


def test_a_name_is_cached_once() -> None:
    cache = cache_of(4)
    for name in ("a", "a", "b"):
        cache.put(name, 2 * name.encode())
    assert (cache.get("a"), cache.get("b")) == (b"aa", b"bb")


def test_a_failure_is_not_cached() -> None:
    cache = cache_of(10)

    def fail() -> bytes:
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        cache.get_or_compute("a", fail)
    assert cache.get_or_compute("a", lambda: b"a") == b"a"


def test_threads_that_evict_and_expire_entries_at_once_leave_a_cache_that_works() -> None:
    cache: SharedCache[int, int] = SharedCache(TTLCache(20, 0.001, time.monotonic))

    def use(thread: int) -> None:
        for number in range(4_000):
            key = (number * 7 + thread) % 60
            assert cache.get_or_compute(key, lambda key=key: key) == key  # type: ignore[misc]

    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(use, thread) for thread in range(8)]:
            each.result()
    assert [cache.get_or_compute(key, lambda key=key: key) for key in range(60)] == list(range(60))  # type: ignore[misc]
