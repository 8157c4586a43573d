"""The pages for people: a search, a document, the index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from driftline.flows.web import pages
from driftline.flows.web.document_view import outline, remote_link, split_address
from driftline.flows.web.problems import problem_of
from driftline.flows.web.requests import (
    MAX_QUERY_CHARACTERS,
    BranchName,
    Dirs,
    Exts,
    Globs,
    Kinds,
    Langs,
    Line,
    Narrowing,
    Paths,
    Reader,
    Sources,
)
from driftline.storage.errors import DriftlineError
from driftline.tasks.search.hits import Hit

_AROUND = 4
"""Lines of context on each side of a hit."""
_SIMILAR = 5
"""Lines like the one that a document is read at."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The routes."""

    reader: Reader

    def search(
        self,
        request: Request,
        q: str = "",
        mode: Literal["hybrid", "vector", "text"] = "hybrid",
        source: Sources = (),
        dir: Dirs = (),
        ext: Exts = (),
        glob: Globs = (),
        path: Paths = (),
        lang: Langs = (),
        kind: Kinds = (),
        branch: BranchName = None,
    ) -> Response:
        """Show the box and, once something is asked, the results."""
        narrowing = Narrowing(source, dir, ext, glob, path, lang, kind)
        asked = pages.Asked(q[:MAX_QUERY_CHARACTERS].strip(), mode, narrowing, branch)
        if not asked.q:
            return HTMLResponse(pages.search_page(asked, ()))
        try:
            report = self.reader.search(asked.q, asked.narrowing, n_lines=_AROUND, mode=mode, branch=branch)
            branches = self.reader.branch_names()
        except DriftlineError as error:
            failed = problem_of(error, to_owner=request.app.state.tells_owner)
            request.state.error = failed.kind
            return HTMLResponse(pages.search_page(asked, (), failed.detail), failed.status_code)
        return HTMLResponse(pages.search_page(asked, report.results, branches=branches, notes=report.notes))

    def document(self, request: Request, line: Line | None = None, branch: BranchName = None) -> Response:
        """Show a document as it was indexed, with lines that are like ``line``."""
        address = request.scope["raw_path"].removeprefix(b"/d/")
        source, path = split_address(address, self.reader.newest().config.hierarchy)
        at = line or 1
        excerpt = self.reader.excerpt(source, path, at, pages.MAX_PAGE_LINES, branch)
        record = self.reader.record_of(source)
        view = pages.DocumentView(
            excerpt=excerpt,
            line=at,
            branch=branch,
            outline=outline(path, excerpt["lines"], excerpt["start_line"]),
            similar=self._similar(excerpt, line, branch) if line is not None else (),
            remote=remote_link(record, path, at, branch) if record is not None else None,
        )
        return HTMLResponse(pages.document_page(view))

    def index(self) -> Response:
        """Show what the index holds, how it grew, and what was skipped."""
        return HTMLResponse(pages.index_page(self.reader.index()))

    def _similar(self, excerpt: dict[str, object], line: int, branch: str | None) -> list[Hit]:
        lines, first = excerpt["lines"], excerpt["start_line"]
        assert isinstance(lines, list)
        assert isinstance(first, int)
        text = lines[line - first][:MAX_QUERY_CHARACTERS].strip() if line - first < len(lines) else ""
        if not text:
            return []
        report = self.reader.search(text, Narrowing(), _SIMILAR + 1, 0, "vector", branch)
        itself = (excerpt["source"], excerpt["path"], line)
        return [hit for hit in report.results if (hit.source, hit.path, hit.line) != itself][:_SIMILAR]
