"""Filters by absolute paths, as those of the sources that hold them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from driftline.storage.entities import Entity
from driftline.storage.globs import check_glob, literal_glob, rests
from driftline.storage.lines.filters import LineFilter
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.named_places import inside_of

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
