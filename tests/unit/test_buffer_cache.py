"""The cache keeps recently used buffers, within its limit in bytes."""

from __future__ import annotations

import pyarrow as pa

from driftline.storage.objects.store import BufferCache


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache = BufferCache(10)
    for name in ("a", "b"):
        cache.put(name, pa.py_buffer(name.encode() * 5))
    assert cache.get("a") == pa.py_buffer(b"aaaaa")
    cache.put("c", pa.py_buffer(b"c"))
    assert [cache.get(name) is not None for name in "abc"] == [True, False, True]


def test_an_oversized_entry_is_not_cached_and_evicts_nothing() -> None:
    cache = BufferCache(3)
    cache.put("a", pa.py_buffer(b"aaa"))
    cache.put("b", pa.py_buffer(b"bbbb"))
    assert cache.get("a") is not None
    assert cache.get("b") is None


def test_a_name_is_cached_once() -> None:
    cache = BufferCache(4)
    cache.put("a", pa.py_buffer(b"aa"))
    cache.put("a", pa.py_buffer(b"aa"))
    cache.put("b", pa.py_buffer(b"bb"))
    assert cache.get("a") is not None
    assert cache.get("b") is not None
