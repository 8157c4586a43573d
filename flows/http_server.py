"""Serve HTTP/1.1 with limits on slow clients and open connections.

uvicorn has no timeout for a connection's first request, for the rest of a request, or for a client to read its
response.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar, NamedTuple, cast
from urllib.parse import unquote

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from driftline.storage.errors import UsageError

REQUEST_SECONDS = 10.0
"""Time limit for receiving a request, from the connection or the first byte to the last byte."""
WRITE_SECONDS = 30.0
"""Time limit for a client to read everything written to it."""
DEFAULT_HEAD_BYTES = 16 << 10
"""Maximum size of the request line and headers, unless the server sets another; h11 has the same default."""
MAX_DISCARDED_BYTES = 64 << 20
"""How much of a body that the application did not read is received after the response, within REQUEST_SECONDS."""
MAX_CONNECTIONS = 256
MAX_CONNECTIONS_OF_A_CLIENT = 64
"""Maximum connections from a single client's address, which is neither loopback nor a proxy."""

Networks = Collection[ipaddress.IPv4Network | ipaddress.IPv6Network]


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that listens at ``url``; ``run`` serves until a signal or ``server.should_exit``."""

    url: str
    server: uvicorn.Server
    listener: socket.socket

    def run(self) -> None:
        with self.listener:
            self.server.run(sockets=[self.listener])


class TimeoutProtocol(H11Protocol):
    """Close connections whose request does not arrive in time, or whose client does not read the response in time.

    A connection that pipelines requests is closed after the first response. If there are too many connections, a new
    connection replaces the one that has waited longest for its client; connections with a request in progress are kept.
    """

    shared: ClassVar[Networks] = ()
    """Addresses that many clients share, in addition to loopback."""
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _waits_since: float | None = None
    """When the server started to wait for the client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        # Call pause_writing as soon as any byte is buffered, and resume_writing once the buffer is empty.
        transport.set_write_buffer_limits(high=1, low=0)
        limited = _HeadLimit(_whole_address(cast("ASGIApp", self.app)), self.config.h11_max_incomplete_event_size)
        self.app = cast("ASGIApp", _UnreadBody(limited))
        self._make_room()
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        self._expect_request()
        super().data_received(data)
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            self.cycle.keep_alive = False  # a client that pipelines requests gets one response
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._waits_since = self.loop.time()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._timer is None:
            self._waits_since = self.loop.time()
            self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        self._waits_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _make_room(self) -> None:
        """Close a connection if there are too many: one of this client's if it has too many, otherwise any."""
        connections = cast("set[TimeoutProtocol]", self.connections)
        address = self.client[0] if self.client else ""
        if not self._is_shared(address):
            own = [each for each in connections if each.client and each.client[0] == address]
            if len(own) > MAX_CONNECTIONS_OF_A_CLIENT:
                self._close_one(own)
        if len(connections) > MAX_CONNECTIONS:
            self._close_one(connections)

    def _close_one(self, connections: Collection[TimeoutProtocol]) -> None:
        waiting = [(since, id(each), each) for each in connections if (since := each.waits_since) is not None]
        closed = min(waiting)[2] if waiting else self
        self.connections.discard(closed)
        closed.transport.abort()

    @property
    def waits_since(self) -> float | None:
        """When the server started to wait for a request, or for the client to read.

        None while the server processes a request.
        """
        if self._write_timer is not None:
            return self._write_timer.when() - WRITE_SECONDS
        return self._waits_since

    def _is_shared(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return True
        plain = getattr(parsed, "ipv4_mapped", None) or parsed
        return plain.is_loopback or any(plain in network for network in self.shared)


def timeout_protocol(shared: Networks = ()) -> type[TimeoutProtocol]:
    """Return the protocol for a server that many clients reach through ``shared`` addresses."""
    return type("TimeoutProtocol", (TimeoutProtocol,), {"shared": tuple(shared)})


def _whole_address(app: ASGIApp) -> ASGIApp:
    """Accept ``GET http://host/path``, as HTTP requires; its host takes precedence over the header."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scheme, sign, rest = scope["raw_path"].partition(b"://")
        if sign and scheme.lower() in (b"http", b"https"):
            host, _, path = rest.partition(b"/")
            scope["headers"] = [(b"host", host.lower()), *(each for each in scope["headers"] if each[0] != b"host")]
            scope["raw_path"] = b"/" + path
            scope["path"] = unquote(scope["raw_path"].decode("ascii"))
        await app(scope, receive, send)

    return serve


class _HeadLimit:
    """Reject requests whose request line and headers exceed ``max_bytes``: h11 limits only incomplete requests."""

    __slots__ = ("app", "max_bytes")

    def __init__(self, app: object, max_bytes: int | None) -> None:
        self.app = cast("ASGIApp", app)
        self.max_bytes = max_bytes or DEFAULT_HEAD_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"])
        if size <= self.max_bytes:
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        await send(
            {"type": "http.response.start", "status": HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers": headers}
        )
        text = f"The request line and headers are larger than {self.max_bytes:,} bytes."
        await send({"type": "http.response.body", "body": text.encode()})


class _UnreadBody:
    """Receive the rest of a request's body after an early response, such as 413.

    Most clients do not read a response until they have sent their body, and closing the connection would discard it. A
    client that sends ``Expect: 100-continue`` does read it, and then sends no body.
    """

    __slots__ = ("app",)

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        is_unread = has_body and "expect" not in headers

        async def receive_noted() -> Message:
            nonlocal is_unread
            message = await receive()
            is_unread = message.get("more_body", False)
            return message

        async def send_and_discard(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last and is_unread:
                await send({**message, "more_body": True})
                part: Message = {"more_body": True}
                discarded = 0
                while part.get("more_body", False) and discarded < MAX_DISCARDED_BYTES:
                    part = await receive_noted()
                    discarded += len(part.get("body", b""))
                message = {"type": "http.response.body"}
            await send(message)

        await self.app(scope, receive_noted, send_and_discard)


def listen(host: str, port: int, *, what: str, only_loopback: str = "") -> socket.socket:
    """Listen on an address; port 0 selects a free port. ``what`` is the server's name in errors.

    Raises UsageError if the address is in use or, with ``only_loopback``, if other machines can reach it;
    ``only_loopback`` is then the error's fix.
    """
    shown = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if only_loopback and not ipaddress.ip_address(address[0]).is_loopback:
            raise UsageError(f"{what} listens on loopback only", shown, only_loopback)
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # clients that read the URL can connect immediately
    except OSError as error:
        raise UsageError(f"{what} cannot listen on this address ({error})", shown, "Choose another --port.") from error
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Return whether the socket is reachable only from this machine."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def own_addresses(host: str, listener: socket.socket) -> list[str]:
    """Return the socket's ``host:port``; on loopback, also its other names."""
    shown, port = f"[{host}]" if ":" in host else host, listener.getsockname()[1]
    names = [shown] + (["127.0.0.1", "localhost", "[::1]"] if is_loopback(listener) else [])
    return [f"{name}:{port}" for name in names]


MAX_BODY_BYTES = 1 << 20


class Refusal(NamedTuple):
    """The response to a rejected request."""

    status: int
    text: str


def refusal_of(
    scope: Scope,
    addresses: Collection[str],
    origins: Collection[str] = (),
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    any_origin: bool = False,
) -> Refusal | None:
    """Return why a request to one of ``addresses`` (host:port) is rejected, or None if it is allowed.

    Browsers may send requests from pages at ``addresses`` and ``origins``, or from any page if ``any_origin`` is set.
    """
    headers = Headers(scope=scope)
    if headers.getlist("host") not in [[address] for address in addresses]:
        return Refusal(HTTPStatus.MISDIRECTED_REQUEST, "The Host header is not an address of this server")
    own = [*origins, *(f"{scope['scheme']}://{address}" for address in addresses)]
    if not any_origin and any(origin not in own for origin in headers.getlist("origin")):
        return Refusal(HTTPStatus.FORBIDDEN, "The request comes from a page on another server")
    announced = headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced) > max_body_bytes:
        return too_large(max_body_bytes)
    return None


def too_large(max_body_bytes: int) -> Refusal:
    """Return the response to a request whose body exceeds ``max_body_bytes``."""
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is larger than {max_body_bytes:,} bytes")


@dataclass(slots=True)
class LimitedBody:
    """A request body; ``receive`` reports a disconnected client once the body exceeds ``max_bytes``.

    Chunked bodies do not announce their length.
    """

    source: Receive
    max_bytes: int = MAX_BODY_BYTES
    received_bytes: int = 0

    @property
    def is_too_large(self) -> bool:
        return self.received_bytes > self.max_bytes

    async def receive(self) -> Message:
        message = await self.source()
        self.received_bytes += len(message.get("body", b""))
        return {"type": "http.disconnect"} if self.is_too_large else message


@dataclass(frozen=True, slots=True)
class HttpGuard:
    """Passes allowed requests to ``app``, which must read the request body before responding."""

    app: ASGIApp
    addresses: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = refusal_of(scope, self.addresses)
        if refusal is None:
            body = LimitedBody(receive)
            await self.app(scope, body.receive, send)
            if not body.is_too_large:
                return
            refusal = too_large(body.max_bytes)
        await PlainTextResponse(f"{refusal.text}.", refusal.status)(scope, receive, send)
