"""From bytes to lines: decode documents, split them, and keep the lines that hold a word."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.model import SkipReason

MAX_LINE_CHARACTERS = 4_096
"""Longer lines are truncated. A static model reads only 512 tokens of about 5 characters anyway."""

MAX_TEXT_BYTES = 2**29
"""Larger files are not indexed. As UTF-8 a legacy encoding takes at most three times its size, and the offsets of an
Arrow array end at 2 GiB."""

_BINARY_WINDOW = 8 * 1024
_SAMPLE_BYTES = 64 * 1024
_MAX_CONTROL_FRACTION = 0.02
_BEFORE_BYTES = 4 * 1024
"""Context before the first byte that is not UTF-8, for the detection of the encoding."""
_DETECTABLE_BYTES = 32
_MAX_WESTERN_FRACTION = 0.5
"""Non-ASCII bytes, and their share in the letters, below which a text counts as Western: statistics need more."""
_MAX_REPLACED_FRACTION = 0.01
REPLACEMENT = "\ufffd"
_HIGH_BYTES = bytes(range(128, 256))
_LETTERS = _HIGH_BYTES + bytes(range(65, 91)) + bytes(range(97, 123))

# Longest first: the UTF-32 mark begins with the UTF-16 one.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Text may hold tab, newline, form feed, carriage return, backspace and escape (coloured logs).
_ODD_ASCII = bytes(byte for byte in range(32) if byte not in b"\t\n\f\r\b\x1b") + b"\x7f"
_ODD_CHARACTERS = dict.fromkeys((*_ODD_ASCII, *range(0x80, 0xA0)))


def decode(data: bytes) -> tuple[str, SkipReason | None]:
    """Decode a file: ``(text, None)``, or ``("", reason)`` if it has no text.

    A byte order mark selects UTF-16 or UTF-32. Otherwise the encoding is UTF-8, even where some bytes are damaged, or
    a legacy encoding. The few bytes that it cannot decode become U+FFFD. A NUL byte in the first 8 KiB or many control
    characters mean BINARY. The text never begins with a byte order mark and can always be encoded as UTF-8.
    """
    for mark, marked in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode_as(data, marked)
    if b"\0" in data[:_BINARY_WINDOW]:
        return "", SkipReason.BINARY
    sample = data[:_SAMPLE_BYTES]
    if len(sample) - len(sample.translate(None, _ODD_ASCII)) > _MAX_CONTROL_FRACTION * len(sample):
        return "", SkipReason.BINARY
    try:
        return data.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        damaged = data.decode("utf-8-sig", errors="replace")
        if _is_mostly_utf8(damaged):
            return damaged, None
        encoding = _detect(data[max(0, error.start - _BEFORE_BYTES) :][:_SAMPLE_BYTES])
    return _decode_as(data, encoding) if encoding else ("", SkipReason.UNDECODABLE)


def has_replaced_bytes(data: bytes, text: str) -> bool:
    """Whether ``decode`` replaced bytes of ``data`` that it could not decode."""
    return REPLACEMENT in text and REPLACEMENT.encode() not in data


def _is_mostly_utf8(damaged: str) -> bool:
    """Whether a text that was decoded with replacements has more characters of several bytes than replacements."""
    replaced = damaged.count(REPLACEMENT)
    return len(damaged) - len(damaged.encode("ascii", errors="ignore")) > 2 * replaced


def _detect(sample: bytes) -> str | None:
    """The legacy encoding of ``sample``, as a Python codec name."""
    from charset_normalizer import from_bytes  # takes 50 ms to import, and few trees need it

    high = len(sample) - len(sample.translate(None, _HIGH_BYTES))
    letters = len(sample) - len(sample.translate(None, _LETTERS))
    if high < _DETECTABLE_BYTES and high < _MAX_WESTERN_FRACTION * letters:
        return "cp1252"  # too little evidence to tell it from its neighbours
    # The cut may split a multibyte character, which would exclude its encoding.
    start, end = sample.find(b"\n") + 1, sample.rfind(b"\n") + 1
    best = from_bytes(sample[start:end] if len(sample) == _SAMPLE_BYTES and start < end else sample).best()
    return best.encoding if best else None


def _decode_as(data: bytes, encoding: str) -> tuple[str, SkipReason | None]:
    text = data.decode(encoding, errors="replace").removeprefix("\ufeff")
    try:
        text.encode()  # some legacy codecs yield unpaired surrogates
    except UnicodeError:
        return "", SkipReason.UNDECODABLE
    if text.count(REPLACEMENT) > _MAX_REPLACED_FRACTION * len(text):
        return "", SkipReason.UNDECODABLE
    sample = text[:_SAMPLE_BYTES]
    if len(sample) - len(sample.translate(_ODD_CHARACTERS)) > _MAX_CONTROL_FRACTION * len(sample):
        return "", SkipReason.BINARY
    return text, None


@dataclass(frozen=True, slots=True)
class SplitLines:
    """The lines of some documents, in order: three arrays of the same length.

    ``text`` is ``string``; ``doc_index`` is ``int32`` into the documents; ``line_number`` is ``int32``, 0-based.
    """

    text: pa.StringArray
    doc_index: pa.Int32Array
    line_number: pa.Int32Array

    def __len__(self) -> int:
        return len(self.text)


def split_documents(texts: Sequence[str]) -> SplitLines:
    """The lines of ``texts`` that hold a letter or digit (Unicode categories L and N), numbered as in editors.

    ``\\n`` ends a line, and one ``\\r`` before it is dropped. In a text without ``\\n``, ``\\r`` ends a line. Other
    separators of ``str.splitlines`` do not. Lines are truncated to MAX_LINE_CHARACTERS. Raises ArrowInvalid if all
    texts together have 2 GiB or more of UTF-8.
    """
    documents = pa.array([_unix_line_ends(text) for text in texts], pa.string())
    offsets = np.frombuffer(documents.buffers()[1], np.int32)[: len(documents) + 1]
    data = np.frombuffer(documents.buffers()[2] or b"", np.uint8)[: offsets[-1]]

    newlines = np.flatnonzero(data == ord("\n")).astype(np.int32)
    before = np.searchsorted(newlines, offsets).astype(np.int32)
    # A document of k newlines has k + 1 lines; an empty last line is dropped with all empty lines.
    ends = np.insert(newlines, before[1:], offsets[1:])
    first_line = before[:-1] + np.arange(len(documents), dtype=np.int32)
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1] + 1
    starts[first_line] = offsets[:-1]
    doc_index = np.repeat(np.arange(len(documents), dtype=np.int32), np.diff(before) + 1)
    line_number = np.arange(len(ends), dtype=np.int32) - first_line[doc_index]

    filled = np.flatnonzero(starts < ends)
    kept = filled[_has_word(documents, data, starts[filled], ends[filled])]
    starts, ends = starts[kept], ends[kept]
    text = _cut(_slices(documents, starts, ends - (data[ends - 1] == ord("\r"))))
    return SplitLines(text, pa.array(doc_index[kept]), pa.array(line_number[kept]))


def split_lines(text: str) -> list[str]:
    """Every line of one text, not truncated, numbered as by ``split_documents``."""
    lines = [line.removesuffix("\r") for line in _unix_line_ends(text).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def lines_between(text: str, first: int, last: int) -> list[str]:
    """Lines ``first`` to ``last`` of ``split_lines``, 0-based and inclusive; fewer if the text ends before."""
    lines = _unix_line_ends(text).split("\n", last + 1)
    if len(lines) == last + 2 or lines[-1] in ("", "\r"):
        del lines[-1]  # the rest of the text
    return [line.removesuffix("\r") for line in lines[first:]]


def _unix_line_ends(text: str) -> str:
    return text.replace("\r", "\n") if "\r" in text and "\n" not in text else text


def _has_word(
    documents: pa.StringArray, data: NDArray[np.uint8], starts: NDArray[np.int32], ends: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Whether each of these non-empty lines holds a letter or digit.

    Arithmetic decides for ASCII; the regular expression, which is far slower, checks only the other lines.
    """
    if not len(starts):
        return np.empty(0, np.bool_)
    is_digit = data - np.uint8(ord("0")) < 10  # unsigned: smaller values wrap around
    is_letter = (data | np.uint8(0x20)) - np.uint8(ord("a")) < 26
    # Each segment extends to the next line; the newlines in between do not matter.
    has_word = np.logical_or.reduceat(is_digit | is_letter, starts)
    unsure = np.flatnonzero(~has_word)
    lines = _slices(documents, starts[unsure], ends[unsure])
    has_word[unsure] = pc.match_substring_regex(lines, r"\pL|\pN").to_numpy(zero_copy_only=False)
    return has_word


def _slices(strings: pa.StringArray, starts: NDArray[np.int32], ends: NDArray[np.int32]) -> pa.StringArray:
    """The substrings ``[starts[i], ends[i])`` of the data of ``strings``, which are in order and do not overlap."""
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = ends[-1] if len(ends) else 0
    with_gaps = pa.StringArray.from_buffers(2 * len(starts), pa.py_buffer(offsets), strings.buffers()[2])
    return with_gaps.take(pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)))


def _cut(lines: pa.StringArray) -> pa.StringArray:
    long = pc.greater(pc.binary_length(lines), MAX_LINE_CHARACTERS)
    if not pc.any(long).as_py():
        return lines
    return pc.if_else(long, pc.utf8_slice_codeunits(lines, 0, MAX_LINE_CHARACTERS), lines)
