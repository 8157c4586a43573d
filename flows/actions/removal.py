"""From the paths that ``search.workspace_remove`` is given to what is taken out of sources. Files stay as they are.

A source that is named, or that lies below a folder that is named, goes. Of a source that holds what is named, its
documents go, and its filters leave them out from now on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from driftline.flows.actions.sources import WAIT_SECONDS
from driftline.flows.runs.remove_run import remove_documents, remove_source
from driftline.storage.entities import Entity
from driftline.storage.errors import SourceNotFound
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.scanning.claims import below
from driftline.tasks.scanning.selection import files_named, is_glob, literal


@dataclass(frozen=True, slots=True)
class _Part:
    """What goes from one source: all of it if ``inside`` is "", else this file or folder, with these documents."""

    entity: Entity
    record: SourceRecord
    inside: str
    documents: tuple[str, ...]


def remove_paths(workspace: Workspace, paths: Sequence[str]) -> int:
    """Take files, folders, globs and URIs out of a workspace; returns how many documents that were.

    Raises SourceNotFound, before anything is removed, for what the workspace does not hold; LeaseHeld, StorageError.
    """
    names = [file for path in paths for file in (files_named([path]) if is_glob(path) else [path])]
    for name in names:
        if not _parts(workspace, name):
            raise SourceNotFound("The workspace does not hold this", name, "Check the spelling.")
    return sum(_remove(workspace, part) for name in names for part in _parts(workspace, name))


def _parts(workspace: Workspace, name: str) -> list[_Part]:
    path = name.rstrip("/") if "://" in name else os.path.realpath(os.path.expanduser(name))
    found: list[_Part] = []
    for entity, record in workspace.sources():
        inside = below(record.uri, path)
        if inside == "" or below(path, record.uri) is not None:
            found.append(_Part(entity, record, "", ()))
        elif inside is not None:
            rows = workspace.manifest(entity).read([inside], columns=["path"])["path"].to_pylist()
            documents = tuple(row for row in rows if below(inside, row) is not None)
            if documents or literal(inside) in record.include:
                found.append(_Part(entity, record, inside, documents))
    return found


def _remove(workspace: Workspace, part: _Part) -> int:
    pattern = literal(part.inside)
    include = tuple(kept for kept in part.record.include if kept != pattern)
    nothing_left = bool(part.record.include) and not include
    if not part.inside or nothing_left:
        return remove_source(
            workspace.objects.uri,
            str(part.entity),
            wait_seconds=WAIT_SECONDS,
            storage_options=workspace.objects.storage_options,
        ).documents
    if include == part.record.include:  # its other filters would let it in again
        change = {"exclude": (*part.record.exclude, pattern), "commit": None}
    else:
        change = {"include": include, "commit": None}
    record = part.record.model_copy(update=change)
    return remove_documents(workspace, part.entity, part.documents, record=record, wait_seconds=WAIT_SECONDS)
