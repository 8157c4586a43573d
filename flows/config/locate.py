"""The defaults of the front doors, above all the workspace that a command uses when none is named."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from driftline.storage.errors import UsageError, WorkspaceNotFound

if TYPE_CHECKING:
    from driftline.flows.config.toml_file import Configuration

WORKSPACE_VARIABLE = "DRIFTLINE_WORKSPACE"
WORKSPACE_FOLDER = ".driftline"
DEFAULT_MAX_FILE_BYTES = 4 * 1024 * 1024
DEFAULT_MAX_DELTAS = 100
"""More deltas than these make every read of a manifest slow: time to compact."""
DEFAULT_VERSION_RETENTION_SECONDS = 3_600.0
"""How long old versions of a table stay, for those who read or write on the strength of one."""

# One letter before a colon is a Windows drive, not a scheme.
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)
_LOCAL_SCHEMES = frozenset({"file", "local"})


def local_path(uri: str) -> Path | None:
    """The path that ``uri`` names on this machine (a bare path or ``file://``), else None; nothing is decoded."""
    if "::" in uri:  # chained file systems, such as zip://…::s3://…
        return None
    match = _URI.fullmatch(uri)
    if match is None:
        return Path(uri).expanduser()
    return Path(match["rest"]) if match["scheme"].lower() in _LOCAL_SCHEMES else None


def workspace_for_reading(given: str | None, environ: Mapping[str, str], cwd: Path) -> str:
    """The workspace to search: ``given``, else the environment's, else the nearest from ``cwd`` upward.

    That is a ``.driftline`` folder, or the workspace of a ``driftline.toml``. Bare paths come back absolute. Raises
    WorkspaceNotFound, and UsageError for a configuration file that is wrong.
    """
    named = given or environ.get(WORKSPACE_VARIABLE)
    if named:
        return _absolute(named, cwd)
    from driftline.flows.config.toml_file import CONFIG_VARIABLE, find_config, load_config

    nearest, config = _nearest(cwd), find_config(None, environ, cwd)
    if config is not None and (
        nearest is None or environ.get(CONFIG_VARIABLE) or config.parent.is_relative_to(nearest.parent)
    ):
        return load_config(config).workspace
    if nearest is None:
        raise WorkspaceNotFound(
            f"No {WORKSPACE_FOLDER} folder here or above",
            str(cwd),
            f"Run 'driftline index SOURCE' first, or name a workspace with --workspace or {WORKSPACE_VARIABLE}.",
        )
    return str(nearest)


def workspace_for_indexing(
    given: str | None,
    sources: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    configuration: Configuration | None = None,
) -> str:
    """The workspace to write: ``given``, else the environment's, else the file's, else one that the sources agree on.

    Each local source proposes the nearest ``.driftline`` from itself upward, else one at its own root.
    Bare paths come back absolute; nothing is created. Raises UsageError when a source is remote, or
    when several sources propose different workspaces.
    """
    named = given or environ.get(WORKSPACE_VARIABLE) or (configuration.workspace if configuration else None)
    if named:
        return _absolute(named, cwd)
    proposals: dict[Path, str] = {}
    for source in sources:
        path = local_path(source)
        if path is None:
            raise UsageError(
                "A remote source has no default workspace",
                source,
                f"Name one with --workspace or {WORKSPACE_VARIABLE}.",
            )
        root = (cwd / path).resolve()
        proposals.setdefault(_nearest(root) or root / WORKSPACE_FOLDER, source)
    if len(proposals) != 1:
        raise UsageError(
            "These sources have different default workspaces" if proposals else "No source was given",
            ", ".join(proposals.values()),
            f"Name one workspace for all with --workspace or {WORKSPACE_VARIABLE}.",
        )
    return str(next(iter(proposals)))


def _absolute(workspace: str, cwd: Path) -> str:
    return workspace if _URI.fullmatch(workspace) else str((cwd / Path(workspace).expanduser()).resolve())


def _nearest(start: Path) -> Path | None:
    resolved = start.resolve()
    folders = (folder / WORKSPACE_FOLDER for folder in (resolved, *resolved.parents))
    return next(
        (folder for folder in folders if os.path.isdir(folder)), None
    )  # not is_dir(): it raises without permission
