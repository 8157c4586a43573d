"""Convert an action's paths into sources of its workspace, and into filters.

Each folder and each glob is a source. Single files in a folder share a source, and each call adds files to it. Files
stay in their source until their whole folder is indexed; its source then takes over the files and globs inside.
``SkippedFiles`` collects requested files that were skipped, for the result.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.output.run_reports import SourceReport
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.plan import PARTIAL, known_request
from driftline.storage.defaults import DEFAULT_MAX_DELETE_FRACTION
from driftline.storage.documents import SkipReason
from driftline.storage.entities import Entity
from driftline.storage.errors import DeletionRefused, UsageError
from driftline.storage.globs import alternatives
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.scanning.overlap import below
from driftline.tasks.scanning.path_patterns import Rules, accepts
from driftline.tasks.scanning.walk import files_named, is_glob, literal, select
from driftline.tasks.search.filters import where_named

WAIT_SECONDS = 60.0
"""How long an action waits for another run of the same source: engines run nodes in parallel."""

_FOLDERS = "*/"
_EXTENSION = re.compile(r"[^\s*?\[\]{},/]+")
_Known = Mapping[Entity, SourceRecord]


def index_paths(
    workspace: Workspace,
    paths: Sequence[str],
    *,
    recursive: bool,
    extensions: Sequence[str] | None,
    dry_run: bool = False,
    max_delete_fraction: float = DEFAULT_MAX_DELETE_FRACTION,
    on_skip: Callable[[str, str], None] = lambda path, reason: None,
    model: str | None = None,
) -> list[SourceReport]:
    """Update the sources of ``paths`` and report on each. ``on_skip`` receives skipped files.

    Raises SourceNotFound before anything is written, DeletionRefused, LeaseHeld, StorageError.
    """
    known = _local_sources(workspace)
    requested: dict[tuple[str, str | None], SourceRequest] = {}
    for path in paths:
        part = _requested(workspace, known, path, recursive, extensions)
        before = requested.get((part.uri, part.entity))
        if before is not None:
            part = replace(part, include=_joined(before.include, part.include))
        requested[part.uri, part.entity] = part
    taken_over = _taken_over(requested.values(), known)
    reports: dict[str, SourceReport] = {}
    waiting = [part for part in requested.values() if part.entity not in taken_over]
    while waiting:
        batch = {part.uri: part for part in reversed(waiting)}  # a run accepts each source only once
        request = IndexRequest(
            sources=tuple(batch.values()),
            workspace=workspace.objects.uri,
            wait_seconds=WAIT_SECONDS,
            dry_run=dry_run,
            max_delete_fraction=max_delete_fraction,
            model=model,
        )
        for report in _run(request, taken_over):
            reports.setdefault(report.entity, report)
        waiting = [part for part in waiting if batch[part.uri] is not part]
    _report_skipped(reports.values(), requested.values(), on_skip)
    return list(reports.values())


def _taken_over(requested: Collection[SourceRequest], known: _Known) -> set[str]:
    """Return the file and glob sources inside folders that are indexed as a whole."""
    whole = [part.uri for part in requested if not part.include and not part.exclude]
    locations = [(part.entity, part.uri) for part in requested]
    locations += [(str(entity), record.uri) for entity, record in known.items()]
    return {
        entity
        for entity, uri in locations
        if entity and PARTIAL.fullmatch(entity) and any(below(folder, uri) is not None for folder in whole)
    }


def _run(request: IndexRequest, taken_over: Iterable[str]) -> list[SourceReport]:
    try:
        return index_sources(request, instead_of=sorted(taken_over)).sources
    except DeletionRefused as error:
        fix = "To delete them, call again with max_delete_fraction: 1; dry_run: true shows what would happen."
        raise DeletionRefused(error.what, error.where, fix) from error


def _report_skipped(
    reports: Iterable[SourceReport], requested: Iterable[SourceRequest], on_skip: Callable[[str, str], None]
) -> None:
    rules = {part.uri: Rules(part.include, part.exclude) for part in requested if part.include}
    for report in reports:
        for path, reason in sorted(report.skipped):
            was_named = report.uri not in rules or accepts(rules[report.uri], path)
            if was_named and reason != SkipReason.EXCLUDED:
                on_skip(f"{report.uri.rstrip('/')}/{path}", str(reason))


def filter_for(workspace: Workspace, paths: Sequence[str]) -> LineFilter:
    """Return a filter that selects the documents at ``paths``.

    Paths are indexed files, folders or globs on this machine, or document and folder paths relative to a source.
    """
    names = [file for path in paths for file in (files_named([path]) if is_glob(path) else [path])]
    return where_named(workspace, names)


def _globs_of(extension: str) -> Iterator[str]:
    """Yield the globs that ``extension`` means, in either case. Raises UsageError for one that would match nothing."""
    for name in (each.removeprefix(".") for each in alternatives(extension)):
        if not _EXTENSION.fullmatch(name):
            raise UsageError("Not an extension", repr(extension), "Use 'py' or '{ts,tsx}'.")
        yield from dict.fromkeys(f"*.{form}" for form in (name, name.lower(), name.upper()))


def _requested(
    workspace: Workspace, known: _Known, path: str, recursive: bool, extensions: Sequence[str] | None
) -> SourceRequest:
    include = tuple(glob for extension in extensions or () for glob in _globs_of(extension))
    exclude = () if recursive else (_FOLDERS,)
    if "://" in path:
        return SourceRequest(path, include=include, exclude=exclude)
    selection = select(path)
    uri = os.path.realpath(selection.folder)
    if selection.file is None and not selection.rules.include:
        for entity, record in known.items():
            if record.uri == uri and not PARTIAL.fullmatch(entity.id):
                kept = tuple(pattern for pattern in record.exclude if pattern != _FOLDERS)
                return SourceRequest(uri, str(entity), include, kept + exclude)
        return SourceRequest(uri, include=include, exclude=exclude)
    kind, rules = "glob", _limited(selection.rules, include, recursive=recursive)
    for entity, record in known.items():
        theirs = Rules(record.include, record.exclude)
        inside = below(record.uri, uri if selection.file is None else os.path.join(uri, selection.file))
        covers = theirs == Rules() if selection.file is None else inside is not None and accepts(theirs, inside)
        if inside is not None and covers:
            return known_request(entity, record)
    if selection.file is not None:
        kind, rules = "files", Rules(include=(literal(selection.file),))
    digest = hashlib.blake2b(repr((uri, kind == "glob" and rules.include)).encode(), digest_size=4).hexdigest()
    stem = os.path.basename(uri)[:100] or "root"
    entity = Entity.parse(f"{workspace.config.hierarchy[-1]}:{stem}-{kind}-{digest}", workspace.config.hierarchy)
    include = _joined(known[entity].include, rules.include) if entity in known else rules.include
    return SourceRequest(uri, str(entity), include, rules.exclude)


def _limited(rules: Rules, endings: Sequence[str], *, recursive: bool) -> Rules:
    """Limit a glob's rules to the globs ``endings``, and to one folder unless ``recursive`` is set.

    A glob that does not end in a wildcard, such as ``*.py``, keeps its own ending.
    """
    include = tuple(dict.fromkeys(each for pattern in rules.include for each in _with_endings(pattern, endings)))
    steps = [pattern[1:].split("/") for pattern in rules.include]
    if recursive or not any("**" in each for each in steps):
        return replace(rules, include=include)
    depth = max(each.index("**") if "**" in each else len(each) - 1 for each in steps)
    return replace(rules, include=include, exclude=("/" + "*/" * (depth + 1),))


def _with_endings(pattern: str, endings: Sequence[str]) -> list[str]:
    if not endings or not pattern.endswith("*"):
        return [pattern]
    stem = f"{pattern}/*" if pattern.endswith("**") else pattern
    return [stem + ending.removeprefix("*") for ending in endings]


def _joined(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Return patterns that match everything that either set matches; an empty set matches everything."""
    return tuple(dict.fromkeys((*first, *second))) if first and second else ()


def _local_sources(workspace: Workspace) -> dict[Entity, SourceRecord]:
    return {entity: record for entity, record in workspace.sources() if record.is_local}


MAX_SKIPPED_FILES = 100
"""Maximum number of files to list; ``skipped_files_omitted`` counts the others."""


class SkippedFiles:
    """Collects paths and reasons. Files excluded by patterns were not requested, and are not listed."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def add(self, path: str, reason: str) -> None:
        """Record one file; the first reason is kept."""
        if reason != SkipReason.EXCLUDED:
            self._reasons.setdefault(path, str(reason))

    def to_dict(self) -> dict[str, Any]:
        """Return ``{skipped_files: [{path, reason}]}``, or nothing if no file was skipped."""
        if not self._reasons:
            return {}
        listed = [{"path": path, "reason": reason} for path, reason in self._reasons.items()]
        answer: dict[str, Any] = {"skipped_files": listed[:MAX_SKIPPED_FILES]}
        if len(listed) > MAX_SKIPPED_FILES:
            answer["skipped_files_omitted"] = len(listed) - MAX_SKIPPED_FILES
        return answer
