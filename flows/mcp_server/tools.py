"""Define the MCP tools. They are read-only, their results are bounded, and failures are protocol errors (``is_error``).

Clients see the tools' docstrings and parameter descriptions, in every session of a model: they must be short. Nothing
that reads an index is imported before the first call, so that clients get the list at once.
"""

from __future__ import annotations

import functools
import inspect
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import call
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from driftline.flows.mcp_server import answers
from driftline.flows.mcp_server.answers import (
    BYTES_PER_TOKEN,
    DEFAULT_TOKENS,
    MAX_TOKENS,
    MIN_TOKENS,
    FilterValue,
    IndexStatus,
    MemoryAnswer,
    SearchText,
)
from driftline.storage.entities import short_names
from driftline.storage.errors import DriftlineError, UsageError, is_panic, native_crash_error
from driftline.storage.option_table import MAX_SERVED_NAMES, Option, nearest_name, spread
from driftline.tasks.search.request import OPTIONS, Mode, SearchRequest, without_empty

if TYPE_CHECKING:
    from driftline.storage.entities import Boundary
    from driftline.storage.memory.entries import MemoryEntry
    from driftline.storage.memory.search import MemoryHits
    from driftline.storage.workspace.workspace import Workspace
    from driftline.tasks.search.search import SearchReport

MAX_TOP_K = 50
MAX_EXCERPT_LINES = 200
COUNT_SECONDS = 1.0
"""How long to count the matches that are not shown."""

_P = ParamSpec("_P")

Query = Annotated[str, Field(min_length=1, max_length=2_000)]
Question = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2_000,
        description='A question, a description or a few words of code. May contain "exact text", /regex/, def:Name, '
        "uses:Name, sym:Name (inside it), lang:go, file:src/ (part of the path, or a glob), repo:web; -lang:, -file: "
        "and -repo: exclude. Filters alone list files.",
    ),
]
Name = Annotated[
    str, Field(min_length=1, max_length=500, description="A name, such as parse or Parser.parse. Case-sensitive.")
]
MaxTokens = Annotated[
    int, Field(ge=MIN_TOKENS, le=MAX_TOKENS, description="Maximum size of the result, in tokens of four bytes.")
]
_FILTERS = ("globs", "languages", "sources", "branch", "tests")
"""The filters that are parameters. The query language has these and more."""
_TOLD = {
    "globs": "Only in files that match, such as src/**/*.py.",
    "languages": "Only in these languages, such as python.",
    "sources": "Only in these sources, by name.",
    "branch": "Search this branch where it is indexed.",
    "n_lines": "Lines of context on each side.",
    "top_k": "Maximum number of results.",
    "files": "Only the first matching line of each file.",
    "count": "Only count matches.",
    "rerank": "Rerank with a transformer: slower; for hard questions.",
}
"""Descriptions for models, shorter than the options' help."""


def parameters(*names: str, **changed: Any) -> list[inspect.Parameter]:
    """Return search options as tool parameters, within the limits for servers; ``changed`` are other defaults."""
    rows = (OPTIONS[name] for name in names)
    return [_parameter(replace(row, default=changed.get(row.name, row.default))) for row in rows]


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
        description=_TOLD.get(row.name, row.help),
    )
    annotation: Any = Annotated[kind if row.default is not None else kind | None, about]
    return inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default, annotation=annotation)


def protocol_errors(tool: Callable[_P, str | BaseModel]) -> Callable[_P, CallToolResult]:
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
    vars(call)["__signature__"] = own.replace(return_annotation=CallToolResult)
    return call


def _as_result(answer: str | BaseModel) -> CallToolResult:
    """Return text as it is, and records both as text and as a structured object for programs."""
    text = answer if isinstance(answer, str) else answer.text() if isinstance(answer, MemoryAnswer) else None
    structured = answer.model_dump(mode="json") if isinstance(answer, BaseModel) else None
    if text is None:
        assert isinstance(answer, BaseModel)
        text = answer.model_dump_json()
    block = TextContent(type="text", text=text.encode("utf-8", "replace").decode())
    return CallToolResult(content=[block], structured_content=structured)


def exact_parameters(*names: str) -> list[inspect.Parameter]:
    """Return the parameters of exact searches and of the options in ``names``. By default, lines have no context."""
    return parameters("top_k", "n_lines", *_FILTERS, *names, n_lines=0)


@dataclass(frozen=True, slots=True)
class LineTools:
    """Tools over a workspace's lines; ``newest`` opens the workspace for each call.

    They see everything inside the call's ``boundary``, or everything if that is None. With ``shows_files``, results
    tell where the sources' files are.
    """

    newest: Callable[[], Workspace]
    boundary: Callable[[], Boundary | None] = lambda: None
    run: Callable[..., Any] = call
    """Runs a read of the index, in this or another process."""
    shows_files: bool = False

    @spread("given", parameters("top_k", "n_lines", *_FILTERS, "prose", "rerank"))
    def search_lines(self, query: Question, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]) -> str:
        """Find code and text semantically: you need not know the exact words. Best first, with the lines around."""
        request = SearchRequest.of(query, self._named(given))
        return self._text(self._found(request), request, max_tokens)

    @spread("given", exact_parameters("files", "count", "whole_words", "ignore_case", "multiline"))
    def grep_lines(
        self,
        pattern: Annotated[str, Field(min_length=1, description="A regular expression (RE2).")],
        literal: Annotated[bool, Field(description="Match the pattern as literal text.")] = False,
        max_tokens: MaxTokens = DEFAULT_TOKENS,
        *,
        given: dict[str, Any],
    ) -> str:
        """Find every line that matches a pattern, source code first, and count them."""
        try:
            return self._exactly("", {**given, "fixed" if literal else "regex": (pattern,)}, max_tokens)
        except UsageError as error:
            error.fix = error.fix.replace("`fixed`", "`literal`")  # this tool's name for the option
            raise

    @spread("given", exact_parameters())
    def find_definitions(self, name: Name, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]) -> str:
        """Find where a function, class or other name is defined."""
        return self._exactly(_field("def", name), given, max_tokens)

    @spread("given", exact_parameters())
    def find_uses(self, name: Name, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]) -> str:
        """Find the lines that use a name, nearest to its definition first. Compares names, not types."""
        return self._exactly(_field("uses", name), given, max_tokens)

    def _exactly(self, query: str, given: dict[str, Any], max_tokens: int) -> str:
        request = SearchRequest.of(query, {"n_lines": 0, **self._named(given)})
        report = self._found(request)
        if not report.results and not (report.exact and report.exact.documents):
            report = replace(report, notes=(*report.notes, "search_lines also finds synonyms and related names."))
        return self._text(report, request, max_tokens)

    def _found(self, request: SearchRequest) -> SearchReport:
        """Search. Exact matches beyond ``top_k`` are counted, too, unless the index is in a bucket."""
        from driftline.flows.runs.search import find, resolved
        from driftline.tasks.search.query_language import ask

        workspace, within = self.newest(), self.boundary()
        report = find(workspace, request, within=within, run=self.run)
        if report.exact is None or report.exact.reason != "limit" or not workspace.objects.is_local:
            return report
        opened, complete = resolved(workspace, request, within)
        counted = self.run(ask, opened, replace(complete, count=True, files=False), COUNT_SECONDS).exact
        shown = len(report.results)
        how = "a larger `top_k` shows more" if shown < MAX_TOP_K else "narrow the search by `globs` or `languages`"
        return replace(report, exact=counted, notes=(f"{shown:,} shown: {how}.",))

    def _text(self, report: SearchReport, request: SearchRequest, max_tokens: int) -> str:
        from driftline.tasks.search.query_language import asked_by

        branch = request.branch or asked_by(request).branch
        return SearchText(max_tokens, branch, self.shows_files).of(report)

    def _named(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the options that are not empty, with the entities of the sources that are given by name."""
        options = without_empty(given)
        if options.get("sources"):
            options["sources"] = [self._source(each) for each in options["sources"]]
        return options

    def _source(self, name: str) -> str:
        """Return the entity of a source, given as in results or as an entity. Raises UsageError."""
        if ":" in name:
            return name
        known = short_names([str(entity) for entity, _ in self.newest().readable_sources(self.boundary())])
        found = [source for source, short in known.items() if name in (short, short.rpartition("/")[2])]
        if len(found) == 1:
            return found[0]
        names = [known[source] for source in found or known]
        if found:
            raise UsageError("Several sources have this name", name, f"Use one of {', '.join(names)}.")
        raise UsageError("No source has this name", name, nearest_name(name, names))

    def index_status(self) -> IndexStatus:
        """Show what is indexed: sources, numbers of documents and lines, and the embedding model."""
        from driftline.storage.workspace.workspace import Workspace

        return answers.index_status(self.run(Workspace.stats, self.newest(), self.boundary()))

    def read_context(
        self,
        path: Annotated[str, Field(min_length=1, description="A result's path.")],
        line: Annotated[int, Field(ge=1, description="The line to read around, 1-based.")],
        n_lines: Annotated[
            int, Field(ge=0, le=MAX_EXCERPT_LINES // 2, description="Lines of context on each side.")
        ] = 20,
        source: Annotated[str | None, Field(description="The result's source, if it names one.")] = None,
        branch: Annotated[str | None, Field(max_length=200, description="The branch that was searched.")] = None,
        max_tokens: MaxTokens = DEFAULT_TOKENS,
    ) -> str:
        """Read an indexed document around a line, as it was indexed."""
        from driftline.flows.config.locate import on_named_branch
        from driftline.tasks.search.documents import read_excerpt

        within = self.boundary()
        opened = on_named_branch(self.newest(), branch, within)
        entity = None if source is None else self._source(source)
        found = self.run(read_excerpt, opened, path, line, n_lines=n_lines, source=entity, within=within)
        return answers.context_text(found, line, max_tokens, branch)


def _field(name: str, value: str) -> str:
    from driftline.tasks.search.query_language import field_term

    return field_term(name, value)


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
        return answers.memory_answer(query, hits, max_tokens * BYTES_PER_TOKEN)
