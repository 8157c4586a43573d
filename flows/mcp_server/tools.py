"""The MCP tools. They only read, their answers are bounded, and failures are errors of the protocol (``is_error``).

Clients see the docstrings of the tools and the descriptions of their parameters.
"""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from operator import call
from typing import Annotated, Any, ParamSpec, TypeVar

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from driftline.flows.config.locate import on_named_branch
from driftline.flows.config.search_settings import named_workspace
from driftline.flows.mcp_server import answers
from driftline.flows.mcp_server.answers import (
    MAX_ANSWER_BYTES,
    ContextAnswer,
    FilterValue,
    IndexStatus,
    MemoryAnswer,
    SearchAnswer,
    memory_answer,
)
from driftline.flows.output.run_series import record_search
from driftline.storage.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K, FALLBACK_THRESHOLD, Strategy
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, gave_up, is_panic
from driftline.storage.memory.entries import MemoryEntry
from driftline.storage.memory.search import MemoryHits
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.filters import SearchFilter
from driftline.tasks.search.hits import read_excerpt
from driftline.tasks.search.query import Mode, SearchReport, search

MAX_TOP_K = 50
MAX_N_LINES = 20
MAX_EXCERPT_LINES = 200

_P = ParamSpec("_P")
_T = TypeVar("_T")

Query = Annotated[str, Field(min_length=1, max_length=2_000, description="What to look for, in words or code.")]
Names = Annotated[list[str], Field(max_length=100)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K, description="Maximum number of results.")]
NLines = Annotated[int, Field(ge=0, le=MAX_N_LINES, description="Lines of context on each side.")]
MaxDistance = Annotated[float | None, Field(ge=0, le=2, description="Drop results farther than this (1 - cosine).")]
MinRelevance = Annotated[
    float | None, Field(ge=0, le=1, description="Drop results nearer than fewer than this share of random lines.")
]
Kinds = Annotated[
    Names | None, Field(description="Only inside definitions of these kinds: function, class, section, ...")
]
RankedBy = Annotated[Mode, Field(description="Rank by words and meaning, by meaning alone, or by words alone.")]
FilteredBy = Annotated[Strategy, Field(description="When filters apply; all values but auto are for comparison.")]
FallbackThreshold = Annotated[
    float, Field(ge=0, le=1, description="With the strategy hybrid: filter later where this share matches.")
]
Reranked = Annotated[
    bool, Field(description="Let a transformer read the best results and order them anew: better answers, slower.")
]
BranchName = Annotated[
    str | None, Field(min_length=1, max_length=200, description="This branch of the sources that have it.")
]
WorkspaceName = Annotated[str | None, Field(description="Only in this named workspace of the server's driftline.toml.")]


def protocol_errors(tool: Callable[_P, _T]) -> Callable[_P, _T]:
    """``tool`` with errors of Driftline as errors of the protocol, which tell the client's model what to do."""

    @functools.wraps(tool)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return tool(*args, **kwargs)
        except DriftlineError as error:
            raise ToolError(f"{error.kind}: {error}") from error
        except BaseException as error:
            if is_panic(error):
                raise ToolError(str(gave_up(str(error)[:300], ""))) from error
            if isinstance(error, Exception):
                traceback.print_exc()  # a defect: the client only learns that the tool failed
            raise

    return call


@dataclass(frozen=True, slots=True)
class LineTools:
    """Tools over the lines of a workspace, which ``newest`` opens for each call.

    They see what is at or below the ``boundary`` of the call, None for everything.
    """

    newest: Callable[[], Workspace]
    boundary: Callable[[], Entity | None] = lambda: None
    run: Callable[..., Any] = call
    """What runs a read of the index, in this process or in another one."""

    def search_lines(
        self,
        query: Query,
        top_k: TopK = DEFAULT_TOP_K,
        n_lines: NLines = DEFAULT_N_LINES,
        max_distance: MaxDistance = None,
        paths: Annotated[Names | None, Field(description="Only these documents, by path in their source.")] = None,
        dirs: Annotated[Names | None, Field(description="Only below these folders.")] = None,
        globs: Annotated[Names | None, Field(description="Only matching paths, such as src/**/*.py.")] = None,
        exts: Annotated[Names | None, Field(description="Only files with these endings.")] = None,
        languages: Annotated[Names | None, Field(description="Only files of these languages, such as python.")] = None,
        kinds: Kinds = None,
        symbols: Annotated[bool, Field(description="Only lines that begin a definition.")] = False,
        tests: Annotated[bool, Field(description="False leaves tests out.")] = True,
        mode: RankedBy = "hybrid",
        strategy: FilteredBy = "auto",
        fallback_threshold: FallbackThreshold = FALLBACK_THRESHOLD,
        min_relevance: MinRelevance = None,
        workspace_name: WorkspaceName = None,
        rerank: Reranked = False,
        branch: BranchName = None,
    ) -> SearchAnswer:
        """Find the lines of the indexed documents that answer a query, best first, with the lines around them."""
        within = self.boundary()
        where = SearchFilter(
            paths=paths or None,
            dirs=dirs or None,
            globs=globs or None,
            exts=exts or None,
            languages=languages or None,
            also=[named_workspace(workspace_name)[0]] if workspace_name is not None else [],
            within=within,
        )
        workspace, started = on_named_branch(self.newest(), branch, within), time.monotonic()
        report: SearchReport = self.run(
            search,
            workspace,
            query,
            top_k=top_k,
            n_lines=n_lines,
            max_distance=max_distance,
            min_relevance=min_relevance,
            where=where,
            mode=mode,
            strategy=strategy,
            fallback_threshold=fallback_threshold,
            explain=True,
            symbols=symbols,
            kinds=kinds,
            tests=tests,
            rerank=rerank,
        )
        record_search(workspace, report.explanation, time.monotonic() - started)
        return answers.search_answer(report)

    def index_status(self) -> IndexStatus:
        """Show what is indexed: sources, documents, lines, and the model that embedded them."""
        return answers.index_status(self.run(Workspace.stats, self.newest(), self.boundary()))

    def read_context(
        self,
        path: Annotated[str, Field(min_length=1, description="The path of a search result.")],
        line: Annotated[int, Field(ge=1, description="The line to read around, counted from 1.")],
        n_lines: Annotated[int, Field(ge=0, le=MAX_EXCERPT_LINES // 2, description="Lines on each side.")] = 20,
        source: Annotated[
            str | None, Field(description="The source of the result, if several sources have the path.")
        ] = None,
    ) -> ContextAnswer:
        """Read an indexed document around a line. Only indexed documents can be read."""
        opened, within = self.newest(), self.boundary()
        found = self.run(read_excerpt, opened, path, line, n_lines=n_lines, source=source, within=within)
        return answers.context_answer(found)


@dataclass(frozen=True, slots=True)
class MemoryTools:
    """The tool over a memory store, which ``search`` searches as ``MemoryStore.search_memory`` does."""

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
            float | None, Field(ge=0, le=2, description="Leave out entries farther from the query: 1 - cosine, 0 to 2.")
        ] = None,
        mode: Annotated[
            Mode, Field(description="Rank by words and meaning, by meaning alone, or by words alone.")
        ] = "hybrid",
    ) -> MemoryAnswer:
        """Find the entries of the memory store that answer a query, best first."""
        hits = self.search(query, top_k, filter=filter, scope=entity, max_distance=max_distance, mode=mode)
        return memory_answer(query, hits, MAX_ANSWER_BYTES)
