"""Render documents as HTML: lines coloured by Pygments, with matches marked, and prose laid out.

Documents are untrusted. Everything from them is escaped, their own HTML is left out, and nothing is loaded from
elsewhere.
"""

from __future__ import annotations

import fnmatch
import html
import posixpath
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from cachetools import LRUCache, cached
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import format
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, find_lexer_class_for_filename, get_all_lexers, get_lexer_by_name
from pygments.token import Name, Punctuation, Text, Whitespace
from pygments.util import ClassNotFound

from driftline.storage.lines.tokenizer import keywords, language_of, terms_of

MAX_LINE_CHARACTERS = 1_000
MAX_COLOURED_CHARACTERS = 200_000
"""Longer text is not highlighted."""
COLOURING_SECONDS = 2.0
"""Maximum CPU time for highlighting a text; beyond it, the text is shown plain. The lexers of Java and Thrift
take quadratic time for some texts, and all threads of the server wait for them.
"""
MAX_KEPT_CHARACTERS = 8_000
"""Maximum length of text whose tokens are cached."""
KEPT_CHARACTERS = 1_000_000
"""Maximum total length of text whose tokens are cached; tokens take some 25 bytes per character."""
_PART = re.compile(r"[A-Z]+(?![^\W\d_A-Z])|[A-Z]?[^\W\d_A-Z]+|[^\W_]+")
"""A word inside an identifier: ``parse_HTTPRequests`` has parse, HTTP, Requests."""

_UNCOLOURED = frozenset([Name, Punctuation, Whitespace])
"""More than half of all tokens: giving them no elements makes pages smaller."""
_Token = tuple[Any, str]
"""A Pygments token type, and text."""
Spans = Sequence[tuple[int, int]]
"""Start and end of each match in a line, in ascending order."""


def colour_styles() -> str:
    """Return the style sheet for the colours, light and dark."""
    light = HtmlFormatter(style="xcode").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    quiet = ".code .sd { color: var(--dim); }"  # prose must not stand out more than code
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{quiet}\n"


def coloured(path: str, lines: Sequence[str], query: str = "", matches: Sequence[Spans] = ()) -> list[str]:
    """Return one self-contained piece of HTML per line; the file name determines the language.

    Words of ``query`` and the ranges in ``matches``, given per line, are marked.
    """
    if begins_in_string(path, lines):
        # The lexer needs the opening quotes, which come before the lines.
        return coloured(path, ['"""', *lines], query, [(), *matches] if matches else ())[1:]
    if quotes := open_quotes(path, lines):  # the lexer mistakes an unfinished docstring for an ordinary string
        return coloured(path, [*lines, quotes], query, [*matches, ()] if matches else ())[:-1]
    short = [_cut(line) for line in lines]
    text = "\n".join(short)
    if len(text) <= MAX_COLOURED_CHARACTERS:
        read = _kept_tokens if len(text) <= MAX_KEPT_CHARACTERS else _tokens
        found = read(_significant_name(path), text)
        tokens = _marked_at(found, text, _in_text(short, matches)) if found and any(matches) else found
        made = str(format(_marked(tokens, query) if query else tokens, _formatter())).split("\n")[: len(short)]
        if found and len(made) == len(short) and text.count("\n") + 1 == len(short) and "\r" not in text:
            return made
    return [html.escape(line) for line in short]


_QUOTES = re.compile("\"\"\"|'''")
_BEFORE_STRING = re.compile(r"(?:^|[=(,\[{:+%]|\breturn|\byield|\bin)\s*[rRbBuUfF]{0,2}$")


def begins_in_string(path: str, lines: Sequence[str]) -> bool:
    """Return whether Python lines seem to start inside a triple-quoted string, so that the first quotes close it.

    Quotes on a line of their own close a string, unless the previous line ends with a colon. After text, they open a
    string only where Python allows an expression.

    Examples:
        >>> begins_in_string("a.py", ["the lease.", '    \"\"\"', "    renew()"])
        True
        >>> begins_in_string("a.py", ["def f():", '    \"\"\"', "    Renew the lease."])
        False
        >>> begins_in_string("a.py", ['x = \"\"\"first', "second"])
        False
    """
    if not path.endswith((".py", ".pyi")):
        return False
    before = ""
    for line in lines:
        found = _QUOTES.search(line)
        if found is not None:
            left, right = line[: found.start()], line[found.end() :]
            if not left.strip() and not right.strip():
                return bool(before) and not before.endswith((":", "(", "=", ","))
            return _BEFORE_STRING.search(left.rstrip()) is None
        before = line.strip() or before
    return False


def open_quotes(path: str, lines: Sequence[str]) -> str:
    """Return the triple quotes that close the string that Python lines seem to end in; "" outside strings.

    Examples:
        >>> open_quotes("a.py", ["def f():", "    '''Renew", "    the lease."])
        "'''"
        >>> open_quotes("a.py", ["def f():", "    '''Renew the lease.'''"])
        ''
    """
    found = [quotes for line in lines for quotes in _QUOTES.findall(line)] if path.endswith((".py", ".pyi")) else []
    return found[-1] if len(found) % 2 else ""


def _characters(tokens: Sequence[_Token]) -> int:
    return sum(len(value) for _, value in tokens)


def _tokens(name: str, text: str) -> tuple[_Token, ...]:
    """Return the tokens of ``text``, or none if they take longer than COLOURING_SECONDS."""
    end = time.thread_time() + COLOURING_SECONDS
    found: list[_Token] = []
    for kind, value in _lexer_class(name)(stripnl=False).get_tokens(text):
        found.append((Text if kind in _UNCOLOURED else kind, value))
        if time.thread_time() > end:
            return ()
    return tuple(found)


_kept_tokens = cached(LRUCache(KEPT_CHARACTERS, getsizeof=_characters), lock=threading.Lock())(_tokens)
"""Cached ``_tokens``: while a user types a query, the same windows are shown repeatedly."""


@cache
def _formatter() -> Any:
    return HtmlFormatter(nowrap=True)  # creating a formatter takes as long as highlighting several lines


def _significant_name(path: str) -> str:
    """Reduce a path to what Pygments looks at, mostly the suffix, so that few distinct names are looked up."""
    name = PurePosixPath(path).name
    if name.lower().endswith(_NOTEBOOK):  # indexed as the text of its cells
        return "x.py"
    _, dot, suffix = name.rpartition(".")
    return name if _significant_names().match(name) else f"x{dot}{suffix if dot else ''}"


@cache
def _significant_names() -> re.Pattern[str]:
    """Return the file names that Pygments recognizes, other than plain suffixes."""
    patterns = (pattern for _, _, known, _ in get_all_lexers() for pattern in known)
    significant = [fnmatch.translate(pattern) for pattern in patterns if not re.fullmatch(r"\*\.[^.*?\[]+", pattern)]
    return re.compile("|".join(significant))


@lru_cache(4_096)
def _lexer_class(name: str) -> Any:
    """Return the lexer for files with this name. The lookup takes about a millisecond."""
    try:  # blocks of code in prose name their languages
        return find_lexer_class_for_filename(name) or type(get_lexer_by_name(name.rpartition(".")[2]))
    except ClassNotFound:
        return TextLexer


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else line[: MAX_LINE_CHARACTERS - 1] + "…"


_MARK = ("Mark",)
"""The last part of a marked token's type."""


def _in_text(lines: Sequence[str], matches: Sequence[Spans]) -> Iterator[tuple[int, int]]:
    """Yield ``matches`` as ranges of the joined lines, in order and with overlaps removed."""
    start = last = 0
    for line, spans in zip(lines, matches, strict=True):
        for begin, end in spans:
            span = max(start + begin, last), start + min(end, len(line))
            if span[0] < span[1]:
                yield span
                last = span[1]
        start += len(line) + 1


def _marked_at(tokens: Sequence[_Token], text: str, spans: Iterable[tuple[int, int]]) -> Iterator[_Token]:
    """Mark ``spans`` with a subtype of their tokens' types; yield nothing if the tokens do not cover the text."""
    if not "".join(value for _, value in tokens).startswith(text):
        yield from tokens
        return
    edges = [edge for span in spans for edge in span]  # between the edges 2n and 2n + 1 is a match
    passed = at = 0
    for kind, value in tokens:
        begin, end = at, at + len(value)
        while begin < end:
            until = min(end, edges[passed]) if passed < len(edges) else end
            if until > begin:
                yield kind.Mark if passed % 2 else kind, value[begin - at : until - at]
            begin = until
            if passed < len(edges) and begin == edges[passed]:
                passed += 1
        at = end


def _marked(tokens: Iterable[_Token], query: str) -> Iterator[_Token]:
    """Give query words a subtype of their token's type: a class that ends in ``-Mark``.

    Words are compared as in a search: ``fails`` in a query marks the second half of ``ConnectionFailed``.
    """
    words, language = (word for word in keywords(query) if len(word) > 1), language_of(query)
    terms = frozenset(term for word in words for term in terms_of(word, language))
    for kind, value in tokens:
        if kind[-1:] == _MARK:
            yield kind, value
            continue
        begin = 0
        for part in _PART.finditer(value):
            if terms.isdisjoint(terms_of(part[0], language)):
                continue
            if part.start() > begin:
                yield kind, value[begin : part.start()]
            yield kind.Mark, part[0]
            begin = part.end()
        if begin < len(value):
            yield kind, value[begin:]


MAX_RENDERED_CHARACTERS = 100_000
"""Longer prose is shown as lines."""
_NOTEBOOK = ".ipynb"
_RENDERED = (".md", ".markdown", ".mkd", _NOTEBOOK)
PathLink = Callable[[str, str], str]
"""Returns the link to a path in the document's source, with a fragment."""


def is_rendered(path: str) -> bool:
    """Return whether ``rendered`` can lay out a document, judging by its name."""
    return path.lower().endswith(_RENDERED)


def rendered(path: str, lines: Sequence[str], link: PathLink, anchors: Sequence[tuple[int, str]] = ()) -> str | None:
    """Return a whole document laid out as HTML, or None if it is too long, or a notebook in name only.

    Blocks have the id of their first line, as in the view of its lines. ``link`` makes the links to other documents;
    ``anchors`` are the first lines and names of a notebook's cells.
    """
    is_notebook = path.lower().endswith(_NOTEBOOK)
    if sum(map(len, lines)) + len(lines) > MAX_RENDERED_CHARACTERS or (is_notebook and not anchors):
        return None
    end = time.thread_time() + COLOURING_SECONDS
    env = {"folder": posixpath.dirname(path), "link": link, "slugs": {}, "end": end}

    def laid_out(first: int, lines: Sequence[str]) -> str:
        return str(_markdown().render("\n" * first + "\n".join(lines), env))

    if is_notebook:
        starts = [number - 1 for number, _ in anchors]
        cells = zip((name for _, name in anchors), starts, [*starts[1:], len(lines)], strict=True)
        return "".join(
            laid_out(first, lines[first:last]) if name.startswith("markdown") else _cell(lines[first:last], first, end)
            for name, first, last in cells
        )
    head = _front_matter(lines)
    return (_code("x.yaml", lines[:head], 1) if head else "") + laid_out(head, lines[head:])


def _cell(lines: Sequence[str], first: int, end: float) -> str:
    """Return a notebook's cell of code, without the blank lines below it."""
    from driftline.tasks.extraction.text_formats import suffix_of_cell

    text = "\n".join(lines).rstrip()
    suffix = suffix_of_cell(text) or "py"
    return _code("x" if time.thread_time() > end else f"x.{suffix}", text.split("\n"), first + 1)


def _front_matter(lines: Sequence[str]) -> int:
    """Return the number of lines of YAML before the text.

    Examples:
        >>> _front_matter(["---", "title: Leases", "---", "# Leases"]), _front_matter(["---", "text"])
        (3, 0)
    """
    if not lines or lines[0].rstrip() != "---":
        return 0
    return next((at + 1 for at, line in enumerate(lines) if at and line.rstrip() == "---"), 0)


def _code(path: str, lines: Sequence[str], first: int) -> str:
    text = "\n".join(coloured(path, lines))
    return f'<pre id="L{first}" class="code" tabindex="0"><code>{text}</code></pre>\n'


@cache
def _markdown() -> MarkdownIt:
    # Recognized HTML can be left out; otherwise, readers would see it as text.
    parser = MarkdownIt("commonmark", {"html": True, "maxNesting": 20}, renderer_cls=_Prose)
    return parser.enable(["table", "strikethrough"])


_TAGS = re.compile(r"<!--(?:.*?-->|.*)|<[^<>]*>", re.DOTALL)
_NO_SLUG = re.compile(r"[^\w\- ]")


class _Prose(RendererHTML):
    """Renders Markdown without its HTML and pictures. ``env`` has the document's folder and PathLink."""

    def render(self, tokens: Sequence[Token], options: Any, env: MutableMapping[str, Any]) -> str:
        seen = set[int]()
        for token in tokens:
            aligned = str(token.attrs.pop("style", ""))  # the pages' security policy allows classes only
            if aligned:
                token.attrSet("class", aligned.removeprefix("text-align:"))
            if token.map and token.nesting >= 0 and not token.hidden and token.map[0] not in seen:
                seen.add(token.map[0])
                token.attrSet("id", f"L{token.map[0] + 1}")
        return super().render(tokens, options, env)

    def heading_open(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        token, text = tokens[idx], self.renderInlineAsText(tokens[idx + 1].children or [], options, env)
        slug = _NO_SLUG.sub("", text.strip().lower()).replace(" ", "-")
        count = env["slugs"].setdefault(slug, 0)
        env["slugs"][slug] += 1
        target = _fragment(f"{slug}-{count}" if count else slug)
        return f'{self._below_title(token, options, env).rstrip()}<span id="{html.escape(target)}"></span>'

    def heading_close(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        return self._below_title(tokens[idx], options, env)

    def _below_title(self, token: Token, options: Any, env: MutableMapping[str, Any]) -> str:
        """Return a heading's tag: one level down, below the name of the document."""
        token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        return self.renderToken([token], 0, options, env)

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        tokens[idx].attrSet("tabindex", "0")  # it scrolls where it is too wide
        return self.renderToken(tokens, idx, options, env)

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        token = tokens[idx]
        language = re.match(r"[\w+#-]*", token.info.strip().removeprefix("{").removeprefix("."))
        name = language[0] if language is not None else ""
        is_late = time.thread_time() > env["end"]  # each block may take as long as this limit
        lines = token.content.removesuffix("\n").split("\n")
        return _code("x" if is_late else f"x.{name}", lines, (token.map or [0])[0] + 1)

    code_block = fence

    def html_block(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        text = html.escape(html.unescape(_TAGS.sub("", tokens[idx].content)).strip())
        return f"<p>{text}</p>\n" if text else ""

    def html_inline(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        return "<br>" if tokens[idx].content[:3].lower() == "<br" else ""

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        text = self.renderInlineAsText(tokens[idx].children or [], options, env)
        return f'<span class="picture">{html.escape(text or "picture")}</span>'

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        target = _target(str(tokens[idx].attrs.get("href", "")), env["folder"], env["link"])
        return f'<a href="{html.escape(target)}" rel="noreferrer">' if target else "<a>"


def _fragment(name: str) -> str:
    """Return the id of a heading, which differs from the ids of the page itself."""
    return f"at-{name}"


def _target(href: str, folder: str, link: PathLink) -> str:
    """Return where a link of a document in ``folder`` leads, or "" if the target is outside its source or not a page.

    Examples:
        >>> show = lambda path, fragment: f"{path} {fragment}"
        >>> _target("../a.md#Set%20up", "docs/guides", show), _target("/a.md", "docs", show), _target("#x", "", show)
        ('docs/a.md at-Set up', 'a.md ', '#at-x')
        >>> _target("../a.md", "", show), _target("javascript:alert(1)", "", show), _target("//host/x", "", show)
        ('', '', '')
    """
    try:
        parts = urlsplit(href)
    except ValueError:
        return ""
    if parts.scheme in ("http", "https", "mailto"):
        return href
    if parts.scheme or parts.netloc:
        return ""
    fragment = unquote(parts.fragment)
    if fragment and not re.fullmatch(r"L\d+(-L?\d+)?", fragment):
        fragment = _fragment(fragment)
    if not parts.path:
        return f"#{fragment}"
    inside = unquote(parts.path)
    path = posixpath.normpath(posixpath.join("" if inside[0] == "/" else folder, inside.lstrip("/")))
    if path.split("/")[0] == "..":
        return ""
    return link("" if path == "." else path + "/" * inside.endswith("/"), fragment)


_SEPARATED = 10_000
"""A column with a whole number of this size has separators: years have none."""


def cells(values: Sequence[object]) -> list[str]:
    """Format the values of a column."""
    from driftline.storage.sql import as_text

    whole = [int(each) if isinstance(each, int | Decimal) and each == int(each) else None for each in values]
    is_separated = any(each is not None and abs(each) >= _SEPARATED for each in whole)
    return [
        as_text(value) if number is None or isinstance(value, bool) or not is_separated else f"{number:,}"
        for value, number in zip(values, whole, strict=True)
    ]
