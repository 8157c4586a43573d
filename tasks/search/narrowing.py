"""The filter of a search from what its caller names: files, folders, globs, endings, entities, and other filters."""

from __future__ import annotations

from collections.abc import Sequence

from driftline.storage.entities import Entity
from driftline.storage.lines.filters import LineFilter
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.named_places import where_named


def narrowed(
    workspace: Workspace,
    *,
    paths: Sequence[str] = (),
    dirs: Sequence[str] = (),
    globs: Sequence[str] = (),
    exts: Sequence[str] = (),
    entities: Sequence[str] = (),
    also: Sequence[LineFilter] = (),
) -> LineFilter:
    """The lines that every condition allows, each of which is met by any of its values; an empty one allows all.

    ``paths`` and ``dirs`` are files and folders on this machine, or in their source. Raises BadEntity, UsageError.
    """
    return LineFilter(
        entities=tuple(Entity.parse(path, workspace.config.hierarchy) for path in entities) or None,
        globs=tuple(globs) or None,
        exts=tuple(exts) or None,
        all_of=(
            *([where_named(workspace, list(paths), "file")] if paths else []),
            *([where_named(workspace, list(dirs), "folder")] if dirs else []),
            *also,
        ),
    )
