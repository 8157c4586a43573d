"""Define the defaults and limits that the command line, the flows and Python share, without NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

DEFAULT_MAX_FILE_BYTES = 4 * 1024 * 1024
"""Larger files are skipped."""
DEFAULT_MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""The limit for documents, logs, CSV and JSON lines."""
DEFAULT_MAX_DELETE_FRACTION = 0.5
"""A run refuses to delete a larger fraction of a source's documents."""
DEFAULT_MAX_DELTAS = 100
"""Sources with more deltas are due for compaction: every delta slows each read of the manifest."""
DEFAULT_VERSION_RETENTION_SECONDS = 3_600.0
"""Compaction keeps younger versions of a table for readers and writers that opened one."""
DEFAULT_MAX_AGE_SECONDS = 3_600.0
"""Cleanup keeps younger objects, because a run may not have written the reference to them yet."""
DEFAULT_PRUNED_AFTER_DAYS = 14.0
"""Branches that were not indexed for longer are pruned."""
DEFAULT_SQL_SECONDS = 60.0
"""A SELECT is interrupted after this time."""
DEFAULT_CI_TIMEOUT_SECONDS = 3_600.0
"""Seconds that ``driftline ci`` waits for a deployment."""
DEFAULT_EXECUTOR = "inline"
"""Runs tasks in threads of the process itself."""

Redaction = Literal["off", "known", "strict"]
"""Which credentials are redacted in text before it is stored.

``known`` redacts credentials with a recognizable format. ``strict`` also redacts random values after a word such as
``password``.
"""
DEFAULT_REDACTION: Redaction = "known"
"""Default redaction mode of new sources."""
IndexScope = Literal["all", "text", "none"]
"""The search indexes that a run updates: all, those for exact and full-text search, or none."""

FALLBACK_THRESHOLD = 0.5
"""The ``hybrid`` strategy filters after the search if at least this share of the lines matches."""

Mode = Literal["hybrid", "vector", "text"]
"""How to rank: by words and embeddings, by embeddings only, or by words only."""
Strategy = Literal["auto", "prefilter", "postfilter", "hybrid"]
"""When a filter applies.

``auto`` and ``prefilter`` apply it before the search. ``postfilter`` applies it after the search, and fetches more
lines until enough match. ``hybrid`` chooses between them by ``fallback_threshold``. ``auto`` also counts the matches,
and compares them without the index if there are few.
"""

DEFAULT_TOP_K = 10
DEFAULT_ENTRIES = 5
"""Default maximum number of entries that a memory search returns."""
DEFAULT_N_LINES = 3
"""Lines of context on each side of a window."""
DEFAULT_RERANKED, MAX_RERANKED = 10, 200
"""Number of windows that a reranking transformer reads. More windows did not improve the tuning sets, and each takes
several milliseconds.
"""
MAX_SHOWN_CHARACTERS, CUT = 500, "…"
"""Longer lines are shown as a window of this many characters around the match, with CUT at each truncated end."""

SHOWN_WEAK = 3
"""Number of hits to show, each with only its best line, if nothing matches the query well."""


def all_weak(labels: Iterable[str | None]) -> bool:
    """Return whether there are hits, none of which is likely to be relevant."""
    return {*labels} == {"weak"}


def is_clipped(line: str) -> bool:
    """Return whether the displayed ``line`` is only a window of the full line."""
    return len(line) == MAX_SHOWN_CHARACTERS and (line[0] == CUT or line[-1] == CUT)
