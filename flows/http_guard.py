"""Reject requests with a wrong Host, from cross-origin pages, or with too large a body.

``driftline mcp`` and ``driftline web`` share these checks. Checking Host and Origin prevents DNS rebinding: a web page
must not reach the server through its visitor's browser.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FORBIDDEN, TOO_LARGE, MISDIRECTED = 403, 413, 421
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
    """Return why a request to one of ``addresses`` (host:port) is rejected; None if it is allowed.

    Browsers may send requests from pages at ``addresses`` and ``origins``, or from any page if ``any_origin`` is set.
    """
    headers = Headers(scope=scope)
    if headers.getlist("host") not in [[address] for address in addresses]:
        return Refusal(MISDIRECTED, "The Host header is not an address of this server")
    own = [*origins, *(f"{scope['scheme']}://{address}" for address in addresses)]
    if not any_origin and any(origin not in own for origin in headers.getlist("origin")):
        return Refusal(FORBIDDEN, "The request comes from a page on another server")
    announced = headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced) > max_body_bytes:
        return too_large(max_body_bytes)
    return None


def too_large(max_body_bytes: int) -> Refusal:
    """Return the response to a request whose body exceeds ``max_body_bytes``."""
    return Refusal(TOO_LARGE, f"The body is larger than {max_body_bytes:,} bytes")


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
