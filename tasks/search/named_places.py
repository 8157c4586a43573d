"""What the names that people give on this machine are among the sources of a workspace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Literal
from unicodedata import normalize

from driftline.storage.entities import Entity
from driftline.storage.lines.filters import LineFilter, normalise
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.scanning.claims import below

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
