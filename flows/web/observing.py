"""Sees each request from its first byte to its last: counts and times it, logs the access, and traces it."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftline.flows.web.metrics import Metrics

access_log = logging.getLogger("driftline.access")
"""One record for each request, at INFO. Queries are what people think about: they are not in it."""
INTERNAL_ERROR, UNEXPECTED = 500, "unexpected"
_UNANSWERED = 499
"""The status of requests whose client has gone, or was too slow, before the answer began."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Tracer(Protocol):
    """What makes a span of a request, as ``tracing.tracer`` returns it."""

    def __call__(self, scope: Scope) -> Any: ...


@dataclass(frozen=True, slots=True)
class Observed:
    """Passes requests to ``app``."""

    app: ASGIApp
    metrics: Metrics = field(default_factory=Metrics.create)
    tracer: Tracer | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, sent_bytes, is_gone = time.monotonic(), _UNANSWERED, 0, False

        async def received() -> Message:
            nonlocal is_gone
            message = await receive()
            is_gone = is_gone or message["type"] == "http.disconnect"
            return message

        async def watched(message: Message) -> None:
            nonlocal status, sent_bytes
            if is_gone and status == _UNANSWERED:
                return  # whatever the application says of it, nobody hears it
            if message["type"] == "http.response.start":
                status = message["status"]
            sent_bytes += len(message.get("body", b""))
            await send(message)

        self.metrics.under_way.inc()
        span = self.tracer(scope) if self.tracer is not None else nullcontext()
        with span as current:
            try:
                await self.app(scope, received, watched)
            finally:
                self.metrics.under_way.dec()
                seconds = time.monotonic() - started
                self._note(scope, status, seconds, sent_bytes)
                if current is not None:
                    current.update_name(f"{scope['method']} {_route(scope)}")
                    current.set_attribute("http.response.status_code", status)

    def _note(self, scope: Scope, status: int, seconds: float, sent_bytes: int) -> None:
        route, state = _route(scope), scope.get("state", {})
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.requests.labels(route, method, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        error = state.get("error", UNEXPECTED if status >= INTERNAL_ERROR else "")
        if error:
            self.metrics.errors.labels(route, error).inc()
        fields = {
            "request_id": state.get("request_id", ""),
            "token": state.get("token_id", ""),
            "client": (scope.get("client") or ("",))[0],
            "method": method,
            "route": route,
            "status": status,
            "error": error,
            "seconds": round(seconds, 6),
            "bytes": sent_bytes,
        }
        access_log.info("%s %s %s", method, route, status, extra={"fields": fields})


def _route(scope: Scope) -> str:
    """The pattern of the route, not the path: paths are without number, and name documents."""
    return getattr(scope.get("route"), "path", "none")
