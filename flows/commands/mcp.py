"""Define ``driftline mcp``: serve a workspace as tools for clients of the Model Context Protocol."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

import typer

from driftline.flows.commands.app import DONE, CacheOption, WithinOption, WorkspaceOption, app
from driftline.flows.config.locate import workspace_for_reading
from driftline.flows.output.plain import warn
from driftline.storage.errors import MissingExtra


@app.command()
def mcp(
    workspace: WorkspaceOption = None,
    transport: Annotated[Literal["stdio", "http"], typer.Option(help="How clients connect.")] = "stdio",
    host: Annotated[str, typer.Option(help="Loopback address of the http transport.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the http transport; 0 chooses a free one.")
    ] = 8765,
    within: WithinOption = None,
    cache: CacheOption = None,
) -> int:
    """Serve the workspace to MCP clients: search_lines, read_context, index_status, search_memory."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.access import source_access
    from driftline.flows.config.memory_settings import boundary_of, find_memory, memory_of
    from driftline.flows.config.search_settings import search_arguments
    from driftline.flows.config.toml_file import options_for
    from driftline.flows.runs.pull import newest_of
    from driftline.storage.workspace.workspace import Workspace

    try:
        from driftline.flows.mcp_server.server import serve_http, serve_stdio
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        fix = "Run: pip install 'driftline[mcp]'"
        raise MissingExtra("The MCP server needs an optional dependency", "mcp", fix) from error

    options, reach = options_for(target), source_access(target, workspace)
    opened = Workspace.open(target, options, reach)
    settings = memory_of(target)
    boundary = None if within is None else boundary_of(settings, within)
    memory = find_memory(settings, opened, boundary)
    caching = search_arguments({"cache": cache, "cache_bytes": None})
    follow = newest_of(opened, cache=caching["cache"], max_bytes=caching["cache_bytes"], warn=warn)
    with follow as newest, suppress(KeyboardInterrupt):  # the usual way to stop it
        if transport == "stdio":
            serve_stdio(opened, memory, boundary, newest)
        else:
            serve_http(opened, host, port, lambda url: warn(f"serving {url}"), memory, boundary, newest)
    return DONE
