"""Convert answers and errors to HTTP responses, and document them in OpenAPI with examples.

An error is ``application/problem+json`` with its kind, location and fix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_origin
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from driftline.flows.response_models import ANSWERS, ProblemDetails
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

_OF_A_BODY = frozenset({"content-length", "content-type"})
_OF_THE_SERVER = (FingerprintMismatch, MissingExtra, ModelNotFound, WorkspaceNotFound, WorkspaceTooNew)


class TaggedAnswer(Response):
    """A response with an ETag of its content; clients that already have this content get a 304."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.status_code != HTTPStatus.OK:
            await super().__call__(scope, receive, send)
            return
        # Weak, because the same content may be sent compressed or not.
        tag = f'"{hashlib.blake2b(self.body, digest_size=16).hexdigest()}"'
        self.headers["ETag"] = f"W/{tag}"
        self.headers.setdefault("Cache-Control", "private, no-cache")
        known = Headers(scope=scope).get("if-none-match", "")
        if {tag, "*"} & {each.strip().removeprefix("W/") for each in known.split(",")}:
            headers = {name: value for name, value in self.headers.items() if name not in _OF_A_BODY}
            headers["Vary"] = "Accept-Encoding"  # the same headers as in the full response
            await Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)(scope, receive, send)
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
    """Return 404 for missing data, 400 for other client errors, 503 for errors that only the administrator can fix."""
    if isinstance(error, NotIndexed):
        return HTTPStatus.NOT_FOUND
    return (
        HTTPStatus.BAD_REQUEST
        if isinstance(error, UsageError) and not isinstance(error, _OF_THE_SERVER)
        else HTTPStatus.SERVICE_UNAVAILABLE
    )


def problem_of(error: DriftlineError, *, to_owner: bool = True) -> Problem:
    """Return the response to a request that failed with ``error``.

    The location of the failure is shown only to the administrator.
    """
    status = status_of(error)
    if status == HTTPStatus.SERVICE_UNAVAILABLE and not to_owner:
        return problem(status, error.kind, "Cannot read the workspace now", fix="Contact the administrator.")
    return problem(status, error.kind, str(error), error.where, error.fix)


def problem(status: int, kind: str, detail: str, where: str = "", fix: str = "") -> Problem:
    """Return an RFC 9457 response; ``error``, ``where`` and ``fix`` are the same as with ``--json``."""
    content = {"type": "about:blank", "title": kind, "status": status, "detail": detail}
    return Problem(content | {"error": kind, "where": where, "fix": fix}, status)


async def only_known_parameters(request: Request) -> None:
    """Raise UsageError for unknown and repeated parameters, which FastAPI would drop, and for text other than UTF-8."""
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        raise UsageError("The parameters are not UTF-8", request.url.path, "Percent-encode text as UTF-8.") from None
    known = {each.alias: each.field_info.annotation for each in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise UsageError(f"Unknown parameter {name[:100]!r}", request.url.path, nearest_name(name, list(known)))
        if len(request.query_params.getlist(name)) > 1 and get_origin(known[name]) is not tuple:
            raise UsageError(f"The parameter {name!r} has several values", request.url.path, "Pass one of them.")


def wrong_parameters(errors: Sequence[Any]) -> UsageError:
    """Return each parameter's validation error, omitting its value and, for lists, its position."""
    names = [[part for part in error["loc"] if isinstance(part, str)][-1] for error in errors[:10]]
    found = "; ".join(f"{name}: {error['msg']}" for name, error in zip(names, errors, strict=False))
    return UsageError("Invalid request parameters", found, "See /api/v1/openapi.json.")


_SOURCE = "org:default/project:default/source:tree"
_REPOSITORY = "https://github.com/acme/tree/blob/4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_ENTITY = {"entity": _SOURCE, "uri": "s3://docs/tree", "documents": 2, "lines": 5}
EXAMPLES: dict[str, dict[str, Any]] = {
    "search": {
        "query": "who renews the lease",
        "results": [
            {
                "path": "lease.py",
                "file": "s3://docs/tree/lease.py",
                "source": _SOURCE,
                "line": 1,
                "start_line": 1,
                "end_line": 2,
                "score": 0.62,
                "distance": 0.58,
                "relevance": 0.9934,
                "rank": 1,
                "text": "def renew(lease):",
                "context": ["def renew(lease):", "    return lease.renew()"],
                "freshness": "fresh",
                "line_now": 1,
                "column": 5,
                "anchor": None,
                "fragment": None,
                "symbol": "renew",
                "kind": "function",
                "symbol_start": 1,
                "symbol_end": 2,
                "label": "strong",
                "copies": ["backup/lease.py"],
                "url": f"{_REPOSITORY}/lease.py#L1",
            }
        ],
    },
    "excerpt": {
        "source": _SOURCE,
        "path": "notes.md",
        "start_line": 1,
        "lines": ["# Leases", ""],
        "current": True,
        "anchors": [],
        "url": f"{_REPOSITORY}/notes.md?plain=1#L1",
    },
    "documents": {
        "documents": [
            {
                "source": _SOURCE,
                "path": "lease.py",
                "lines": 2,
                "size_bytes": 79,
                "modified": "2026-11-24T08:19:19+00:00",
                "hash": "960d173671a3367d4082051c86764bb7",
                "reason": None,
            }
        ]
    },
    "status": {
        "workspace": "s3://index/ws",
        "total_documents": 2,
        "total_lines": 5,
        "has_index": False,
        "index_type": None,
        "model": "wordllama:l2_supercat_256",
        "sources": [_ENTITY],
        "deltas": 1,
        "last_run": None,
    },
    "sources": {"workspace": "s3://index/ws", "sources": [_ENTITY]},
    "branches": {
        "workspace": "s3://index/ws",
        "branches": [
            {
                "name": "feature/x",
                "entity": _SOURCE,
                "base": None,
                "commit": None,
                "documents": 0,
                "deleted": 0,
                "lines": 0,
                "size_bytes": 6_383,
                "age_seconds": 11.7,
                "behind": False,
            }
        ],
    },
    "runs": {
        "runs": [
            {
                "format_version": 1,
                "run_id": "01KAV2T1ZJ8E6X5N1QF3M6S7RB",
                "kind": "cleanup",
                "started": "2026-11-24T08:19:19+00:00",
                "seconds": 1.4,
                "outcome": "done",
                "report": {"deleted": 3},
            }
        ]
    },
    "sql": {"columns": ["path", "lines"], "rows": [{"path": "notes.md", "lines": 2}]},
    "memory/search": {
        "query": "parser",
        "results": [
            {
                "record": {
                    "key": "notes",
                    "value": {"text": "the parser is slow"},
                    "entity": "org:acme",
                    "metadata": {},
                    "size_bytes": 29,
                    "content_hash": "5d41402abc4b2a76b9719d911017c592",
                    "created": "2026-11-24T08:19:19+00:00",
                    "updated": "2026-11-24T08:19:19+00:00",
                    "expires": None,
                },
                "score": 0.71,
                "rank": 1,
                "distance": 0.29,
            }
        ],
    },
}
_PAGED = ("search", "documents")
_PROBLEM_EXAMPLE = {
    "type": "about:blank",
    "title": "not_indexed",
    "status": 404,
    "detail": "No such document is indexed: x.py. Use the path and source from a search result.",
    "error": "not_indexed",
    "where": "x.py",
    "fix": "Use the path and source from a search result.",
}
_FAILURES = {
    "400": "A parameter is missing, invalid or too large.",
    "401": "A valid token is required.",
    "403": "The token does not have the scope, or the request comes from a page on another server.",
    "404": "The index does not contain the requested data.",
    "429": "The token exceeded its rate limit; retry after the time in Retry-After.",
    "503": "Cannot read the workspace now; a retry may help.",
    "4XX": "Another request error.",
}


def described(name: str) -> dict[str, Any]:
    """Return the keyword arguments of the route ``/api/v1/{name}``."""
    example = EXAMPLES[name]
    answer: dict[str, Any] = {
        "description": "The response; 304 if If-None-Match contains its ETag.",
        "model": ANSWERS[name],
        "content": {"application/json": {"schema": {"type": "object"}, "example": example}},
    }
    if name in _PAGED:
        answer["headers"] = {
            "Link": {"description": "The next page, if there is one (RFC 8288).", "schema": {"type": "string"}}
        }
    problem = {"schema": ProblemDetails.model_json_schema(), "example": _PROBLEM_EXAMPLE}
    failures = {
        status: {"description": text, "content": {"application/problem+json": problem}}
        for status, text in _FAILURES.items()
    }
    return {"responses": {"200": answer, **failures}, "tags": ["memory" if name.startswith("memory/") else "search"]}


def with_tokens(document: dict[str, Any]) -> dict[str, Any]:
    """Return ``document`` for a server that requires tokens."""
    document.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    return document
