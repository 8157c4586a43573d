"""Define ``driftline compact``: keep a workspace small and fast to read."""

from __future__ import annotations

from typing import Annotated

import typer

from driftline.flows.commands.app import (
    DONE,
    ExecutorOption,
    JsonOption,
    WorkersOption,
    WorkspaceOption,
    app,
    show,
)
from driftline.flows.config.which_workspace import workspace_for_reading
from driftline.storage.defaults import DEFAULT_EXECUTOR, DEFAULT_MAX_DELTAS, DEFAULT_VERSION_RETENTION_SECONDS


@app.command()
def compact(
    workspace: WorkspaceOption = None,
    entity: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Compact only this source, regardless of its number of deltas; default: all sources."
        ),
    ] = None,
    max_deltas: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Fold only sources and memory indexes with more deltas than this. Ignored with --entity. "
            f"Default: {DEFAULT_MAX_DELTAS} for sources, the compaction_threshold for memory.",
        ),
    ] = None,
    retention_seconds: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Remove table versions older than this.")
    ] = DEFAULT_VERSION_RETENTION_SECONDS,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    workers: WorkersOption = None,
    wait: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Wait this long for other runs to finish.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> int:
    """Keep the workspace small and fast to read: fold deltas, merge fragments, remove old versions."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.which_workspace import options_for
    from driftline.flows.output.progress import open_progress
    from driftline.flows.output.terminal_reports import print_compact
    from driftline.flows.runs.compact import CompactRequest, compact_workspace

    options = options_for(target)
    request = CompactRequest(target, entity, max_deltas, retention_seconds, executor, workers, wait, options)
    with open_progress() as progress:
        result = compact_workspace(request, progress).to_dict()
    show(result, as_json, print_compact)
    return DONE
