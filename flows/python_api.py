"""Open, index and search a workspace from Python, or query its server."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, overload

from driftline.flows.client import TIMEOUT_SECONDS, Client, Connection, ReadOnlyWorkspace
from driftline.flows.config.index_request import OPTIONS, IndexOptions, IndexRequest
from driftline.storage.defaults import DEFAULT_N_LINES, DEFAULT_REDACTION, DEFAULT_SQL_SECONDS, DEFAULT_TOP_K, Redaction
from driftline.storage.option_table import called_with, from_keywords, listed, path_or_uri
from driftline.tasks.search.request import SearchRequest

if TYPE_CHECKING:
    import ssl

    import pyarrow as pa

    from driftline.flows.output.run_reports import IndexReport
    from driftline.flows.runs.branches import BranchReport
    from driftline.flows.runs.verify_and_repair import VerifyReport
    from driftline.storage.documents import DocumentState
    from driftline.storage.workspace.records import RunRecord, WorkspaceStats
    from driftline.storage.workspace.workspace import Workspace as StoredWorkspace
    from driftline.tasks.indexing.line_store import LineStore
    from driftline.tasks.search.documents import Document, Excerpt
    from driftline.tasks.search.hits import SearchReport

    Searchable: TypeAlias = "Workspace | StoredWorkspace | LineStore | str | os.PathLike[str]"


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _several_sources(index: Callable[_P, _R]) -> Callable[_P, _R]:
    """Also accept sources as several positional arguments, if the workspace is not among them."""

    @functools.wraps(index)
    def call(*args: Any, **kwargs: Any) -> Any:
        at = int(bool(args) and isinstance(args[0], Workspace))
        owner, sources = args[:at], args[at:]
        if len(sources) > 1 and (owner or "workspace" in kwargs):
            args = (*owner, list(sources))
        return index(*args, **kwargs)

    return call


class Workspace(ReadOnlyWorkspace):
    """An open index in a folder or bucket, returned by ``driftline.open``: search, update and inspect it.

    ``storage`` is internal.

    Examples:
        >>> ws = driftline.open(location)
        >>> ws.status().total_documents
        1
        >>> [(hit.path, hit.line) for hit in ws.search("who renews the lease", top_k=1)]
        [('notes.md', 1)]
    """

    __slots__ = ("storage",)

    def __init__(self, storage: StoredWorkspace) -> None:
        self.storage = storage

    @property
    def uri(self) -> str:
        return self.storage.objects.uri

    def _search(self, request: SearchRequest) -> SearchReport:
        return _find(self.storage, request)

    @_several_sources
    @from_keywords(IndexOptions)
    def index(self, options: IndexOptions) -> IndexReport:
        """Update the index to the current state of sources, and reopen it.

        Args:
            options: the sources, and the other arguments of ``driftline.index``.

        Returns:
            The run's results for each source.

        Raises:
            DriftlineError: The errors of ``driftline.index``.

        Examples:
            >>> report = ws.index(tree)
            >>> [source.lines_total for source in report.sources]
            [1]
        """
        from driftline.flows.runs.index import index_sources

        if options.storage_options is None:
            options = replace(options, storage_options=self.storage.objects.storage_options)
        report = index_sources(IndexRequest.of(self.uri, options))
        self.storage = self.storage.reread()
        return report

    def status(self) -> WorkspaceStats:
        return self.storage.stats()

    def branches(self) -> list[BranchReport]:
        from driftline.flows.runs.branches import list_branches

        return list_branches(self.storage)

    def runs(self, limit: int = 20) -> list[RunRecord]:
        from driftline.flows.output.report_page import newest_runs

        return newest_runs(self.storage, limit)

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Check that tables, manifests, indexes and memory agree.

        Args:
            repair: remove inconsistent documents from the index and reindex them.

        Returns:
            The number of checked documents and lines, and the findings.

        Raises:
            DriftlineError: CatalogMismatch, CatalogError, StorageError.

        Examples:
            >>> list(ws.verify().findings)
            []
        """
        from driftline.flows.runs.verify_and_repair import VerifyRequest, verify_workspace

        return verify_workspace(VerifyRequest(self.uri, repair, self.storage.objects.storage_options))

    def excerpt(self, source: str, path: str, line: int, *, n_lines: int = 20, branch: str | None = None) -> Excerpt:
        from driftline.flows.config.which_workspace import on_named_branch
        from driftline.tasks.search.documents import read_excerpt

        return read_excerpt(on_named_branch(self.storage, branch), path, line, n_lines=n_lines, source=source)

    def documents(
        self, *, sources: Sequence[str] = (), dirs: Sequence[str] = (), exts: Sequence[str] = ()
    ) -> Iterator[Document]:
        from driftline.tasks.search.documents import document_page
        from driftline.tasks.search.filters import parse_entity

        named, below, endings = listed("sources", sources), listed("dirs", dirs) or (), listed("exts", exts) or ()
        entities = [parse_entity(each, self.storage.config.hierarchy) for each in named or ()] or None
        after = None
        while True:
            page = document_page(self.storage, entities, below, endings, limit=1_000, after=after)
            yield from page.documents
            if (after := page.next) is None:
                return

    def _search_memory(self, query: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        from driftline.flows.config.memory_settings import memory_of
        from driftline.flows.memory_backend import hits_to_dict
        from driftline.flows.served_memory import search_memory

        options = dict(given)
        scope = options.pop("entity")
        found = search_memory(self.storage, memory_of(self.uri), None, query, scope=scope, **options)
        return list(hits_to_dict(found)["results"])

    def sql(
        self,
        query: str,
        parameters: Sequence[Any] = (),
        *,
        within: str | None = None,
        branch: str | None = None,
        timeout_seconds: float = DEFAULT_SQL_SECONDS,
    ) -> pa.Table:
        return sql(self, query, parameters, within=within, branch=branch, timeout_seconds=timeout_seconds)


def open(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    sources: Sequence[str] = (),
    *,
    cache: bool = False,
) -> Workspace:
    """Open the workspace at a path or URI for reading; ``@notes`` is the workspace called ``notes`` in DRIFTLINE_HOME.

    To show current lines, searches read local sources, and remote sources at or below the URIs in ``sources``; source
    records in the workspace do not authorize such reads. With ``cache``, a bucket's workspace is first synced to a
    read-only local copy.

    Args:
        uri: a path, a URI or ``@name``.
        storage_options: the bucket's keys and endpoints.
        sources: URIs under which remote sources may be read.
        cache: whether to read a bucket through a local copy.

    Returns:
        The workspace.

    Raises:
        DriftlineError: WorkspaceNotFound, WorkspaceTooNew, CorruptFile, AccessDenied, UnknownScheme, MissingExtra,
            StorageError.

    Examples:
        >>> driftline.open(location).status().total_documents
        1
    """
    from driftline.flows.config.workspace_names import absolute_workspace
    from driftline.storage.sources.access import SourceAccess
    from driftline.storage.workspace.workspace import Workspace as StoredWorkspace

    location = absolute_workspace(uri)
    access = SourceAccess(tuple(uri.rstrip("/") for uri in listed("sources", sources) or ()))
    if not cache:
        return Workspace(StoredWorkspace.open(location, storage_options, access))
    from driftline.flows.config.which_workspace import cache_settings
    from driftline.flows.runs.pull import open_copy

    max_bytes, warn = cache_settings(cache)[1], logging.getLogger(__name__).warning
    return Workspace(open_copy(location, storage_options, access, max_bytes=max_bytes, warn=warn))


@_several_sources
@called_with(IndexRequest, OPTIONS.values())
def index(request: IndexRequest) -> IndexReport:
    """Update the index to the current state of sources.

    The workspace is created if it does not exist. Call it with the fields of ``IndexRequest``:
    ``index("src", workspace="ws", exclude=["*.lock"])``.

    Args:
        request: the fields as keyword arguments. ``sources`` is a folder, a git working tree or a bucket URI, a
            ``SourceRequest``, or a list of them; ``workspace`` is a path, a URI or ``@name``. The other fields are the
            options of ``driftline index``.

    Returns:
        The run's results for each source.

    Raises:
        DriftlineError: UsageError, AccessDenied, CorruptFile, StaleBuild before anything is written; later
            DeletionRefused, LeaseHeld, LeaseLost, StorageError, ExecutorError. Committed batches are kept, and the next
            run continues from there.

    Examples:
        >>> report = driftline.index(tree, workspace=location)
        >>> [(source.entity, source.lines_embedded) for source in report.sources]
        [('org:default/project:default/source:tree', 0)]
    """
    from driftline.flows.config.workspace_names import absolute_workspace
    from driftline.flows.runs.index import index_sources

    return index_sources(replace(request, workspace=absolute_workspace(request.workspace)))


@from_keywords(SearchRequest)
def search(workspace: Searchable, request: SearchRequest) -> SearchReport:
    """Find the windows of lines that match a query best.

    Call it with the fields of ``SearchRequest``: ``search(workspace, "query", top_k=3, exts=["py"])``.

    Args:
        workspace: the result of ``driftline.open``, or a path, a URI or ``@name``.
        request: the fields as keyword arguments. ``max_distance`` (1 - cosine, 0 to 2) drops more distant lines.
            ``min_relevance`` (0 to 1) drops less relevant lines: relevance is the fraction of random line pairs that
            are more distant, so it is comparable across models. ``n_lines`` is the context on each side. ``mode``
            is ``hybrid`` (text and vector ranking), ``vector`` (embedding similarity) or ``text`` (words). Filters are
            combined with AND; ``where`` is a ``LineFilter``, and ``workspace_name`` is a view in ``driftline.toml``.
            ``strategy`` selects when filters apply. ``rerank`` reranks the best 10 windows, or the given number, with a
            transformer. With ``branch``, sources that have this branch are searched as of the branch. With ``explain``,
            the report describes the search. ``fixed`` strings and ``regex`` patterns restrict the search to matching
            lines in files that match all of them, and the query's words rank these lines; the query itself may contain
            such terms (``"a phrase" /regex/ def:Name lang:go``). A query with only filters lists files. The report's
            ``exact`` tells whether more lines match than the ``top_k`` returned.

    Returns:
        A report that iterates over its hits.

    Raises:
        DriftlineError: UsageError, WorkspaceNotFound, ModelNotFound, MissingExtra, FingerprintMismatch, CorruptFile,
            AccessDenied, StorageError.

    Examples:
        >>> [hit.text for hit in driftline.search(location, "lease", top_k=1)]
        ['the holder renews the lease']
    """
    return _find(_stored(workspace), request)


def _find(stored: StoredWorkspace, request: SearchRequest) -> SearchReport:
    from driftline.flows.search import resolved
    from driftline.tasks.search.search import search as search_workspace

    return search_workspace(*resolved(stored, request))


def _stored(workspace: Searchable) -> StoredWorkspace:
    from driftline.storage.workspace.workspace import Workspace as StoredWorkspace

    if isinstance(workspace, Workspace):
        return workspace.storage
    # A LineStore is not checked by type: its module is slow to import.
    held: Any = getattr(workspace, "workspace", workspace)
    return held if isinstance(held, StoredWorkspace) else open(held).storage


def sql(
    workspace: Searchable,
    query: str,
    parameters: Sequence[Any] = (),
    *,
    within: str | None = None,
    branch: str | None = None,
    timeout_seconds: float = DEFAULT_SQL_SECONDS,
) -> pa.Table:
    """Run one SELECT over a workspace's views, and return the rows as an Arrow table.

    The query is read-only and can access only the workspace. It needs DuckDB, which is installed with Driftline.

    Args:
        workspace: the result of ``driftline.open``, or a path, a URI or ``@name``.
        query: a SELECT, or ``SHOW TABLES``, which lists the views.
        parameters: the values for each ``?`` in the query.
        within: show only data at or below this entity, such as ``org:acme``.
        branch: show documents and lines as of this branch.
        timeout_seconds: interrupt the query after this time.

    Returns:
        The rows.

    Raises:
        DriftlineError: UsageError, WorkspaceNotFound, OutOfMemory, CorruptFile, AccessDenied, StorageError.

    Examples:
        >>> driftline.sql(location, "SELECT path, lines FROM documents").to_pylist()
        [{'path': 'notes.md', 'lines': 1}]
    """
    from driftline.flows.config.which_workspace import boundary_in, on_named_branch
    from driftline.flows.search import searches_table
    from driftline.storage.sql_process import query as run

    opened = _stored(workspace)
    boundary = None if within is None else boundary_in(opened, within)
    there, journal = on_named_branch(opened, branch, boundary), searches_table(opened)
    with run(there, query, parameters or (), within=boundary, searches=journal, max_seconds=timeout_seconds) as result:
        return result.table()


def connect(
    url: str,
    token: str | None = None,
    *,
    timeout: float = TIMEOUT_SECONDS,
    verify: ssl.SSLContext | str | os.PathLike[str] | None = None,
) -> Client:
    """Return a client of a web server. Sends no request yet.

    Args:
        url: the URL of ``driftline web``.
        token: a token for the server (default: $DRIFTLINE_TOKEN).
        timeout: limit for each network operation, in seconds.
        verify: an ``ssl.SSLContext``, or a file of certificates to trust instead of the system's.

    Returns:
        A client, which keeps its connections open until it is closed.

    Raises:
        UsageError: If the URL is not a valid server URL, or the certificates cannot be read.

    Examples:
        >>> driftline.connect("http://127.0.0.1:8030", timeout=5).uri
        'http://127.0.0.1:8030'
    """
    return Client(Connection.to(url, token, timeout=timeout, verify=verify))


def grep(
    query: str,
    *files: str | os.PathLike[str],
    model: str | None = None,
    top_k: int = DEFAULT_TOP_K,
    max_distance: float | None = None,
    min_relevance: float | None = None,
    n_lines: int = DEFAULT_N_LINES,
    ignore_case: bool = False,
    redact: Redaction = DEFAULT_REDACTION,
) -> SearchReport:
    """Search files, folders and globs semantically without a workspace, best window first.

    Args:
        query: what to look for.
        files: files, folders or globs.
        model: a model2vec directory or name (default: the model installed with Driftline).
        top_k: the maximum number of results.
        max_distance: drop more distant lines (1 - cosine, 0 to 2).
        min_relevance: drop less relevant lines (0 to 1, the fraction of random line pairs that are more distant).
        n_lines: lines of context on each side.
        ignore_case: ignore case.
        redact: which credentials in the text to redact.

    Returns:
        A report that iterates over its hits.

    Raises:
        DriftlineError: UsageError, SourceNotFound, ModelNotFound, AccessDenied, StorageError.

    Examples:
        >>> [hit.line for hit in driftline.grep("lease", tree, top_k=1)]
        [1]
    """
    from driftline.tasks.search.unindexed import grep as search_texts
    from driftline.tasks.search.unindexed import open_embedder, read_texts

    request = SearchRequest(query, top_k=top_k, max_distance=max_distance, min_relevance=min_relevance, n_lines=n_lines)
    texts = read_texts([path_or_uri("A file", each) for each in files], redaction=lambda _: redact)
    return search_texts(request, texts, open_embedder(model), ignore_case=ignore_case)


@overload
def analyze_document_states(
    paths: Iterable[str | os.PathLike[str]], workspace: Searchable | None = None
) -> list[tuple[str, DocumentState]]: ...


@overload
def analyze_document_states(
    paths: Iterable[str | os.PathLike[str]], *, store: Searchable
) -> list[tuple[str, DocumentState]]: ...


@overload
def analyze_document_states(
    paths: Searchable, workspace: str, documents: Sequence[str]
) -> list[tuple[str, DocumentState]]: ...


def analyze_document_states(
    paths: Any,
    workspace: Any = None,
    documents: Sequence[str] | None = None,
    *,
    store: Any = None,
) -> list[tuple[str, DocumentState]]:
    """Compare local files with the index, and return their states in the given order.

    Without ``documents``, the arguments are the files and the workspace; with ``documents``, they are the workspace and
    the source.

    Args:
        paths: the files, or the workspace.
        workspace: the workspace (default: the workspace that commands in the current folder use), or the source. A
            ``LineStore`` also compares the files with the metadata that its documents were stored with.
        documents: paths relative to the source. The result omits paths that are neither documents nor files to index.
        store: the same as ``workspace``.

    Returns:
        ``(path, state)`` pairs.

    Raises:
        DriftlineError: WorkspaceNotFound, BadEntity, UsageError, SourceNotFound.

    Examples:
        >>> driftline.analyze_document_states(location, "source:tree", ["notes.md"])
        [('notes.md', <DocumentState.UNCHANGED: 'unchanged'>)]
    """
    from driftline.storage.errors import UsageError
    from driftline.tasks.indexing.line_store import LineStore, states_of_stored
    from driftline.tasks.scanning.scan import analyze_document_states as analyze
    from driftline.tasks.scanning.scan import states_of_files

    if store is not None and workspace is not None:
        raise UsageError("Pass either workspace or store")
    workspace = store if workspace is None else workspace
    if documents is not None:
        return analyze(_stored(paths), str(workspace), listed("documents", documents) or ())
    if workspace is None:
        from driftline.flows.config.which_workspace import workspace_for_reading

        workspace = workspace_for_reading(None)
    named = [os.path.expanduser(path_or_uri("A path", each)) for each in listed("paths", paths) or ()]
    known = states_of_stored(workspace, named) if isinstance(workspace, LineStore) else {}
    others = dict(states_of_files(_stored(workspace), [each for each in named if each not in known]))
    return [(each, known.get(each) or others[each]) for each in named]
