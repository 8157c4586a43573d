"""Filters by absolute paths, as those of the sources that hold them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from driftline.storage.entities import Entity
from driftline.storage.lines.filters import LineFilter
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.scanning.claims import below


def relative_to_sources(workspace: Workspace, where: LineFilter) -> LineFilter:
    """``where`` with absolute paths and directories as those of the local sources that hold them, and of no others.

    One that holds sources itself stands for all of them; one that has to do with none is left as it is.
    """
    if not any(os.path.isabs(name) for name in (*(where.paths or ()), *(where.dirs or ()))):
        return where
    roots = [
        (entity, record.uri) for entity, record in workspace.readable_sources() if known_source(record.uri).is_local
    ]
    within = where.any_of
    if where.paths is not None:
        alternatives = _by_source(roots, where.paths).items()
        within = tuple(LineFilter(entities=entities, paths=paths, any_of=within) for entities, paths in alternatives)
    if where.dirs is not None:
        alternatives = _by_source(roots, where.dirs).items()
        within = tuple(LineFilter(entities=entities, dirs=dirs, any_of=within) for entities, dirs in alternatives)
    return replace(where, paths=None, dirs=None, any_of=within)


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
            inside = below(root, path)
            if inside is not None or below(path, root) is not None:
                held.append(((entity,), inside or "."))
        for entities, relative in held or [(None, name)]:
            found[entities] = (*found.get(entities, ()), relative)
    return found
