"""Translate Lance's exceptions, retry idempotent operations, and fall back to a scan if an index is damaged.

Lance retries requests, but not a listing whose body is cut short. It raises OSError for most failures, so this module
distinguishes conflicts, network failures, damage and full disks by the error text.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from html import unescape
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from driftline.storage.errors import (
    AccessDenied,
    CorruptFile,
    DriftlineError,
    StorageError,
    is_panic,
    native_crash_error,
)
from driftline.storage.objects import store_requests
from driftline.storage.objects.store_requests import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset, LanceFragment

REASON_CHARACTERS = 300
_FULL = re.compile(rf"os error ({errno.ENOSPC}|{errno.EDQUOT})\b")
_OF_CACHE = re.compile(r"<Code>DriftlineRead</Code><Message>(.*?)</Message>", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>|status code: (\d+)")
_SOURCE_LINE = re.compile(r",? \S+\.rs:\d+:\d+")
"""A position in Lance's own source code, which does not help the user."""
AGAIN = "Run the command again."
REPAIR = "Run 'driftline verify --repair'."
_NETWORK = re.compile(
    r"error sending request|HTTP error|response body|timed out|RequestTimeout|retry_timeout"
    r"|connect error|connection (?:aborted|closed|error|failed|refused|reset)"
    r"|status code: (?:408|429|5\d\d)|os error (?:104|11[013])\b",
    re.I,
)
"""Phrases rather than words, because errors contain the path of the table: a folder may be called connection-pool."""
_MAY_BE_DAMAGE = "|".join(map(str, (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG)))
"""Errors that damaged offsets and names of files cause, too."""
_NO_DAMAGE = re.compile(
    rf"(?:os error |\bcode: )(?!(?:{_MAY_BE_DAMAGE})\b)\d"
    r"|status code: (?!404|416)\d|dns error",
    re.I,
)
"""Refusals of the system or the store, which say nothing about the files: no memory, descriptors or space, a stale
handle, a failing disk.
"""
_DAMAGE = re.compile(
    r"\binvalid\b|corrupt|not found|no such file|failed to decode|parser error|while parsing|unsupported|not supported"
    r"|\bunknown\b|unexpected|failed to fill whole buffer|outside|out of range|does not match|too small|has \d+ bytes"
    r"|is missing its|panicked|join error|producer terminated|error converting",
    re.I,
)
"""Phrases with which Lance and Arrow report files that are missing, truncated or changed."""
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_REFUSED = re.compile(rf"status code: (?:400|401|403)\b|os error {errno.EACCES}\b")
"""Codes of denied requests. Amazon S3 returns status 400 for an expired token, but also for a timed-out request."""
_MAX_REMEMBERED = 1_000
_UNUSABLE: dict[tuple[str, int], None] = {}
"""Table versions with an index that this process could not use."""

log = logging.getLogger(__name__)


def write_failed(what: str, where: str, error: BaseException) -> DriftlineError:
    """Translate a write's ``error`` into AccessDenied or StorageError; the fix depends on whether the disk is full."""
    if is_refusal(error):
        return _refused(what, where, error)
    text = str(error).partition("\n")[0]
    reason = _shortened(_SOURCE_LINE.sub("", text))
    fix = "Free some space and run again." if _FULL.search(text) else AGAIN
    return StorageError(f"{what} ({reason})", where, fix)


def read_failed(what: str, where: str, error: BaseException, fix: str = REPAIR) -> DriftlineError:
    """Translate a read's ``error`` into AccessDenied, StorageError if the store failed, or CorruptFile."""
    if is_refusal(error):
        return _refused(what, where, error)
    what = f"{what} ({first_line(error)})"
    return CorruptFile(what, where, fix) if is_damage(error) else StorageError(what, where, AGAIN)


def _refused(what: str, where: str, error: BaseException) -> AccessDenied:
    text = str(error)
    codes = [] if _OF_CACHE.search(text) else [code or status for code, status in _CODE.findall(text)]
    reason = codes[-1] if codes else first_line(error)
    return AccessDenied(f"{what}: access denied ({reason})", where, "Check the credentials and their permissions.")


def first_line(error: BaseException) -> str:
    """Return the first line of the error text, truncated.

    If a read through the cache failed, return that error's text instead.
    """
    text = str(error)
    cause = _OF_CACHE.search(text)
    return _shortened((unescape(cause[1]) if cause else text).partition("\n")[0])


def _shortened(text: str) -> str:
    """Cut the middle of a long text, where Lance repeats paths; its end often has the cause."""
    half = REASON_CHARACTERS // 2
    return text if len(text) <= REASON_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


def is_lance_failure(error: BaseException) -> bool:
    """Return whether Lance raised ``error`` because it could not read a file."""
    return isinstance(error, (OSError, ValueError)) or is_panic(error)


def is_conflict(error: BaseException) -> bool:
    """Return whether Lance raised ``error`` because another writer committed first."""
    return "commit conflict" in str(error).lower() or type(error).__name__ == "CommitConflictError"


@contextmanager
def writing(what: str, where: str) -> Iterator[None]:
    """Translate Lance's exceptions into a StorageError whose message starts with ``what``."""
    try:
        yield
    except BaseException as error:
        if not is_lance_failure(error):
            raise
        raise write_failed(what, where, error) from error


def is_network_failure(error: BaseException) -> bool:
    """Return whether Lance failed because of the store or the network; the same request may succeed soon."""
    return is_lance_failure(error) and bool(_NETWORK.search(str(error)))


def is_refusal(error: BaseException) -> bool:
    """Return whether the store denied Lance's request, for example because credentials expired.

    >>> is_refusal(OSError("status code: 400 Bad Request: <Code>ExpiredToken</Code>"))
    True
    >>> is_refusal(OSError("status code: 400 Bad Request: <Code>RequestTimeout</Code>"))
    False
    """
    return is_lance_failure(error) and bool(_REFUSED.search(str(error))) and not is_network_failure(error)


def is_of_system(error: BaseException) -> bool:
    """Return whether the store, the network or the system failed, which says nothing about the files."""
    return is_network_failure(error) or is_refusal(error) or bool(_NO_DAMAGE.search(str(error)))


def is_damage(error: BaseException) -> bool:
    """Return whether Lance failed because of the files: ``verify --repair`` removes what it finds damaged.

    An unrecognized failure is not damage.

    >>> is_damage(OSError("LanceError(IO): failed to fill whole buffer"))
    True
    >>> is_damage(OSError("LanceError(IO): Unable to open file: Too many open files (os error 24)"))
    False
    """
    if not is_lance_failure(error) or is_of_system(error):
        return False
    return is_panic(error) or bool(_DAMAGE.search(str(error)))


def with_lance_retries(operation: Callable[[], _Result]) -> _Result:
    """Run an idempotent ``operation`` with retries, and return its result; raises the last attempt's error."""
    return store_requests.with_retries(operation, _may_pass)


def retried(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate an idempotent ``function`` so that it runs through ``with_lance_retries``."""

    @wraps(function)
    def persist(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        return with_lance_retries(lambda: function(*arguments, **options))

    return persist


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, StorageError) and error.__cause__ is not None:
        error = error.__cause__
    return is_network_failure(error) and not store_requests.is_exhausted(str(error))


@contextmanager
def without_panic() -> Iterator[None]:
    """Translate a native panic into CorruptFile, or StorageError if the system refused something: ``except Exception``
    misses panics. Also a decorator.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        if not is_damage(error):
            raise StorageError(f"Native code crashed ({first_line(error)})", "", AGAIN) from error
        raise native_crash_error(first_line(error)) from error


@contextmanager
def reading(title: str, where: str) -> Iterator[None]:
    """Translate Lance's errors for unreadable data; see ``read_failed``."""
    try:
        yield
    except BaseException as error:
        if not is_lance_failure(error):
            raise
        raise read_failed(f"Cannot read the {title} table", where, error) from error


def index_stats(dataset: LanceDataset) -> dict[str, dict[str, Any] | None]:
    """Return Lance's statistics for the indexes of ``dataset``, keyed by name, or None for an unreadable index."""
    names = [index.name for index in with_lance_retries(dataset.describe_indices)]
    # Each index takes several reads from a bucket, one after another.
    return dict(zip(names, in_parallel(partial(_index_stats, dataset), names, len(names)), strict=True))


def _index_stats(dataset: LanceDataset, name: str) -> dict[str, Any] | None:
    try:
        return with_lance_retries(partial(dataset.stats.index_stats, name))
    except BaseException as error:
        if not is_lance_failure(error) or is_of_system(error):
            raise
        return None


def with_indexes(dataset: LanceDataset, title: str, read: Callable[[bool], _Result]) -> _Result:
    """Return ``read(True)``, which uses the indexes of ``dataset``; if one is unusable, fall back to ``read(False)``,
    which scans.

    Raises CorruptFile, StorageError.
    """
    version = (dataset.uri, dataset.version)
    if version in _UNUSABLE:
        with reading(title, dataset.uri):
            return with_lance_retries(lambda: read(False))
    try:
        return with_lance_retries(lambda: read(True))
    except BaseException as error:
        if not is_lance_failure(error):
            raise
        if is_of_system(error):
            raise read_failed(f"Cannot read the {title} table", dataset.uri, error) from error
        reason = first_line(error)
    with reading(title, dataset.uri):
        result = with_lance_retries(lambda: read(False))
    if len(_UNUSABLE) >= _MAX_REMEMBERED:
        _UNUSABLE.clear()
    _UNUSABLE[version] = None
    log.warning("A search index of %s is unusable (%s): scanning instead. %s", dataset.uri, reason, REPAIR)
    return result


Examine = Callable[[Iterator["pa.RecordBatch"]], set[Any]]
"""Reads all rows of a fragment, and returns what it finds wrong with them."""


def skim(batches: Iterator[pa.RecordBatch]) -> set[Any]:
    """Read all rows, without judging them."""
    for _ in batches:
        pass
    return set()


def _read_all(fragment: LanceFragment, examine: Examine) -> set[Any]:
    """Read all columns together, as any page may be damaged, and one row of each column separately, like searches."""
    found = examine(fragment.to_batches())
    for name in fragment.schema.names:
        for _ in fragment.to_batches(columns=[name], limit=1):
            pass
    return found


def read_fragments(
    dataset: LanceDataset, among: Collection[int] | None = None, examine: Examine = skim
) -> tuple[list[int], set[Any]]:
    """Read fragments, all or only ``among``: return the ids of those with missing, truncated, changed or unrecognized
    files, and what ``examine`` finds in the others.
    """
    unreadable, found = list[int](), set[Any]()
    for fragment in dataset.get_fragments():
        if among is not None and fragment.fragment_id not in among:
            continue
        try:
            found |= with_lance_retries(partial(_read_all, fragment, examine))
        except BaseException as error:
            if not is_damage(error):
                raise
            unreadable.append(fragment.fragment_id)
    return unreadable, found
