"""The bounded table of word vectors."""

from __future__ import annotations

import numpy as np
import pytest

from driftline.tasks.embedding.embedder import MAX_WORD_CHARACTERS, WordTable


def put(table: WordTable, *words: str) -> None:
    values = np.array([float(word) for word in words], np.float32)
    table.insert(words, np.stack([values, -values], axis=1), values)


def test_inserted_words_are_found_and_the_others_are_reported() -> None:
    table = WordTable(10, 2)
    put(table, "1", "2")
    vectors, tokens, unknown = table.lookup(["2", "3", "1"])
    assert unknown.tolist() == [1]
    assert vectors[[0, 2]].tolist() == [[2, -2], [1, -1]]
    assert tokens[[0, 2]].tolist() == [2, 1]


def test_the_least_recently_used_words_are_evicted_first() -> None:
    table = WordTable(4, 2)
    for word in "1234":
        table.lookup([word])
        put(table, word)
    table.lookup(["1"])
    put(table, "5", "6")
    assert [word for word in "123456" if word in table] == ["1", "4", "5", "6"]


def test_eviction_frees_a_block_of_slots() -> None:
    table = WordTable(80, 2)
    put(table, *map(str, range(80)))
    put(table, "99")
    assert len(table) == 71


def test_a_table_stays_within_its_capacity_and_correct() -> None:
    table = WordTable(7, 2)
    rng = np.random.default_rng(3)
    for _ in range(200):
        words = [str(i) for i in rng.choice(40, rng.integers(1, 15), replace=False)]
        vectors, tokens, unknown = table.lookup(words)
        known = np.setdiff1d(np.arange(len(words)), unknown)
        assert tokens[known].tolist() == [float(words[i]) for i in known]
        assert vectors[known, 1].tolist() == [-float(words[i]) for i in known]
        put(table, *(words[i] for i in unknown))
        assert len(table) <= 7


def test_known_words_are_not_inserted_twice() -> None:
    table = WordTable(4, 2)
    put(table, "1", "2")
    put(table, "2", "3")
    assert len(table) == 3


def test_overlong_words_are_not_cached() -> None:
    table = WordTable(4, 2)
    put(table, "0" * (MAX_WORD_CHARACTERS + 1), "0" * MAX_WORD_CHARACTERS)
    assert len(table) == 1


def test_a_word_table_without_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        WordTable(0, 2)
