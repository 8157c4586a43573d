"""Define the routes: web pages, the API at ``/api/v1``, and ``/healthz`` and ``/readyz`` for operators.

``Pages`` shows searches, documents and the index. On the ``SignIn`` page, users enter their token once, and the browser
stores it in a cookie that no script can read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from driftline.flows.web import pages, responses
from driftline.flows.web.access import COOKIE, Authentication, granted
from driftline.flows.web.api import (
    MAX_QUERY_CHARACTERS,
    Api,
    BranchName,
    Line,
    Reader,
    SourceName,
    SymbolName,
    given_by,
    parameters,
)
from driftline.flows.web.guard import (
    FILES,
    HOOKS,
    MCP,
    REFERENCES,
    SIGN_IN,
    Guard,
    RateLimit,
    in_thread,
    is_page,
)
from driftline.flows.web.observability import (
    INTERNAL_ERROR,
    UNEXPECTED,
    IndexMetrics,
    Metrics,
    Observed,
    Tracer,
    alive,
    metrics_page,
    readiness,
)
from driftline.flows.web.pages import outline, split_address
from driftline.flows.web.responses import (
    JsonAnswer,
    TaggedAnswer,
    only_known_parameters,
    problem,
    problem_of,
    wrong_parameters,
)
from driftline.flows.web.snippets import LINES_BEFORE
from driftline.storage.errors import DriftlineError, NotIndexed
from driftline.storage.option_table import spread
from driftline.tasks.search.hits import Hit, SearchReport
from driftline.tasks.search.query_language import field_term
from driftline.tasks.search.request import OPTIONS, SearchRequest

if TYPE_CHECKING:
    from starlette.applications import Starlette

_AROUND = LINES_BEFORE
"""Lines of context on each side of a hit."""
_DEFINITIONS, _USES = 20, 50
"""How many definitions and uses of a name to list."""
_FILES = 50
"""How many files to list that are found by name."""
MAX_PATH_QUERY = 200
_SIMILAR = 5
"""How many lines similar to an opened document's line to show."""
_OF_PAGE = {name: row for name, row in OPTIONS.offered_in("http").items() if name not in ("n_lines", "facets")}
MAX_TOKEN_BYTES = 4_096
SIGNED_IN_FOR = timedelta(days=30)
"""Maximum session length; a session ends earlier if its token expires."""
MIN_COMPRESSED_BYTES = 2_000
COMPRESSION_LEVEL = 4
"""At this compression level, a results page shrinks to a tenth in half a millisecond."""
_DOCUMENT = "/d/{address:path}"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pages:
    """The routes of the pages."""

    reader: Reader

    def routes(self) -> dict[str, Callable[..., Response]]:
        """Return the pages, keyed by path."""
        found: dict[str, Callable[..., Response]] = {"/": self.search, "/index": self.index, "/sql": self.sql}
        return found | {_DOCUMENT: self.document, FILES: self.files, REFERENCES: self.references}

    @spread("given", parameters(_OF_PAGE))
    def search(
        self, request: Request, q: str = "", jump: bool = False, document: str = "", *, given: dict[str, Any]
    ) -> Response:
        """Show the search box and the index or, with a query, the results; with ``jump``, open the only result.

        ``document`` is the address of the only document to search, as in its link.
        """
        search = SearchRequest("")
        try:
            options = given_by(given)
            if document:
                address = document.encode("ascii", "replace")
                source, path = split_address(address, self.reader.newest().config.hierarchy)
                options |= {"sources": (source,), "paths": (path,)}
            search = SearchRequest.of(q[:MAX_QUERY_CHARACTERS].strip(), options, n_lines=_AROUND, facets=True)
            if search.is_empty:
                home, branches = self.reader.home(), self.reader.branch_names()
                return HTMLResponse(pages.home_page(search, home, datetime.now(UTC), branches))
            report = self.reader.search(search)
            branches = self.reader.branch_names()
            folders = {source: self.reader.folder_of(source) for source in {hit.source for hit in report.results}}
        except DriftlineError as error:
            failed = problem_of(error, to_owner=request.app.state.shows_locations)
            request.state.error = failed.kind
            return HTMLResponse(pages.search_page(search, error=failed.detail), failed.status_code)
        if jump and len(report.results) == 1:
            (hit,) = report.results
            return RedirectResponse(pages.document_link(hit.source, hit.path, hit.line, search.branch), 303)
        return HTMLResponse(pages.search_page(search, report, branches=branches, folders=folders))

    def document(self, request: Request, line: Line | None = None, branch: BranchName = None) -> Response:
        """Show a document as indexed, with lines similar to ``line``, or a folder."""
        address = request.scope["raw_path"].removeprefix(b"/d/")
        source, path = split_address(address, self.reader.newest().config.hierarchy)
        if not path or path.endswith("/"):
            return self._folder(source, path.removesuffix("/"), branch)
        at = line or 1
        try:
            excerpt = self.reader.excerpt(source, path, at, pages.MAX_PAGE_LINES, branch)
        except NotIndexed:
            with suppress(NotIndexed):  # links in prose lead to folders as well
                self.reader.folder(source, path, branch)
                return RedirectResponse(pages.folder_link(source, path, branch), 303)
            raise
        anchors = [(number, "anchor", name) for number, name in excerpt["anchors"]]
        view = pages.DocumentView(
            excerpt=excerpt,
            line=at,
            branch=branch,
            outline=sorted(anchors + outline(path, excerpt["lines"], excerpt["start_line"])),
            similar=self._similar(excerpt, line, branch) if line is not None else (),
            folder=self.reader.folder(excerpt["source"], path.rpartition("/")[0], branch),
            branches=self.reader.branches_of(excerpt["source"], pages.MAX_FACETS + 1),
            is_whole=line is None,
        )
        return HTMLResponse(pages.document_page(view))

    def _folder(self, source: str, path: str, branch: str | None) -> Response:
        """Show a source's folder or, if ``source`` is empty, all sources."""
        if not source:
            return HTMLResponse(pages.sources_page(self.reader.home()))
        folder = self.reader.folder(source, path, branch)
        readme = pages.readme_of(folder)
        shown: Sequence[str] = ()
        with suppress(NotIndexed):  # it is empty, or was removed since the folder was listed
            shown = self.reader.excerpt(source, readme, 1, pages.MAX_PAGE_LINES, branch)["lines"] if readme else ()
        return HTMLResponse(pages.folder_page(folder, branch, shown if len(shown) <= pages.MAX_PAGE_LINES else ()))

    def files(self, q: str = "", source: SourceName | None = None, branch: BranchName = None) -> Response:
        """Show the documents whose paths contain the characters of ``q``."""
        found = self.reader.find(q[:MAX_PATH_QUERY].strip(), source, branch, _FILES)
        return HTMLResponse(pages.files_page(q, found, source, branch))

    def references(self, name: SymbolName, branch: BranchName = None) -> Response:
        """Show the definitions and the uses of a name."""

        def search(field: str, most: int) -> SearchReport:
            term = field_term(field, name)
            return self.reader.search(SearchRequest(term, branch=branch, top_k=most, n_lines=0, facets=True))

        defined, used = search("def", _DEFINITIONS), search("uses", _USES)
        sources = {hit.source for report in (defined, used) for hit in report.results}
        folders = {source: self.reader.folder_of(source) for source in sources}
        return HTMLResponse(pages.references_page(name, defined, used, branch, folders))

    def index(self) -> Response:
        """Show the index's content, growth, and skipped files."""
        return HTMLResponse(pages.index_page(self.reader.index(), datetime.now(UTC)))

    def sql(self, request: Request, q: str = "", csv: bool = False) -> Response:
        """Show the rows of a query and a plot of them, or examples; with ``csv``, return the rows as a file."""
        query = q[:MAX_QUERY_CHARACTERS].strip()
        try:
            view = self.reader.sql(query) if query else None
            if csv and view is not None:
                from driftline.storage.sql import csv_of

                return Response(csv_of([view.columns, *view.rows]), media_type="text/csv")
            return HTMLResponse(pages.sql_page(query, view))
        except DriftlineError as error:
            failed = problem_of(error, to_owner=request.app.state.shows_locations)
            request.state.error = failed.kind
            return HTMLResponse(pages.sql_page(query, error=failed.detail), failed.status_code)

    def _similar(self, excerpt: dict[str, Any], line: int, branch: str | None) -> list[Hit]:
        lines, first = excerpt["lines"], excerpt["start_line"]
        text = lines[line - first][:MAX_QUERY_CHARACTERS].strip() if line - first < len(lines) else ""
        if not text:
            return []
        found = self.reader.similar(text, _SIMILAR + 1, branch)
        itself = (excerpt["source"], excerpt["path"], line)
        return [hit for hit in found if (hit.source, hit.path, hit.line) != itself][:_SIMILAR]


@dataclass(frozen=True, slots=True)
class SignIn:
    """The routes of the sign-in page."""

    authentication: Authentication

    async def form(self, next: str = "/") -> Response:
        """Show the form."""
        return HTMLResponse(pages.sign_in_page(_local(next)))

    async def submit(self, request: Request) -> Response:
        """Set the cookie if the token is valid, and return to the page that the browser came from."""
        body = (await request.body())[:MAX_TOKEN_BYTES].decode("utf-8", "replace")
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        token, back = fields.get("token", "").strip(), _local(fields.get("next", "/"))
        tokens = self.authentication.tokens
        if tokens is not None and tokens.must_be_read:
            await run_sync(tokens.refresh)
        if self.authentication.access_with(token) is None:
            return HTMLResponse(pages.sign_in_page(back, "This token is unknown, revoked or expired."), 401)
        response = RedirectResponse(back, 303)
        response.set_cookie(
            COOKIE,
            token,
            max_age=int(SIGNED_IN_FOR.total_seconds()),
            # Behind a TLS proxy, the request is http. The guard has checked the page's origin.
            secure="https" in (request.url.scheme, request.headers.get("origin", "").partition(":")[0]),
            httponly=True,
            samesite="lax",  # links from other sites work, and routes that change anything do not accept GET
        )
        return response

    async def sign_out(self) -> Response:
        """Clear the session cookie."""
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="lax")
        return response


def _local(target: str) -> str:
    """Return ``target`` if it is a page on this server, otherwise the start page."""
    is_local = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_local and target.isprintable() else "/"


def _allow_newlines(api: FastAPI) -> None:
    """Allow newlines in document addresses, which Starlette's pattern does not match."""
    for route in api.routes:
        if isinstance(route, Route) and route.path == _DOCUMENT:
            route.path_regex = re.compile("^/d/(?P<address>(?s:.*))$")


def make_app(
    reader: Reader,
    addresses: Collection[str],
    *,
    origins: Collection[str] = (),
    authentication: Authentication | None = None,
    rate_limit: RateLimit | None = None,
    mcp: McpApp | None = None,
    tracer: Tracer | None = None,
    cors_origins: Collection[str] = (),
    hooks: WebhookReceiver | None = None,
) -> ASGIApp:
    """Return the application, which accepts requests for one of ``addresses`` (host:port), and serves ``mcp``.

    MCP is at /mcp. Scripts on pages at ``cors_origins`` may read the API.
    """
    authentication = authentication or Authentication()
    api = FastAPI(
        title="Driftline",
        summary="Search an index's lines, read its documents, and search its memory.",
        version=version("driftline"),
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        default_response_class=JsonAnswer,
        lifespan=(lambda _: mcp.lifespan()) if mcp is not None else None,
    )
    for kind in (DriftlineError, RequestValidationError, HTTPException):
        api.add_exception_handler(kind, _failed)
    api.add_exception_handler(ClientDisconnect, _incomplete)
    api.add_exception_handler(Exception, _unexpected)
    api.add_middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=COMPRESSION_LEVEL)
    api.state.shows_locations = authentication.is_open
    programs, people, sign_in = Api(reader), Pages(reader), SignIn(authentication)
    for name in responses.EXAMPLES:
        route = programs.search_memory if name == "memory/search" else getattr(programs, name)
        checked: dict[str, Any] = {"dependencies": [Depends(only_known_parameters)], "response_model": None}
        api.get(f"/api/v1/{name}", **checked, **responses.described(name))(
            in_thread(route, searches=name in ("search", "sql", "memory/search"))
        )
    if not authentication.is_open:
        responses.with_tokens(api.openapi())
    hidden: dict[str, Any] = {"response_model": None, "include_in_schema": False}
    api.get("/healthz", **hidden)(alive)
    api.get("/readyz", **hidden)(in_thread(readiness(reader.newest)))
    metrics = Metrics.create()
    api.get("/metrics", **hidden)(in_thread(metrics_page(metrics, IndexMetrics(reader.newest, reader.fleets))))
    for target, page in people.routes().items():
        api.get(target, **hidden)(in_thread(page, searches=True))
    _allow_newlines(api)
    for name in pages.STATIC:
        api.get(f"/static/{name}", **hidden)(_static(name))
    api.get(SIGN_IN, **hidden)(sign_in.form)
    api.post(SIGN_IN, **hidden)(sign_in.submit)
    api.post(f"{SIGN_IN}/out", **hidden)(sign_in.sign_out)
    _take(api, hooks, metrics)
    if mcp is not None:
        api.router.routes.append(Route(MCP, mcp, methods=["POST"]))
    return Observed(Guard(api, addresses, origins, cors_origins, authentication, rate_limit), metrics, tracer)


class WebhookReceiver(Protocol):
    """Receives webhooks from git hosts."""

    def receive(self, host: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Return the response status for a delivery and its reason; ``headers`` has lower-case keys."""

    def observe(self, registry: CollectorRegistry) -> None:
        """Add metrics to ``registry``."""


def _take(api: FastAPI, hooks: WebhookReceiver | None, metrics: Metrics) -> None:
    """Add the route and metrics of ``hooks``, if any."""
    if hooks is None:
        return

    async def answer(host: str, request: Request) -> Response:
        body = await request.body()
        status, reason = await run_sync(hooks.receive, host, {**request.headers}, body)
        if status >= HTTPStatus.BAD_REQUEST:
            return problem(status, "access_denied" if status == HTTPStatus.UNAUTHORIZED else "usage", reason)
        return JsonAnswer({"status": reason}, status)

    hooks.observe(metrics.registry)
    api.post(f"{HOOKS}{{host}}", response_model=None, include_in_schema=False)(answer)


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = wrong_parameters(error.errors())
    if isinstance(error, DriftlineError):
        failed = problem_of(error, to_owner=request.app.state.shows_locations)
        if failed.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            log.warning("A request failed: %s", error)
        if is_page(request.url.path):
            request.state.error = failed.kind
            return HTMLResponse(
                pages.error_page(failed.detail, failed.status_code, request.url.path), failed.status_code
            )
        return failed
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND and "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(pages.error_page("There is no such page.", HTTPStatus.NOT_FOUND), HTTPStatus.NOT_FOUND)
    failed = problem(error.status_code, "usage", error.detail)
    failed.headers.update(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        failed.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return failed


def _methods(request: Request) -> set[str]:
    """Return the methods of all routes that have the request's path; the router names those of the first one only."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    found = {method for each in routes if each.path_regex.match(request.url.path) for method in each.methods or ()}
    return found | ({"HEAD"} if "GET" in found else set())


async def _incomplete(_: Request, __: Exception) -> Response:
    """Return a response for a client that disconnected, or whose body the guard cut off. It is never sent."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def _unexpected(request: Request, _: Exception) -> Response:
    """Respond to a request that failed because of a bug; the traceback is in the server's log."""
    failed = problem(INTERNAL_ERROR, UNEXPECTED, "The server failed", fix="Contact the administrator.")
    page = pages.error_page(failed.detail, INTERNAL_ERROR) if is_page(request.url.path) else None
    return failed if page is None else HTMLResponse(page, INTERNAL_ERROR)


def _static(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        # Only pages of this version contain its version name.
        is_named = request.url.query == pages.version_of(name)
        headers = {"Cache-Control": "public, max-age=31536000, immutable"} if is_named else None
        return TaggedAnswer(pages.static(name), media_type=pages.STATIC[name], headers=headers)

    return answer


@dataclass(slots=True)
class McpApp:
    """The application that serves the tools of ``reader`` over stateless streamable HTTP.

    Its libraries take a second to load: the first request waits for them, not server startup.
    """

    reader: Reader
    _app: asyncio.Future[ASGIApp] | None = None
    _serving: asyncio.Task[None] | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = asyncio.get_running_loop().create_future()
            # An empty context: the first request's access must not leak into others.
            self._serving = asyncio.create_task(self._serve(self._app), context=Context())
        app = await asyncio.shield(self._app)
        await app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Stop the application, if it was started, when the context exits."""
        try:
            yield
        finally:
            self._stop.set()
            if self._serving is not None:
                await self._serving

    async def _serve(self, ready: asyncio.Future[ASGIApp]) -> None:
        try:
            answers, app = await run_sync(_application, self.reader)
            async with app.router.lifespan_context(app):
                ready.set_result(answers)
                await self._stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise


def _application(reader: Reader) -> tuple[ASGIApp, Starlette]:
    """Return the application that handles requests, and the one that provides its lifespan."""
    from driftline.flows.mcp_server.server import UNCHECKED, WholePosts, WorkspaceTools, server_of
    from driftline.flows.mcp_server.tools import LineTools, MemoryTools

    lines = LineTools(reader.newest, lambda: granted("search").within, reader.run)
    memory = MemoryTools(reader.search_memory) if reader.memory is not None else None
    server = server_of({"": WorkspaceTools(lines, memory)})
    app = server.streamable_http_app(transport_security=UNCHECKED, stateless_http=True, json_response=True)
    return WholePosts(app), app
