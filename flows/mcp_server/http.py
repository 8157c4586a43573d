"""Serves the MCP tools over streamable HTTP on loopback, to clients of this machine that finish what they begin.

Requests are stateless: the tools only read, so no session is kept. A connection whose request does not arrive in time
is closed, and the number of connections is bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from uvicorn.protocols.http.h11_impl import H11Protocol

from driftline.storage.errors import UsageError

REQUEST_SECONDS = 10.0
"""How long a request may take to arrive, from the first byte or the connection to the last byte."""
MAX_CONNECTIONS = 256
_GRACE_SECONDS = 3
"""How long an interrupted server waits for clients that hold a stream open."""


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that listens at ``url``; ``run`` serves until it is interrupted or ``server.should_exit`` is set."""

    url: str
    server: uvicorn.Server
    listener: socket.socket

    def run(self) -> None:
        with self.listener:
            self.server.run(sockets=[self.listener])


def http_server(tools: MCPServer[Any], host: str, port: int) -> HttpServer:
    """Listen for ``tools``; port 0 chooses a free port.

    Raises UsageError for an address that is in use, or that other machines can reach: there is no authentication.
    """
    listener = _listen(host, port)
    shown, port = f"[{host}]" if ":" in host else host, listener.getsockname()[1]
    places = [f"{name}:{port}" for name in (shown, "127.0.0.1", "localhost", "[::1]")]
    # Prevents DNS rebinding: a web page must not reach the server through the browser of its visitor.
    security = TransportSecuritySettings(allowed_hosts=places, allowed_origins=[f"http://{place}" for place in places])
    app = tools.streamable_http_app(transport_security=security, stateless_http=True)
    config = uvicorn.Config(
        app,
        http=_ImpatientProtocol,
        ws="none",
        log_level="warning",
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return HttpServer(f"http://{shown}:{port}/mcp", uvicorn.Server(config), listener)


class _ImpatientProtocol(H11Protocol):
    """uvicorn waits without limit for the first request of a connection, and for the rest of each request."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        self._expect_request()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
