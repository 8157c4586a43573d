"""When the filter of a search applies, and its default; for modules that must not import NumPy to know them."""

from __future__ import annotations

from typing import Literal

FALLBACK_THRESHOLD = 0.5
"""The strategy ``hybrid`` filters after the search if at least this share of the lines matches."""

Strategy = Literal["auto", "prefilter", "postfilter", "hybrid"]
"""When a filter applies: before the search with ``auto`` and ``prefilter``; after it with ``postfilter``, which fetches
more lines until enough match; ``hybrid`` decides by ``fallback_threshold``. ``auto`` also counts the matches and
compares a small number of them without the index."""
