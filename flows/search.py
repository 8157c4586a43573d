"""Search for any interface: complete the request, resolve its branch and view, search, and keep a journal.

Omitted request fields, and views, come from ``driftline.toml``. Search libraries are imported inside functions, so a
command can check its arguments without them. The journal of this user's filtered searches is on this machine, outside
the workspace, because a search needs only read access.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import call
from typing import TYPE_CHECKING, Any

from driftline.flows.config.which_workspace import on_named_branch
from driftline.storage.environment import user_folder
from driftline.storage.errors import UsageError
from driftline.tasks.search.request import OPTIONS, SearchRequest

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from driftline.storage.entities import Boundary
    from driftline.storage.lines.line_filter import LineFilter
    from driftline.storage.lines.table_searcher import TableSearcher
    from driftline.storage.workspace.records import RunRecord
    from driftline.storage.workspace.workspace import Workspace
    from driftline.tasks.search.hits import SearchReport
    from driftline.tasks.search.request import Explanation


def resolved(
    workspace: Workspace, request: SearchRequest, within: Boundary | None = None, config: str | None = None
) -> tuple[Workspace, SearchRequest]:
    """Return ``workspace`` on the request's branch, and the request with its view resolved to a filter.

    The returned request sees nothing outside ``within``, and may be limited further by the request's own boundary.
    Raises UsageError for an unknown branch or view.
    """
    from driftline.tasks.search.query_language import parse_request

    if (narrower := request.boundary) is not None:
        within = narrower if within is None else within.narrowed(narrower)
    also = request.also
    if request.workspace_name is not None:
        also = (*also, view(request.workspace_name, config)[0])
    branch = request.branch if request.branch is not None else parse_request(request).branch
    opened = on_named_branch(workspace, branch, within)
    return opened, replace(request, branch=None, workspace_name=None, also=also, within=within)


def search(
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
    opened, complete = resolved(workspace, request, within, config)
    _open_ahead(opened, complete)
    from driftline.tasks.search.search import search as search_lines

    started = time.monotonic()
    report: SearchReport = run(search_lines, opened, replace(complete, explain=True))
    record_search(opened, report.explanation, time.monotonic() - started)
    return report if request.explain else replace(report, explanation=None)


def _open_ahead(workspace: Workspace, request: SearchRequest) -> None:
    """Start reading a bucket's tables for ``request``, if ``workspace`` was opened for a search.

    The caller meanwhile imports the modules that search.
    """
    from driftline.tasks.search.query_language import parse_request

    query = parse_request(request)

    def read(table: TableSearcher) -> None:
        from driftline.storage.lines.packs import packs_of

        by_words = not query.is_exact and request.mode != "vector"
        table.open(words=by_words, blocks=by_words and request.mode == "hybrid")
        if query.terms.patterns:
            packs_of(table)

    workspace.open_ahead(read)


def search_request(query: str, given: Mapping[str, Any], **more: Any) -> SearchRequest:
    """Build a request from the ``given`` options, with defaults from the current folder's ``driftline.toml``.

    None means the option was not given; ``more`` contains additional fields. Raises UsageError.
    """
    from driftline.flows.config.which_workspace import search_settings

    settings = {name: value for name, value in search_settings().items() if name in OPTIONS}
    chosen = {name: value for name, value in given.items() if value is not None}
    return SearchRequest.of(query, {**settings, **chosen}, **more)


def view(name: str, config: str | None = None) -> tuple[LineFilter, str]:
    """Return a view's filter, and the workspace set in its file.

    The file is ``config``, or the one that a command in the current folder would use. Raises UsageError; the message
    lists the existing names.
    """
    from driftline.flows.config.driftline_toml import open_config, view_filter

    configuration = open_config(config)
    return view_filter(configuration, name), configuration.workspace


MAX_JOURNAL_BYTES = 1 << 20
"""A larger journal is truncated to its newer half."""
SEARCH_KIND = "search"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One search: when it started, how long it took, and the fraction of lines that passed its filter."""

    started: datetime
    seconds: float
    hit_rate: float


def record_search(workspace: Workspace, explanation: Explanation | None, seconds: float) -> None:
    """Record a search whose filter excluded some lines. Failures to write the journal are ignored."""
    if explanation is None or not explanation.lines or explanation.matches == explanation.lines:
        return
    from driftline.storage.json_records import to_json

    entry = _Entry(started=datetime.now(UTC), seconds=seconds, hit_rate=explanation.matches / explanation.lines)
    path = _journal(workspace)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(to_json(entry, compact=True) + b"\n")
            size = file.tell()
        if size > MAX_JOURNAL_BYTES:
            kept = path.read_bytes()[-MAX_JOURNAL_BYTES // 2 :].partition(b"\n")[2]
            path.with_suffix(".new").write_bytes(kept)
            path.with_suffix(".new").replace(path)


def searches_table(workspace: Workspace) -> pa.Table:
    """Return this user's searches as a table for SQL."""
    import pyarrow as pa  # a search records itself without loading these

    from driftline.storage.sql import SEARCHES

    found = _entries(workspace)
    moments = [entry.started.astimezone(UTC).replace(tzinfo=None) for entry in found]
    columns = [moments, [entry.seconds for entry in found], [entry.hit_rate for entry in found]]
    return pa.table(columns, schema=SEARCHES)


def searches_by_hour(workspace: Workspace) -> list[RunRecord]:
    """Return this user's searches, newest first: one record per hour, with the median time."""
    by_hour: dict[datetime, list[_Entry]] = defaultdict(list)
    for entry in _entries(workspace):
        by_hour[entry.started.replace(minute=0, second=0, microsecond=0)].append(entry)
    return [_record(by_hour[hour]) for hour in sorted(by_hour, reverse=True)]


def _entries(workspace: Workspace) -> list[_Entry]:
    from driftline.storage.json_records import from_json

    found: list[_Entry] = []
    path = _journal(workspace)
    try:
        lines = path.read_bytes().splitlines() if path is not None else []
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(ValueError):  # a truncated line
            found.append(from_json(_Entry, line))
    return found


def _record(entries: list[_Entry]) -> RunRecord:
    from statistics import mean, median  # a search records itself without loading these

    from driftline.storage.workspace.records import RunRecord

    last = max(entry.started for entry in entries)
    return RunRecord(
        run_id=f"searches-{last:%Y%m%dT%H}",
        kind=SEARCH_KIND,
        started=last.isoformat(),
        seconds=median(entry.seconds for entry in entries),
        outcome="done",
        report={"searches": len(entries), "hit_rate": round(mean(entry.hit_rate for entry in entries), 4)},
    )


def _journal(workspace: Workspace) -> Path | None:
    """Return this user's journal, or None if the user has no home folder, as in some containers."""
    try:
        state = user_folder("XDG_STATE_HOME")
    except UsageError:
        return None
    return state / "driftline" / "searches" / f"{workspace.config.workspace_id}.jsonl"
