"""Encode and decode outlines: the definitions that enclose or begin in a block of lines, stored in its row (decision
0012).
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
"""Kinds of prose and configuration: they locate a line, but define nothing."""
OUTLINE_COLUMN = "outline"
_SEPARATORS = re.compile(r"<[^<>]*>|::|->|\s*>\s*|[.\\#/:]")
"""Separators of the names in a qualified name, in outlines and in queries of any language."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A named part of a document. Lines are 0-based and both ends are included.

    ``name`` is qualified by the names of the enclosing definitions. ``line`` is the line with the name, ``first`` the
    first line of the comments and decorators above it.
    """

    kind: str
    name: str
    line: int
    first: int
    last: int

    @property
    def is_code(self) -> bool:
        """Whether it is code, and not prose or configuration."""
        return self.kind not in OF_TEXT

    def is_named(self, name: str) -> bool:
        """Return whether it has this name, ignoring case; for ``Session.get``, both names must match."""
        parts, own = parts_of_name(name.lower()), parts_of_name(self.name.lower())
        return bool(parts) and own[-len(parts) :] == parts


def encode(found: Sequence[Definition]) -> str:
    """Encode the definitions of a block, one per line."""
    return "\n".join([f"{each.kind}\t{each.line}\t{each.first}\t{each.last}\t{each.name}" for each in found])


def decode(outline: str) -> tuple[Definition, ...]:
    """Decode the definitions that ``encode`` wrote, outer ones first."""
    return tuple(map(_definition, outline.split("\n"))) if outline else ()


@lru_cache(65_536)  # a class is in the outline of each of its blocks
def _definition(line: str) -> Definition:
    kind, at, first, last, name = line.split("\t", 4)
    return Definition(kind, name, int(at), int(first), int(last))


@lru_cache(65_536)
def parts_of_name(name: str) -> tuple[str, ...]:
    """Split a qualified name into its names, outer ones first: ``net::Session.get`` has three."""
    return tuple(part for part in _SEPARATORS.split(name) if part)


def innermost(found: Sequence[Definition], line: int) -> Definition | None:
    """Return the innermost definition of ``found``, which has outer ones first, that contains ``line``."""
    return next((each for each in reversed(found) if each.first <= line <= each.last), None)
