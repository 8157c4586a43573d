"""Define the MCP tools. They are read-only, their results are bounded, and failures are protocol errors (``is_error``).

Clients see the tools' docstrings and parameter descriptions.
"""

from __future__ import annotations

import functools
import inspect
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import call
from typing import Annotated, Any, Literal, ParamSpec

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from driftline.flows.mcp_server import answers
from driftline.flows.mcp_server.answers import (
    BYTES_PER_TOKEN,
    DEFAULT_TOKENS,
    MAX_TOKENS,
    MIN_TOKENS,
    ContextAnswer,
    FilterValue,
    IndexStatus,
    MemoryAnswer,
    SearchAnswer,
    memory_answer,
)
from driftline.flows.runs.search import find
from driftline.storage.entities import Boundary
from driftline.storage.errors import DriftlineError, UsageError, is_panic, native_crash_error
from driftline.storage.lines.regex_patterns import MAX_PATTERN_CHARACTERS
from driftline.storage.memory.entries import MemoryEntry
from driftline.storage.memory.search import MemoryHits
from driftline.storage.option_table import MAX_SERVED_NAMES, Option, spread
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.documents import read_excerpt
from driftline.tasks.search.query_language import field_term
from driftline.tasks.search.request import FILTERS, Mode, SearchRequest, options_in, without_empty

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
        return answers.search_answer(find(self.newest(), request, within=self.boundary(), run=self.run), max_tokens)

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
        report = find(self.newest(), request, within=self.boundary(), run=self.run)
        if not report.results and not (report.exact and report.exact.documents):
            report = replace(report, notes=(*report.notes, "search_lines also finds synonyms and related names."))
        return answers.search_answer(report, max_tokens)

    def index_status(self) -> IndexStatus:
        """Show what is indexed: sources, numbers of documents and lines, and the embedding model."""
        return answers.index_status(self.run(Workspace.stats, self.newest(), self.boundary()))

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
        return answers.context_answer(found, line, max_tokens)


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
