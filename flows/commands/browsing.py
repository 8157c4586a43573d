"""``driftline web``: a workspace as pages for people and an HTTP API for programs."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, app
from driftline.flows.commands.options import CacheOption, WorkspaceOption
from driftline.flows.config.locate import workspace_for_reading
from driftline.flows.output.plain import warn


@app.command()
def web(
    workspace: WorkspaceOption = None,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8030,
    cache: CacheOption = None,
) -> int:
    """Serve the workspace to browsers and programs of this machine: a search page, and an API at /api/v1."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.reach import reach_of
    from driftline.flows.config.search_settings import search_arguments
    from driftline.flows.config.toml_file import options_for
    from driftline.flows.runs.cached_copy import FollowedWorkspace
    from driftline.flows.web.requests import Reader
    from driftline.flows.web.serving import web_server
    from driftline.storage.workspace.workspace import Workspace

    opened = Workspace.open(target, options_for(target), reach_of(target, workspace))
    caching = search_arguments({"cache": cache, "cache_bytes": None})
    newest = FollowedWorkspace(opened, caching["cache_bytes"], warn) if caching["cache"] else opened.reread
    reader = Reader(newest)
    reader.warm()
    server = web_server(reader, host, port)
    warn(f"serving {server.url}")
    with suppress(KeyboardInterrupt):  # the usual way to stop it
        server.run()
    return DONE
