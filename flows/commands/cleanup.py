"""Define ``driftline cleanup``: delete the objects left by crashed or superseded runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, JsonOption, WorkspaceOption, app, show
from driftline.flows.config.which_workspace import workspace_for_reading
from driftline.flows.output.logs import writes_json
from driftline.flows.output.plain_text import appearance
from driftline.storage.defaults import DEFAULT_MAX_AGE_SECONDS


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
