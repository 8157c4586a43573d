"""The Driftline errors: one tree, each with a stable ``kind`` and an exit code.

    DriftlineError
    ├── UsageError                exit 2: invalid use or input; nothing was written
    │   ├── BadEntity             an entity id that cannot be used
    │   ├── BadEntry              a memory key, value or metadata that cannot be stored
    │   ├── CatalogMismatch       a catalog of another workspace, or of a newer version
    │   ├── CatalogMissing        no catalog, or another one, for memory that exists
    │   ├── StoreClosed           a call to a memory store that is closed
    │   ├── NotIndexed            a document, line or branch that the workspace does not have
    │   ├── SourceNotFound        a source that is missing or cannot be read
    │   ├── SourceConflict        an entity that is already bound to another URI
    │   ├── UnknownScheme         a URI whose scheme is not supported
    │   ├── MissingExtra          an optional dependency that is not installed
    │   ├── ModelNotFound         an embedding model that cannot be loaded
    │   ├── WorkspaceNotFound     no workspace at the given URI
    │   ├── WorkspaceTooNew       a file written by a newer version of Driftline
    │   ├── FingerprintMismatch   a workspace embedded with another model
    │   └── UnsafeStore           a store that ignores conditional writes
    ├── AccessDenied              exit 2: wrong or missing credentials or permissions
    ├── CorruptFile               exit 2: a damaged or unrecognized file in place of a Driftline file
    ├── StorageError              exit 3: the store failed; a retry may help
    │   ├── ObjectNotFound        the object does not exist
    │   ├── AlreadyExists         a create-only write of an existing object
    │   ├── PreconditionFailed    a conditional replace of a changed object
    │   └── CommitConflict        every attempt to commit conflicted with another writer
    ├── CatalogError              exit 3: the memory catalog failed; may name a blob that was already written
    │   └── CatalogConnectionError    the catalog is not reachable; also a built-in ConnectionError
    ├── LeaseHeld                 exit 3: another run holds the lease
    ├── LeaseLost                 exit 3: another run took over the lease
    ├── DeletionRefused           exit 3: a run would delete suspiciously many documents
    ├── ExecutorError             exit 3: the workers failed, or cannot reach the data
    ├── DeploymentFailed          exit 3: a run of a deployment failed or timed out
    ├── StaleIndex                exit 3: the index is older than a commit by more than the limit
    ├── StaleBuild                exit 3: a newer build is already indexed for this branch
    ├── CleanupAborted            exit 3: not everything could be read and listed, so nothing was deleted
    ├── RecallTooLow              exit 3: the vector index misses too many of the nearest lines
    └── OutOfMemory               exit 3: the process ran out of memory

Every message describes what happened, where, and what to do. ``kind`` is stable and meant for programs. All errors can
be pickled, because they cross process boundaries.

``without_secrets`` removes user, password and query string from a URI.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import Any, ClassVar

_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^/\s\"'<>]*)@")
_REFERENCE = re.compile(r"(?:[\w.~-]+:)?\$\{\w+\}")
"""A user whose token is in a variable: not a secret, but the notation that errors recommend."""
_QUERY = re.compile(r"(://[^\s?\"'<>]*\?)[^\s\"'<>]*=[^\s\"'<>]*")
_SECRET_PARAMETER = re.compile(r"[?&#][^=&\s]*(sig|token|key|passw|secret|credential|auth|x-amz|x-goog)[^=&\s]*=", re.I)
_OF_WEB = re.compile(r"(https?://[^\s?#\"'<>]*[?#])[^\s\"'<>]+", re.I)
_CONTAINERS = frozenset({"az", "adl", "abfs", "abfss"})
"""Schemes whose URIs may have a container before the @."""
_WEB = frozenset({"http", "https"})
_STORES = frozenset({"s3", "s3a", "gs", "gcs", *_CONTAINERS})
"""Schemes whose keys may contain any character, so a question mark does not start a query."""


def without_secrets(text: str) -> str:
    """Remove user, password and query string from each URI in ``text``."""
    if "://" not in text:
        return text
    return _OF_WEB.sub(r"\1…", _QUERY.sub(r"\1…", _USER_INFO.sub(_without_user, text)))


def may_hold_secret(uri: str) -> bool:
    """Return whether a URI has a password, a web server's user, or a query string, any of which may be secret."""
    users = ((match["scheme"].lower(), match["user"]) for match in _USER_INFO.finditer(uri))
    return has_query(uri) or any(":" in user or scheme in _WEB for scheme, user in users)


def has_query(uri: str) -> bool:
    """Return whether a URI has a query string or a fragment, or is a bucket key that looks like a secret query."""
    for part in uri.split("::"):
        scheme, separator, _ = part.partition("://")
        if separator and _SECRET_PARAMETER.search(part):
            return True
        if separator and scheme.lower() not in _STORES and ("?" in part or "#" in part):
            return True
    return False


def _without_user(match: re.Match[str]) -> str:
    scheme, user = match["scheme"], match["user"]
    if _REFERENCE.fullmatch(user):
        return match[0]
    return match[0] if scheme.lower() in _CONTAINERS and ":" not in user else f"{scheme}://"


MAX_TEXT = 600
"""Maximum length of each part of an error: a longer one repeats an argument or a file's content."""


def shortened(text: str) -> str:
    """Return ``text``, or its beginning and its end if it is longer than MAX_TEXT."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 200]} ... {text[-150:]}"


class DriftlineError(Exception):
    """Base of all errors.

    ``what`` describes the failure, ``where`` is the path, URI or entity, and ``fix`` is the next step for the user.
    User, password and query string are removed from all URIs in these texts, and long texts are shortened.
    """

    kind: ClassVar[str] = "driftline_error"
    exit_code: ClassVar[int] = 3

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        what, where, fix = (shortened(without_secrets(text)) for text in (what, where, fix))
        super().__init__(what, where, fix)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.what}: {self.where}" if self.where else self.what
        return f"{text}. {self.fix}" if self.fix else text

    def to_dict(self) -> dict[str, Any]:
        """Return the error as a dictionary.

        Returns:
            The JSON object that ``--json`` prints for an error.

        Examples:
            >>> driftline.UsageError("No such option", "--topk").to_dict()["error"]
            'usage'
        """
        return {"error": self.kind, "message": str(self), "where": self.where, "fix": self.fix}


def is_panic(error: BaseException) -> bool:
    """Return whether native code panicked. pyo3 does not export its PanicException, a BaseException."""
    return type(error).__name__ == "PanicException"


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether ``error``, or an error that caused it, reports a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


class UsageError(DriftlineError):
    """Invalid use or input; nothing was written."""

    kind = "usage"
    exit_code = 2


class BadEntity(UsageError):
    """An entity path or id that cannot be used."""

    kind = "bad_entity"


class BadEntry(UsageError):
    """A memory key, value, metadata or expiry that cannot be stored."""

    kind = "bad_entry"


class CatalogMismatch(UsageError):
    """The catalog belongs to another workspace, is older than the indexes, or has an unsupported format."""

    kind = "catalog_mismatch"


class CatalogMissing(UsageError):
    """The existing memory's catalog is missing, or a different one was given."""

    kind = "catalog_missing"


class StoreClosed(UsageError):
    """A call to a closed memory store."""

    kind = "store_closed"


class NotIndexed(UsageError):
    """The workspace has no such document, line, branch or memory."""

    kind = "not_indexed"


class SourceNotFound(UsageError):
    """A source that is missing or cannot be read."""

    kind = "source_not_found"


class SourceConflict(UsageError):
    """An entity that is already bound to another URI."""

    kind = "source_conflict"


class UnknownScheme(UsageError):
    """A URI whose scheme is not supported."""

    kind = "unknown_scheme"


class MissingExtra(UsageError):
    """An optional dependency that is not installed."""

    kind = "missing_extra"


class ModelNotFound(UsageError):
    """An embedding model that cannot be loaded."""

    kind = "model_not_found"


class AccessDenied(DriftlineError):
    """Wrong or missing credentials or permissions."""

    kind = "access_denied"
    exit_code = 2


class WorkspaceNotFound(UsageError):
    """No workspace at the given URI."""

    kind = "workspace_not_found"


class WorkspaceTooNew(UsageError):
    """A file written by a newer version of Driftline."""

    kind = "workspace_too_new"


class FingerprintMismatch(UsageError):
    """The vectors of a workspace come from another model or text preparation."""

    kind = "fingerprint_mismatch"


class UnsafeStore(UsageError):
    """The store ignores conditional writes and so would lose data, or its lock file is a link."""

    kind = "unsafe_store"


class CorruptFile(DriftlineError):
    """A file with a Driftline name is damaged, or was not written by Driftline."""

    kind = "corrupt_file"
    exit_code = 2


def native_crash_error(reason: str) -> CorruptFile:
    """Return the error for native code that panicked or aborted."""
    return CorruptFile(
        f"Native code aborted: a table may be damaged ({reason})", fix="Run 'driftline verify --repair'."
    )


class StorageError(DriftlineError):
    """The store failed; a retry may succeed."""

    kind = "storage_error"


class ObjectNotFound(StorageError):
    """The object does not exist."""

    kind = "object_not_found"


class AlreadyExists(StorageError):
    """A create-only write found an existing object."""

    kind = "already_exists"


class PreconditionFailed(StorageError):
    """A conditional replace found a changed or missing object."""

    kind = "precondition_failed"


class CommitConflict(StorageError):
    """Every attempt to commit conflicted with another writer."""

    kind = "commit_conflict"


class CatalogError(DriftlineError):
    """The memory catalog failed. ``blob_paths`` are blobs that were written but have no entry; cleanup deletes them."""

    kind = "catalog_error"

    def __init__(self, what: str, where: str = "", fix: str = "", blob_paths: Sequence[str] = ()) -> None:
        super().__init__(what, where, fix)
        self.blob_paths = tuple(blob_paths)

    @property
    def blob_path(self) -> str | None:
        """The first of ``blob_paths``, or None."""
        return self.blob_paths[0] if self.blob_paths else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.where, self.fix, self.blob_paths)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as a dictionary, with ``blob_path`` and ``blob_paths`` if there are any.

        Returns:
            The JSON object that ``--json`` prints for an error.

        Examples:
            >>> "blob_path" in driftline.CatalogError("The catalog failed").to_dict()
            False
        """
        blobs = {"blob_path": self.blob_path, "blob_paths": list(self.blob_paths)} if self.blob_paths else {}
        return {**super().to_dict(), **blobs}


class CatalogConnectionError(CatalogError, ConnectionError):
    """The catalog was unreachable in every attempt."""

    kind = "connection_error"


class LeaseHeld(DriftlineError):
    """Another run holds the lease."""

    kind = "lease_held"


class LeaseLost(DriftlineError):
    """Another run has taken over the lease; this run must not publish."""

    kind = "lease_lost"


class DeletionRefused(DriftlineError):
    """A run would delete a suspiciously large number of documents."""

    kind = "deletion_refused"


class ExecutorError(DriftlineError):
    """The workers failed, or cannot reach the source or workspace."""

    kind = "executor_error"


class DeploymentFailed(DriftlineError):
    """A run of a deployment failed or timed out."""

    kind = "deployment_failed"


class StaleIndex(DriftlineError):
    """The index is older than a commit by more than the limit."""

    kind = "stale_index"


class StaleBuild(DriftlineError):
    """A newer build or a later commit is already indexed; the index was not changed."""

    kind = "stale_build"


class CleanupAborted(DriftlineError):
    """A cleanup could not list and read everything, so it deleted nothing."""

    kind = "cleanup_aborted"


class RecallTooLow(DriftlineError):
    """The vector index misses too many of the nearest lines."""

    kind = "recall_too_low"


class OutOfMemory(DriftlineError):
    """The process ran out of memory."""

    kind = "out_of_memory"
