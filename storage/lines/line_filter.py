"""Translate line filters into expressions that Lance evaluates before a search (DESIGN, "Search")."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from driftline.storage.entities import INDEX_LEVELS, Entity
from driftline.storage.errors import UsageError
from driftline.storage.globs import check_glob, fixed_prefix, glob_pattern, literal_glob, normal_glob, spellings
from driftline.storage.lance.lance_table import is_one_of, quote


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Conditions on a line; ``None`` means no condition, an empty tuple matches nothing.

    Paths, directories and globs are relative to their source, or absolute on this machine; accents may be composed or
    decomposed. Directories and entities include everything under them. In a glob, ``*`` and ``?`` do not match a slash,
    but ``**`` does, and ``{a,b}`` matches ``a`` or ``b``. A glob with no slash matches file names in any directory; one
    with a trailing slash matches the content of such directories. ``not_of`` excludes lines of these sources.
    ``parts`` are parts of paths, which begin with a slash at the top of a source, and ignore case unless they have a
    capital letter. A line must satisfy at least one filter in ``any_of``, every filter in ``all_of``, and none in
    ``none_of``.
    """

    entities: tuple[Entity, ...] | None = None
    paths: tuple[str, ...] | None = None
    dirs: tuple[str, ...] | None = None
    globs: tuple[str, ...] | None = None
    exts: tuple[str, ...] | None = None
    parts: tuple[str, ...] | None = None
    not_of: tuple[Entity, ...] | None = None
    any_of: tuple[LineFilter, ...] | None = None
    all_of: tuple[LineFilter, ...] | None = None
    none_of: tuple[LineFilter, ...] | None = None

    def to_sql(self) -> str | None:
        """Return the filter as a Lance expression.

        Returns:
            The expression with every value quoted, or None if there is no filter.

        Raises:
            UsageError: If a path points outside its source, or a glob is invalid.

        Examples:
            >>> LineFilter(exts=(".py", "pyi")).to_sql()
            "(ext IN ('py', 'pyi'))"
        """
        return " AND ".join(f"({part})" for part in self._parts()) or None

    def _parts(self) -> Iterator[str]:
        if self.entities is not None:
            above = [entity for entity in self.entities if entity.type != INDEX_LEVELS[-1]]  # nothing is below a source
            below = [f"starts_with(entity, {quote(f'{entity}/')})" for entity in above]
            yield _any([is_one_of("entity", [str(entity) for entity in self.entities]), *below])
        if self.not_of is not None:
            yield f"NOT ({is_one_of('entity', [str(entity) for entity in self.not_of])})"
        if self.paths is not None:
            yield is_one_of("path", [form for path in self.paths for form in spellings(normalize_path(path))])
        if self.dirs is not None:
            names = [form for name in self.dirs for form in spellings(normalize_path(name))]
            if "" not in names:  # the root contains every line
                quoted = ", ".join(quote(name + "/") for name in names)
                yield f"array_has_any(parent_dirs, [{quoted}])" if names else "false"
        if self.globs is not None:
            yield _any([_glob(each) for glob in self.globs for each in check_glob(glob)])
        if self.parts is not None:
            yield _any([_part(each) for each in self.parts])
        if self.exts is not None:
            yield is_one_of("ext", [ext.removeprefix(".").lower() for ext in self.exts])
        if self.any_of is not None:
            yield _any([where.to_sql() or "true" for where in self.any_of])
        if self.none_of:
            yield f"NOT ({_any([where.to_sql() or 'true' for where in self.none_of])})"
        yield from filter(None, (where.to_sql() for where in self.all_of or ()))


def normalize_path(path: str) -> str:
    """Normalize a relative path: ``a/b`` for ``a/b/`` and ``./a/b``, "" for the root. Raises UsageError."""
    clean = posixpath.normpath(path.strip("/") or ".")
    if clean == ".." or clean.startswith("../"):
        raise UsageError("The path points outside its source", repr(path), "Use a path relative to the source.")
    return "" if clean == "." else clean


def _glob(glob: str) -> str:
    """Return a glob as a condition. Its literal prefix becomes a separate condition, which can use an index."""
    fixed = fixed_prefix(normal_glob(glob))
    matches = f"regexp_like(path, {quote(glob_pattern(glob))})"
    return f"starts_with(path, {quote(fixed)}) AND {matches}" if "/" in fixed else matches


def _part(part: str) -> str:
    start = literal_glob(part.lstrip("/")) if part.startswith("/") else f"**/*{literal_glob(part)}"
    flags = "(?i)" if part == part.lower() else ""
    return _any([f"regexp_like(path, {quote(flags + glob_pattern(glob))})" for glob in (f"{start}*", f"{start}*/**")])


def _any(conditions: list[str]) -> str:
    kept = [condition for condition in conditions if condition != "false"]
    return " OR ".join(f"({condition})" for condition in kept) or "false"
