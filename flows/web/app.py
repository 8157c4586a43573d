"""The routes: pages for people, ``/api/v1`` for programs, ``/healthz`` and ``/readyz`` for whoever runs the server."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from driftline.flows.web import pages
from driftline.flows.web.guard import Guard
from driftline.flows.web.problems import JsonAnswer, problem, problem_of, status_of, wrong_parameters
from driftline.flows.web.requests import (
    MAX_EXCERPT_LINES,
    MAX_QUERY_CHARACTERS,
    Around,
    BranchName,
    ExcerptLines,
    Line,
    ModeName,
    Name,
    Names,
    Narrowing,
    Reader,
    Text,
    TopK,
)
from driftline.storage.errors import DriftlineError
from driftline.tasks.search.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K

_PAGE_LINES = 4
"""Lines of context on each side of a hit of the page."""


def make_app(reader: Reader, places: Collection[str]) -> ASGIApp:
    """The application, which answers requests that name one of ``places`` (host:port)."""
    api = FastAPI(
        title="Driftline",
        version=version("driftline"),
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        default_response_class=JsonAnswer,
    )
    for kind in (DriftlineError, RequestValidationError, HTTPException):
        api.add_exception_handler(kind, _failed)
    programs, people = _Api(reader), _Pages(reader)
    for name in ("search", "excerpt", "status", "sources", "branches"):
        api.get(f"/api/v1/{name}", response_model=None)(getattr(programs, name))
    hidden: dict[str, Any] = {"response_model": None, "include_in_schema": False}
    api.get("/healthz", **hidden)(_alive)
    api.get("/readyz", **hidden)(programs.ready)
    api.get("/", **hidden)(people.search)
    api.get("/d", **hidden)(people.document)
    api.get("/static/style.css", **hidden)(_styles)
    return Guard(api, places)


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = wrong_parameters(error.errors())
    if isinstance(error, DriftlineError):
        if request.url.path in ("/", "/d"):
            return HTMLResponse(pages.error_page(str(error)), status_of(error))
        return problem_of(error)
    assert isinstance(error, HTTPException)
    return problem(error.status_code, "usage", error.detail)


async def _alive() -> Response:
    return JsonAnswer({"status": "alive"})


async def _styles() -> Response:
    return Response(pages.style_sheet(), media_type="text/css", headers={"Cache-Control": "no-cache"})


@dataclass(frozen=True, slots=True)
class _Api:
    reader: Reader

    def search(
        self,
        q: Text,
        top_k: TopK = DEFAULT_TOP_K,
        n_lines: Around = DEFAULT_N_LINES,
        mode: ModeName = "hybrid",
        source: Names = None,
        dir: Names = None,
        ext: Names = None,
        glob: Names = None,
        path: Names = None,
        branch: BranchName = None,
    ) -> Response:
        """Find the lines that answer a query, best first, as ``driftline search --json`` prints them."""
        report = self.reader.search(q, Narrowing.of(source, dir, ext, glob, path), top_k, n_lines, mode, branch)
        found = report.to_dict()
        found.pop("explanation", None)
        return JsonAnswer(found)

    def excerpt(
        self, source: Name, path: Name, line: Line, n_lines: ExcerptLines = 20, branch: BranchName = None
    ) -> Response:
        """Read an indexed document around a line. Only indexed documents can be read."""
        return JsonAnswer(self.reader.excerpt(source, path, line, n_lines, branch))

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


@dataclass(frozen=True, slots=True)
class _Pages:
    reader: Reader

    def search(
        self,
        q: str = "",
        mode: Literal["hybrid", "vector", "text"] = "hybrid",
        source: Names = None,
        dir: Names = None,
        ext: Names = None,
        glob: Names = None,
        path: Names = None,
        branch: BranchName = None,
    ) -> Response:
        narrowing = Narrowing.of(source, dir, ext, glob, path)
        asked = pages.Asked(q[:MAX_QUERY_CHARACTERS].strip(), mode, narrowing, branch)
        if not asked.q:
            return HTMLResponse(pages.search_page(asked, ()))
        try:
            report = self.reader.search(asked.q, asked.narrowing, n_lines=_PAGE_LINES, mode=mode, branch=branch)
        except DriftlineError as error:
            return HTMLResponse(pages.search_page(asked, (), str(error)), status_of(error))
        return HTMLResponse(pages.search_page(asked, report.results))

    def document(self, source: Name, path: Name, line: Line = 1, branch: BranchName = None) -> Response:
        excerpt = self.reader.excerpt(source, path, line, MAX_EXCERPT_LINES, branch)
        return HTMLResponse(pages.document_page(excerpt, line, branch))
