"""Decoding files and splitting them into numbered lines."""

from __future__ import annotations

import math
import random
import re
import struct
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from driftline.storage.documents import GAP_LINE, SkipReason, content_hash
from driftline.tasks.text import (
    MAX_ROW_CHARACTERS,
    MAX_ROWS_OF_LINE,
    REPLACEMENT,
    decode,
    has_replaced_bytes,
    lines_between,
    read_ends,
    rows_of_line,
    split_documents,
    split_lines,
)
from tests.support.legacy_sentences import SENTENCES, texts_of

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


@pytest.mark.parametrize("encoding", SENTENCES)
def test_texts_in_undeclared_legacy_encodings_are_read(encoding: str) -> None:
    short, long = texts_of(encoding)
    read = [[decode(text.encode(encoding)) == (text, None) for text in texts] for texts in (short, long)]
    assert [sum(each) for each in read] == [MIN_SHORT.get(encoding, 10), 10]


MIN_SHORT = {"gb18030": 9, "iso8859-2": 9, "cp1254": 7}
"""Of ten single sentences. The others look like Korean, Danish and Icelandic."""


def test_korean_laughter_is_not_taken_for_japanese() -> None:
    for text in ("그건 아니야 ㅠㅠ ㅋㅋㅋ\n", "네 ㅋㅋㅋㅋㅋ 알겠어요 ㅎㅎ\n"):
        assert decode(text.encode("euc-kr")) == (text, None)


def test_little_western_text_is_not_taken_for_another_language() -> None:
    texts = (
        *("Volume: 5 m³, area 3 m² per ½ hour", "¿Qué hora es? El niño come piñas", "// año de creación del módulo"),
        *("# Größe in µm² (x³)", "int x = 3; // coût élevé à l'été", "Temperatur 25 °C ± 2"),
        *("© 2014 Müller & Söhne®", "Låt är naïve façade", "price: 10 £ or 12 €", "São Paulo, coração, ação"),
        *("Ærø ligger i Østersøen", "Ça va ? «Oui», dit-il", "1º andar, 2ª porta", "Straße 12¾ Zoll"),
    )
    for text in texts:
        assert decode(text.encode("cp1252")) == (text, None)


JAPANESE, CHINESE = (
    "毎日深夜にキャッシュを削除します\n設定ファイルの説明です。\n",
    "系统会在每天凌晨清理缓存文件\n配置参数说明文档\n",
)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("iso2022_jp", JAPANESE),
        ("iso2022_jp", f"# settings\nname = value\n{JAPANESE}"),
        ("hz", CHINESE),
        ("hz", f"{CHINESE}{GAP_LINE}\n\n{CHINESE}"),
        ("utf-7", "цапля садится на крышу\nвторая строка\n"),
    ],
)
def test_encodings_of_ascii_bytes_are_read(encoding: str, text: str) -> None:
    encoded = GAP_LINE.encode().join(part.encode(encoding) for part in text.split(GAP_LINE))
    assert decode(encoded) == (text, None)


@pytest.mark.parametrize(
    "text",
    [
        "key cb4tv7p+MchDsoxJPtmYJMPodRpzea5x\n",
        "\x1b[31mred\x1b[0m and \x1b(B plain\n",
        '(format nil "~{~a~^, ~}" items) ; ~{ab~}\n',
        "sha512-abc+defGHI0123456789-x+ABCDEFGHIJKLMNOP-\n",
        "C++ and a+bcdefghijkl-m\n",
        "x = a+abcdefgh\n",
        "the escape \x1b$ alone\n",
    ],
)
def test_ascii_that_only_looks_shifted_is_ascii(text: str) -> None:
    assert decode(text.encode()) == (text, None)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("windows-1251", '<?xml version="1.0" encoding="windows-1251"?>\n<a>аист</a>\n'),
        ("koi8-r", "# -*- coding: koi8-r -*-\n# пеликан ныряет\n"),
        ("koi8-r", "#!/usr/bin/python\n# vim: set fileencoding=koi8-r :\n# пеликан\n"),
        ("iso-8859-7", ";; -*- coding: iso-8859-7 -*-\n;; πελεκάνος\n"),
        ("cp1250", '<html><meta charset="windows-1250"><p>Żółć</p>\n'),
        ("cp1252", '<?xml version="1.0" encoding="ISO-8859-1"?><a>“naïve”</a>\n'),
        ("shift_jis", '@charset "Shift_JIS";\n/* 設定 */\n'),
        ("euc_jp", "# coding: euc-jp\n# 設定\n"),
        ("koi8-r", "#!/usr/bin/ruby\r\n# encoding: koi8-r\r\n# пеликан\r\n".replace("\r\n", "\n")),
        ("koi8-r", "/* -*- mode: c; coding: koi8-r; -*- */\n/* пеликан */\n"),
        ("koi8-r", "пеликан\n\n// vim: set ts=4 fenc=koi8-r :\n"),
        ("koi8-r", "<!doctype html>\n<!-- <meta charset=cp1252> -->\n<html><head>\n<META charset=koi8-r><p>аист\n"),
        (
            "koi8-r",
            '<html><meta http-equiv="Content-Type" content="text/html; charset=koi8-r"><p>аист\n',
        ),
        (
            "koi8-r",
            '# Bird\nmsgid ""\nmsgstr ""\n"Language: ru\\n"\n"Content-Type: text/plain; charset=koi8-r\\n"\n# аист\n',
        ),
    ],
)
def test_a_declared_encoding_is_believed_if_the_bytes_fit_it(encoding: str, text: str) -> None:
    assert decode(text.encode(encoding)) == (text, None)
    as_utf8 = text.replace("naïve", "漢字")
    assert decode(as_utf8.encode()) == (as_utf8, None)


@pytest.mark.parametrize(
    "mention",
    [
        "Send the header charset=koi8-r.",
        "Content-Type: text/plain; charset=koi8-r",
        "[info] Content-Type: text/html; charset=iso-8859-5",
        'Write <meta charset="koi8-r"> into the page.',
        'A file begins with <?xml version="1.0" encoding="koi8-r"?>.',
        'Or with @charset "koi8-r";',
        "\n\n# coding: koi8-r",
        "x = 1\n# coding: koi8-r",
        "# transcoding: koi8-r",
        'encoding = "koi8-r"',
        "open(path, encoding='koi8-r')  # -*- later: coding -*-",
        "\n" * 9 + "# vim: fileencoding=koi8-r",
        '<p>Hi</p><!-- <meta charset="koi8-r"> -->',
    ],
)
def test_a_text_that_mentions_an_encoding_is_not_in_it(mention: str) -> None:
    text = f"{mention}\nEl niño comió, el café costó más.\n"
    assert decode(text.encode("latin-1")) == (text, None)


@pytest.mark.parametrize(
    "part", ["<", "<meta ", "#", "#coding:", "\n", 'msgid ""\nmsgstr ""\n"', "-*-", "vim:", "<!--"]
)
def test_looking_for_a_declaration_takes_little_time(part: str) -> None:
    data = ("<" * part.startswith("<") + part * 2_000 + "é").encode("latin-1")
    began = time.process_time()
    decode(data)
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize(
    "name", ["hex", "zlib", "rot13", "utf-16", "unicode_escape", "raw-unicode-escape", "idna", "x" * 30, "utf-8", "hz"]
)
def test_a_false_declaration_is_ignored(name: str) -> None:
    text = f"# coding: {name}\n{RUSSIAN}"
    assert decode(text.encode("cp1251")) == (text, None)


def test_detection_reads_the_beginning_of_a_large_file_and_tolerates_a_split_character() -> None:
    text = "日本語の文章をここに書きます。\n" * 10_000
    assert decode(text.encode("shift_jis")) == (text, None)


@pytest.mark.parametrize("text", ["naïve", "a café", "Grüße aus Köln\n", "El niño comió", "x = 1  # coût élevé\n"])
def test_short_western_files_are_read_as_western(text: str) -> None:
    assert decode(text.encode("latin-1")) == (text, None)


@pytest.mark.parametrize(
    ("encoding", "word"), [("latin-1", "größer"), ("cp1252", "„naïve“"), ("koi8-r", "Россия и мир")]
)
def test_lines_of_utf8_in_a_legacy_file_are_read_as_utf8(encoding: str, word: str) -> None:
    legacy = (RUSSIAN if encoding == "koi8-r" else word) + "\n"
    damaged = legacy.encode(encoding) * 9 + f"{word}\nplain\n".encode() + legacy.encode(encoding)
    assert decode(damaged) == (legacy * 9 + f"{word}\nplain\n{legacy}", None)


def test_one_damaged_byte_far_from_the_beginning_is_replaced_or_read_as_western() -> None:
    plain = "a plain line\n" * 10_000
    assert decode(plain.encode() + b"caf\xe9\n") == (plain + "café\n", None)
    text, reason = decode(("Ein schöner Tag für Ümläute\n" * 9).encode() + b"\xff" + plain.encode())
    assert (reason, text.count(REPLACEMENT), text.count("schöner")) == (None, 1, 9)


def test_replaced_bytes_are_distinguished_from_replacement_characters_of_the_file() -> None:
    damaged = "größer ".encode() + b"\xff"
    assert has_replaced_bytes(damaged, decode(damaged)[0])
    written = "größer \ufffd".encode()
    assert not has_replaced_bytes(written, decode(written)[0])


def test_a_nul_byte_means_binary() -> None:
    assert decode(b"text\0text") == ("", SkipReason.BINARY)


@pytest.mark.parametrize("data", [b"abc\0def\n", b"PK\0\0"])
def test_a_few_bytes_with_nul_are_not_read_as_rare_characters(data: bytes) -> None:
    assert decode(data) == ("", SkipReason.BINARY)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    "text",
    [
        "some text",
        "bird 丢丣\n",  # both bytes of each Chinese character are printable in ASCII
        "key=value\n" * 3_000,
        "Grüße aus Köln, naïve 👍\n",
        RUSSIAN,
        "Καλημέρα κόσμε, τι κάνεις;\n" * 9,
        "系统会在每天凌晨清理缓存文件。\n一天之后会再清理一次。\n",
        "毎日深夜にキャッシュを削除します。\n" * 400,
        "사용자인증에 실패하면 다시 시도합니다\n",
    ],
)
def test_wide_encodings_without_a_mark_are_read(encoding: str, text: str) -> None:
    assert decode(text.encode(encoding)) == (text, None)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("after", [b"\n", b"a", b"\xff"])
def test_a_character_that_is_not_complete_yet_is_left_out(encoding: str, after: bytes) -> None:
    assert decode("key=value\nGrüße\n".encode(encoding) + after) == ("key=value\nGrüße\n", None)


BINARIES = {
    "numbers of 16 bits": struct.pack("<600h", *range(-300, 300)),
    "samples of sound": struct.pack("<4000h", *(int(9_000 * math.sin(at / 9)) for at in range(4_000))),
    "numbers of 32 bits": struct.pack("<600i", *range(600)),
    "floating point": struct.pack("<600f", *(at / 7 for at in range(600))),
    "ASCII with a NUL byte in each line": b"a line of a log, and more\0\n" * 40,
    "strings that end with NUL": b"usr\0lib\0share\0python3\0site-packages\0" * 40,
    "random bytes": random.Random(7).randbytes(9_000) + b"\0",
    "a table of pairs": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("kind", BINARIES)
def test_bytes_that_make_no_sense_as_wide_text_are_binary(kind: str) -> None:
    for length in range(len(BINARIES[kind]) - 4, len(BINARIES[kind])):
        assert decode(BINARIES[kind][:length]) == ("", SkipReason.BINARY)


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


def test_carriage_returns_end_lines_as_newlines_do_and_both_together_end_one() -> None:
    assert rows("a\r\nb\r\r\nc\r") == [(0, 0, "a"), (0, 1, "b"), (0, 3, "c")]
    assert rows("a\rb\r", "a\rb\n") == [(0, 0, "a"), (0, 1, "b"), (1, 0, "a"), (1, 1, "b")]


def test_the_lines_of_a_decoded_text_end_with_newlines() -> None:
    assert decode(b"a\r\nb\rc\n\rd") == ("a\nb\nc\n\nd", None)


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_other_separators_do_not_end_a_line(separator: str) -> None:
    assert rows(f"a{separator}b\nc") == [(0, 0, f"a{separator}b"), (0, 1, "c")]


def test_only_lines_with_a_letter_or_digit_are_kept() -> None:
    kept = ["  x", "漢", "é", "7", "٣", "½", "_a_"]
    dropped = ["", "  \t", "});", "___", "—…“”", "👍", "\u0301", "\u00a0"]
    assert [text for *_, text in rows("\n".join(dropped + kept + dropped))] == kept


def test_white_space_of_a_line_is_kept() -> None:
    assert rows("\t a  b \n") == [(0, 0, "\t a  b ")]


def test_a_long_line_has_several_rows_with_their_columns_and_the_next_one_keeps_its_number() -> None:
    lines = split_documents(["short", "é" * (2 * MAX_ROW_CHARACTERS + 5) + "\n" + "b"])
    assert lines.doc_index.to_pylist() == [0, 1, 1, 1, 1]
    assert lines.line_number.to_pylist() == [0, 0, 0, 0, 1]
    assert lines.column_number.to_pylist() == [0, 0, MAX_ROW_CHARACTERS, 2 * MAX_ROW_CHARACTERS, 0]
    assert lines.text.to_pylist()[3:] == ["é" * 5, "b"]
    assert lines.left_out == {}


def test_a_line_of_many_bytes_but_few_characters_is_one_row() -> None:
    text = "漢" * MAX_ROW_CHARACTERS
    assert rows(text) == [(0, 0, text)]


def test_text_beyond_the_limit_of_a_line_is_counted_by_document() -> None:
    most = MAX_ROWS_OF_LINE * MAX_ROW_CHARACTERS
    lines = split_documents(["a" * most, "b" * (most + 7) + "\n" + "c" * (most + 2) + " \t\n", "d\n" + " " * most])
    assert lines.left_out == {1: 9}
    assert len(lines) == 3 * MAX_ROWS_OF_LINE + 1


LONG = st.lists(
    st.tuples(
        st.sampled_from(["word ", "longer-word, ", "x", "漢字。", "\t", "naïve", "9;", "  "]), st.integers(1, 900)
    ),
    max_size=6,
).map(lambda drawn: "".join(part * count for part, count in drawn))


@settings(max_examples=60, deadline=None)
@given(LONG)
def test_the_rows_of_a_line_follow_one_another_and_hold_all_its_words(line: str) -> None:
    found = rows_of_line(line)
    assert "".join(part for _, part in found) == (line if len(line) <= MAX_ROW_CHARACTERS else line.rstrip())
    assert [column for column, _ in found] == [sum(len(part) for _, part in found[:at]) for at in range(len(found))]
    assert all(len(part) <= MAX_ROW_CHARACTERS for _, part in found)
    spaced = [word for word in line.split() if len(word) < MAX_ROW_CHARACTERS // 2]
    assert {*spaced} <= {word for _, part in found for word in part.split()}


def test_zero_documents_give_zero_lines() -> None:
    assert rows() == []
    assert rows("", "") == []
    assert len(split_documents([])) == 0


def expected_rows(texts: list[str]) -> list[tuple[int, int, str]]:
    found = []
    for doc, text in enumerate(texts):
        for number, line in enumerate(re.split("\r\n|\r|\n", text)):
            if re.search(r"[^\W_]", line):
                found.append((doc, number, line))
    return found


@given(st.lists(st.text(st.sampled_from("ab1_é漢 \t\r\n\n\x0b\u2028(")), max_size=6))
def test_lines_equal_those_of_a_plain_loop(texts: list[str]) -> None:
    assert rows(*texts) == expected_rows(texts)


@given(st.text(st.sampled_from("ab1_é \t\r\n\n\x0b(")))
def test_every_kept_line_has_the_same_number_among_all_lines(text: str) -> None:
    lines = split_lines(text)
    assert all(lines[number] == kept for _, number, kept in rows(text))


@given(st.text(st.sampled_from("ab\r\n\n")), st.integers(0, 6), st.integers(0, 6))
def test_lines_between_two_numbers_are_a_slice_of_all_lines(text: str, first: int, more: int) -> None:
    assert lines_between(text, first, first + more) == split_lines(text)[first : first + more + 1]


@given(st.text("ab\n", max_size=60), st.integers(2, 40), st.integers(1, 9))
@example("aaa\na\naaa", 9, 1)  # a limit that two equal halves do not fill
def test_the_ends_of_a_file_are_its_first_and_last_lines_at_their_numbers(text: str, most: int, size: int) -> None:
    data = text.encode()
    ends = read_ends((data[at : at + size] for at in range(0, len(data), size)), most)
    if ends is None:
        assert b"\n" not in data[: most // 2]
        return
    assert (ends.size_bytes, ends.content_hash) == (len(data), content_hash(data))
    whole, found = data.split(b"\n"), ends.data.replace(GAP_LINE.encode(), b"").split(b"\n")
    assert len(found) == len(whole)
    assert ends.data.count(GAP_LINE.encode()) == (len(data) > most)
    assert all(line in (b"", expected) for line, expected in zip(found, whole, strict=True))
    if len(data) <= most:
        assert ends.data == data
    left_out = [at for at, line in enumerate(whole) if line and not found[at]]
    assert len(b"\n".join(whole[: left_out[0] + 1])) > most // 2 - 1 if left_out else True
    assert len(b"\n".join(whole[left_out[-1] :])) > most // 2 - 1 if left_out else True
