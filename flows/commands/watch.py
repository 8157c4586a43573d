"""Define ``driftline watch``: index a folder, then each of its files as it is saved."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, ModelOption, WorkspaceOption, app
from driftline.flows.config.which_workspace import workspace_for_indexing
from driftline.flows.output.plain_text import warn

SourceArgument = Annotated[str, typer.Argument(metavar="[SOURCE]", help="The folder; default: the current folder.")]


@app.command()
def watch(source: SourceArgument = ".", workspace: WorkspaceOption = None, model: ModelOption = None) -> int:
    """Update the index of SOURCE, then index each file as it is saved. Stop with Ctrl+C."""
    target = workspace_for_indexing(workspace, [source], None)
    from driftline.flows.config.which_workspace import options_for
    from driftline.flows.runs.watch import entity_at, watcher_of

    options = options_for(target)
    watcher = watcher_of(source, target, entity_at(source, target, options), model=model, storage_options=options)
    with suppress(KeyboardInterrupt):  # the usual way to stop it
        watcher.run()
    warn(f"stopped; continue with: driftline watch {source}")
    return DONE
