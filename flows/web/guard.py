"""What every request passes: the names that it may use, the headers that every answer carries."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftline.flows.web.problems import Problem, problem

MISDIRECTED, FORBIDDEN = 421, 403
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Guard:
    """Lets requests pass to ``app`` that name one of ``places`` (host:port) and come from no other page.

    That prevents DNS rebinding: a web page must not reach the server through the browser of its visitor.
    """

    app: ASGIApp
    places: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        number = secrets.token_hex(8)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**SECURITY_HEADERS, "X-Request-Id": number})
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = self._refused(Headers(scope=scope))
        await (refused or self.app)(scope, receive, send_guarded)

    def _refused(self, headers: Headers) -> Problem | None:
        if headers.getlist("host") not in [[place] for place in self.places]:
            return problem(MISDIRECTED, "usage", "The request does not name this server")
        if any(origin not in [f"http://{place}" for place in self.places] for origin in headers.getlist("origin")):
            return problem(FORBIDDEN, "usage", "The request comes from the page of another server")
        return None
