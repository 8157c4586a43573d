"""Define the commands that maintain a workspace: ``compact``, ``cleanup`` and ``verify``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from driftline.flows.commands.app import (
    DONE,
    FAILED,
    ExecutorOption,
    JsonOption,
    WorkersOption,
    WorkspaceOption,
    app,
    show,
)
from driftline.flows.config.which_workspace import workspace_for_reading
from driftline.flows.output.logs import writes_json
from driftline.flows.output.plain_text import appearance
from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_MAX_DELTAS,
    DEFAULT_VERSION_RETENTION_SECONDS,
)


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


@app.command()
def cleanup(
    workspace: WorkspaceOption = None,
    max_age_seconds: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Keep objects younger than this, by the store's clock.")
    ] = DEFAULT_MAX_AGE_SECONDS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", " /--delete", help="Report only, or also delete.")
    ] = True,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="List all objects, not only those of tenants that may have garbage. Automatic once a week.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """List the objects left by crashed or superseded runs; with --delete, delete them."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.which_workspace import options_for
    from driftline.flows.output.progress import open_progress
    from driftline.flows.output.terminal_reports import print_cleanup
    from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace

    options = options_for(target)
    request = CleanupRequest(target, max_age_seconds, dry_run, full=full, storage_options=options)
    with open_progress() as progress, _audit_shown():
        result = clean_workspace(request, progress).to_dict()
    show(result, as_json, print_cleanup)
    return DONE


@app.command()
def verify(
    workspace: WorkspaceOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove inconsistent documents from the index and reindex them.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Check the workspace for inconsistencies. Exit code 3 if there are findings."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.which_workspace import options_for, references_for
    from driftline.flows.output.progress import open_progress
    from driftline.flows.output.terminal_reports import print_verify
    from driftline.flows.runs.verify_and_repair import VerifyRequest, verify_workspace

    request = VerifyRequest(target, repair, options_for(target), references=references_for(target))
    with open_progress() as progress:
        result = verify_workspace(request, progress).to_dict()
    show(result, as_json, print_verify)
    return FAILED if result["findings"] else DONE


@contextmanager
def _audit_shown() -> Iterator[None]:
    """Print each deletion to standard error; the other log formats always include these records."""
    import logging

    if writes_json() or appearance().quiet or appearance().verbose:
        yield
        return
    audit, handler = logging.getLogger("driftline.audit"), logging.StreamHandler()
    audit.setLevel(logging.INFO)
    audit.addHandler(handler)
    try:
        yield
    finally:
        audit.removeHandler(handler)
