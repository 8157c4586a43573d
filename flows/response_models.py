"""Define the response models of the HTTP API, for the server's OpenAPI document and for clients."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from driftline.flows.runs.branches import BranchReport
from driftline.storage.workspace.records import RunRecord, WorkspaceStats
from driftline.tasks.search.documents import Document, Excerpt
from driftline.tasks.search.facets import Facets
from driftline.tasks.search.hits import ExactCounts, Hit, SearchReport


class ExactMatches(BaseModel):
    """How many lines and documents match the exact ``terms``; ``reason`` explains why the counts are incomplete.

    ``partial`` documents are indexed only at both ends.
    """

    lines: int
    documents: int
    complete: bool
    reason: Literal["limit", "time", "partial"] | None = None
    partial: int = 0
    terms: tuple[str, ...] = ()


class FileCounts(BaseModel):
    """How many files match, keyed by parameter and value; unless ``complete`` is set, there may be more."""

    complete: bool
    files: dict[str, dict[str, int]]


class SearchResponse(BaseModel):
    """Windows of lines, best first; if there are none, the reasons, and the nearest line that passes the filters.

    ``exact`` counts all matches of an exact search, including those not in ``results``; ``facets`` counts files.
    """

    query: str
    results: list[Hit]
    notes: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    nearest: Hit | None = None
    exact: ExactMatches | None = None
    facets: FileCounts | None = None

    def report(self) -> SearchReport:
        """Convert the response to the library's report."""
        counts = self.exact
        exact = ExactCounts(**counts.model_dump(exclude={"complete"})) if counts is not None else None
        facets = Facets.of(self.facets.files, complete=self.facets.complete) if self.facets is not None else None
        found = (self.notes, self.nearest, self.unmatched, exact, facets)
        return SearchReport(self.query, tuple(self.results), None, *found)


class DocumentsAnswer(BaseModel):
    """A page of documents, sorted by source and path."""

    documents: list[Document]


class SourceAnswer(BaseModel):
    """A source, and how much of it is indexed."""

    entity: str
    uri: str
    documents: int
    lines: int


class SourcesAnswer(BaseModel):
    """The sources of a workspace."""

    workspace: str
    sources: list[SourceAnswer]


class BranchesAnswer(BaseModel):
    """The branches of a workspace's sources."""

    workspace: str
    branches: list[BranchReport]


class RunsAnswer(BaseModel):
    """The newest runs, with their reports."""

    runs: list[RunRecord]


class SqlAnswer(BaseModel):
    """A query's rows as objects."""

    columns: list[str]
    rows: list[dict[str, Any]]


class RecordAnswer(BaseModel):
    """A memory entry."""

    key: str
    value: Any
    entity: str
    metadata: dict[str, Any]
    size_bytes: int
    content_hash: str
    created: str
    updated: str
    expires: str | None


class EntryAnswer(BaseModel):
    """A memory entry that matches a query."""

    record: RecordAnswer
    score: float
    rank: int
    distance: float


class MemoryResponse(BaseModel):
    """Memory entries, best first; ``notes`` say why there are none, or no good ones."""

    query: str
    results: list[EntryAnswer]
    notes: list[str]


class ProblemDetails(BaseModel):
    """An error (RFC 9457); ``error``, ``where`` and ``fix`` are the same as with ``--json``."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    where: str
    fix: str


ANSWERS: dict[str, type] = {
    "search": SearchResponse,
    "excerpt": Excerpt,
    "documents": DocumentsAnswer,
    "status": WorkspaceStats,
    "sources": SourcesAnswer,
    "branches": BranchesAnswer,
    "runs": RunsAnswer,
    "sql": SqlAnswer,
    "memory/search": MemoryResponse,
}
"""The response model of each route."""
