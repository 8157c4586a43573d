"""Extract text from office documents (XML archives): docx, pptx, xlsx, OpenDocument, and EPUB."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import unquote

from driftline.storage.documents import SkipReason
from driftline.tasks.extraction.extractor import Draft, Extracted, choose
from driftline.tasks.extraction.process import Refused
from driftline.tasks.extraction.xml_parts import Archive, Attributes, Handler, open_archive
from driftline.tasks.text import decode

_REPEATED = frozenset(("Fallback", "moveFrom", "rt"))
"""Elements that repeat text: as a fallback for older readers, at the position before a move, or as a pronunciation."""
_MATHEMATICAL = {"den": "/", "sub": "_", "sup": "^"}


class _Paragraphs(Handler):
    """Adds a line for each paragraph of a document or drawing, each table row, and each axis's labels."""

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self._draft = draft
        self._text: list[str] = []
        self._outer: list[tuple[list[str], str]] = []
        self._cells: list[str] = []
        self._in_cells = self._ignored = 0
        self._reads = self._in_chart = False
        self._in_charts: set[str] = set()
        self._prefix = ""

    def start(self, tag: str, attributes: Attributes) -> None:
        if self._ignored or tag in _REPEATED or attributes.get("type") == "slidenum":
            self._ignored += 1
            return
        match tag:
            case "t":
                self._reads = True
            case "v":
                self._reads = self._in_chart
            case "strCache" | "tx":  # a series is named by its cells, or directly
                self._in_chart = True
            case "tab" | "ptab":
                self._text.append("\t")
            case "br" | "cr":
                self._text.append(" ")
            case "noBreakHyphen":
                self._text.append("-")
            case "den" | "sub" | "sup":
                self._text.append(_MATHEMATICAL[tag])
            case "p":  # perhaps of a text box inside a paragraph, whose own line comes after it
                self._outer.append((self._text, self._prefix))
                self._text, self._prefix = [], ""
            case "docPr" if said := _description(attributes):
                self._text.append(f" {said} ")
            case "cNvPr" if not self._outer and (said := _description(attributes)):  # no repetition of docPr
                self._draft.add(said)
            case "pStyle":
                self._prefix = _heading(attributes.get("val", ""))
            case "tc":
                self._in_cells += 1
                self._cells.append("")

    def end(self, tag: str) -> None:
        if self._ignored:
            self._ignored -= 1
            return
        match tag:
            case "t":
                self._reads = False
            case "v" if self._in_chart:
                self._reads = False
                self._text.append("\t")
            case "fName":
                self._text.append(" ")
            case "sub" | "sup" if self._text[-1:] == [_MATHEMATICAL[tag]]:  # empty sub- or superscript
                self._text.pop()
            case "p":
                self._end_paragraph()
                if self._outer:
                    self._text, self._prefix = self._outer.pop()
            case "strCache" | "tx":  # each series repeats the category names
                self._in_chart = False
                if (names := "".join(self._text)) in self._in_charts:
                    self._text.clear()
                self._in_charts.add(names)
                self._end_paragraph()
            case "tc":
                self._in_cells -= 1
            case "tr":
                if not self._in_cells and any(self._cells):
                    self._draft.add("\t".join(self._cells))
                if not self._in_cells:
                    self._cells.clear()

    def data(self, text: str) -> None:
        if self._reads:
            self._text.append(text)

    def _end_paragraph(self) -> None:
        text, prefix = "".join(self._text).strip(), self._prefix
        self._text.clear()
        self._prefix = ""
        if not text:
            return
        if self._in_cells:
            self._cells[-1] = f"{self._cells[-1]} {text}".strip()
        else:
            self._draft.add(text, prefix)


_SENTENCE = re.compile(r"(?:\S+\s+){2}\S|[\u2e80-\U0003ffff]{4}")
_FILE_NAME = re.compile(r"\.\w{3,4}$")


def _description(attributes: Attributes) -> str:
    """Return the description of a picture, or "" if it is only a name, which programs make."""
    said = " ".join(attributes.get("descr", "").split())
    return said if _SENTENCE.match(said) and not _FILE_NAME.search(said) else ""


class _Comments(_Paragraphs):
    """Also adds slide comments, and comments on cells of ``sheet``, each anchored to its cell."""

    def __init__(self, draft: Draft, sheet: str = "") -> None:
        super().__init__(draft)
        self._sheet = sheet

    def start(self, tag: str, attributes: Attributes) -> None:
        super().start(tag, attributes)
        if tag == "comment" and self._sheet:
            self._draft.at(f"{self._sheet}!{attributes.get('ref', '')}")
        self._reads |= tag == "text"

    def end(self, tag: str) -> None:
        super().end(tag)
        if tag == "text":
            self._reads = False
            self._end_paragraph()


_DRAWN = re.compile(r"/(?:charts/chart|diagrams/data|drawings/drawing)[^/]*\.xml$")
_HOLDS_CHARTS = "/drawings/"
_SAID = re.compile(r"/(?:comments|notesSlides)[^/]*(?:/[^/]*)?\.xml$")


def _related(archive: Archive, part: str, kind: re.Pattern[str]) -> list[str]:
    """Return the distinct parts of ``kind`` that a part refers to."""
    targets = dict.fromkeys(archive.relations(part).values())
    return [name for name in targets if name in archive.names and kind.search(name)]


def _add_drawn(archive: Archive, draft: Draft, part: str, sheet: str = "") -> None:
    """Add the text of a part's drawings, charts and diagrams."""
    drawn = _related(archive, part, _DRAWN)
    if sheet and drawn:
        draft.at(f"{sheet}!A1")
    for name in drawn:
        archive.parse(name, _Paragraphs(draft))
        if _HOLDS_CHARTS in name and _HOLDS_CHARTS not in part:
            _add_drawn(archive, draft, name)


def _add_related(archive: Archive, draft: Draft, part: str, sheet: str = "") -> None:
    """Add the text of a part's drawings, charts, diagrams, comments, and slide notes."""
    _add_drawn(archive, draft, part, sheet)
    for name in _related(archive, part, _SAID):
        archive.parse(name, _Comments(draft, sheet))


_HEADING = re.compile(r"(?:heading|berschrift|titre|titolo)\s?([1-6])$", re.IGNORECASE)


def _heading(style: str) -> str:
    match = _HEADING.search(style)
    return "#" * int(match[1]) + " " if match else "# " if style == "Title" else ""


def _main_part(archive: Archive, usual: str) -> str:
    """Return the part that the document's relations name; programs number it, such as ``word/document2.xml``."""
    return next(iter(archive.related("", "officeDocument", usual)), usual)


def docx(data: bytes) -> Extracted:
    """Return a Word document's paragraphs, headings as in Markdown, tables by row, charts, notes, comments, and
    the lines of headers and footers once.
    """
    draft = Draft()
    with open_archive(data) as archive:
        main = _main_part(archive, "word/document.xml")
        archive.parse(main, _Paragraphs(draft))
        _add_drawn(archive, draft, main)
        _add_chunks(archive, draft, main)
        for name in ("footnotes", "endnotes", "comments"):
            for part in archive.related(main, name, f"word/{name}.xml"):
                draft.at(name)
                archive.parse(part, _Paragraphs(draft))
        seen: set[str] = set()
        for name in ("header", "footer"):
            for part in archive.related(main, name):
                repeated = Draft()
                archive.parse(part, _Paragraphs(repeated))
                draft.at(name)
                for line in repeated.lines:
                    if line not in seen:  # sections have their own copies
                        draft.add(line)
                seen.update(repeated.lines)
    return draft.done()


def _add_chunks(archive: Archive, draft: Draft, main: str) -> None:
    """Add the documents in other formats that programs insert into a Word document, except those that are not read."""
    for part in archive.related(main, "aFChunk"):
        choice = choose(part, b"".join(archive.chunks(part)))
        if choice.reason is not None:
            continue
        if choice.extractor is None:
            draft.add(decode(choice.data)[0])
            continue
        try:
            found = choice.extractor.extract_here(choice.data)
        except Refused as refused:
            if refused.reason is SkipReason.BOMB:
                raise
            continue
        starts = {heading.line: heading.level for heading in found.headings or ()}
        for at, line in enumerate(found.text.splitlines()):
            if at in starts:
                draft.head(starts[at])
            draft.add(line)


class _Ids(Handler):
    """A presentation's slide ids, or a workbook's sheet names and ids, in order."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag
        self.found: list[tuple[str, str]] = []

    def started(self, tag: str, attributes: Attributes) -> None:
        if tag.endswith(f" {self._tag}"):  # both id and r:id are called id
            relation = next((value for name, value in attributes.items() if name.endswith("relationships id")), "")
            self.found.append((attributes.get("name", ""), relation))


def pptx(data: bytes) -> Extracted:
    """Return each slide's paragraphs, in slide show order, tables by row, charts, notes and comments.

    The anchor is the slide.
    """
    draft = Draft()
    with open_archive(data) as archive:
        main = _main_part(archive, "ppt/presentation.xml")
        slides, targets = _Ids("sldId"), archive.relations(main)
        archive.parse(main, slides)
        for number, (_, relation) in enumerate(slides.found, start=1):
            slide = targets.get(relation, "")
            if slide not in archive.names:
                continue
            draft.at(f"slide {number}")
            archive.parse(slide, _Paragraphs(draft))
            _add_related(archive, draft, slide)
    return draft.done()


class _SharedStrings(Handler):
    def __init__(self) -> None:
        super().__init__()
        self.strings: list[str] = []
        self._parts: list[str] = []
        self._reads = self._is_phonetic = False

    def start(self, tag: str, attributes: Attributes) -> None:
        self._is_phonetic |= tag == "rPh"
        self._reads = tag == "t" and not self._is_phonetic

    def end(self, tag: str) -> None:
        self._reads = False
        self._is_phonetic &= tag != "rPh"
        if tag == "si":
            self.strings.append(_unescaped("".join(self._parts)))
            self._parts.clear()

    def data(self, text: str) -> None:
        if self._reads:
            self._parts.append(text)


_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
"""A character that XML cannot contain."""


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), text) if "_x" in text else text


_DATE_FORMATS = frozenset((*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)))
"""The numbers of the built-in date and time formats."""
_DURATION = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
_BUILT_IN_DURATION = "46"
_QUOTED_IN_FORMAT = re.compile(r'"[^"]*"|\\.|[_*].')
_LITERAL_IN_FORMAT = re.compile(r'"[^"]*"|\\.|[_*].|\[[^\]]*\]')
_FIRST_DAY = datetime(1899, 12, 30)
_MARCH_1900 = 61
"""Spreadsheets count 1900 as a leap year, so the days before are one later."""
_DAYS_TO_1904 = 1_462
_MAX_DAYS = 2_950_000
"""A date before the year 9977."""


class _Styles(Handler):
    """The cell styles, keyed by number, that format a number as a date or a time, and day 0 of the dates."""

    def __init__(self) -> None:
        super().__init__()
        self.are_dates: list[bool] = []
        self.are_durations: list[bool] = []
        self.from_1904 = self._in_cells = False
        self._formats: set[str] = set()
        self._durations = {_BUILT_IN_DURATION}

    def start(self, tag: str, attributes: Attributes) -> None:
        match tag:
            case "workbookPr":
                self.from_1904 = attributes.get("date1904", "0") in ("1", "true")
            case "numFmt":
                code = attributes.get("formatCode", "")
                if _DURATION.search(_QUOTED_IN_FORMAT.sub("", code)):
                    self._durations.add(attributes.get("numFmtId", ""))
                code = _LITERAL_IN_FORMAT.sub("", code).lower()
                if not code.startswith("general") and not set("dmyhs").isdisjoint(code):
                    self._formats.add(attributes.get("numFmtId", ""))
            case "cellXfs":
                self._in_cells = True
            case "xf" if self._in_cells:
                number = attributes.get("numFmtId", "")
                known = number.isdecimal() and int(number) in _DATE_FORMATS
                self.are_dates.append(known or number in self._formats)
                self.are_durations.append(number in self._durations)

    def end(self, tag: str) -> None:
        self._in_cells &= tag != "cellXfs"

    def shown(self, value: str, style: str) -> str:
        """Format a number for display: ``2024-03-01``, ``2024-03-01 13:30:00``, ``13:30:00``, ``0.3``, or the
        duration ``30:00:00``.
        """
        try:
            number = float(value)
        except ValueError:
            return value
        at = int(style) if style.isdecimal() else -1
        if 0 <= at < len(self.are_durations) and self.are_durations[at] and abs(number) < _MAX_DAYS:
            minutes, seconds = divmod(round(abs(number) * 86_400), 60)
            return f"{'-' * (number < 0)}{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        if not (0 <= at < len(self.are_dates) and self.are_dates[at] and 0 <= number < _MAX_DAYS):
            return f"{number:.15g}" if "." in value else value
        shift = _DAYS_TO_1904 if self.from_1904 else number < _MARCH_1900
        time = _FIRST_DAY + timedelta(days=int(number) + shift, seconds=round(number % 1 * 86_400))
        if number < 1:
            return f"{time:%H:%M:%S}"
        return f"{time:%Y-%m-%d}" if number.is_integer() else f"{time:%Y-%m-%d %H:%M:%S}"


class _Sheet(Handler):
    """Adds a line for each row of a sheet; its anchor is the first non-empty cell."""

    def __init__(self, draft: Draft, name: str, strings: list[str], styles: _Styles) -> None:
        super().__init__()
        self._draft, self._name, self._strings, self._styles = draft, name, strings, styles
        self._cells: list[str] = []
        self._first, self._row = "", 0
        self._kind = self._cell = self._style = ""
        self._value: list[str] = []
        self._reads = False

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "c":
            self._kind = attributes.get("t", "n")
            self._cell = attributes.get("r") or f"{_letters(_column_after(self._cell))}{self._row}"
            self._style = attributes.get("s", "")
        elif tag == "row":
            number = attributes.get("r", "")
            self._row, self._cell = int(number[:9]) if number.isdecimal() else self._row + 1, ""
        self._reads = tag in ("v", "t")

    def data(self, text: str) -> None:
        if self._reads:
            self._value.append(text)

    def end(self, tag: str) -> None:
        self._reads = False
        if tag == "c":
            value = "".join(self._value)
            self._value.clear()
            if self._kind == "s":
                at = int(value) if value.isdecimal() else -1
                value = self._strings[at] if 0 <= at < len(self._strings) else ""
            elif self._kind == "n":
                value = self._styles.shown(value, self._style)
            elif self._kind in ("str", "inlineStr"):
                value = _unescaped(value)
            elif self._kind == "b":
                value = {"0": "FALSE", "1": "TRUE"}.get(value, value)
            value = " ".join(value.split())
            if value and not self._cells:
                self._first = self._cell
            if value:
                self._cells.append(value)
        elif tag == "row" and self._cells:
            self._draft.at(f"{self._name}!{self._first}")
            self._draft.add("\t".join(self._cells))
            self._cells.clear()


def xlsx(data: bytes) -> Extracted:
    """Return each sheet's rows, with tab-separated values, charts, text boxes and comments.

    The anchor is the first cell of a row, ``Sheet1!B7``, or the cell of a comment.
    """
    draft = Draft()
    with open_archive(data) as archive:
        main = _main_part(archive, "xl/workbook.xml")
        sheets, targets, shared, styles = _Ids("sheet"), archive.relations(main), _SharedStrings(), _Styles()
        archive.parse(main, sheets)
        archive.parse(main, styles)
        for kind, handler in (("sharedStrings", shared), ("styles", styles)):
            for part in archive.related(main, kind, f"xl/{kind}.xml"):
                archive.parse(part, handler)
        for name, relation in sheets.found:
            part = targets.get(relation, "")
            if part in archive.names:
                archive.parse(part, _Sheet(draft, name, shared.strings, styles))
                _add_related(archive, draft, part, name)
    return draft.done()


# -- OpenDocument --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Row:
    """A table row: its cells with their 0-based columns, and the next column.

    ``depth`` is the number of text elements around it.
    """

    depth: int
    cells: list[tuple[int, str]] = field(default_factory=list)
    column: int = 0
    repeated: int = 1


_MAX_SHOWN_DATE = 40
"""A cell with a longer text contains more than a date, such as a comment."""


def _value_of(attributes: Attributes) -> str:
    return attributes.get("string-value") or attributes.get("boolean-value") or attributes.get("value") or ""


class _OpenDocument(Handler):
    """Adds a line for each paragraph and for each table row.

    Paragraphs and tables inside a paragraph, such as notes, comments and text boxes, come after it; so do charts. A
    formula is part of its paragraph. ``embedded`` reads the object at a relative path.
    """

    def __init__(self, draft: Draft, is_sheet: bool, embedded: Callable[[str], _Object | None]) -> None:
        super().__init__()
        self._draft, self._is_sheet, self._embedded = draft, is_sheet, embedded
        self._texts: list[list[str]] = []
        self._prefixes: list[str] = []
        self._notes: list[str] = []
        self._charts: list[str] = []
        self._rows: list[_Row] = []
        self._table, self._number, self._slide, self._ignored = "", 0, 0, 0
        self._value = self._date = ""

    def start(self, tag: str, attributes: Attributes) -> None:
        match tag:
            case "p" | "h":
                level = attributes.get("outline-level", "1")
                self._prefixes.append("#" * min(int(level) if level.isdecimal() else 1, 6) + " " if tag == "h" else "")
                self._texts.append([])
            case "note" | "annotation":  # a note's number, or its author and date, are not text
                self._texts.append([])
            case "s" | "tab" | "line-break":
                self.data("\t" if tag == "tab" else " ")
            case "title" | "desc":  # of a picture, or a field of the text
                self._texts.append([])
            case "object":
                self._embed(self._embedded(attributes.get("href", "")))
            case "table":
                self._table, self._number = attributes.get("name", ""), 0
            case "table-row":
                repeated = attributes.get("number-rows-repeated", "1")
                self._rows.append(_Row(len(self._texts), repeated=int(repeated) if repeated.isdecimal() else 1))
            case "table-cell" | "covered-table-cell":
                if self._rows:
                    repeated = attributes.get("number-columns-repeated", "1")
                    self._rows[-1].cells.append((self._rows[-1].column, ""))
                    self._value = _value_of(attributes) if self._is_sheet else ""
                    self._date = attributes.get("date-value", "") if self._is_sheet else ""
                    self._rows[-1].column += min(int(repeated) if repeated.isdecimal() else 1, 10**6)
            case "page":
                self._slide += 1
                self._draft.at(f"slide {self._slide}")
            case "tracked-changes" | "forms" | "ruby-text":
                self._ignored += 1

    def end(self, tag: str) -> None:
        match tag:
            case "p" | "h":
                self._end_paragraph()
            case "note" | "annotation":
                self._texts.pop()
                if not self._texts:  # a cell's text
                    self._add_notes()
            case "title" | "desc":
                self._end_description()
            case "table-cell":
                self._end_cell()
            case "table-row":
                self._end_row()
            case "tracked-changes" | "forms" | "ruby-text":
                self._ignored -= 1

    def data(self, text: str) -> None:
        if self._texts and not self._ignored:
            self._texts[-1].append(text)

    def _end_paragraph(self) -> None:
        text, prefix = " ".join("".join(self._texts.pop()).split()), self._prefixes.pop()
        in_cell = bool(self._rows) and len(self._texts) == self._rows[-1].depth
        if self._texts and not in_cell:
            self._notes.append(text)
            return
        self._add(text, prefix)
        if not self._texts:
            self._add_notes()

    def _end_description(self) -> None:
        text = " ".join("".join(self._texts.pop()).split())
        if self._texts:
            self.data(f" {text} ")
        else:
            self._add(text)
            self._add_notes()

    def _embed(self, found: _Object | None) -> None:
        if found is None or self._ignored:
            return
        if self._texts:
            self.data(f" {found.formula} ")
            self._notes += found.lines
        elif self._rows:
            self._charts += [found.formula, *found.lines]
        else:
            if self._is_sheet:
                self._draft.at(f"{self._table}!A1")
            for line in filter(None, (found.formula, *found.lines)):
                self._draft.add(line)

    def _add_notes(self) -> None:
        notes, self._notes = self._notes, []
        for text in notes:
            self._add(text)

    def _add(self, text: str, prefix: str = "") -> None:
        if text and self._rows and self._rows[-1].cells:
            column, before = self._rows[-1].cells[-1]
            self._rows[-1].cells[-1] = column, f"{before} {text}".strip()
        elif text:
            self._draft.add(text, prefix)

    def _end_cell(self) -> None:
        """Set a date as ISO 8601, and a value that the file does not also have as text."""
        if self._rows and self._rows[-1].cells:
            column, text = self._rows[-1].cells[-1]
            if self._date and len(text) <= _MAX_SHOWN_DATE:
                text = self._date.removesuffix("T00:00:00").replace("T", " ")
            self._rows[-1].cells[-1] = column, text or self._value
        self._value = self._date = ""

    def _end_row(self) -> None:
        row = self._rows.pop()
        self._number += 1
        filled = [(column, text) for column, text in row.cells if text]
        line = "\t".join([text for _, text in filled])
        if filled and self._texts and not self._rows:  # in a text box, which comes after its paragraph
            self._notes.append(line)
        elif filled:
            if self._is_sheet:
                self._draft.at(f"{self._table}!{_letters(filled[0][0])}{self._number}")
            self._draft.add(line)
        if not self._rows:
            for chart in filter(None, self._charts):
                self._draft.add(chart)
            self._charts.clear()
        self._number += row.repeated - 1


class _Object(_OpenDocument):
    """An object in a document: a formula as it was typed, or a chart. A chart's rows repeat those of a ``sheet``."""

    def __init__(self, of_sheet: bool) -> None:
        self._own = Draft()
        super().__init__(self._own, is_sheet=False, embedded=lambda _: None)
        self._of_sheet = of_sheet
        self._symbols: list[str] | None = None

    @property
    def formula(self) -> str:
        return " ".join(" ".join(self._symbols or ()).split())

    @property
    def lines(self) -> list[str]:
        return self._own.lines

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag in ("math", "annotation") and (tag == "math" or self._symbols is not None):
            self._symbols = []
        elif self._symbols is None:
            super().start(tag, attributes)

    def end(self, tag: str) -> None:
        if self._symbols is None:
            super().end(tag)

    def data(self, text: str) -> None:
        if self._symbols is None:
            super().data(text)
        else:
            self._symbols.append(text)

    def _end_row(self) -> None:
        if self._of_sheet:
            self._rows.pop()
        else:
            super()._end_row()


def _letters(column: int) -> str:
    """Return the name of a 0-based column: ``A``, ``Z``, ``AA``."""
    name, column = "", column + 1
    while column:
        column, rest = divmod(column - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def _column_after(cell: str) -> int:
    """Return the 0-based column after a cell such as ``B7``; 0 after "", the start of a row."""
    column = 0
    for letter in cell.rstrip("0123456789")[:3].upper():
        column = 26 * column + ord(letter) - ord("A") + 1
    return max(0, column)


class _Manifest(Handler):
    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "encryption-data":
            raise Refused(SkipReason.ENCRYPTED)


def opendocument(data: bytes) -> Extracted:
    """Return the paragraphs, table rows, sheets or slides of odt, ods or odp, with formulas and the texts of charts."""
    draft = Draft()
    with open_archive(data) as archive:
        kind = next(archive.chunks("mimetype"), b"") if "mimetype" in archive.names else b""
        if "META-INF/manifest.xml" in archive.names:
            archive.parse("META-INF/manifest.xml", _Manifest())
        is_sheet = b"spreadsheet" in kind

        unread = {*archive.names} - {"content.xml"}

        def embedded(path: str) -> _Object | None:
            name = posixpath.normpath(f"{unquote(path)}/content.xml")
            if name not in unread:
                return None
            unread.remove(name)
            found = _Object(is_sheet)
            archive.parse(name, found)
            return found

        archive.parse("content.xml", _OpenDocument(draft, is_sheet, embedded))
    return draft.done()


# -- EPUB ----------------------------------------------------------------------------------------


class _Package(Handler):
    """Finds the location of a book's package in the container, and then its chapters in reading order."""

    def __init__(self) -> None:
        super().__init__()
        self.package = ""
        self._items: dict[str, str] = {}
        self._order: list[str] = []

    def start(self, tag: str, attributes: Attributes) -> None:
        match tag:
            case "rootfile":
                self.package = self.package or attributes.get("full-path", "")
            case "item":
                if "html" in attributes.get("media-type", ""):
                    self._items[attributes.get("id", "")] = unquote(attributes.get("href", ""))
            case "itemref":
                self._order.append(attributes.get("idref", ""))

    @property
    def chapters(self) -> list[str]:
        folder = posixpath.dirname(self.package)
        hrefs = (self._items[each] for each in dict.fromkeys(self._order) if each in self._items)
        return [posixpath.normpath(posixpath.join("/", folder, href)).lstrip("/") for href in hrefs]


_ENCRYPTION = "META-INF/encryption.xml"


class _Encryption(Handler):
    """Finds the encrypted files of a book, which may be only its fonts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "CipherReference":
            self.names.add(unquote(attributes.get("URI", "")).lstrip("/"))


def epub(data: bytes) -> Extracted:
    """Return the text of a book in reading order.

    The anchor is the chapter's file and the nearest id in it.
    """
    from driftline.tasks.extraction.html_pdf import add_html

    draft = Draft()
    with open_archive(data) as archive:
        book = _Package()
        archive.parse("META-INF/container.xml", book)
        archive.parse(book.package, book)
        encryption = _Encryption()
        if _ENCRYPTION in archive.names:
            archive.parse(_ENCRYPTION, encryption)
        if not encryption.names.isdisjoint(book.chapters):
            raise Refused(SkipReason.ENCRYPTED)
        for chapter in book.chapters:
            if chapter in archive.names:
                file = posixpath.basename(chapter)
                draft.at(file)
                add_html(draft, b"".join(archive.chunks(chapter)), file)
    return draft.done()
