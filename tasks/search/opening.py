"""Open a bucket's tables for a search in the background, while the caller imports the modules that search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.query_language import parse_request
from driftline.tasks.search.request import SearchRequest

if TYPE_CHECKING:
    from driftline.storage.lines.table_searcher import TableSearcher


def open_ahead(workspace: Workspace, request: SearchRequest) -> None:
    """Start reading what ``request`` needs of each table, if ``workspace`` was opened for a search."""
    query = parse_request(request)

    def read(table: TableSearcher) -> None:
        from driftline.storage.lines.packs import packs_of

        by_words = not query.is_exact and request.mode != "vector"
        table.open(words=by_words, blocks=by_words and request.mode == "hybrid")
        if query.terms.patterns:
            packs_of(table)

    workspace.open_ahead(read)
