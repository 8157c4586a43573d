"""The Python client of a web server: ``driftline.connect(URL)``.

It exchanges JSON and raises Driftline errors. It needs only the standard library, so the command line queries a server
before an HTTP library would be imported.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from driftline.storage import errors
from driftline.storage.errors import AccessDenied, DriftlineError, StorageError, UsageError
from driftline.storage.option_table import from_keywords, path_or_uri
from driftline.storage.workspace.records import WorkspaceStats
from driftline.tasks.search.documents import Document, Excerpt
from driftline.tasks.search.request import Mode, SearchRequest, options_in
from driftline.tasks.search.search import SearchReport

TOKEN_VARIABLE = "DRIFTLINE_TOKEN"
TIMEOUT_SECONDS = 90.0
MAX_WAIT_SECONDS = 10
"""Maximum delay before retrying a request that the server rejected because of its rate limit."""
ATTEMPTS = 3
OK, UNAUTHORIZED, FORBIDDEN, TOO_MANY = 200, 401, 403, 429


@dataclass(frozen=True, slots=True)
class Connection:
    """The API at ``url``, such as ``https://driftline.example.com``, with ``token`` if the server requires one."""

    url: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = self._parts
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError("Not a valid server URL", self.url, "Use https://driftline.example.com.")
        if parts.username or parts.password:
            raise UsageError("A server URL must not contain a secret", self.url, f"Set {TOKEN_VARIABLE} to the token.")

    @classmethod
    def to(cls, url: str, token: str | None = None) -> Connection:
        """Return the connection to ``url`` with ``token``, by default $DRIFTLINE_TOKEN. Raises UsageError."""
        return cls(path_or_uri("A server", url).rstrip("/"), token or os.environ.get(TOKEN_VARIABLE) or None)

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

    def _answer(self, target: str) -> tuple[dict[str, Any], str | None]:
        for attempt in range(ATTEMPTS):
            response, body = self._request(target)
            wait = response.getheader("Retry-After", "")
            if response.status != TOO_MANY or attempt + 1 == ATTEMPTS or not wait.isdigit():
                break
            time.sleep(min(int(wait), MAX_WAIT_SECONDS))
        try:
            content = json.loads(body)
        except ValueError as error:
            what = f"The response is not from a Driftline server (status {response.status})"
            raise StorageError(what, self.url, "Check the URL.") from error
        if response.status != OK:
            raise self._error(response.status, content)
        link, _, relation = response.getheader("Link", "").partition(";")
        return content, link.strip("<>") if 'rel="next"' in relation else None

    def _request(self, target: str) -> tuple[http.client.HTTPResponse, bytes]:
        parts, headers = self._parts, {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        https = parts.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        try:
            connection = kind(parts.netloc, timeout=TIMEOUT_SECONDS)
            try:  # never follow redirects: the token is for this server
                connection.request("GET", target, headers=headers)
                response = connection.getresponse()
                return response, response.read()
            finally:
                connection.close()
        except (OSError, ssl.SSLError, http.client.HTTPException, ValueError) as error:
            raise StorageError(f"Cannot reach the server ({error})", self.url, "Is 'driftline web' running?") from error

    def _error(self, status: int, content: Any) -> DriftlineError:
        problem = content if isinstance(content, dict) else {}
        kind, where, fix = (str(problem.get(name, "")) for name in ("error", "where", "fix"))
        what = str(problem.get("detail", f"status {status}"))
        what = what.removesuffix(f". {fix}").removesuffix(f": {where}") if fix or where else what
        if status in (UNAUTHORIZED, FORBIDDEN):
            fix = f"Set {TOKEN_VARIABLE} to a token for the server." if status == UNAUTHORIZED else fix
            return AccessDenied(what, self.url, fix)
        known = _kinds().get(kind, StorageError if status >= 500 or status == TOO_MANY else UsageError)
        return known(what, where or self.url, fix)


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


@dataclass(frozen=True, slots=True)
class Client:
    """A client of a web server.

    Every method propagates errors from the corresponding call: AccessDenied for a token with insufficient scope, and
    StorageError if the server cannot be reached.

    Examples:
        >>> client = driftline.connect(url)
        >>> client.status().total_documents
        1
        >>> [(hit.path, hit.line) for hit in client.search("who renews the lease", top_k=1)]
        [('notes.md', 1)]
    """

    connection: Connection

    @from_keywords(SearchRequest)
    def search(self, request: SearchRequest) -> SearchReport:
        """Find the windows of lines that match a query best, like ``driftline.search``.

        Args:
            request: the fields of ``SearchRequest`` as keyword arguments. The server limits ``top_k`` and ``n_lines``.
                Paths, directories and globs are relative to their source.

        Returns:
            A report that iterates over its hits.

        Raises:
            DriftlineError: UsageError for an option that servers do not support, AccessDenied for a token with
                insufficient scope, StorageError if the server cannot be reached, and the errors of
                ``driftline.search``.
        """
        if any(value == () for value in request.given().values()):
            return SearchReport(request.query, (), None, ("A filter with no values matches nothing.",))
        report: SearchReport = self._read("search", search_parameters(request)).report()
        return report

    def excerpt(self, source: str, path: str, line: int, *, n_lines: int = 20, branch: str | None = None) -> Excerpt:
        """Return lines of an indexed document: one line with ``n_lines`` of context on each side.

        Args:
            source: the entity of the document's source.
            path: the document's path in the source.
            line: the line number, 1-based.
            n_lines: how many lines to add before and after.
            branch: read the document as of this branch.

        Returns:
            The lines, and the location of the first line.

        Raises:
            DriftlineError: NotIndexed for an unknown document, AccessDenied, UsageError, StorageError.
        """
        parameters = {"source": source, "path": path, "line": line, "n_lines": n_lines, "branch": branch}
        excerpt: Excerpt = self._read("excerpt", parameters)
        return excerpt

    def documents(
        self, *, sources: Sequence[str] = (), dirs: Sequence[str] = (), exts: Sequence[str] = ()
    ) -> Iterator[Document]:
        """Yield the indexed documents, sorted by source and path.

        Args:
            sources: only documents of these sources, projects or organisations.
            dirs: only documents under these directories.
            exts: only documents with these file extensions.

        Yields:
            Documents, requested one page at a time.

        Raises:
            DriftlineError: BadEntity, UsageError, AccessDenied, StorageError.
        """
        parameters = {"limit": DOCUMENTS_AT_ONCE, "source": sources, "dir": dirs, "ext": exts}
        for page in self.connection.pages("documents", parameters):
            yield from (Document(**document) for document in page["documents"])

    def search_memory(
        self, query: str, top_k: int = 5, entity: str | None = None, *, mode: Mode = "hybrid"
    ) -> list[dict[str, Any]]:
        """Find the memory entries that match a query best.

        Args:
            query: what to look for.
            top_k: the maximum number of entries.
            entity: only entries at or below this entity.
            mode: ``hybrid`` (text and vector ranking), ``vector`` (embedding similarity) or ``text`` (words).

        Returns:
            ``{record, score, rank}`` for each entry, best first.

        Raises:
            DriftlineError: NotIndexed if there is no memory, BadEntity, UsageError, AccessDenied, StorageError.
        """
        found = self.connection.get("memory/search", {"q": query, "top_k": top_k, "entity": entity, "mode": mode})
        return list(found["results"])

    def status(self) -> WorkspaceStats:
        """Return workspace statistics: documents, lines, model, sources, the last run.

        Returns:
            The statistics.

        Raises:
            DriftlineError: AccessDenied, CorruptFile, StorageError.
        """
        status: WorkspaceStats = self._read("status")
        return status

    def sources(self) -> list[dict[str, Any]]:
        """Return the sources.

        Returns:
            The sources, as in ``driftline sources --json``.

        Raises:
            DriftlineError: AccessDenied, CorruptFile, StorageError.
        """
        return list(self.connection.get("sources")["sources"])

    def branches(self) -> list[dict[str, Any]]:
        """Return the branches of the sources.

        Returns:
            The branches, as in ``driftline branches --json``.

        Raises:
            DriftlineError: AccessDenied, CorruptFile, StorageError.
        """
        return list(self.connection.get("branches")["branches"])

    def _read(self, route: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return a route's response as its model. Raises StorageError if the server runs an incompatible version."""
        from pydantic import TypeAdapter, ValidationError

        from driftline.flows.http_answers import ANSWERS

        content = self.connection.get(route, parameters)
        try:
            return TypeAdapter(ANSWERS[route]).validate_python(content)
        except ValidationError as error:
            what = f"The server runs an incompatible version of Driftline ({error.errors()[0]['loc']})"
            raise StorageError(what, self.connection.url, "Upgrade the older one.") from error


def search_parameters(request: SearchRequest) -> dict[str, Any]:
    """Convert a request to API parameters. Raises UsageError for an option that servers do not support."""
    served, given = options_in("http"), request.given()
    only_here = [name for name in given if name not in served]
    only_here += ["where"] if request.where is not None or request.also else []
    only_here += ["within"] if request.within is not None else []
    if only_here:
        raise UsageError("Servers do not support this option", only_here[0], "Omit it, or search a workspace.")
    return {"q": request.query} | {served[name].parameter: value for name, value in given.items()}
