"""The filter of a search from what its caller names: files, folders, globs, endings, entities, and other filters."""

from __future__ import annotations

from collections.abc import Sequence

from driftline.storage.entities import Entity
from driftline.storage.lines.filters import LineFilter
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.line_kinds import extensions_of
from driftline.tasks.search.named_places import where_named


def narrowed(
    workspace: Workspace,
    *,
    paths: Sequence[str] | None = None,
    dirs: Sequence[str] | None = None,
    globs: Sequence[str] | None = None,
    exts: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    entities: Sequence[str | tuple[str, str]] | None = None,
    also: Sequence[LineFilter] = (),
) -> LineFilter:
    """The lines that every condition allows, each of which is met by any of its values; an empty one allows nothing.

    None is no condition. ``paths`` and ``dirs`` are files and folders on this machine, or in their source. Raises
    BadEntity, UsageError.
    """
    levels = workspace.config.hierarchy
    return LineFilter(
        entities=None if entities is None else tuple(Entity.parse(_path(entity), levels) for entity in entities),
        globs=None if globs is None else tuple(globs),
        exts=None if exts is None else tuple(exts),
        all_of=(
            *([where_named(workspace, list(paths), "file")] if paths is not None else []),
            *([where_named(workspace, list(dirs), "folder")] if dirs is not None else []),
            *([LineFilter(exts=extensions_of(languages))] if languages is not None else []),
            *also,
        ),
    )


def _path(entity: str | tuple[str, str]) -> str:
    return entity if isinstance(entity, str) else ":".join(entity)
