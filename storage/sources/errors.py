"""What the file systems of sources raise, as errors of Driftline's.

Each file system of fsspec raises what its own SDK raises, without a common base: ``sources`` therefore
catches every ``Exception`` of a call into one and raises what ``translate`` makes of it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from driftline.storage.errors import AccessDenied, DriftlineError, ObjectNotFound, StorageError

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
    """``error`` as one of ours, about ``where``; ``what`` names the failure if it is none that the caller can mend."""
    if isinstance(error, DriftlineError):
        return error
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ObjectNotFound("Not found", where)
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, PermissionError) or names & _CREDENTIAL_ERRORS or _http_status(error) in (401, 403):
        return AccessDenied("Access denied", where, f"Check credentials and permissions ({_one_line(error)}).")
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return ObjectNotFound("A link, which is not followed", where)
    return StorageError(what, where, _one_line(error))


def _http_status(error: BaseException) -> int | None:
    """The status of the answer behind an error: S3 says 403 to wrong keys under many names."""
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
