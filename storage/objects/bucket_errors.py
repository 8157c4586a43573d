"""Translates the exceptions of obstore into Driftline's errors, and tells which of them may pass."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PreconditionError,
    UnknownConfigurationKeyError,
)

from driftline.storage.errors import (
    AccessDenied,
    AlreadyExists,
    DriftlineError,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    UnsafeStore,
    UsageError,
)
from driftline.storage.objects import clock_skew
from driftline.storage.objects.bucket_options import BucketOptions
from driftline.storage.objects.retries import are_used_up

REASON_CHARACTERS = 200
USE_ANOTHER = "Keep the workspace in a store with conditional writes, or on a local disk."

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TRANSPORT = re.compile(r"HttpError \{\s*kind: (\w+)")
_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_SET_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profile files are not read).",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
}
_MAY_PASS = {"Timeout", "Request", "Decode", "Interrupted", "Unknown"}
"""Failures on the way. Without a connection ("Connect") obstore has tried for long enough."""


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed soon; False for what obstore has retried as often as it may."""
    if not isinstance(error, BaseError) or isinstance(error, (AlreadyExistsError, PreconditionError)):
        return False
    text = str(error)
    if are_used_up(text):
        return False
    status = _first(_STATUS, text)
    return status in ("408", "429") or status.startswith("5") or _first(_TRANSPORT, text) in _MAY_PASS


def is_about_a_condition(error: BaseException) -> bool:
    """Whether the store says that a condition of the request does not hold, or is malformed."""
    return isinstance(error, PreconditionError) or _first(_STATUS, str(error)) == "400"


@dataclass(frozen=True, slots=True)
class BucketErrors:
    """The translation for one bucket; its errors never contain credentials."""

    scheme: str
    uri: str
    options: BucketOptions

    @contextlib.contextmanager
    def translated(self, action: str, key: str) -> Iterator[None]:
        """Raise what obstore raises for ``action`` on ``key`` as a DriftlineError."""
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            # The original text may hold signed URLs and keys, so the error is not chained.
            raise self._translate(error, action, key) from None

    def _translate(self, error: Exception, action: str, key: str) -> DriftlineError:
        text = str(error)
        where = f"{self.uri}/{key}".rstrip("/")
        code = _first(_CODE, text)
        status = _first(_STATUS, text)
        reason = self.options.without_secrets(
            code or status or text.partition("\n")[0].rpartition(" - ")[2][:REASON_CHARACTERS]
        )
        if isinstance(error, UnknownConfigurationKeyError) or action == "open":
            return UsageError("The storage options are not valid", self.uri, reason)
        if isinstance(error, AlreadyExistsError):
            return AlreadyExists("The object already exists", where)
        if isinstance(error, PreconditionError):
            return PreconditionFailed("Another writer has changed the object", where)
        if code in ("NoSuchBucket", "ContainerNotFound"):
            return AccessDenied("The bucket does not exist", self.uri, "Create it, or correct the URI.")
        if isinstance(error, FileNotFoundError):
            return ObjectNotFound("The object does not exist", where)
        refusal = self._refusal(text, code, status, action, where)
        if refusal is not None:
            return refusal
        if code == "InvalidBucketName":
            return UsageError("The bucket name is not valid", self.uri, "Correct the URI.")
        if isinstance(error, NotSupportedError) or status == "501":
            return UnsafeStore(f"The store does not {action} objects conditionally", where, USE_ANOTHER)
        match _first(_TRANSPORT, text):
            case "Connect":
                return StorageError(f"Could not {action}: no connection", where, "Check the endpoint and the network.")
            case "Timeout":
                return StorageError(f"Could not {action}: no answer in time", where, "Check the endpoint; run again.")
        return StorageError(f"Could not {action}", where, f"The store answered: {reason}")

    def _refusal(self, text: str, code: str, status: str, action: str, where: str) -> AccessDenied | None:
        """The error if the store knows the caller not, or not in this way."""
        credentials = _SET_CREDENTIALS[self.scheme]
        if "/latest/api/token" in text or "metadata.google" in text or "metadata/identity" in text:
            return AccessDenied("No credentials were found", self.uri, credentials)
        if code == clock_skew.CODE:
            return AccessDenied(clock_skew.describe(text, self.options.endpoint), where, clock_skew.FIX)
        if code in _WRONG_REGION or status == "301":
            return AccessDenied("The bucket is in another region", self.uri, "Set AWS_REGION to its region.")
        if code in _REFUSED or status in ("401", "403"):
            return AccessDenied(f"The store refused to {action} ({code or status})", where, credentials)
        return None


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
