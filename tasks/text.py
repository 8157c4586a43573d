"""Decode documents, split them into lines, and keep lines that contain a word."""

from __future__ import annotations

import codecs
import hashlib
import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.documents import GAP_LINE, SkipReason

MAX_ROW_CHARACTERS = 1_024
"""Longer lines are split into rows, each short enough for one vector: a static model reads 512 tokens."""
MAX_ROWS_OF_LINE = 64
"""Text beyond these rows is counted but not indexed, so minified files do not fill an index."""

MAX_TEXT_BYTES = 2**29
"""Larger files are not indexed.

Converting a legacy encoding to UTF-8 at most triples the size, and Arrow array offsets are limited to 2 GiB."""

_BINARY_WINDOW = 8 * 1024
_LFS_POINTER, _LFS_CHARACTERS = "version https://git-lfs.github.com/spec/v1\n", 1024
"""The first line of a pointer, and its maximum length, according to the specification."""
_SAMPLE_BYTES = 64 * 1024
_MAX_CONTROL_FRACTION = 0.02
_BEFORE_BYTES = 4 * 1024
"""Context before the first non-UTF-8 byte, for detecting the encoding."""
_DETECTABLE_BYTES = 32
_MAX_WESTERN_FRACTION = 0.5
"""Text is treated as Western if it has fewer non-ASCII bytes than ``_DETECTABLE_BYTES``, too few for statistics, and
these are a smaller fraction of its letters than this.
"""
_WESTERN = (
    *("àâçèéêëîïôœùûü", "äöüß", "áéíñóúüªº", "àáâãçéêíóôõúü", "àèéìíòóùú", "äåæéöøü", "áæéíðóöøúýþ", "áèéëïóöü"),
    *("àçèéíïòóúü·", "äõöüšž", "äåöšž", "áòó"),
)
_CENTRAL = ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíľňóôšťúýž", "áéíóöőúüű", "čćđšž", "ăâîşţ")
_ALPHABETS: Mapping[str, tuple[str, ...]] = {
    "cp1252": _WESTERN,
    "cp1250": _CENTRAL,
    "iso8859-2": _CENTRAL,
    "cp1254": ("âçîöûüğışi\u0307",),  # with the second character of a lower-case İ
}
"""The letters outside ASCII that one language uses, for languages of each encoding."""
_SYMBOLS = frozenset("\xa0¡¢£¥§©ª«®°±²³µ¶·¹º»¼½¾¿×–—‘’‚“”„…€•™")
_SYMBOL_IN_WORD = re.compile(r"[^\W\d_](?:[±¶¼½¾¿¡]|(?![‘’·\xad\xa0])[^\w\s\x00-\x7f][^\W\d_])")
"""A symbol that is part of a word, and was therefore a letter."""
_HEBREW_LETTERS, _HEBREW_FINALS = bytes(range(0xE0, 0xFB)), b"\xea\xed\xef\xf3\xf5"
_HEBREW_SEPARATORS = bytes.maketrans(b"\x84\x85\x91\x92\x93\x94\x96\x97\xa0\xab\xbb", b" " * 11)
_MIN_HEBREW_LETTERS = 6
_JAPANESE = ("cp932", "euc_jp")
_HIRAGANA = re.compile("[\u3041-\u3096]")
_MIN_HIRAGANA, _MIN_HIRAGANA_FRACTION = 4, 0.2
_RARE = ["shift_jis_2004", "shift_jisx0213", "euc_jis_2004", "euc_jisx0213"]
"""Rare encodings in which most bytes are valid."""
_MAX_REPLACED_FRACTION = 0.01
REPLACEMENT = "\ufffd"
_HIGH_BYTES = bytes(range(128, 256))
_LETTERS = _HIGH_BYTES + bytes(range(65, 91)) + bytes(range(97, 123))

# Longest first: the UTF-32 BOM starts with the UTF-16 BOM.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_UNMARKED = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_MIN_PLAIN_FRACTION = 0.02
_MIN_PLAIN_OF_FEW, _FEW_CHARACTERS = 0.5, 8
"""Any small binary file of even length can be read as a few rare characters."""
_MAX_ODD_FRACTION = 0.01
_MAX_ASCII_PAIRS = 0.85
"""Maximum fraction of other characters that consist of two printable ASCII bytes.

In misread single-byte text, nearly all do.
"""
_MIN_SURELY_PLAIN_FRACTION = 0.3
"""Text in a single-byte encoding that was misread has a smaller share of plain characters."""
_JUDGED_CHARACTERS = 2_048
_PLAIN = re.compile("[\\t\\n\\r -~\u3000-\u3002\uff01-\uff1f]")
"""ASCII, and Chinese and Japanese punctuation: all text contains some of it, but misread single-byte text does not."""
_NAME = rb"[\"']?([a-z][a-z0-9._:-]{1,30})"
_DECLARATIONS = tuple(
    re.compile(rb"(?i)\A" + place + _NAME)
    for place in (
        rb"<\?xml\s[^>]{0,200}?\bencoding\s{0,4}=\s{0,4}",
        rb"@charset ",
        rb"(?:[ \t\f]*(?:#[^\n]*)?\n)?[ \t\f]*#[^\n]*?(?<![a-z])(?:file)?(?:en)?coding[:=][ \t]*",  # PEP 263
        rb"(?:[^\n]*\n)?[^\n]*?-\*-[^\n]*?(?<![a-z-])coding:[ \t]*",  # Emacs
        rb"(?:[^\n]*\n){0,4}?[^\n]*?(?<![a-z])(?:vim?|ex):[^\n]*?[ \t:](?:fileencoding|fenc)=",
        rb"(?=<[!a-z?])(?s:.)*?<meta\s[^>]{0,300}?\bcharset\s{0,4}=\s{0,4}",
        rb"(?:#[^\n]*\n|\n)*+msgid \"\"\nmsgstr \"\"\n(?:\"[^\n]*\n)*?\"Content-Type:[^\n]*?charset=",  # gettext
    )
)
"""Where a format declares the encoding; anywhere else, a text only mentions one."""
_COMMENT = re.compile(rb"(?s)<!--.*?(?:-->|\Z)")
_DECLARED_BYTES = 1024
_AS_ON_THE_WEB = {
    "iso8859-1": "cp1252", "latin-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030",
    "shift_jis": "cp932", "euc_kr": "cp949",
}  # fmt: skip
"""Encodings that are declared for text in a superset of them."""
_NOT_DECLARABLE = ("utf", "unicode", "raw", "idna", "punycode", "charmap", "mbcs", "oem", "undefined")
_UTF_7 = re.compile(rb"\+(?:(?<![A-Za-z0-9+/=_-]\+)[A-Za-z0-9/][A-Za-z0-9+/]{7,}+(?![=_])|[A-Za-z0-9/]{8,}+-)")
"""Starts with its literal ``+``, which ``re`` finds many times faster than a look-behind or an alternation."""
_SHIFTED = (  # what such text contains, and its encodings
    (re.compile(rb"\x1b\$[@-D(]"), ("iso2022_jp_2", "iso2022_jp_3")),
    (re.compile(rb"~\{(?:[!-w][!-~])+~\}"), ("hz",)),
    (_UTF_7, ("utf-7",)),
)
_MIN_SHIFTED_LETTERS, _MAX_SHIFTED_SCRIPTS = 8, 2
"""Limits for encodings whose shifts other text contains by chance."""
_MIN_SHIFTED_FRACTION = 0.3
"""Minimum fraction of letters outside ASCII in text that consists of ASCII bytes in an encoding that shifts."""
# Text may contain tab, newline, form feed, carriage return, backspace and escape (coloured logs).
_ODD_ASCII = bytes(byte for byte in range(32) if byte not in b"\t\n\f\r\b\x1b") + b"\x7f"
_ODD_CHARACTERS = dict.fromkeys((*_ODD_ASCII, *range(0x80, 0xA0)))


def decode(data: bytes) -> tuple[str, SkipReason | None]:
    r"""Decode a file: ``(text, None)``, or ``("", reason)`` if it has no text. Lines of the text end with ``\n``.

    A byte order mark selects UTF-16 or UTF-32, as do NUL bytes at positions that only these encodings explain.
    Otherwise, the encoding is UTF-8, even if some bytes are damaged, or a legacy encoding. Isolated undecodable bytes
    become U+FFFD. Any other NUL byte in the first 8 KiB, or many control characters, mean BINARY. The text never starts
    with a byte order mark and can always be encoded as UTF-8.
    """
    text, reason = _decode(data)
    return _unix_line_ends(text), reason


def _decode(data: bytes) -> tuple[str, SkipReason | None]:
    for mark, marked in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode_as(data, marked)
    if b"\0" in data[:_BINARY_WINDOW]:
        return _decode_unmarked(data)
    if has_control_characters(data):
        return _decode_unmarked(data)  # the upper bytes of Greek, Cyrillic and Arabic are control characters
    try:
        text = data.decode("utf-8-sig")
        return (_shifted(data) or text) if len(text) == len(data) else text, None
    except UnicodeDecodeError as error:
        damaged = data.decode("utf-8-sig", errors="replace")
        if _is_mostly_utf8(damaged):
            return damaged, None
        sample = data[max(0, error.start - _BEFORE_BYTES) :][:_SAMPLE_BYTES]
        legacy = (line for line in sample.split(b"\n") if line.isascii() or not is_utf8(line))
        encoding = _declared(data) or _detect(b"\n".join(legacy))
    if encoding is None:
        return "", SkipReason.UNDECODABLE
    if len(_HIGH_BYTES.decode(encoding, errors="replace")) == len(_HIGH_BYTES):
        data = _as_utf8(data, encoding)
        encoding = "utf-8"
    return _decode_as(data, encoding)


def has_control_characters(data: bytes) -> bool:
    """Return whether ``data`` has more control characters than text has."""
    sample = data[:_SAMPLE_BYTES]
    return len(sample) - len(sample.translate(None, _ODD_ASCII)) > _MAX_CONTROL_FRACTION * len(sample)


def _shifted(data: bytes) -> str | None:
    """Return the text of ASCII bytes in an encoding that shifts to other characters, such as ISO-2022-JP, or None."""
    for pattern, encodings in _SHIFTED:
        if not pattern.search(data):
            continue
        for encoding in encodings:
            try:
                text = GAP_LINE.join(part.decode(encoding) for part in data.split(GAP_LINE.encode(), 1))
                text.encode()
            except UnicodeError:
                continue
            foreign = re.findall(r"[^\W\d_\x00-\x7f]", text)
            scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in set(foreign)}
            is_written = len(foreign) >= _MIN_SHIFTED_FRACTION * len(re.findall(r"[^\W\d_]", text))
            is_chance = len(foreign) < _MIN_SHIFTED_LETTERS or len(scripts) > _MAX_SHIFTED_SCRIPTS
            if foreign and is_written and (encoding.startswith("iso2022") or not is_chance):
                return text
    return None


def _declared(data: bytes) -> str | None:
    """Return the encoding that a file declares at its beginning, as a Python codec name, if all its bytes fit it."""
    head = data[:_DECLARED_BYTES].removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if head.lstrip().startswith(b"<"):
        head = _COMMENT.sub(b"", head).lstrip()
    match = next(filter(None, (declaration.match(head) for declaration in _DECLARATIONS)), None)
    if match is None:
        return None
    encoding = declarable(match[1].decode())
    try:
        if encoding is not None:
            data.decode(encoding)
    except ValueError:
        return None
    return encoding


def declarable(name: str) -> str | None:
    """Return the Python codec for text that declares the encoding ``name``, as browsers read it.

    Returns None for an unknown encoding, and for one in which ASCII text is not ASCII bytes, such as UTF-16.
    """
    named = name.strip().lower().replace("_", "-")
    for spelling in (named, named.removeprefix("x-"), named.replace("windows-31j", "cp932").replace("windows-", "cp")):
        try:
            codec = codecs.lookup(spelling)
            if codec.name.startswith(_NOT_DECLARABLE) or not isinstance(b"a".decode(codec.name), str):
                return None
        except (LookupError, ValueError):  # also codecs that are not text encodings
            continue
        return _AS_ON_THE_WEB.get(codec.name, codec.name)
    return None


def _as_utf8(data: bytes, encoding: str) -> bytes:
    """Convert lines in the single-byte ``encoding`` to UTF-8; other lines of the file are already UTF-8."""
    lines = data.split(b"\n")
    return b"\n".join(line if is_utf8(line) else line.decode(encoding, errors="replace").encode() for line in lines)


def is_utf8(data: bytes) -> bool:
    """Return whether ``data`` is valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decode_unmarked(data: bytes) -> tuple[str, SkipReason | None]:
    encoding = _unmarked(data)
    if encoding is None:
        return "", SkipReason.BINARY
    whole = len(data) - len(data) % _width(encoding)  # its writer may not have finished the last character
    return _decode_as(data[:whole], encoding)


def _width(encoding: str) -> int:
    return 4 if "32" in encoding else 2


def _unmarked(data: bytes) -> str | None:
    """Return the UTF-16 or UTF-32 variant that yields the most plain characters for BOM-less text."""
    plainest, found = 0.0, None
    for encoding in _UNMARKED:
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(data[:_BINARY_WINDOW])
        except UnicodeDecodeError:
            continue
        judged = text[:_JUDGED_CHARACTERS]
        if "\0" in judged or len(judged.translate(_ODD_CHARACTERS)) < (1 - _MAX_CONTROL_FRACTION) * len(judged):
            continue
        plain = len(_PLAIN.findall(judged)) / max(1, len(judged))
        few = _MIN_PLAIN_OF_FEW if len(judged) < _FEW_CHARACTERS else _MIN_PLAIN_FRACTION
        is_surely_plain = plain >= _MIN_SURELY_PLAIN_FRACTION
        is_odd = len(data) % _width(encoding) > 0 and not (is_surely_plain and len(judged) >= _FEW_CHARACTERS)
        if plain <= max(plainest, few) or is_odd:
            continue
        others = [ord(character) for character in judged if not _PLAIN.match(character)]
        ascii_pairs = sum(0x20 <= code >> 8 <= 0x7E and 0x20 <= code & 0xFF <= 0x7E for code in others)
        if not is_surely_plain and ascii_pairs > _MAX_ASCII_PAIRS * len(others):
            continue
        unassigned = sum(unicodedata.category(character) in ("Cn", "Co") for character in judged)
        if unassigned <= _MAX_ODD_FRACTION * len(judged):
            plainest, found = plain, encoding
    return found


def is_lfs_pointer(text: str) -> bool:
    """Return whether a file is a Git LFS pointer, which contains a large file's size and hash."""
    return text.startswith(_LFS_POINTER) and len(text) < _LFS_CHARACTERS


def has_replaced_bytes(data: bytes, text: str) -> bool:
    """Return whether ``decode`` replaced undecodable bytes of ``data``."""
    return REPLACEMENT in text and REPLACEMENT.encode() not in data


def _is_mostly_utf8(damaged: str) -> bool:
    """Return whether text decoded with replacements has more multibyte characters than replacements."""
    replaced = damaged.count(REPLACEMENT)
    return len(damaged) - len(damaged.encode("ascii", errors="ignore")) > 2 * replaced


def _detect(sample: bytes) -> str | None:
    """Return the legacy encoding of ``sample``, as a Python codec name."""
    from charset_normalizer import from_bytes  # takes 50 ms to import, and is rarely needed

    high = len(sample) - len(sample.translate(None, _HIGH_BYTES))
    letters = len(sample) - len(sample.translate(None, _LETTERS))
    if _is_hebrew(sample):
        return "cp1255"
    is_mostly_ascii = high < _MAX_WESTERN_FRACTION * letters
    if is_mostly_ascii and (encoding := _by_alphabet(sample)):
        return encoding
    if high < _DETECTABLE_BYTES and is_mostly_ascii:
        # There is too little evidence to distinguish it from similar encodings, unless it makes no words at all.
        matches = from_bytes(sample, cp_isolation=["cp1250", "cp1252"])
        is_western = not matches or any("cp1252" in each.could_be_from_charset for each in matches)
        return "cp1252" if is_western else "cp1250"
    # Truncation may split a multibyte character, which would exclude its encoding.
    start, end = sample.find(b"\n") + 1, sample.rfind(b"\n") + 1
    sample = sample[start:end] if len(sample) == _SAMPLE_BYTES and start < end else sample
    if japanese := next((encoding for encoding in _JAPANESE if _has_kana(sample, encoding)), None):
        return japanese
    best = from_bytes(sample, cp_exclusion=_RARE).best()
    if best is None:
        return None
    return "cp1252" if "cp1252" in best.could_be_from_charset else best.encoding


def _by_alphabet(sample: bytes) -> str | None:
    """Return the first encoding in which each line of a text has the letters of one language, or None."""
    for encoding, alphabets in _ALPHABETS.items():
        text = sample.decode(encoding, errors="replace")
        lines = [{letter for letter in line if not letter.isascii()} - _SYMBOLS for line in text.lower().split("\n")]
        if not _SYMBOL_IN_WORD.search(text) and all(any(line <= {*each} for each in alphabets) for line in lines):
            return encoding
    return None


def _is_hebrew(sample: bytes) -> bool:
    """Return whether a text is Hebrew: its final letters are only at the end of words.

    In other encodings, these bytes are common letters, also inside words, such as the Russian к, н and у.
    """
    words = [
        word for word in re.findall(rb"[A-Za-z\x80-\xff]+", sample.translate(_HEBREW_SEPARATORS)) if not word.isascii()
    ]
    letters = b"".join(words)
    if len(words) < 2 or len(letters) < _MIN_HEBREW_LETTERS or letters.translate(None, _HEBREW_LETTERS):
        return False
    return all(len(word) == len(word.translate(None, _HEBREW_FINALS)) for word in (each[:-1] for each in words))


def _has_kana(sample: bytes, encoding: str) -> bool:
    """Return whether ``encoding`` yields as much hiragana as all Japanese text has, and no other text.

    A sentence is too short for statistics: the library reads it as Korean, too.
    """
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return False
    foreign = len(text) - len(text.encode("ascii", errors="ignore"))
    hiragana = _HIRAGANA.findall(text)
    # Korean "ㅋㅋㅋㅋ" is one hiragana, repeated.
    return len({*hiragana}) >= _MIN_HIRAGANA and len(hiragana) >= _MIN_HIRAGANA_FRACTION * foreign


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
class Ends:
    """A large file's first and last lines; those between them are replaced by GAP_LINE and empty lines.

    ``content_hash``, ``md5`` and ``size_bytes`` describe the whole file.
    """

    data: bytes
    size_bytes: int
    content_hash: str
    md5: str


def read_ends(chunks: Iterable[bytes], most: int) -> Ends | None:
    r"""Return the lines of a file that fit into its first and last ``most / 2`` bytes, or None if there are none.

    Lines must end with ``\n`` and be text in an encoding that extends ASCII. Uses ``most`` bytes of memory, plus one
    chunk, plus one byte per omitted line.

    >>> read_ends([b"one\ntwo\nthree\nfour\n"], 12).data
    b'one\n<[{(|~^...^~|)}]>\n\nfour\n'
    """
    digest, md5, size = hashlib.blake2b(digest_size=16), hashlib.md5(usedforsecurity=False), 0
    head, tail, held, lines = bytearray(), deque[bytes](), 0, 0
    half = most // 2
    other_half = most - half
    for chunk in chunks:
        digest.update(chunk)
        md5.update(chunk)
        size += len(chunk)
        rest = chunk
        if len(head) < half:
            rest = chunk[half - len(head) :]
            head += chunk[: half - len(head)]
            is_binary = b"\0" in head[:_BINARY_WINDOW]
            if is_binary or (len(head) == half and b"\n" not in head):
                return None
        tail.append(rest)
        held += len(rest)
        while held - len(tail[0]) >= other_half:
            held -= len(tail[0])
            lines += tail.popleft().count(b"\n")
    kept = b"".join(tail)
    first, last = head.rfind(b"\n") + 1, kept.find(b"\n", max(0, len(kept) - other_half)) + 1 or len(kept)
    if size <= most:
        first, last = len(head), 0
    lines += head.count(b"\n", first) + kept.count(b"\n", 0, last)
    gap = GAP_LINE.encode() if size > most else b""
    data = b"".join((head[:first], gap, b"\n" * lines, kept[last:]))
    return Ends(data, size, digest.hexdigest(), md5.hexdigest())


@dataclass(frozen=True, slots=True)
class SplitLines:
    """The rows of several documents, in order: four arrays of equal length.

    ``text`` is ``string``; ``doc_index`` is ``int32`` into the documents; ``line_number`` is ``int32``, 0-based;
    ``column_number`` is ``int32``, the position in its line where a row starts. ``left_out`` maps document indexes to
    the number of characters dropped from overlong lines.
    """

    text: pa.StringArray
    doc_index: pa.Int32Array
    line_number: pa.Int32Array
    column_number: pa.Int32Array
    left_out: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.text)


def split_documents(texts: Sequence[str], *, every_document: bool = False) -> SplitLines:
    r"""Return the lines of ``texts`` that contain a letter or digit (Unicode L and N), numbered as in editors.

    ``\n``, ``\r\n`` and ``\r`` end a line; other separators of ``str.splitlines`` do not. A line becomes one row, or
    several according to ``rows_of_line``. If ``every_document`` is set, a text with no such lines is represented by its
    first line. Raises ArrowInvalid if all texts together have 2 GiB or more of UTF-8.
    """
    documents = pa.array([_unix_line_ends(text) for text in texts], pa.string())
    offsets = np.frombuffer(documents.buffers()[1], np.int32)[: len(documents) + 1]
    data = np.frombuffer(documents.buffers()[2] or b"", np.uint8)[: offsets[-1]]

    newlines = np.flatnonzero(data == ord("\n")).astype(np.int32)
    before = np.searchsorted(newlines, offsets).astype(np.int32)
    # A document with k newlines has k + 1 lines; an empty last line is dropped like all empty lines.
    ends = np.insert(newlines, before[1:], offsets[1:])
    first_line = before[:-1] + np.arange(len(documents), dtype=np.int32)
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1] + 1
    starts[first_line] = offsets[:-1]
    doc_index = np.repeat(np.arange(len(documents), dtype=np.int32), np.diff(before) + 1)
    line_number = np.arange(len(ends), dtype=np.int32) - first_line[doc_index]

    filled = np.flatnonzero(starts < ends)
    kept = filled[_has_word(documents, data, starts[filled], ends[filled])]
    if every_document:
        wordless = np.setdiff1d(np.flatnonzero(np.diff(offsets)), doc_index[kept])
        kept = np.union1d(kept, first_line[wordless])
    starts, ends = starts[kept], ends[kept]
    text = _slices(documents, starts, ends)
    numbers = np.asarray(line_number[kept], np.int32)
    return _with_long_lines(text, doc_index[kept], numbers, ends - starts > MAX_ROW_CHARACTERS)


def rows_of_line(line: str) -> list[tuple[int, str]]:
    """Split one line into rows, each with its column: the whole line, or parts of at most MAX_ROW_CHARACTERS.

    Parts end preferably after whitespace, then after another non-word character, then anywhere. The parts are
    contiguous. Whitespace after the last part, and text after MAX_ROWS_OF_LINE parts, is dropped.
    """
    if len(line) <= MAX_ROW_CHARACTERS:
        return [(0, line)]
    rows: list[tuple[int, str]] = []
    start, end = 0, len(line.rstrip())
    while start < end and len(rows) < MAX_ROWS_OF_LINE:
        stop = end if end - start <= MAX_ROW_CHARACTERS else _end_of_part(line, start)
        rows.append((start, line[start:stop]))
        start = stop
    return rows


def _end_of_part(line: str, start: int) -> int:
    farthest, nearest = start + MAX_ROW_CHARACTERS, start + MAX_ROW_CHARACTERS // 2
    blank = max(line.rfind(" ", nearest, farthest), line.rfind("\t", nearest, farthest))
    if blank >= 0:
        return blank + 1
    behind = (at for at in range(farthest - 1, nearest, -1) if not (line[at].isalnum() or line[at] in "_-"))
    return next(behind, farthest - 1) + 1


def _with_long_lines(
    text: pa.StringArray, doc_index: NDArray[np.int32], line_number: NDArray[np.int32], may_be_long: NDArray[np.bool_]
) -> SplitLines:
    """Split those lines into rows that ``may_be_long``."""
    candidates = np.flatnonzero(may_be_long)
    rows, counts, left_out = list[tuple[int, str]](), np.ones(len(text), np.int64), dict[int, int]()
    for at, line in zip(candidates.tolist(), text.take(pa.array(candidates)).to_pylist(), strict=True):
        parts = rows_of_line(line)
        if len(parts) > 1:
            rows += parts
            counts[at] = len(parts)
            rest = len(line.rstrip()) - parts[-1][0] - len(parts[-1][1])
            if rest:
                left_out[int(doc_index[at])] = left_out.get(int(doc_index[at]), 0) + rest
    columns = np.zeros(int(counts.sum()), np.int32)
    if rows:
        is_long = np.repeat(counts > 1, counts)
        columns[is_long] = [column for column, _ in rows]
        order = np.empty(len(columns), np.int64)
        order[~is_long] = np.arange(np.count_nonzero(~is_long))
        order[is_long] = np.count_nonzero(~is_long) + np.arange(len(rows))
        parts_text = pa.array([part for _, part in rows], pa.string())
        text = pa.concat_arrays([text.filter(pa.array(counts == 1)), parts_text]).take(pa.array(order))
        doc_index, line_number = np.repeat(doc_index, counts), np.repeat(line_number, counts)
    return SplitLines(text, pa.array(doc_index), pa.array(line_number), pa.array(columns), left_out)


def split_lines(text: str) -> list[str]:
    """Return all lines of a text unsplit, numbered as in ``split_documents``."""
    lines = _unix_line_ends(text).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def lines_between(text: str, first: int, last: int) -> list[str]:
    """Return lines ``first`` to ``last`` of ``split_lines``, 0-based and inclusive; fewer if the text ends earlier."""
    lines = _unix_line_ends(text).split("\n", last + 1)
    if len(lines) == last + 2 or lines[-1] == "":
        del lines[-1]  # the rest of the text
    return lines[first:]


def _unix_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _has_word(
    documents: pa.StringArray, data: NDArray[np.uint8], starts: NDArray[np.int32], ends: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return whether each of these non-empty lines contains a letter or digit.

    ASCII lines are checked with arithmetic; the much slower regular expression checks only the rest.
    """
    if not len(starts):
        return np.empty(0, np.bool_)
    is_digit = data - np.uint8(ord("0")) < 10  # unsigned: smaller values wrap around
    is_letter = (data | np.uint8(0x20)) - np.uint8(ord("a")) < 26
    # Each segment extends to the next line; the newlines between them do not matter.
    has_word = np.logical_or.reduceat(is_digit | is_letter, starts)
    unsure = np.flatnonzero(~has_word)
    lines = _slices(documents, starts[unsure], ends[unsure])
    has_word[unsure] = pc.match_substring_regex(lines, r"\pL|\pN").to_numpy(zero_copy_only=False)
    return has_word


def _slices(strings: pa.StringArray, starts: NDArray[np.int32], ends: NDArray[np.int32]) -> pa.StringArray:
    """Return the substrings ``[starts[i], ends[i])`` of the data of ``strings``, in order and non-overlapping."""
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = ends[-1] if len(ends) else 0
    with_gaps = pa.StringArray.from_buffers(2 * len(starts), pa.py_buffer(offsets), strings.buffers()[2])
    return with_gaps.take(pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)))
