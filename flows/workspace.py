"""The public face: open a workspace, index into it and search it from Python, or ask the server that serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_DELETE_FRACTION,
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_N_LINES,
    DEFAULT_TOP_K,
)
from driftline.storage.options import from_keywords
from driftline.tasks.search.request import SearchRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from driftline.flows.client import Client
    from driftline.flows.output.reports import IndexReport
    from driftline.flows.runs.plan import SourceRequest
    from driftline.storage.lines.indexes import IndexScope
    from driftline.storage.model import DocumentState
    from driftline.storage.workspace.workspace import Workspace
    from driftline.tasks.search.query import SearchReport


def open(
    uri: str, storage_options: Mapping[str, Any] | None = None, sources: Sequence[str] = (), *, cache: bool = False
) -> Workspace:
    """Open the workspace at a path or URI for reading; ``@notes`` is the one of this name below DRIFTLINE_HOME.

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

    from driftline.flows.config.search_settings import cache_settings
    from driftline.flows.runs.pull import open_copy

    return open_copy(opened, max_bytes=cache_settings(cache)[1], warn=logging.getLogger(__name__).warning)


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
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES,
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
    given = dict(locals())  # the keywords are the fields of the request
    from driftline.flows.config.locate import workspace_named
    from driftline.flows.runs.index import IndexRequest, index_sources

    given |= {"workspace": workspace_named(workspace), "include": tuple(include), "exclude": tuple(exclude)}
    return index_sources(IndexRequest(**given))


@from_keywords(SearchRequest)
def search(workspace: Workspace | str, request: SearchRequest) -> SearchReport:
    """Find the windows of lines that answer a query, best first.

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

    With ``fixed`` texts and expressions ``regex``, only lines of files that hold them all are found, and the words of
    the query rank them; the query itself may hold such terms and filters (``"a phrase" /regex/ def:Name lang:go``).
    ``whole_words`` and ``ignore_case`` say how they match. The report's ``exact`` tells whether the ``top_k`` lines are
    all; ``count`` counts all lines and returns none, ``files`` returns the first one of each file.

    Raises UsageError, WorkspaceNotFound, ModelNotFound, MissingExtra, FingerprintMismatch, CorruptFile, AccessDenied,
    StorageError.
    """
    from driftline.flows.runs.search import resolved
    from driftline.tasks.search.language import ask

    opened = open(workspace) if isinstance(workspace, str) else workspace
    return ask(*resolved(opened, request))


def sql(
    workspace: Workspace | str,
    query: str,
    parameters: Sequence[Any] = (),
    *,
    within: str | None = None,
    branch: str | None = None,
    timeout_seconds: float = 60.0,
) -> pa.Table:
    """Return the rows of one SELECT over the views of a workspace, as an Arrow table.

    ``SHOW TABLES`` lists the views. ``parameters`` are the values of the ``?`` in ``query``. ``within`` shows only what
    is at or below an entity, such as ``org:acme``. The query only reads, sees nothing but the workspace, and is
    interrupted after ``timeout_seconds``; it needs DuckDB, which is installed with Driftline.

    Raises UsageError, WorkspaceNotFound, OutOfMemory, CorruptFile, AccessDenied, StorageError.
    """
    from driftline.flows.config.locate import on_named_branch
    from driftline.flows.output.run_series import searches_table
    from driftline.storage.entities import Entity
    from driftline.storage.sql import query as run

    opened = open(workspace) if isinstance(workspace, str) else workspace
    boundary = Entity.parse(within, opened.config.hierarchy) if within is not None else None
    there, journal = on_named_branch(opened, branch, boundary), searches_table(opened)
    with run(there, query, parameters, within=boundary, searches=journal, max_seconds=timeout_seconds) as result:
        return result.table()


def connect(url: str, token: str | None = None) -> Client:
    """The web server at ``url`` as an object, asked with ``token``, by default $DRIFTLINE_TOKEN. Raises UsageError.

    Nothing is asked yet.
    """
    from driftline.flows.client import Client, Connection

    return Client(Connection.to(url, token))


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

    request = SearchRequest(query, top_k=top_k, max_distance=max_distance, min_relevance=min_relevance, n_lines=n_lines)
    return search_texts(request, read_texts(files), open_embedder(model), ignore_case=ignore_case)


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
