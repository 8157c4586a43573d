"""Define values that all packages share: documents, lines, states, statistics, sortable ids and the content hash."""

from __future__ import annotations

import enum
import hashlib
import html
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

CURRENT_EMBEDDING_VERSION = 6
"""Part of every fingerprint.

Increment it when text preparation changes the vectors of unchanged text, or when the columns of the table of lines
change."""


class DocumentState(enum.StrEnum):
    """The state in which a scan finds a document."""

    NEW = "new"
    CHANGED = "changed"
    TOUCHED = "touched"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    MISSING = "missing"
    """A path that does not exist and was never indexed; no scan returns it."""


class SkipReason(enum.StrEnum):
    """The reason why a file is not indexed."""

    BINARY = "binary"
    TOO_LARGE = "too large"
    UNDECODABLE = "undecodable"
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
    ARCHIVE = "archive"
    NESTED = "archive nested too deep"
    REPLACED = "replaced by a later member of the same name"
    SLOW = "document that takes too long to read"


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One file of a source, as recorded in the manifest.

    ``path`` is relative and posix; ``mtime_ns`` is in nanoseconds; ``etag`` is "" if the store has none; ``hash`` is
    the hex blake2b-128 of the bytes; ``lines`` counts rows of ``line_embeddings``; ``reason`` is set for a file that is
    not indexed. ``racy`` means that the file may have changed in the same clock tick in which it was read, so the next
    run compares its content. ``ctime_ns`` and ``inode`` are 0 if unknown, and then not compared. ``extractor`` is the
    name and version of the extractor that read the file (tasks/extraction), "" for text files.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""
    hash: str = ""
    fingerprint: str = ""
    lines: int = 0
    reason: str | None = None
    racy: bool = False
    ctime_ns: int = 0
    inode: int = 0
    extractor: str = ""


@dataclass(frozen=True, slots=True)
class DeepModel:
    """A transformer that embeds definitions; ``fingerprint`` covers its files and the preparation of its text."""

    name: str
    fingerprint: str
    dim: int


@dataclass(frozen=True, slots=True)
class DocMeta:
    """The metadata of a document whose lines a program stores itself: ``mtime`` is in seconds since 1970.

    ``version`` is the CURRENT_EMBEDDING_VERSION with which its text was prepared.
    """

    path: str
    size_bytes: int
    mtime: float
    version: int = CURRENT_EMBEDDING_VERSION


@dataclass(frozen=True, slots=True)
class LineEmbedding:
    """One row of ``line_embeddings``: ``line_number`` is 0-based, ``embedding`` is ``(dim,)``."""

    path: str
    line_number: int
    embedding: Sequence[float] | NDArray[np.floating[Any]]
    text: str = ""


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for notebooks, with every cell escaped."""
    cells = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


@dataclass(frozen=True, slots=True)
class WorkspaceStats:
    """The statistics of a workspace; ``total_lines`` counts rows of ``line_embeddings``."""

    total_documents: int
    total_lines: int
    has_index: bool
    index_type: str | None
    workspace: str = ""
    model: str | None = None
    sources: tuple[dict[str, Any], ...] = ()
    deltas: int = 0
    last_run: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dictionary.

        Returns:
            The object that ``status --json`` prints.

        Examples:
            >>> ws.status().to_dict()["total_documents"]
            1
        """
        return asdict(self)

    def _repr_html_(self) -> str:
        rows = [(name, value) for name, value in self.to_dict().items() if name != "sources"]
        return html_table(("", self.workspace), rows)


class Embedder(Protocol):
    """Turns text into unit vectors (DESIGN, "Embedding"); tasks has the implementations.

    Examples:
        >>> class Letters:
        ...     dim, fingerprint = 26, "letters"
        ...     def embed(self, lines, dtype=np.float32):
        ...         counts = np.array([[line.count(chr(97 + i)) for i in range(26)] for line in lines], dtype)
        ...         return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)
        ...     def embed_query(self, text):
        ...         return self.embed([text])[0]
        >>> with driftline.MemoryStore(f"{location}-letters", embedder=Letters) as letters:
        ...     letters.store("pet", "the cat sleeps", "org:home")
        ...     [hit.record.key for hit in letters.search_memory("a cat", scope="org:home")]
        ['pet']
    """

    @property
    def dim(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """The hash of weights, tokenizer, text preparation and CURRENT_EMBEDDING_VERSION."""
        ...

    def embed(self, lines: Any, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
        """Embed lines as unit vectors. The row of a line without known tokens is zero.

        Args:
            lines: a sequence or an Arrow array of strings.
            dtype: float32 or float16.

        Returns:
            ``(n, dim)`` rows of ``dtype``.
        """
        ...

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query as a unit vector.

        Args:
            text: the query.

        Returns:
            ``(dim,) float32``.
        """
        ...


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARACTERS, _RANDOM_BYTES = 10, 10


def _encode(number: int, characters: int) -> str:
    return "".join(_ALPHABET[(number >> (5 * i)) & 31] for i in reversed(range(characters)))


def new_ulid(now_ms: int | None = None) -> str:
    """Return a new ULID: 48 bits of milliseconds and 80 random bits, in 26 characters of Crockford's base 32."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return _encode(now, _TIME_CHARACTERS) + _encode(int.from_bytes(os.urandom(_RANDOM_BYTES)), 16)


def derived_ulid(ulid: str, number: int) -> str:
    """Return the ULID of part ``number`` of ``ulid``; deterministic, so that a retry recognizes its own writes."""
    digest = hashlib.blake2b(f"{ulid}/{number}".encode(), digest_size=_RANDOM_BYTES).digest()
    return ulid[:_TIME_CHARACTERS] + _encode(int.from_bytes(digest), 16)


def content_hash(data: bytes) -> str:
    """Return blake2b-128 of ``data``, as 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: ``path`` is relative to the workspace; ``modified`` is the store's own time, with a time zone.

    ``version`` (an etag or a generation) changes with the content. ``replace`` accepts only versions from
    ``get_versioned``, ``head``, ``create`` and ``replace``: listings of Google Cloud Storage and Azure spell them
    differently.
    """

    path: str
    size_bytes: int
    modified: datetime
    version: str


Range = tuple[int, int | None]
"""The bytes of an object from the first number to the second (exclusive), or to its end."""
