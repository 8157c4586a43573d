"""Driftline: a semantic index of every line in your repositories and buckets, kept in step with what changed.

The first use of a name imports the module that defines it, so that ``driftline --help`` pays for none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_DELETE_FRACTION,
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_N_LINES,
    DEFAULT_TOP_K,
    FALLBACK_THRESHOLD,
)

if TYPE_CHECKING:
    from driftline.flows.client import Client
    from driftline.flows.memory import HierarchicalLTMBackend, create_ltm_backend
    from driftline.flows.output.reports import IndexReport, SourceReport
    from driftline.flows.runs.plan import SourceRequest
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
    from driftline.storage.lines.filters import LineFilter
    from driftline.storage.lines.indexes import IndexScope
    from driftline.storage.lines.queries import Strategy
    from driftline.storage.memory.catalog.entities import EntityRecord
    from driftline.storage.memory.entries import MemoryEntry
    from driftline.storage.memory.listings import Page
    from driftline.storage.memory.search import MemoryHit, MemoryHits
    from driftline.storage.memory.store import MemoryItem, MemoryStore
    from driftline.storage.memory.vectors import MemoryExplanation
    from driftline.storage.model import (
        CURRENT_EMBEDDING_VERSION,
        DocMeta,
        DocumentState,
        Embedder,
        LineEmbedding,
        WorkspaceStats,
    )
    from driftline.storage.workspace.records import SourceRecord, WorkspaceConfig
    from driftline.storage.workspace.workspace import Workspace
    from driftline.tasks.indexing.line_store import LineStore, Store
    from driftline.tasks.search.documents import Document
    from driftline.tasks.search.explanation import Explanation
    from driftline.tasks.search.hits import Excerpt, Hit
    from driftline.tasks.search.query import Mode, SearchReport

    __version__: str

_MODULES: Mapping[str, tuple[str, ...]] = {
    "flows.client": ("Client",),
    "flows.memory": (
        "HierarchicalLTMBackend",
        "create_ltm_backend",
    ),
    "flows.output.reports": (
        "IndexReport",
        "SourceReport",
    ),
    "flows.runs.plan": ("SourceRequest",),
    "storage.entities": (
        "Entity",
        "Hierarchy",
    ),
    "storage.lines.filters": ("LineFilter",),
    "storage.memory.catalog.entities": ("EntityRecord",),
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
    "storage.model": (
        "CURRENT_EMBEDDING_VERSION",
        "DocMeta",
        "DocumentState",
        "Embedder",
        "LineEmbedding",
        "WorkspaceStats",
    ),
    "storage.workspace.records": (
        "SourceRecord",
        "WorkspaceConfig",
    ),
    "storage.workspace.workspace": ("Workspace",),
    "tasks.indexing.line_store": (
        "LineStore",
        "Store",
    ),
    "tasks.search.documents": ("Document",),
    "tasks.search.hits": (
        "Excerpt",
        "Hit",
    ),
    "tasks.search.explanation": ("Explanation",),
    "tasks.search.query": ("SearchReport",),
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
    "SearchReport",
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
    "find",
    "grep",
    "index",
    "open",
    "search",
]


if not TYPE_CHECKING:  # type checkers would take every misspelled name for one that exists

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


def open(
    uri: str, storage_options: Mapping[str, Any] | None = None, sources: Sequence[str] = (), *, cache: bool = False
) -> Workspace:
    """Open the workspace at a path or URI for reading; a plain name, such as ``notes``, is one below DRIFTLINE_HOME.

    A search looks at local sources, and at remote ones at or below the URIs ``sources``, to show lines as they are now:
    what the workspace itself says of its sources contacts nobody. With ``cache``, a workspace in a bucket is opened in
    a copy on this disk, which is brought up to date first and is read-only.

    Raises WorkspaceNotFound, WorkspaceTooNew, CorruptFile, AccessDenied, UnknownScheme, MissingExtra, StorageError.
    """
    from driftline.flows.config.locate import workspace_named
    from driftline.storage.sources.access import SourceAccess
    from driftline.storage.workspace.workspace import Workspace

    opened = Workspace.open(
        workspace_named(uri), storage_options, SourceAccess(tuple(uri.rstrip("/") for uri in sources))
    )
    if not cache:
        return opened
    import logging

    from driftline.flows.config.search_settings import search_arguments
    from driftline.flows.runs.pull import open_copy

    max_bytes = search_arguments({"cache_bytes": None})["cache_bytes"]
    return open_copy(opened, max_bytes=max_bytes, warn=logging.getLogger(__name__).warning)


def index(
    *sources: str | SourceRequest,
    workspace: str,
    entity: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    model: str | None = None,
    executor: str = DEFAULT_EXECUTOR,
    workers: int | None = None,
    full: bool = False,
    dry_run: bool = False,
    max_delete_fraction: float = DEFAULT_MAX_DELETE_FRACTION,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    rebind: bool = False,
    reembed: bool = False,
    wait_seconds: float = 0.0,
    indexes: IndexScope = "all",
    storage_options: Mapping[str, Any] | None = None,
    keep_going: bool = False,
    by_commit: bool = False,
    branch: str | None = None,
    build: int | None = None,
    deep: bool | str | None = None,
) -> IndexReport:
    """Bring the index in step with ``sources``: folders, git work trees and bucket URIs.

    The workspace is created if it does not exist. The keywords are the options of ``driftline index``:
    ``wait_seconds`` is ``--wait``, ``by_commit`` is ``--ci``. With ``keep_going`` the report holds the failures of
    single sources instead of raising the first one. ``entity``, ``include`` and ``exclude`` apply to sources that are
    plain strings; a SourceRequest has its own. With ``branch`` the run brings this branch of each source in step, and
    the main index stays as it is; a run with a lower number of its CI ``build`` than the last one is refused.

    Raises UsageError, AccessDenied, CorruptFile, StaleBuild before anything is written; DeletionRefused, LeaseHeld,
    LeaseLost, StorageError, ExecutorError later. What was committed until then stays, and the next run continues from
    there.
    """
    from driftline.flows.config.locate import workspace_named
    from driftline.flows.runs.index import IndexRequest, index_sources

    request = IndexRequest(
        sources=sources,
        workspace=workspace_named(workspace),
        entity=entity,
        include=tuple(include),
        exclude=tuple(exclude),
        model=model,
        executor=executor,
        workers=workers,
        full=full,
        dry_run=dry_run,
        max_delete_fraction=max_delete_fraction,
        max_file_bytes=max_file_bytes,
        rebind=rebind,
        reembed=reembed,
        wait_seconds=wait_seconds,
        indexes=indexes,
        storage_options=storage_options,
        keep_going=keep_going,
        by_commit=by_commit,
        branch=branch,
        build=build,
        deep=deep,
    )
    return index_sources(request)


def search(
    workspace: Workspace | str,
    query: str,
    *,
    top_k: int = DEFAULT_TOP_K,
    max_distance: float | None = None,
    min_relevance: float | None = None,
    n_lines: int = DEFAULT_N_LINES,
    where: LineFilter | None = None,
    workspace_name: str | None = None,
    mode: Mode = "hybrid",
    strategy: Strategy = "auto",
    fallback_threshold: float = FALLBACK_THRESHOLD,
    explain: bool = False,
    symbols: bool = False,
    kinds: Sequence[str] | None = None,
    tests: bool = True,
    rerank: bool | int = False,
    deep: bool | None = None,
    branch: str | None = None,
) -> SearchReport:
    """Find the windows of lines that answer ``query``, best first.

    ``max_distance`` (1 - cosine, 0 to 2) drops lines that are farther away; ``min_relevance`` (0 to 1) drops those that
    are nearer than a smaller share of random lines, which means the same with every model. ``n_lines`` is the context
    on each side. ``workspace_name`` is a named workspace of ``driftline.toml``, which narrows the search as ``where``
    does. ``mode`` ranks by words and meaning (``hybrid``), by meaning alone (``vector``) or by words alone (``text``).
    ``strategy`` chooses when filters apply; with ``hybrid`` they apply after the vector search where at least the
    share ``fallback_threshold`` of the lines matches. With ``explain`` the report describes what the search did.
    ``symbols`` finds only lines that begin a definition, ``kinds`` only those inside definitions of these kinds
    (function, method, class, section, ...); ``tests=False`` leaves tests out. With ``rerank`` a transformer reads the
    best 10 windows, or as many as it says, and puts them into a better order; that needs the extra ``deep``. With
    ``branch`` the sources that have this branch are searched as it holds them, all others in the main index.

    Raises UsageError, WorkspaceNotFound, ModelNotFound, MissingExtra, FingerprintMismatch, CorruptFile, AccessDenied,
    StorageError.
    """
    from dataclasses import replace

    from driftline.flows.config.locate import on_named_branch
    from driftline.flows.config.search_settings import named_workspace
    from driftline.tasks.search import query as searching

    if workspace_name is not None:
        within, _ = named_workspace(workspace_name)
        where = within if where is None else replace(where, all_of=(*(where.all_of or ()), within))
    return searching.search(
        on_named_branch(open(workspace) if isinstance(workspace, str) else workspace, branch),
        query,
        top_k=top_k,
        max_distance=max_distance,
        min_relevance=min_relevance,
        n_lines=n_lines,
        where=where,
        mode=mode,
        strategy=strategy,
        fallback_threshold=fallback_threshold,
        explain=explain,
        symbols=symbols,
        kinds=kinds,
        tests=tests,
        rerank=rerank,
        deep=deep,
    )


def connect(url: str, token: str | None = None) -> Client:
    """The web server at ``url`` as an object, asked with ``token``, by default $DRIFTLINE_TOKEN. Raises UsageError.

    Nothing is asked yet.
    """
    from driftline.flows.client import Client, Connection

    return Client(Connection.to(url, token))


def find(
    workspace: Workspace | str,
    query: str = "",
    *,
    fixed: Sequence[str] = (),
    regex: Sequence[str] = (),
    ignore_case: bool | None = None,
    whole_words: bool = False,
    top_k: int | None = None,
    n_lines: int | None = None,
    where: LineFilter | None = None,
    tests: bool = True,
    count: bool = False,
    files: bool = False,
    branch: str | None = None,
) -> SearchReport:
    """Find the lines that hold exact text, by importance of their files, path and line; other words of a query rank.

    Args:
        workspace: A workspace, or the path or URI of one.
        query: Words and exact terms in the language of ``driftline search``, such as ``"a phrase" /regex/ lang:go``.
        fixed: Texts that a document must hold as they stand.
        regex: Regular expressions in RE2's syntax, each of which a line of a document must match.
        ignore_case: Whether case counts; by default, it does where a text or expression has a capital.
        whole_words: Whether a match must not touch other letters, digits or underscores.
        top_k: The most lines to return, by default 100; the report's ``exact`` tells whether these are all.
        n_lines: Lines of context on each side, by default none.
        where: A filter of documents.
        tests: Whether to search tests.
        count: Count all lines and return none.
        files: Return only the first line of each document.
        branch: The branch to search of the sources that have it.

    Raises:
        UsageError: A query or expression that is wrong, with the place.
        NotIndexed: A branch that is not there, or an index without exact text.
        DriftlineError: As ``search``.
    """
    from driftline.flows.config.locate import on_named_branch
    from driftline.tasks.search.language import ask, parse

    question = parse(query, fixed=fixed, regex=regex, ignore_case=ignore_case, whole_words=whole_words)
    opened = on_named_branch(open(workspace) if isinstance(workspace, str) else workspace, branch or question.branch)
    limits: dict[str, Any] = {"top_k": top_k, "n_lines": n_lines, "tests": tests}
    return ask(opened, question, where=where, count=count, files=files, **limits)


def grep(
    query: str,
    *files: str,
    model: str | None = None,
    top_k: int = DEFAULT_TOP_K,
    max_distance: float | None = None,
    min_relevance: float | None = None,
    n_lines: int = DEFAULT_N_LINES,
    ignore_case: bool = False,
) -> SearchReport:
    """Search files, folders and globs by meaning without a workspace, best window first.

    ``model`` is a model2vec directory or name, by default the one that is installed with Driftline.
    Raises UsageError, SourceNotFound, ModelNotFound, AccessDenied, StorageError.
    """
    from driftline.tasks.search.grep import grep as search_texts
    from driftline.tasks.search.grep import open_embedder, read_texts

    return search_texts(
        query,
        read_texts(files),
        open_embedder(model),
        top_k=top_k,
        max_distance=max_distance,
        min_relevance=min_relevance,
        n_lines=n_lines,
        ignore_case=ignore_case,
    )


@overload
def analyze_document_states(
    paths: Sequence[str], workspace: Workspace | str | None = None
) -> list[tuple[str, DocumentState]]: ...


@overload
def analyze_document_states(
    paths: Workspace | str, workspace: str, documents: Sequence[str]
) -> list[tuple[str, DocumentState]]: ...


def analyze_document_states(
    paths: Sequence[str] | Workspace | str,
    workspace: Workspace | str | None = None,
    documents: Sequence[str] | None = None,
) -> list[tuple[str, DocumentState]]:
    """The ``(path, state)`` of local files compared with what was indexed, in the order given.

    ``workspace`` defaults to the one that a command in the current folder would use. With three arguments, workspace,
    source and paths, the paths are relative to the source, and those that are neither documents nor files that would
    become documents are left out. Raises WorkspaceNotFound, BadEntity, UsageError, SourceNotFound.
    """
    from driftline.tasks.scanning.states import analyze_document_states as analyze
    from driftline.tasks.scanning.states import states_of_files

    if documents is not None:
        opened = open(paths) if isinstance(paths, str) else cast("Workspace", paths)
        return analyze(opened, str(workspace), documents)
    if workspace is None:
        from driftline.flows.config.locate import workspace_for_reading

        workspace = workspace_for_reading(None)
    return states_of_files(open(workspace) if isinstance(workspace, str) else workspace, cast("Sequence[str]", paths))
