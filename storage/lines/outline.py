"""Outlines: the definitions that enclose or begin in each block of lines, as stored in its row (decision 0012).

The outline of a document from which text was extracted also holds its anchors: where in the file its lines stand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

Kind = Literal[
    "class", "enum", "function", "impl", "interface", "key", "macro", "method", "module", "namespace", "property",
    "section", "struct", "table", "trait", "type", "union", "view",
]  # fmt: skip
KINDS: tuple[str, ...] = get_args(Kind)
OF_TEXT = frozenset(("key", "section"))
"""Kinds of prose and configuration: they say where a line is, but define nothing."""
OUTLINE_COLUMN = "outline"
_ANCHOR = "@"
"""What stands in place of a kind in the line of an anchor."""
_SEPARATORS = re.compile(r"<[^<>]*>|::|->|\s*>\s*|[.\\#/:]")
"""What stands between the names of definitions, in outlines and in queries of any language."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A named part of a document. Lines are 0-based and both ends are included.

    ``name`` is qualified by the names of the definitions around it, ``line`` the line that holds the name, ``first``
    that of the comments and decorators above it.
    """

    kind: str
    name: str
    line: int
    first: int
    last: int

    @property
    def is_code(self) -> bool:
        """Whether it is of code, not of prose or configuration."""
        return self.kind not in OF_TEXT

    def is_named(self, name: str) -> bool:
        """Whether it has this name, whatever its case; of ``Session.get`` both names must be its own."""
        wanted, own = parts_of_name(name.lower()), parts_of_name(self.name.lower())
        return bool(wanted) and own[-len(wanted) :] == wanted


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place in a file that a viewer can open, ``cell 7`` or ``p. 12``, and the lines of extracted text from there.

    Lines are 0-based and both ends are included.
    """

    name: str
    first: int
    last: int


def encode(found: Sequence[Definition], anchors: Sequence[Anchor] = ()) -> str:
    """The definitions and the anchors of a block, a line each."""
    lines = [f"{each.kind}\t{each.line}\t{each.first}\t{each.last}\t{each.name}" for each in found]
    lines += [f"{_ANCHOR}\t{each.first}\t{each.first}\t{each.last}\t{each.name}" for each in anchors]
    return "\n".join(lines)


def decode(outline: str) -> tuple[Definition, ...]:
    """The definitions of a block as ``encode`` was given them, outer ones first."""
    if not outline:
        return ()
    return tuple([_definition(line) for line in outline.split("\n") if line[0] != _ANCHOR])


def anchor_at(outline: str, line: int) -> str | None:
    """The name of the anchor that holds ``line`` in the outline of its block; None in a file without anchors."""
    anchors = (each.split("\t", 4) for each in outline.split("\n") if each.startswith(_ANCHOR))
    return next((name for _, _, first, last, name in anchors if int(first) <= line <= int(last)), None)


@lru_cache(65_536)  # a class stands in the outline of each of its blocks
def _definition(line: str) -> Definition:
    kind, at, first, last, name = line.split("\t", 4)
    return Definition(kind, name, int(at), int(first), int(last))


@lru_cache(65_536)
def parts_of_name(name: str) -> tuple[str, ...]:
    """The names in a qualified one, outer ones first: ``net::Session.get`` has three."""
    return tuple(part for part in _SEPARATORS.split(name) if part)


def innermost(found: Sequence[Definition], line: int) -> Definition | None:
    """The definition among ``found``, outer ones first, that holds ``line`` and no other around it."""
    return next((each for each in reversed(found) if each.first <= line <= each.last), None)
