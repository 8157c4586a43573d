"""Define the states of documents, the reasons to skip one, its content hash, and patterns for special file names."""

from __future__ import annotations

import enum
import hashlib
import re

DocumentKey = tuple[str, str]
"""A document's entity and path."""


class DocumentState(enum.StrEnum):
    """The state of a document, as found by a scan."""

    NEW = "new"
    CHANGED = "changed"
    TOUCHED = "touched"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    MISSING = "missing"
    """A path that does not exist and was never indexed; scans never return it."""


class SkipReason(enum.StrEnum):
    """Why a file is not indexed."""

    BINARY = "binary"
    TOO_LARGE = "too large"
    UNDECODABLE = "undecodable"
    CONTENT_ENCODING = "Content-Encoding that cannot be decoded"
    UNREADABLE = "unreadable"
    EXCLUDED = "excluded"
    SECRET = "secret"
    BAD_NAME = "undecodable name"
    ODD_KEY = "key is not a plain path"
    WORK_TREE = "another work tree of the same repository"
    GIT_DIRECTORY = "git directory"
    OUTSIDE = "link leads outside the source or in a circle"
    UNSTABLE = "changed while it was read"
    LINK = "symbolic link"
    LFS = "pointer of Git LFS"
    SUBMODULE = "submodule"
    ENCRYPTED = "encrypted"
    DAMAGED = "damaged document"
    NO_TEXT = "document without text"
    BOMB = "document that unpacks to too much"
    NEEDS_EXTRA = "needs driftline[documents]"
    OTHER_OFFICE = "Office format that is not read"
    IWORK = "Apple iWork document"
    ARCHIVE = "archive"
    NESTED = "archive nested too deep"
    REPLACED = "replaced by a later member of the same name"
    SLOW = "document that takes too long to read"


def content_hash(data: bytes) -> str:
    """Return the blake2b-128 of ``data``, as 32 hex digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


INSIDE = "!/"
"""Separates the path of an archive or email from the path of a file inside it."""
NAMED_LIKE_ARCHIVE = (
    r"\.(?i:zip|jar|war|ear|aar|apk|whl|egg|nupkg|vsix|conda|crate|gem|emlx?|mbox"
    r"|tar|tgz|tbz2?|txz|tzst|tar\.(?:gz|bz2|xz|zst|zstd|lz4))$"
)
"""Names of files that a run opens as folders if ``archives`` is set."""


def container_of(path: str) -> str:
    """Return the path of the file on disk that contains a document: the outermost archive or email, or the document
    itself.

    >>> container_of("old/a.zip!/b/c.txt"), container_of("c.txt")
    ('old/a.zip', 'c.txt')
    """
    return path.partition(INSIDE)[0]


GAP_LINE = "<[{(|~^...^~|)}]>"
"""Replaces the first line of the part of a large file that is not indexed; the other lines of the part are empty.

It has no letter or digit, so it gets no row, but enough punctuation to be found by a pack's grams.
"""


def holds_records(path: str) -> bool:
    """Return whether a file is named like a log, CSV or JSON lines file. Such files stay useful at any size: their
    first and last lines show what they contain.
    """
    return re.search(r"\.(?i:csv|jsonl|log|log\.\d+|ndjson|tsv)$", path) is not None
