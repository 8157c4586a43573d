"""Run a search for any interface: complete the request, resolve its branch, search, and write the journal.

Omitted request fields, and views, come from ``driftline.toml``. Search libraries are imported inside functions, so a
command can check its arguments without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import call
from typing import TYPE_CHECKING, Any

from driftline.flows.config.locate import on_named_branch
from driftline.tasks.search.request import OPTIONS, SearchRequest

if TYPE_CHECKING:
    from driftline.storage.entities import Boundary
    from driftline.storage.lines.line_filter import LineFilter
    from driftline.storage.workspace.workspace import Workspace
    from driftline.tasks.search.hits import SearchReport


def resolved(
    workspace: Workspace, request: SearchRequest, within: Boundary | None = None, config: str | None = None
) -> tuple[Workspace, SearchRequest]:
    """Return ``workspace`` on the request's branch, and the request with its named workspace resolved to a filter.

    The returned request sees nothing outside ``within``, and may be limited further by the request's own boundary.
    Raises UsageError for an unknown branch or named workspace.
    """
    from driftline.tasks.search.query_language import parse_request

    if (narrower := request.boundary) is not None:
        within = narrower if within is None else within.narrowed(narrower)
    also = request.also
    if request.workspace_name is not None:
        also = (*also, named_workspace(request.workspace_name, config)[0])
    branch = request.branch if request.branch is not None else parse_request(request).branch
    opened = on_named_branch(workspace, branch, within)
    return opened, replace(request, branch=None, workspace_name=None, also=also, within=within)


def find(
    workspace: Workspace,
    request: SearchRequest,
    *,
    within: Boundary | None = None,
    config: str | None = None,
    run: Callable[..., Any] = call,
) -> SearchReport:
    """Search inside the boundary ``within``, and record the search in the journal.

    ``run`` executes it in this or another process. Raises the same errors as ``driftline.search``.
    """
    from driftline.flows.output.search_journal import record_search
    from driftline.tasks.search.search import search

    opened, complete = resolved(workspace, request, within, config)
    started = time.monotonic()
    report: SearchReport = run(search, opened, replace(complete, explain=True))
    record_search(opened, report.explanation, time.monotonic() - started)
    return report if request.explain else replace(report, explanation=None)


def search_request(query: str, given: Mapping[str, Any], **more: Any) -> SearchRequest:
    """Build a request from the ``given`` options, with defaults from the current folder's ``driftline.toml``.

    None means the option was not given; ``more`` contains additional fields. Raises UsageError.
    """
    from driftline.flows.config.locate import search_settings

    settings = {name: value for name, value in search_settings().items() if name in OPTIONS}
    chosen = {name: value for name, value in given.items() if value is not None}
    return SearchRequest.of(query, {**settings, **chosen}, **more)


def named_workspace(name: str, config: str | None = None) -> tuple[LineFilter, str]:
    """Return a named workspace's filter, and the workspace set in its file.

    The file is ``config``, or the one that a command in the current folder would use. Raises UsageError; the message
    lists the existing names.
    """
    from driftline.flows.config.driftline_toml import named_workspace_filter, open_config

    configuration = open_config(config)
    return named_workspace_filter(configuration, name), configuration.workspace
