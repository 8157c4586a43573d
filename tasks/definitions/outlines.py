"""The definitions of a document: functions, classes, types, sections, keys (decision 0012)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from driftline.storage.lines.outline import Definition
from driftline.tasks.definitions.grammars import BY_EXTENSION, Grammar, loaded
from driftline.tasks.definitions.headings import HEADINGS
from driftline.tasks.definitions.patterns import by_patterns

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_PARSED_CHARACTERS = 1_000_000
"""Larger files are generated code or data; patterns are enough for them."""
MAX_NAME_CHARACTERS = 160
FLOW_PRAGMA_WITHIN = 2_000
MAX_COMMENT_LINES = 200
_HOLDS_METHODS = frozenset(("class", "enum", "impl", "interface", "struct", "trait", "union"))
_DECLARATORS = ("declarator", "name")
_NOISE = re.compile(r"^(?:module\.exports|exports|this|self)\.|\.prototype(?=\.)|[\"'`]")
_SCOPES = re.compile(r"::|#(?=\w)")
_BLANK = re.compile(r"\s+")


def definitions(path: str, text: str) -> list[Definition]:
    """The definitions of the document ``text``, in the order of their beginnings, outer ones first.

    A grammar finds them where there is one for the extension of ``path``, patterns elsewhere. What a grammar cannot
    parse costs only the definitions around it.
    """
    extension = posixpath.splitext(path)[1][1:].lower()
    headings = HEADINGS.get(extension)
    if headings is not None:
        return headings(text)
    grammar = BY_EXTENSION.get(extension)
    if extension in ("js", "jsx") and "@flow" in text[:FLOW_PRAGMA_WITHIN]:
        grammar = BY_EXTENSION["tsx"]  # which types of Flow resemble
    if grammar is None or len(text) > MAX_PARSED_CHARACTERS:
        return by_patterns(text)
    found = sorted(_parsed(grammar, text), key=lambda each: (each.first, -each.last))
    return _qualified(found)


def _parsed(grammar: Grammar, text: str) -> Iterator[Definition]:
    """The definitions that the grammar finds, unordered, with the names that they give themselves."""
    from tree_sitter import Parser, QueryCursor

    if "\r" in text and "\n" not in text:
        text = text.replace("\r", "\n")
    data = text.encode()
    language, query = loaded(grammar)
    lines: list[str] | None = None
    for _, captures in QueryCursor(query).matches(Parser(language).parse(data).root_node):
        kind, name, scope = "", None, None
        for capture, nodes in captures.items():
            if capture == "name":
                name = nodes[0]
            elif capture == "scope":
                scope = nodes[0]
            elif capture == "declarator":
                name = _declared(nodes[0])
            else:
                kind, node = capture.removeprefix("definition."), nodes[0]
        if name is None:
            continue
        first, last = node.start_point.row, node.end_point.row
        if node.end_point.column == 0 and last > first:
            last -= 1
        if lines is None:
            lines = text.split("\n")
        line = name.start_point.row
        label = _label(data, name, scope)
        if label:
            yield Definition(kind, label, line, _with_leading(lines, first, grammar.leading), last)


def _declared(node: Node) -> Node | None:
    """The name in a declarator of C or C++: inside pointers, references and argument lists."""
    for _ in range(20):
        inner = next((child for name in _DECLARATORS if (child := node.child_by_field_name(name))), None)
        if node.type in ("qualified_identifier", "destructor_name", "operator_name") or inner is None:
            break
        node = inner
    if node.type in ("reference_declarator", "parenthesized_declarator"):  # without a field for what is in it
        return _declared(node.named_children[-1])
    known = node.type.endswith("identifier") or node.type in ("destructor_name", "operator_name", "operator_cast")
    return node if known else None


def _label(data: bytes, name: Node, scope: Node | None) -> str:
    """The name of a definition as people write it, with dots between its parts."""
    text = data[name.start_byte : name.end_byte].decode(errors="replace")
    if scope is not None:
        text = f"{data[scope.start_byte : scope.end_byte].decode(errors='replace')}.{text}"
    text = _SCOPES.sub(".", _NOISE.sub("", text))
    return _BLANK.sub(" ", text).strip()[:MAX_NAME_CHARACTERS]


def _with_leading(lines: Sequence[str], first: int, leading: tuple[str, ...]) -> int:
    """The first of the lines directly above a definition that belong to it."""
    while first > 0:
        above = lines[first - 1]
        start: int | None = first - 1
        if "/*" in leading and above.rstrip().endswith("*/"):
            start = _comment_start(lines, first - 1)
        elif not above.lstrip().startswith(leading):
            start = None
        if start is None:
            break
        first = start
    return first


def _comment_start(lines: Sequence[str], end: int) -> int | None:
    """The line that begins the comment ending at ``end``, if nothing else stands there."""
    for at in range(end, max(-1, end - MAX_COMMENT_LINES), -1):
        if "/*" in lines[at]:
            return at if lines[at].lstrip().startswith("/*") else None
    return None


def _qualified(found: Sequence[Definition]) -> list[Definition]:
    """``found``, in order, named after what is around each; functions of a class become methods."""
    result: list[Definition] = []
    around: list[Definition] = []
    for each in found:
        while around and around[-1].last < each.first:
            around.pop()
        named = _within(around[-1], each) if around else each
        if named is not None:
            around.append(named)
            result.append(named)
    return result


def _within(outer: Definition, inner: Definition) -> Definition | None:
    """``inner`` as the definition around it makes it; None if two patterns of a query found the same one."""
    if (inner.line, inner.kind, inner.last) == (outer.line, outer.kind, outer.last):
        return None
    kind = "method" if inner.kind == "function" and outer.kind in _HOLDS_METHODS else inner.kind
    name = f"{outer.name}.{inner.name}"[-MAX_NAME_CHARACTERS:]
    return replace(inner, kind=kind, name=name, last=min(inner.last, outer.last))
