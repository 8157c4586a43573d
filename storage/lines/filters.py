"""Filters of lines as expressions that Lance applies before a search (DESIGN, "Search")."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.lance.table import is_one_of, quote

_GLOB_PART = re.compile(r"(?<![^/])\*\*/|\*\*|\*|\?|\[!?+[^/][^\]/]*\]|[^*?\[]+|\[")
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
_SET_ITEM = re.compile(r"(.)-(.)|(.)", re.DOTALL)
_ESCAPED = r"\\\g<0>"
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Conditions that a line must all satisfy; ``None`` adds no condition, an empty tuple matches nothing.

    Paths, directories and globs are relative to their source. Directories and entities include everything below
    them. In a glob, ``*`` and ``?`` do not match a slash, but ``**`` does; a glob without a slash matches file names in
    any directory. No line is of a source in ``not_of``. A line must satisfy at least one filter of ``any_of``, and each
    of ``all_of``.
    """

    entities: tuple[Entity, ...] | None = None
    paths: tuple[str, ...] | None = None
    dirs: tuple[str, ...] | None = None
    globs: tuple[str, ...] | None = None
    exts: tuple[str, ...] | None = None
    not_of: tuple[Entity, ...] | None = None
    any_of: tuple[LineFilter, ...] | None = None
    all_of: tuple[LineFilter, ...] | None = None

    def to_sql(self) -> str | None:
        """The filter as a Lance expression with every value quoted, or None for no filter. Raises UsageError."""
        return " AND ".join(f"({part})" for part in self._parts()) or None

    def _parts(self) -> Iterator[str]:
        if self.entities is not None:
            below = [f"starts_with(entity, {quote(f'{entity}/')})" for entity in self.entities]
            yield _any([is_one_of("entity", [str(entity) for entity in self.entities]), *below])
        if self.not_of is not None:
            yield f"NOT ({is_one_of('entity', [str(entity) for entity in self.not_of])})"
        if self.paths is not None:
            yield is_one_of("path", [normalise(path) for path in self.paths])
        if self.dirs is not None:
            names = [normalise(name) for name in self.dirs]
            if "" not in names:  # the root contains every line
                quoted = ", ".join(quote(name + "/") for name in names)
                yield f"array_has_any(parent_dirs, [{quoted}])" if names else "false"
        if self.globs is not None:
            yield _any([_glob(glob) for glob in self.globs])
        if self.exts is not None:
            yield is_one_of("ext", [ext.removeprefix(".").lower() for ext in self.exts])
        if self.any_of is not None:
            yield _any([where.to_sql() or "true" for where in self.any_of])
        yield from filter(None, (where.to_sql() for where in self.all_of or ()))


def normalise(path: str) -> str:
    """The normal form of a relative path: ``a/b`` for ``a/b/`` and ``./a/b``, "" for the root. Raises UsageError."""
    clean = posixpath.normpath(path.strip("/") or ".")
    if clean == ".." or clean.startswith("../"):
        raise UsageError("The path leads outside its source", path, "Give a path relative to the source.")
    return "" if clean == "." else clean


def glob_pattern(glob: str) -> str:
    """The regular expression of a glob for whole paths, in the syntax common to Rust and Python."""
    glob = glob.removeprefix("./").strip("/")
    if "/" not in glob:
        glob = f"**/{glob}"
    return f"(?s)^{''.join(map(_translated, _GLOB_PART.findall(glob)))}$"


def _translated(part: str) -> str:
    if part == "**/":
        return "(?:.*/)?"
    if part in ("**", "*", "?"):
        return {"**": ".*", "*": "[^/]*", "?": "[^/]"}[part]
    if len(part) > 1 and part[0] == "[":
        return _set(part[1:-1])
    return _SPECIAL.sub(_ESCAPED, part)


def _set(inside: str) -> str:
    """A set of characters without the slash; a descending range is empty."""
    ranges = ""
    negated = inside.startswith("!")
    for first, last, single in _SET_ITEM.findall(inside[negated:]):
        low, high = first or single, last or single
        for start, end in ((low, min(high, ".")), (max(low, "0"), high)):  # below and above the slash
            ranges += rf"\U{ord(start):08x}-\U{ord(end):08x}" if start <= end else ""
    if negated:
        return f"[^/{ranges}]"
    return f"[{ranges}]" if ranges else r"[^\U00000000-\U0010ffff]"


def _glob(glob: str) -> str:
    """A glob as a condition, with a separate condition for its literal prefix, which can use an index."""
    fixed = _WILDCARD.split(glob.removeprefix("./").strip("/"), maxsplit=1)[0]
    matches = f"regexp_like(path, {quote(glob_pattern(glob))})"
    return f"starts_with(path, {quote(fixed)}) AND {matches}" if "/" in fixed else matches


def _any(conditions: list[str]) -> str:
    kept = [condition for condition in conditions if condition != "false"]
    return " OR ".join(f"({condition})" for condition in kept) or "false"
