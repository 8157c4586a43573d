"""Extract text from documents; a file's extractor is chosen by content first and by name second.

An extractor converts a file's bytes to lines with anchors. The manifest records its name and version as a mark, and a
new version causes only the affected files to be reread (``outdated``). Compressed files are handled like their content.
"""

from __future__ import annotations

import codecs
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.defaults import Redaction
from driftline.storage.documents import INSIDE, NAMED_LIKE_ARCHIVE, SkipReason
from driftline.storage.lines.outline import Anchor, Definition
from driftline.storage.redaction import redact, split_mark
from driftline.tasks.definitions.find_definitions import nested_sections
from driftline.tasks.extraction.compression import COMPRESSIONS, Compression, compression_of, is_tar
from driftline.tasks.extraction.process import Refused, extract_apart
from driftline.tasks.text import decode, has_replaced_bytes

EXTRA = "documents"
"""The package extra that some extractors require."""
MAX_EXTRACTED_CHARACTERS = 64 * 2**20
"""Maximum length of a document's text; a file that expands to more is skipped."""
SOFT_HYPHEN = "\xad"
"""Marks where a word may be broken; words are indexed without it."""
_SNIFFED_BYTES = 1_024
_JUDGED_BYTES = 8_192
MISSING_MARK = r"(?:^|\+)\w+/0"
"""The mark of files whose extractor is not installed."""
ENDS_MARK = r"(?:^|\+)ends/"
"""The mark of files that are indexed only with their first and last lines."""
MAX_ANCHOR_CHARACTERS = 160
_BLANKS = re.compile(r"\s+")
_WORD = re.compile(r"[^\W_]")


@dataclass(frozen=True, slots=True)
class Part:
    """Lines ``first`` to ``last`` (0-based) of extracted text that are in the language of ``suffix``."""

    suffix: str
    first: int
    last: int


class Heading(NamedTuple):
    """A heading at a 0-based line of extracted text; ``level`` 1 is the highest."""

    level: int
    line: int


@dataclass(frozen=True, slots=True)
class Extracted:
    r"""A document's text, with ``\n`` line endings and anchors.

    ``parts`` gives the language of ranges of lines, ``headings`` those of sections; without either, the file name
    determines the language.
    """

    text: str
    anchors: tuple[Anchor, ...] = ()
    parts: tuple[Part, ...] = ()
    headings: tuple[Heading, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the text as a JSON object."""
        anchors = [(each.name, each.first, each.last) for each in self.anchors]
        parts = [(each.suffix, each.first, each.last) for each in self.parts]
        return {"text": self.text, "anchors": anchors, "parts": parts, "headings": self.headings}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Self:
        """Validate the response of a process that a malicious document may have taken over. Raises Refused."""
        try:
            text = _encodable(str(said["text"]))
            lines = text.count("\n")
            anchors = tuple(Anchor(*_anchored_lines(*each, lines=lines)) for each in said["anchors"])
            parts = tuple(Part(*_anchored_lines(*each, lines=lines)) for each in said["parts"])
            found = said["headings"]
            headings = None if found is None else tuple(_heading(*each, lines=lines) for each in found)
            return cls(text, anchors, parts, headings)
        except (KeyError, TypeError, ValueError):
            raise Refused(SkipReason.DAMAGED) from None


def _anchored_lines(name: object, first: object, last: object, *, lines: int) -> tuple[str, int, int]:
    if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last <= lines):
        raise ValueError("no lines of the text")
    return _BLANKS.sub(" ", _encodable(str(name)))[:MAX_ANCHOR_CHARACTERS], first, last


def _heading(level: object, line: object, *, lines: int) -> Heading:
    if not (isinstance(level, int) and isinstance(line, int) and level > 0 and 0 <= line <= lines):
        raise ValueError("no line of the text")
    return Heading(level, line)


def _encodable(text: str) -> str:
    """Remove unpaired surrogates from ``text``: JSON may contain them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


EMPTY = Extracted("")


def redacted(found: Sequence[Extracted], mode: Redaction) -> tuple[list[Extracted], Counter[str]]:
    """Redact credentials in lines and anchors; return the texts and the number of replacements per rule."""
    texts, counts = redact([each.text for each in found], mode)
    names, of_names = redact([anchor.name for each in found for anchor in each.anchors], mode)
    if not counts and not of_names:
        return [*found], counts
    left = iter(names)
    anchors = [tuple(replace(anchor, name=next(left)) for anchor in each.anchors) for each in found]
    changed = zip(found, texts, anchors, strict=True)
    return [replace(each, text=text, anchors=named) for each, text, named in changed], counts + of_names


@dataclass(slots=True)
class Draft:
    """Text under construction: lines are added to the current anchor and part."""

    lines: list[str] = field(default_factory=list)
    _anchors: list[tuple[str, int]] = field(default_factory=list)
    _parts: list[tuple[str, int]] = field(default_factory=list)
    _headings: list[Heading] = field(default_factory=list)
    _characters: int = 0

    def at(self, anchor: str) -> None:
        """Start the lines of ``anchor``."""
        name = _BLANKS.sub(" ", anchor).strip()[:MAX_ANCHOR_CHARACTERS]
        if not self._anchors or self._anchors[-1][0] != name:
            self._anchors.append((name, len(self.lines)))

    def begin(self, suffix: str) -> None:
        """Begin a block of lines in the language of files with ``suffix``; "" means no language."""
        if not self._parts or self._parts[-1][0] != suffix:
            self._parts.append((suffix, len(self.lines)))

    def head(self, level: int) -> None:
        """Make the next line a heading at ``level``, 1-based."""
        self._headings.append(Heading(level, len(self.lines)))

    def add(self, text: str, prefix: str = "") -> None:
        """Add one or more lines. ``prefix`` is Markdown syntax before the first line: ``## `` makes it a heading.

        Raises Refused.
        """
        if prefix.startswith("#"):
            self.head(prefix.count("#"))
        text = prefix + text
        self._characters += len(text) + 1
        if self._characters > MAX_EXTRACTED_CHARACTERS:
            raise Refused(SkipReason.BOMB)
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.lines += text.split("\n")

    def done(self) -> Extracted:
        """Return the text. Raises Refused if it contains no letters or digits."""
        text = _encodable("".join([f"{line}\n" for line in self.lines]))
        if not _WORD.search(text):
            raise Refused(SkipReason.NO_TEXT)
        ends = len(self.lines) - 1
        anchors = tuple(Anchor(name, first, last) for name, first, last in _until_next(self._anchors, ends))
        parts = tuple(Part(suffix, first, last) for suffix, first, last in _until_next(self._parts, ends) if suffix)
        return Extracted(text, anchors, parts, None if self._parts else tuple(self._headings))


def _until_next(begun: Sequence[tuple[str, int]], end: int) -> Iterator[tuple[str, int, int]]:
    """Yield ``(name, first line, last line)`` of each non-empty range; a range ends where the next one starts."""
    for at, (name, first) in enumerate(begun):
        last = begun[at + 1][1] - 1 if at + 1 < len(begun) else end
        if name and first <= last:
            yield name, first, last


@dataclass(frozen=True, slots=True)
class Extractor:
    """An extractor for one type of file; ``name`` and ``version`` are recorded in the manifest.

    ``suffixes`` are the file name suffixes of the type. ``takes`` checks whether the bytes of a file with such a name
    are of this type. ``function`` in this package's ``module`` extracts the text; it requires the extra's library
    ``needs``, if set. ``isolated`` extractors run in a separate process, because their files are large, or can hang or
    crash their reader. ``packed`` extractors read only compressed files: uncompressed files of the type are sources
    that users edit and open by line number. If the library is missing, text files (``is_text``) are indexed unchanged,
    and others are skipped.
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
    packed: bool = False

    @property
    def is_available(self) -> bool:
        """Whether the extractor's library is installed."""
        return not self.needs or _is_installed(self.needs)

    @property
    def mark(self) -> str:
        """The manifest entry: ``pdf/1``, or ``pdf/0`` if its library is not installed."""
        return f"{self.name}/{self.version if self.is_available else 0}"

    def extract(self, data: bytes) -> Extracted:
        """Return the text of ``data``. Raises Refused."""
        if self.isolated:
            return Extracted.from_dict(extract_apart(f"{__package__}.{self.module}:{self.function}", data))
        return self.extract_here(data)

    def extract_here(self, data: bytes) -> Extracted:
        """Return the text of ``data`` without another process. Raises Refused."""
        run: Callable[[bytes], Extracted] = getattr(import_module(f"{__package__}.{self.module}"), self.function)
        return run(data)


@cache
def _is_installed(module: str) -> bool:
    return find_spec(module) is not None


# -- choice --------------------------------------------------------------------------------------


def _head(data: bytes) -> bytes:
    """Return the first bytes, in UTF-8 if a byte order mark says otherwise."""
    return narrow(data[:_JUDGED_BYTES])


_WIDE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def narrow(data: bytes) -> bytes:
    """Return text without its byte order mark, in UTF-8 if that says that it is in UTF-16 or UTF-32."""
    if data.startswith(_WIDE):
        data = data.decode("utf-32" if data.startswith(_WIDE[:2]) else "utf-16", "replace").encode("utf-8", "replace")
    return data.removeprefix(codecs.BOM_UTF8)


def _is_notebook(data: bytes, suffix: str) -> bool:
    if suffix not in ("", "ipynb", "json") or _head(data).lstrip()[:1] != b"{":
        return False
    return suffix == "ipynb" or b'"nbformat"' in data[:_SNIFFED_BYTES] + data[-_SNIFFED_BYTES:]


_TAG = re.compile(
    rb"<(?:!doctype\s+html|html|head|body|title|p|div|h[1-6]|table|ul|article|section|main)[\s>]", re.IGNORECASE
)
_TEMPLATE = re.compile(rb"(?:=[\"']?|>)\s*\{\{|\{%|<%|<\?(?:php|=)")
"""Placeholders of template engines: such pages are source code."""
_HTML_SUFFIXES = ("html", "htm", "xhtml", "xht")


def _is_html(data: bytes, suffix: str) -> bool:
    if suffix and suffix not in _HTML_SUFFIXES:
        return False
    judged = _head(data)
    start = judged[:_SNIFFED_BYTES].lstrip()
    if not suffix and not start[:15].lower().startswith((b"<!doctype html", b"<html")):
        return False
    return start.startswith(b"<") and bool(_TAG.search(judged)) and not _TEMPLATE.search(judged)


def _is_pdf(data: bytes, suffix: str) -> bool:
    return data.startswith(b"%PDF-") or (suffix == "pdf" and b"%PDF-" in data[:_SNIFFED_BYTES])


def _holds(part: bytes, *suffixes: str) -> Callable[[bytes, str], bool]:
    """Return a predicate for archives with an entry whose whole name matches ``part``.

    It also takes files with one of ``suffixes`` that are encrypted, or damaged archives of such an entry.
    """
    listed, named = _listing(part), re.compile(part, re.IGNORECASE)

    def takes(data: bytes, suffix: str) -> bool:
        if data.startswith(OLE):
            return suffix in suffixes and _ENCRYPTED_PACKAGE in data
        is_zip = data.startswith(_ZIP)
        return is_zip and (_lists(data, listed) or (suffix in suffixes and named.search(data) is not None))

    return takes


def _says(kind: bytes, part: bytes, *suffixes: str) -> Callable[[bytes, str], bool]:
    """Return a predicate for archives whose first entry is a media type that starts with ``kind``. Some programs store
    the media type elsewhere, so archives with one of ``suffixes`` need to contain only ``part``.
    """
    listed = _listing(part)

    def takes(data: bytes, suffix: str) -> bool:
        begins = data[30:128].startswith(b"mimetypeapplication/" + kind)
        return data.startswith(_ZIP) and (begins or (suffix in suffixes and _lists(data, listed)))

    return takes


def _listing(part: bytes) -> re.Pattern[bytes]:
    """Return a pattern for an entry of a zip file's directory: the length of its name, and the name."""
    return re.compile(rb"PK\x01\x02.{24}(..).{16}(%s)" % part, re.DOTALL | re.IGNORECASE)


def _lists(data: bytes, listed: re.Pattern[bytes]) -> bool:
    """Return whether the directory of a zip file has such an entry; files inside may have directories too."""
    end = data.rfind(_EMPTY_ZIP, -_DIRECTORY_END_BYTES)
    size = int.from_bytes(data[end + 12 : end + 16], "little") if end >= 0 else 0
    entries = listed.finditer(data, max(0, end - size), max(0, end))
    return any(int.from_bytes(length, "little") == len(name) for length, name in (each.groups() for each in entries))


_ZIP, _EMPTY_ZIP = b"PK\x03\x04", b"PK\x05\x06"
OLE = b"\xd0\xcf\x11\xe0"
"""The first bytes of legacy Office files, and of encrypted current ones."""
_DIRECTORY_END_BYTES = 22 + 2**16
"""The record at the end of a zip file, with its longest comment."""
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_MAIL = re.compile(rb"\A(?:[A-Za-z][A-Za-z0-9-]{0,60}:[^\n]*\n(?:[ \t][^\n]*\n)*){2,}")
"""Matches the first headers of an email. Each line can match in only one way, so text resembling email causes no
backtracking.
"""
_OF_MAIL = re.compile(rb"^(?:message-id|received|mime-version|from):", re.IGNORECASE | re.MULTILINE)
_OF_NAMED_MAIL = re.compile(
    rb"^(?:content-type|date|from|message-id|mime-version|received|subject|to):", re.IGNORECASE | re.MULTILINE
)
_ENVELOPE = re.compile(rb"From [^\n]*\n")
_CALENDAR = re.compile(rb"\s*BEGIN:V(?:CALENDAR|CARD)\s", re.IGNORECASE)
_MAILBOX = re.compile(rb"\AFrom [^\s]+ [^\r\n]*\d\d:\d\d[^\r\n]*\r?\n[A-Za-z][A-Za-z0-9-]{0,60}:")
_SUBTITLES = re.compile(
    rb"\A(?:\xef\xbb\xbf)?(?:\s*(?:\d+[ \t]*(?:\r\n|\r|\n))?\d{1,3}:\d\d:\d\d[.,]\d{1,3}[ \t]*-->|WEBVTT[ \t\r\n])"
)
_TIMED_BYTES = 512


def _is_subtitles(data: bytes, suffix: str) -> bool:
    head = data[:_TIMED_BYTES]
    is_wide = suffix in ("srt", "vtt") and b"\0" in head
    return _SUBTITLES.match(decode(head)[0].encode() if is_wide else head) is not None


_MAIL_HEAD_BYTES = 64 * 1024
"""Servers add kilobytes of headers before the sender's."""
_MAILDIR_FLAGS = ":2,"


def _is_mail(data: bytes, suffix: str) -> bool:
    is_named = suffix in ("eml", "emlx", "mht", "mhtml")
    if not is_named and suffix and _MAILDIR_FLAGS not in suffix:
        return False
    head = narrow(data[:_MAIL_HEAD_BYTES])
    if suffix == "emlx" or (is_named and _ENVELOPE.match(head)):
        head = head.partition(b"\n")[2]
    found, names = _MAIL.match(head), _OF_NAMED_MAIL if is_named else _OF_MAIL
    return found is not None and len(set(map(bytes.lower, names.findall(found[0])))) >= (2 if is_named else 3)


def _is_calendar(data: bytes, suffix: str) -> bool:
    return suffix in ("", "ics", "vcf") and _CALENDAR.match(_head(data)) is not None


_MAN_TITLE = re.compile(rb"^\.(?:TH|Dd)[ \t]", re.MULTILINE)
_MAN_HEAD_BYTES = 16 * 1024
"""Pod::Man's definitions come before the title."""


def _is_man(data: bytes, suffix: str) -> bool:
    """Return whether a file is a man page's source, whose suffix is its section."""
    begins = suffix[:1] in ("", *"123456789nl") and data[:1] in (b".", b"'", b"\\", b"\n")
    return begins and _MAN_TITLE.search(data[:_MAN_HEAD_BYTES]) is not None


_ODF_SUFFIXES = ("odt", "ods", "odp")
EXTRACTORS: tuple[Extractor, ...] = (
    Extractor("docx", 7, ("docx", "docm"), _holds(rb"word/document\d*\.xml", "docx", "docm"), "office", "docx"),
    Extractor("pptx", 7, ("pptx", "pptm"), _holds(rb"ppt/presentation\d*\.xml", "pptx", "pptm"), "office", "pptx"),
    Extractor("xlsx", 8, ("xlsx", "xlsm"), _holds(rb"xl/workbook\d*\.xml", "xlsx", "xlsm"), "office", "xlsx"),
    Extractor(
        "opendocument",
        7,
        _ODF_SUFFIXES,
        _says(b"vnd.oasis.opendocument.", rb"content\.xml", *_ODF_SUFFIXES),
        "office",
        "opendocument",
    ),
    Extractor(
        "epub", 7, ("epub",), _says(b"epub+zip", rb"META-INF/container\.xml", "epub"), "office", "epub", needs="lxml"
    ),
    Extractor("rtf", 6, ("rtf",), lambda data, _: data.startswith(b"{\\rtf"), "text_formats", "rtf"),
    Extractor("mail", 7, ("eml", "emlx"), _is_mail, "text_formats", "mail"),
    Extractor(
        "mailbox",
        7,
        ("mbox",),
        lambda data, suffix: suffix in ("mbox", "") and _MAILBOX.match(narrow(data[:_SNIFFED_BYTES])) is not None,
        "text_formats",
        "mailbox",
    ),
    Extractor("calendar", 1, ("ics", "vcf"), _is_calendar, "text_formats", "calendar", isolated=False),
    Extractor(
        "subtitles",
        4,
        ("srt", "vtt"),
        _is_subtitles,
        "text_formats",
        "subtitles",
        isolated=False,
    ),
    Extractor("pdf", 7, ("pdf",), _is_pdf, "html_pdf", "pdf", needs="pypdfium2"),
    Extractor("html", 7, _HTML_SUFFIXES, _is_html, "html_pdf", "html", needs="lxml", is_text=True),
    Extractor("man", 2, (), _is_man, "text_formats", "man", packed=True),
    Extractor("notebook", 4, ("ipynb",), _is_notebook, "text_formats", "notebook", isolated=False),
)
"""Extractors, in the order they are tried."""
_ZIPPED_SUFFIXES = frozenset(suffix for each in EXTRACTORS if each.module == "office" for suffix in each.suffixes)
WITH_OUTPUTS = Extractor(
    "notebook-outputs", 4, ("ipynb",), _is_notebook, "text_formats", "notebook_with_outputs", isolated=False
)
"""Replaces the notebook extractor if a run includes outputs."""


_OTHER_OFFICE = tuple(
    name.encode("utf-16-le") for name in ("WordDocument", "Workbook", "Book", "PowerPoint Document", "__substg1.0_")
)
"""Streams of Word, Excel, PowerPoint and Outlook files."""
_BINARY_WORKBOOK = _listing(rb"xl/workbook\.bin")
_IWORK = _listing(rb"Index/Document\.iwa|(?:[^/]+/)?Index\.zip|index\.apxl(?:\.gz)?|buildVersionHistory\.plist")


def _unread_format(data: bytes) -> SkipReason | None:
    """Return why a document that no extractor takes is not read, if its format is known."""
    if data.startswith(OLE) and any(name in data for name in _OTHER_OFFICE):
        return SkipReason.OTHER_OFFICE
    if data.startswith(_ZIP) and _lists(data, _BINARY_WORKBOOK):
        return SkipReason.OTHER_OFFICE
    return SkipReason.IWORK if data.startswith(_ZIP) and _lists(data, _IWORK) else None


def is_archive(path: str, data: bytes) -> bool:
    """Return whether a file is an archive of other files.

    Office documents are also zip files, but have their own extractor.
    """
    if not data.startswith((_ZIP, _EMPTY_ZIP)):
        return is_tar(data)
    suffix = _suffix(path)
    is_document = suffix in _ZIPPED_SUFFIXES or any(each.takes(data, suffix) for each in EXTRACTORS)
    return not is_document  # not even if it is damaged


@dataclass(frozen=True, slots=True)
class Choice:
    """How to read a file: its ``data`` and ``path``, decompressed if necessary, and its ``extractor``.

    ``mark`` is recorded in the manifest. A file with no extractor is text, unless ``reason`` explains why it cannot be
    read.
    """

    path: str
    data: bytes
    extractor: Extractor | None
    mark: str
    reason: SkipReason | None = None


def choose(path: str, data: bytes, *, outputs: bool = False) -> Choice:
    """Choose how to read a file with content ``data`` at ``path``; ``outputs`` includes notebook outputs."""
    marks: list[str] = []
    compression = compression_of(data)
    if is_archive(path, data):
        unread = _unread_format(data) or SkipReason.ARCHIVE
        return Choice(path, b"", None, compression.mark if compression is not None else "", unread)
    if compression is not None:
        marks.append(compression.mark)
        stem, suffix = posixpath.splitext(path)
        path = stem if suffix[1:].lower() in compression.suffixes else path
        try:
            data = compression.unpack(data)
        except Refused as refused:
            return Choice(path, b"", None, compression.mark, refused.reason)
    suffix = _suffix(path)
    known = (each for each in EXTRACTORS if each.takes(data, suffix) and not (each.packed and compression is None))
    extractor = variant_of(next(known, None), outputs=outputs)
    named = BY_SUFFIX.get(suffix)
    named = variant_of(named, outputs=outputs) if isinstance(named, Extractor) else named
    if extractor is not None:
        marks.append(extractor.mark)
    elif isinstance(named, Extractor):
        marks.append(f"-{named.mark}")
    lacks = extractor is not None and not extractor.is_available
    reason = SkipReason.NEEDS_EXTRA if lacks and extractor is not None and not extractor.is_text else None
    if extractor is None:
        reason = _unread_format(data)
    return Choice(path, data, None if lacks else extractor, "+".join(marks), reason)


def variant_of(extractor: Extractor | None, *, outputs: bool) -> Extractor | None:
    """Return ``extractor``, or its replacement if notebook ``outputs`` are included."""
    is_replaced = outputs and extractor is not None and extractor.function == "notebook"
    return WITH_OUTPUTS if is_replaced else extractor


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a file: its text, or the ``reason`` why there is none.

    ``path`` determines the text's language, ``mark`` is for the manifest, and ``replaced`` is set if bytes that are
    invalid in the file's encoding were replaced.
    """

    path: str
    mark: str
    extracted: Extracted = EMPTY
    reason: SkipReason | None = None
    replaced: bool = False


def read_document(path: str, data: bytes, *, outputs: bool = False) -> Reading:
    """Read ``data``, the file at ``path``, as text or with its extractor; ``outputs`` includes notebook outputs."""
    choice = choose(path, data, outputs=outputs)
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
    """Return whether ``read_document`` does more than decode a file."""
    suffix = _suffix(path)
    return compression_of(data) is not None or any(
        each.is_available and not each.packed and each.takes(data, suffix) for each in EXTRACTORS
    )


def _suffix(path: str) -> str:
    return posixpath.splitext(path)[1][1:].lower()


READERS: tuple[Extractor | Compression, ...] = (*COMPRESSIONS, *EXTRACTORS)
BY_SUFFIX = {suffix: each for each in READERS for suffix in each.suffixes}
NAMED_LIKE_DOCUMENT = rf"\.(?i:{'|'.join(map(re.escape, BY_SUFFIX))})$"


def is_named_like_document(path: str) -> bool:
    """Return whether a file name looks like a document or a compressed file."""
    return _suffix(path) in BY_SUFFIX


def current_marks(*, outputs: bool = False) -> frozenset[str]:
    """Return the current extractors' marks; ``outputs`` includes the extractor for notebook outputs."""
    readers = (variant_of(each, outputs=outputs) if isinstance(each, Extractor) else each for each in READERS)
    return frozenset(each.mark for each in readers if each is not None)


def definitions_by_part(
    documents: Sequence[tuple[str, Extracted]],
) -> tuple[list[tuple[str, str]], Callable[[list[list[Definition]]], list[list[Definition]]]]:
    """Split texts by language into ``(path, text)``; return them and a function that maps definitions back."""
    texts: list[tuple[str, str]] = []
    origins: list[tuple[int, int]] = []
    sections: dict[int, list[Definition]] = {}
    for at, (path, extracted) in enumerate(documents):
        if extracted.headings is not None:
            lines = extracted.text.split("\n") if extracted.headings else []
            titled = [(level, line, lines[line].removeprefix("#" * level)) for level, line in extracted.headings]
            sections[at] = nested_sections(titled, extracted.text)
            continue
        if not extracted.parts:
            texts.append((path, extracted.text))
            origins.append((at, 0))
            continue
        lines = extracted.text.split("\n")
        for part in extracted.parts:
            texts.append((f"{path}.{part.suffix}", "\n".join(lines[part.first : part.last + 1])))
            origins.append((at, part.first))

    def joined(found: list[list[Definition]]) -> list[list[Definition]]:
        result = [[*sections.get(at, ())] for at in range(len(documents))]
        for (at, shift), each in zip(origins, found, strict=True):
            result[at] += (Definition(d.kind, d.name, d.line + shift, d.first + shift, d.last + shift) for d in each)
        return result

    return texts, joined


def ends_mark(most: int) -> str:
    """Return the mark of a file that was read only up to ``most`` bytes of its first and last lines."""
    return f"ends/{most}/gap"  # without /gap, an earlier version left empty lines in place of the gap


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a run reads files: with which ``redaction``, and at most ``most`` bytes of a large file.

    ``opened`` is the mark of its settings for archives and email, "" if it does not open them. If ``outputs`` is set,
    it reads notebook outputs.
    """

    redaction: Redaction = "off"
    most: int = 0
    opened: str = ""
    outputs: bool = False

    def marks(self) -> frozenset[str]:
        """Return the possible parts of the files' marks, except for the redaction part."""
        own = {ends_mark(self.most), self.opened or UNOPENED, UNOPENED}
        return current_marks(outputs=self.outputs) | own


_ENCODING = "encoding/"


def encoding_mark(codec: str | None) -> str:
    """Return the mark of a file for which git declares an encoding, or "" if it declares none."""
    return f"{_ENCODING}{codec}" if codec is not None else ""


def split_encoding(mark: str) -> tuple[str, str | None]:
    """Return a mark without the encoding that git declared for the file, and that encoding or None.

    >>> split_encoding("ends/9/gap+encoding/cp1254"), split_encoding("pdf/6")
    (('ends/9/gap', 'cp1254'), ('pdf/6', None))
    """
    if _ENCODING not in mark:
        return mark, None
    parts = mark.split("+")
    codec = next((part.removeprefix(_ENCODING) for part in parts if part.startswith(_ENCODING)), None)
    return "+".join(part for part in parts if not part.startswith(_ENCODING)), codec


UNOPENED = "archive/0"
"""The mark of a member that no extractor can index."""


def outdated(
    paths: pa.ChunkedArray, marks: pa.ChunkedArray, how: ReadSettings, encodings: Mapping[str, str] | None = None
) -> NDArray[np.bool_]:
    """Return an ``(n,) bool`` mask of files that a run would read differently than the last run.

    ``marks`` come from the manifest; files without an extractor mark were read as text. ``encodings`` maps paths to the
    encodings that git declares for them now.
    """
    known, current, encodings = pc.fill_null(marks, ""), how.marks(), encodings or {}
    old, plain, unopened, codecs = list[str](), list[str](), list[str](), dict[str, str]()
    for mark in pc.unique(known).to_pylist():
        of_extractor, is_redacted = split_mark(mark, how.redaction)
        of_extractor, codec = split_encoding(of_extractor)
        if codec is not None:
            codecs[mark] = codec
        parts = _parts(of_extractor)
        if not is_redacted or not parts <= current:
            old.append(mark)
        elif not of_extractor:
            plain.append(mark)
        if how.opened and not parts & {how.opened, UNOPENED}:
            unopened.append(mark)
    result = pc.is_in(known, value_set=pa.array(old, pa.string()))
    named = pc.match_substring_regex(paths, NAMED_LIKE_DOCUMENT)
    result = pc.or_(result, pc.and_(pc.is_in(known, value_set=pa.array(plain, pa.string())), named))
    if unopened:
        lacking = pc.and_(
            pc.match_substring_regex(paths, NAMED_LIKE_ARCHIVE),
            pc.invert(pc.match_substring(paths, INSIDE)),  # opening the outermost container opens the nested ones
        )
        result = pc.or_(result, pc.and_(pc.is_in(known, value_set=pa.array(unopened, pa.string())), lacking))
    if encodings or codecs:
        pairs = zip(paths.to_pylist(), known.to_pylist(), strict=True)
        result = pc.or_(result, pa.array([encodings.get(path) != codecs.get(mark) for path, mark in pairs], pa.bool_()))
    return np.asarray(result.to_numpy(), dtype=bool)


def is_current(path: str, mark: str, how: ReadSettings, encoding: str | None = None) -> bool:
    """Return whether a document with this ``mark`` was read the same way as a run with ``how`` would read it.

    ``encoding`` is the one that git declares for the document now.
    """
    of_extractor, is_redacted = split_mark(mark, how.redaction)
    of_extractor, codec = split_encoding(of_extractor)
    is_same = is_redacted and codec == encoding
    return is_same and (_parts(of_extractor) <= how.marks() if of_extractor else not is_named_like_document(path))


def _parts(mark: str) -> set[str]:
    return {part.removeprefix("-") for part in mark.split("+")} if mark else set()
