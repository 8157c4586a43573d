"""The MCP tools at /mcp: each call sees what its request is granted."""

from __future__ import annotations

from contextlib import AbstractContextManager

from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from driftline.flows.mcp_server.server import server_of
from driftline.flows.mcp_server.tools import LineTools, MemoryTools
from driftline.flows.web.access import granted
from driftline.flows.web.requests import Reader
from driftline.storage.memory.store import MemoryStore


def mcp_app(reader: Reader) -> Starlette:
    """The application that serves the tools of ``reader`` over streamable HTTP, without sessions."""
    lines = LineTools(reader.newest, lambda: granted("search").within)
    memory = reader.memory

    def open_store() -> AbstractContextManager[MemoryStore]:
        assert memory is not None
        return memory.bound_to(granted("memory").within)

    server = server_of(lines, MemoryTools(open_store) if memory is not None else None)
    # The guard has checked host and origin already.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return server.streamable_http_app(transport_security=unchecked, stateless_http=True, json_response=True)
