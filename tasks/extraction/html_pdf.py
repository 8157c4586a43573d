"""Extract the text of HTML, XHTML and PDF pages in reading order, omitting parts that repeat on each page."""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, islice, pairwise
from math import inf
from statistics import median, quantiles
from typing import NamedTuple

from driftline.storage.documents import SkipReason
from driftline.tasks.extraction.extractor import MAX_EXTRACTED_CHARACTERS, SOFT_HYPHEN, Draft, Extracted
from driftline.tasks.extraction.process import Refused
from driftline.tasks.text import decode

_SKIPPED = frozenset((
    "button", "canvas", "datalist", "iframe", "map", "nav", "noembed", "noframes", "noscript", "object", "rp", "rt",
    "script", "select", "style", "svg", "template", "textarea", "video", "audio",
))  # fmt: skip
"""Elements with no text, with the same text on each page of a site, or with the pronunciation of a word."""
_SKIPPED_ROLES = frozenset(("navigation", "search", "menu", "menubar", "toolbar", "tablist"))
_SKIPPED_CLASSES = re.compile(
    r"(?:^|\s)(?:headerlink|anchorjs-link|sphinxsidebar|breadcrumbs?|navbar|navheader|navfooter"
    r"|skip-link|toc-sidebar|linenos)(?:\s|$)"
)
"""Navigation classes. DocBook uses ``sidebar`` for text boxes."""
_SKIPPED_BOXES = re.compile(r"(?:^|\s)(?:related|footer)(?:\s|$)")
"""Classes of ``div`` that contain navigation outside ``_CITED``, and text inside it."""
_CITED = frozenset(("article", "blockquote", "figure"))
"""Elements whose ``footer`` is their author or source."""
_BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details", "dialog",
    "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "head",
    "header", "hr", "html", "legend", "li", "main", "menu", "ol", "p", "pre", "section", "summary", "table",
    "tbody", "tfoot", "thead", "title", "tr", "ul",
))  # fmt: skip
"""Elements that start and end a line."""
_PREFIXES = {f"h{level}": "#" * level + " " for level in range(1, 7)} | {"li": "- "}
_CELLS = frozenset(("td", "th"))
_ALONE_IN_CELLS = frozenset(("p", "div"))
"""The first such element in a cell does not break the row's line."""
_BLANKS = re.compile(r"[ \t\r\n\f\xa0]+")
_DECLARATIONS = re.compile(
    r"((?>\s+|<\?[^>]*>|<!--.*?-->)*+<!DOCTYPE[^<>\[]{0,1000})\[.{0,65536}?\]\s*>", re.DOTALL | re.IGNORECASE
)
"""A document type with declarations, which the library mistakes for text. Scripts may contain one, too."""
_PROLOGUE_CHARACTERS = 65_536


class _HtmlLines:
    """A parser target that adds a line to ``draft`` for each block."""

    def __init__(self, draft: Draft, file: str) -> None:
        self._draft, self._file = draft, file
        self._parts: list[str] = []
        self._skipped = 0
        self._cited = 0
        self._pre = 0
        self._prefix = ""
        self._in_cell = self._cell_is_empty = self._paragraph_ended = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._skipped or _is_skipped(tag, attributes) or (not self._cited and _is_page_footer(tag, attributes)):
            self._skipped += 1
            return
        self._cited += tag in _CITED
        anchor = attributes.get("id") or (attributes.get("name") if tag == "a" else None)
        if tag in _BLOCKS and not (tag in _ALONE_IN_CELLS and self._cell_is_empty):
            self._end_line()
            self._prefix = _PREFIXES.get(tag, self._prefix if tag == "p" else "")
            self._pre += tag == "pre"
        elif tag in _CELLS:
            self._in_cell = self._cell_is_empty = True
            self._paragraph_ended = False
            if self._parts:
                self._parts.append("\t")
        elif tag == "img" and attributes.get("alt"):
            self._parts.append(f" {attributes['alt']} ")
        if anchor and not self._parts:
            self._draft.at(f"{self._file}#{anchor}")

    def end(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif tag in _ALONE_IN_CELLS and self._in_cell:
            self._paragraph_ended = True
        elif tag in _BLOCKS:
            self._end_line()
            self._prefix = ""
            self._pre -= tag == "pre"
            self._cited -= tag in _CITED
            if tag == "table":
                self._in_cell = self._cell_is_empty = False

    def data(self, text: str) -> None:
        is_blank = not self._pre and text.isspace()
        if self._skipped or (is_blank and not self._parts):
            return
        if not is_blank:
            self._cell_is_empty = False
            if self._paragraph_ended:
                self._end_line()
        self._parts.append(text.replace(SOFT_HYPHEN, ""))

    def comment(self, text: str) -> None:
        pass

    def pi(self, target: str, data: str | None = None) -> None:
        pass

    def close(self) -> None:
        self._end_line()

    def _end_line(self) -> None:
        parts, self._parts = self._parts, []
        self._paragraph_ended = False
        if not parts:
            return
        text = "".join(parts)
        if self._pre:
            for line in text.strip("\n").split("\n"):
                self._draft.add(line.rstrip())
            return
        cells = [_BLANKS.sub(" ", cell).strip() for cell in text.split("\t")] if "\t" in parts else [text]
        line = "\t".join(cells) if len(cells) > 1 else _BLANKS.sub(" ", text).strip()
        if line.strip():
            self._draft.add(line, self._prefix)
            self._prefix = ""


def _is_skipped(tag: str, attributes: Mapping[str, str]) -> bool:
    if tag in _SKIPPED:
        return True
    if not attributes:
        return False
    classes = attributes.get("class")
    return (
        attributes.get("role") in _SKIPPED_ROLES
        or attributes.get("hidden", "until-found") != "until-found"
        or (classes is not None and _SKIPPED_CLASSES.search(classes) is not None)
    )


def _is_page_footer(tag: str, attributes: Mapping[str, str]) -> bool:
    return tag == "footer" or (tag == "div" and _SKIPPED_BOXES.search(attributes.get("class") or "") is not None)


def html(data: bytes) -> Extracted:
    """Return a page's text by block, with Markdown headings, and without scripts, styles and navigation.

    The anchor is the nearest preceding id.
    """
    draft = Draft()
    add_html(draft, data)
    return draft.done()


def add_html(draft: Draft, data: bytes, file: str = "") -> None:
    """Add the text of a page; ``file`` prefixes its anchors. Raises Refused."""
    from lxml import etree

    parser = etree.HTMLParser(target=_HtmlLines(draft, file), encoding="utf-8", huge_tree=False, remove_pis=True)
    text, reason = decode(data)
    if reason is not None:
        raise Refused(reason)
    if declared := _DECLARATIONS.match(text, 0, _PROLOGUE_CHARACTERS):
        text = f"{declared[1]}>{text[declared.end() :]}"
    try:
        parser.feed(text.encode("utf-8", "replace"))
        parser.close()
    except etree.XMLSyntaxError:
        raise Refused(SkipReason.DAMAGED) from None


# -- PDF -----------------------------------------------------------------------------------------

MAX_PAGES = 20_000
_EDGE_LINES = 2
"""How many lines at the top and bottom of a page may be running headers or footers."""
_MIN_REPEATS = 3
_MIN_REPEATED_FRACTION = 0.2
_NUMBER = re.compile(r"\d{1,9}|\b[ivxlc]{1,9}\b")
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_MAX_NUMBERS = 8
Form = tuple[str, int | None]
"""A line and None, or a line with ``#`` in place of a number, and that number minus the 0-based page."""
_PAGE = re.compile(
    r"\W*?(?:(?:page|seite|p\u00e1gina|pagina|p\.|pg\.?|s\.)\s*)?#(?:\s*(?:/|of|von|de|sur|di|van)\s*\d+)?\W*"
)
"""A page number that stands alone."""
_PAGE_AND_TITLE = re.compile(r"#(?:\s+|\s*[|\u2022\u00b7\u2013\u2014-]\s*)[^\W\d]|.*[|\u2022\u00b7\u2013\u2014]\s*#$")
"""A page number with a title; ``3. Title`` and ``Chapter 3`` may be headings."""
_UNWANTED = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 0xAD, 0xFFFE))
_BROKEN = re.compile(r"[\x02\ufffe\xad]\n?")
"""A hyphen at the end of a line, as reported by the library, with the line ending."""
_HYPHENATED = re.compile(r"(?<=\w)[-\u2010]\n[ \t]*([^\W\dA-Z]\S*)[ \t]*")
"""A word broken at the end of a line; its second part is moved to this line."""
_SWAPPED = re.compile("\u0627([\u0622\u0623\u0625])\u0644")
"""The Arabic article before an alef with a sign: the library swaps the letters of the ligature lam-alef."""
_WORDS = re.compile(r"\w+")
_SECTION = re.compile(r"\d+|[a-z]|[ivxlc]+|appendix|chapter|part|section")
"""A word in a section number."""
MAX_NUMBER_WORDS = 5
MIN_BROKEN_WORDS = 3
MAX_BOOKMARKS = 100_000
MAX_NOTES = 10_000
"""Maximum number of a page's annotations that are read."""
MAX_NOTE_BYTES = 2**20
Bookmark = tuple[int, str]
"""Level (1-based) and title."""
_SAMPLED = 16
"""How many of a page's characters to sample for the direction of its lines."""
_BLANK_CODES = frozenset((0, 9, 10, 13, 32, 160))
_BAD_PASSWORD = 4
_UNSUPPORTED_SECURITY = 5


def pdf(data: bytes) -> Extracted:
    """Return a PDF's text by line in reading order, with broken words joined and running heads only once.

    The anchor is the page. Lines that are bookmark titles are headings.
    """
    whole, bookmarks = _pdf_pages(data)
    pages = [_joined(page) for page in whole]
    draft, seen = Draft(), set[Form]()
    for number, (lines, heads) in enumerate(zip(pages, _running_heads(pages), strict=True), start=1):
        kept = [line for at, line in enumerate(lines) if at not in heads or heads[at] not in seen]
        seen.update(heads.values())
        if not any(kept):
            continue
        draft.at(f"p. {number}")
        levels = _heading_levels(kept, bookmarks.get(number - 1, ()))
        for at, line in enumerate(kept):
            if at in levels:
                draft.head(levels[at])
            draft.add(line)
    return draft.done()


def _pdf_pages(data: bytes) -> tuple[list[str], dict[int, list[Bookmark]]]:
    """Return each page's text, and the bookmarks that point to it, keyed by page index. Raises Refused."""
    import pypdfium2
    from pypdfium2 import raw

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError:
        is_locked = raw.FPDF_GetLastError() in (_BAD_PASSWORD, _UNSUPPORTED_SECURITY)
        raise Refused(SkipReason.ENCRYPTED if is_locked else SkipReason.DAMAGED) from None
    pages: list[str] = []
    size = 0
    if len(document) > MAX_PAGES:
        raise Refused(SkipReason.BOMB)
    bookmarks: dict[int, list[Bookmark]] = {}
    for each in islice(document.get_toc(), MAX_BOOKMARKS):
        destination = each.get_dest()
        if destination is not None:
            bookmarks.setdefault(destination.get_index(), []).append((each.level + 1, each.get_title()))
    has_forms = document.get_formtype() != raw.FORMTYPE_NONE
    for number in range(len(document)):
        page = raw.FPDF_LoadPage(document.raw, number)
        if page and has_forms and raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY) == raw.FLATTEN_SUCCESS:
            raw.FPDF_ClosePage(page)  # now form entries are part of the page's text
            page = raw.FPDF_LoadPage(document.raw, number)
        if not page:
            pages.append("")  # other pages may be intact
            continue
        text = raw.FPDFText_LoadPage(page)
        pages.append(_text_of(text) if text else "")
        raw.FPDFText_ClosePage(text)
        pages[-1] += "".join(f"\n{note}" for note in _notes(page) if note not in pages[-1])
        raw.FPDF_ClosePage(page)
        size += len(pages[-1])
        if size > MAX_EXTRACTED_CHARACTERS:
            raise Refused(SkipReason.BOMB)
    return pages, bookmarks


def _notes(page: object) -> Iterator[str]:
    """Yield the texts that readers added to a page: notes, comments on marked text, and text on the page."""
    from pypdfium2 import raw

    kinds = (raw.FPDF_ANNOT_TEXT, raw.FPDF_ANNOT_FREETEXT, raw.FPDF_ANNOT_HIGHLIGHT)
    for number in range(min(raw.FPDFPage_GetAnnotCount(page), MAX_NOTES)):
        note = raw.FPDFPage_GetAnnot(page, number)
        if note and raw.FPDFAnnot_GetSubtype(note) in kinds:
            size = min(raw.FPDFAnnot_GetStringValue(note, b"Contents", None, 0), MAX_NOTE_BYTES)
            buffer = (ctypes.c_ushort * (size // 2 + 1))()
            raw.FPDFAnnot_GetStringValue(note, b"Contents", buffer, size)
            text = bytes(memoryview(buffer).cast("B")[:size]).decode("utf-16-le", "replace").rstrip("\0")
            if text.strip():
                yield text
        raw.FPDFPage_CloseAnnot(note)


def _text_of(page: object) -> str:
    """Return a page's characters in the library's order, which is the drawing order, or in reading order."""
    from pypdfium2 import raw

    count = raw.FPDFText_CountChars(page)
    if count <= 0:
        return ""
    turns = _turns(page, range(0, count, max(1, count // _SAMPLED)))
    if len(turns) == 1 and is_suspect(_runs(page, count, *turns)) and len(_turns(page, range(count))) == 1:
        lines = ordered(_pieces(page, count, *turns))
        if lines is not None:
            return "\n".join(lines)
    return _text_at(page, 0, count)


def _text_at(page: object, first: int, count: int) -> str:
    from pypdfium2 import raw

    buffer = (ctypes.c_ushort * (2 * count + 2))()
    written = raw.FPDFText_GetText(page, first, count, buffer)
    return bytes(memoryview(buffer).cast("B")[: 2 * max(0, written - 1)]).decode("utf-16-le", "replace")


def _turns(page: object, characters: Iterable[int]) -> set[int]:
    """Return the directions of characters, in quarter turns clockwise."""
    from pypdfium2 import raw

    drawn = (at for at in characters if raw.FPDFText_IsGenerated(page, at) == 0)
    return {round(raw.FPDFText_GetCharAngle(page, at) / (math.pi / 2)) % 4 for at in drawn}


def _place(left: float, bottom: float, right: float, top: float, turns: int) -> Piece:
    """Return a position on the page after ``turns`` quarter turns, which make its characters upright."""
    for _ in range(turns):
        left, bottom, right, top = -top, left, -bottom, right
    return Piece(left, bottom, right, top)


def _runs(page: object, count: int, turns: int) -> list[Piece]:
    """Return the places of a page's runs of characters, without their text."""
    from pypdfium2 import raw

    place = [ctypes.c_double() for _ in range(4)]
    left, top, right, bottom = place
    references = [ctypes.byref(each) for each in place]
    runs: list[Piece] = []
    for at in range(raw.FPDFText_CountRects(page, 0, count)):
        raw.FPDFText_GetRect(page, at, *references)
        runs.append(_place(left.value, bottom.value, right.value, top.value, turns))
    return runs


def _pieces(page: object, count: int, turns: int) -> list[Piece]:
    """Return the pieces of a page's lines, which end at wide gaps."""
    from pypdfium2 import raw

    box = raw.FS_RECTF()
    reference = ctypes.byref(box)
    places: list[Piece] = []
    spans: list[tuple[int, int]] = []
    for at in range(count):
        if raw.FPDFText_GetUnicode(page, at) in _BLANK_CODES:
            continue
        raw.FPDFText_GetLooseCharBox(page, at, reference)
        place = _place(box.left, box.bottom, box.right, box.top, turns)
        if places and is_row(places[-1], place) and not is_apart(places[-1], place):
            places[-1], spans[-1] = places[-1].joined(place), (spans[-1][0], at + 1)
        else:
            places.append(place)
            spans.append((at, at + 1))
    texts = (_text_at(page, first, end - first) for first, end in spans)
    return [place._replace(text=text) for place, text in zip(places, texts, strict=True)]


def _joined(page: str) -> list[str]:
    text = page.replace("\r\n", "\n").replace("\r", "\n")
    text = _HYPHENATED.sub(r"\1\n", _BROKEN.sub("-\n", text)).translate(_UNWANTED)
    text = _SWAPPED.sub("\u0627\u0644\\1", text)
    return [line.strip() for line in text.split("\n") if line.strip()]


def _heading_levels(lines: Sequence[str], bookmarks: Sequence[Bookmark]) -> dict[int, int]:
    """Map the lines of a page that are titles of its ``bookmarks`` (in reading order) to their levels."""
    levels: dict[int, int] = {}
    start = 0
    for level, title in bookmarks:
        named = _WORDS.findall(title.casefold())
        found = (at for at in range(start, len(lines)) if _is_titled(_WORDS.findall(lines[at].casefold()), named))
        for at in islice(found, 1):
            levels[at], start = level, at + 1
    return levels


def _is_titled(words: Sequence[str], title: Sequence[str]) -> bool:
    """Return whether a line is a title, or the start of a broken title, optionally after a section number."""
    for skipped in range(min(len(words), MAX_NUMBER_WORDS + 1)):
        rest = words[skipped:]
        if rest == title or (len(rest) >= MIN_BROKEN_WORDS and rest == title[: len(rest)]):
            return all(map(_SECTION.fullmatch, words[:skipped]))
    return False


def _running_heads(pages: Sequence[Sequence[str]]) -> list[dict[int, Form]]:
    """Map each page's lines that are running heads to the form that they share with other pages.

    A running head is the same line on many pages, or differs only in the page number. Other lines that differ in
    numbers, such as ``Invoice No. 1003``, are text.
    """
    forms = [
        {at: _forms(lines[at], page) for at in range(len(lines)) if _is_edge(at, lines)}
        for page, lines in enumerate(pages)
    ]
    counts = Counter(form for page in forms for form in set(chain.from_iterable(page.values())))
    least = max(_MIN_REPEATS, _MIN_REPEATED_FRACTION * len(pages))
    repeated = {form for form, n in counts.items() if n >= (_MIN_REPEATS if _PAGE.fullmatch(form[0]) else least)}
    numbered = {form for form in repeated if form[1] is not None and _is_numbering(form[0])}
    numberings = {first for _, first in numbered}
    heads: list[dict[int, Form]] = []
    for page in forms:
        same = {at: next((form for form in of_line if form in repeated), None) for at, of_line in page.items()}
        found = {at: form for at, form in same.items() if form in numbered}
        if not found:  # no other line has the page number
            found = {at: form for at, form in same.items() if form and form[1] in numberings}
        heads.append(found | {at: form for at, form in same.items() if form and form[1] is None})
    return heads


def _is_numbering(template: str) -> bool:
    return bool(_PAGE.fullmatch(template) or _PAGE_AND_TITLE.match(template))


def _forms(line: str, page: int) -> list[Form]:
    """Return the forms in which other pages may repeat a line of the 0-based ``page``: whole, or without one of its
    numbers.
    """
    text = line.casefold()
    numbers = _NUMBER.finditer(text)
    templates = [(f"{text[: n.start()]}#{text[n.end() :]}", _value(n[0]) - page) for n in islice(numbers, _MAX_NUMBERS)]
    return [(text, None), *templates]


def _value(number: str) -> int:
    """Return the value of a decimal or lower-case Roman number."""
    if number[0] not in _ROMAN:
        return int(number)
    values = [*map(_ROMAN.__getitem__, number), 0]
    return sum(value if value >= after else -value for value, after in pairwise(values))


def _is_edge(at: int, lines: Sequence[str]) -> bool:
    return at < _EDGE_LINES or at >= len(lines) - _EDGE_LINES


# -- the reading order of a page -------------------------------------------------------------------
#
# Most programs draw a page in reading order, and know more about it than its geometry reveals. Only two kinds of pages
# are therefore changed: pages drawn from the bottom up, and columns of prose drawn row by row. Everything else, such as
# a table, which is read by row, keeps its order.

MIN_ROWS = 4
"""Columns with fewer rows cannot be distinguished from tables."""
_GAP = 0.8
"""The smallest gap between columns, in heights of a line."""
_WIDE = 6
"""The width of the narrowest lines of prose, in heights of a line."""
_BAND_GAP = 1.5
"""The smallest gap between a running head and columns, in heights of a line."""
_BINS = 400
"""Parts of a page's width."""
_MIN_WORDS = 3
_MIN_FILLED = 0.7
"""The share of the longest lines' width that half of a column's lines have."""
_MIN_CONTINUED = 0.5
"""The share of a column's lines that do not begin like a sentence or a cell."""
_MIN_DISTINCT = 0.6
"""The share of a column's lines that begin with different words; cells often begin alike."""
_RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")


class Piece(NamedTuple):
    """A piece of a line, with its position on the page: x grows to the right, y upwards."""

    left: float
    bottom: float
    right: float
    top: float
    text: str = ""

    @property
    def height(self) -> float:
        return self.top - self.bottom

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2

    def joined(self, other: Piece) -> Piece:
        """Return the place of both, at this piece's height."""
        return Piece(min(self.left, other.left), self.bottom, max(self.right, other.right), self.top, self.text)


def is_row(before: Piece, piece: Piece) -> bool:
    """Return whether two pieces are in the same row."""
    return abs(before.middle - piece.middle) < 0.5 * max(before.height, piece.height)


def is_apart(before: Piece, piece: Piece) -> bool:
    """Return whether the gap between two pieces of a row may separate columns."""
    gap = max(piece.left - before.right, before.left - piece.right)
    return gap > _GAP * max(before.height, piece.height)


def is_suspect(runs: Sequence[Piece]) -> bool:
    """Return whether the drawing order of ``runs`` of characters may differ from their reading order.

    It may if they go up, or if pieces that are wide enough for prose have aligned gaps between them.
    """
    if len(runs) < 2 * MIN_ROWS:
        return _is_upwards(runs)
    least = _WIDE * median(run.height for run in runs)
    pieces: list[Piece] = []
    for run in runs:
        if pieces and is_row(pieces[-1], run) and not is_apart(pieces[-1], run):
            pieces[-1] = pieces[-1].joined(run)
        else:
            pieces.append(run)
    ends: list[tuple[float, int]] = []
    for one, other in pairwise(pieces):
        near = abs(one.middle - other.middle) < max(one.height, other.height) and is_apart(one, other)
        if near and min(one.right - one.left, other.right - other.left) >= least:
            ends += [(min(one.right, other.right), 1), (max(one.left, other.left), -1)]
    return max(accumulate(step for _, step in sorted(ends)), default=0) >= MIN_ROWS or _is_upwards(pieces)


def _is_upwards(pieces: Sequence[Piece]) -> bool:
    """Return whether most rows are drawn above the row before."""
    up = down = 0
    row = None
    for piece in pieces:
        if row is None or not is_row(row, piece):
            if row is not None and piece.left < row.right and row.left < piece.right:
                up, down = up + (piece.bottom > row.bottom), down + (piece.bottom < row.bottom)
            row = piece
        else:
            row = row.joined(piece)
    return up >= MIN_ROWS - 1 and up > 4 * down


def ordered(pieces: Sequence[Piece]) -> list[str] | None:
    """Return the lines of a page whose ``pieces`` are in drawing order, or None if they should keep this order."""
    if not all(-inf < piece.left <= piece.right < inf for piece in pieces):  # a broken file
        return None
    order = _Order({id(piece): at for at, piece in enumerate(pieces)}, _is_upwards(pieces), _is_right_to_left(pieces))
    found = [line.text for line in order.lines(pieces)]
    return None if found == [line.text for line in _lines_of(pieces)] else found


def _is_right_to_left(pieces: Sequence[Piece]) -> bool:
    return 2 * sum(bool(_RIGHT_TO_LEFT.search(piece.text)) for piece in pieces) > len(pieces)


@dataclass(frozen=True, slots=True)
class _Order:
    """The order of a page; ``drawn`` is the position of each piece, by its id, in drawing order."""

    drawn: dict[int, int]
    upwards: bool
    right_to_left: bool

    def lines(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the lines of a part of the page, which may consist of bands with columns."""
        cut = _cut(pieces)
        bands = [] if cut is None else _bands(pieces, cut)
        found = [self._columns(band, cut) for band in bands if cut is not None]
        if not any(found):
            return self._rows(pieces)
        return [line for band, columns in zip(bands, found, strict=True) for line in columns or self._rows(band)]

    def _columns(self, pieces: Sequence[Piece], cut: float) -> list[Piece]:
        """Return the lines of the columns on both sides of ``cut``, or nothing if these are not columns of prose."""
        sides = [[each for each in pieces if (each.left < cut) != self.right_to_left]]
        sides.append([each for each in pieces if (each.left < cut) == self.right_to_left])
        changes = [each.left < cut for each in self._drawn(pieces)]
        mixed = self.upwards or sum(a != b for a, b in pairwise(changes)) >= min(map(len, sides))
        if mixed and all(_is_prose(self._rows(side)) for side in sides):
            return [line for side in sides for line in self.lines(side)]
        return []

    def _rows(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the lines of pieces as drawn, or from the top down."""
        if not self.upwards:
            return _lines_of(self._drawn(pieces))
        rows: list[list[Piece]] = []
        for piece in sorted(pieces, key=lambda each: -each.middle):
            if rows and is_row(rows[-1][0], piece):
                rows[-1].append(piece)
            else:
                rows.append([piece])
        way = -1 if self.right_to_left else 1
        return _lines_of([piece for row in rows for piece in sorted(row, key=lambda each: way * each.left)])

    def _drawn(self, pieces: Sequence[Piece]) -> list[Piece]:
        return sorted(pieces, key=lambda each: self.drawn[id(each)])


def _cut(pieces: Sequence[Piece]) -> float | None:
    """Return the position with the fewest pieces, between positions with more, or None."""
    if not pieces:
        return None
    start, width = min(each.left for each in pieces), max(each.right for each in pieces)
    scale = _BINS / max(width - start, 1)
    steps = [0] * (_BINS + 2)
    for each in pieces:
        steps[int((each.left - start) * scale)] += 1
        steps[int((each.right - start) * scale) + 1] -= 1
    cover = [*accumulate(steps)][: _BINS + 1]
    before, after = [*accumulate(cover, max)], [*accumulate(reversed(cover), max)][::-1]
    runs = [(count, [at for at, _ in run]) for count, run in groupby(enumerate(cover), key=lambda each: each[1])]
    deep = [(n, -len(run), run[0]) for n, run in runs if min(before[run[0]], after[run[0]]) - n >= MIN_ROWS]
    if not deep:
        return None
    _, size, at = min(deep)
    return start + (at - size / 2) / scale


def _bands(pieces: Sequence[Piece], cut: float) -> list[list[Piece]]:
    """Split a part of the page, from the top down, at lines that cross ``cut`` and at wide gaps."""
    bands: list[list[Piece]] = [[]]
    end, crosses = inf, False
    for piece in sorted(pieces, key=lambda each: -each.middle):
        does = piece.left < cut < piece.right
        if bands[-1] and (does != crosses or end - piece.top > _BAND_GAP * piece.height):
            bands.append([])
        bands[-1].append(piece)
        crosses, end = does, piece.bottom
    return bands


def _lines_of(pieces: Sequence[Piece]) -> list[Piece]:
    """Join successive pieces in a row to lines."""
    lines: list[Piece] = []
    for piece in pieces:
        if lines and is_row(lines[-1], piece):
            last = lines.pop()
            lines.append(last.joined(piece)._replace(text=f"{last.text} {piece.text}"))
        else:
            lines.append(piece)
    return lines


def _is_prose(lines: Sequence[Piece]) -> bool:
    """Return whether lines are running text, not the cells of a table."""
    if len(lines) < MIN_ROWS:
        return False
    words = [line.text.split() for line in lines]
    firsts = [each[0] for each in words if each]
    continued = sum(not (word[0].isupper() or word[0].isdigit()) for word in firsts)
    widths = [line.right - line.left for line in lines]
    return (
        median(map(len, words)) >= _MIN_WORDS
        and median(widths) >= _MIN_FILLED * quantiles(widths, n=10)[-1]
        and continued >= _MIN_CONTINUED * len(lines)
        and len(set(firsts)) >= _MIN_DISTINCT * len(lines)
    )
