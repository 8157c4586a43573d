"""Definitions by patterns, in languages without a grammar: lines that begin with what many languages say."""

from __future__ import annotations

import re

from driftline.storage.lines.outline import KINDS, Definition

_KINDS = {
    "def": "function", "func": "function", "fn": "function", "fun": "function", "sub": "function",
    "record": "struct", "defmodule": "module", "defp": "function", "package": "module",
}  # fmt: skip
_DEFINITION = re.compile(
    r"[ \t]*(?:(?:export|default|public|private|protected|internal|static|abstract|final|async|inline|local"
    r"|pub(?:\([^)\n]*\))?)[ \t]+)*"
    r"(def|defp|defmodule|class|func|function|fn|fun|sub|interface|struct|enum|trait|impl|module|type|record|namespace)"
    r"[ \t]+([\w.<>:]+)[ \t]*(?:[(:{<=\[]|$|(?:struct|interface|extends|implements|for|do)\b)",
    re.MULTILINE,
)


def begins_definition(line: str) -> bool:
    """Whether a line begins the definition of a function, a class or a type."""
    return _DEFINITION.match(line) is not None


def by_patterns(text: str) -> list[Definition]:
    """The definitions whose first lines look like one; each lasts until a line that is indented no deeper follows."""
    lines = text.split("\n")
    found: list[Definition] = []
    open_: list[tuple[int, int]] = []  # (indent, position in found) of the definitions that hold the current line
    for number, line in enumerate(lines):
        bare = line.lstrip()
        if not bare:
            continue
        indent = len(line) - len(bare)
        while open_ and indent <= open_[-1][0]:
            _, at = open_.pop()
            closes = bare[0] in "})]" or bare.startswith("end")
            found[at] = _until(found[at], number if closes else number - 1)
        match = _DEFINITION.match(line)
        if match:
            kind = _KINDS.get(match[1], match[1])
            name = f"{found[open_[-1][1]].name}.{match[2]}" if open_ else match[2]
            open_.append((indent, len(found)))
            found.append(Definition(kind if kind in KINDS else "type", name, number, number, number))
    for _, at in open_:
        found[at] = _until(found[at], len(lines) - 1)
    return found


def _until(each: Definition, last: int) -> Definition:
    return Definition(each.kind, each.name, each.line, each.first, last)
