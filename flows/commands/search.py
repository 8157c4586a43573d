"""Define ``driftline search``: query a workspace, or a web server with ``--server``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    CacheOption,
    ConfigOption,
    JsonOption,
    WordsArgument,
    WorkspaceOption,
    app,
    parameters,
    show_search,
)
from driftline.flows.config.environment import SERVER_VARIABLE
from driftline.flows.config.locate import workspace_for_reading
from driftline.flows.output.plain_text import print_search, warn
from driftline.flows.runs.search import cache_settings, named_workspace, search_request
from driftline.storage.defaults import DEFAULT_RERANKED, MAX_RERANKED
from driftline.storage.errors import UsageError
from driftline.storage.request_options import spread
from driftline.tasks.search.request import SearchRequest, options_in, without_empty

if TYPE_CHECKING:
    from driftline.storage.workspace.workspace import Workspace


def named_server(given: str | None, workspace: str | None) -> str | None:
    """Return the server to query: ``given``, or $DRIFTLINE_SERVER unless a workspace is given.

    Raises UsageError for both.
    """
    if given and workspace:
        raise UsageError("--server and --workspace are mutually exclusive", given, "Omit one of them.")
    return given or (None if workspace else os.environ.get(SERVER_VARIABLE) or None)


def search_on(server: str, request: SearchRequest, only_here: Mapping[str, Any], *, as_json: bool) -> int:
    """Search on ``server``, and print the results in the same format as for a local workspace.

    Raises UsageError if an option in ``only_here``, or any other that servers do not support, is set.
    """
    from driftline.flows.client import Connection, search_parameters  # loads http and ssl

    for option, value in only_here.items():
        if value not in (None, False):
            raise UsageError("Servers do not support this option", option, "Omit it, or search a --workspace.")
    found = Connection.to(server).get("search", search_parameters(request))
    return show_search(found, as_json, print_search)


RerankWindowsOption = Annotated[
    int | None,
    typer.Option(
        "--rerank-windows",
        min=0,
        max=MAX_RERANKED,
        help="Like --rerank, for this many results.",
        show_default=str(DEFAULT_RERANKED),
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Search on this web server, with the token in $DRIFTLINE_TOKEN. Default: $DRIFTLINE_SERVER.",
    ),
]


@app.command()
@spread("given", parameters(options_in("command")))
def search(
    words: WordsArgument = None,
    workspace: WorkspaceOption = None,
    *,
    given: dict[str, Any],
    rerank_windows: RerankWindowsOption = None,
    cache: CacheOption = None,
    server: ServerOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Search the indexed lines. Exit code 1 if nothing is found.

    Defaults come from [search] in driftline.toml.
    """
    query, given = " ".join(words or ()), without_empty(given)
    if not words and not given.get("fixed") and not given.get("regex"):
        raise UsageError("The argument QUERY is missing", fix="Pass words, or exact text with -F or -E.")
    if rerank_windows is not None and given["rerank"] is not False:
        given["rerank"] = rerank_windows
    if (remote := named_server(server, workspace)) is not None:
        return search_on(remote, SearchRequest.of(query, given), {"--cache": cache}, as_json=as_json)
    named = given["workspace_name"]
    default_workspace = named_workspace(named, config)[1] if named is not None else None
    target = workspace_for_reading(workspace or default_workspace)
    from driftline.flows.runs.search import find

    request = search_request(query, {**given, **_exact_defaults(query, given)}, on_this_machine=True)
    opened = _cached(open_workspace(target, workspace, config), cache)
    report = find(opened, request, config=config)
    return show_search(report.to_dict(), as_json, partial(_print_hits, opened))


EXACT_LINES = 100


def _exact_defaults(query: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that differ for an exact search: more results, no context."""
    from driftline.tasks.search.query_language import parse

    if not given.get("fixed") and not given.get("regex") and not parse(query).is_exact:
        return {}
    defaults = {"top_k": EXACT_LINES, "n_lines": 0}
    return {name: value for name, value in defaults.items() if given.get(name) is None}


def _cached(workspace: Workspace, given: bool | None) -> Workspace:
    """Return an up-to-date local copy of a workspace in a bucket, if a copy is requested."""
    is_wanted, max_bytes = cache_settings(given)
    if not is_wanted or workspace.objects.is_local:
        return workspace
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.pull import open_copy

    with open_progress() as progress:
        return open_copy(workspace, max_bytes=max_bytes, warn=warn, progress=progress)


def _print_hits(workspace: Workspace, result: dict[str, Any]) -> None:
    from driftline.flows.output.plain_text import print_search

    if "explanation" in result:
        from driftline.flows.output.rich_tables import print_explanation

        print_explanation(result["explanation"])
    print_search(result, _local_folders(workspace, result["results"]) if sys.stdout.isatty() else None)


def open_workspace(workspace: str, given: str | None = None, config: str | None = None) -> Workspace:
    """Open the workspace ``given``, or the nearest one, with the storage options in its ``driftline.toml``, if any."""
    from driftline.flows.config.driftline_toml import options_for
    from driftline.flows.config.locate import source_access
    from driftline.storage.workspace.workspace import Workspace

    return Workspace.open(
        workspace, options_for(workspace), source_access(workspace, given, config), lists_tenants=True
    )


def _local_folders(opened: Workspace, hits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the folder of each local source with hits, for links."""
    from driftline.flows.config.environment import local_path
    from driftline.storage.entities import Entity

    folders: dict[str, str] = {}
    for entity in {hit["source"] for hit in hits}:
        record = opened.source(Entity.parse(entity, opened.config.hierarchy))
        if record is not None and local_path(record.uri) is not None:
            folders[entity] = record.uri
    return folders
