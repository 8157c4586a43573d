"""The checksums of packs, and the filters that rule out packs without a match (decision 19)."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.lines.packs import Packs, _sealed, grams, text_in
from driftline.storage.lines.regex_patterns import GRAM_BYTES, Pattern, folded

ONLY_TRIGRAMS = b"wit ith thi hin ini nit"
ONLY_RUNS_OF_LETTERS = b"comp res p_r _re mp_ ithi thin hini"


def may_hold(grams: bytes, literal: bytes) -> bool:
    filters = (np.array([0]), np.frombuffer(grams, np.uint8).reshape(-1, 1))
    (possible,) = Packs(pa.table({"line": [0]}), np.array([0]), (filters,)).may_hold([frozenset([literal])])
    return bool(possible)


def test_a_pack_with_the_grams_of_a_word_in_other_words_is_ruled_out() -> None:
    assert not may_hold(grams(ONLY_TRIGRAMS), b"withinit")
    assert may_hold(grams(b"in Withinit, too"), b"withinit")
    assert may_hold(grams(ONLY_TRIGRAMS), b"hin")
    assert not may_hold(grams(ONLY_RUNS_OF_LETTERS), b"comp_res")
    assert not may_hold(grams(b"with ithi thin"), b"within")


def test_a_literal_with_a_capital_rules_out_packs_that_have_it_in_another_case() -> None:
    assert not may_hold(grams(b"these kwargs are KEYWORDS"), b"Kwargs")
    assert may_hold(grams(b"these MoreKwargs"), b"Kwargs")
    assert may_hold(grams(b"these Kwargs"), b"kwargs"), "a pattern that ignores case has lowercase literals"


@pytest.mark.parametrize("text", ["Abc.(?i)Def", "(?i:Abc).Defg", "(?i)Abcd", "Abcd(?i)Efgh"])
def test_literals_are_compared_in_the_case_that_their_flags_ask_for(text: str) -> None:
    for written in (text, text.swapcase().replace("(?I", "(?i")):
        for ignore_case in (False, True):
            pattern = Pattern.of(written, ignore_case=ignore_case)
            for line in ("Abc.Def", "aBC.dEF", "Abc.DEFG", "ABC.Defg", "abcd", "ABCD", "AbcdEFGH", "abcdefgh"):
                if pattern.matches(pa.array([line])).to_pylist() == [True]:
                    held = all(
                        any(may_hold(grams(line.encode()), each) for each in clause) for clause in pattern.required
                    )
                    assert held, (written, ignore_case, line)


@pytest.mark.parametrize("expression", [r"\B", r"\B.", r".\B", r"(?:\B|é)", r"\B*", r"\b\B|\B"])
@pytest.mark.parametrize("line", ["aéa", "éé", "日本 ab", "x🙂", ""])
def test_a_match_neither_begins_nor_ends_inside_a_character(expression: str, line: str) -> None:
    """RE2 matches the empty expression between the bytes of a character, too."""
    pattern = Pattern.of(expression)
    (spans,) = pattern.spans(pa.array([line]))
    assert all(0 <= start < end <= len(line) for start, end in spans)
    assert set(pattern.lines_in(f"{line}\n{line}")) <= {0, 1}


def test_a_filter_with_a_damaged_size_rules_nothing_out() -> None:
    assert may_hold(bytes(len(grams(ONLY_TRIGRAMS)) + 1), b"without")


def test_a_long_literal_is_looked_up_by_some_of_its_grams() -> None:
    text = b" ".join(str(number).encode() for number in range(10_000))
    assert may_hold(grams(text), text[5_000:9_000])
    assert not may_hold(grams(ONLY_TRIGRAMS), text[5_000:9_000])


@given(st.binary(max_size=4_000), st.data())
def test_no_part_of_a_pack_is_ruled_out(text: bytes, data: st.DataObject) -> None:
    text = text.decode("utf-8", "replace").encode()
    start = data.draw(st.integers(0, max(0, len(text) - GRAM_BYTES)))
    part = text[start : start + data.draw(st.integers(GRAM_BYTES, 40))]
    if len(part) >= GRAM_BYTES:
        assert may_hold(grams(text), folded(part))
        assert may_hold(grams(text), part)


@pytest.mark.parametrize("end", [b"\0", b"\0" * 512, b"\0a line up\0", b"\x00123456789", b"12345678\0", b"no NUL"])
def test_each_changed_bit_of_a_pack_is_found(end: bytes) -> None:
    text = b"a valve\n" + end
    assert text_in(text) is None
    pack = _sealed(text)
    assert text_in(pack) == text
    for at, bit in itertools.product(range(len(pack)), range(8)):
        changed = bytearray(pack)
        changed[at] ^= 1 << bit
        assert text_in(bytes(changed)) is None
