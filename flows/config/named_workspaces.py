"""Named workspaces of ``driftline.toml`` as filters, for every door that searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftline.storage.lines.filters import LineFilter


def named_workspace(name: str, config: str | None = None) -> tuple[LineFilter, str]:
    """The filter of a named workspace, and the workspace that its file names.

    The file is ``config``, else the one that a command in the current folder would use. Raises UsageError, which lists
    the names that there are.
    """
    from driftline.flows.config.toml_file import named_workspace_filter, open_config

    configuration = open_config(config)
    return named_workspace_filter(configuration, name), configuration.workspace
