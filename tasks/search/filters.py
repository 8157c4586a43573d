"""Translate a search filter (paths, languages, definitions, tests) to a line filter for a workspace.

Absolute local paths are translated to paths inside the sources that contain them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self
from unicodedata import normalize
from urllib.parse import unquote

from driftline.storage.documents import DocumentKey
from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import shortened
from driftline.storage.globs import advice_on, check_glob, literal_glob, remainders
from driftline.storage.lines.line_filter import LineFilter, normalize_path
from driftline.storage.lines.outline import Definition, parts_of_name
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.request import FILTERS, WILDCARD, SearchFilter, extensions_of

PathKind = Literal["file", "folder", "either"]
"""What names refer to: documents, folders with everything under them, or both kinds."""


def where_named(workspace: Workspace, names: Iterable[str], kind: PathKind = "either") -> LineFilter:
    """Return a filter for the documents that ``names`` refer to.

    Names are files and folders on this machine (including links, and folders that contain sources), URIs, or paths
    inside a source. A name in the current folder takes precedence over one inside a source; ``.``, ``./x``, ``..`` and
    absolute paths never refer to paths inside a source. Raises UsageError for a name that escapes its source and does
    not exist.
    """
    roots = [(entity, record.uri) for entity, record in workspace.readable_sources()]
    found: dict[Entity | None, set[str]] = {}
    for name in map(without_file_scheme, names):
        for entity, inside in _interpretations(name, roots):
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


def _interpretations(name: str, roots: Sequence[tuple[Entity, str]]) -> list[tuple[Entity | None, str]]:
    """Return ``(source, path inside it)`` for each source that contains a name; None means any source.

    Sources inside the given folder are included with the path "".
    """
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
    if (found and exists) or _is_local_only(name, exists=exists):
        return found
    return [*found, (None, normalize_path(name))]


def inside_of(folder: str, path: str) -> str | None:
    """Like ``below``, but accept composed and decomposed accents."""
    from driftline.tasks.scanning.overlap import below  # searches with no absolute paths do not load it

    inside = below(folder, path)
    if inside is not None or (folder.isascii() and path.isascii()):
        return inside
    if below(normalize("NFC", folder), normalize("NFC", path)) is None:
        return None
    return "/".join(path.split("/")[len(folder.rstrip("/").split("/")) :])


def _is_local_only(name: str, *, exists: bool) -> bool:
    """Return whether a name can only be a path on this machine, not inside a source."""
    if "://" in name or os.path.isabs(os.path.expanduser(name)):
        return True
    return exists and name.partition("/")[0] in (".", "..")


_FIXED = re.compile(r"[^*?\[]*/")
"""A glob's leading folders with no wildcards."""


def relative_to_sources(workspace: Workspace, where: LineFilter) -> LineFilter:
    """Make absolute paths, directories and globs in ``where`` relative to the sources that contain them.

    A directory that contains sources stands for all of them. Paths outside all sources are unchanged; such globs start
    at the top of each source.
    """
    names = {kind: getattr(where, kind) for kind in ("paths", "dirs", "globs")}
    where = replace(where, **{kind: given and tuple(map(without_file_scheme, given)) for kind, given in names.items()})
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


def files_containing(workspace: Workspace, text: str, within: Boundary | None = None) -> LineFilter:
    """Return a filter for files whose paths contain ``text``; an absolute path also names what it is in a source.

    A folder that contains sources names all of their files.
    """
    found = [LineFilter(parts=(text,))]
    for entity, record in workspace.readable_sources(within) if text.count("/") > 1 and text.startswith("/") else ():
        inside = inside_of(record.uri, text)
        if inside is not None:
            found += [LineFilter((entity,), paths=(inside,)), LineFilter((entity,), dirs=(inside,))]
        elif inside_of(text, record.uri) is not None:
            found.append(LineFilter((entity,)))
    return found[0] if len(found) == 1 else LineFilter(any_of=tuple(found))


_FILE_SCHEME = re.compile(r"file:(?://(?:localhost)?)?(?=/)", re.IGNORECASE)


def only_documents(workspace: Workspace, documents: Iterable[DocumentKey]) -> LineFilter:
    """Return a filter for only these documents."""
    of_source: dict[str, list[str]] = {}
    for entity, path in documents:
        of_source.setdefault(entity, []).append(path)
    levels = workspace.config.hierarchy
    parsed = [(Entity.parse(entity, levels), tuple(paths)) for entity, paths in of_source.items()]
    return LineFilter(any_of=tuple(LineFilter(entities=(entity,), paths=paths) for entity, paths in parsed))


def without_file_scheme(name: str) -> str:
    """Return the absolute path of a ``file://`` URI, and any other name as it is.

    >>> without_file_scheme("file:///a%20b.txt"), without_file_scheme("s3://b/a%20b.txt")
    ('/a b.txt', 's3://b/a%20b.txt')
    """
    scheme = _FILE_SCHEME.match(name)
    path = name[scheme.end() :] if scheme else name
    return path if scheme is None or "%" not in path or os.path.lexists(path) else unquote(path)


def _by_source(
    roots: Sequence[tuple[Entity, str]], names: Sequence[str]
) -> dict[tuple[Entity, ...] | None, tuple[str, ...]]:
    """Return ``names`` relative to their source and keyed by it; names outside all ``roots`` have the key None."""
    found: dict[tuple[Entity, ...] | None, tuple[str, ...]] = {}
    for name in names:
        # File names never contain NUL, and relative names do not refer to the current directory.
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
    """Return globs relative to the sources they can match in; the key None has globs that match in no source."""
    found: dict[tuple[Entity, ...] | None, tuple[str, ...]] = {}
    for glob in globs:
        held: list[tuple[tuple[Entity, ...] | None, str]] = []
        if glob.startswith("/") or "://" in glob:
            for entity, root in sources:
                left = [*remainders(_names(glob), root.rstrip("/").split("/"))]
                held += [((entity,), "/" + ("/".join(names) or "**")) for names in left]
        for entities, relative in held or [(None, glob)]:
            found[entities] = (*found.get(entities, ()), relative)
    return found


def _names(glob: str) -> list[str]:
    """Return the spellings of an absolute glob, with links resolved up to its first wildcard."""
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
    """Conditions on individual lines.

    If ``symbols`` is set, a line must start a definition; if there are ``kinds``, its innermost definition must be of
    one of these kinds, and it or one around it must have each name in ``inside``; names without a capital ignore case.
    Paths for which any predicate in ``left_out`` returns true, such as tests, are excluded.
    """

    symbols: bool = False
    kinds: tuple[str, ...] = ()
    left_out: tuple[Callable[[str], bool], ...] = ()
    inside: tuple[str, ...] = ()

    @classmethod
    def of(cls, search_filter: SearchFilter) -> Self:
        """Return a filter's conditions on individual lines."""
        switches = ((row.leaves_out, getattr(search_filter, name)) for name, row in FILTERS.items())
        left_out = tuple(leaves_out for leaves_out, is_on in switches if leaves_out is not None and not is_on)
        return cls(search_filter.symbols, tuple(search_filter.kinds or ()), left_out, tuple(search_filter.inside))

    @property
    def needs_definitions(self) -> bool:
        """Whether the filter needs definitions, not only paths."""
        return self.symbols or bool(self.kinds or self.inside)

    def allow(self, definition: Definition | None, line: int, path: str) -> bool:
        """Return whether a line (0-based) of ``path`` passes; ``definition`` is its innermost enclosing definition."""
        if any(leaves_out(path) for leaves_out in self.left_out):
            return False
        if self.symbols and (definition is None or definition.line != line):
            return False
        if self.kinds and (definition is None or definition.kind not in self.kinds):
            return False
        return all(definition is not None and _is_around(name, definition) for name in self.inside)


ALL_LINES = LineKinds()


def _is_around(name: str, definition: Definition) -> bool:
    """Return whether ``name`` is the name of a definition or of one around it."""
    parts = parts_of_name(name)
    own = parts_of_name(definition.name if name != name.lower() else definition.name.lower())
    return any(own[at : at + len(parts)] == parts for at in range(len(own)))


MAX_REPORTED = 20
"""Maximum number of values per filter to report individually."""
_LABELS = {
    "paths": "path",
    "dirs": "directory",
    "globs": "glob",
    "exts": "ending",
    "languages": "language",
    "sources": "entity",
}


def line_filter(search_filter: SearchFilter, workspace: Workspace) -> LineFilter | None:
    """Return a filter for lines that pass every condition, None for all lines. Raises BadEntity, UsageError."""
    levels = workspace.config.hierarchy
    entities = (
        None if search_filter.sources is None else tuple(parse_entity(each, levels) for each in search_filter.sources)
    )
    named: dict[str, Any] = {}
    boundary = search_filter.boundary
    also = [LineFilter(entities=boundary.tops)] if boundary is not None else []
    if not search_filter.on_this_machine:
        named = {"paths": _tuple(search_filter.paths), "dirs": _tuple(search_filter.dirs)}
    else:
        also += [where_named(workspace, search_filter.paths, "file")] if search_filter.paths is not None else []
        also += [where_named(workspace, search_filter.dirs, "folder")] if search_filter.dirs is not None else []
    also += [LineFilter(exts=extensions_of(search_filter.languages))] if search_filter.languages is not None else []
    also += [relative_to_sources(workspace, each) for each in further_conditions(search_filter)]
    globs, exts = _tuple(search_filter.globs), _tuple(search_filter.exts)
    where = LineFilter(entities=entities, globs=globs, exts=exts, all_of=tuple(also) or None, **named)
    if where == LineFilter(all_of=where.all_of):
        return also[0] if len(also) == 1 else where if also else None
    return relative_to_sources(workspace, where)


def further_conditions(search_filter: SearchFilter) -> tuple[LineFilter, ...]:
    """Return the conditions that are already line filters."""
    where = () if search_filter.where is None or search_filter.where == LineFilter() else (search_filter.where,)
    return (*search_filter.also, *where)


def conditions(search_filter: SearchFilter) -> Iterator[tuple[str, str, SearchFilter]]:
    """Yield a separate filter for each value: ``(name, message if nothing passes, filter)``.

    The name is "" for line filters.
    """
    alone: dict[str, Any] = {"within": search_filter.within, "on_this_machine": search_filter.on_this_machine}
    for name in _LABELS:
        for value in (getattr(search_filter, name) or ())[:MAX_REPORTED]:
            yield *_note_on(name, value), SearchFilter(**alone | {name: (value,)})
    for where in further_conditions(search_filter):
        for name, value, each_of in _values(where):
            note = _note_on(name, value)[1] if name else value
            yield "", note, SearchFilter(also=(each_of,), **alone)


def _note_on(name: str, value: str | tuple[str, str]) -> tuple[str, str]:
    text = value if isinstance(value, str) else ":".join(value)
    condition, advice = f"{_LABELS.get(name, 'entity')} {text!r}", ""
    if name in ("paths", "dirs") and WILDCARD.search(text):
        advice = " Did you mean a glob?"
    elif (name == "globs" or "\\" in text) and (written := advice_on(text)):
        advice = f" {written}"
    elif name == "globs" and not WILDCARD.search(text):
        advice = f" A directory is the glob {text.rstrip('/') + '/'!r}."
    return condition, f"No indexed document matches the {shortened(condition)}.{shortened(advice)}"


def _values(where: LineFilter) -> Iterator[tuple[str, str, LineFilter]]:
    """Yield a filter's values one by one, with their field names.

    If there are none or too many, yield the whole filter with a message; a language's extensions are one value.
    """
    rest = where
    for name in ("entities", "paths", "dirs", "globs", "exts"):
        values = getattr(where, name)
        if values and len(values) <= MAX_REPORTED and (name != "exts" or len(values) == 1):
            rest = replace(rest, **{name: None})
            yield from ((name, str(value), LineFilter(**{name: (value,)})) for value in values)
    if rest == LineFilter():
        return
    shown = [f".{ext}" for ext in rest.exts or ()]
    shown += [f"file:{name}" for each in rest.any_of or () for name in _named_in(each)]
    note = "The given files and folders contain no indexed documents."
    if 0 < len(shown) <= MAX_REPORTED:
        note = f"No indexed document matches {' or '.join(shown)}."
    elif rest == LineFilter(none_of=rest.none_of):
        note = "The query excludes every indexed document."
    yield "", note, rest


def _named_in(where: LineFilter) -> Iterator[str]:
    """Yield the globs and parts of paths in a filter of ``file:``."""
    yield from (*(where.globs or ()), *(where.parts or ()))
    yield from (part for each in where.any_of or () for part in each.parts or ())


def _tuple(values: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def parse_entity(entity: str | tuple[str, str], levels: tuple[str, ...]) -> Entity:
    """Parse the entity of a filter, a path or a pair of type and id. Raises BadEntity."""
    return Entity.parse(entity if isinstance(entity, str) else ":".join(entity), levels)
