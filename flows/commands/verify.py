"""Define ``driftline verify``: check a workspace, and repair it on request."""

from __future__ import annotations

from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, FAILED, JsonOption, WorkspaceOption, app, show
from driftline.flows.config.which_workspace import workspace_for_reading


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
