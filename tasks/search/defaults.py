"""The defaults of a search, for modules that must not import NumPy to know them."""

from __future__ import annotations

DEFAULT_TOP_K = 10
DEFAULT_N_LINES = 3
"""Lines of context on each side of a window."""
