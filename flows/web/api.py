"""Define the HTTP API: the parameters of requests, their limits, and the responses.

``Reader`` returns plain data, for pages as well; ``Api`` has the routes for programs. The home page gets the index's
size and age; the index page gets statistics, growth, runs, and skipped documents with reasons.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from operator import call
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import TTLCache
from fastapi import Query
from pydantic import Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from driftline.flows.client import ARROW, MAX_SQL_SECONDS
from driftline.flows.output.report_page import newest_runs
from driftline.flows.runs.branches import list_branches
from driftline.flows.search import search
from driftline.flows.web.access import granted
from driftline.flows.web.responses import JsonAnswer
from driftline.storage.entities import Boundary, Entity, is_allowed
from driftline.storage.errors import NotIndexed, UsageError
from driftline.storage.json_records import MAX_CURSOR_CHARACTERS, decode_cursor, encode_cursor
from driftline.storage.option_table import MAX_SERVED_NAMES, Option, given_values, spread
from driftline.storage.shared_cache import SharedCache
from driftline.storage.workspace.branch_cuts import MAX_NAME_CHARACTERS as MAX_BRANCH_CHARACTERS
from driftline.storage.workspace.branch_cuts import branch_records, on_branch
from driftline.storage.workspace.records import DONE, RunRecord, WorkspaceStats
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.documents import (
    DocumentCursor,
    DocumentPage,
    Folder,
    FoundDocuments,
    document_page,
    find_documents,
    read_excerpt,
    read_folder,
)
from driftline.tasks.search.filters import parse_entity
from driftline.tasks.search.hits import Hit, SearchReport
from driftline.tasks.search.ranked import search_ranked
from driftline.tasks.search.request import (
    MEMORY_OPTIONS,
    OPTIONS,
    SearchFilter,
    SearchRequest,
)
from driftline.tasks.search.search import prepare, warm

if TYPE_CHECKING:
    from driftline.flows.served_memory import Memory
    from driftline.storage.memory.entries import MemoryEntry
    from driftline.storage.memory.search import MemoryHits
    from driftline.storage.workspace.fleet_state import FleetRecord

MAX_RUNS = 200
MAX_RECENT_RUNS = 10
"""How many runs the home page searches for the last run that indexed something."""
MAX_SKIPPED_PATHS = 20
"""How many paths to show per reason."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Documents with no lines for the same ``reason``; ``paths`` lists the first few, each with its source."""

    reason: str
    count: int
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class IndexView:
    """The index inside a boundary; ``runs`` are newest first."""

    stats: WorkspaceStats
    skipped: tuple[Skipped, ...]
    runs: tuple[RunRecord, ...]


def index_view(workspace: Workspace, within: Boundary | None = None) -> IndexView:
    """Read the index page's data inside the boundary ``within``. Raises StorageError, CorruptFile."""
    runs = newest_runs(workspace, MAX_RUNS, within=within)
    return IndexView(
        stats=workspace.stats(within),
        skipped=tuple(_skipped(workspace, within)),
        runs=tuple(runs) if within is None else tuple(_within(runs, within)),
    )


@dataclass(frozen=True, slots=True)
class HomeView:
    """The index's sources and totals inside a boundary, and the start of its last complete run."""

    documents: int
    lines: int
    sources: tuple[Mapping[str, Any], ...]
    indexed: datetime | None


def home_view(workspace: Workspace, within: Boundary | None = None) -> HomeView:
    """Read the home page's data. Raises StorageError, CorruptFile."""
    stats = workspace.stats(within)
    recent = newest_runs(workspace, MAX_RECENT_RUNS, within=within)
    runs = (run for run in recent if run.outcome == DONE and run.main_sources)
    last = next((run for run in runs if within is None or any(_within((run,), within))), None)
    indexed = datetime.fromisoformat(last.started).astimezone(UTC) if last is not None else None
    return HomeView(stats.total_documents, stats.total_lines, tuple(stats.sources), indexed)


MAX_SQL_ROWS = 1_000
SQL_SECONDS = 10.0
SQL_BYTES = 2**28
"""Memory limit for a query from the SQL page."""


@dataclass(frozen=True, slots=True)
class SqlView:
    """The first rows of a query, and each column's name and type, which may be a number's.

    ``has_more`` is set if there are more rows.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[object, ...], ...]
    has_more: bool


def sql_view(workspace: Workspace, text: str, within: Boundary | None = None) -> SqlView:
    """Run one SELECT inside the boundary ``within``. Raises the same errors as ``sql_process.query``."""
    from driftline.storage.sql_process import query

    with query(workspace, text, within=within, max_seconds=SQL_SECONDS, max_bytes=SQL_BYTES) as result:
        rows = tuple(islice(result.rows(), MAX_SQL_ROWS + 1))
        shown = rows[:MAX_SQL_ROWS]
        names, types = tuple(result.schema.names), tuple(str(each).partition("(")[0] for each in result.schema.types)
        return SqlView(names, types, tuple(result.numbers), shown, len(rows) > MAX_SQL_ROWS)


MAX_TABLE_ROWS = 100_000
"""Maximum number of rows in a response of the API."""
MAX_TABLE_BYTES = 64 * 2**20


def sql_table(
    workspace: Workspace,
    text: str,
    parameters: Sequence[Any],
    only: Boundary | None,
    seconds: float,
    within: Boundary | None = None,
) -> pa.Table:
    """Run one SELECT inside ``within`` and ``only``.

    Raises the same errors as ``sql_process.query``, and UsageError for too many rows.
    """
    from driftline.storage.sql_process import query

    boundary = within.narrowed(only) if within is not None and only is not None else within or only
    with query(workspace, text, parameters, within=boundary, max_seconds=seconds, max_bytes=SQL_BYTES) as result:
        found, count, size_bytes = [], 0, 0
        for batch in result:
            found.append(batch)
            count += batch.num_rows
            size_bytes += batch.nbytes
            if count > MAX_TABLE_ROWS or size_bytes > MAX_TABLE_BYTES:
                limits = f"{MAX_TABLE_ROWS:,} rows or {MAX_TABLE_BYTES:,} bytes"
                raise UsageError(f"The query returns more than {limits}", fix="Add a LIMIT, or select fewer columns.")
        return pa.Table.from_batches(found, result.schema)


def _skipped(workspace: Workspace, within: Boundary | None) -> list[Skipped]:
    from driftline.storage.sql import views

    counts, paths = Counter[str](), defaultdict[str, list[tuple[str, str]]](list)
    for rows in views(workspace, within)["skipped"].read(
        ["entity", "path", "reason"], None
    ):  # a manifest may have a million
        for counted in pc.value_counts(rows["reason"]).to_pylist():
            reason, missing = counted["values"], MAX_SKIPPED_PATHS - len(paths[counted["values"]])
            counts[reason] += counted["counts"]
            first = rows.filter(pc.equal(rows["reason"], reason)).slice(0, missing)
            paths[reason] += zip(first["entity"].to_pylist(), first["path"].to_pylist(), strict=True)
    return [Skipped(reason, count, tuple(paths[reason])) for reason, count in counts.most_common()]


def _branch_names(workspace: Workspace, *, within: Boundary | None) -> tuple[str, ...]:
    entities = [entity for entity, _ in workspace.readable_sources(within)]
    return tuple(sorted({record.name for each in entities for record in branch_records(workspace, each)}))


def _branches_of(workspace: Workspace, source: str, most: int, *, within: Boundary | None) -> tuple[str, ...]:
    entity = Entity.parse(source, workspace.config.hierarchy)
    if not is_allowed(entity, within):
        return ()
    return tuple(record.name for record in branch_records(workspace, entity, most))


def _within(runs: Iterable[RunRecord], within: Boundary) -> Iterable[RunRecord]:
    """Reduce index run records to the sources inside the boundary ``within``.

    A run's time and cost cover all of its sources, so both are removed.
    """
    for run in runs:
        sources = [
            source
            for source in run.report.get("sources", ())
            if run.kind == "index" and within.allows_name(source["entity"])
        ]
        if sources:
            failed = {failure["uri"] for failure in run.report.get("failed", ())}
            outcome = run.outcome
            if failed:  # the outcome is one source's
                outcome = "failed" if any(source["uri"] in failed for source in sources) else DONE
            yield replace(run, report={"sources": sources}, seconds=0.0, outcome=outcome)


MAX_QUERY_CHARACTERS = 2_000
MAX_EXCERPT_LINES = 500
"""Maximum number of context lines on each side of the requested line."""
MAX_NAME_CHARACTERS = 4_096
MAX_SYMBOL_CHARACTERS = 200
MAX_LINE_NUMBER = 2**31 - 1
MAX_DOCUMENTS = 1_000
MAX_RANK = 200
"""Results beyond this rank are not served."""
FOLDERS_SECONDS = 60.0
VIEW_SECONDS, MAX_VIEWS = 10.0, 1_000
"""How long, and how many, views are kept. They depend on the boundary."""
MAX_ENTRIES = 1_000
"""Maximum number of entries to show for a folder."""

_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]
_Absent: TypeAlias = SkipJsonSchema[None]
"""None, which schemas omit."""
_Answer = TypeVar("_Answer")
_Parts = TypeVar("_Parts")
_CursorText = Annotated[str, Field(min_length=1, max_length=MAX_CURSOR_CHARACTERS)]

Text = Annotated[str, Query(min_length=1, max_length=MAX_QUERY_CHARACTERS, description="The text to search for.")]
SearchText = Annotated[
    str, Query(max_length=MAX_QUERY_CHARACTERS, description="The text to search for; empty with only exact text.")
]
SourceName = Annotated[_Name, Query(description="The document's source.")]
DocumentPath = Annotated[_Name, Query(description="The document's path in its source.")]
Line = Annotated[int, Query(ge=1, le=MAX_LINE_NUMBER, description="The line to read around, 1-based.")]
ExcerptLines = Annotated[int, Query(ge=0, le=MAX_EXCERPT_LINES, description="Lines of context on each side.")]
BranchName = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_BRANCH_CHARACTERS)] | SkipJsonSchema[None],
    Query(description="Read the document on this branch."),
]
SymbolName = Annotated[str, Query(min_length=1, max_length=MAX_SYMBOL_CHARACTERS, description="The name in code.")]
DocumentLimit = Annotated[int, Query(ge=1, le=MAX_DOCUMENTS, description="Maximum number of documents.")]
PageCursor = Annotated[
    _CursorText | SkipJsonSchema[None],
    Query(description="Start of the page, from the 'next' link."),
]
SqlParameters = Annotated[
    str, Query(max_length=MAX_QUERY_CHARACTERS, description="The values for each ``?`` in the query, as a JSON list.")
]
SqlSeconds = Annotated[
    float, Query(gt=0, le=MAX_SQL_SECONDS, description="Interrupt the query after this time, in seconds.")
]
RunLimit = Annotated[int, Query(ge=1, le=MAX_RUNS, description="Maximum number of runs.")]
EntityName = Annotated[_Name | SkipJsonSchema[None], Query(description="Limit to this entity and its descendants.")]


def parse_cursor(kind: type[_Parts], cursor: str) -> _Parts:
    """Return the parts of a cursor. Raises NotIndexed for any other text."""
    try:
        return decode_cursor(kind, cursor)
    except ValueError:
        raise no_such_page() from None


def no_such_page() -> NotIndexed:
    """Return the error for an invalid cursor."""
    return NotIndexed("There is no page at this cursor", "cursor", "Follow the 'next' link of a response.")


def parameters(options: Mapping[str, Option]) -> list[inspect.Parameter]:
    """Return a request's options as route parameters, within the limits for servers."""
    return [_parameter(row) for row in options.values()]


def given_by(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameter values that were given, keyed by option name."""
    return given_values(OPTIONS.given_by("parameter", parameters))


def _parameter(row: Option) -> inspect.Parameter:
    kind, default, most = _type_of(row), row.default, None
    if row.is_list:
        kind, default, most = GenericAlias(tuple, (kind, ...)), (), MAX_SERVED_NAMES
    elif default is None:
        kind |= _Absent
    about = Query(max_length=most, description=row.help)
    return row.keyword(Annotated[kind, about], default, name=row.parameter)


def _type_of(row: Option) -> Any:
    """Return the type and limits of one value; the names to choose from are only in the schema."""
    if row.choices and not row.is_list:
        return Literal[row.choices]
    if row.type is str:
        name = Annotated[str, Field(min_length=1, max_length=row.max_characters)]
        return Annotated[name, WithJsonSchema({"type": "string", "enum": list(row.choices)})] if row.choices else name
    low, high = row.limits(served=True)
    return row.type if low is None else Annotated[row.type, Field(ge=low, le=high)]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads from the workspace that ``newest`` opens for each request, so a response does not mix versions.

    Every method enforces the request's access, and raises AccessDenied if there is none.
    """

    newest: Callable[[], Workspace]
    memory: Callable[[], Memory] | None = None
    """Returns the memory's location; called on the first memory request."""
    run: Callable[..., Any] = call
    """Runs a read of the index, in this or another process (search_processes.py)."""
    fleets: Callable[[], Mapping[str, FleetRecord]] = dict
    """Returns the state of the fleets, which a copy does not have."""
    _folders: SharedCache[tuple[Boundary | None, str], str] = field(
        default_factory=lambda: SharedCache(TTLCache(10_000, FOLDERS_SECONDS)), compare=False
    )
    _views: SharedCache[tuple[object, ...], Any] = field(
        default_factory=lambda: SharedCache(TTLCache(MAX_VIEWS, VIEW_SECONDS)), compare=False
    )

    def warm(self) -> None:
        """Load data for the first request. Raises the same errors as a search."""
        self.run(warm, self.newest())

    def prepare(self) -> None:
        """Load data for later requests. Raises the same errors as a search."""
        self.run(prepare, self.newest())

    def search(self, request: SearchRequest) -> SearchReport:
        """Search, and record the search in the journal. Raises the same errors as ``driftline.search``."""
        return search(self.newest(), request, within=granted("search").within, run=self.run)

    def similar(self, text: str, limit: int, branch: str | None) -> tuple[Hit, ...]:
        """Return the lines semantically closest to the unparsed ``text``.

        Raises the same errors as ``driftline.search``.
        """
        within = granted("search").within
        request = SearchRequest(text, top_k=limit, n_lines=0, mode="vector", within=within)
        report: SearchReport = self.run(search_ranked, self._on(branch, within), request)
        return report.results

    def excerpt(self, source: str, path: str, line: int, n_lines: int, branch: str | None = None) -> dict[str, Any]:
        """Return lines of an indexed document. Raises the same errors as ``read_excerpt``."""
        found = asdict(self._read(read_excerpt, path, line, n_lines=n_lines, source=source, branch=branch))
        return {**found, "lines": list(found["lines"])}

    def status(self) -> dict[str, Any]:
        """Return the ``driftline status --json`` object."""
        return asdict(self._read(Workspace.stats))

    def sources(self) -> dict[str, Any]:
        """Return the ``driftline sources --json`` object."""
        stats = self._read(Workspace.stats)
        return {"workspace": stats.workspace, "sources": list(stats.sources)}

    def branches(self) -> dict[str, Any]:
        """Return the ``driftline branches --json`` object."""
        within, workspace = granted("search").within, self.newest()
        found = [branch.to_dict() for branch in self.run(list_branches, workspace, within)]
        return {"workspace": workspace.objects.uri, "branches": found}

    def documents(self, only: SearchFilter, limit: int, after: DocumentCursor | None) -> DocumentPage:
        """Return the documents that follow ``after``, sorted by source and path. Raises BadEntity, UsageError."""
        within, workspace = granted("search").within, self.newest()
        sources = [parse_entity(each, workspace.config.hierarchy) for each in only.sources or ()] or None
        dirs, exts = only.dirs or (), only.exts or ()
        page: DocumentPage = self.run(
            document_page, workspace, sources, dirs, exts, within=within, limit=limit, after=after
        )
        return page

    def folder(self, source: str, path: str, branch: str | None = None) -> Folder:
        """Return a folder's content; at most VIEW_SECONDS old. Raises NotIndexed, BadEntity."""
        return self._view(read_folder, source, path, branch=branch, limit=MAX_ENTRIES)

    def find(self, text: str, source: str | None, branch: str | None, limit: int) -> FoundDocuments:
        """Return the documents whose paths contain the characters of ``text`` in order, best first."""
        return self._view(find_documents, text, source, branch=branch, limit=limit)

    def branch_names(self) -> tuple[str, ...]:
        """Return the sorted branch names of all sources; at most VIEW_SECONDS old."""
        return self._view(_branch_names, run=call)

    def branches_of(self, source: str, most: int) -> tuple[str, ...]:
        """Return the names of a source's first ``most`` branches; at most VIEW_SECONDS old."""
        return self._view(_branches_of, source, most, run=call)

    def folder_of(self, source: str) -> str:
        """Return the source's folder in its repository, "" for the whole repository; at most FOLDERS_SECONDS old."""
        within = granted("search").within

        def read() -> str:
            workspace = self.newest()
            entity = Entity.parse(source, workspace.config.hierarchy)
            record = workspace.readable_source(entity) if is_allowed(entity, within) else None
            return record.subpath.strip("/") if record is not None else ""

        return self._folders.get_or_compute((within, source), read)

    def home(self) -> HomeView:
        """Return the home page's data; at most VIEW_SECONDS old."""
        return self._view(home_view)

    def index(self) -> IndexView:
        """Return the index's statistics, runs and skipped documents; at most VIEW_SECONDS old."""
        return self._view(index_view)

    def sql(self, text: str) -> SqlView:
        """Run one SELECT, which may also read memory, and return its rows."""
        granted("memory")
        return self._read(sql_view, text)

    def table(
        self, text: str, parameters: Sequence[Any], within: str | None, branch: str | None, seconds: float
    ) -> pa.Table:
        """Run one SELECT, which may also read memory, and return its rows. Raises BadEntity, UsageError."""
        granted("memory")
        only = Boundary.of(parse_entity(within, self.newest().config.hierarchy)) if within is not None else None
        return self._read(sql_table, text, parameters, only, seconds, branch=branch)

    def runs(self, limit: int) -> dict[str, Any]:
        """Return the newest ``limit`` runs."""
        within = granted("search").within
        runs = self._read(newest_runs, limit if within is None else MAX_RUNS)
        return {"runs": [asdict(run) for run in (runs if within is None else islice(_within(runs, within), limit))]}

    def search_memory(self, query: str, **options: Any) -> MemoryHits[MemoryEntry]:
        """Return the memory entries that match a query best. Raises NotIndexed if there is no memory."""
        within = granted("memory").within
        from driftline.flows.served_memory import no_memory, search_memory

        if self.memory is None:
            raise no_memory()
        memory = self.memory()
        hits: MemoryHits[MemoryEntry] = self.run(
            search_memory, memory.workspace, memory.configuration, within, query, **options
        )
        return hits

    def _read(
        self,
        function: Callable[..., _Answer],
        *args: Any,
        branch: str | None = None,
        run: Callable[..., Any] | None = None,
        **options: Any,
    ) -> _Answer:
        """Run a read of the newest version on ``branch``, inside the request's boundary."""
        within = granted("search").within
        answer: _Answer = (run or self.run)(function, self._on(branch, within), *args, within=within, **options)
        return answer

    def _view(self, function: Callable[..., _Answer], *args: Any, **options: Any) -> _Answer:
        """Like ``_read``, but return what the same read returned in the last VIEW_SECONDS, if any."""
        key = (function, granted("search").within, args, tuple(options.items()))
        answer: _Answer = self._views.get_or_compute(key, lambda: self._read(function, *args, **options))
        return answer

    def _on(self, branch: str | None, within: Boundary | None) -> Workspace:
        workspace = self.newest()
        return on_branch(workspace, branch, within) if branch is not None else workspace


@dataclass(frozen=True, slots=True)
class Api:
    """The routes of ``/api/v1``."""

    reader: Reader

    @spread("given", parameters(OPTIONS.offered_in("http")))
    def search(
        self, request: Request, q: SearchText = "", *, given: dict[str, Any], cursor: PageCursor = None
    ) -> Response:
        """Find the lines that match a query best, as in ``driftline search --json``.

        The response's 'next' link points to the next page.
        """
        begin = parse_cursor(tuple[int], cursor)[0] if cursor is not None else 0
        search = SearchRequest.of(q, given_by(given))
        if search.is_empty:
            raise UsageError("The parameter q is missing", fix="Pass words in q, or exact text in fixed or regex.")
        end = min(begin + search.top_k, MAX_RANK)
        if not 0 <= begin < end:
            raise no_such_page()
        report = self.reader.search(replace(search, top_k=end))
        found = replace(report, results=report.results[begin:]).to_dict()
        is_last = len(report.results) < end or end == MAX_RANK
        return _page(request, found, None if is_last else encode_cursor(end))

    def excerpt(
        self, source: SourceName, path: DocumentPath, line: Line, n_lines: ExcerptLines = 20, branch: BranchName = None
    ) -> Response:
        """Read an indexed document around a line. Only indexed documents can be read."""
        return JsonAnswer(self.reader.excerpt(source, path, line, n_lines, branch))

    @spread("given", parameters(OPTIONS.offered_in("http", "sources", "dirs", "exts")))
    def documents(
        self, request: Request, limit: DocumentLimit = 100, *, given: dict[str, Any], cursor: PageCursor = None
    ) -> Response:
        """List the documents, sorted by source and path. The response's 'next' link points to the next page."""
        after = DocumentCursor(*parse_cursor(tuple[str, str], cursor)) if cursor is not None else None
        page = self.reader.documents(SearchRequest.of("", given_by(given)), limit, after)
        return _page(request, page.to_dict(), encode_cursor(page.next.source, page.next.path) if page.next else None)

    @spread("given", parameters({name: MEMORY_OPTIONS[name] for name in ("top_k", "mode", "max_distance")}))
    def search_memory(self, q: Text, entity: EntityName = None, *, given: dict[str, Any]) -> Response:
        """Find the memory entries that match a query best, as in ``driftline memory search --json``."""
        from driftline.flows.memory_backend import hits_to_dict  # its libraries take half a second to load

        return JsonAnswer({"query": q, **hits_to_dict(self.reader.search_memory(q, scope=entity, **given))})

    def sql(
        self,
        request: Request,
        q: Text,
        parameters: SqlParameters = "[]",
        within: EntityName = None,
        branch: BranchName = None,
        timeout_seconds: SqlSeconds = SQL_SECONDS,
    ) -> Response:
        """Run one SELECT, as in ``driftline sql --json``; if the request accepts it, return an Arrow stream."""
        from driftline.storage.sql import as_json, rows_of

        found = self.reader.table(q, _values(parameters), within, branch, timeout_seconds)
        if ARROW in request.headers.get("accept", ""):
            with pa.BufferOutputStream() as buffer:
                with pa.ipc.new_stream(buffer, found.schema) as writer:
                    writer.write_table(found)
                return Response(buffer.getvalue().to_pybytes(), media_type=ARROW)
        rows = [dict(zip(found.schema.names, row, strict=True)) for row in rows_of(found)]
        text = json.dumps({"columns": found.schema.names, "rows": rows}, default=as_json)
        return JsonAnswer(json.loads(text, parse_constant=lambda _: None))  # JSON has no NaN and infinity

    def runs(self, limit: RunLimit = 20) -> Response:
        """List the newest runs with their reports."""
        return JsonAnswer(self.reader.runs(limit))

    def status(self) -> Response:
        """Show workspace statistics, as in ``driftline status --json``."""
        return JsonAnswer(self.reader.status())

    def sources(self) -> Response:
        """List the workspace's sources, as in ``driftline sources --json``."""
        return JsonAnswer(self.reader.sources())

    def branches(self) -> Response:
        """List the sources' branches, as in ``driftline branches --json``."""
        return JsonAnswer(self.reader.branches())


def _values(parameters: str) -> list[Any]:
    try:
        found = json.loads(parameters)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or any(isinstance(each, list | dict) for each in found):
        raise UsageError("Query parameters must be a JSON list of values", parameters, 'Use ["md", 3].')
    return found


def _page(request: Request, content: dict[str, Any], cursor: str | None) -> Response:
    """Return ``content`` with a link to the page that starts at ``cursor`` (RFC 8288)."""
    answer = JsonAnswer(content)
    if cursor is not None:
        following = request.url.include_query_params(cursor=cursor)
        answer.headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return answer
