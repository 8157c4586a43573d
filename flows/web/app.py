"""The routes: pages for people, ``/api/v1`` for programs, ``/healthz`` and ``/readyz`` for whoever runs the server."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from driftline.flows.web import openapi, pages
from driftline.flows.web.access import granted
from driftline.flows.web.authentication import Authentication
from driftline.flows.web.guard import MCP, SIGN_IN, Guard, is_page
from driftline.flows.web.metrics import IndexMetrics, Metrics
from driftline.flows.web.observing import INTERNAL_ERROR, UNEXPECTED, Observed, Tracer
from driftline.flows.web.page_routes import Pages
from driftline.flows.web.problems import (
    BAD_REQUEST,
    UNAVAILABLE,
    JsonAnswer,
    TaggedAnswer,
    only_known_parameters,
    problem,
    problem_of,
    wrong_parameters,
)
from driftline.flows.web.rate_limit import RateLimit
from driftline.flows.web.requests import (
    MAX_RANK,
    Around,
    BranchName,
    Cursor,
    Dirs,
    DocumentLimit,
    DocumentPath,
    EntityName,
    ExcerptLines,
    Exts,
    Globs,
    Kinds,
    Langs,
    Limits,
    Line,
    MaxDistance,
    MinRelevance,
    ModeName,
    Narrowing,
    Paths,
    Reader,
    SourceName,
    Sources,
    Symbols,
    Tests,
    Text,
    TopK,
    decode_cursor,
    encode_cursor,
    no_such_page,
)
from driftline.flows.web.signing_in import SignIn
from driftline.flows.web.threads import in_thread
from driftline.flows.web.tools import Tools
from driftline.storage.errors import DriftlineError
from driftline.tasks.search.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K
from driftline.tasks.search.documents import DocumentCursor

MIN_COMPRESSED_BYTES = 2_000
COMPRESSION_LEVEL = 4
"""A page of results shrinks to a tenth in half a millisecond."""

_DOCUMENT = "/d/{address:path}"
log = logging.getLogger(__name__)


def make_app(
    reader: Reader,
    places: Collection[str],
    *,
    origins: Collection[str] = (),
    authentication: Authentication | None = None,
    rate_limit: RateLimit | None = None,
    mcp: Tools | None = None,
    tracer: Tracer | None = None,
    cors_origins: Collection[str] = (),
) -> ASGIApp:
    """The application, which answers requests that name one of ``places`` (host:port), and serves ``mcp`` at /mcp.

    Scripts of pages at ``cors_origins`` may read the API.
    """
    authentication = authentication or Authentication()
    api = FastAPI(
        title="Driftline",
        summary="Search the lines of an index, read its documents, and recall what its memory holds.",
        version=version("driftline"),
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        default_response_class=JsonAnswer,
        lifespan=_lifespan_of(mcp) if mcp is not None else None,
    )
    for kind in (DriftlineError, RequestValidationError, HTTPException):
        api.add_exception_handler(kind, _failed)
    api.add_exception_handler(ClientDisconnect, _incomplete)
    api.add_exception_handler(Exception, _unexpected)
    api.add_middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=COMPRESSION_LEVEL)
    api.state.tells_owner = authentication.is_open
    programs, people, sign_in = _Api(reader), Pages(reader), SignIn(authentication)
    for name in openapi.EXAMPLES:
        route = programs.search_memory if name == "memory/search" else getattr(programs, name)
        checked: dict[str, Any] = {"dependencies": [Depends(only_known_parameters)], "response_model": None}
        api.get(f"/api/v1/{name}", **checked, **openapi.described(name))(
            in_thread(route, searches=name in ("search", "memory/search"))
        )
    if not authentication.is_open:
        openapi.with_tokens(api.openapi())
    hidden: dict[str, Any] = {"response_model": None, "include_in_schema": False}
    api.get("/healthz", **hidden)(_alive)
    api.get("/readyz", **hidden)(in_thread(programs.ready))
    metrics = Metrics.create()
    api.get("/metrics", **hidden)(in_thread(_metrics(metrics, IndexMetrics(reader.newest))))
    api.get("/", **hidden)(in_thread(people.search, searches=True))
    api.get(_DOCUMENT, **hidden)(in_thread(people.document, searches=True))
    for route in api.routes:
        if isinstance(route, Route) and route.path == _DOCUMENT:
            route.path_regex = re.compile("^/d/(?P<address>(?s:.*))$")  # that of Starlette knows no newlines
    api.get("/index", **hidden)(in_thread(people.index))
    for name in pages.STATIC:
        api.get(f"/static/{name}", **hidden)(_static(name))
    api.get(SIGN_IN, **hidden)(sign_in.form)
    api.post(SIGN_IN, **hidden)(sign_in.submit)
    api.post(f"{SIGN_IN}/out", **hidden)(sign_in.sign_out)
    if mcp is not None:
        api.router.routes.append(Route(MCP, mcp, methods=["POST"]))
    guarded = Guard(api, places, origins, cors_origins, authentication, rate_limit)
    return Observed(guarded, metrics, tracer)


def _lifespan_of(mcp: Tools) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """What ends ``mcp`` with the application."""
    return lambda _: mcp.lifespan()


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = wrong_parameters(error.errors())
    if isinstance(error, DriftlineError):
        failed = problem_of(error, to_owner=request.app.state.tells_owner)
        if failed.status_code == UNAVAILABLE:
            log.warning("A request failed: %s", error)
        if is_page(request.url.path):
            request.state.error = failed.kind
            return HTMLResponse(pages.error_page(failed.detail), failed.status_code)
        return failed
    assert isinstance(error, HTTPException)
    failed = problem(error.status_code, "usage", error.detail)
    failed.headers.update(error.headers or {})
    return failed


async def _incomplete(_: Request, __: Exception) -> Response:
    """For a client that has gone, or whose body the guard has cut off and answers: nobody hears this."""
    return Response(status_code=BAD_REQUEST)


async def _unexpected(request: Request, _: Exception) -> Response:
    """For a defect; its traceback is in the log of the server."""
    failed = problem(INTERNAL_ERROR, UNEXPECTED, "The server has failed", fix="Tell the owner of the server.")
    return HTMLResponse(pages.error_page(failed.detail), INTERNAL_ERROR) if is_page(request.url.path) else failed


async def _alive() -> Response:
    return JsonAnswer({"status": "alive"})


def _metrics(metrics: Metrics, index: IndexMetrics) -> Callable[[], Response]:
    def answer() -> Response:
        # The last run may be of what lies beyond the boundary of a token.
        may_see_all = granted("metrics").within is None
        return Response(metrics.text(index if may_see_all else None), media_type=CONTENT_TYPE_LATEST)

    return answer


def _static(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        # The name of a version is in the pages of this version only.
        is_named = request.url.query == pages.version_of(name)
        headers = {"Cache-Control": "public, max-age=31536000, immutable"} if is_named else None
        return TaggedAnswer(pages.static(name), media_type=pages.STATIC[name], headers=headers)

    return answer


@dataclass(frozen=True, slots=True)
class _Api:
    reader: Reader

    def search(
        self,
        request: Request,
        q: Text,
        top_k: TopK = DEFAULT_TOP_K,
        n_lines: Around = DEFAULT_N_LINES,
        mode: ModeName = "hybrid",
        source: Sources = (),
        dir: Dirs = (),
        ext: Exts = (),
        glob: Globs = (),
        path: Paths = (),
        lang: Langs = (),
        kind: Kinds = (),
        max_distance: MaxDistance = None,
        min_relevance: MinRelevance = None,
        symbols: Symbols = False,
        tests: Tests = True,
        branch: BranchName = None,
        cursor: Cursor = None,
    ) -> Response:
        """Find the lines that answer a query, best first, as ``driftline search --json`` prints them.

        The link 'next' of the answer leads to the next page.
        """
        begin = decode_cursor(cursor, int)[0] if cursor is not None else 0
        end = min(begin + top_k, MAX_RANK)
        if not 0 <= begin < end:
            raise no_such_page()
        narrowing = Narrowing(source, dir, ext, glob, path, lang, kind)
        limits = Limits(max_distance, min_relevance, symbols, tests)
        report = self.reader.search(q, narrowing, end, n_lines, mode, branch, limits)
        found = replace(report, results=report.results[begin:], explanation=None).to_dict()
        is_last = len(report.results) < end or end == MAX_RANK
        return _page(request, found, None if is_last else encode_cursor(end))

    def excerpt(
        self, source: SourceName, path: DocumentPath, line: Line, n_lines: ExcerptLines = 20, branch: BranchName = None
    ) -> Response:
        """Read an indexed document around a line. Only indexed documents can be read."""
        return JsonAnswer(self.reader.excerpt(source, path, line, n_lines, branch))

    def documents(
        self,
        request: Request,
        limit: DocumentLimit = 100,
        source: Sources = (),
        dir: Dirs = (),
        ext: Exts = (),
        cursor: Cursor = None,
    ) -> Response:
        """List the indexed documents by source and path. The link 'next' of the answer leads to the next page."""
        after = DocumentCursor(*decode_cursor(cursor, str, str)) if cursor is not None else None
        page = self.reader.documents(Narrowing(source, dir, ext), limit, after)
        return _page(request, page.to_dict(), encode_cursor(page.next.source, page.next.path) if page.next else None)

    def search_memory(self, q: Text, top_k: TopK = 5, entity: EntityName = None, mode: ModeName = "hybrid") -> Response:
        """Find the entries of the memory store that answer a query, as ``driftline memory search --json``."""
        return JsonAnswer({"query": q, **self.reader.search_memory(q, top_k, entity, mode)})

    def status(self) -> Response:
        """Show what the workspace holds, as ``driftline status --json`` prints it."""
        return JsonAnswer(self.reader.status())

    def sources(self) -> Response:
        """List the sources of the workspace, as ``driftline sources --json`` prints them."""
        return JsonAnswer(self.reader.sources())

    def branches(self) -> Response:
        """List the branches of the sources, as ``driftline branches --json`` prints them."""
        return JsonAnswer(self.reader.branches())

    def ready(self) -> Response:
        """Whether the workspace can be read."""
        self.reader.newest()
        return JsonAnswer({"status": "ready"})


def _page(request: Request, content: dict[str, Any], cursor: str | None) -> Response:
    """``content`` with a link to the page that begins at ``cursor`` (RFC 8288)."""
    answer = JsonAnswer(content)
    if cursor is not None:
        following = request.url.include_query_params(cursor=cursor)
        answer.headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return answer
