"""Run a search as every interface does: resolve its branch and named workspace, search, and write the journal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from operator import call
from typing import Any

from driftline.flows.config.locate import on_named_branch
from driftline.flows.config.search_settings import named_workspace
from driftline.flows.output.run_series import record_search
from driftline.storage.entities import Entity, is_within
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.language import ask, asked_by
from driftline.tasks.search.query import SearchReport
from driftline.tasks.search.request import SearchRequest


def resolved(
    workspace: Workspace, request: SearchRequest, within: Entity | None = None, config: str | None = None
) -> tuple[Workspace, SearchRequest]:
    """Return ``workspace`` on the request's branch, and the request with its named workspace as a condition.

    It sees nothing beyond ``within``, which the request's own boundary may only narrow. Raises UsageError for an
    unknown branch or named workspace.
    """
    within = _narrower(within, request.within)
    also = request.also
    if request.workspace_name is not None:
        also = (*also, named_workspace(request.workspace_name, config)[0])
    branch = request.branch if request.branch is not None else asked_by(request).branch
    opened = on_named_branch(workspace, branch, within)
    return opened, replace(request, branch=None, workspace_name=None, also=also, within=within)


def _narrower(within: Entity | None, asked: Entity | None) -> Entity | None:
    """Return ``asked`` if it is at or below ``within``, and ``within`` otherwise."""
    if within is None or (asked is not None and is_within(asked, within)):
        return asked
    return within


def find(
    workspace: Workspace,
    request: SearchRequest,
    *,
    within: Entity | None = None,
    config: str | None = None,
    run: Callable[..., Any] = call,
) -> SearchReport:
    """Search what is at or below ``within``, and write the search into the journal.

    ``run`` runs it, in this process or in another one. Raises what ``driftline.search`` raises.
    """
    opened, wanted = resolved(workspace, request, within, config)
    started = time.monotonic()
    report: SearchReport = run(ask, opened, replace(wanted, explain=True))
    record_search(opened, report.explanation, time.monotonic() - started)
    return report if request.explain else replace(report, explanation=None)
