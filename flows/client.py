"""The Python client of a web server: ``driftline.connect(URL)``.

It exchanges JSON and raises Driftline errors. It needs only the standard library, so the command line queries a server
before an HTTP library would be imported.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import SplitResult, urlencode, urlsplit

from driftline.storage import errors
from driftline.storage.defaults import DEFAULT_ENTRIES, DEFAULT_SQL_SECONDS, Mode
from driftline.storage.errors import AccessDenied, DriftlineError, StorageError, UsageError
from driftline.storage.option_table import from_keywords, path_or_uri
from driftline.tasks.search.request import OPTIONS, SearchRequest

if TYPE_CHECKING:
    import http.client
    import ssl

    import pyarrow as pa

    from driftline.flows.runs.branches import BranchReport
    from driftline.storage.workspace.records import RunRecord, WorkspaceStats
    from driftline.tasks.search.documents import Document, Excerpt
    from driftline.tasks.search.hits import SearchReport

TOKEN_VARIABLE = "DRIFTLINE_TOKEN"
TIMEOUT_SECONDS = 90.0
MAX_WAIT_SECONDS = 10
"""Maximum delay before retrying a request that the server rejected because of its rate limit."""
ATTEMPTS = 3
MAX_SQL_SECONDS = 50.0
"""How long a server lets a query run."""
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class Connection:
    """The API at ``url``, such as ``https://driftline.example.com``, with ``token`` if the server requires one.

    ``timeout`` limits each network operation, in seconds. ``verify`` is an ``ssl.SSLContext``, or the path of the
    certificates to trust instead of the system's. Threads may share the connection: each request takes an idle HTTP
    connection, or opens one, and returns it for the next.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    timeout: float = TIMEOUT_SECONDS
    verify: ssl.SSLContext | str | os.PathLike[str] | None = field(default=None, repr=False)
    _idle: list[http.client.HTTPConnection] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self._parts
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError("Not a valid server URL", self.url, "Use https://driftline.example.com.")
        if parts.username or parts.password:
            raise UsageError("A server URL must not contain a secret", self.url, f"Set {TOKEN_VARIABLE} to the token.")
        if self.verify is not None and isinstance(self.verify, str | os.PathLike):
            object.__setattr__(self, "verify", _trusting(path_or_uri("The certificates", self.verify)))

    @classmethod
    def to(cls, url: str, token: str | None = None, **how: Any) -> Connection:
        """Return the connection to ``url`` with ``token``, by default $DRIFTLINE_TOKEN. Raises UsageError."""
        return cls(path_or_uri("A server", url).rstrip("/"), token or os.environ.get(TOKEN_VARIABLE) or None, **how)

    def close(self) -> None:
        """Close the idle HTTP connections; a later request opens a new one."""
        while self._idle:
            self._idle.pop().close()

    __del__ = close  # a client that nobody closed leaves no sockets open

    def get(self, route: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the response of ``/api/v1/{route}``; parameters that are None are omitted.

        Raises the error that the server returned, AccessDenied for an invalid token, StorageError if the server cannot
        be reached.
        """
        return self._answer(self._target(route, parameters))[0]

    def pages(self, route: str, parameters: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the response of ``get``, then the pages that its 'next' links point to."""
        target: str | None = self._target(route, parameters)
        while target is not None:
            answer, target = self._answer(target)
            yield answer

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)

    def _target(self, route: str, parameters: Mapping[str, Any] | None) -> str:
        given = {name: _parameter(value) for name, value in (parameters or {}).items() if value is not None}
        query = urlencode(given, doseq=True, errors="surrogatepass")
        return f"{self._parts.path}/api/v1/{route}" + (f"?{query}" if query else "")

    def table(self, route: str, parameters: Mapping[str, Any]) -> pa.Table:
        """Return the response of ``/api/v1/{route}`` as an Arrow table. Raises the same errors as ``get``."""
        import pyarrow as pa

        response, body = self._response(self._target(route, parameters), ARROW)
        if response.getheader("Content-Type") != ARROW:
            raise self._is_foreign(response)
        with pa.ipc.open_stream(body) as stream:
            return stream.read_all()

    def _answer(self, target: str) -> tuple[dict[str, Any], str | None]:
        response, body = self._response(target, "application/json")
        link, _, relation = response.getheader("Link", "").partition(";")
        following = self._below_prefix(link.strip("<>")) if 'rel="next"' in relation else None
        return self._content(response, body), following

    def _response(self, target: str, accept: str) -> tuple[http.client.HTTPResponse, bytes]:
        for attempt in range(ATTEMPTS):
            response, body = self._request(target, accept)
            wait = response.getheader("Retry-After", "")
            if response.status != HTTPStatus.TOO_MANY_REQUESTS or attempt + 1 == ATTEMPTS or not wait.isdigit():
                break
            time.sleep(min(int(wait), MAX_WAIT_SECONDS))
        if response.status != HTTPStatus.OK:
            raise self._error(response.status, self._content(response, body))
        return response, body

    def _content(self, response: http.client.HTTPResponse, body: bytes) -> Any:
        try:
            return json.loads(body)
        except ValueError as error:
            raise self._is_foreign(response) from error

    def _is_foreign(self, response: http.client.HTTPResponse) -> StorageError:
        what = f"The response is not from a Driftline server (status {response.status})"
        return StorageError(what, self.url, "Check the URL.")

    def _below_prefix(self, link: str) -> str:
        """Return a server's link to itself below the path of ``url``, which a proxy may have removed."""
        prefix = self._parts.path
        return link if link.startswith(f"{prefix}/api/") else f"{prefix}{link}"

    def _request(self, target: str, accept: str) -> tuple[http.client.HTTPResponse, bytes]:
        import http.client  # with ssl, takes longer to load than this module

        headers = {"Accept": accept}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            while True:
                connection, is_new = self._take()
                try:  # never follow redirects: the token is for this server
                    connection.request("GET", target, headers=headers)
                    response = connection.getresponse()
                    body = response.read()
                except (OSError, http.client.HTTPException) as error:
                    connection.close()
                    if is_new or not isinstance(error, ConnectionError):
                        raise  # otherwise, the server closed the idle connection
                else:
                    self._idle.append(connection)
                    return response, body
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise StorageError(f"Cannot reach the server ({error})", self.url, "Is 'driftline web' running?") from error

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return an idle or a new connection, and whether it is new."""
        import http.client

        with suppress(IndexError):
            return self._idle.pop(), False
        parts = self._parts
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc, timeout=self.timeout), True
        return http.client.HTTPSConnection(parts.netloc, timeout=self.timeout, context=cast("Any", self.verify)), True

    def _error(self, status: int, content: Any) -> DriftlineError:
        problem = content if isinstance(content, dict) else {}
        kind, where, fix = (str(problem.get(name, "")) for name in ("error", "where", "fix"))
        what = str(problem.get("detail", f"status {status}"))
        what = what.removesuffix(f". {fix}").removesuffix(f": {where}") if fix or where else what
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            fix = f"Set {TOKEN_VARIABLE} to a token for the server." if status == HTTPStatus.UNAUTHORIZED else fix
            return AccessDenied(what, self.url, fix)
        known = _kinds().get(
            kind, StorageError if status >= 500 or status == HTTPStatus.TOO_MANY_REQUESTS else UsageError
        )
        return known(what, where or self.url, fix)


def _trusting(certificates: str) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=certificates)
    except OSError as error:  # ssl.SSLError for a file without certificates
        what = f"Cannot read the certificates ({error.strerror or error})"
        raise UsageError(what, certificates, "Pass a file of PEM certificates.") from error


def _parameter(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return list(value) if isinstance(value, (list, tuple)) else value


def _kinds() -> dict[str, type[DriftlineError]]:
    found = {
        cls.kind: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, DriftlineError)
    }
    return {kind: cls for kind, cls in found.items() if cls.__init__ is DriftlineError.__init__}


DOCUMENTS_AT_ONCE = 1_000


class ReadOnlyWorkspace(ABC):
    """The reading methods that ``Workspace`` (a folder or bucket) and ``Client`` (a server) share.

    Examples:
        >>> for index in (driftline.open(location), driftline.connect(url)):
        ...     [(hit.path, hit.line) for hit in index.search("who renews the lease", top_k=1)]
        [('notes.md', 1)]
        [('notes.md', 1)]
    """

    __slots__ = ()

    @property
    @abstractmethod
    def uri(self) -> str:
        """The absolute path or URI of the workspace; for a client, the URL of the server."""

    @from_keywords(SearchRequest)
    def search(self, request: SearchRequest) -> SearchReport:
        """Find the windows of lines that match a query best.

        Args:
            request: the fields of ``SearchRequest`` as keyword arguments, as in ``driftline.search``. A server limits
                ``top_k`` and ``n_lines``; its paths, directories and globs are relative to their source.

        Returns:
            A report that iterates over its hits.

        Raises:
            DriftlineError: The errors of ``driftline.search``; from a server, also UsageError for an option that
                servers do not support.

        Examples:
            >>> report = ws.search("who renews the lease", exts=["md"], n_lines=0)
            >>> report.to_arrow().select(["path", "line"]).to_pylist()
            [{'path': 'notes.md', 'line': 1}]
        """
        return self._search(request)

    @abstractmethod
    def _search(self, request: SearchRequest) -> SearchReport: ...

    @abstractmethod
    def status(self) -> WorkspaceStats:
        """Return workspace statistics.

        Returns:
            The numbers of documents and lines, the model, the sources and the last run.

        Raises:
            DriftlineError: CorruptFile, StorageError.

        Examples:
            >>> ws.status().total_lines
            1
        """

    def sources(self) -> list[dict[str, Any]]:
        """Return the sources.

        Returns:
            The sources, as in ``driftline sources --json``.

        Raises:
            DriftlineError: CorruptFile, StorageError.

        Examples:
            >>> [source["documents"] for source in ws.sources()]
            [1]
        """
        return list(self.status().sources)

    @abstractmethod
    def branches(self) -> list[BranchReport]:
        """Return the branches of the sources.

        Returns:
            The branches.

        Raises:
            DriftlineError: CorruptFile, StorageError.

        Examples:
            >>> ws.branches()
            []
        """

    @abstractmethod
    def excerpt(self, source: str, path: str, line: int, *, n_lines: int = 20, branch: str | None = None) -> Excerpt:
        """Return lines of an indexed document.

        Args:
            source: a hit's source.
            path: the document's path in the source.
            line: the line to read around, 1-based.
            n_lines: lines of context on each side.
            branch: read the document as of this branch.

        Returns:
            The lines, and whether the document is unchanged.

        Raises:
            DriftlineError: NotIndexed for documents that are not indexed, UsageError, StorageError.

        Examples:
            >>> hit = next(iter(ws.search("lease")))
            >>> ws.excerpt(hit.source, hit.path, hit.line).lines
            ('the holder renews the lease',)
        """

    @abstractmethod
    def documents(
        self, *, sources: Sequence[str] = (), dirs: Sequence[str] = (), exts: Sequence[str] = ()
    ) -> Iterator[Document]:
        """Yield the indexed documents, sorted by source and path.

        Args:
            sources: only documents of these sources, projects or organizations.
            dirs: only documents under these directories.
            exts: only documents with these file extensions.

        Yields:
            Documents.

        Raises:
            DriftlineError: BadEntity, UsageError, StorageError.

        Examples:
            >>> [document.path for document in ws.documents(exts=["md"])]
            ['notes.md']
        """

    @abstractmethod
    def runs(self, limit: int = 20) -> list[RunRecord]:
        """Return the records of recent runs.

        Args:
            limit: maximum number of records.

        Returns:
            The records, newest first.

        Raises:
            DriftlineError: CorruptFile, StorageError.

        Examples:
            >>> ws.runs(limit=1)[0].kind
            'index'
        """

    @abstractmethod
    def sql(
        self,
        query: str,
        parameters: Sequence[Any] = (),
        *,
        within: str | None = None,
        branch: str | None = None,
        timeout_seconds: float = DEFAULT_SQL_SECONDS,
    ) -> pa.Table:
        """Run one SELECT over the workspace's views, and return the rows as an Arrow table.

        Args:
            query: a SELECT, or ``SHOW TABLES``, which lists the views.
            parameters: the values for each ``?`` in the query.
            within: show only data at or below this entity, such as ``org:acme``.
            branch: show documents and lines as of this branch.
            timeout_seconds: interrupt the query after this time; a server, after 50 s at most.

        Returns:
            The rows; a server returns up to 100,000.

        Raises:
            DriftlineError: The errors of ``driftline.sql``.

        Examples:
            >>> ws.sql("SELECT path, lines FROM documents WHERE ext = ?", ["md"]).to_pylist()
            [{'path': 'notes.md', 'lines': 1}]
        """

    def search_memory(
        self,
        query: str,
        *,
        top_k: int = DEFAULT_ENTRIES,
        entity: str | None = None,
        mode: Mode = "hybrid",
        max_distance: float | None = None,
    ) -> list[dict[str, Any]]:
        """Find the memory entries that match a query best.

        Args:
            query: what to look for.
            top_k: the maximum number of entries.
            entity: only entries at or below this entity.
            mode: ``hybrid`` (text and vector ranking), ``vector`` (embedding similarity) or ``text`` (words).
            max_distance: drop entries with a cosine distance above this (0 to 2).

        Returns:
            ``{record, score, rank, distance}`` for each entry, best first.

        Raises:
            DriftlineError: NotIndexed if there is no memory, BadEntity, UsageError, StorageError.

        Examples:
            >>> ws.search_memory("plan")
            Traceback (most recent call last):
            driftline.storage.errors.NotIndexed: The workspace has no memory. Store some: driftline memory put
        """
        given = {"top_k": top_k, "entity": entity, "mode": mode, "max_distance": max_distance}
        return self._search_memory(query, given)

    @abstractmethod
    def _search_memory(self, query: str, given: Mapping[str, Any]) -> list[dict[str, Any]]: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.uri!r}>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()


class Client(ReadOnlyWorkspace):
    """A client of a web server, with the reading methods of a workspace. Threads may share it.

    Every method also raises AccessDenied for a token with insufficient scope, and StorageError if the server cannot be
    reached. ``close``, or a ``with`` block, closes the connections to the server.

    Examples:
        >>> with driftline.connect(url) as client:
        ...     client.status().total_documents
        1
    """

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the server; a later call opens a new one."""
        self.connection.close()

    @property
    def uri(self) -> str:
        return self.connection.url

    def _search(self, request: SearchRequest) -> SearchReport:
        from driftline.tasks.search.hits import SearchReport  # loads Lance

        if any(value == () for value in request.given().values()):
            return SearchReport(request.query, (), None, ("A filter with no values matches nothing.",))
        report: SearchReport = self._read("search", search_parameters(request)).report()
        return report

    def status(self) -> WorkspaceStats:
        status: WorkspaceStats = self._read("status")
        return status

    def branches(self) -> list[BranchReport]:
        return list(self._read("branches").branches)

    def excerpt(self, source: str, path: str, line: int, *, n_lines: int = 20, branch: str | None = None) -> Excerpt:
        parameters = {"source": source, "path": path, "line": line, "n_lines": n_lines, "branch": branch}
        excerpt: Excerpt = self._read("excerpt", parameters)
        return excerpt

    def documents(
        self, *, sources: Sequence[str] = (), dirs: Sequence[str] = (), exts: Sequence[str] = ()
    ) -> Iterator[Document]:
        from driftline.tasks.search.documents import Document

        parameters = {"limit": DOCUMENTS_AT_ONCE, "source": sources, "dir": dirs, "ext": exts}
        for page in self.connection.pages("documents", parameters):
            yield from (Document(**document) for document in page["documents"])

    def runs(self, limit: int = 20) -> list[RunRecord]:
        return list(self._read("runs", {"limit": limit}).runs)

    def sql(
        self,
        query: str,
        parameters: Sequence[Any] = (),
        *,
        within: str | None = None,
        branch: str | None = None,
        timeout_seconds: float = DEFAULT_SQL_SECONDS,
    ) -> pa.Table:
        try:
            values = json.dumps([*parameters])
        except TypeError as error:
            raise UsageError("A server accepts text, numbers, booleans and null as parameters", str(error)) from error
        seconds = min(timeout_seconds, MAX_SQL_SECONDS)
        given = {"q": query, "parameters": values, "within": within, "branch": branch, "timeout_seconds": seconds}
        return self.connection.table("sql", given)

    def _search_memory(self, query: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        return list(self.connection.get("memory/search", {"q": query, **given})["results"])

    def _read(self, route: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return a route's response as its model. Raises StorageError if the server runs an incompatible version."""
        from pydantic import TypeAdapter, ValidationError

        from driftline.flows.response_models import ANSWERS

        content = self.connection.get(route, parameters)
        try:
            return TypeAdapter(ANSWERS[route]).validate_python(content)
        except ValidationError as error:
            what = f"The server runs an incompatible version of Driftline ({error.errors()[0]['loc']})"
            raise StorageError(what, self.connection.url, "Upgrade the older one.") from error


def search_parameters(request: SearchRequest) -> dict[str, Any]:
    """Convert a request to API parameters. Raises UsageError for an option that servers do not support."""
    served, given = OPTIONS.offered_in("http"), request.given()
    only_here = [name for name in given if name not in served]
    unserved = ("where", "also", "inside", "within", "on_this_machine")
    only_here += [name for name in unserved if getattr(request, name) not in (None, (), False)]
    if only_here:
        raise UsageError(f"Servers do not support `{only_here[0]}`", fix="Omit it, or search a workspace.")
    for name, value in given.items():
        low, high = served[name].served or (value, value)
        if not low <= value <= high:
            what = f"A server accepts `{name}` from {low:g} to {high:g}"
            raise UsageError(what, str(value), "Use such a value, or search a workspace.")
    return {"q": request.query} | {served[name].parameter: value for name, value in given.items()}
