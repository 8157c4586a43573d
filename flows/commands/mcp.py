"""Define ``driftline mcp``: serve workspaces as tools to Model Context Protocol clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from driftline.flows.commands.app import DONE, CacheOption, WithinOption, app
from driftline.flows.config.which_workspace import workspace_for_reading
from driftline.flows.config.workspace_names import absolute_uri
from driftline.flows.output.plain_text import warn
from driftline.storage.environment import install_command
from driftline.storage.errors import DriftlineError, MissingExtra

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from driftline.flows.mcp_server.server import WorkspaceTools
    from driftline.flows.web.search_processes import SearchProcesses
    from driftline.storage.entities import Boundary
    from driftline.storage.workspace.workspace import Workspace

STOP_SECONDS = 30.0
"""How long a server that stops waits for the code that it is still loading."""


@app.command()
def mcp(
    workspace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URI",
            help="The workspace: a folder, s3://, gs:// or az://, or @NAME. With several, each call selects one. "
            "Default: $DRIFTLINE_WORKSPACE, then the nearest .driftline folder.",
        ),
    ] = None,
    transport: Annotated[Literal["stdio", "http"], typer.Option(help="How clients connect.")] = "stdio",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Loopback address of the http transport.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the http transport; 0 selects a free port.")
    ] = 8765,
    within: WithinOption = None,
    cache: CacheOption = None,
) -> int:
    """Serve workspaces to MCP clients, so that they can search and read indexed documents."""
    named: list[str | None] = [*workspace] if workspace else [None]
    targets = {absolute_uri(workspace_for_reading(given), Path()): given for given in named}
    from driftline.flows.web.search_processes import CONCURRENT_SEARCHES, SearchProcesses

    try:
        from driftline.flows.mcp_server.server import serve_http, serve_stdio, server_of
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        fix = f"Run: {install_command('mcp')}"
        raise MissingExtra("The MCP server requires an optional dependency", "mcp", fix) from error

    with ExitStack() as until_end, suppress(KeyboardInterrupt):  # the usual way to stop it
        # One client needs only one reader process. A damaged table file crashes that process, not the server.
        reads = until_end.enter_context(closing(SearchProcesses(1, CONCURRENT_SEARCHES)))
        opened = [_tools_of(given, within, cache, reads, until_end.enter_context) for given in targets.values()]
        warming = _warm_in_background(reads, [each.lines.newest for each in opened])
        # A thread that imports native code while the interpreter shuts down would crash it.
        until_end.callback(warming.join, STOP_SECONDS)
        server = server_of(dict(zip(_short_names(targets), opened, strict=True)))
        if transport == "stdio":
            serve_stdio(server)
        else:
            serve_http(server, host, port, lambda url: warn(f"serving {url}"))
    return DONE


def _tools_of(
    given: str | None,
    within: str | None,
    cache: bool | None,
    reads: SearchProcesses,
    until_end: Callable[[AbstractContextManager[Callable[[], Workspace]]], Callable[[], Workspace]],
) -> WorkspaceTools:
    """Open the workspace called ``given`` on the command line, or else the nearest, and return its tools.

    Raises DriftlineError.
    """
    from driftline.flows.config.memory_settings import find_memory, memory_of
    from driftline.flows.config.which_workspace import boundary_in, cache_settings, open_for_reading
    from driftline.flows.mcp_server.server import WorkspaceTools
    from driftline.flows.mcp_server.tools import LineTools, MemoryTools
    from driftline.flows.served_memory import search_memory

    opened = open_for_reading(given)
    settings = memory_of(opened.objects.uri)
    boundary = None if within is None else boundary_in(opened, within)
    newest = opened.reread
    if not opened.objects.is_local:
        from driftline.flows.runs.pull import newest_of

        is_cached, max_bytes = cache_settings(cache)
        newest = until_end(newest_of(opened, cache=is_cached, max_bytes=max_bytes, warn=warn))
    has_memory = find_memory(settings, opened) is not None
    memory = MemoryTools(partial(reads.run, search_memory, opened, settings, boundary)) if has_memory else None
    tools = LineTools(newest, lambda: boundary, reads.run, shows_files=True)
    return WorkspaceTools(tools, memory, partial(unlisted_arguments, opened, boundary))


def unlisted_arguments(opened: Workspace, boundary: Boundary | None) -> frozenset[str]:
    """Return the arguments that are useless in a local workspace: ``sources`` of a single one, ``branch`` of none."""
    if not opened.objects.is_local:
        return frozenset()  # it would take a request for each source
    try:
        sources = [entity for entity, _ in opened.readable_sources(boundary)]
    except DriftlineError:  # calls will report it
        return frozenset()
    has_branches = any(map(opened.has_branches, sources))
    return frozenset({*(() if has_branches else ("branch",)), *(() if len(sources) > 1 else ("sources", "source"))})


def _short_names(targets: Iterable[str]) -> list[str]:
    """Return the last part of each path or URI, as many parts as make all names unique, or otherwise the whole.

    Examples:
        >>> _short_names(["/srv/web/.driftline", "s3://indexes/docs"]), _short_names(["/a/web", "/b/web"])
        (['web', 'docs'], ['a/web', 'b/web'])
        >>> _short_names(["/a/web", "/a/web/.driftline"]), _short_names(["/.driftline", "/a"])
        (['/a/web', '/a/web/.driftline'], ['/.driftline', '/a'])
    """
    full = [*targets]
    paths = [target.rstrip("/").removesuffix("/.driftline").split("/") for target in full]
    for count in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-count:]) for path in paths]
        if len(set(names)) == len(names) and all(names):
            return names
    return full


def _warm_in_background(reads: SearchProcesses, newest: Iterable[Callable[[], Workspace]]) -> threading.Thread:
    """Start the reader process and load the model and indexes in the returned thread."""

    def load() -> None:
        from driftline.tasks.search.search import warm

        for each in newest:
            with suppress(DriftlineError):  # calls will report it
                reads.run(warm, each())

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    return thread
