"""Complete the arguments of a search: the caller's, else ``[search]`` in ``driftline.toml``, else the defaults.

Also resolve named workspaces of ``driftline.toml`` as filters, for every interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from driftline.flows.config.environment import Environment
from driftline.tasks.search.request import OPTIONS, SearchRequest

if TYPE_CHECKING:
    from driftline.storage.lines.filters import LineFilter

DEFAULT_CACHE_BYTES = 10 * 2**30


def search_request(
    query: str, given: Mapping[str, Any], environment: Environment | None = None, **more: Any
) -> SearchRequest:
    """Return the request of the ``given`` options, completed by the file that a command in the current folder uses.

    None means that an option was not given; ``more`` are further fields. Raises UsageError.
    """
    from driftline.flows.config.toml_file import search_settings  # loads pydantic

    settings = {name: value for name, value in search_settings(environment).items() if name in OPTIONS}
    told = {name: value for name, value in given.items() if value is not None}
    return SearchRequest.of(query, {**settings, **told}, **more)


def cache_settings(cache: bool | None = None) -> tuple[bool, int]:
    """Return whether to search copies of buckets, as the caller or the file says, and their size in bytes at most.

    Raises UsageError for an invalid file.
    """
    from driftline.flows.config.toml_file import search_settings  # loads pydantic

    settings = search_settings()
    wanted = settings.get("cache", False) if cache is None else cache
    return bool(wanted), int(settings.get("cache_bytes", DEFAULT_CACHE_BYTES))


def named_workspace(name: str, config: str | None = None) -> tuple[LineFilter, str]:
    """Return the filter of a named workspace, and the workspace that its file names.

    The file is ``config``, else the one that a command in the current folder would use. Raises UsageError, which lists
    the existing names.
    """
    from driftline.flows.config.toml_file import named_workspace_filter, open_config

    configuration = open_config(config)
    return named_workspace_filter(configuration, name), configuration.workspace
