"""Encode and decode outlines: the definitions that enclose or start in a block of lines (decision 0012).

A block's outline is stored in its first row. For documents with extracted text, it also has anchors: the positions in
the file that lines come from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args
from urllib.parse import quote

from driftline.storage.documents import INSIDE

DefinitionKind = Literal[
    "class", "enum", "function", "impl", "interface", "key", "macro", "method", "module", "namespace", "property",
    "section", "struct", "table", "trait", "type", "union", "view",
]  # fmt: skip
KINDS: tuple[str, ...] = get_args(DefinitionKind)
OF_TEXT = frozenset(("key", "section"))
"""Kinds used for prose and configuration: they locate a line, but define nothing."""
OUTLINE_COLUMN = "outline"
_ANCHOR = "@"
"""Marks an anchor, in place of a kind."""
_UNREACHED = (".bz2", ".gz", ".lz4", ".xz", ".zst", ".zstd")
"""No viewer opens these at a position inside the file."""
_SCOPES = frozenset(("module", "namespace"))
_TESTS = re.compile(r"(?:^|\.)tests?\.")
_SEPARATORS = re.compile(r"<[^<>]*>|::|->|\s*>\s*|[.\\#/:]")
"""Separators in qualified names, in outlines and in queries of any language."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A named part of a document. Lines are 0-based and both ends are included.

    ``name`` is qualified by the names of the enclosing definitions. ``line`` is the line with the name, and ``first``
    is the first line of the comments and decorators above it.
    """

    kind: str
    name: str
    line: int
    first: int
    last: int

    @property
    def is_code(self) -> bool:
        """Whether this is code, rather than prose or configuration."""
        return self.kind not in OF_TEXT

    @property
    def is_test(self) -> bool:
        """Whether this is a test module, or is inside one."""
        return self.is_code and _TESTS.search(f"{self.name}." if self.kind in _SCOPES else self.name) is not None

    @property
    def is_constructor(self) -> bool:
        """Whether this has the name of its class, as a constructor does."""
        parts = parts_of_name(self.name)
        return parts[-1:] == parts[-2:-1]

    def matches_name(self, name: str) -> bool:
        """Return whether it has this name, ignoring case; for ``Session.get``, both parts must match."""
        parts, own = parts_of_name(name.lower()), parts_of_name(self.name.lower())
        return bool(parts) and own[-len(parts) :] == parts


@dataclass(frozen=True, slots=True)
class Anchor:
    """A position in a file that viewers can open (``cell 7`` or ``p. 12``), and the extracted lines that start there.

    Lines are 0-based and both ends are included.
    """

    name: str
    first: int
    last: int


def encode(found: Sequence[Definition], anchors: Sequence[Anchor] = ()) -> str:
    """Encode a block's definitions and anchors, one per line."""
    lines = [f"{each.kind}\t{each.line}\t{each.first}\t{each.last}\t{each.name}" for each in found]
    lines += [f"{_ANCHOR}\t{each.first}\t{each.first}\t{each.last}\t{each.name}" for each in anchors]
    return "\n".join(lines)


@lru_cache(8_192)
def decode(outline: str) -> tuple[Definition, ...]:
    """Decode definitions written by ``encode``, outer ones first."""
    if not outline:
        return ()
    return tuple([_definition(line) for line in outline.split("\n") if line[0] != _ANCHOR])


def anchors_in(outline: str) -> tuple[Anchor, ...]:
    """Decode anchors written by ``encode``, in order."""
    parts = (each.split("\t", 4) for each in outline.split("\n") if each.startswith(_ANCHOR))
    return tuple(Anchor(name, int(first), int(last)) for _, _, first, last, name in parts)


def anchor_at(outline: str, line: int) -> str | None:
    """Return the name of the anchor that contains ``line``, given its block's outline, or None if there is none."""
    return next((each.name for each in anchors_in(outline) if each.first <= line <= each.last), None)


_PAGE = re.compile(r"p\. (\d+)")
_SLIDE = re.compile(r"slide (\d+)")
_CELL = re.compile(r"[^!#]+![A-Z]{1,3}\d+")
_PLAIN_SHEET = re.compile(r"[^\W\d]\w*")
"""A sheet's name that office programs accept without quotes."""


def location_of(anchor: str | None, line: int | str) -> str:
    """Return the part of a location after the path: the anchor if the document has one, otherwise the line.

    Examples:
        >>> location_of("p. 12", 412), location_of("cell 7", 30), location_of("Sheet1!B7", 9), location_of(None, 4)
        ('p12', 'cell 7', 'Sheet1!B7', '4')
    """
    if anchor is None:
        return str(line)
    page = _PAGE.fullmatch(anchor)
    return f"p{page[1]}" if page else anchor


def fragment_of(path: str, anchor: str | None) -> str | None:
    """Return the URL fragment that opens ``anchor`` in a document, or None if no viewer supports one.

    Browsers and PDF readers support pages; browsers also support HTML ids, and office programs cells and slides.

    Examples:
        >>> fragment_of("handbook.pdf", "p. 12"), fragment_of("guide/index.html", "#install")
        ('page=12', 'install')
        >>> fragment_of("birds.xlsx", "Sheet 1!B7"), fragment_of("talk.pptx", "slide 4")
        ("'Sheet%201'!B7", '4')
        >>> fragment_of("birds.ods", "It's!A1"), fragment_of("birds.ods", "Ponds!A1")
        ("'It''s'.A1", 'Ponds.A1')
    """
    if anchor is None or INSIDE in path or path.lower().endswith(_UNREACHED):
        return None
    if found := _PAGE.fullmatch(anchor) or _SLIDE.fullmatch(anchor):
        return f"page={found[1]}" if anchor.startswith("p") else found[1]
    if anchor.startswith("#"):
        return quote(anchor[1:])
    if not _CELL.fullmatch(anchor):
        return None
    sheet, _, cell = anchor.rpartition("!")
    if not _PLAIN_SHEET.fullmatch(sheet):
        sheet = "'{}'".format(sheet.replace("'", "''"))
    return quote(f"{sheet}{'.' if path.lower().endswith('.ods') else '!'}{cell}", safe="/!'")


@lru_cache(65_536)  # a class appears in the outline of each of its blocks
def _definition(line: str) -> Definition:
    kind, at, first, last, name = line.split("\t", 4)
    return Definition(kind, name, int(at), int(first), int(last))


@lru_cache(65_536)
def parts_of_name(name: str) -> tuple[str, ...]:
    """Split a qualified name into parts, outer ones first: ``net::Session.get`` has three."""
    return tuple(part for part in _SEPARATORS.split(name) if part)


def innermost(found: Sequence[Definition], line: int) -> Definition | None:
    """Return the innermost definition in ``found`` that contains ``line``; outer ones come first in ``found``."""
    return next((each for each in reversed(found) if each.first <= line <= each.last), None)
