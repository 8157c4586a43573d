"""Define the embedder protocol that tasks implement, and the version of text preparation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

CURRENT_EMBEDDING_VERSION = 6
"""Part of every fingerprint.

Increment it when text preparation changes the vectors of unchanged text, or when the columns of the lines table change.
"""


@dataclass(frozen=True, slots=True)
class DeepModel:
    """A transformer that embeds definitions; ``fingerprint`` covers its files and its text preparation."""

    name: str
    fingerprint: str
    dim: int


class Embedder(Protocol):
    """Turns text into unit vectors (DESIGN, "Embedding"); implementations are in tasks.

    Examples:
        >>> class Letters:
        ...     dim, fingerprint = 26, "letters"
        ...     def embed(self, lines, dtype=np.float32):
        ...         counts = np.array([[line.count(chr(97 + i)) for i in range(26)] for line in lines], dtype)
        ...         return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)
        ...     def embed_query(self, text):
        ...         return self.embed([text])[0]
        >>> with driftline.MemoryStore(f"{location}-letters", embedder=Letters) as letters:
        ...     stored = letters.store("pet", "the cat sleeps", "org:home")
        ...     [hit.record.key for hit in letters.search_memory("a cat", scope="org:home")]
        ['pet']
    """

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        ...

    @property
    def fingerprint(self) -> str:
        """The hash of weights, tokenizer, text preparation and CURRENT_EMBEDDING_VERSION."""
        ...

    def embed(self, lines: Any, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
        """Embed lines as unit vectors. A line with no known tokens yields a zero vector.

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
