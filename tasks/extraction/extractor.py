"""Text out of documents: which extractor reads a file, chosen by its content first and its name second.

An extractor gets the bytes of a file and returns lines with anchors. The manifest records its name and version, so that
a new version reads again only what it concerns. A compressed file is what it holds.
"""

from __future__ import annotations

import bz2
import lzma
import posixpath
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.lines.outline import Anchor, Definition
from driftline.storage.model import SkipReason
from driftline.tasks.text import decode, has_replaced_bytes

EXTRA = "documents"
"""The extra of the package that some extractors need."""
MAX_EXTRACTED_CHARACTERS = 64 * 2**20
"""No document has so much text; what unpacks to more is left out."""
MAX_UNPACKED_BYTES = 64 * 2**20
_SNIFFED_BYTES = 1_024
_LZMA_MEMORY_BYTES = 256 * 2**20
MAX_ANCHOR_CHARACTERS = 160
_BLANKS = re.compile(r"\s+")
_WORD = re.compile(r"[^\W_]")


@dataclass(frozen=True, slots=True)
class Part:
    """Lines ``first`` to ``last`` of an extracted text, 0-based, that are written in the language of ``suffix``."""

    suffix: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a document, whose lines end with ``\\n``, where they stand in it, and in which language.

    The language of a text without ``parts`` follows from the name of its file.
    """

    text: str
    anchors: tuple[Anchor, ...] = ()
    parts: tuple[Part, ...] = ()


EMPTY = Extracted("")


class Refused(Exception):
    """An extractor cannot read a file, for a ``reason``."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(slots=True)
class Draft:
    """A text while it is extracted: lines are added to the anchor and the part that was begun last."""

    lines: list[str] = field(default_factory=list)
    _anchors: list[tuple[str, int]] = field(default_factory=list)
    _parts: list[tuple[str, int]] = field(default_factory=list)
    _characters: int = 0

    def at(self, anchor: str) -> None:
        """Begin what stands at ``anchor``."""
        name = _BLANKS.sub(" ", anchor).strip()[:MAX_ANCHOR_CHARACTERS]
        if not self._anchors or self._anchors[-1][0] != name:
            self._anchors.append((name, len(self.lines)))

    def begin(self, suffix: str) -> None:
        """Begin what is written in the language of ``suffix``; "" is none."""
        if not self._parts or self._parts[-1][0] != suffix:
            self._parts.append((suffix, len(self.lines)))

    def add(self, text: str) -> None:
        """Add one or more lines. Raises Refused."""
        self._characters += len(text) + 1
        if self._characters > MAX_EXTRACTED_CHARACTERS:
            raise Refused(SkipReason.BOMB)
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.lines += text.split("\n")

    def done(self) -> Extracted:
        """The text. Raises Refused if it has no letter or digit."""
        text = "".join([f"{line}\n" for line in self.lines])
        if not _WORD.search(text):
            raise Refused(SkipReason.NO_TEXT)
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON may hold halves of surrogate pairs
            text = text.encode("utf-8", "replace").decode()
        ends = len(self.lines) - 1
        anchors = tuple(Anchor(name, first, last) for name, first, last in _until_next(self._anchors, ends))
        parts = tuple(Part(suffix, first, last) for suffix, first, last in _until_next(self._parts, ends) if suffix)
        return Extracted(text, anchors, parts)


def _until_next(begun: Sequence[tuple[str, int]], end: int) -> Iterator[tuple[str, int, int]]:
    """``(name, first line, last line)`` of what begins at lines and lasts until the next begins; nothing empty."""
    for at, (name, first) in enumerate(begun):
        last = begun[at + 1][1] - 1 if at + 1 < len(begun) else end
        if name and first <= last:
            yield name, first, last


@dataclass(frozen=True, slots=True)
class Extractor:
    """What makes text of one kind of file: ``name`` and ``version`` stand in the manifest.

    ``suffixes`` are those of the names of such files. ``takes`` says whether bytes under a suffix are one. ``function``
    in ``module`` of this package does the work; it needs the library ``needs`` of the extra, if any. What is
    ``isolated`` runs in a process of its own, since files of its kind are large, or can hang or crash their reader.
    Without its library, what ``is_text`` is indexed as it stands, and other files are skipped.
    """

    name: str
    version: int
    suffixes: tuple[str, ...]
    takes: Callable[[bytes, str], bool]
    module: str
    function: str
    needs: str = ""
    isolated: bool = True
    is_text: bool = False

    @property
    def is_there(self) -> bool:
        """Whether the library that it needs is installed."""
        return not self.needs or _is_installed(self.needs)

    @property
    def mark(self) -> str:
        """What the manifest records: ``pdf/1``, or ``pdf/0`` where its library is missing."""
        return f"{self.name}/{self.version if self.is_there else 0}"

    def extract(self, data: bytes) -> Extracted:
        """The text of ``data``, in this process. Raises Refused."""
        run: Callable[[bytes], Extracted] = getattr(import_module(f"{__package__}.{self.module}"), self.function)
        return run(data)


@cache
def _is_installed(module: str) -> bool:
    return find_spec(module) is not None


# -- choice --------------------------------------------------------------------------------------


def _is_notebook(data: bytes, suffix: str) -> bool:
    if suffix not in ("", "ipynb", "json") or data[:64].lstrip()[:1] != b"{":
        return False
    return suffix == "ipynb" or b'"nbformat"' in data[:_SNIFFED_BYTES] + data[-_SNIFFED_BYTES:]


EXTRACTORS: tuple[Extractor, ...] = (
    Extractor("notebook", 1, ("ipynb",), _is_notebook, "text_formats", "notebook", isolated=False),
)
"""In the order in which they are asked."""


@dataclass(frozen=True, slots=True)
class Compression:
    """A way to compress one file; ``magic`` begins each such file."""

    name: str
    version: int
    suffixes: tuple[str, ...]
    magic: bytes
    unpack: Callable[[bytes], bytes]
    needs: str = ""

    @property
    def is_there(self) -> bool:
        return not self.needs or _is_installed(self.needs)

    @property
    def mark(self) -> str:
        return f"{self.name}/{self.version if self.is_there else 0}"


class _Decompressor(Protocol):
    """What the decompressors of the standard library have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _unpack(data: bytes, new: Callable[[], _Decompressor], error: type[Exception]) -> bytes:
    """The content of a compressed file of one or more members. Raises Refused."""
    parts: list[bytes] = []
    size = 0
    try:
        while data:
            member = new()
            parts.append(member.decompress(data, MAX_UNPACKED_BYTES + 1 - size))
            size += len(parts[-1])
            if size > MAX_UNPACKED_BYTES:
                raise Refused(SkipReason.BOMB)
            if not member.eof:
                raise Refused(SkipReason.DAMAGED)  # it was cut off
            data = member.unused_data.lstrip(b"\0")
    except error:
        if not parts:
            raise Refused(SkipReason.DAMAGED) from None
        # what follows the last member is no part of the file, as gzip has it
    return b"".join(parts)


def _gzip(data: bytes) -> bytes:
    return _unpack(data, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), zlib.error)


def _bzip2(data: bytes) -> bytes:
    return _unpack(data, bz2.BZ2Decompressor, OSError)


def _xz(data: bytes) -> bytes:
    return _unpack(data, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _LZMA_MEMORY_BYTES), lzma.LZMAError)


COMPRESSIONS: tuple[Compression, ...] = (
    Compression("gzip", 1, ("gz",), b"\x1f\x8b\x08", _gzip),
    Compression("bzip2", 1, ("bz2",), b"BZh", _bzip2),
    Compression("xz", 1, ("xz",), b"\xfd7zXZ\0", _xz),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a file is read: the ``data`` under a ``path``, unpacked if it was compressed, and by which ``extractor``.

    ``mark`` is what the manifest records of it. Without an extractor the file is text, unless a ``reason`` says why it
    cannot be read.
    """

    path: str
    data: bytes
    extractor: Extractor | None
    mark: str
    reason: SkipReason | None = None


def choose(path: str, data: bytes) -> Choice:
    """How the file ``data``, named ``path``, is read."""
    marks: list[str] = []
    compression = next((each for each in COMPRESSIONS if data.startswith(each.magic)), None)
    if compression is not None:
        marks.append(compression.mark)
        stem, suffix = posixpath.splitext(path)
        path = stem if suffix[1:].lower() in compression.suffixes else path
        if not compression.is_there:
            return Choice(path, b"", None, compression.mark, SkipReason.NEEDS_EXTRA)
        try:
            data = compression.unpack(data)
        except Refused as refused:
            return Choice(path, b"", None, compression.mark, refused.reason)
    suffix = _suffix(path)
    extractor = next((each for each in EXTRACTORS if each.takes(data, suffix)), None)
    named = BY_SUFFIX.get(suffix)
    if extractor is not None:
        marks.append(extractor.mark)
    elif isinstance(named, Extractor):
        marks.append(f"-{named.mark}")
    lacks = extractor is not None and not extractor.is_there
    reason = SkipReason.NEEDS_EXTRA if lacks and extractor is not None and not extractor.is_text else None
    return Choice(path, data, None if lacks else extractor, "+".join(marks), reason)


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading a file came to: its text, or the ``reason`` why it has none.

    ``path`` tells the language of the text, ``mark`` is for the manifest, and ``replaced`` says that bytes were
    replaced which are not text in the encoding of the file.
    """

    path: str
    mark: str
    extracted: Extracted = EMPTY
    reason: SkipReason | None = None
    replaced: bool = False


def read_document(path: str, data: bytes) -> Reading:
    """Read the file ``data``, named ``path``, as text or with its extractor."""
    choice = choose(path, data)
    if choice.reason is not None:
        return Reading(choice.path, choice.mark, reason=choice.reason)
    if choice.extractor is None:
        text, reason = decode(choice.data)
        replaced = reason is None and has_replaced_bytes(choice.data, text)
        return Reading(choice.path, choice.mark, Extracted(text), reason, replaced)
    try:
        return Reading(choice.path, choice.mark, choice.extractor.extract(choice.data))
    except Refused as refused:
        return Reading(choice.path, choice.mark, reason=refused.reason)


def is_extracted(path: str, data: bytes) -> bool:
    """Whether ``read_document`` does more than to decode a file."""
    suffix = _suffix(path)
    return any(data.startswith(each.magic) for each in COMPRESSIONS) or any(
        each.is_there and each.takes(data, suffix) for each in EXTRACTORS
    )


def _suffix(path: str) -> str:
    return posixpath.splitext(path)[1][1:].lower()


READERS: tuple[Extractor | Compression, ...] = (*COMPRESSIONS, *EXTRACTORS)
BY_SUFFIX = {suffix: each for each in READERS for suffix in each.suffixes}
_NAMED_PATTERN = rf"\.(?i:{'|'.join(map(re.escape, BY_SUFFIX))})$"


def is_named_like_document(path: str) -> bool:
    """Whether a file has the name of a document or of a compressed file."""
    return _suffix(path) in BY_SUFFIX


def outdated(paths: pa.ChunkedArray, marks: pa.ChunkedArray) -> NDArray[np.bool_]:
    """``(n,) bool``: which files an extractor, or another version of it, would read in another way than the last run.

    ``marks`` are those of the manifest; without a mark, null or "", a file was read as text.
    """
    distinct = pc.unique(marks).to_pylist()
    old = pa.array([mark for mark in distinct if mark and not _is_current(mark)], pa.string())
    unmarked = pc.equal(pc.fill_null(marks, ""), "")
    unread = pc.and_(unmarked, pc.match_substring_regex(paths, _NAMED_PATTERN))
    return np.asarray(pc.or_(unread, pc.is_in(marks, value_set=old)).to_numpy(), dtype=bool)


def is_current(path: str, mark: str) -> bool:
    """Whether a document of this ``mark`` would be read today as it was."""
    return _is_current(mark) if mark else not is_named_like_document(path)


def _is_current(mark: str) -> bool:
    return {part.removeprefix("-") for part in mark.split("+")} <= current_marks()


def current_marks() -> frozenset[str]:
    """The marks that documents get today."""
    return frozenset(each.mark for each in READERS)


def definitions_by_part(
    documents: Sequence[tuple[str, Extracted]],
) -> tuple[list[tuple[str, str]], Callable[[list[list[Definition]]], list[list[Definition]]]]:
    """Texts by language, as ``(path, text)``, and what makes the definitions in them those of ``documents``."""
    texts: list[tuple[str, str]] = []
    places: list[tuple[int, int]] = []
    for at, (path, extracted) in enumerate(documents):
        if not extracted.parts:
            texts.append((path, extracted.text))
            places.append((at, 0))
            continue
        lines = extracted.text.split("\n")
        for part in extracted.parts:
            texts.append((f"{path}.{part.suffix}", "\n".join(lines[part.first : part.last + 1])))
            places.append((at, part.first))

    def joined(found: list[list[Definition]]) -> list[list[Definition]]:
        result: list[list[Definition]] = [[] for _ in documents]
        for (at, shift), each in zip(places, found, strict=True):
            result[at] += (Definition(d.kind, d.name, d.line + shift, d.first + shift, d.last + shift) for d in each)
        return result

    return texts, joined
