"""Outlines: the definitions that enclose or begin in each block of lines, as stored in its row (decision 0012)."""

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


def encode(found: Sequence[Definition]) -> str:
    """The definitions of a block, a line each."""
    return "\n".join([f"{each.kind}\t{each.line}\t{each.first}\t{each.last}\t{each.name}" for each in found])


def decode(outline: str) -> tuple[Definition, ...]:
    """The definitions of a block as ``encode`` was given them, outer ones first."""
    return tuple(map(_definition, outline.split("\n"))) if outline else ()


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
