"""Convert errors to HTTP responses: ``application/problem+json`` with the error's kind, location and fix."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from driftline.storage.errors import (
    DriftlineError,
    FingerprintMismatch,
    MissingExtra,
    ModelNotFound,
    NotIndexed,
    UsageError,
    WorkspaceNotFound,
    WorkspaceTooNew,
)
from driftline.storage.option_table import nearest_name

OK, NOT_MODIFIED, BAD_REQUEST, NOT_FOUND, UNAVAILABLE = 200, 304, 400, 404, 503
_OF_A_BODY = frozenset({"content-length", "content-type"})
_OF_THE_SERVER = (FingerprintMismatch, MissingExtra, ModelNotFound, WorkspaceNotFound, WorkspaceTooNew)


class TaggedAnswer(Response):
    """A response with an ETag of its content; clients that already have this content get a 304."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.status_code != OK:
            await super().__call__(scope, receive, send)
            return
        # Weak, because the same content may be sent compressed or not.
        tag = f'"{hashlib.blake2b(self.body, digest_size=16).hexdigest()}"'
        self.headers["ETag"] = f"W/{tag}"
        self.headers.setdefault("Cache-Control", "private, no-cache")
        known = Headers(scope=scope).get("if-none-match", "")
        if tag in [each.strip().removeprefix("W/") for each in known.split(",")]:
            headers = {name: value for name, value in self.headers.items() if name not in _OF_A_BODY}
            headers["Vary"] = "Accept-Encoding"  # the same headers as in the full response
            await Response(status_code=NOT_MODIFIED, headers=headers)(scope, receive, send)
            return
        await super().__call__(scope, receive, send)


class JsonAnswer(TaggedAnswer):
    """ASCII-only JSON, because file names may contain bytes that UTF-8 cannot represent.

    The tag identifies the response, not the index: the freshness of hits changes even without a run.
    """

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), default=str).encode("ascii")


class Problem(JsonAnswer):
    """An error; ``detail`` is human-readable. Its kind is stored in the request's state for metrics and logs."""

    media_type = "application/problem+json"

    def __init__(self, content: Mapping[str, Any], status_code: int) -> None:
        super().__init__(content, status_code)
        self.kind, self.detail = str(content["error"]), str(content["detail"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["error"] = self.kind
        await super().__call__(scope, receive, send)


def status_of(error: DriftlineError) -> int:
    """Return 404 for missing data, 400 for other client errors, 503 for errors that only the server's owner can fix."""
    if isinstance(error, NotIndexed):
        return NOT_FOUND
    return BAD_REQUEST if isinstance(error, UsageError) and not isinstance(error, _OF_THE_SERVER) else UNAVAILABLE


def problem_of(error: DriftlineError, *, to_owner: bool = True) -> Problem:
    """Return the response to a request that failed with ``error``.

    The location of the failure is shown only to the server's owner.
    """
    status = status_of(error)
    if status == UNAVAILABLE and not to_owner:
        return problem(status, error.kind, "Cannot read the workspace now", fix="Tell the server's owner.")
    return problem(status, error.kind, str(error), error.where, error.fix)


def problem(status: int, kind: str, detail: str, where: str = "", fix: str = "") -> Problem:
    """Return an RFC 9457 response; ``error``, ``where`` and ``fix`` are the same as with ``--json``."""
    content = {"type": "about:blank", "title": kind, "status": status, "detail": detail}
    return Problem(content | {"error": kind, "where": where, "fix": fix}, status)


async def only_known_parameters(request: Request) -> None:
    """Raise UsageError for unknown parameters: FastAPI would drop them, even filters."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise UsageError(f"Unknown parameter {name[:100]!r}", request.url.path, nearest_name(name, known))


def wrong_parameters(errors: Sequence[Any]) -> UsageError:
    """Return each parameter's validation error, omitting its value and, for lists, its position."""
    names = [[part for part in error["loc"] if isinstance(part, str)][-1] for error in errors[:10]]
    found = "; ".join(f"{name}: {error['msg']}" for name, error in zip(names, errors, strict=False))
    return UsageError("Invalid request parameters", found, "See /api/v1/openapi.json.")
