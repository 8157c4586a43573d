"""The sign-in page: people give their token once, and their browser keeps it as a cookie that no script can read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from driftline.flows.web import pages
from driftline.flows.web.authentication import COOKIE, Authentication

MAX_TOKEN_BYTES = 4_096
SIGNED_IN_FOR = timedelta(days=30)
"""At most: a token that expires earlier ends it."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """The routes of the page."""

    authentication: Authentication

    async def form(self, next: str = "/") -> Response:
        """Show the form."""
        return HTMLResponse(pages.sign_in_page(_local(next)))

    async def submit(self, request: Request) -> Response:
        """Set the cookie if the token is good, and go where the browser came from."""
        body = (await request.body())[:MAX_TOKEN_BYTES].decode("utf-8", "replace")
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        token, back = fields.get("token", "").strip(), _local(fields.get("next", "/"))
        tokens = self.authentication.tokens
        if tokens is not None and tokens.is_old:
            await run_sync(tokens.refresh)
        if self.authentication.access_with(token) is None:
            return HTMLResponse(pages.sign_in_page(back, "This token is unknown, revoked, or has expired."), 401)
        response = RedirectResponse(back, 303)
        response.set_cookie(
            COOKIE,
            token,
            max_age=int(SIGNED_IN_FOR.total_seconds()),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",  # links from elsewhere lead to their page, and no route that changes anything takes GET
        )
        return response

    async def sign_out(self) -> Response:
        """Forget the cookie."""
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="lax")
        return response


def _local(target: str) -> str:
    """``target`` if it is a page of this server, else the first one."""
    parts = urlsplit(target)
    is_local = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.netloc
    return target if is_local and target.isprintable() else "/"
