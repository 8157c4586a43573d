"""Complete the arguments of a search: the caller's, else ``[search]`` in ``driftline.toml``, else the defaults.

Also resolve named workspaces of ``driftline.toml`` as filters, for every interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from driftline.flows.config.environment import Environment
from driftline.storage.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K, FALLBACK_THRESHOLD

if TYPE_CHECKING:
    from driftline.storage.lines.filters import LineFilter

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


def search_arguments(given: Mapping[str, Any], environment: Environment | None = None) -> dict[str, Any]:
    """Complete arguments of ``given`` that are None by the file that a command in the current folder uses.

    Raises UsageError for an invalid file.
    """
    from driftline.flows.config.toml_file import search_settings  # loads pydantic

    settings = {**DEFAULTS, **search_settings(environment)}
    return {name: settings.get(name) if value is None else value for name, value in given.items()}


def named_workspace(name: str, config: str | None = None) -> tuple[LineFilter, str]:
    """Return the filter of a named workspace, and the workspace that its file names.

    The file is ``config``, else the one that a command in the current folder would use. Raises UsageError, which lists
    the existing names.
    """
    from driftline.flows.config.toml_file import named_workspace_filter, open_config

    configuration = open_config(config)
    return named_workspace_filter(configuration, name), configuration.workspace
