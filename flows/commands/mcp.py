"""Define ``driftline mcp``: serve a workspace as tools for clients of the Model Context Protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from driftline.flows.commands.app import DONE, CacheOption, WithinOption, WorkspaceOption, app
from driftline.flows.config.locate import workspace_for_reading
from driftline.flows.output.plain import warn
from driftline.storage.errors import DriftlineError, MissingExtra, install_command

if TYPE_CHECKING:
    from driftline.flows.web.search_processes import SearchProcesses
    from driftline.storage.workspace.workspace import Workspace


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
    """Serve the workspace to MCP clients, which search it and read indexed documents."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.locate import source_access
    from driftline.flows.config.memory_settings import boundary_of, find_memory, memory_of
    from driftline.flows.config.toml_file import options_for
    from driftline.flows.memory_stores import search_memory
    from driftline.flows.runs.pull import newest_of
    from driftline.flows.runs.search import cache_settings
    from driftline.flows.web.search_processes import CONCURRENT_SEARCHES, SearchProcesses
    from driftline.storage.entities import Boundary
    from driftline.storage.workspace.workspace import Workspace

    try:
        from driftline.flows.mcp_server.server import serve_http, serve_stdio, server_of
        from driftline.flows.mcp_server.tools import LineTools, MemoryTools
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        fix = f"Run: {install_command('mcp')}"
        raise MissingExtra("The MCP server needs an optional dependency", "mcp", fix) from error

    options, access = options_for(target), source_access(target, workspace)
    opened = Workspace.open(target, options, access)
    settings = memory_of(target)
    top = None if within is None else boundary_of(settings, within)
    boundary = None if top is None else Boundary.of(top)
    has_memory = find_memory(settings, opened, top) is not None
    is_cached, max_bytes = cache_settings(cache)
    follow = newest_of(opened, cache=is_cached, max_bytes=max_bytes, warn=warn)
    # One client asks, so one process reads: a damaged file of a table ends that one, and not the server.
    reads = SearchProcesses(1, CONCURRENT_SEARCHES)
    with follow as newest, closing(reads), suppress(KeyboardInterrupt):  # the usual way to stop it
        _warm_in_background(reads, newest)
        memory = MemoryTools(partial(reads.run, search_memory, opened, settings, boundary)) if has_memory else None
        server = server_of(LineTools(newest, lambda: boundary, reads.run), memory)
        if transport == "stdio":
            serve_stdio(server)
        else:
            serve_http(server, host, port, lambda url: warn(f"serving {url}"))
    return DONE


def _warm_in_background(reads: SearchProcesses, newest: Callable[[], Workspace]) -> None:
    """Start the reading process, and load the model and the indexes, without waiting for it."""

    def load() -> None:
        from driftline.tasks.search.query import warm

        with suppress(DriftlineError):  # calls tell it, too
            reads.run(warm, newest())

    threading.Thread(target=load, daemon=True).start()
