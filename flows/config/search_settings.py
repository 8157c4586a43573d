"""What a search does: its caller's arguments, else those of ``[search]`` in ``driftline.toml``, else the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftline.flows.config.surroundings import Surroundings
from driftline.tasks.search.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K, FALLBACK_THRESHOLD

DEFAULT_CACHE_BYTES = 10 * 2**30
DEFAULTS: Mapping[str, Any] = {
    "top_k": DEFAULT_TOP_K,
    "n_lines": DEFAULT_N_LINES,
    "mode": "hybrid",
    "strategy": "auto",
    "fallback_threshold": FALLBACK_THRESHOLD,
    "rerank": False,
    "branch": None,
    "deep": None,
    "cache": False,
    "cache_bytes": DEFAULT_CACHE_BYTES,
}


def search_arguments(given: Mapping[str, Any], surroundings: Surroundings | None = None) -> dict[str, Any]:
    """``given`` completed, where it says None, by the file that a command in the current folder uses.

    Raises UsageError for a file that is not valid.
    """
    from driftline.flows.config.toml_file import search_settings  # loads pydantic

    settings = {**DEFAULTS, **search_settings(surroundings)}
    return {name: settings.get(name) if value is None else value for name, value in given.items()}
