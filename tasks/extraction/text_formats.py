"""Extract text from text-based formats: notebooks, email, subtitles, RTF and man pages."""

from __future__ import annotations

import codecs
import email.policy
import html
import json
import mimetypes
import quopri
import re
import unicodedata
from collections.abc import Iterator, Sequence
from email.message import EmailMessage, Message, MIMEPart
from email.parser import BytesParser
from importlib.util import find_spec
from typing import Any, cast

from driftline.storage.documents import ALIASES, LANGUAGES, SkipReason
from driftline.tasks.extraction.extractor import Draft, Extracted, narrow
from driftline.tasks.extraction.process import Refused
from driftline.tasks.text import declarable, decode

_CELL_MAGIC = re.compile(r"\s*(?:%%|(?:%|#!)(?=\w+[ \t]*\n))(\w{1,20})")
"""Switches a notebook cell to another language, such as ``%%bash``, or alone on its line ``%sql`` and ``#!sql``."""
_DATA_URL = re.compile(r"(?<=data:)[\w/+.-]{1,60};base64,[A-Za-z0-9+/=]{64,}")
"""The bytes of a pasted picture."""


def notebook(data: bytes) -> Extracted:
    """Return a Jupyter notebook's code and prose cells in order, without outputs.

    The anchor is the cell number, and whether it is Markdown.
    """
    return _notebook(data, outputs=False)


def notebook_with_outputs(data: bytes) -> Extracted:
    """Like ``notebook``, with the text of the outputs after each code cell."""
    return _notebook(data, outputs=True)


def _notebook(data: bytes, *, outputs: bool) -> Extracted:
    try:
        read = json.loads(data)
        cells = _cells(read)
    except (ValueError, OverflowError, RecursionError, AttributeError, TypeError, KeyError):
        raise Refused(SkipReason.DAMAGED) from None
    language = _language(read)
    draft = Draft()
    for number, (kind, named, source, printed) in enumerate(cells, start=1):
        if not source.strip() and not (outputs and printed.strip()):
            continue
        if draft.lines:
            draft.add("")
        draft.at(f"markdown cell {number}" if kind == "markdown" else f"cell {number}")
        of_cell = suffix_of_cell(source) or (_suffix(named) if named else language)
        draft.begin("md" if kind == "markdown" else of_cell if kind == "code" else "")
        if source.strip():
            draft.add(_DATA_URL.sub("", source.rstrip("\n")))
        if outputs and printed.strip():
            draft.begin("")
            draft.add(_DATA_URL.sub("", printed.rstrip("\n")))
    return draft.done()


def _cells(read: Any) -> list[tuple[str, str, str, str]]:
    """Return each cell's type, language if it names one, source and outputs, in formats 2 to 4."""
    sheets = [read] if "cells" in read else read["worksheets"]
    cells = []
    for cell in (cell for sheet in sheets for cell in sheet["cells"]):
        kind, source = str(cell["cell_type"]), _joined(cell.get("source", cell.get("input", "")))
        if kind == "heading":
            kind, source = "markdown", f"{'#' * min(int(cell.get('level', 1)), 6)} {source}"
        named = (_named(cell, "metadata", *keys) for keys in _OF_CELL)
        cells.append((kind, next(filter(None, named), ""), source, _printed(cell.get("outputs"))))
    return cells


_OF_CELL = (("dotnet_interactive", "language"), ("polyglot_notebook", "kernelName"), ("vscode", "languageId"))
"""Where notebooks with several languages name a cell's."""


def _named(about: Any, *keys: str) -> str:
    """Return the text at ``keys`` of nested objects, or ""."""
    for key in keys:
        about = about.get(key) if isinstance(about, dict) else None
    return about if isinstance(about, str) else ""


def _printed(outputs: Any) -> str:
    """Return the text of outputs: streams, results minus pictures and markup, and errors minus colours."""
    texts: list[str] = []
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, dict):
            continue
        bundle = output.get("data", output)
        text = output.get("text", "")
        if isinstance(bundle, dict):
            text = bundle.get("text/markdown") or bundle.get("text/plain", text)
        if output.get("output_type") in ("error", "pyerr"):
            text = f"{output.get('ename', '')}: {output.get('evalue', '')}"
        lines = _COLOURS.sub("", _joined(text)).split("\n")
        texts.append("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n"))
    return "\n".join(filter(None, texts))


_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def _joined(source: Any) -> str:
    """Return a text in the forms that notebooks have: whole, as lines, or as lines without their ends."""
    if isinstance(source, str):
        return source
    return ("" if source and source[0].endswith(("\n", "\r")) else "\n").join(source)


def _language(read: dict[str, Any]) -> str:
    """Return the file suffix of a notebook's language, or "" if it is unknown."""
    names = [_named(read, "metadata", *keys) for keys in (("language_info", "name"), ("kernelspec", "language"))]
    return next(filter(None, map(_suffix, names)), "") if any(names) else "py"


def suffix_of_cell(source: str) -> str:
    """Return the file suffix of the language that a cell names by a magic such as ``%%bash``, or "".

    Examples:
        >>> suffix_of_cell("%%bash\\nls"), suffix_of_cell("%sql\\nSELECT 1"), suffix_of_cell("%%time\\nx = 1")
        ('sh', 'sql', '')
    """
    magic = _CELL_MAGIC.match(source)
    return _suffix(magic[1]) if magic else ""


def _suffix(language: str) -> str:
    name = language.lower()
    return LANGUAGES.get(_CALLED.get(name, name), ("",))[0]


_CALLED = {**ALIASES, "pwsh": "powershell"}


# -- mail ----------------------------------------------------------------------------------------

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_BEGINS_MESSAGE = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\r\n\r\n))From [^\s]+ [^\r\n]*\d\d:\d\d[^\r\n]*\r?\n")
_LENGTH = re.compile(rb"(\d{1,9})[ \t]*\r?\n")
"""The first line of Apple Mail's files; properties of the mail follow its last byte."""
_WITHOUT_TEXT_TYPES = frozenset(("text/css", "text/javascript"))
_CALENDAR_TYPES = frozenset(("text/calendar", "text/directory", "text/vcard", "text/x-vcard"))
"""Appointments and contacts."""
_ENVELOPE = re.compile(rb"From [^\n]*\n")
"""The line before a message in a mailbox, which some programs keep when they save one."""
_TYPES = mimetypes.MimeTypes(filenames=())
"""Python's own table: a machine's tables would change the names of attachments."""
_AS_IS = ("7bit", "8bit", "binary")
"""Content-Transfer-Encodings of parts that are in the file's own encoding."""
_RAW_BYTES = re.compile("[\udc80-\udcff]")
"""Bytes of a header that are not ASCII, as the library represents them."""
_QUOTED_FROM = re.compile(r"^>(>*From )", re.MULTILINE)


def mail(data: bytes) -> Extracted:
    """Return an email's text: the headers worth searching, its body, and its attachments' names."""
    draft = Draft()
    _add_message(draft, data)
    return draft.done()


def mailbox(data: bytes) -> Extracted:
    """Return the emails in an mbox; the anchor is the email's number."""
    draft = Draft()
    for number, message in enumerate(messages(data), start=1):
        if draft.lines:
            draft.add("")
        draft.at(f"message {number}")
        _add_message(draft, message)
    return draft.done()


def messages(data: bytes) -> Iterator[bytes]:
    """Yield the emails in an mbox, each with a byte order mark if the mbox has one."""
    plain = narrow(data)
    mark = codecs.BOM_UTF8 if plain is not data else b""
    starts = [match.span() for match in _BEGINS_MESSAGE.finditer(plain)]
    for at, (_, first) in enumerate(starts):
        yield mark + plain[first : starts[at + 1][0] if at + 1 < len(starts) else len(plain)]


def _message(data: bytes) -> EmailMessage:
    plain = narrow(data)
    is_marked, data = plain is not data, plain  # an editor saved it in the mark's encoding, even if it declares another
    if length := _LENGTH.match(data):
        data = data[length.end() : length.end() + int(length[1])]
    elif envelope := _ENVELOPE.match(data):
        data = data[envelope.end() :]
    message = BytesParser(policy=email.policy.default).parsebytes(data)
    for part in message.walk() if is_marked else ():
        if part.get_content_maintype() == "text" and part.get("Content-Transfer-Encoding", "8bit").lower() in _AS_IS:
            part.set_param("charset", "utf-8")
    return message


def _add_message(draft: Draft, data: bytes) -> None:
    message = _message(data)
    _add_headers(draft, message)
    draft.add("")
    body = message.get_body(("plain", "html"))
    for text in _texts(message, body):
        if text.get_content_type() == "message/rfc822":
            _add_headers(draft, cast(list[EmailMessage], text.get_payload())[0])
        else:
            _add_body(draft, cast(EmailMessage, text))
    for part in message.walk():
        attached = _attachment_name(cast(MIMEPart, part))
        if attached and part is not body:
            draft.add(f"attachment: {' '.join(attached.split())}")


def _texts(part: MIMEPart, body: object) -> Iterator[MIMEPart]:
    """Yield the texts of an email, one of each alternative, skipping attachments.

    A forwarded email precedes its texts.
    """
    if part is body:
        yield part
    elif part.get_content_type() in ("multipart/alternative", "multipart/related"):
        shown = part.get_body(("plain", "html"))
        if shown is not None:
            yield shown
        yield from (each for each in part.iter_parts() if each.get_content_type() in _CALENDAR_TYPES)
    elif part.get_filename():
        return  # an attachment
    elif part.is_multipart():
        forwards = part.get_content_type() == "message/rfc822"
        if forwards:
            yield part
        for inside in cast(list[MIMEPart], part.get_payload()):
            yield from _texts(inside, inside.get_body(("plain", "html")) if forwards else body)
    elif part.get_content_maintype() == "text" and part.get_content_type() not in _WITHOUT_TEXT_TYPES:
        yield part


def _attachment_name(part: MIMEPart) -> str:
    """Return an attachment's name, by its type if it has none, or "" for any other part."""
    given = str(part.get_filename() or "")
    if given or not part.is_attachment() or part.is_multipart() or part.get_content_maintype() == "text":
        return given
    return f"attachment{_TYPES.guess_extension(part.get_content_type()) or ''}"


def attachments(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the file name (folders removed) and content of each of an email's attachments."""
    message = _message(data)
    body = message.get_body(("plain", "html"))
    yield from _attached(message, body)


def _attached(message: MIMEPart, body: object) -> Iterator[tuple[str, bytes]]:
    for part in message.iter_parts() if message.is_multipart() else ():
        if part.get_content_type() == "message/rfc822":
            inside = part.get_payload()
            if isinstance(inside, list) and inside and isinstance(inside[0], Message):
                yield _file_name(part.get_filename() or "message.eml"), inside[0].as_bytes(policy=email.policy.compat32)
        elif part.is_multipart():
            yield from _attached(part, body)
        elif part is not body and (name := _attachment_name(part)):
            yield _file_name(name), cast(bytes, part.get_payload(decode=True) or b"")


def _file_name(name: str) -> str:
    """Return the file name in a header, with folders, whitespace and control characters removed."""
    plain = _NO_NAME.sub(" ", name.replace("\\", "/").rstrip("/").rpartition("/")[2]).strip()
    return plain if plain.strip(".") else "attachment"


_NO_NAME = re.compile(r"[\s\x00-\x1f\x7f]+")


def _add_headers(draft: Draft, message: EmailMessage) -> None:
    for name in _HEADERS:
        value = _header(message, name)
        if value:
            draft.add(f"{name}: {value}")


def _header(message: EmailMessage, name: str) -> str:
    try:
        raw = next((str(value) for key, value in message.raw_items() if key.lower() == name.lower()), "")
        if _RAW_BYTES.search(raw):  # not encoded, so in the encoding of the body or as a guess
            data = raw.encode("utf-8", "surrogateescape")
            charsets = (str(part.get_content_charset("")) for part in message.walk())
            declared = next(filter(None, charsets), "")
            text = _decoded(data, declared) if declared else decode(data)[0]
            return " ".join(text.split())
        return " ".join(str(message[name] or "").split())
    except (ValueError, IndexError, AttributeError, TypeError):  # the library fails on some damaged headers
        return ""


def _add_body(draft: Draft, body: EmailMessage) -> None:
    content = cast(bytes, body.get_payload(decode=True) or b"")
    text = _decoded(content, body.get_content_charset("utf-8"))
    if body.get_content_type() in _CALENDAR_TYPES:
        _add_entries(draft, text)
    elif body.get_content_subtype() != "html":
        draft.add(_QUOTED_FROM.sub(r"\1", text.rstrip()))
    elif find_spec("lxml") is not None:
        from driftline.tasks.extraction.html_pdf import add_html

        add_html(draft, text.encode("utf-8", "replace"))


def _decoded(content: bytes, charset: str) -> str:
    """Decode a text; programs declare Latin-1 and ASCII also for UTF-8."""
    encoding = declarable(charset) or charset
    if encoding == "cp1252":
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content.decode(encoding, "replace")
    try:
        return content.decode(encoding, "replace")
    except LookupError:
        return content.decode("utf-8", "replace")


# -- calendars and contacts ----------------------------------------------------------------------

_ENTRY_NAMES = (
    "ADR|ATTENDEE|BDAY|CATEGORIES|COMMENT|DESCRIPTION|DTEND|DTSTART|DUE|EMAIL|FN|LOCATION|NICKNAME|NOTE|ORG|ORGANIZER|ROLE"
    "|SUMMARY|TEL|TITLE|URL"
)
_ENTRY_LINE = re.compile(
    rf"(?:[A-Za-z0-9-]+\.)?({_ENTRY_NAMES})((?:;[^\s:;=]+(?:=(?:\"[^\"\n]*\"|[^\";:\n])*)?)*):(.*)", re.IGNORECASE
)
"""A property that people search for: its name, parameters and value."""
_COMMON_NAME = re.compile(r";CN=(\"[^\"]*\"|[^;:]*)", re.IGNORECASE)
_FOLD = re.compile(r"\n[ \t]")
_QUOTED_PRINTABLE = ";ENCODING=QUOTED-PRINTABLE"
_CHARSET = re.compile(r";CHARSET=\"?([\w-]+)", re.IGNORECASE)
_BEGIN_ENTRY = re.compile(r"BEGIN:V(?:EVENT|TODO|JOURNAL|CARD)$", re.IGNORECASE)
_ESCAPED = re.compile(r"\\([\\;,nN])")


def calendar(data: bytes) -> Extracted:
    """Return the appointments of a calendar or the contacts of an address book.

    The anchor is the number of the entry.
    """
    text, reason = decode(data)
    if reason is not None:
        raise Refused(reason)
    draft = Draft()
    _add_entries(draft, text, anchored=True)
    return draft.done()


def _add_entries(draft: Draft, text: str, *, anchored: bool = False) -> None:
    entries = 0
    text = text.replace("\r\n", "\n")
    if _QUOTED_PRINTABLE in text.upper():
        text = text.replace("=\n", "")
    for line in _FOLD.sub("", text).split("\n"):
        if anchored and _BEGIN_ENTRY.match(line):
            entries += 1
            draft.at(f"entry {entries}")
        if found := _ENTRY_LINE.match(line):
            name, parameters, value = found.groups()
            if _QUOTED_PRINTABLE in parameters.upper():
                declared = _CHARSET.search(parameters) if value.isascii() else None
                encoding = (declarable(declared[1]) if declared else None) or "utf-8"
                value = _decoded(quopri.decodestring(value.encode("utf-8", "replace")), encoding)
            if called := _COMMON_NAME.search(parameters):
                value = called[1].strip('"') + " " + value
            value = _ESCAPED.sub(lambda each: each[1] if each[1] in "\\;," else "\n", value)
            value = value.replace(";", " ") if name.upper() in ("ADR", "ORG") else value
            if value := "\n".join(" ".join(each.split()) for each in value.split("\n")).strip():
                draft.add(f"{name.capitalize()}: {value}")


# -- subtitles -----------------------------------------------------------------------------------

_TIMES = re.compile(r"(\d{1,3}:)?(\d\d:\d\d)[.,]\d{1,3}[ \t]*-->")
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?[ \t]+([^<>\n]{1,100})>")
_TAGS = re.compile(r"<[^<>\s][^<>\n]{0,99}>|\{\\[^{}\n]{1,100}\}")


def subtitles(data: bytes) -> Extracted:
    """Return the spoken text of srt or vtt files, without times and styles; the anchor is the time.

    In vtt, the speaker precedes the text, and blocks without a time are comments. A line that is shown again, as in
    captions that roll up, is read once.
    """
    text, reason = decode(data)
    if reason is not None:
        raise Refused(reason)
    draft, is_vtt, is_spoken = Draft(), text.startswith("WEBVTT"), False
    lines = [line.strip() or line for line in text.split("\n")]  # in vtt, a line of blanks ends nothing
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if times := _TIMES.match(line):
            draft.at(f"{times[1] or '00:'}{times[2]}")
            is_spoken = True
        elif not line:
            is_spoken = is_spoken and not is_vtt
        elif is_spoken and not (_TIMES.match(after) and (line.isdecimal() or not before.strip())):  # a cue's name
            said = _TAGS.sub("", _VOICE.sub(r"\1: ", line)).strip()
            said = html.unescape(said) if is_vtt else said
            if said and said not in draft.lines[-1:]:
                draft.add(said)
    return draft.done()


# -- RTF -----------------------------------------------------------------------------------------

_RTF_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]+|([^\\{}\r\n]+)"
)
_NO_TEXT = frozenset(
    (b"fonttbl", b"colortbl", b"stylesheet", b"info", b"pict", b"object", b"datastore", b"themedata", b"filetbl",
     b"listtable", b"listoverridetable", b"rsidtbl", b"generator", b"header", b"footer", b"headerl", b"headerr",
     b"footerl", b"footerr", b"fldinst", b"xmlnstbl", b"latentstyles", b"nonesttables", b"sp")
)  # fmt: skip
"""Groups with formatting, such as a shape's properties (``sp``), or with text that repeats on each page."""
_OPTIONAL_TEXT = re.compile(rb"\\(?:annotation|nesttableprops|shpinst)\b")
"""Groups that older readers skip, and that have text: comments, rows of tables in cells, and shapes."""
_NOTES = frozenset((b"annotation", b"footnote", b"shptxt"))
"""Groups inside a paragraph whose text comes after it."""
_BINARY = re.compile(rb"(?<!\\)((?:\\\\)*)\\bin(\d{1,10}) ?")
"""A picture's bytes: their number, after any escaped backslashes."""
_RTF_ENCODINGS = {b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850"}
_RTF_SIGNS = {
    b"par": "\n", b"line": "\n", b"sect": "\n", b"page": "\n", b"row": "\n", b"tab": "\t", b"cell": "\t",
    b"emdash": "—", b"endash": "–", b"lquote": "‘", b"rquote": "’", b"ldblquote": "“",
    b"rdblquote": "”", b"bullet": "•", b"nestcell": "\t", b"nestrow": "\n",
}  # fmt: skip
_RTF_ESCAPED = {b"~": "\xa0", b"_": "-", b"\n": "\n", b"\r": "\n", b"\\": "\\", b"{": "{", b"}": "}"}
_MAX_GROUPS = 1_000
_OF_CHARSETS = {
    77: "mac_roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gb18030", 136: "cp950", 161: "cp1253",
    162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874",
    238: "cp1250",
}  # fmt: skip
"""The encodings of a font's character set; others are in the document's."""


def rtf(data: bytes) -> Extracted:
    """Return an RTF document's paragraphs."""
    draft = Draft()
    for line in _rtf_text(data).split("\n"):
        if line.strip():
            draft.add(line.strip())
    return draft.done()


def _without_binary(data: bytes) -> bytes:
    """Remove pictures that are stored as bytes, which may look like control words."""
    kept, end = [], 0
    while found := _BINARY.search(data, end):
        kept.append(data[end : found.end(1)])
        end = found.end() + int(found[2])
    return b"".join([*kept, data[end:]])


def _taken(notes: list[str]) -> list[str]:
    taken, notes[:] = [*notes], []
    return taken


def _rtf_text(data: bytes) -> str:
    text: list[str] = []
    out, notes = text, list[str]()
    pending = bytearray()
    encoding, fallback, skip_fallback, ignored = "cp1252", 1, 0, False
    font = default_font = b""
    encodings: dict[bytes, str] = {}
    groups: list[tuple[bool, int, bytes, list[str]]] = []

    def flush() -> None:
        if pending:
            out.append(pending.decode(encodings.get(font or default_font, encoding), "replace"))
            pending.clear()

    for match in _RTF_TOKEN.finditer(data := _without_binary(data)):
        word, number, code, escaped, brace, plain = match.groups()
        if brace == b"{":
            if len(groups) == _MAX_GROUPS:
                raise Refused(SkipReason.BOMB)
            groups.append((ignored, fallback, font, out))
        elif brace == b"}":
            flush()
            ignored, fallback, font, out = groups.pop() if groups else (ignored, fallback, font, out)
            skip_fallback = 0
        elif word in _NO_TEXT or (escaped == b"*" and data[match.start() - 1 : match.start()] == b"{"):
            ignored = not (escaped and _OPTIONAL_TEXT.match(data, match.end())) or ignored
        elif word in _RTF_ENCODINGS or (word == b"ansicpg" and number):
            encoding = _RTF_ENCODINGS.get(word) or _codepage(number)
        elif word == b"deff" and number:
            default_font = number
        elif word in (b"f", b"plain"):
            flush()
            font = number or b"" if word == b"f" else b""
        elif word == b"fcharset" and int(number or 0) in _OF_CHARSETS:
            encodings[font] = _OF_CHARSETS[int(number)]
        elif word == b"uc" and number:
            fallback = max(0, min(int(number), 10))
        elif ignored:
            continue
        elif word in _NOTES:
            flush()
            out = notes
            out.append("\n")
        elif word == b"u" and number:
            flush()
            out.append(chr(int(number) % 65_536))
            skip_fallback = fallback
        elif code and skip_fallback:
            skip_fallback -= 1
        elif code:
            pending += bytes.fromhex(code.decode())
        elif word in _RTF_SIGNS or escaped in _RTF_ESCAPED:
            flush()
            sign = _RTF_SIGNS.get(word) or _RTF_ESCAPED.get(escaped, "")
            out += [*_taken(notes), sign] if sign == "\n" and out is text else [sign]
        elif plain:
            pending += plain[skip_fallback:]
            skip_fallback = max(0, skip_fallback - len(plain))
    flush()
    return "".join([*text, *notes]).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _codepage(number: bytes) -> str:
    name = f"cp{number.decode()}"
    try:
        codecs.lookup(name)
    except LookupError:
        return "cp1252"
    return name


# -- man pages ------------------------------------------------------------------------------------

_LEVELS = {"SH": "## ", "Sh": "## ", "SS": "### ", "Ss": "### "}
_ENDING = "PP P LP HP IP TP TQ It Pp sp br Bl El D1 Dl RS RE Sp"
_WITHOUT_TEXT = "IX PD DT UC AT RS RE Sp TP TQ EQ EN Bl El Bk Ek Dd Os Sm Rs Re YS"
_OF_FONTS = "BR BI IR IB RB RI"
_OF_MDOC = """
Ad An Ao Ac Ap Aq Ar Bo Bc Bq Bx Cd Cm Dq Do Dc Dv Em Er Es Ev Fa Fd Fl Fn Fo Fc Ft Fx Ic In It Li Lk Ms Mt Nd Nm No Ns
Nx Oo Oc Op Ox Pa Pf Po Pc Pq Ql Qo Qc Qq Rv Sc So Sq St Sx Sy Ta Tn Ux Va Vt Xo Xc Xr
"""
_PARAGRAPHS = frozenset(_ENDING.split())
"""Requests that end a paragraph."""
_VERBATIM = {"nf": True, "EX": True, "Vb": True, "Bd": True, "fi": False, "EE": False, "Ve": False, "Ed": False}
_SILENT = frozenset(_WITHOUT_TEXT.split())
"""Requests whose arguments are not text. The same is true of all lower-case requests."""
_ALTERNATING = frozenset(_OF_FONTS.split())
_MDOC = frozenset(_OF_MDOC.split())
_OPENED = {"Op": "[", "Oo": "[", "Dq": "\u201c", "Do": "\u201c", "Qq": '"', "Qo": '"', "Sq": "'", "So": "'"}
_OPENED |= {"Aq": "<", "Ao": "<", "Bq": "[", "Bo": "[", "Pq": "(", "Po": "(", "Ql": "'", "Nd": "- "}
_CLOSED = {"Oc": "]", "Dc": "\u201d", "Qc": '"', "Sc": "'", "Ac": ">", "Bc": "]", "Pc": ")"}
_CLOSED |= {"Op": "]", "Dq": "\u201d", "Qq": '"', "Sq": "'", "Aq": ">", "Bq": "]", "Pq": ")", "Ql": "'"}
_POINTS = frozenset(".,:;?!)]")
_SIGNS = {
    "aq": "'", "dq": '"', "lq": "\u201c", "rq": "\u201d", "oq": "\u2018", "cq": "\u2019", "em": "\u2014",
    "en": "\u2013", "hy": "-", "mi": "-", "bu": "\u2022", "co": "\u00a9", "rg": "\u00ae", "tm": "\u2122", "ti": "~",
    "ha": "^", "rs": "\\", "ga": "`", "->": "\u2192", "<-": "\u2190", "<=": "\u2264", ">=": "\u2265", "!=": "\u2260",
    "mu": "\u00d7", "de": "\u00b0", "ss": "\u00df", "ba": "|", "or": "|", "lB": "[", "rB": "]", "lC": "{", "rC": "}",
    "at": "@", "sh": "#", "Do": "$", "pl": "+", "eq": "=", "sl": "/", "ae": "\u00e6", "AE": "\u00c6", "/o": "\u00f8",
    "/l": "\u0142", "/O": "\u00d8", "/L": "\u0141", "ul": "_", "oe": "\u0153", "OE": "\u0152",
}  # fmt: skip
_ACCENTS = {"'": "\u0301", "`": "\u0300", "^": "\u0302", ":": "\u0308", "~": "\u0303", ",": "\u0327", "o": "\u030a"}
_STRINGS = {"lq": "\u201c", "rq": "\u201d", "R": "\u00ae", "Tm": "\u2122", "Aq": "'", "C`": '"', "C'": '"', "--": "-"}
_MAX_STRING_CHARACTERS = 200
"""Strings may contain other strings, and would grow without limit."""
_ROFF_ESCAPE = re.compile(
    r"""\\(?:
    ["\#].*                                              # a comment
    | [fmMFnsgkYV](?:\(..|\[[^]]*\]|[+-]?.)              # a font, a size, a register
    | [hvwolLDXZbSHxRNAB]'[^']*'
    | \*(?:\((?P<two>..)|\[(?P<long>[^]]*)\]|(?P<one>.))
    | \((?P<sign>..) | \[(?P<name>[^]]*)\] | (?P<other>.)?
    )""",
    re.VERBOSE,
)
_ROFF_OTHERS = {"-": "-", "e": "\\", " ": " ", "~": " ", "0": " ", "'": "'", "`": "`", "t": "\t", "\\": "\\", ".": "."}
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\.|\S)+)')
_COMMENT = re.compile(r'\\["#].*')
_SEPARATOR = re.compile(r"\btab[ \t]*\((.)\)")
_REQUEST = re.compile(r"[.'][ \t]*([^\s\\\"]{1,14})[ \t]*(.*)")
_CONDITION = re.compile(r"(!?)(n|o|\\n\(\.g)?\S*[ \t]*(.*)")
"""Conditions that are true: n (a terminal) and groff's register."""


def man(data: bytes) -> Extracted:
    """Return a man page: a line for each paragraph, item and row, with Markdown headings."""
    text, reason = decode(data)
    if reason is not None:
        raise Refused(reason)
    page = _Manual()
    for line in text.replace("\r\n", "\n").replace("\\\n", "").split("\n"):
        page.read(line)
    page.end_paragraph()
    return page.draft.done()


class _Manual:
    """Reads a page's requests, with man or mdoc macros, and adds its paragraphs to ``draft``."""

    def __init__(self) -> None:
        self.draft = Draft()
        self._words: list[str] = []
        self._strings = dict(_STRINGS)
        self._name = self._prefix = ""
        self._is_definition = self._is_format = self._in_table = self._verbatim = self._was_true = False
        self._hidden = 0
        self._separator, self._in_cell = "\t", False

    def read(self, line: str) -> None:
        """Read one source line."""
        if self._is_definition:
            self._is_definition = not line.startswith("..")
        elif self._hidden:
            self._hidden = max(0, self._hidden + line.count("\\{") - line.count("\\}"))
        elif line.startswith((".", "'")):
            if request := _REQUEST.match(line):
                self._request(request[1], request[2])
        elif self._is_format:
            self._is_format = not line.rstrip().endswith(".")
            if separator := _SEPARATOR.search(line):
                self._separator = separator[1]
        else:
            self._add(self._plain(line))

    def end_paragraph(self) -> None:
        """Add the paragraph that ends here."""
        text, self._words = " ".join(self._words), []
        if self._in_table:
            text = "\t".join(map(str.strip, text.split("\t"))).rstrip()
        else:
            text = text.rstrip() if self._verbatim else " ".join(text.split())
        if text.strip(" \t_="):
            self.draft.add(text, self._prefix)
            self._prefix = ""

    def _add(self, text: str) -> None:
        if not text.strip() or self._verbatim or (self._in_table and not self._in_cell):
            self.end_paragraph()
        if self._in_table:
            ends = text.startswith("T}")
            text = text.removeprefix("T}")
            if ends or not self._in_cell:
                text = text.replace(self._separator, "\t")
            self._in_cell = text.endswith("T{") or (self._in_cell and not ends)
            text = text.removesuffix("T{")
        self._words.append(text)
        if self._prefix:
            self.end_paragraph()

    def _request(self, name: str, rest: str) -> None:
        if name in ("if", "ie", "el"):
            self._branch(name, rest)
        elif name in ("de", "de1", "am", "ig"):
            self._is_definition = True
        elif name == "ds":
            named, _, value = rest.partition(" ")
            self._strings[named] = self._plain(value.lstrip().removeprefix('"'))[:_MAX_STRING_CHARACTERS]
        elif name in _VERBATIM:
            self.end_paragraph()
            self._verbatim = _VERBATIM[name] and "-filled" not in rest
        elif name in ("TS", "TE", "T&"):
            self.end_paragraph()
            self._in_table = self._is_format = name != "TE"
            self._separator, self._in_cell = "\t" if name == "TS" else self._separator, False
        elif name in ("TH", "Dt"):
            title, section, *_ = (*self._arguments(rest), "", "")
            self.draft.add(f"{title}({section})", "# ")
        elif name in _LEVELS:
            self.end_paragraph()
            self._prefix = _LEVELS[name]
            if rest:
                self._add(" ".join(self._arguments(rest)))
        else:
            self._add_arguments(name, rest)

    def _add_arguments(self, name: str, rest: str) -> None:
        if name in _PARAGRAPHS:
            self.end_paragraph()
        if name.islower() or name in _SILENT:
            return
        words = self._arguments(rest)
        if name in _MDOC:
            self._add(self._mdoc([name, *words]))
        else:
            self._add(("" if name in _ALTERNATING else " ").join(words[:1] if name == "IP" else words))

    def _branch(self, name: str, rest: str) -> None:
        """Read the rest of a condition if it is true on a terminal."""
        if name == "el":
            is_true = not self._was_true
        elif condition := _CONDITION.match(rest):
            is_true, rest = bool(condition[2]) != bool(condition[1]), condition[3]
        else:
            return
        self._was_true = is_true
        if is_true:
            self.read(rest.removeprefix("\\{").lstrip())
        else:
            self._hidden = max(0, rest.count("\\{") - rest.count("\\}"))

    def _arguments(self, rest: str) -> list[str]:
        found = _ARGUMENT.findall(_COMMENT.sub("", rest))
        return [self._plain(quoted.replace('""', '"') or plain) for quoted, plain in found]

    def _plain(self, text: str) -> str:
        return _ROFF_ESCAPE.sub(self._character, text) if "\\" in text else text

    def _character(self, escape: re.Match[str]) -> str:
        two, long, one, sign, name, other = escape.groups()
        if string := two or long or one:
            return self._strings.get(string, "")
        if other:
            return _ROFF_OTHERS.get(other, "")
        sign = sign or name or ""
        if sign[:1] == "u" and re.fullmatch(r"u[0-9A-F]{4,5}", sign):
            return chr(int(sign[1:], 16))
        if len(sign) == 2 and sign not in _SIGNS and sign[0] in _ACCENTS and sign[1].isalpha():
            return unicodedata.normalize("NFC", sign[1] + _ACCENTS[sign[0]])
        return _SIGNS.get(sign, "")

    def _mdoc(self, words: Sequence[str]) -> str:
        """Return the text of an mdoc macro line; arguments may be macros as well."""
        out, closing, flag, no_space_before = "", "", "", True
        rest = [*words, ""]
        while len(rest) > 1:
            word = rest.pop(0)
            if word in _POINTS:
                out, closing, no_space_before = (
                    out + (closing if len(rest) == 1 else "") + word,
                    closing * (len(rest) > 1),
                    False,
                )
                continue
            if word not in _MDOC:
                out, no_space_before = (
                    out + ("" if no_space_before or not out else " ") + flag + word,
                    word in ("(", "["),
                )
                continue
            flag = "-" if word == "Fl" else ""
            if word in _OPENED:
                out, no_space_before = out + ("" if no_space_before or not out else " ") + _OPENED[word], True
                closing = _CLOSED.get(word, "") + closing
            elif word in _CLOSED:
                out, no_space_before = out + _CLOSED[word], False
            elif word == "Nm":
                is_given = rest[0] and rest[0] not in _MDOC and rest[0] not in _POINTS
                named = rest.pop(0) if is_given else self._name
                self._name = self._name or named
                out, no_space_before = out + ("" if no_space_before or not out else " ") + named, False
            elif word == "Xr" and len(rest) > 2:
                rest[:2] = [f"{rest[0]}({rest[1]})"]
            elif word == "Ar" and (not rest[0] or rest[0] in _MDOC):
                rest.insert(0, "file ...")
            no_space_before = no_space_before or word in ("Ns", "Pf")
        return out + closing
