"""The MCP server: the tools of a workspace over standard input and output, or over HTTP."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations

from driftline.flows.mcp_server.tools import LineTools, MemoryTools, protocol_errors
from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.memory.store import MemoryStore
from driftline.storage.workspace.workspace import Workspace

_INSTRUCTIONS = (
    "Search indexed repositories and documents by meaning with search_lines; read around a hit with read_context, "
    "giving it the hit's path, line and source."
)
_MEMORY_INSTRUCTIONS = " Look up what was stored in memory with search_memory."
_GRACE_SECONDS = 3
"""How long an interrupted HTTP server waits for clients that hold a stream open."""


def make_server(
    workspace: Workspace, memory: Callable[[], MemoryStore] | None = None, within: Entity | None = None
) -> MCPServer[Any]:
    """The server of an open workspace, and of the memory store that ``memory`` opens.

    With ``within`` it serves only lines at or below that entity; ``memory`` is bound by whoever opens it.
    """
    instructions = _INSTRUCTIONS + (_MEMORY_INSTRUCTIONS if memory else "")
    server: MCPServer[Any] = MCPServer(
        "driftline", instructions=instructions, version=version("driftline"), log_level="WARNING"
    )
    lines = LineTools(workspace, within)
    tools: list[Callable[..., Any]] = [lines.search_lines, lines.index_status, lines.read_context]
    if memory is not None:
        tools.append(MemoryTools(memory).search_memory)
    reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in tools:
        server.add_tool(protocol_errors(tool), annotations=reads)
    return server


def serve_stdio(
    workspace: Workspace, memory: Callable[[], MemoryStore] | None = None, within: Entity | None = None
) -> None:
    """Serve one client over standard input and output until it closes them. An interrupt ends the process."""
    server = make_server(workspace, memory, within)
    # KeyboardInterrupt does not reach the thread in which the SDK reads, and there is nothing to finish.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server.run("stdio")
    finally:
        signal.signal(signal.SIGINT, before)


def serve_http(
    workspace: Workspace,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    memory: Callable[[], MemoryStore] | None = None,
    within: Entity | None = None,
) -> None:
    """Serve over streamable HTTP until interrupted. Port 0 chooses a free port; ``on_ready`` receives the URL.

    Raises UsageError for an address that is in use, or that other machines can reach: there is no authentication.
    """
    import uvicorn

    listener = _listen(host, port)
    with listener:
        shown = f"[{host}]" if ":" in host else host
        names = [shown, "127.0.0.1", "localhost", "[::1]"]
        # Prevents DNS rebinding: a web page must not reach the server through the browser of its visitor.
        security = TransportSecuritySettings(
            allowed_hosts=[f"{name}:*" for name in names], allowed_origins=[f"http://{name}:*" for name in names]
        )
        app = make_server(workspace, memory, within).streamable_http_app(transport_security=security)
        on_ready(f"http://{shown}:{listener.getsockname()[1]}/mcp")
        uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GRACE_SECONDS)).run(
            sockets=[listener]
        )


def _listen(host: str, port: int) -> socket.socket:
    address_text = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not ipaddress.ip_address(address[0]).is_loopback:
            raise UsageError("The MCP server listens on loopback only", address_text, "Use 127.0.0.1 or localhost.")
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # clients that read the URL can connect at once
    except OSError as error:
        raise UsageError(
            "The MCP server cannot listen on this address", address_text, f"Choose another --port ({error})."
        ) from error
    return listener
