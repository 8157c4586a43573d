"""Guard every request: check its host, origin and access, limit its rate, and set response headers.

The rate limit is a token bucket per client, for a bounded number of clients. Routes that wait for disks and buckets run
in threads, with a timeout for the client.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlencode

import anyio
from anyio.to_thread import run_sync
from cachetools import LRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftline.flows.http_server import MAX_BODY_BYTES, LimitedBody, refusal_of, too_large
from driftline.flows.web import access
from driftline.flows.web.access import Access, Authentication
from driftline.flows.web.responses import problem, problem_of
from driftline.storage.errors import StorageError
from driftline.storage.workspace.tokens import Scope as TokenScope

MAX_CLIENTS = 10_000


@dataclass(slots=True)
class RateLimit:
    """Allows each client ``per_second`` requests on average, and bursts of ``burst`` requests. For one event loop."""

    per_second: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _left: LRUCache[str, tuple[float, float]] = field(default_factory=lambda: LRUCache(MAX_CLIENTS))
    """Each client's remaining requests, and when they were counted."""

    def seconds_to_wait(self, client: str) -> int:
        """Return 0 and count the request if ``client`` may send it now; otherwise the seconds until it may."""
        now = self.clock()
        left, then = self._left.get(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.per_second)
        allowed = left >= 1.0
        self._left[client] = (left - 1.0 if allowed else left, now)
        return 0 if allowed else max(1, math.ceil((1.0 - left) / self.per_second))


ANSWER_SECONDS = 60.0
"""How long a client waits for a response. The thread is left to finish, and keeps its slot: it has no side effects."""


SEARCHES_AT_ONCE = max(4, 2 * (os.cpu_count() or 1))
"""Maximum concurrent searches. More would compete for the GIL and memory, so they wait."""


@functools.lru_cache(16)  # limiters belong to an event loop
def _turns(_: object) -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(SEARCHES_AT_ONCE)


def in_thread(route: Callable[..., Response], *, searches: bool = False) -> Callable[..., Awaitable[Response]]:
    """Return ``route`` as a coroutine with the same parameters, which runs it in a thread.

    If ``searches`` is set, the number of concurrent searches is limited. Raises StorageError after ANSWER_SECONDS.
    """

    @functools.wraps(route)
    async def call(*args: object, **kwargs: object) -> Response:
        nobody_waits = threading.Event()

        def run() -> Response | None:
            return None if nobody_waits.is_set() else route(*args, **kwargs)

        turn = _turns(asyncio.get_running_loop()) if searches else None
        # A task of its own: a cancelled ``run_sync`` would release the slot while its thread continues.
        running = asyncio.ensure_future(run_sync(run, abandon_on_cancel=True, limiter=turn))
        running.add_done_callback(lambda each: each.cancelled() or each.exception())
        try:
            await asyncio.wait([running], timeout=ANSWER_SECONDS)
        finally:
            nobody_waits.set()
        if running.done() and (response := running.result()) is not None:
            return response
        raise StorageError(f"The request took longer than {ANSWER_SECONDS:.0f} s", "", "Narrow the request, or retry.")

    vars(call)["__signature__"] = inspect.signature(route, eval_str=True)  # without ``self``
    return call


MAX_HOOK_BYTES = 8 << 20
"""Maximum size of a webhook's body; a push of thousands of commits lists all of their files."""
SIGN_IN, MCP, API, HOOKS = "/sign-in", "/mcp", "/api/v1/", "/hooks/"
FILES, REFERENCES = "/files", "/references"
_FOR_ALL = ("/healthz", "/readyz", SIGN_IN, "/static/", HOOKS)
"""Routes that need no token: they reveal nothing about the workspace. Webhooks are signed."""
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # without it, browsers send the origin "null" when somebody signs in
    "X-Content-Type-Options": "nosniff",
}
_OF_SCRIPTS = ("GET", "HEAD", "OPTIONS")
_MAY_BE_SENT = {
    "Access-Control-Allow-Methods": "GET",
    "Access-Control-Allow-Headers": "Authorization, If-None-Match",
    "Access-Control-Max-Age": "600",
}
_FOR_SCRIPTS = {"Access-Control-Expose-Headers": "ETag, Link, Retry-After, X-Request-Id"}


@dataclass(frozen=True, slots=True)
class Guard:
    """Pass authorized requests for one of ``addresses`` (host:port) to ``app``, rejecting cross-origin pages."""

    app: ASGIApp
    addresses: Collection[str]
    origins: Collection[str] = ()
    """More origins under which browsers reach this server, such as behind a proxy."""
    cors_origins: Collection[str] = ()
    """Origins of other servers whose scripts may read the API."""
    authentication: Authentication = field(default_factory=Authentication)
    rate_limit: RateLimit | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        number = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = number
        body, is_answered = LimitedBody(receive, _limit(scope)), False

        async def send_guarded(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                headers = MutableHeaders(scope=message)
                headers.update({**SECURITY_HEADERS, "X-Request-Id": number})
                headers.setdefault("Cache-Control", "no-store")
                if self._is_cross_origin_api_call(scope) and message["status"] != HTTPStatus.MISDIRECTED_REQUEST:
                    headers.update({"Access-Control-Allow-Origin": Headers(scope=scope)["origin"], **_FOR_SCRIPTS})
                    headers.add_vary_header("Origin")
            await send(message)

        async def send_answer(message: Message) -> None:
            if (
                is_answered or not body.is_too_large
            ):  # an error response would be about a client that seems to have disconnected
                await send_guarded(message)

        refused = await self._refused(scope)
        inner = _as_get_without_cookies(scope)
        try:
            await (refused or self.app)(inner, body.receive, send_answer)
        finally:
            if "route" in inner:
                scope["route"] = inner["route"]
        if body.is_too_large and not is_answered:
            refusal = too_large(body.max_bytes)
            await problem(refusal.status, "usage", refusal.text)(scope, receive, send_guarded)

    async def _refused(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        is_cross_origin = self._is_cross_origin_api_call(scope)
        refusal = refusal_of(
            scope, self.addresses, self.origins, max_body_bytes=_limit(scope), any_origin=is_cross_origin
        )
        if refusal is not None:
            return problem(refusal.status, "usage", refusal.text)
        if is_cross_origin and scope["method"] == "OPTIONS":  # a preflight request, which carries no token
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=_MAY_BE_SENT)
        if path.startswith(_FOR_ALL):
            return None
        for known in self.authentication.old:
            await run_sync(known.refresh)
        client = (scope.get("client") or ("", 0))[0]
        try:
            allowed = self.authentication.access_of(client, headers)
        except StorageError as error:
            return problem_of(error)
        if allowed is None:
            return _unauthorized(scope)
        scope["state"]["token_id"] = allowed.token_id
        access.grant(allowed)
        return self._limited(allowed, client) or _without_scope(allowed, path)

    def _is_cross_origin_api_call(self, scope: Scope) -> bool:
        """Return whether a script on a page at one of ``cors_origins`` calls the API."""
        if not self.cors_origins or not scope["path"].startswith(API) or scope["method"] not in _OF_SCRIPTS:
            return False
        return Headers(scope=scope).getlist("origin") in [[origin] for origin in self.cors_origins]

    def _limited(self, allowed: Access, client: str) -> Response | None:
        seconds = (
            self.rate_limit.seconds_to_wait(allowed.token_id or allowed.user or client)
            if self.rate_limit is not None
            else 0
        )
        if not seconds:
            return None
        response = problem(HTTPStatus.TOO_MANY_REQUESTS, "usage", "Too many requests", fix=f"Retry in {seconds} s.")
        response.headers["Retry-After"] = str(seconds)
        return response


def is_page(path: str) -> bool:
    """Return whether ``path`` is a web page rather than an API route."""
    return path in ("/", "/index", "/sql", FILES, REFERENCES) or path.startswith("/d/")


def _limit(scope: Scope) -> int:
    return MAX_HOOK_BYTES if scope["path"].startswith(HOOKS) else MAX_BODY_BYTES


def _as_get_without_cookies(scope: Scope) -> Scope:
    """Return ``scope`` for the routes: they handle HEAD like GET, and the server sends only the headers.

    Only the guard reads cookies. FastAPI would parse all of them on every request, with the standard library.
    """
    headers = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
    return {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"], "headers": headers}


def _unauthorized(scope: Scope) -> Response:
    """Return the sign-in page for browsers, an error for programs."""
    if is_page(scope["path"]) and scope["method"] in ("GET", "HEAD"):
        query = scope["query_string"].decode("latin-1")
        back = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        return RedirectResponse(f"{SIGN_IN}?{urlencode({'next': back})}", 303)
    response = problem(
        HTTPStatus.UNAUTHORIZED, "access_denied", "A valid token is required", fix="Send: Authorization: Bearer TOKEN"
    )
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _without_scope(allowed: Access, path: str) -> Response | None:
    needed: TokenScope = "search"
    if path in ("/sql", "/api/v1/sql") and needed in allowed.scopes:  # its views show lines and memory
        needed = "memory"
    elif path == "/metrics":
        needed = "metrics"
    elif path.startswith("/api/v1/memory/") or (path == MCP and "search" not in allowed.scopes):
        needed = "memory"
    if needed in allowed.scopes:
        return None
    if allowed.user:
        fix = "Ask the server's operator for access to an entity."
        return problem(HTTPStatus.FORBIDDEN, "access_denied", "This user has no access to anything here", fix=fix)
    fix = f"Ask for another: driftline token create --scope {needed}"
    return problem(HTTPStatus.FORBIDDEN, "access_denied", f"The token does not have the scope {needed!r}", fix=fix)
