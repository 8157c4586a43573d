"""The values that cross rooms: documents, lines, states and figures."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

CURRENT_EMBEDDING_VERSION = 2
"""Bumped whenever text preparation changes the vectors of unchanged text, or the columns of a table of lines change;
part of every fingerprint."""


class DocumentState(enum.StrEnum):
    """What a scan says of a document (DESIGN, "Words")."""

    NEW = "new"
    CHANGED = "changed"
    TOUCHED = "touched"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


class SkipReason(enum.StrEnum):
    """Why a file is not indexed."""

    BINARY = "binary"
    TOO_LARGE = "too large"
    UNDECODABLE = "undecodable"
    UNREADABLE = "unreadable"
    EXCLUDED = "excluded"
    SECRET = "secret"
    BAD_NAME = "undecodable name"
    OUTSIDE = "link leads outside the source or in a circle"
    UNSTABLE = "changed while it was read"


@dataclass(frozen=True, slots=True)
class DocMeta:
    """One file of a source, as the manifest keeps it.

    ``path`` is relative and posix; ``etag`` is "" where the store has none; ``hash`` is the hex
    blake2b-128 of the bytes; ``lines`` counts rows of ``line_embeddings``; ``reason`` is set for a
    file that was read and not indexed; ``racy`` means that it may have changed within the same
    clock tick as it was read, so that the next run compares its content.
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


@dataclass(frozen=True, slots=True)
class LineEmbedding:
    """One row of ``line_embeddings``: ``line_number`` is 0-based, ``vector`` is ``(dim,) float32``."""

    path: str
    line_number: int
    text: str
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WorkspaceStats:
    """The figures of a workspace; ``total_lines`` counts rows of ``line_embeddings``."""

    workspace: str
    total_documents: int
    total_lines: int
    has_index: bool
    index_type: str | None
    model: str | None
    sources: tuple[dict[str, Any], ...] = ()
    deltas: int = 0
    last_run: dict[str, Any] | None = None


class Embedder(Protocol):
    """Turns text into unit vectors (DESIGN, "Embedding"). Implementations live in tasks."""

    @property
    def dim(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, text preparation and CURRENT_EMBEDDING_VERSION."""
        ...

    def embed(self, lines: Any, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
        """``(n, dim)`` unit rows of ``dtype``, float32 or float16, of a sequence or Arrow array of strings.

        A row is zero where no token of its line is known.
        """
        ...

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """``(dim,) float32``, a unit vector."""
        ...
