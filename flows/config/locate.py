"""The workspace that a command uses: the one that is named, else the one that lies nearest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from driftline.flows.config.paths import WORKSPACE_FOLDER, absolute_workspace, local_path, nearest_workspace
from driftline.flows.config.surroundings import Surroundings
from driftline.storage.errors import UsageError, WorkspaceNotFound

if TYPE_CHECKING:
    from driftline.flows.config.toml_file import Configuration

WORKSPACE_VARIABLE = "DRIFTLINE_WORKSPACE"


def workspace_named(name: str, surroundings: Surroundings | None = None) -> str:
    """The absolute path or URI of the workspace that a caller names: a plain name is below DRIFTLINE_HOME."""
    around = surroundings or Surroundings.current()
    return absolute_workspace(name, around.cwd, around.workspaces_home)


def workspace_for_reading(given: str | None, surroundings: Surroundings | None = None) -> str:
    """The workspace to search: ``given``, else the environment's, else the nearest from the working directory upward.

    The nearest is a ``.driftline`` folder or the workspace of a ``driftline.toml``. Returns an absolute path or a URI.
    ``surroundings`` default to those of this process. Raises WorkspaceNotFound, UsageError.
    """
    around = surroundings or Surroundings.current()
    named = given or around.environ.get(WORKSPACE_VARIABLE)
    if named:
        return absolute_workspace(named, around.cwd, around.workspaces_home)
    from driftline.flows.config.toml_file import CONFIG_VARIABLE, find_config, load_config  # loads pydantic

    folder, config = nearest_workspace(around.cwd), find_config(None, around)
    if config is not None and (
        folder is None or around.environ.get(CONFIG_VARIABLE) or config.parent.is_relative_to(folder.parent)
    ):
        return load_config(config).workspace
    if folder is None:
        raise WorkspaceNotFound(
            f"No {WORKSPACE_FOLDER} folder here or above",
            str(around.cwd),
            f"Run 'driftline index SOURCE' first, or name a workspace with --workspace or {WORKSPACE_VARIABLE}.",
        )
    return str(folder)


def workspace_for_indexing(
    given: str | None,
    sources: Sequence[str],
    configuration: Configuration | None = None,
    surroundings: Surroundings | None = None,
) -> str:
    """The workspace to write: ``given``, else the environment's, else the file's, else the one the sources agree on.

    Each local source proposes the nearest ``.driftline`` from itself upward, else one at its own root. Returns an
    absolute path or a URI; creates nothing. ``surroundings`` default to those of this process. Raises UsageError.
    """
    around = surroundings or Surroundings.current()
    named = given or around.environ.get(WORKSPACE_VARIABLE) or (configuration.workspace if configuration else None)
    if named:
        return absolute_workspace(named, around.cwd, around.workspaces_home)
    proposals: dict[Path, str] = {}
    for source in sources:
        path = local_path(source)
        if path is None:
            raise UsageError(
                "A remote source has no default workspace",
                source,
                f"Name one with --workspace or {WORKSPACE_VARIABLE}.",
            )
        root = (around.cwd / path).resolve()
        proposals.setdefault(nearest_workspace(root) or root / WORKSPACE_FOLDER, source)
    if len(proposals) != 1:
        raise UsageError(
            "These sources have different default workspaces" if proposals else "No source was given",
            ", ".join(proposals.values()),
            f"Name one workspace for all with --workspace or {WORKSPACE_VARIABLE}.",
        )
    return str(next(iter(proposals)))
