"""Buffers that are kept: which, and how many bytes of them."""

from __future__ import annotations

import pyarrow as pa

from driftline.storage.objects.buffer_cache import KeptBuffers


def test_what_was_used_longest_ago_makes_room() -> None:
    kept = KeptBuffers(10)
    for name in ("a", "b"):
        kept.keep(name, pa.py_buffer(name.encode() * 5))
    assert kept.get("a") == pa.py_buffer(b"aaaaa")
    kept.keep("c", pa.py_buffer(b"c"))
    assert [kept.get(name) is not None for name in "abc"] == [True, False, True]


def test_what_is_too_large_is_not_kept_and_displaces_nothing() -> None:
    kept = KeptBuffers(3)
    kept.keep("a", pa.py_buffer(b"aaa"))
    kept.keep("b", pa.py_buffer(b"bbbb"))
    assert kept.get("a") is not None
    assert kept.get("b") is None


def test_a_name_is_kept_once() -> None:
    kept = KeptBuffers(4)
    kept.keep("a", pa.py_buffer(b"aa"))
    kept.keep("a", pa.py_buffer(b"aa"))
    kept.keep("b", pa.py_buffer(b"bb"))
    assert kept.get("a") is not None
    assert kept.get("b") is not None
