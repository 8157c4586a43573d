"""Translate reStructuredText to Markdown line by line, so that the pages lay out both, and lines keep their numbers.

It covers what documentation uses. Everything else is shown as written: docutils, which reads it all, needs 30 times as
long for a long document, and nothing ends it on a page that is made to be slow.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

MAX_DEPTH = 12
"""Blocks nested deeper are shown as text."""
MAX_ROWS = 200
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*")
_TABLE = re.compile(r"\+[-=+]{3,}\s*|=+(?: +=+)+\s*")
_ITEM = re.compile(r"([*+-]|(?:\d{1,9}|[a-zA-Z#])[.)]|\((?:\d{1,9}|[a-zA-Z#])\))( +)(?=\S)")
_FIELD = re.compile(r":(?! )([^:`]{1,60}):(?:\s+|$)(?!`)")
_DIRECTIVE = re.compile(r"\.\. +(?:\|[^|]+\| +)?([\w:.+-]+?):: *(.*)")
_TARGET = re.compile(r"\.\. +_([^:`]+|`[^`]+`): +(\S+)\s*")
_FOOTNOTE = re.compile(r"\.\. +(\[[^\]]+\]) +(?=\S)")
_EXPLICIT = re.compile(r"\.\.(?: |$)")
_CODE = frozenset(("code", "code-block", "sourcecode", "prompt", "testcode", "doctest"))
_LITERAL = frozenset(("parsed-literal", "math", "csv-table"))
_HIDDEN = frozenset(
    ("contents", "include", "raw", "index", "meta", "highlight", "currentmodule", "module", "replace", "unicode")
)
_PICTURES = frozenset(("image", "figure"))
_DEFINITIONS = frozenset(("function", "class", "method", "option"))
_INLINE = re.compile(
    r"""``(?P<literal>(?:[^`]|`(?!`))+)``
    | :(?P<role>[\w:.+-]{1,40}):`(?P<of_role>[^`]+)`
    | `(?P<text>[^`<]*?)\s*<(?P<url>[^`>]+)>`__?
    | `(?P<phrase>[^`]+)`(?P<is_link>__?)?
    | (?<!\w)(?P<word>[A-Za-z0-9][\w.-]{0,60}?)_(?![\w`])
    | (?P<footnote>\[[^\]\s]{1,40}\])_(?!\w)
    | \\(?P<escaped>[\s\S])
    | (?P<special>[_<\[\]~&])""",
    re.VERBOSE,
)
_OTHER_SCHEME = re.compile(r"(?!https?:|mailto:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_WITH_TARGET = re.compile(r"\s*([^<]*?)\s*<([^>]+)>")


def as_markdown(lines: Sequence[str]) -> list[str]:
    """Return the lines of Markdown for a document; line n of both says the same.

    Examples:
        >>> as_markdown(["Title", "=====", "", "See ``x`` and `y <a.rst>`_::", "", "  code", ""])
        ['# Title', '', '', 'See `x` and [y](<a.rst>):', '```', 'code', '```']
    """
    found = (_TARGET.fullmatch(line.strip()) for line in lines)
    targets = {match[1].strip("`").lower(): match[2] for match in found if match is not None}
    return _Translation(targets).blocks([line.expandtabs(8).rstrip() for line in lines])


@dataclass(slots=True)
class _Translation:
    """The targets that a document names, and the styles of its headings, outer ones first."""

    targets: Mapping[str, str]
    styles: list[tuple[str, bool]] = field(default_factory=list)

    def blocks(self, lines: Sequence[str], depth: int = 0) -> list[str]:
        """Translate lines with a common indentation of none; each of the result belongs to one of them."""
        made, at = [""] * len(lines), 0
        if depth > MAX_DEPTH:
            return [self.inline(line.lstrip()) for line in lines]
        while at < len(lines):
            if not lines[at]:
                at += 1
                continue
            at = self.heading(lines, made, at) or self.block(lines, made, at, depth)
        return made

    def heading(self, lines: Sequence[str], made: list[str], at: int) -> int:
        """Translate a heading or a transition, and return the line after it; 0 if there is none."""
        is_over = _ADORNMENT.fullmatch(lines[at]) is not None
        below = lines[at + 1 : at + 3]
        if is_over and len(below) == 2 and below[1] == lines[at] and below[0].strip():
            title, end = at + 1, at + 3
        elif is_over:
            made[at] = "***" if len(lines[at]) > 3 else self.inline(lines[at])
            return at + 1
        elif below and _ADORNMENT.fullmatch(below[0]) and len(below[0]) >= min(4, len(lines[at])):
            title, end = at, at + 2
        else:
            return 0
        style = lines[end - 1][0], is_over
        if style not in self.styles:
            self.styles.append(style)
        level = min(6, self.styles.index(style) + 1)
        made[title] = f"{'#' * level} {self.inline(lines[title].strip())}"
        return end

    def block(self, lines: Sequence[str], made: list[str], at: int, depth: int) -> int:
        """Translate the block that starts at line ``at``, and return the line after it."""
        line, end = lines[at], _end(lines, at)
        if line[0] == " ":
            self.nested(lines, made, at, at, end, "> ", depth)
        elif (item := _ITEM.match(line)) is not None:
            marker = f"{item[1].strip('()')[:-1]}." if item[1][-1:] in ".)" else "-"
            marker = marker if re.fullmatch(r"-|\d+\.", marker) else "1."
            width = len(item[0])
            own = _end(lines, at, width)
            inner = self.blocks([line[width:], *(each[width:] for each in lines[at + 1 : own])], depth + 1)
            made[at:own] = _prefixed(inner, " " * (len(marker) + 1), f"{marker} ")
            return own
        elif (of_field := _FIELD.match(line)) is not None:
            inner = self.blocks([line[of_field.end() :], *_dedented(lines[at + 1 : end])], depth + 1)
            made[at:end] = _prefixed(inner, "  ", f"- **{self.inline(of_field[1])}:** ")
        elif _EXPLICIT.match(line):
            self.explicit(lines, made, at, end, depth)
        elif line.startswith(">>> ") or _TABLE.fullmatch(line):
            end = at + sum(1 for _ in takewhile(bool, lines[at:]))
            if line[0] == "=":  # blank lines may separate the rows of a simple table
                reached = min(len(lines), at + MAX_ROWS)
                borders = (n for n in range(at + 1, reached) if _TABLE.fullmatch(lines[n]))
                end = next((n + 1 for n in borders if not any(lines[n + 1 : n + 2])), end)
            made[at:end] = [f"    {each}" for each in lines[at:end]]
        elif line.startswith("| "):
            has_more = "".join(lines[at + 1 : at + 2]).startswith("| ")
            made[at] = self.inline(line[2:]) + "\\" * has_more
            return at + 1
        elif end > at + 1 and lines[at + 1]:  # a term and its definition
            made[at] = f"**{self.inline(line)}**\\"
            self.nested(lines, made, at + 1, at + 1, end, "", depth)
        else:
            end = self.paragraph(lines, made, at)
        return end

    def paragraph(self, lines: Sequence[str], made: list[str], at: int) -> int:
        """Translate a paragraph, and the literal block that its ``::`` announces."""
        end = at + sum(1 for _ in takewhile(lambda each: bool(each) and each[0] != " ", lines[at:]))
        text = "\n".join(lines[at:end])
        if is_literal := text.endswith("::"):
            text = text.removesuffix(":") if text[-3:-2].strip() else text.removesuffix("::").rstrip()
        made[at:end] = self.inline(text).split("\n")
        return _fenced(lines, made, end - 1, _end(lines, end - 1)) if is_literal else end

    def explicit(self, lines: Sequence[str], made: list[str], at: int, end: int, depth: int) -> None:
        """Translate a directive or a footnote; targets, substitutions and comments are hidden."""
        if (note := _FOOTNOTE.match(lines[at])) is not None:
            made[at] = f"\\{note[1][:-1]}\\] {self.inline(lines[at][note.end() :])}"
            self.nested(lines, made, at + 1, at + 1, end, "", depth)
            return
        directive = _DIRECTIVE.match(lines[at])
        name, about = (directive[1].lower(), directive[2]) if directive is not None else ("replace", "")
        if name in _HIDDEN:
            return
        body = at + 1
        while body < end and lines[body].lstrip().startswith(":") and _FIELD.match(lines[body].lstrip()):
            body += 1
        options = dict(each.strip()[1:].partition(": ")[::2] for each in lines[at + 1 : body])
        if name in _CODE or name in _LITERAL:
            _fenced(lines, made, body - 1, end, about if name in _CODE else "")
        elif name in _PICTURES:
            made[at] = f"![{_escaped(options.get('alt', about))}](x)"
            self.nested(lines, made, body, body, end, "", depth)
        elif name == "toctree":
            for number in range(body, end):
                if entry := lines[number].strip():
                    found = _WITH_TARGET.fullmatch(entry)
                    made[number] = f"- {_link(*(found.groups() if found else (entry, entry)), document=True)}"
        elif ":" in name or name.startswith("auto") or name in _DEFINITIONS:
            made[at] = f"**{name.rpartition(':')[2]}** `{about.replace('`', '')}`"
            self.nested(lines, made, body, body, end, "> ", depth)
        else:
            title = name.capitalize().replace("Versionadded", "Added in").replace("Versionchanged", "Changed in")
            has_text_below = not about and body < end and lines[body]
            made[at] = f"> **{_escaped(title)}** {self.inline(about)}".rstrip() + ("\\" if has_text_below else "")
            self.nested(lines, made, body, at + 1, end, "> ", depth)

    def nested(
        self, lines: Sequence[str], made: list[str], body: int, at: int, end: int, prefix: str, depth: int
    ) -> None:
        """Translate an indented block from ``body`` to ``end``, behind a prefix that starts at line ``at``."""
        inner = self.blocks(_dedented(lines[body:end]), depth + 1)
        made[at:end] = [prefix.rstrip()] * (body - at) + _prefixed(inner, prefix, prefix)
        for number in range(end - 1, at - 1, -1):  # the blank lines after a block end it
            if lines[number]:
                break
            made[number] = made[number].removeprefix(prefix.rstrip())

    def inline(self, text: str) -> str:
        """Translate a paragraph's markup, and escape what only Markdown would take for some."""
        return _INLINE.sub(self._translated, text)

    def _translated(self, match: re.Match[str]) -> str:
        found = match.groupdict()
        if found["literal"] is not None:
            return _literal(found["literal"])
        if found["role"] is not None:
            with_target = _WITH_TARGET.fullmatch(found["of_role"])
            shown, target = with_target.groups() if with_target else (found["of_role"], found["of_role"])
            if found["role"] == "doc":
                return _link(shown, target, document=True)
            return _escaped(shown) if found["role"] in ("ref", "term", "abbr") else _literal(shown.lstrip("~!"))
        if found["url"] is not None:
            url = self.targets.get(found["url"].rstrip("_").lower(), found["url"])
            return _link(found["text"] or url, url)
        for name in ("phrase", "word"):
            if found[name] is not None and found[name].lower() in self.targets:
                return _link(found[name], self.targets[found[name].lower()])
        if found["phrase"] is not None:
            return _escaped(found["phrase"]) if found["is_link"] else f"*{_escaped(found['phrase'])}*"
        if found["escaped"] is not None:
            return "" if found["escaped"].isspace() else _escaped(found["escaped"])
        return _escaped(found["footnote"] or match[0])


def _end(lines: Sequence[str], at: int, width: int = 1) -> int:
    """Return the line after the block at ``at``: what follows it is indented by ``width`` or blank."""
    end = at + 1
    while end < len(lines) and (not lines[end] or not lines[end][:width].strip()):
        end += 1
    return end


def _dedented(lines: Sequence[str]) -> list[str]:
    return textwrap.dedent("\n".join(lines)).split("\n") if lines else []


def _prefixed(lines: Sequence[str], prefix: str, first: str) -> list[str]:
    return [f"{prefix if at else first}{line}".rstrip() for at, line in enumerate(lines)]


def _fenced(lines: Sequence[str], made: list[str], before: int, end: int, language: str = "") -> int:
    """Make code of the indented lines after line ``before``; return the line after them."""
    body = next((at for at in range(before + 1, end) if lines[at]), end)
    last = next((at for at in range(end - 1, before, -1) if lines[at]), before)
    if body == end:
        return before + 1
    made[body : last + 1] = _dedented(lines[body : last + 1])
    fence = "`" * (3 + max(map(len, re.findall("`+", "\n".join(made[body : last + 1]))), default=0))
    opened = f"{fence}{language.split(maxsplit=1)[0] if language.split() else ''}"
    made[body - 1] = f"{made[body - 1]}\n{opened}".lstrip("\n")
    if last + 1 < len(made):
        made[last + 1] = fence
    else:
        made[last] += f"\n{fence}"
    return min(last + 2, len(lines)) if last + 1 < len(lines) and not lines[last + 1] else last + 1


def _literal(text: str) -> str:
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _link(text: str, target: str, *, document: bool = False) -> str:
    if _OTHER_SCHEME.match(target):
        return _escaped(text)
    path = f"{target}.rst" if document and not re.search(r"\.\w+$|:", target) else target
    return f"[{_escaped(text)}](<{re.sub(r'[<> ]', '', path)}>)"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<\[\]~&#])", r"\\\1", text)
