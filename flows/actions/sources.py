"""From the paths that an action is given to sources of its workspace, and from paths to filters.

A folder is a source. The single files of a folder share one source, to which each call adds; a glob has its own. What a
known source covers is left to it, and a folder that is indexed whole takes over from files and globs inside it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from driftline.flows.output.reports import SourceReport
from driftline.flows.runs.index_run import index_sources, remove_source
from driftline.flows.runs.plan import IndexRequest, SourceRequest
from driftline.storage.entities import Entity
from driftline.storage.lines.filters import LineFilter, normalise
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.scanning.ignore import Rules, lets_through
from driftline.tasks.scanning.selection import files_named, is_glob, literal, select

WAIT_SECONDS = 60.0
"""How long an action waits for another run of the same source: engines run nodes in parallel."""

_FOLDERS = "*/"
_PARTIAL = re.compile(r".+-(files|glob)-[0-9a-f]{8}")
_Known = Mapping[Entity, SourceRecord]


def index_paths(
    workspace: Workspace, paths: Sequence[str], *, recursive: bool, extensions: Sequence[str] | None
) -> list[SourceReport]:
    """Bring the sources of ``paths`` in step. Raises SourceNotFound before anything is written."""
    known = _local_sources(workspace)
    wanted: dict[tuple[str, str | None], SourceRequest] = {}
    for path in paths:
        part = _wanted(workspace, known, path, recursive, extensions)
        before = wanted.get((part.uri, part.entity))
        if before is not None:
            part = replace(part, include=_joined(before.include, part.include))
        wanted[part.uri, part.entity] = part
    whole = [part.uri for part in wanted.values() if not part.include and not part.exclude]
    places = [(part.entity, part.uri) for part in wanted.values()]
    places += [(str(entity), record.uri) for entity, record in known.items()]
    taken_over = {
        entity
        for entity, uri in places
        if entity and _PARTIAL.fullmatch(entity) and any(_inside(folder, uri) is not None for folder in whole)
    }
    reports: list[SourceReport] = []
    waiting = [part for part in wanted.values() if part.entity not in taken_over]
    while waiting:
        batch = {part.uri: part for part in reversed(waiting)}  # a run takes each place once
        sources = tuple(batch.values())
        request = IndexRequest(sources=sources, workspace=workspace.objects.uri, wait_seconds=WAIT_SECONDS)
        reports += index_sources(request).sources
        waiting = [part for part in waiting if batch[part.uri] is not part]
    for entity in known:
        if str(entity) in taken_over:
            remove_source(workspace.objects.uri, str(entity), wait_seconds=WAIT_SECONDS)
    return reports


def filter_for(workspace: Workspace, paths: Sequence[str]) -> LineFilter:
    """Only the documents that ``paths`` name: files, folders or globs on this machine that were indexed, or documents
    and folders by their paths inside their source.
    """
    known = _local_sources(workspace)
    named: dict[Entity | None, set[str]] = {}
    for path in paths:
        exists = False
        for file in files_named([path]) if is_glob(path) else [path]:
            real = os.path.realpath(os.path.expanduser(file))
            for entity, record in known.items():
                inside = _inside(record.uri, real)
                if inside is not None:
                    exists = exists or os.path.lexists(real)
                    named.setdefault(entity, set()).add(inside)
        if not exists:
            named.setdefault(None, set()).add(normalise(path))
    alternatives: list[LineFilter] = []
    for owner, names in named.items():
        entities = None if owner is None else (owner,)
        alternatives.append(LineFilter(entities=entities, paths=tuple(names)))
        alternatives.append(LineFilter(entities=entities, dirs=tuple(names)))
    return LineFilter(any_of=tuple(alternatives))


def _wanted(
    workspace: Workspace, known: _Known, path: str, recursive: bool, extensions: Sequence[str] | None
) -> SourceRequest:
    include = tuple(f"*.{extension.removeprefix('.')}" for extension in extensions or ())
    exclude = () if recursive else (_FOLDERS,)
    if "://" in path:
        return SourceRequest(path, include=include, exclude=exclude)
    selection = select(path)
    uri = os.path.realpath(selection.folder)
    if selection.file is None and not selection.rules.include:
        for entity, record in known.items():
            if record.uri == uri and not _PARTIAL.fullmatch(entity.id):
                kept = tuple(pattern for pattern in record.exclude if pattern != _FOLDERS)
                return SourceRequest(uri, str(entity), include, kept + exclude)
        return SourceRequest(uri, include=include, exclude=exclude)
    kind, rules = "glob", selection.rules
    for entity, record in known.items():
        theirs = Rules(record.include, record.exclude)
        inside = _inside(record.uri, uri if selection.file is None else os.path.join(uri, selection.file))
        covers = theirs == Rules() if selection.file is None else inside is not None and lets_through(theirs, inside)
        if inside is not None and covers:
            return SourceRequest(record.uri, str(entity), record.include, record.exclude)
    if selection.file is not None:
        kind, rules = "files", Rules(include=(literal(selection.file),))
    digest = hashlib.blake2b(repr((uri, kind == "glob" and rules.include)).encode(), digest_size=4).hexdigest()
    stem = os.path.basename(uri)[:100] or "root"
    entity = Entity.parse(f"{workspace.config.hierarchy[-1]}:{stem}-{kind}-{digest}", workspace.config.hierarchy)
    include = _joined(known[entity].include, rules.include) if entity in known else rules.include
    return SourceRequest(uri, str(entity), include, rules.exclude)


def _joined(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Patterns that let through what either lets through; none let everything through."""
    return tuple(dict.fromkeys((*first, *second))) if first and second else ()


def _local_sources(workspace: Workspace) -> dict[Entity, SourceRecord]:
    return {entity: record for entity, record in workspace.sources() if "://" not in record.uri}


def _inside(folder: str, path: str) -> str | None:
    """``path`` relative to ``folder`` ("" for itself), None if it lies elsewhere."""
    if path == folder:
        return ""
    return path[len(folder) + 1 :] if path.startswith(folder.rstrip("/") + "/") else None
