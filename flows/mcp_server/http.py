"""Serves the MCP tools over streamable HTTP on loopback, to clients of this machine that finish what they begin.

Requests are stateless: the tools only read, so no session is kept, and no stream is open beside the answers. A
connection whose request does not arrive in time is closed, and the number of connections is bounded.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftline.flows.serving.impatient import ImpatientProtocol
from driftline.flows.serving.listening import listen, own_places

MAX_BODY_BYTES = 1 << 20
_GRACE_SECONDS = 3
"""How long an interrupted server waits for answers that are under way."""
_METHOD_NOT_ALLOWED, _TOO_LARGE = 405, 413


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
    fix = "Use 127.0.0.1 or localhost; 'driftline web' serves /mcp to other machines, with tokens."
    listener = listen(host, port, what="The MCP server", only_loopback=fix)
    places = own_places(host, listener)
    # Prevents DNS rebinding: a web page must not reach the server through the browser of its visitor.
    security = TransportSecuritySettings(allowed_hosts=places, allowed_origins=[f"http://{place}" for place in places])
    app = tools.streamable_http_app(transport_security=security, stateless_http=True)
    config = uvicorn.Config(
        WholePosts(app),
        http=ImpatientProtocol,
        ws="none",
        log_level="warning",
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return HttpServer(f"http://{places[0]}/mcp", uvicorn.Server(config), listener)


@dataclass(frozen=True, slots=True)
class WholePosts:
    """Passes requests to ``app`` once they have arrived whole, and refuses all but POST.

    Without sessions, the stream that a GET opens would bring nothing and last as long as its client likes.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] != "POST":
            refused = PlainTextResponse("Only POST is allowed.", _METHOD_NOT_ALLOWED, {"Allow": "POST"})
            await refused(scope, receive, send)
            return
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # nobody waits for an answer
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                await PlainTextResponse("The body is too large.", _TOO_LARGE)(scope, receive, send)
                return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, receive_whole, send)
