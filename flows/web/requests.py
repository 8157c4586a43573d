"""What requests may ask, with the limits of each parameter, and the answers as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

from fastapi import Query

from driftline.flows.output.search_journal import record_search
from driftline.flows.runs.branch_upkeep import list_branches
from driftline.storage.entities import Entity
from driftline.storage.lines.filters import LineFilter
from driftline.storage.workspace.branches import MAX_NAME_CHARACTERS as MAX_BRANCH_CHARACTERS
from driftline.storage.workspace.branches import on_branch
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K
from driftline.tasks.search.excerpts import read_excerpt
from driftline.tasks.search.query import Mode, SearchReport, search

MAX_QUERY_CHARACTERS = 2_000
MAX_TOP_K = 50
MAX_N_LINES = 20
MAX_EXCERPT_LINES = 500
"""Lines on each side."""
MAX_NAMES = 100
"""Values of one filter."""
MAX_NAME_CHARACTERS = 4_096
MAX_LINE_NUMBER = 2**31 - 1

Text = Annotated[str, Query(min_length=1, max_length=MAX_QUERY_CHARACTERS, description="What to look for.")]
TopK = Annotated[int, Query(ge=1, le=MAX_TOP_K, description="Maximum number of results.")]
Around = Annotated[int, Query(ge=0, le=MAX_N_LINES, description="Lines of context on each side.")]
ModeName = Annotated[Mode, Query(description="Rank by words and meaning, by meaning alone, or by words alone.")]
Name = Annotated[str, Query(min_length=1, max_length=MAX_NAME_CHARACTERS)]
Line = Annotated[int, Query(ge=1, le=MAX_LINE_NUMBER, description="The line to read around, counted from 1.")]
ExcerptLines = Annotated[int, Query(ge=0, le=MAX_EXCERPT_LINES, description="Lines on each side.")]
Names = Annotated[list[Name] | None, Query(max_length=MAX_NAMES)]
BranchName = Annotated[
    str | None, Query(min_length=1, max_length=MAX_BRANCH_CHARACTERS, description="Ask this branch of the sources.")
]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The filters of a search: each is met by any of its values, and all must be met."""

    source: tuple[str, ...] = ()
    dir: tuple[str, ...] = ()
    ext: tuple[str, ...] = ()
    glob: tuple[str, ...] = ()
    path: tuple[str, ...] = ()

    @classmethod
    def of(cls, *values: Sequence[str] | None) -> Self:
        """The filters in the order of the fields; None is no filter."""
        return cls(*(tuple(each or ()) for each in values))

    def where(self, workspace: Workspace) -> LineFilter:
        """As a filter of ``workspace``. Raises BadEntity."""
        levels = workspace.config.hierarchy
        return LineFilter(
            entities=tuple(Entity.parse(name, levels) for name in self.source) or None,
            dirs=self.dir or None,
            exts=self.ext or None,
            globs=self.glob or None,
            paths=self.path or None,
        )


@dataclass(frozen=True, slots=True)
class Reader:
    """Answers from the workspace that ``newest`` opens for each request, so that each is of one version."""

    newest: Callable[[], Workspace]

    def warm(self) -> None:
        """Load the model and open the tables. Raises what a search raises."""
        search(self.newest(), "warm", top_k=1)

    def search(
        self,
        query: str,
        narrowing: Narrowing,
        top_k: int = DEFAULT_TOP_K,
        n_lines: int = DEFAULT_N_LINES,
        mode: Mode = "hybrid",
        branch: str | None = None,
    ) -> SearchReport:
        """Search, and take it down in the journal. Raises what ``driftline.search`` raises."""
        workspace, started = self._on(branch), time.monotonic()
        where = narrowing.where(workspace)
        report = search(workspace, query, top_k=top_k, n_lines=n_lines, where=where, mode=mode, explain=True)
        record_search(workspace, report.explanation, time.monotonic() - started)
        return report

    def excerpt(self, source: str, path: str, line: int, n_lines: int, branch: str | None = None) -> dict[str, Any]:
        """Lines of an indexed document. Raises what ``read_excerpt`` raises."""
        found = asdict(read_excerpt(self._on(branch), path, line, n_lines=n_lines, source=source))
        return {**found, "lines": list(found["lines"])}

    def status(self) -> dict[str, Any]:
        """As ``driftline status --json`` prints it."""
        return asdict(self.newest().stats())

    def sources(self) -> dict[str, Any]:
        """As ``driftline sources --json`` prints it."""
        stats = self.newest().stats()
        return {"workspace": stats.workspace, "sources": list(stats.sources)}

    def branches(self) -> dict[str, Any]:
        """As ``driftline branches --json`` prints it."""
        workspace = self.newest()
        found = [branch.to_dict() for branch in list_branches(workspace)]
        return {"workspace": workspace.objects.uri, "branches": found}

    def _on(self, branch: str | None) -> Workspace:
        workspace = self.newest()
        return on_branch(workspace, branch) if branch is not None else workspace
