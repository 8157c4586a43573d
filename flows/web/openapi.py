"""Add an example response and the possible errors to each route of the OpenAPI document."""

from __future__ import annotations

from typing import Any

from driftline.flows.http_answers import ANSWERS, ProblemAnswer

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
    problem = {"schema": ProblemAnswer.model_json_schema(), "example": _PROBLEM_EXAMPLE}
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
