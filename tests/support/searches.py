"""Ranked searches, called with the fields of a request."""

from __future__ import annotations

from driftline.storage.option_table import from_keywords
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.hits import SearchReport
from driftline.tasks.search.ranked import search_ranked
from driftline.tasks.search.request import SearchRequest


@from_keywords(SearchRequest)
def search(workspace: Workspace, request: SearchRequest) -> SearchReport:
    """Run ``search_ranked`` on a request built from these arguments."""
    return search_ranked(workspace, request)
