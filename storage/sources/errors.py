"""Translates the exceptions of source file systems into Driftline's errors.

The exceptions of fsspec's file systems come from their SDKs and share no base class. ``source`` therefore catches
every ``Exception`` of a call into fsspec and passes it to ``raise_translated``.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import NoReturn

from driftline.storage.errors import AccessDenied, DriftlineError, ObjectNotFound, StorageError
from driftline.storage.objects import clock_skew

_CREDENTIAL_ERRORS = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",
        "TokenRetrievalError",
    }
)


def translate(error: BaseException, where: str, what: str = "Reading failed") -> DriftlineError:
    """``error`` as a DriftlineError about ``where``; ``what`` describes a failure that has no class of its own."""
    if isinstance(error, DriftlineError):
        return error
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ObjectNotFound("Not found", where)
    if clock_skew.CODE in str(error):
        return AccessDenied(clock_skew.describe(str(error), ""), where, clock_skew.FIX)
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, PermissionError) or names & _CREDENTIAL_ERRORS or _http_status(error) in (401, 403):
        return AccessDenied("Access denied", where, f"Check credentials and permissions ({_one_line(error)}).")
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return ObjectNotFound("Symbolic links are not followed", where)
    return StorageError(what, where, _one_line(error))


def raise_translated(error: BaseException, where: str, what: str = "Reading failed") -> NoReturn:
    """Raise what ``translate`` makes of ``error``, because of it; a DriftlineError as it is, not because of itself."""
    if isinstance(error, DriftlineError):
        raise error
    raise translate(error, where, what) from error


def _http_status(error: BaseException) -> int | None:
    """The HTTP status behind an error; S3 answers 403 under many names, so the name alone is not enough."""
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, Mapping):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None
        status = getattr(candidate, "status", None) or getattr(candidate, "code", None)
        if isinstance(status, int):
            return status
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
