"""Small documents in each format that Driftline reads, created without the libraries that read them."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Mapping

_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_A = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
_S = (
    'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
_RELS = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'
_ODF = " ".join(
    f'xmlns:{each}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for each, name in (
        *((name, name) for name in ("chart", "office", "table", "text", "xlink")),
        *(("draw", "drawing"), ("svg", "svg-compatible")),
    )
)


def archive(parts: Mapping[str, str | bytes]) -> bytes:
    """Return a zip archive. A part called ``mimetype`` is stored; the others are compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in parts.items():
            kind = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            zipped.writestr(zipfile.ZipInfo(name), content, kind)
    return buffer.getvalue()


def parts(data: bytes) -> dict[str, bytes]:
    """Return the parts of a zip archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        return {each: zipped.read(each) for each in zipped.namelist()}


def notebook(*cells: tuple[str, str]) -> bytes:
    listed = [{"cell_type": kind, "source": source.splitlines(keepends=True)} for kind, source in cells]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": listed}).encode()


def docx(body: str, **parts: str) -> bytes:
    document = f"<?xml version='1.0'?><w:document {_W}><w:body>{body}</w:body></w:document>"
    more = {f"word/{name}.xml": f"<w:{name} {_W}>{text}</w:{name}>" for name, text in parts.items()}
    return archive({"[Content_Types].xml": "<Types/>", "word/document.xml": document} | more)


def paragraph(text: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def text_box(prefix: str, text: str) -> str:
    """Return a text box as saved by Word and PowerPoint: once in the current format, once in the older one."""
    shown = f"<{prefix}:p><{prefix}:r><{prefix}:t>{text}</{prefix}:t></{prefix}:r></{prefix}:p>"
    namespace = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    choice = f'<mc:Choice Requires="wps">{shown}</mc:Choice>'
    fallback = f"<mc:Fallback><{prefix}:pict>{shown}</{prefix}:pict></mc:Fallback>"
    return f"<mc:AlternateContent {namespace}>{choice}{fallback}</mc:AlternateContent>"


def table(*rows: tuple[str, ...]) -> str:
    cells = ("".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{each}</w:tr>' for each in cells)}</w:tbl>"


def pptx(*slides: str, notes: Mapping[int, str] = {}) -> bytes:
    """Return a presentation whose slides are stored in reverse: only its index has their order."""
    parts = {"[Content_Types].xml": "<Types/>"}
    ids = relations = ""
    for number, text in enumerate(slides, start=1):
        stored = len(slides) - number + 1
        parts[f"ppt/slides/slide{stored}.xml"] = f"<p:sld {_A}><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:sld>"
        ids += f'<p:sldId id="{255 + number}" r:id="rId{number}"/>'
        relations += f'<Relationship Id="rId{number}" Target="slides/slide{stored}.xml"/>'
        if number in notes:
            target = f'<Relationship Id="rId1" Target="../notesSlides/notesSlide{stored}.xml"/>'
            parts[f"ppt/slides/_rels/slide{stored}.xml.rels"] = f"<Relationships {_RELS}>{target}</Relationships>"
            said = f"<p:notes {_A}><a:p><a:r><a:t>{notes[number]}</a:t></a:r></a:p></p:notes>"
            parts[f"ppt/notesSlides/notesSlide{stored}.xml"] = said
    parts["ppt/presentation.xml"] = f"<p:presentation {_A}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>"
    parts["ppt/_rels/presentation.xml.rels"] = f"<Relationships {_RELS}>{relations}</Relationships>"
    return archive(parts)


def xlsx(rows: str, *, sheet: str = "Birds", strings: tuple[str, ...] = ()) -> bytes:
    shared = "".join(f"<si><t>{each}</t></si>" for each in strings)
    relation = '<Relationship Id="rId7" Target="worksheets/sheet1.xml"/>'
    named = f'<sheet name="{sheet}" sheetId="1" r:id="rId7"/>'
    return archive(
        {
            "[Content_Types].xml": "<Types/>",
            "xl/workbook.xml": f"<workbook {_S}><sheets>{named}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": f"<Relationships {_RELS}>{relation}</Relationships>",
            "xl/sharedStrings.xml": f"<sst {_S}>{shared}</sst>",
            "xl/worksheets/sheet1.xml": f"<worksheet {_S}><sheetData>{rows}</sheetData></worksheet>",
        }
    )


def opendocument(kind: str, body: str, manifest: str = "<m/>") -> bytes:
    content = f"<office:document-content {_ODF}><office:body>{body}</office:body></office:document-content>"
    mimetype = f"application/vnd.oasis.opendocument.{kind}"
    return archive({"mimetype": mimetype, "content.xml": content, "META-INF/manifest.xml": manifest})


def epub(**chapters: str) -> bytes:
    items = "".join(f'<item id="{name}" href="{name}.xhtml" media-type="application/xhtml+xml"/>' for name in chapters)
    order = "".join(f'<itemref idref="{name}"/>' for name in chapters)
    package = f"<package><manifest>{items}</manifest><spine>{order}</spine></package>"
    container = '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
    parts = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "OPS/book.opf": package}
    texts = {f"OPS/{name}.xhtml": f"<html><body>{text}</body></html>" for name, text in chapters.items()}
    return archive(parts | texts)


def pdf(*pages: tuple[str, ...] | str, trailer: str = "", bookmarks: tuple[tuple[str, int], ...] = ()) -> bytes:
    """Return a PDF of pages of lines, in Helvetica, or of drawing operations (``drawn``).

    ``bookmarks`` are titles and their page indexes.
    """
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for lines in pages:
        shown = " T* ".join(f"({line}) Tj" for line in lines)
        content = lines if isinstance(lines, str) else f"BT /F1 12 Tf 14 TL 50 750 Td {shown} ET" if lines else ""
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
        resources = f"/Resources << /Font << /F1 3 0 R >> >> /Contents {len(objects)} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] {resources} >>")
        kids.append(f"{len(objects)} 0 R")
    if bookmarks:
        first, last = len(objects) + 2, len(objects) + 1 + len(bookmarks)
        objects[0] = f"<< /Type /Catalog /Pages 2 0 R /Outlines {first - 1} 0 R >>"
        objects.append(f"<< /Type /Outlines /First {first} 0 R /Last {last} 0 R /Count {len(bookmarks)} >>")
        for number, (title, page) in enumerate(bookmarks, start=first):
            following = f"/Next {number + 1} 0 R" if number < last else ""
            objects.append(f"<< /Title ({title}) /Parent {first - 1} 0 R /Dest [{kids[page]} /Fit] {following} >>")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    out, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{each}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"trailer << /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{len(out)}\n%%EOF\n"
    return out + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def drawn(*texts: tuple[float, float, str], quarters: int = 0) -> str:
    """Return the operations that draw ``(x, y, text)`` in this order, turned by quarters of a turn to the left."""
    turns = {0: "1 0 0 1 0 0", 1: "0 1 -1 0 600 0", 2: "-1 0 0 -1 600 800", 3: "0 -1 1 0 0 800"}
    shown = " ".join(f"1 0 0 1 {x} {y} Tm ({text}) Tj" for x, y, text in texts)
    return f"q {turns[quarters]} cm BT /F1 10 Tf {shown} ET Q"


def form(field: str, shown: str) -> bytes:
    """Return a one-page PDF with one ``field``, whose appearance (object 3) shows a text."""
    drawn = f"BT /F1 12 Tf 2 5 Td ({shown}) Tj ET"
    font = "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    return (
        b"%PDF-1.4\n"
        + "\n".join(
            (
                "1 0 obj\n<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [4 0 R] >> >>\nendobj",
                "2 0 obj\n<< /Type /Pages /Kids [5 0 R] /Count 1 >>\nendobj",
                f"3 0 obj\n<< /Type /XObject /Subtype /Form /BBox [0 0 200 20] {font} /Length {len(drawn)} >>",
                f"stream\n{drawn}\nendstream\nendobj",
                f"4 0 obj\n{field}\nendobj",
                "5 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Annots [4 0 R] >>\nendobj",
                "trailer << /Size 6 /Root 1 0 R >>\n%%EOF\n",
            )
        ).encode()
    )


ENCRYPTED_PDF = pdf(
    ("secret",),
    trailer="/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 "
    f"/O <{'00' * 32}> /U <{'11' * 32}> >> /ID [<{'22' * 16}> <{'22' * 16}>]",
)
"""A PDF that is unreadable without its password."""

MAIL = (
    b"From: Ann <ann@example.org>\r\nTo: Bob <bob@example.org>\r\nSubject: =?utf-8?q?The_gr=C3=A9be?=\r\n"
    b"Date: Mon, 2 Mar 2026 10:00:00 +0000\r\nMIME-Version: 1.0\r\nMessage-ID: <1@example.org>\r\n"
    b'Content-Type: multipart/mixed; boundary="x"\r\n\r\n--x\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n'
    b"A grebe dives.\r\n--x\r\nContent-Type: image/png\r\nContent-Disposition: attachment; filename=grebe.png\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\niVBORw0KGgo=\r\n--x--\r\n"
)
MAILBOX = b"".join(
    b"From ann@example.org Mon Mar  2 10:00:00 2026\nFrom: ann@example.org\nSubject: %s\n\n%s\n\n" % each
    for each in ((b"one", b"A rail hides.\n>From the reeds."), (b"two", b"A crake calls."))
)
RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\*\generator none;}\f0 A sn\'e9cessary \b snipe\b0\par"
    rb"\u1094?\u1080\'3f zigzag\tab flight\par}"
)
SRT = (
    b"1\r\n00:00:01,000 --> 00:00:02,500\r\n<i>A bittern</i>\r\nbooms.\r\n\r\n"
    b"2\r\n01:02:03,000 --> 01:02:04,000\r\nSilence.\r\n"
)
VTT = b"WEBVTT\n\nNOTE nothing\n\n00:01.000 --> 00:02.000 align:start\n<v Ann>A dipper bobs.\n"
HTML = b"""<!DOCTYPE html><html><head><title>Birds</title><style>p { color: red }</style></head><body>
<nav><a href="/">Home of all pages</a></nav><h1 id="top">Waders</h1><p>A <b>curlew</b>
probes&nbsp;mud.<a class="headerlink" href="#top">x</a></p><script>var hidden = 1</script>
<h2 id="fields">Fields</h2><ul><li>A lapwing</li><li><p>A plover</p></li></ul>
<pre>def  call():
    pass</pre><table><tr><th>Name</th><th>Count</th></tr><tr><td>Ruff</td><td>7</td></tr></table>
<footer>Imprint</footer><div class="footer">Made with care</div></body></html>"""

MAN = rb"""'\" t
.ie \n(.g .ds Aq \(aq
.el       .ds Aq '
.de Sp
not shown
..
.if n \{\
.    ds -- \-
'br\}
.if t .ds -- wrong
.TH WADE 1 "2024\-05\-01" "Birds 1.0" "User Commands"
.SH NAME
wade \- walk in water \" a comment
.SH
OPTIONS
.IX Item "not shown"
.PP
Wades like \fIa heron\fR\*(--slowly,
.BR stand (1)
\(lqas it is\(rq in K\[:o]ln\*(Aqs
ponds\(ul1.
.TP
.B \-\-depth \fIcm\fP
Not deeper\ than
.I cm .
.SS Files
.nf
/etc/wade\&.conf
  two
.fi
.IP \(bu 2
An item.
.TS
tab(@);
l l.
Bird@Nests
_
Heron@T{
many @ ponds
T}@2 h\(oerons
Owl@1
.TE
"""
MDOC = b""".Dd May 1, 2024
.Dt WADE 8
.Os
.Sh NAME
.Nm wade
.Nd walk in water
.Sh SYNOPSIS
.Nm
.Op Fl dv
.Op Fl -depth Ns = Ns Ar cm
.Ar
.Sh DESCRIPTION
See
.Xr stand 1 ,
.Dq Li a b ,
or
.Oo Fl q Oc .
.Bl -tag -width indent
.It Fl d , -deep
Deep.
.El
"""
CALENDAR = (
    b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//x\r\nBEGIN:VEVENT\r\nUID:1@x\r\nDTSTART;TZID=Europe/Rome:20260302T100000\r\n"
    b'SUMMARY:Count the gree\r\n be nests\r\nATTENDEE;CN="Ann Lee";RSVP=TRUE:mailto:ann@example.org\r\n'
    b"DESCRIPTION:Bring boots\\, please.\\nNo dogs.\r\nEND:VEVENT\r\nBEGIN:VTODO\r\nSUMMARY:Paint\r\nEND:VTODO\r\n"
    b"END:VCALENDAR\r\n"
)

DOCUMENTS: dict[str, bytes] = {
    "a.1.gz": gzip.compress(MAN, mtime=0),
    "nb.ipynb": notebook(("markdown", "# Herons"), ("code", "def count():\n    return 1\n")),
    "a.html": HTML,
    "a.pdf": pdf(("A stork", "stands."), ("A crane", "dances.")),
    "a.docx": docx(paragraph("A gannet", "Heading1") + table(("Name", "Count"), ("Gannet", "3"))),
    "a.pptx": pptx("A puffin", "A razorbill", notes={2: "Say that it dives."}),
    "a.xlsx": xlsx('<row r="3"><c r="B3" t="s"><v>0</v></c><c r="C3"><v>4</v></c></row>', strings=("A petrel",)),
    "a.odt": opendocument("text", '<text:h text:outline-level="2">A skua</text:h><text:p>It robs.</text:p>'),
    "a.epub": epub(one='<h1 id="start">A kite</h1>', two="<p>A buzzard</p>"),
    "a.eml": MAIL,
    "a.mbox": MAILBOX,
    "a.ics": CALENDAR,
    "a.rtf": RTF,
    "a.srt": SRT,
    "a.vtt": VTT,
}
"""One document in each format, by name."""

HERONS: dict[str, bytes] = {
    "archive.zip": archive({"ponds/north.pdf": pdf(("No heron today.",))}),
    "book.epub": epub(intro='<h1 id="start">The heron year</h1>'),
    "counts.ods": opendocument(
        "spreadsheet",
        '<table:table table:name="Ponds"><table:table-row>'
        + "".join(f"<table:table-cell><text:p>{each}</text:p></table:table-cell>" for each in ("heron", "12 nests"))
        + "</table:table-row></table:table>",
    ),
    "counts.xlsx": xlsx('<row r="7"><c r="B7" t="s"><v>0</v></c><c r="C7"><v>12</v></c></row>', strings=("heron",)),
    "diary.txt.gz": gzip.compress(b"Monday\nA heron at the weir.\n", mtime=0),
    "film.srt": b"1\n00:01:30,000 --> 00:01:32,000\nThe heron strikes.\n",
    "film.vtt": b"WEBVTT\n\n02:10.000 --> 02:12.000\nA heron swallows.\n",
    "guide.html": b'<html><body><h1>Birds</h1><h2 id="waders">Waders</h2><p>Herons stand still.</p></body></html>',
    "handbook.pdf": pdf(("Storks",), ("Count heron nests at dawn.",)),
    "letter.odt": opendocument("text", "<text:p>The heron is back.</text:p>"),
    "list.mbox": MAILBOX.replace(b"A crake", b"A heron"),
    "notes.rtf": rb"{\rtf1\ansi A heron at the caf\'e9\par}",
    "reply.eml": b"From: ann@example.org\nSubject: Ponds\n\nThe heron prefers ours.\n",
    "report.docx": docx(paragraph("Results", "Heading1") + table(("heron", "12 nests"))),
    "survey.ipynb": notebook(("markdown", "# Survey"), ("code", "nests = 12  # heron")),
    "talk.odp": opendocument(
        "presentation",
        "".join(f"<draw:page><text:p>{each}</text:p></draw:page>" for each in ("Storks", "A heron nests in trees")),
    ),
    "talk.pptx": pptx("Storks", "Nests", notes={2: "Show the heron here."}),
    "visit.ics": b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:Visit the heron\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n",
}
"""The guide's folder: each file has one line about herons."""
