"""Decoding files and splitting them into numbered lines."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.model import SkipReason
from driftline.tasks.text import (
    MAX_LINE_CHARACTERS,
    REPLACEMENT,
    decode,
    has_replaced_bytes,
    lines_between,
    split_documents,
    split_lines,
)

RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю.\n" * 20


def rows(*texts: str) -> list[tuple[int, int, str]]:
    lines = split_documents(texts)
    return list(zip(lines.doc_index.to_pylist(), lines.line_number.to_pylist(), lines.text.to_pylist(), strict=True))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_encodings_decode_to_the_same_text_without_a_mark(encoding: str) -> None:
    assert decode("naïve 漢字 👍\n".encode(encoding)) == ("naïve 漢字 👍\n", None)


def test_big_endian_utf16_with_a_mark_decodes() -> None:
    assert decode(b"\xfe\xff" + "abc".encode("utf-16-be")) == ("abc", None)


def test_an_empty_file_is_empty_text() -> None:
    assert decode(b"") == ("", None)


@pytest.mark.parametrize("encoding", ["cp1251", "koi8-r"])
def test_a_legacy_encoding_is_detected(encoding: str) -> None:
    assert decode(RUSSIAN.encode(encoding)) == (RUSSIAN, None)


def test_detection_reads_the_beginning_of_a_large_file_and_tolerates_a_split_character() -> None:
    text = "日本語の文章をここに書きます。\n" * 10_000
    assert decode(text.encode("shift_jis")) == (text, None)


@pytest.mark.parametrize("text", ["naïve", "a café", "Grüße aus Köln\n", "El niño comió", "x = 1  # coût élevé\n"])
def test_short_western_files_are_read_as_western(text: str) -> None:
    assert decode(text.encode("latin-1")) == (text, None)


def test_one_damaged_byte_far_from_the_beginning_is_replaced_or_read_as_western() -> None:
    plain = "a plain line\n" * 10_000
    assert decode(plain.encode() + b"caf\xe9\n") == (plain + "café\n", None)
    text, reason = decode(("Ein schöner Tag für Ümläute\n" * 9).encode() + b"\xff" + plain.encode())
    assert (reason, text.count(REPLACEMENT), text.count("schöner")) == (None, 1, 9)


def test_replaced_bytes_are_told_from_replacement_characters_of_the_file() -> None:
    damaged = "größer ".encode() + b"\xff"
    assert has_replaced_bytes(damaged, decode(damaged)[0])
    written = "größer \ufffd".encode()
    assert not has_replaced_bytes(written, decode(written)[0])


def test_a_nul_byte_means_binary() -> None:
    assert decode(b"text\0text") == ("", SkipReason.BINARY)


def test_utf16_without_a_mark_counts_as_binary() -> None:
    assert decode("some text".encode("utf-16-le")) == ("", SkipReason.BINARY)


def test_many_control_characters_mean_binary() -> None:
    assert decode(bytes(range(1, 32)) * 10) == ("", SkipReason.BINARY)


def test_many_control_characters_in_utf16_mean_binary() -> None:
    assert decode(("\x01\x02\x03abc" * 9).encode("utf-16")) == ("", SkipReason.BINARY)


def test_coloured_logs_and_form_feeds_are_text() -> None:
    text = "\x1b[31mred\x1b[0m\n\fpage\n"
    assert decode(text.encode()) == (text, None)


def test_damaged_utf16_is_undecodable() -> None:
    assert decode(b"\xff\xfea\x00b") == ("", SkipReason.UNDECODABLE)


@given(st.binary())
def test_any_bytes_decode_or_give_a_reason(data: bytes) -> None:
    text, reason = decode(data)
    assert reason is None or not text
    assert text.encode().decode() == text


def test_lines_are_numbered_from_zero_across_empty_ones() -> None:
    assert rows("a\n\nb\n") == [(0, 0, "a"), (0, 2, "b")]


def test_the_last_line_counts_with_or_without_a_newline() -> None:
    assert rows("a\nb", "c\n", "", "\n\nd") == [(0, 0, "a"), (0, 1, "b"), (1, 0, "c"), (3, 2, "d")]


def test_a_carriage_return_before_a_newline_is_dropped_once() -> None:
    assert rows("a\r\nb\r\r\nc\r") == [(0, 0, "a"), (0, 1, "b\r"), (0, 2, "c")]


def test_a_lone_carriage_return_ends_a_line_only_where_there_is_no_newline() -> None:
    assert rows("a\rb\r", "a\rb\n") == [(0, 0, "a"), (0, 1, "b"), (1, 0, "a\rb")]


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_other_separators_do_not_end_a_line(separator: str) -> None:
    assert rows(f"a{separator}b\nc") == [(0, 0, f"a{separator}b"), (0, 1, "c")]


def test_only_lines_with_a_letter_or_digit_are_kept() -> None:
    kept = ["  x", "漢", "é", "7", "٣", "½", "_a_"]
    dropped = ["", "  \t", "});", "___", "—…“”", "👍", "\u0301", "\u00a0"]
    assert [text for *_, text in rows("\n".join(dropped + kept + dropped))] == kept


def test_white_space_of_a_line_is_kept() -> None:
    assert rows("\t a  b \n") == [(0, 0, "\t a  b ")]


def test_a_long_line_is_cut_in_characters_and_the_next_one_keeps_its_number() -> None:
    (_, _, text), second = rows("é" * (MAX_LINE_CHARACTERS + 5) + "\n" + "b")
    assert text == "é" * MAX_LINE_CHARACTERS
    assert second == (0, 1, "b")


def test_a_line_of_many_bytes_but_few_characters_is_not_cut() -> None:
    text = "漢" * MAX_LINE_CHARACTERS
    assert rows(text) == [(0, 0, text)]


def test_no_documents_have_no_lines() -> None:
    assert rows() == []
    assert rows("", "") == []
    assert len(split_documents([])) == 0


def expected_rows(texts: list[str]) -> list[tuple[int, int, str]]:
    found = []
    for doc, text in enumerate(texts):
        separator = "\n" if "\n" in text else "\r"
        for number, line in enumerate(text.split(separator)):
            if re.search(r"[^\W_]", line):
                found.append((doc, number, line.removesuffix("\r")))
    return found


@given(st.lists(st.text(st.sampled_from("ab1_é漢 \t\r\n\n\x0b\u2028(")), max_size=6))
def test_lines_equal_those_of_a_plain_loop(texts: list[str]) -> None:
    assert rows(*texts) == expected_rows(texts)


@given(st.text(st.sampled_from("ab1_é \t\r\n\n\x0b(")))
def test_every_kept_line_has_the_same_number_among_all_lines(text: str) -> None:
    lines = split_lines(text)
    assert all(lines[number] == kept for _, number, kept in rows(text))


@given(st.text(st.sampled_from("ab\r\n\n")), st.integers(0, 6), st.integers(0, 6))
def test_lines_between_are_a_part_of_all_lines(text: str, first: int, more: int) -> None:
    assert lines_between(text, first, first + more) == split_lines(text)[first : first + more + 1]
