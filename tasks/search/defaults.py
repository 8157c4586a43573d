"""The defaults of a search, for modules that must not import NumPy to know them."""

from __future__ import annotations

from driftline.storage.lines.defaults import FALLBACK_THRESHOLD

__all__ = ["DEFAULT_N_LINES", "DEFAULT_TOP_K", "FALLBACK_THRESHOLD"]

DEFAULT_TOP_K = 10
DEFAULT_N_LINES = 3
"""Lines of context on each side of a window."""
