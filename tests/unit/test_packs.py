"""The filters that rule out packs without a match (decision 19)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.lines.packs import Packs, grams
from driftline.storage.lines.regex_patterns import GRAM_BYTES, folded

ONLY_TRIGRAMS = b"wit ith thi hin ini nit"
OF_TRIGRAMS_ALONE = bytes.fromhex(
    "00040000000020000000600200000000042000008200020000020000000000000000000040000000808400010000000002000008100000800020"
    "000000000000"
)
"""The filter of ONLY_TRIGRAMS from before filters had four-letter runs."""


def may_hold(grams: bytes, literal: bytes) -> bool:
    filters = (np.array([0]), np.frombuffer(grams, np.uint8).reshape(1, -1))
    (possible,) = Packs(pa.table({"line": [0]}), np.array([0]), (filters,)).may_hold([frozenset([literal])])
    return bool(possible)


def test_a_pack_with_the_trigrams_of_a_word_in_other_words_is_ruled_out() -> None:
    assert not may_hold(grams(ONLY_TRIGRAMS), b"withinit")
    assert may_hold(grams(b"in Withinit, too"), b"withinit")
    assert may_hold(grams(ONLY_TRIGRAMS), b"hin")


def test_filters_of_trigrams_alone_are_still_read() -> None:
    assert may_hold(OF_TRIGRAMS_ALONE, b"withinit")
    assert not may_hold(OF_TRIGRAMS_ALONE, b"without")


@given(st.binary(max_size=4_000), st.data())
def test_no_part_of_a_pack_is_ruled_out(text: bytes, data: st.DataObject) -> None:
    text = text.decode("utf-8", "replace").encode()
    start = data.draw(st.integers(0, max(0, len(text) - GRAM_BYTES)))
    part = text[start : start + data.draw(st.integers(GRAM_BYTES, 40))]
    if len(part) >= GRAM_BYTES:
        assert may_hold(grams(text), folded(part))
