"""Listen and serve until a signal arrives, then finish requests in flight."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from driftline.flows.http_server import HttpServer, is_loopback, listen, own_addresses, timeout_protocol
from driftline.flows.web.access import Authentication
from driftline.flows.web.api import Reader
from driftline.flows.web.guard import RateLimit
from driftline.flows.web.observability import tracer
from driftline.flows.web.routes import McpApp, WebhookReceiver, make_app
from driftline.storage.errors import UsageError

GRACE_SECONDS = 10
"""Grace period for requests in flight at shutdown."""
MAX_HEAD_BYTES = 256 << 10
"""Maximum size of the request line and headers, enough for a hundred long filters."""
_WILDCARDS = ("0.0.0.0", "::", "")
_WHAT = "The web server"


@dataclass(frozen=True, slots=True)
class Exposure:
    """How clients reach the server: host names, certificate, authentication and rate.

    ``names`` lists additional hosts, with or without a port. ``cors_origins`` lists other servers' origins whose pages
    may call the API.
    """

    names: Collection[str] = ()
    certificate: str | None = None
    key: str | None = None
    authentication: Authentication = field(default_factory=Authentication)
    rate_limit: RateLimit | None = None
    cors_origins: Collection[str] = ()


def web_server(
    reader: Reader,
    host: str,
    port: int,
    exposure: Exposure | None = None,
    mcp: McpApp | None = None,
    hooks: WebhookReceiver | None = None,
) -> HttpServer:
    """Return the web server of ``reader``, already listening. Port 0 selects a free port.

    Raises UsageError if the address is in use, or if other machines can reach it but no authentication or no host name
    is configured.
    """
    exposed = exposure or Exposure()
    listener = listen(host, port, what=_WHAT)
    try:
        _check(exposed, host, listener)
        addresses = own_addresses(host, listener)
        scheme, port = "https" if exposed.certificate else "http", listener.getsockname()[1]
        named = [
            address for name in exposed.names for address in ([name] if _has_port(name) else [name, f"{name}:{port}"])
        ]
        # A proxy may terminate TLS; browsers then send another scheme than the server's.
        origins = [f"{each}://{address}" for each in ("http", "https") for address in named]
        app = make_app(
            reader,
            {*addresses, *named},
            origins=origins,
            authentication=exposed.authentication,
            rate_limit=exposed.rate_limit,
            mcp=mcp,
            tracer=tracer(),
            cors_origins=exposed.cors_origins,
            hooks=hooks,
        )
        server = uvicorn.Server(_config(app, exposed))
    except BaseException:
        listener.close()
        raise
    shown = addresses[0] if host not in _WILDCARDS else (named[-1] if named else addresses[0])
    return HttpServer(f"{scheme}://{shown}/", server, listener)


def _config(app: Callable[..., Any], exposed: Exposure) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=timeout_protocol(proxy.addresses if (proxy := exposed.authentication.proxy) is not None else ()),
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_certfile=exposed.certificate,
        ssl_keyfile=exposed.key,
    )
    try:
        config.load()
    except OSError as error:  # includes ssl.SSLError
        files = f"{exposed.certificate}, {exposed.key}"
        raise UsageError(f"Cannot use the certificate or its key ({error.strerror or error})", files) from error
    return config


def _check(exposed: Exposure, host: str, listener: socket.socket) -> None:
    address = f"{host}:{listener.getsockname()[1]}"
    for origin in exposed.cors_origins:
        if not _is_origin(origin):
            raise UsageError("Not a valid origin", origin, "Use https://portal.example.com.")
    if exposed.authentication.is_open and (exposed.names or not is_loopback(listener)):
        fix = "Use --require-token, or set --trusted-proxy-header."
        raise UsageError(f"{_WHAT} requires authentication except on loopback", address, fix)
    if not exposed.names and host in _WILDCARDS:
        fix = "Specify the host in the clients' URLs: --allowed-host driftline.example.com"
        raise UsageError(f"{_WHAT} requires a host name", address, fix)
    if (exposed.certificate is None) != (exposed.key is None):
        raise UsageError("TLS requires a certificate and its key", address, "Set both --tls-certificate and --tls-key.")


def _is_origin(text: str) -> bool:
    """Return whether ``text`` is an origin in the format sent by browsers: scheme, host and a non-default port."""
    return re.fullmatch(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:\d+)?", text) is not None and not re.match(
        r"http://.*:80$|https://.*:443$", text
    )


def _has_port(name: str) -> bool:
    return name.rpartition("]")[2].count(":") == 1
