"""Key ranges, compared with plain Python: they contain all requested keys and no others."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.deltas.delta_index import Keys, after_prefix

# Few letters, so prefixes collide; and the characters around the surrogates and the last code point.
LETTERS = st.sampled_from("\x00a/b~\x7fé\ud7ff\ue000\U0010ffff")
WORDS = st.text(LETTERS, max_size=5)
TABLES = st.lists(WORDS, max_size=30).map(sorted)


def select(keys: Keys, words: list[str]) -> list[str]:
    found: list[str] = keys.select(pa.table({"key": pa.array(words, pa.string())}), "key")["key"].to_pylist()
    return found


@given(TABLES, st.lists(WORDS, max_size=4))
def test_prefixes_select_exactly_what_starts_with_one_of_them(words: list[str], prefixes: list[str]) -> None:
    assert select(Keys.starting_with(prefixes), words) == [word for word in words if word.startswith(tuple(prefixes))]


@given(TABLES, st.lists(WORDS, max_size=4))
def test_keys_select_only_themselves(words: list[str], wanted: list[str]) -> None:
    assert select(Keys.exactly(wanted), words) == [word for word in words if word in wanted]


@given(TABLES, WORDS, WORDS | st.none())
def test_a_range_is_half_open(words: list[str], low: str, high: str | None) -> None:
    wanted = [word for word in words if low <= word and (high is None or word < high)]
    assert select(Keys.between(low, high), words) == wanted


@given(TABLES.filter(bool), st.lists(WORDS, max_size=4), st.integers(0, 5), st.integers(0, 5))
def test_a_row_group_with_a_requested_key_is_always_read(
    words: list[str], prefixes: list[str], kept: int, low_kept: int
) -> None:
    first, last = words[0], words[-1]
    # Truncated statistics are wider than the data: the minimum is cut; the maximum is cut and incremented.
    wider_last = after_prefix(last[:kept]) or last
    for keys in (Keys.starting_with(prefixes), Keys.exactly(prefixes)):
        if select(keys, words):
            assert keys.may_lie_between(first, last)
            assert keys.may_lie_between(first[:low_kept], max(wider_last, last))


@given(TABLES.filter(bool), WORDS)
def test_a_row_group_outside_the_prefix_is_skipped(words: list[str], prefix: str) -> None:
    before, after = words[-1] < prefix, words[0] > prefix and not words[0].startswith(prefix)
    if before or after:
        assert not Keys.starting_with([prefix]).may_lie_between(words[0], words[-1])
