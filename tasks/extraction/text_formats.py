"""Extract text from text-based formats: notebooks, mail, subtitles and RTF."""

from __future__ import annotations

import codecs
import email.policy
import json
import re
from collections.abc import Iterator
from email.message import EmailMessage, Message, MIMEPart
from email.parser import BytesParser
from importlib.util import find_spec
from typing import Any, cast

from driftline.storage.model import SkipReason
from driftline.tasks.extraction.extractor import Draft, Extracted
from driftline.tasks.extraction.process import Refused
from driftline.tasks.text import decode

_SUFFIXES = {"python": "py", "julia": "jl", "javascript": "js", "typescript": "ts", "rust": "rs", "c++": "cpp"}
_PLAIN_SUFFIXES = frozenset(("bash", "c", "cpp", "go", "java", "kotlin", "php", "r", "ruby", "scala", "sql", "swift"))


def notebook(data: bytes) -> Extracted:
    """Return the cells of a Jupyter notebook in order, code and prose, without outputs.

    The anchor is the number of a cell.
    """
    return _notebook(data, outputs=False)


def notebook_with_outputs(data: bytes) -> Extracted:
    """Like ``notebook``, with the text of the outputs after each code cell."""
    return _notebook(data, outputs=True)


def _notebook(data: bytes, *, outputs: bool) -> Extracted:
    try:
        read = json.loads(data)
        cells = _cells(read)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        raise Refused(SkipReason.DAMAGED) from None
    language = _language(read)
    draft = Draft()
    for number, (kind, source, printed) in enumerate(cells, start=1):
        if not source.strip() and not (outputs and printed.strip()):
            continue
        if draft.lines:
            draft.add("")
        draft.at(f"cell {number}")
        draft.begin("md" if kind == "markdown" else language if kind == "code" else "")
        if source.strip():
            draft.add(source.rstrip("\n"))
        if outputs and printed.strip():
            draft.begin("")
            draft.add(printed.rstrip("\n"))
    return draft.done()


def _cells(read: Any) -> list[tuple[str, str, str]]:
    """Return the kind, the source and the outputs of each cell, in format 4 or 3."""
    sheets = [read] if "cells" in read else read["worksheets"]
    found = [cell for sheet in sheets for cell in sheet["cells"]]
    return [
        (str(cell["cell_type"]), _joined(cell.get("source", cell.get("input", ""))), _printed(cell.get("outputs")))
        for cell in found
    ]


def _printed(outputs: Any) -> str:
    """Return the text of outputs: streams, results without pictures and markup, and errors without their colours."""
    texts: list[str] = []
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, dict):
            continue
        bundle = output.get("data", output)
        text = bundle.get("text/plain", output.get("text", "")) if isinstance(bundle, dict) else ""
        if output.get("output_type") in ("error", "pyerr"):
            text = f"{output.get('ename', '')}: {output.get('evalue', '')}"
        texts.append(_COLOURS.sub("", _joined(text)).strip("\n"))
    return "\n".join(filter(None, texts))


_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _joined(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _language(read: dict[str, Any]) -> str:
    """Return the suffix of files in the language of a notebook, "" if it is unknown."""
    try:
        about = read.get("metadata", {})
        name = about.get("language_info", {}).get("name") or about.get("kernelspec", {}).get("language") or "python"
        name = str(name).lower()
    except AttributeError:
        return ""
    return _SUFFIXES.get(name, name if name in _PLAIN_SUFFIXES else "")


# -- mail ----------------------------------------------------------------------------------------

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_BEGINS_MESSAGE = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\r\n\r\n))From [^\r\n]*\r?\n")
_QUOTED_FROM = re.compile(r"^>(>*From )", re.MULTILINE)


def mail(data: bytes) -> Extracted:
    """Return the text of one message: the headers that people search, its body, and the names of its attachments."""
    draft = Draft()
    _add_message(draft, data)
    return draft.done()


def mailbox(data: bytes) -> Extracted:
    """Return the messages of an mbox; the anchor is the number of a message."""
    draft = Draft()
    for number, message in enumerate(messages(data), start=1):
        if draft.lines:
            draft.add("")
        draft.at(f"message {number}")
        _add_message(draft, message)
    return draft.done()


def messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of an mbox."""
    starts = [match.span() for match in _BEGINS_MESSAGE.finditer(data)]
    for at, (_, first) in enumerate(starts):
        yield data[first : starts[at + 1][0] if at + 1 < len(starts) else len(data)]


def _add_message(draft: Draft, data: bytes) -> None:
    message = BytesParser(policy=email.policy.default).parsebytes(data)
    for name in _HEADERS:
        value = _header(message, name)
        if value:
            draft.add(f"{name}: {value}")
    draft.add("")
    body = message.get_body(("plain", "html"))
    for text in _texts(message, body):
        _add_body(draft, cast(EmailMessage, text))
    for part in message.walk():
        attached = part.get_filename()
        if attached and part is not body:
            draft.add(f"attachment: {' '.join(str(attached).split())}")


def _texts(part: MIMEPart, body: object) -> Iterator[MIMEPart]:
    """Yield the text of a message, without attachments, and the text of forwarded messages."""
    if part is body:
        yield part
    elif part.get_content_type() == "multipart/alternative":
        yield from (each for each in part.walk() if each is body)
    elif part.get_filename():
        return  # an attachment
    elif part.is_multipart():
        forwards = part.get_content_type() == "message/rfc822"
        for inside in cast(list[MIMEPart], part.get_payload()):
            yield from _texts(inside, inside.get_body(("plain", "html")) if forwards else body)
    elif part.get_content_type() == "text/plain":
        yield part


def attachments(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the file name, without folders, and the content of each attachment of a message."""
    message = BytesParser(policy=email.policy.default).parsebytes(data)
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
        elif part is not body and part.get_filename():
            yield _file_name(str(part.get_filename())), cast(bytes, part.get_payload(decode=True) or b"")


def _file_name(name: str) -> str:
    """Return the file name in a header, without folders, blanks and control characters."""
    plain = _NO_NAME.sub(" ", name.replace("\\", "/").rstrip("/").rpartition("/")[2]).strip()
    return plain if plain.strip(".") else "attachment"


_NO_NAME = re.compile(r"[\s\x00-\x1f\x7f]+")


def _header(message: EmailMessage, name: str) -> str:
    try:
        return " ".join(str(message[name] or "").split())
    except (ValueError, IndexError, AttributeError, TypeError):  # the library gives up on some damaged headers
        return ""


def _add_body(draft: Draft, body: EmailMessage) -> None:
    content = cast(bytes, body.get_payload(decode=True) or b"")
    try:
        text = content.decode(body.get_content_charset("utf-8"), "replace")
    except LookupError:
        text = content.decode("utf-8", "replace")
    if body.get_content_subtype() != "html":
        draft.add(_QUOTED_FROM.sub(r"\1", text.rstrip()))
    elif find_spec("lxml") is not None:
        from driftline.tasks.extraction.pages import add_html

        add_html(draft, text.encode("utf-8", "replace"))


# -- subtitles -----------------------------------------------------------------------------------

_TIMES = re.compile(r"(\d{1,3}:)?(\d\d:\d\d)[.,]\d{3}[ \t]*-->")
_TAGS = re.compile(r"<[^<>\n]{1,100}>|\{\\[^{}\n]{1,100}\}")


def subtitles(data: bytes) -> Extracted:
    """Return the spoken text of srt or vtt, without times and styles; the anchor is its time."""
    text, reason = decode(data)
    if reason is not None:
        raise Refused(reason)
    draft = Draft()
    for block in re.split(r"\n[ \t]*\n", text):
        lines = block.strip("\n").split("\n")
        timed = next((at for at, line in enumerate(lines[:3]) if _TIMES.match(line.strip())), None)
        if timed is None:
            continue
        match = _TIMES.match(lines[timed].strip())
        assert match is not None
        draft.at(f"{match[1] or '00:'}{match[2]}")
        for line in lines[timed + 1 :]:
            if said := _TAGS.sub("", line).strip():
                draft.add(said)
    return draft.done()


# -- RTF -----------------------------------------------------------------------------------------

_RTF_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]+|([^\\{}\r\n]+)"
)
_NO_TEXT = frozenset(
    (b"fonttbl", b"colortbl", b"stylesheet", b"info", b"pict", b"object", b"datastore", b"themedata", b"filetbl",
     b"listtable", b"listoverridetable", b"rsidtbl", b"generator", b"header", b"footer", b"headerl", b"headerr",
     b"footerl", b"footerr", b"fldinst", b"xmlnstbl", b"latentstyles")
)  # fmt: skip
"""Groups that hold the appearance of a document, or text that repeats on each page."""
_RTF_SIGNS = {
    b"par": "\n", b"line": "\n", b"sect": "\n", b"page": "\n", b"row": "\n", b"tab": "\t", b"cell": "\t",
    b"emdash": "—", b"endash": "–", b"lquote": "‘", b"rquote": "’", b"ldblquote": "“",
    b"rdblquote": "”", b"bullet": "•",
}  # fmt: skip
_RTF_ESCAPED = {b"~": "\xa0", b"_": "-", b"\n": "\n", b"\r": "\n", b"\\": "\\", b"{": "{", b"}": "}"}
_MAX_GROUPS = 1_000


def rtf(data: bytes) -> Extracted:
    """Return the paragraphs of an RTF document."""
    draft = Draft()
    for line in _rtf_text(data).split("\n"):
        if line.strip():
            draft.add(line.strip())
    return draft.done()


def _rtf_text(data: bytes) -> str:
    out: list[str] = []
    pending = bytearray()
    encoding, fallback, skip_fallback, ignored = "cp1252", 1, 0, False
    groups: list[tuple[bool, int]] = []

    def flush() -> None:
        if pending:
            out.append(pending.decode(encoding, "replace"))
            pending.clear()

    for match in _RTF_TOKEN.finditer(data):
        word, number, code, escaped, brace, plain = match.groups()
        if brace == b"{":
            if len(groups) == _MAX_GROUPS:
                raise Refused(SkipReason.BOMB)
            groups.append((ignored, fallback))
        elif brace == b"}":
            ignored, fallback = groups.pop() if groups else (ignored, fallback)
            skip_fallback = 0
        elif word in _NO_TEXT or (escaped == b"*" and data[match.start() - 1 : match.start()] == b"{"):
            ignored = True
        elif word == b"ansicpg" and number:
            encoding = _codepage(number)
        elif word == b"uc" and number:
            fallback = max(0, min(int(number), 10))
        elif ignored:
            continue
        elif word == b"u" and number:
            flush()
            out.append(chr(int(number) % 65_536))
            skip_fallback = fallback
        elif code:
            if skip_fallback:
                skip_fallback -= 1
            else:
                pending += bytes.fromhex(code.decode())
        elif word in _RTF_SIGNS or escaped in _RTF_ESCAPED:
            flush()
            out.append(_RTF_SIGNS.get(word) or _RTF_ESCAPED.get(escaped, ""))
        elif plain:
            kept = plain[skip_fallback:]
            skip_fallback = max(0, skip_fallback - len(plain))
            pending += kept
    flush()
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _codepage(number: bytes) -> str:
    name = f"cp{number.decode()}"
    try:
        codecs.lookup(name)
    except LookupError:
        return "cp1252"
    return name
