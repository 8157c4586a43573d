"""The defaults of a search, for modules that must not import NumPy to know them."""

from __future__ import annotations

from driftline.storage.lines.defaults import FALLBACK_THRESHOLD

__all__ = ["DEFAULT_N_LINES", "DEFAULT_RERANKED", "DEFAULT_TOP_K", "FALLBACK_THRESHOLD", "MAX_RERANKED"]

DEFAULT_TOP_K = 10
DEFAULT_N_LINES = 3
"""Lines of context on each side of a window."""
DEFAULT_RERANKED, MAX_RERANKED = 10, 200
"""Windows that a transformer reads when a search is reranked. More gained nothing on the tuning halves, and each costs
several milliseconds."""
