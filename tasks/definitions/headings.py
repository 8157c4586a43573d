"""The sections of documents whose headings patterns find: Markdown, reStructuredText and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from driftline.storage.lines.outline import Definition

SEPARATOR = " > "
MAX_HEADING_CHARACTERS = 120
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+:.<>_])\1{2,}\s*")
_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_NO_PARAGRAPH = re.compile(r" {4}|\t| {0,3}(?:[-+*>|]|\d+[.)])(?:[ \t]|$)")
_HTML_HEADING = re.compile(r"<h([1-6])\b[^>]*>(.*?)</h\1\s*>", re.IGNORECASE | re.DOTALL)
_MARKUP = re.compile(r"<[^>]*>|[`*]|\]\([^)]*\)|\[(?=[^\]]*\]\()")
_TAG = re.compile(r"<[^>]*>")


def markdown_sections(text: str) -> list[Definition]:
    """Headings that begin with ``#``, and those that are underlined (CommonMark); none in a fence of code."""
    lines = text.split("\n")
    fence = "---" if lines[0] == "---" and "---" in lines[1:] else ""  # front matter
    headings: list[tuple[int, int, str]] = []
    for at, line in enumerate(lines):
        marks = _FENCE.fullmatch(line)
        if fence:
            closes = marks and marks[1].startswith(fence) and not marks[2].strip()
            fence = "" if closes or (fence == "---" == line and at) else fence
        elif marks:
            fence = marks[1]
        elif (atx := _ATX.fullmatch(line)) and atx[2]:
            headings.append((len(atx[1]), at, atx[2]))
        elif at and (under := _SETEXT.fullmatch(line)) and lines[at - 1].strip():
            above = lines[at - 1]
            if not (_NO_PARAGRAPH.match(above) or _ATX.fullmatch(above) or _SETEXT.fullmatch(above)):
                headings.append((1 if under[1][0] == "=" else 2, at - 1, above))
    return _nested(headings, text)


def rst_sections(text: str) -> list[Definition]:
    """Titles with an underline; the order in which underlines first appear is that of their levels (docutils)."""
    lines = text.split("\n")
    levels: dict[str, int] = {}
    headings: list[tuple[int, int, str]] = []
    for at, (title, below) in enumerate(pairwise(lines)):
        if not title.strip() or title[0].isspace() or _UNDERLINE.fullmatch(title):
            continue
        if _UNDERLINE.fullmatch(below) and len(below.rstrip()) >= len(title.rstrip()):
            overlined = at > 0 and _UNDERLINE.fullmatch(lines[at - 1]) is not None and lines[at - 1][0] == below[0]
            level = levels.setdefault(below[0] * (1 + overlined), len(levels))
            headings.append((level, at, title))
    return _nested(headings, text)


def html_sections(text: str) -> list[Definition]:
    """The headings ``h1`` to ``h6``."""

    def found() -> Iterator[tuple[int, int, str]]:
        line = counted = 0
        for match in _HTML_HEADING.finditer(text):
            line += text.count("\n", counted, match.start())
            counted = match.start()
            yield int(match[1]), line, html.unescape(_TAG.sub("", match[2]))

    return _nested([*found()], text)


def _nested(headings: Sequence[tuple[int, int, str]], text: str) -> list[Definition]:
    """Sections from ``(level, line, title)``; each lasts until the next heading of its level or above."""
    end = text.count("\n") + (not text.endswith("\n"))
    found: list[Definition] = []
    around: list[tuple[int, int]] = []  # (level, position in found)
    for level, line, heading in headings:
        while around and around[-1][0] >= level:
            _, at = around.pop()
            found[at] = replace(found[at], last=max(found[at].line, line - 1))
        title = " ".join(_MARKUP.sub("", heading).split())[:MAX_HEADING_CHARACTERS]
        name = SEPARATOR.join((found[around[-1][1]].name, title)) if around else title
        around.append((level, len(found)))
        found.append(Definition("section", name, line, line, max(line, end - 1)))
    return found


HEADINGS: dict[str, Callable[[str], list[Definition]]] = {
    "md": markdown_sections,
    "markdown": markdown_sections,
    "rst": rst_sections,
    "html": html_sections,
    "htm": html_sections,
}
