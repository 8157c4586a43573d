"""Listens on loopback and serves until a signal; requests that are under way are finished first."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

import uvicorn

from driftline.flows.web.app import make_app
from driftline.flows.web.requests import Reader
from driftline.storage.errors import UsageError

MAX_CONNECTIONS = 256
GRACE_SECONDS = 10
"""How long a server that was told to stop waits for answers that are under way."""


@dataclass(frozen=True, slots=True)
class WebServer:
    """A server that listens at ``url``; ``run`` serves until a signal or ``server.should_exit``."""

    url: str
    server: uvicorn.Server
    listener: socket.socket

    def run(self) -> None:
        with self.listener:
            self.server.run(sockets=[self.listener])


def web_server(reader: Reader, host: str, port: int) -> WebServer:
    """Listen; port 0 chooses a free port.

    Raises UsageError for an address that is in use, or that other machines can reach: there is no authentication.
    """
    listener = _listen(host, port)
    shown, port = f"[{host}]" if ":" in host else host, listener.getsockname()[1]
    places = {f"{name}:{port}" for name in (shown, "127.0.0.1", "localhost", "[::1]")}
    config = uvicorn.Config(
        make_app(reader, places),
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return WebServer(f"http://{shown}:{port}/", uvicorn.Server(config), listener)


def _listen(host: str, port: int) -> socket.socket:
    place = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not ipaddress.ip_address(address[0]).is_loopback:
            raise UsageError("The web server listens on loopback only", place, "Use 127.0.0.1 or localhost.")
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # clients that read the URL can connect at once
    except OSError as error:
        fix = f"Choose another --port ({error})."
        raise UsageError("The web server cannot listen on this address", place, fix) from error
    return listener
