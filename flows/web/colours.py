"""Lines as HTML: escaped, coloured by Pygments, with the words of the query marked."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pygments import highlight
from pygments.filter import Filter
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

MAX_LINE_CHARACTERS = 1_000
MAX_COLOURED_CHARACTERS = 200_000
"""Longer text is shown without colours."""
_WORD = re.compile(r"\w{2,}")


def colour_styles() -> str:
    """The style sheet of the colours, light and dark."""
    light = HtmlFormatter(style="default").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def coloured(path: str, lines: Sequence[str], query: str = "") -> list[str]:
    """One piece of HTML for each line, complete in itself; the language is told by the name of the file."""
    short = [_cut(line) for line in lines]
    text = "\n".join(short)
    if len(text) <= MAX_COLOURED_CHARACTERS:
        lexer = _lexer(path)
        if words := _WORD.findall(query):
            lexer.add_filter(_Marked(words))
        made = str(highlight(text, lexer, HtmlFormatter(nowrap=True))).split("\n")[: len(short)]
        if len(made) == len(short) and text.count("\n") + 1 == len(short) and "\r" not in text:
            return made
    return [html.escape(line) for line in short]


def _lexer(path: str) -> Any:
    try:
        return get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        return TextLexer(stripnl=False)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else line[: MAX_LINE_CHARACTERS - 1] + "…"


class _Marked(Filter):  # type: ignore[misc]
    """Gives words a type of their own below that of their token, which becomes a class that ends with ``-Mark``."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__()
        self._words = re.compile("(" + "|".join(re.escape(word) for word in words) + ")", re.IGNORECASE)

    def filter(self, lexer: Any, stream: Iterable[tuple[Any, str]]) -> Iterator[tuple[Any, str]]:
        for kind, value in stream:
            for i, part in enumerate(self._words.split(value)):
                if part:
                    yield (kind.Mark if i % 2 else kind), part
