"""Driftline: a semantic index of every line in your repositories and buckets, kept in step with what changed.

Names are imported at their first use, so that ``driftline --help`` pays for none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftline.flows.memory.dict_backend import HierarchicalLTMBackend
    from driftline.flows.output.reports import IndexReport
    from driftline.storage.errors import DriftlineError
    from driftline.storage.lines.queries import LineFilter
    from driftline.storage.memory.reader import MemoryEntry
    from driftline.storage.memory.store import MemoryItem, MemoryStore
    from driftline.storage.model import (
        CURRENT_EMBEDDING_VERSION,
        DocMeta,
        DocumentState,
        LineEmbedding,
        WorkspaceStats,
    )
    from driftline.storage.workspace.records import WorkspaceConfig
    from driftline.storage.workspace.workspace import Workspace
    from driftline.tasks.indexing.line_store import LineStore
    from driftline.tasks.search.query import SearchReport

_HOME = {
    "CURRENT_EMBEDDING_VERSION": "driftline.storage.model",
    "DocMeta": "driftline.storage.model",
    "DocumentState": "driftline.storage.model",
    "DriftlineError": "driftline.storage.errors",
    "LineEmbedding": "driftline.storage.model",
    "LineFilter": "driftline.storage.lines.queries",
    "LineStore": "driftline.tasks.indexing.line_store",
    "MemoryEntry": "driftline.storage.memory.reader",
    "MemoryItem": "driftline.storage.memory.store",
    "MemoryStore": "driftline.storage.memory.store",
    "Workspace": "driftline.storage.workspace.workspace",
    "WorkspaceConfig": "driftline.storage.workspace.workspace",
    "WorkspaceStats": "driftline.storage.model",
}

__all__ = [
    "CURRENT_EMBEDDING_VERSION",
    "DocMeta",
    "DocumentState",
    "DriftlineError",
    "LineEmbedding",
    "LineFilter",
    "LineStore",
    "MemoryEntry",
    "MemoryItem",
    "MemoryStore",
    "Workspace",
    "WorkspaceConfig",
    "WorkspaceStats",
    "analyze_document_states",
    "create_ltm_backend",
    "grep",
    "index",
    "open",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def open(uri: str, storage_options: Mapping[str, Any] | None = None) -> Workspace:
    """Open the workspace at a path or URI for reading; see ``Workspace`` for what it offers."""
    from driftline.storage.workspace.workspace import Workspace

    return Workspace.open(uri, storage_options)


def index(
    *sources: str, workspace: str, storage_options: Mapping[str, Any] | None = None, **options: Any
) -> IndexReport:
    """Bring the index in step with ``sources``; ``options`` are those of ``flows.plan.IndexRequest``."""
    from driftline.flows.runs.index_run import IndexRequest, index_sources

    return index_sources(IndexRequest(sources=sources, workspace=workspace, storage_options=storage_options, **options))


def search(workspace: Workspace | str, query: str, *, where: LineFilter | None = None, **options: Any) -> SearchReport:
    """The windows of lines nearest to ``query``; ``options`` are those of ``tasks.search.search``."""
    from driftline.tasks.search import query as searching

    opened = open(workspace) if isinstance(workspace, str) else workspace
    return searching.search(opened, query, where=where, **options)


def grep(query: str, *files: str, model: str | None = None, **options: Any) -> SearchReport:
    """Search files, folders and globs without a workspace; ``options`` are those of ``tasks.grep.grep``."""
    from driftline.tasks.search.grep import grep as search_texts
    from driftline.tasks.search.grep import open_embedder, read_texts

    return search_texts(query, read_texts(files), open_embedder(model), **options)


def create_ltm_backend(backend: str = "hierarchical", **options: Any) -> HierarchicalLTMBackend:
    """A memory store whose methods return dictionaries; ``options`` are those of ``flows.ltm.create_ltm_backend``."""
    from driftline.flows.memory.dict_backend import create_ltm_backend as create

    return create(backend, **options)


def analyze_document_states(
    workspace: Workspace | str, entity: str, paths: Sequence[str]
) -> list[tuple[str, DocumentState]]:
    """What has become of these documents of a source since they were indexed, in the order given."""
    from driftline.tasks.scanning.states import analyze_document_states as analyze

    return analyze(open(workspace) if isinstance(workspace, str) else workspace, entity, paths)
