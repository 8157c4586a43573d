"""Driftline: a semantic index of every line in your repositories and buckets, kept up to date.

Public names are imported on first use, so ``driftline --help`` does not load them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftline.flows.client import Client
    from driftline.flows.memory_backend import HierarchicalLTMBackend, create_ltm_backend
    from driftline.flows.output.run_reports import IndexReport, SourceReport
    from driftline.flows.python_api import (
        Workspace,
        analyze_document_states,
        connect,
        grep,
        index,
        open,
        search,
        sql,
    )
    from driftline.flows.runs.plan import SourceRequest
    from driftline.storage.documents import DocumentState
    from driftline.storage.embedding import CURRENT_EMBEDDING_VERSION, Embedder
    from driftline.storage.entities import Entity, Hierarchy
    from driftline.storage.errors import (
        AccessDenied,
        AlreadyExists,
        BadEntity,
        BadEntry,
        CatalogConnectionError,
        CatalogError,
        CatalogMismatch,
        CatalogMissing,
        CleanupAborted,
        CommitConflict,
        CorruptFile,
        DeletionRefused,
        DeploymentFailed,
        DriftlineError,
        ExecutorError,
        FingerprintMismatch,
        LeaseHeld,
        LeaseLost,
        MissingExtra,
        ModelNotFound,
        NotIndexed,
        ObjectNotFound,
        OutOfMemory,
        PreconditionFailed,
        RecallTooLow,
        SourceConflict,
        SourceNotFound,
        StaleBuild,
        StaleIndex,
        StorageError,
        StoreClosed,
        UnknownScheme,
        UnsafeStore,
        UsageError,
        WorkspaceNotFound,
        WorkspaceTooNew,
    )
    from driftline.storage.lines.line_filter import LineFilter
    from driftline.storage.memory.catalog.entity_tree import EntityRecord
    from driftline.storage.memory.entries import MemoryEntry
    from driftline.storage.memory.listings import Page
    from driftline.storage.memory.search import MemoryHit, MemoryHits
    from driftline.storage.memory.store import MemoryItem, MemoryStore
    from driftline.storage.memory.vectors import MemoryExplanation
    from driftline.storage.workspace.records import SourceRecord, WorkspaceConfig, WorkspaceStats
    from driftline.tasks.indexing.line_store import DocMeta, LineEmbedding, LineStore, Store
    from driftline.tasks.search.documents import Document, Excerpt
    from driftline.tasks.search.hits import Hit
    from driftline.tasks.search.request import Explanation, SearchFilter, SearchRequest
    from driftline.tasks.search.search import SearchReport

    __version__: str

_MODULES: Mapping[str, tuple[str, ...]] = {
    "flows.client": ("Client",),
    "flows.memory_backend": (
        "HierarchicalLTMBackend",
        "create_ltm_backend",
    ),
    "flows.output.run_reports": (
        "IndexReport",
        "SourceReport",
    ),
    "flows.runs.plan": ("SourceRequest",),
    "flows.python_api": (
        "Workspace",
        "analyze_document_states",
        "connect",
        "grep",
        "index",
        "open",
        "search",
        "sql",
    ),
    "storage.entities": (
        "Entity",
        "Hierarchy",
    ),
    "storage.lines.line_filter": ("LineFilter",),
    "storage.memory.catalog.entity_tree": ("EntityRecord",),
    "storage.memory.listings": ("Page",),
    "storage.memory.entries": ("MemoryEntry",),
    "storage.memory.search": (
        "MemoryHit",
        "MemoryHits",
    ),
    "storage.memory.vectors": ("MemoryExplanation",),
    "storage.memory.store": (
        "MemoryItem",
        "MemoryStore",
    ),
    "storage.documents": ("DocumentState",),
    "storage.embedding": ("CURRENT_EMBEDDING_VERSION", "Embedder"),
    "storage.workspace.records": (
        "SourceRecord",
        "WorkspaceConfig",
        "WorkspaceStats",
    ),
    "tasks.indexing.line_store": (
        "DocMeta",
        "LineEmbedding",
        "LineStore",
        "Store",
    ),
    "tasks.search.documents": ("Document", "Excerpt"),
    "tasks.search.hits": ("Hit",),
    "tasks.search.search": ("SearchReport",),
    "tasks.search.request": (
        "Explanation",
        "SearchFilter",
        "SearchRequest",
    ),
}
"""The public names and the modules that define them; every other public name is an error of ``_ERRORS``."""
_ERRORS = "storage.errors"

__all__ = [
    "CURRENT_EMBEDDING_VERSION",
    "AccessDenied",
    "AlreadyExists",
    "BadEntity",
    "BadEntry",
    "CatalogConnectionError",
    "CatalogError",
    "CatalogMismatch",
    "CatalogMissing",
    "CleanupAborted",
    "Client",
    "CommitConflict",
    "CorruptFile",
    "DeletionRefused",
    "DeploymentFailed",
    "DocMeta",
    "Document",
    "DocumentState",
    "DriftlineError",
    "Embedder",
    "Entity",
    "EntityRecord",
    "Excerpt",
    "ExecutorError",
    "Explanation",
    "FingerprintMismatch",
    "HierarchicalLTMBackend",
    "Hierarchy",
    "Hit",
    "IndexReport",
    "LeaseHeld",
    "LeaseLost",
    "LineEmbedding",
    "LineFilter",
    "LineStore",
    "MemoryEntry",
    "MemoryExplanation",
    "MemoryHit",
    "MemoryHits",
    "MemoryItem",
    "MemoryStore",
    "MissingExtra",
    "ModelNotFound",
    "NotIndexed",
    "ObjectNotFound",
    "OutOfMemory",
    "Page",
    "PreconditionFailed",
    "RecallTooLow",
    "SearchFilter",
    "SearchReport",
    "SearchRequest",
    "SourceConflict",
    "SourceNotFound",
    "SourceRecord",
    "SourceReport",
    "SourceRequest",
    "StaleBuild",
    "StaleIndex",
    "StorageError",
    "Store",
    "StoreClosed",
    "UnknownScheme",
    "UnsafeStore",
    "UsageError",
    "Workspace",
    "WorkspaceConfig",
    "WorkspaceNotFound",
    "WorkspaceStats",
    "WorkspaceTooNew",
    "__version__",
    "analyze_document_states",
    "connect",
    "create_ltm_backend",
    "grep",
    "index",
    "open",
    "search",
    "sql",
]


if not TYPE_CHECKING:  # otherwise, type checkers would accept any misspelled name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "__version__":
            from importlib.metadata import version

            value = version("driftline")
        else:
            module = next((module for module, names in _MODULES.items() if name in names), _ERRORS)
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
