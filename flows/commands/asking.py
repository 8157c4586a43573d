"""``driftline search --server``: the same search, asked of a web server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from driftline.flows.commands.app import show_search
from driftline.flows.config.surroundings import SERVER_VARIABLE
from driftline.flows.output.hits import print_search
from driftline.storage.errors import UsageError


def named_server(given: str | None, workspace: str | None) -> str | None:
    """The server to ask: ``given``, else $DRIFTLINE_SERVER unless a workspace is named. Raises UsageError for both."""
    if given and workspace:
        raise UsageError("A server serves its own workspace", given, "Name either --server or --workspace.")
    return given or (None if workspace else os.environ.get(SERVER_VARIABLE) or None)


def search_on(server: str, query: str, asked: Mapping[str, Any], only_here: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what ``server`` finds, as a search of a workspace does; ``asked`` are parameters of the API.

    Raises UsageError if an option of ``only_here`` is used.
    """
    from driftline.flows.client.connection import Connection  # loads http and ssl

    for option, value in only_here.items():
        if value not in (None, False):
            raise UsageError("A server does not take this option", option, "Leave it out, or search a --workspace.")
    found = Connection.to(server).get("search", {"q": query, **asked})
    return show_search(found, as_json, print_search)
