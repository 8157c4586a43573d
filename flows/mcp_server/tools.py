"""Define the MCP tools and their results. They are read-only, and failures are protocol errors (``is_error``).

Clients see the tools' docstrings and parameter descriptions, and the schemas of the results, which are pydantic models.
A result's text gives the essentials in few tokens, and fits into ``max_tokens``: context is trimmed first, then the
last results are omitted. It ends with the number of omitted results and how to get them.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import call
from typing import Annotated, Any, Literal, ParamSpec

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from driftline.flows.response_models import ExactMatches
from driftline.flows.search import search
from driftline.storage.defaults import CUT, MAX_SHOWN_CHARACTERS, is_clipped
from driftline.storage.entities import Boundary
from driftline.storage.errors import DriftlineError, UsageError, is_panic, native_crash_error
from driftline.storage.lines.regex_patterns import MAX_PATTERN_CHARACTERS
from driftline.storage.memory.entries import MemoryEntry
from driftline.storage.memory.search import MemoryHit, MemoryHits
from driftline.storage.option_table import MAX_SERVED_NAMES, Option, spread
from driftline.storage.workspace.records import WorkspaceStats
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.documents import Excerpt, read_excerpt
from driftline.tasks.search.hits import Hit, SearchReport, clipped
from driftline.tasks.search.query_language import field_term
from driftline.tasks.search.request import FILTERS, Mode, SearchRequest, options_in, without_empty

MAX_SOURCES = 100
MAX_LINE_CHARACTERS = MAX_SHOWN_CHARACTERS
BYTES_PER_TOKEN = 4
"""UTF-8 bytes per token: a rule of thumb, since the client's tokenizer is unknown."""
MIN_TOKENS, DEFAULT_TOKENS, MAX_TOKENS = 200, 8_000, 16_000
MAX_ANSWER_BYTES = MAX_TOKENS * BYTES_PER_TOKEN
"""Size limit of a result's text, to save the model's context."""
_CONTEXTS = (2, 1, 0)
"""Lines of context on each side, tried in order if the requested number does not fit."""
_RESERVED_BYTES = 300
"""Bytes of each result that are reserved for the note on omitted results."""


class LinesFound(BaseModel):
    """A window of lines; ``file`` is a path to open. Numbers are 1-based; ``line`` and ``text`` are its best line,
    which matches at ``column`` inside the definition ``symbol``. ``anchor`` is the position in a document, such as a
    page or a cell; append ``#`` and ``fragment`` to open it. ``url`` is the permalink. Results are sorted by ``score``.
    """

    path: str
    file: str | None
    source: str
    line: int
    column: int
    start_line: int
    end_line: int
    score: float | None
    distance: float | None
    relevance: float
    rank: int
    text: str
    context: list[str]
    symbol: str | None = None
    kind: str | None = None
    symbol_start: int | None = None
    symbol_end: int | None = None
    label: Literal["strong", "likely", "weak"] | None = None
    copies: list[str] = []
    anchor: str | None = None
    fragment: str | None = None
    url: str | None = None


class SearchAnswer(BaseModel):
    """Windows of lines, best first. ``truncated``: lines were cut or windows omitted to keep the result short.

    ``found`` counts the windows before truncation; ``more`` explains what is missing and how to get it. ``exact``
    counts all matches of an exact search, including those not in ``results``.

    ``notes`` explain why there are no results, or that no result is a good match. If there are no results, ``nearest``
    is the nearest line that passes the filters.
    """

    query: str
    results: list[LinesFound]
    truncated: bool
    found: int = 0
    more: str | None = None
    notes: list[str] = []
    nearest: LinesFound | None = None
    exact: ExactMatches | None = None

    def text(self) -> str:
        """Format the result like grep, with each window below its definition."""
        several = len({window.source for window in self.results}) > 1
        shown = [shown_lines(window, with_source=several) for window in self.results]
        if self.exact is not None:
            least = "" if self.exact.complete else "at least "
            documents = f"{self.exact.documents:,} document{'' if self.exact.documents == 1 else 's'}"
            lines = f"{least}{self.exact.lines:,} in " if self.exact.lines or not self.exact.documents else ""
            shown.append(f"matches: {lines}{least}{documents}")
        if self.nearest is not None:
            shown.append(f"nearest: {shown_lines(self.nearest, with_source=True)}")
        return "\n".join([*shown, *self.notes, *filter(None, [self.more])]) or "No results."


class SourceStatus(BaseModel):
    """An indexed source."""

    entity: str
    uri: str
    documents: int
    lines: int


class IndexStatus(BaseModel):
    """Workspace statistics; ``sources_left_out`` counts the sources that are not listed."""

    workspace: str
    total_documents: int
    total_lines: int
    has_index: bool
    index_type: str | None
    model: str | None
    sources: list[SourceStatus]
    sources_left_out: int


class ContextAnswer(BaseModel):
    """A document's lines as indexed; ``current``: the document has not changed since.

    ``url`` is a permalink to the requested line; ``more`` lists the lines that were cut. ``anchors`` are positions in
    the document, such as pages or cells, each with its first line here.
    """

    path: str
    source: str
    start_line: int
    end_line: int
    lines: list[str]
    current: bool
    truncated: bool
    url: str | None = None
    more: str | None = None
    anchors: list[tuple[int, str]] = []

    def text(self) -> str:
        """Format the location, and the numbered lines below their anchors' names."""
        location = f"{self.path}:{self.start_line}-{self.end_line}{f'  {self.url}' if self.url else ''}"
        changed = [] if self.current else ["The document has since changed or been deleted."]
        names: dict[int, list[str]] = {}
        for number, name in self.anchors:
            names.setdefault(number, []).append(f"[{name}]")
        numbered = [
            "\n".join([*names.get(number, ()), f"{number}: {line}"])
            for number, line in enumerate(self.lines, start=self.start_line)
        ]
        return "\n".join([location, *changed, *numbered, *filter(None, [self.more])])


def shown_lines(window: LinesFound, *, with_source: bool) -> str:
    """Format a window: a single line as ``path:line:text``, several lines below a heading with their definition."""
    source = f"{window.source} " if with_source else ""
    about = [f"{window.kind} {window.symbol}"] if window.symbol else []
    about += [each for each in (window.anchor, window.label) if each]
    tail = f"  ({', '.join(about)})" if about else ""
    if len(window.context) <= 1:
        return f"{source}{window.path}:{window.line}:{window.text}{tail}"
    lines = [f"{source}{window.path}:{window.line}{tail}"]
    for number, line in enumerate(window.context, start=window.start_line):
        lines.append(f"{number}{':' if number == window.line else '-'} {line}")
    return "\n".join(lines)


def search_answer(report: SearchReport, max_tokens: int = DEFAULT_TOKENS) -> SearchAnswer:
    """Return the first results whose text fits into ``max_tokens``, but at least one."""
    exact = ExactMatches(**report.exact.to_dict()) if report.exact else None
    nearest = _lines_found(report.nearest, list(report.nearest.context)) if report.nearest else None
    notes = list(report.notes)
    budget = max_tokens * BYTES_PER_TOKEN - _RESERVED_BYTES - sum(map(len, notes))
    several = len({hit.source for hit in report.results}) > 1

    def size(window: LinesFound) -> int:
        return len(shown_lines(window, with_source=several).encode("utf-8", "surrogatepass")) + 1

    every = [_lines_found(hit, [clipped(line) for line in hit.context]) for hit in report.results]
    needed, windows = sum(map(size, every)), every
    for n_lines in _CONTEXTS if needed > budget else ():
        windows = [_lines_found(hit, *_trimmed(hit, n_lines)) for hit in report.results]
        if sum(map(size, windows)) <= budget:
            break
    results: list[LinesFound] = []
    for window in windows:
        left, budget = budget, budget - size(window)
        if budget < 0 and results:
            break
        results.append(window if budget >= 0 else _cut(window, left - size(window) + len(window.text.encode())))
    was_cut = needed > max_tokens * BYTES_PER_TOKEN - _RESERVED_BYTES
    return SearchAnswer(
        query=report.query,
        results=results,
        truncated=was_cut or any(is_clipped(line) for window in results for line in window.context),
        found=len(report.results),
        more=_more(len(results), len(every), needed, max_tokens) if results != every else None,
        notes=notes,
        nearest=nearest,
        exact=exact,
    )


def _more(shown: int, found: int, needed: int, max_tokens: int) -> str:
    """Return the note on omitted results, and how to get them."""
    tokens = (needed + _RESERVED_BYTES) // BYTES_PER_TOKEN + 1
    what = f"{shown} of {found} results shown" if shown < found else "The context is shortened"
    how = f"max_tokens={tokens} shows all" if tokens <= MAX_TOKENS else "narrow the search by path, language or source"
    return f"{what} (max_tokens={max_tokens}): {how}; read_context reads around a line."


def _trimmed(hit: Hit, n_lines: int) -> tuple[list[str], int]:
    """Return the best line with up to ``n_lines`` of context on each side, and the first line's number."""
    best = hit.line - hit.start_line
    first = max(0, best - n_lines)
    return [clipped(line) for line in hit.context[first : best + n_lines + 1]], hit.start_line + first


def _cut(window: LinesFound, budget: int) -> LinesFound:
    """Reduce a window to its best line, truncated to ``budget`` bytes."""
    text = window.text.encode("utf-8", "replace")[: max(0, budget)].decode("utf-8", "ignore") + CUT
    return window.model_copy(
        update={"text": text, "context": [text], "start_line": window.line, "end_line": window.line}
    )


def _lines_found(hit: Hit, context: list[str], start_line: int | None = None) -> LinesFound:
    fields = {name: getattr(hit, name) for name in LinesFound.model_fields}
    first = hit.start_line if start_line is None else start_line
    of_context = {"context": context, "start_line": first, "end_line": first + len(context) - 1}
    return LinesFound(**fields | of_context | {"copies": list(hit.copies)})


def index_status(stats: WorkspaceStats) -> IndexStatus:
    """Return ``stats`` with at most MAX_SOURCES sources."""
    return IndexStatus(
        workspace=stats.workspace,
        total_documents=stats.total_documents,
        total_lines=stats.total_lines,
        has_index=stats.has_index,
        index_type=stats.index_type,
        model=stats.model,
        sources=[SourceStatus.model_validate(source) for source in stats.sources[:MAX_SOURCES]],
        sources_left_out=max(0, len(stats.sources) - MAX_SOURCES),
    )


def context_answer(excerpt: Excerpt, line: int, max_tokens: int = DEFAULT_TOKENS) -> ContextAnswer:
    """Return the lines of ``excerpt`` around ``line`` that fit into ``max_tokens``."""
    lines = [clipped(each) for each in excerpt.lines]
    first, last = _around(lines, line - excerpt.start_line, max_tokens * BYTES_PER_TOKEN - _RESERVED_BYTES)
    kept, start_line = lines[first:last], excerpt.start_line + first
    end_line, whole = start_line + len(kept) - 1, (excerpt.start_line, excerpt.start_line + len(lines) - 1)
    more = None
    if len(kept) < len(lines):
        more = f"Lines {start_line} to {end_line} of {whole[0]} to {whole[1]} fit (max_tokens={max_tokens}): "
        more += "call read_context again with another line for the rest."
    return ContextAnswer(
        path=excerpt.path,
        source=excerpt.source,
        start_line=start_line,
        end_line=end_line,
        lines=kept,
        current=excerpt.current,
        truncated=more is not None or any(map(is_clipped, kept)),
        url=excerpt.url,
        more=more,
        anchors=_anchors_between(excerpt.anchors, start_line, end_line),
    )


def _anchors_between(anchors: Sequence[tuple[int, str]], first: int, last: int) -> list[tuple[int, str]]:
    """Return the anchors of lines ``first`` to ``last``; an anchor applies until the next one."""
    ends = [at - 1 for at, _ in anchors[1:]] + [last]
    inside = zip(anchors, ends, strict=True) if anchors else ()
    return [(max(at, first), name) for (at, name), end in inside if at <= last and end >= first]


def _around(lines: Sequence[str], middle: int, budget: int) -> tuple[int, int]:
    """Return the bounds of the lines around ``middle`` that fit into ``budget`` bytes, the same number on each side."""
    sizes = [len(line.encode("utf-8", "surrogatepass")) + len("000000: \n") for line in lines]
    first, last = middle, middle + 1
    budget -= sizes[middle]
    while first > 0 or last < len(lines):
        added = [at for at in (first - 1, last) if 0 <= at < len(lines)]
        budget -= sum(sizes[at] for at in added)
        if budget < 0:
            break
        first, last = max(0, first - 1), min(len(lines), last + 1)
    return first, last


MAX_FIELD_CHARACTERS = 4_000
"""Size limit for a value, and for metadata, as JSON."""
FilterValue = str | int | float | bool | list[str | int | float | bool] | None


class MemoryRecord(BaseModel):
    """An entry.

    ``cut`` lists fields that were too long: a value is reduced to the start of its JSON, metadata to {}.
    """

    key: str
    value: Any
    entity: str
    metadata: dict[str, Any]
    created: str
    updated: str
    expires: str | None
    cut: list[str]


class MemoryResult(BaseModel):
    """An entry that matches the query. Results are sorted by ``score``; ``distance`` is 1 - cosine."""

    record: MemoryRecord
    score: float
    rank: int
    distance: float


class MemoryAnswer(BaseModel):
    """Entries, best first. ``truncated``: fields were cut or entries omitted to keep the result short.

    ``found`` counts the entries before truncation; ``more`` explains what is missing and how to get it.
    """

    query: str
    results: list[MemoryResult]
    truncated: bool
    found: int = 0
    more: str | None = None

    def text(self) -> str:
        """Format each entry as one line: its owner, key and value."""
        shown = (f"{each.record.entity} {each.record.key}: {_as_json(each.record.value)}" for each in self.results)
        return "\n".join([*shown, *filter(None, [self.more])]) or "No results."


def memory_answer(query: str, hits: Iterable[MemoryHit[MemoryEntry]], max_bytes: int) -> MemoryAnswer:
    """Return the first ``hits`` of ``query`` that fit into ``max_bytes`` of JSON, but at least one."""
    results: list[MemoryResult] = []
    budget, every = max_bytes - _RESERVED_BYTES, [*hits]
    for hit in every:
        result = MemoryResult(
            record=_short(hit.record.to_dict()), score=hit.score, rank=hit.rank, distance=hit.distance
        )
        budget -= len(result.model_dump_json().encode())
        if budget < 0 and results:
            break
        results.append(result)
    left_out = len(every) - len(results)
    more = f"{len(results)} of {len(every)} entries shown: raise max_tokens, or narrow by entity or filter."
    return MemoryAnswer(
        query=query,
        results=results,
        truncated=bool(left_out) or any(result.record.cut for result in results),
        found=len(every),
        more=more if left_out else None,
    )


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(entry: dict[str, Any]) -> MemoryRecord:
    cut = []
    value = json.dumps(entry["value"], ensure_ascii=False)
    if len(value) > MAX_FIELD_CHARACTERS:
        cut.append("value")
        entry["value"] = value[: MAX_FIELD_CHARACTERS - 1] + "…"
    if len(json.dumps(entry["metadata"], ensure_ascii=False)) > MAX_FIELD_CHARACTERS:
        cut.append("metadata")
        entry["metadata"] = {}
    return MemoryRecord(**{name: entry[name] for name in MemoryRecord.model_fields if name != "cut"}, cut=cut)


MAX_TOP_K = 50
MAX_EXCERPT_LINES = 200

_P = ParamSpec("_P")

Query = Annotated[str, Field(min_length=1, max_length=2_000, description="The text to search for: words or code.")]
Name = Annotated[
    str, Field(min_length=1, max_length=500, description="A name, such as parse or Parser.parse. Case-sensitive.")
]
MaxTokens = Annotated[
    int, Field(ge=MIN_TOKENS, le=MAX_TOKENS, description="Maximum size of the result, in tokens of four bytes.")
]
_NOT_EXACT = frozenset(("kinds", "symbols"))
_EXACT_OPTIONS = (*(name for name in FILTERS if name not in _NOT_EXACT), "top_k", "n_lines", "files", "count")


def parameters(options: Mapping[str, Option]) -> list[inspect.Parameter]:
    """Return a request's options as tool parameters, within the limits for servers."""
    return [_parameter(row) for row in options.values()]


def _parameter(row: Option) -> inspect.Parameter:
    kind: Any = Literal[row.choices] if row.choices and not row.is_list else row.type
    if row.is_list:
        kind = Annotated[list[str], Field(max_length=MAX_SERVED_NAMES)]
    low, high = row.served or row.bounds or (None, None) if not row.is_switch else (None, None)
    longest = row.max_characters if kind is str else None
    about = Field(
        ge=low,
        le=None if high == math.inf else high,
        min_length=1 if longest else None,
        max_length=longest,
        description=row.help,
    )
    annotation: Any = Annotated[kind if row.default is not None else kind | None, about]
    return inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default, annotation=annotation)


def protocol_errors(tool: Callable[_P, BaseModel]) -> Callable[_P, CallToolResult]:
    """Decorate ``tool`` so that Driftline errors become protocol errors, which tell the client what to do."""

    @functools.wraps(tool)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> CallToolResult:
        try:
            return _as_result(tool(*args, **kwargs))
        except DriftlineError as error:
            raise ToolError(f"{error.kind}: {error}") from error
        except BaseException as error:
            if is_panic(error):
                raise ToolError(str(native_crash_error(str(error)[:300], ""))) from error
            if isinstance(error, Exception):
                traceback.print_exc()  # a bug: the client learns only that the tool failed
            raise

    own = inspect.signature(tool, eval_str=True)  # a bound method's signature, without self
    told: Any = Annotated[CallToolResult, own.return_annotation]
    vars(call)["__signature__"] = own.replace(return_annotation=told)
    return call


def _as_result(answer: BaseModel) -> CallToolResult:
    """Return a result as text for models and as a structured object for programs."""
    text = (
        answer.text() if isinstance(answer, SearchAnswer | ContextAnswer | MemoryAnswer) else answer.model_dump_json()
    )
    block = TextContent(type="text", text=text.encode("utf-8", "replace").decode())
    return CallToolResult(content=[block], structured_content=answer.model_dump(mode="json"))


def exact_parameters(*names: str) -> list[inspect.Parameter]:
    """Return the parameters of exact searches and of the options in ``names``. By default, lines have no context."""
    options = options_in("mcp", *_EXACT_OPTIONS, *names)
    return parameters(options | {"n_lines": replace(options["n_lines"], default=0)})


@dataclass(frozen=True, slots=True)
class LineTools:
    """Tools over a workspace's lines; ``newest`` opens the workspace for each call.

    They see everything inside the call's ``boundary``, or everything if that is None.
    """

    newest: Callable[[], Workspace]
    boundary: Callable[[], Boundary | None] = lambda: None
    run: Callable[..., Any] = call
    """Runs a read of the index, in this or another process."""

    @spread("given", parameters(options_in("mcp")))
    def search_lines(
        self, query: Query, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]
    ) -> SearchAnswer:
        """Find the indexed lines that match a query best, with the lines around them."""
        request = SearchRequest.of(query, without_empty(given))
        return search_answer(search(self.newest(), request, within=self.boundary(), run=self.run), max_tokens)

    @spread("given", exact_parameters("whole_words", "ignore_case", "multiline"))
    def grep_lines(
        self,
        pattern: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_PATTERN_CHARACTERS,
                description="A regular expression in RE2 syntax.",
            ),
        ],
        literal: Annotated[bool, Field(description="Match the pattern as literal text.")] = False,
        max_tokens: MaxTokens = DEFAULT_TOKENS,
        *,
        given: dict[str, Any],
    ) -> SearchAnswer:
        """Find every indexed line that matches a pattern, source code first.

        ``exact`` gives the number of matching lines, and whether the count is complete.
        """
        try:
            return self._exactly("", {**given, "fixed" if literal else "regex": (pattern,)}, max_tokens)
        except UsageError as error:
            error.fix = error.fix.replace("`fixed`", "`literal`")  # this tool's name for the option
            raise

    @spread("given", exact_parameters())
    def find_definitions(
        self, name: Name, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]
    ) -> SearchAnswer:
        """Find the definitions of a name. Matches by name, not by type."""
        return self._exactly(field_term("def", name), given, max_tokens)

    @spread("given", exact_parameters())
    def find_uses(self, name: Name, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]) -> SearchAnswer:
        """Find the uses of a name: lines that contain it as a word but do not define it, nearest to a definition first.

        Matches by name, not by type.
        """
        return self._exactly(field_term("uses", name), given, max_tokens)

    def _exactly(self, query: str, given: dict[str, Any], max_tokens: int) -> SearchAnswer:
        request = SearchRequest.of(query, {"n_lines": 0, **without_empty(given)})
        report = search(self.newest(), request, within=self.boundary(), run=self.run)
        if not report.results and not (report.exact and report.exact.documents):
            report = replace(report, notes=(*report.notes, "search_lines also finds synonyms and related names."))
        return search_answer(report, max_tokens)

    def index_status(self) -> IndexStatus:
        """Show what is indexed: sources, numbers of documents and lines, and the embedding model."""
        return index_status(self.run(Workspace.stats, self.newest(), self.boundary()))

    def read_context(
        self,
        path: Annotated[str, Field(min_length=1, description="A search result's path.")],
        line: Annotated[int, Field(ge=1, description="The line to read around, 1-based.")],
        n_lines: Annotated[
            int, Field(ge=0, le=MAX_EXCERPT_LINES // 2, description="Lines of context on each side.")
        ] = 20,
        source: Annotated[
            str | None, Field(description="The result's source, if several sources have the path.")
        ] = None,
        max_tokens: MaxTokens = DEFAULT_TOKENS,
    ) -> ContextAnswer:
        """Read an indexed document around a line. Only indexed documents can be read."""
        opened, within = self.newest(), self.boundary()
        found = self.run(read_excerpt, opened, path, line, n_lines=n_lines, source=source, within=within)
        return context_answer(found, line, max_tokens)


@dataclass(frozen=True, slots=True)
class MemoryTools:
    """The memory tool; ``search`` is called like ``MemoryStore.search_memory``."""

    search: Callable[..., MemoryHits[MemoryEntry]]

    def search_memory(
        self,
        query: Query,
        top_k: Annotated[int, Field(ge=0, le=MAX_TOP_K, description="Maximum number of entries.")] = 5,
        filter: Annotated[
            dict[str, FilterValue] | None,
            Field(description="Metadata fields, all of which must match; a list matches any of its values."),
        ] = None,
        entity: Annotated[
            str | None,
            Field(description="Search at or below this entity, such as org:acme/project:alpha; default: the root."),
        ] = None,
        max_distance: Annotated[
            float | None,
            Field(ge=0, le=2, description="Drop entries more distant from the query than this (1 - cosine, 0 to 2)."),
        ] = None,
        mode: Annotated[
            Mode,
            Field(description="Rank by words and embeddings (hybrid), embeddings only (vector) or words only (text)."),
        ] = "hybrid",
        max_tokens: MaxTokens = DEFAULT_TOKENS,
    ) -> MemoryAnswer:
        """Find the memory entries that match a query best."""
        hits = self.search(query, top_k=top_k, filter=filter, scope=entity, max_distance=max_distance, mode=mode)
        return memory_answer(query, hits, max_tokens * BYTES_PER_TOKEN)
