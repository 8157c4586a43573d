"""Errors as HTTP answers: ``application/problem+json`` with the kind, the place and the fix of the error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from driftline.storage.errors import (
    DriftlineError,
    FingerprintMismatch,
    MissingExtra,
    ModelNotFound,
    UsageError,
    WorkspaceNotFound,
    WorkspaceTooNew,
)

BAD_REQUEST, UNAVAILABLE = 400, 503
_OF_THE_SERVER = (FingerprintMismatch, MissingExtra, ModelNotFound, WorkspaceNotFound, WorkspaceTooNew)


class JsonAnswer(Response):
    """JSON in ASCII: names of files may hold what UTF-8 cannot."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), default=str).encode("ascii")


class Problem(JsonAnswer):
    media_type = "application/problem+json"


def status_of(error: DriftlineError) -> int:
    """400 for what the client can mend, 503 for what the server's owner can."""
    return BAD_REQUEST if isinstance(error, UsageError) and not isinstance(error, _OF_THE_SERVER) else UNAVAILABLE


def problem_of(error: DriftlineError) -> Problem:
    """The answer to a request that failed with ``error``."""
    return problem(status_of(error), error.kind, str(error), error.where, error.fix)


def problem(status: int, kind: str, detail: str, where: str = "", fix: str = "") -> Problem:
    """An answer of RFC 9457; ``error``, ``where`` and ``fix`` are those of ``--json``."""
    content = {"type": "about:blank", "title": kind, "status": status, "detail": detail}
    return Problem(content | {"error": kind, "where": where, "fix": fix}, status)


def wrong_parameters(errors: Sequence[Any]) -> UsageError:
    """What validation found, one parameter after the other, without their values."""
    found = "; ".join(f"{error['loc'][-1]}: {error['msg']}" for error in errors[:10])
    return UsageError("Parameters of the request are wrong", found, "See /api/v1/openapi.json.")
