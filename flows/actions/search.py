"""Define the index and search actions: ``search.workspace_*`` and ``search.semantic``.

``arguments`` defines how their arguments are parsed. ``search.workspace_remove`` removes documents from the index only.
It removes each source that equals a given path or is below it. If a source contains the path, the documents there are
removed, and the source's filters exclude them in later runs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from driftline.flows.actions.arguments import (
    Flag,
    Fraction,
    Name,
    Names,
    Query,
    SomeNames,
    parameters,
)
from driftline.flows.actions.registry import Action, Handles, Result, action, bind, close_with
from driftline.flows.actions.semtools import semtools_search
from driftline.flows.actions.sources import WAIT_SECONDS, SkippedFiles
from driftline.flows.runs.remove import remove_documents, remove_source
from driftline.storage.defaults import DEFAULT_MAX_DELETE_FRACTION
from driftline.storage.entities import Entity
from driftline.storage.errors import FingerprintMismatch, SourceNotFound, UsageError, WorkspaceNotFound
from driftline.storage.option_table import spread
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.models import model_of
from driftline.tasks.scanning.overlap import below
from driftline.tasks.scanning.walk import files_named, is_glob, literal
from driftline.tasks.search.request import OPTIONS, SearchRequest

_LIMITS = ("top_k", "max_distance", "n_lines", "min_relevance")
_FIRST = (
    "paths", "top_k", "max_distance", "n_lines", "mode", "min_relevance", "dirs", "globs", "exts", "languages", "kinds",
    "symbols", "tests", "rerank", "branch", "sources", "workspace_name", "strategy", "fallback_threshold", "explain",
)  # fmt: skip
"""Options in the positional order that callers rely on; append new options."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a source to remove: this file or folder, or everything if ``inside`` is ""."""

    entity: Entity
    record: SourceRecord
    inside: str
    documents: tuple[str, ...]


def remove_paths(workspace: Workspace, paths: Sequence[str]) -> int:
    """Remove files, folders, globs and URIs from a workspace, and return how many documents were removed.

    Raises SourceNotFound, before removing anything, for paths that the workspace does not contain; LeaseHeld,
    StorageError.
    """
    names = [file for path in paths for file in (files_named([path]) if is_glob(path) else [path])]
    for name in names:
        if not _parts(workspace, name):
            raise SourceNotFound("The workspace does not contain this path", name, "Check the spelling.")
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
    record = replace(part.record, include=include, commit=None)
    if include == part.record.include:  # its other include patterns would match it again
        record = replace(record, exclude=(*record.exclude, pattern))
    return remove_documents(workspace, part.entity, part.documents, record=record, wait_seconds=WAIT_SECONDS)


@action
def workspace_create(
    state: Any,
    path: Name | None = None,
    workspace: Name | None = None,
    model: Name | None = None,
    handles: Handles | None = None,
) -> Result:
    """Create a workspace if it does not exist: ``{workspace, created}``; ``workspace`` is its location.

    ``path`` and ``workspace`` are aliases. A new workspace uses ``model``.
    """
    handles = handles or Handles()
    named = path if workspace is None else workspace
    if named is None:
        raise UsageError("search.workspace_create needs a path", fix="Pass the workspace's location as path.")
    uri = handles.locate(named)
    if path is not None and handles.locate(path) != uri:
        raise UsageError("path and workspace contradict each other", f"{path}, {workspace}", "Pass only one of them.")
    try:
        _check_model(handles.workspace(uri), model)
    except WorkspaceNotFound:
        bound = model_of(model) if model is not None else None
        created = Workspace.open_for_writing(uri)
        if bound is not None:
            created.bind_model(bound.name, bound.fingerprint, bound.dim)
        return {"workspace": created.objects.uri, "created": True}
    return {"workspace": uri, "created": False}


@action
def workspace_index(
    state: Any,
    workspace: Name,
    paths: SomeNames,
    recursive: Flag = True,
    extensions: Names | None = None,
    dry_run: Flag = False,
    max_delete_fraction: Fraction = DEFAULT_MAX_DELETE_FRACTION,
    model: Name | None = None,
    handles: Handles | None = None,
) -> Result:
    """Update a workspace to the current state of files, folders, globs and bucket URIs.

    Returns ``{indexed, updated, skipped, total_lines}``: the number of new, changed and unchanged documents, and of
    lines in the workspace. ``deleted`` is added if documents were deleted. ``skipped_files`` lists files that were not
    indexed. ``dry_run`` counts without writing.
    """
    from driftline.flows.actions.sources import index_paths

    handles = handles or Handles()
    uri = handles.locate(workspace)
    skipped = SkippedFiles()
    reports = index_paths(
        handles.workspace(uri),
        paths,
        recursive=recursive,
        extensions=extensions,
        dry_run=dry_run,
        max_delete_fraction=max_delete_fraction,
        on_skip=skipped.add,
        model=model,
    )
    counts = [report.to_dict() for report in reports]
    deleted = sum(count["deleted"] for count in counts)
    return {
        "indexed": sum(count["new"] for count in counts),
        "updated": sum(count["changed"] for count in counts),
        "skipped": sum(count["unchanged"] + count["touched"] for count in counts),
        "total_lines": handles.workspace(uri).stats().total_lines,
        **({"deleted": deleted} if deleted else {}),
        **skipped.to_dict(),
    }


@action
@spread("given", parameters(OPTIONS.offered_in("action"), *_FIRST))
def workspace_search(
    state: Any,
    workspace: Name,
    query: Query | None = None,
    *,
    given: dict[str, Any],
    handles: Handles | None = None,
) -> Result:
    """Search a workspace: ``{query, results}`` like ``driftline search --json``.

    With ``regex`` or ``fixed``, ``query`` may be omitted. If there are no results, ``notes`` and the ``nearest`` line
    are added. Defaults come from ``[search]`` in ``driftline.toml``. ``explain`` adds an ``explanation``.
    """
    from driftline.flows.actions.sources import filter_for
    from driftline.flows.search import search, search_request

    options = OPTIONS.given_by("argument", given)
    if query is None and not {"regex", "fixed"} & options.keys():
        raise UsageError("query is missing or blank", fix="Pass words in query, or exact text in fixed or regex.")
    opened = (handles := handles or Handles()).workspace(handles.locate(workspace))
    paths = options.pop("paths", None)
    also = () if paths is None else (filter_for(opened, paths),)
    request = search_request(query or "", options, also=also, on_this_machine=True)
    return {"results": [], **search(opened, request).to_dict()}


@action
def workspace_stats(state: Any, workspace: Name, handles: Handles | None = None) -> Result:
    """Return workspace statistics: ``{total_documents, total_lines, has_index, index_type}``."""
    handles = handles or Handles()
    stats = handles.workspace(handles.locate(workspace)).stats()
    return {
        "total_documents": stats.total_documents,
        "total_lines": stats.total_lines,
        "has_index": stats.has_index,
        "index_type": stats.index_type,
    }


@action
def workspace_remove(state: Any, workspace: Name, paths: SomeNames, handles: Handles | None = None) -> Result:
    """Remove files, folders, globs and URIs from a workspace: ``{removed, total_documents, total_lines}``."""

    handles = handles or Handles()
    uri = handles.locate(workspace)
    removed = remove_paths(handles.workspace(uri), paths)
    stats = handles.workspace(uri).stats()
    return {"removed": removed, "total_documents": stats.total_documents, "total_lines": stats.total_lines}


@action
@spread("given", parameters(OPTIONS.offered_in("action", *_LIMITS), *_LIMITS))
def semantic(
    state: Any,
    query: Query,
    files: SomeNames,
    workspace: Name | None = None,
    *,
    given: dict[str, Any],
    model: Name | None = None,
    handles: Handles | None = None,
) -> Result:
    """Search files: ``{results, query}``.

    Files that are unchanged since ``workspace`` indexed them are searched there, which saves embedding them; all others
    are embedded in memory. Nothing is written.
    """
    from driftline.tasks.search.unindexed import grep, read_texts, search_files

    handles = handles or Handles()
    skipped = SkippedFiles()
    request = SearchRequest.of(query, OPTIONS.given_by("argument", given))
    embedder = partial(handles.embedder, model)
    if workspace is None:
        report = grep(request, read_texts(files, on_skip=skipped.add), embedder())
    else:
        opened = handles.workspace(handles.locate(workspace))
        _check_model(opened, model)
        report = search_files(opened, request, files, embedder, on_skip=skipped.add)
    return {"results": [], **report.to_dict(), **skipped.to_dict()}


def _check_model(workspace: Workspace, model: str | None) -> None:
    """Raise FingerprintMismatch if the workspace was embedded with another model than ``model``; None accepts any."""
    current = workspace.config.fingerprint
    if model is None or current is None or model_of(model).fingerprint == current:
        return
    what = f"This workspace was embedded with {workspace.config.model}, not with {model}"
    raise FingerprintMismatch(what, workspace.objects.uri, "Omit the model, or use another workspace.")


ACTIONS: Mapping[str, Action] = {
    "search.workspace_create": workspace_create,
    "search.workspace_index": workspace_index,
    "search.workspace_search": workspace_search,
    "search.workspace_stats": workspace_stats,
    "search.workspace_remove": workspace_remove,
    "search.semantic": semantic,
    "semtools.search": semtools_search,
}


def register_actions(
    registry: Any,
    engine: Any = None,
    *,
    home: str | None = None,
    only: Collection[str] = frozenset(ACTIONS),
    replace: bool = False,
) -> None:
    """Register this group's actions, or only those in ``only``; see ``driftline.flows.actions.register_actions``."""
    handles = Handles(home)
    actions = {name: function for name, function in ACTIONS.items() if name in only}
    bind(registry, actions, engine, replace=replace, handles=handles)
    close_with(engine, handles.close)
