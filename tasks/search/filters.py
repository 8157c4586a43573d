"""The filter of a search as the lines that it allows in a workspace: paths, languages, definitions, tests.

Absolute local paths are translated to paths within the sources that contain them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self
from unicodedata import normalize

from driftline.storage.entities import Entity
from driftline.storage.globs import check_glob, literal_glob, rests
from driftline.storage.lines.filters import LineFilter, normalise
from driftline.storage.lines.outline import Definition
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.scanning.scan import below
from driftline.tasks.search.request import FILTERS, WILDCARD, SearchFilter, extensions_of

Kind = Literal["file", "folder", "either"]
"""Names of documents, of folders with everything below them, or of both."""


def where_named(workspace: Workspace, names: Iterable[str], kind: Kind = "either") -> LineFilter:
    """Only the documents that ``names`` name: by files and folders on this machine, which may be links or lie above a
    source, by URIs, or by their paths inside their source.

    What a name is in the current folder comes before what it may be inside a source; ``.``, ``./x``, ``..`` and
    absolute paths are nothing else. Raises UsageError for a name that leads outside its source and is not there.
    """
    roots = [(entity, record.uri) for entity, record in workspace.readable_sources()]
    found: dict[Entity | None, set[str]] = {}
    for name in names:
        for entity, inside in _places(name, roots):
            found.setdefault(entity, set()).add(inside)
    alternatives: list[LineFilter] = []
    for owner, inside_it in found.items():
        entities = None if owner is None else (owner,)
        if "" in inside_it and kind != "file":
            alternatives.append(LineFilter(entities=entities))
            continue
        within = tuple(sorted(inside_it - {""}))
        if kind != "folder":
            alternatives.append(LineFilter(entities=entities, paths=within))
        if kind != "file":
            alternatives.append(LineFilter(entities=entities, dirs=within))
    return LineFilter(any_of=tuple(alternatives))


def _places(name: str, roots: Sequence[tuple[Entity, str]]) -> list[tuple[Entity | None, str]]:
    """The sources that hold a name, or that it holds, with its path inside them ("" for all of it); None is any."""
    is_uri = "://" in name
    path = name.rstrip("/") if is_uri else os.path.realpath(os.path.expanduser(name))
    found: list[tuple[Entity | None, str]] = []
    for entity, root in roots:
        inside = inside_of(root, path)
        if inside is not None:
            found.append((entity, inside))
        elif inside_of(path, root) is not None:
            found.append((entity, ""))
    exists = is_uri or os.path.lexists(path)
    if (found and exists) or _is_of_this_machine(name, exists=exists):
        return found
    return [*found, (None, normalise(name))]


def inside_of(folder: str, path: str) -> str | None:
    """``path`` relative to ``folder``, as ``below`` has it, with accents composed or decomposed."""
    inside = below(folder, path)
    if inside is not None or (folder.isascii() and path.isascii()):
        return inside
    if below(normalize("NFC", folder), normalize("NFC", path)) is None:
        return None
    return "/".join(path.split("/")[len(folder.rstrip("/").split("/")) :])


def _is_of_this_machine(name: str, *, exists: bool) -> bool:
    """Whether a name cannot be meant inside a source."""
    if "://" in name or os.path.isabs(os.path.expanduser(name)):
        return True
    return exists and name.partition("/")[0] in (".", "..")


_FIXED = re.compile(r"[^*?\[]*/")
"""The folders of a glob that have no wildcards."""


def relative_to_sources(workspace: Workspace, where: LineFilter) -> LineFilter:
    """``where`` with absolute paths, directories and globs as those of the sources that hold them, and of no others.

    One that holds sources itself stands for all of them; one that has to do with none is left as it is: a glob then
    begins at the top of each source.
    """
    globs = [each for glob in where.globs or () for each in check_glob(glob)]
    absolute = any(os.path.isabs(name) for name in (*(where.paths or ()), *(where.dirs or ())))
    absolute_globs = any(glob.startswith("/") or "://" in glob for glob in globs)
    if not absolute and not absolute_globs:
        return where
    sources = [(entity, record.uri) for entity, record in workspace.readable_sources()]
    roots = [(entity, uri) for entity, uri in sources if known_source(uri).is_local]
    within = where.any_of
    if absolute and where.paths is not None:
        alternatives = _by_source(roots, where.paths).items()
        within = tuple(LineFilter(entities=entities, paths=paths, any_of=within) for entities, paths in alternatives)
    if absolute and where.dirs is not None:
        alternatives = _by_source(roots, where.dirs).items()
        within = tuple(LineFilter(entities=entities, dirs=dirs, any_of=within) for entities, dirs in alternatives)
    if absolute_globs:
        alternatives = _globs_by_source(sources, globs).items()
        within = tuple(LineFilter(entities=entities, globs=found, any_of=within) for entities, found in alternatives)
    kept = where if not absolute else replace(where, paths=None, dirs=None)
    return replace(kept, globs=None if absolute_globs else where.globs, any_of=within)


def _by_source(
    roots: Sequence[tuple[Entity, str]], names: Sequence[str]
) -> dict[tuple[Entity, ...] | None, tuple[str, ...]]:
    """``names`` relative to the sources that hold them; under None those that none of ``roots`` holds."""
    found: dict[tuple[Entity, ...] | None, tuple[str, ...]] = {}
    for name in names:
        # No file has NUL in its name, and relative names are not those of the current directory.
        path = os.path.realpath(name) if os.path.isabs(name) and "\0" not in name else name
        held: list[tuple[tuple[Entity, ...] | None, str]] = []
        for entity, root in roots:
            inside = inside_of(root, path)
            if inside is not None or inside_of(path, root) is not None:
                held.append(((entity,), inside or "."))
        for entities, relative in held or [(None, name)]:
            found[entities] = (*found.get(entities, ()), relative)
    return found


def _globs_by_source(
    sources: Sequence[tuple[Entity, str]], globs: Sequence[str]
) -> dict[tuple[Entity, ...] | None, tuple[str, ...]]:
    """Globs relative to the sources in which they can match; under None those that can in none of ``sources``."""
    found: dict[tuple[Entity, ...] | None, tuple[str, ...]] = {}
    for glob in globs:
        held: list[tuple[tuple[Entity, ...] | None, str]] = []
        if glob.startswith("/") or "://" in glob:
            for entity, root in sources:
                left = [*rests(_names(glob), root.rstrip("/").split("/"))]
                held += [((entity,), "/" + ("/".join(names) or "**")) for names in left]
        for entities, relative in held or [(None, glob)]:
            found[entities] = (*found.get(entities, ()), relative)
    return found


def _names(glob: str) -> list[str]:
    """The names of an absolute glob, in which links are followed as far as it has no wildcards."""
    if "://" in glob:
        return glob.split("/")
    fixed = _FIXED.match(glob)
    folder = fixed[0] if fixed else "/"
    real = "" if "\0" in folder else os.path.realpath(folder)
    kept = f"{literal_glob(real).rstrip('/')}/{glob[len(folder) :]}" if real != os.path.normpath(folder) else glob
    names = kept.split("/")
    names = ["", *(name for name in names[1:-1] if name not in ("", ".")), names[-1]]
    return names if names[-1] else [*names[:-1], "**"]


@dataclass(frozen=True, slots=True)
class LineKinds:
    """With ``symbols``, only lines that begin a definition; with ``kinds``, only those whose innermost definition is of
    one; without ``tests``, none of a test."""

    symbols: bool = False
    kinds: tuple[str, ...] = ()
    left_out: tuple[Callable[[str], bool], ...] = ()

    @classmethod
    def of(cls, wanted: SearchFilter) -> Self:
        """Return what a filter demands of single lines."""
        switches = ((row.leaves_out, getattr(wanted, name)) for name, row in FILTERS.items())
        left_out = tuple(leaves_out for leaves_out, is_on in switches if leaves_out is not None and not is_on)
        return cls(wanted.symbols, tuple(wanted.kinds or ()), left_out)

    @property
    def needs_definitions(self) -> bool:
        """Whether lines cannot be judged by their paths alone."""
        return self.symbols or bool(self.kinds)

    def allow(self, definition: Definition | None, line: int, path: str) -> bool:
        """Whether a line (0-based) of ``path`` may be an answer; ``definition`` is the innermost around it."""
        if any(leaves_out(path) for leaves_out in self.left_out):
            return False
        if self.symbols and (definition is None or definition.line != line):
            return False
        return not self.kinds or (definition is not None and definition.kind in self.kinds)


ALL_LINES = LineKinds()


MAX_TOLD = 20
"""Values of one filter that are told one by one."""
_LABELS = {
    "paths": "path",
    "dirs": "directory",
    "globs": "glob",
    "exts": "ending",
    "languages": "language",
    "sources": "entity",
}


def line_filter(wanted: SearchFilter, workspace: Workspace) -> LineFilter | None:
    """Return the lines of ``workspace`` that every condition allows, None for all. Raises BadEntity, UsageError."""
    levels = workspace.config.hierarchy
    entities = None if wanted.sources is None else tuple(parse_entity(each, levels) for each in wanted.sources)
    named: dict[str, Any] = {}
    also = [LineFilter(entities=(wanted.within,))] if wanted.within is not None else []
    if not wanted.on_this_machine:
        named = {"paths": _tuple(wanted.paths), "dirs": _tuple(wanted.dirs)}
    else:
        also += [where_named(workspace, wanted.paths, "file")] if wanted.paths is not None else []
        also += [where_named(workspace, wanted.dirs, "folder")] if wanted.dirs is not None else []
    also += [LineFilter(exts=extensions_of(wanted.languages))] if wanted.languages is not None else []
    also += [relative_to_sources(workspace, each) for each in further_conditions(wanted)]
    globs, exts = _tuple(wanted.globs), _tuple(wanted.exts)
    where = LineFilter(entities=entities, globs=globs, exts=exts, all_of=tuple(also) or None, **named)
    if where == LineFilter(all_of=where.all_of):
        return also[0] if len(also) == 1 else where if also else None
    return relative_to_sources(workspace, where)


def further_conditions(wanted: SearchFilter) -> tuple[LineFilter, ...]:
    """Return the conditions that are line filters already."""
    where = () if wanted.where is None or wanted.where == LineFilter() else (wanted.where,)
    return (*wanted.also, *where)


def conditions(wanted: SearchFilter) -> Iterator[tuple[str, str, SearchFilter]]:
    """What each value alone allows: its name, "" for line filters, what to tell people if that is nothing, and it."""
    alone: dict[str, Any] = {"within": wanted.within, "on_this_machine": wanted.on_this_machine}
    for name in _LABELS:
        for value in (getattr(wanted, name) or ())[:MAX_TOLD]:
            yield *_told(name, value), SearchFilter(**alone | {name: (value,)})
    for where in further_conditions(wanted):
        for name, value, each_of in _values(where):
            _, told = _told(name, value) if name else ("", "No indexed document is in what was named.")
            yield "", told, SearchFilter(also=(each_of,), **alone)


def _told(name: str, value: str | tuple[str, str]) -> tuple[str, str]:
    text = value if isinstance(value, str) else ":".join(value)
    condition, advice = f"{_LABELS.get(name, 'entity')} {text!r}", ""
    if name in ("paths", "dirs") and WILDCARD.search(text):
        advice = " Did you mean a glob?"
    elif name == "globs" and "," in text and "{" not in text:
        advice = f" Alternatives have braces: {'{' + text + '}'!r}."
    elif name == "globs" and not WILDCARD.search(text):
        advice = f" A directory is the glob {text.rstrip('/') + '/'!r}."
    return condition, f"No indexed document matches the {condition}.{advice}"


def _values(where: LineFilter) -> Iterator[tuple[str, str, LineFilter]]:
    """The values of a filter one by one, with the names of their fields; what has none, or too many, as one."""
    rest = where
    for name in ("entities", "paths", "dirs", "globs", "exts"):
        values = getattr(where, name)
        if values and len(values) <= MAX_TOLD:
            rest = replace(rest, **{name: None})
            yield from ((name, str(value), LineFilter(**{name: (value,)})) for value in values)
    if rest != LineFilter():
        yield "", "", rest


def _tuple(values: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def parse_entity(entity: str | tuple[str, str], levels: tuple[str, ...]) -> Entity:
    """Return the entity of a filter, a path or a pair of type and id. Raises BadEntity."""
    return Entity.parse(entity if isinstance(entity, str) else ":".join(entity), levels)
