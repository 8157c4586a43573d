"""Find and open the workspace of a command or call, with its branch, boundary and readable sources.

The workspace is the one given, by path, URI or name, or else the nearest. A branch is given by name, or as ``auto`` for
the checked-out branch. Without a ``driftline.toml``, a command never imports the modules that read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftline.flows.config.workspace_names import (
    CONFIG_VARIABLE,
    WORKSPACE_FOLDER,
    absolute_workspace,
    find_config,
    local_path,
    nearest_workspace,
)
from driftline.storage.errors import UsageError, WorkspaceNotFound

if TYPE_CHECKING:
    from driftline.flows.config.driftline_toml import Configuration
    from driftline.flows.config.memory_settings import MemoryConfiguration
    from driftline.storage.entities import Boundary
    from driftline.storage.sources.access import SourceAccess
    from driftline.storage.workspace.workspace import Workspace

    Opener = Callable[[str, Mapping[str, str] | None, SourceAccess | None], Workspace]


WORKSPACE_VARIABLE = "DRIFTLINE_WORKSPACE"
DEFAULT_COPIES_BYTES = 10 * 2**30


def workspace_for_reading(given: str | None) -> str:
    """Return the workspace to search: ``given``, then $DRIFTLINE_WORKSPACE, then the nearest here or above.

    The nearest is a ``.driftline`` folder or the workspace set in a ``driftline.toml``. Returns an absolute path or a
    URI. Raises WorkspaceNotFound, UsageError.
    """
    if named := given or os.environ.get(WORKSPACE_VARIABLE):
        return absolute_workspace(named)
    folder, config = nearest_workspace(Path.cwd()), find_config(None)
    if config is not None and (
        folder is None or os.environ.get(CONFIG_VARIABLE) or config.parent.is_relative_to(folder.parent)
    ):
        from driftline.flows.config.driftline_toml import load_config

        return load_config(config).workspace
    if folder is None:
        raise WorkspaceNotFound(
            f"No {WORKSPACE_FOLDER} folder here or above",
            os.getcwd(),
            f"Run 'driftline index SOURCE' first, or specify a workspace with --workspace or {WORKSPACE_VARIABLE}.",
        )
    return str(folder)


def open_for_reading(
    given: str | None,
    config: str | None = None,
    *,
    default: str | None = None,
    opened: Opener | None = None,
    opens_tables: bool = False,
) -> Workspace:
    """Open the workspace that a command reads: ``given``, then ``default``, then the nearest.

    It has the storage options of its ``driftline.toml``, and may read only the sources that ``source_access`` allows.
    ``config`` is the configuration file that the caller specified, if any; ``opened`` replaces ``Workspace.open``.
    If the caller ``opens_tables`` for a search next, a bucket is read ahead. Propagates errors from
    ``workspace_for_reading`` and ``Workspace.open``.
    """
    target = workspace_for_reading(given or default)
    access = source_access(target, given, config)
    if opened is not None:
        return opened(target, options_for(target), access)
    from driftline.storage.objects.store import ObjectStore
    from driftline.storage.workspace.early_reads import EarlyReads

    objects = ObjectStore.open(target, options_for(target))
    early = EarlyReads.begin(objects, opens_tables=opens_tables)
    from driftline.storage.workspace.workspace import Workspace  # loads Arrow while the bucket answers

    return Workspace.read_from(objects, access, early)


def workspace_for_indexing(
    given: str | None,
    sources: Sequence[str],
    configuration: Configuration | None = None,
) -> str:
    """Return the workspace to write to.

    It is ``given``, then $DRIFTLINE_WORKSPACE, then the workspace in ``configuration``, then the sources' common
    default: the nearest ``.driftline`` in a source's folder or a parent folder, or else a new one at its root. Returns
    an absolute path or a URI; creates nothing. Raises UsageError if the sources' defaults differ.
    """
    named = given or os.environ.get(WORKSPACE_VARIABLE) or (configuration.workspace if configuration else None)
    if named:
        return absolute_workspace(named)
    proposals: dict[Path, str] = {}
    for source in sources:
        path = local_path(source)
        if path is None:
            from driftline.storage.sources.source import check_scheme  # only for this error

            check_scheme(source)
            raise UsageError(
                "A remote source has no default workspace",
                source,
                f"Specify one with --workspace or {WORKSPACE_VARIABLE}.",
            )
        root = path.resolve()
        proposals.setdefault(nearest_workspace(root) or root / WORKSPACE_FOLDER, source)
    if len(proposals) != 1:
        raise UsageError(
            "These sources have different default workspaces" if proposals else "No source was given",
            ", ".join(proposals.values()),
            f"Specify one workspace for all with --workspace or {WORKSPACE_VARIABLE}.",
        )
    return str(next(iter(proposals)))


def options_for(workspace: str) -> dict[str, str] | None:
    """Return the storage options in the configuration of ``workspace``, or None if there is none. Raises UsageError."""
    if find_config(None) is None:
        return None
    from driftline.flows.config.driftline_toml import config_of

    config = config_of(workspace)
    return config.options() if config is not None else None


def references_for(workspace: str) -> dict[str, str]:
    """Return the references to tokens of repositories in the configuration of ``workspace``. Raises UsageError."""
    if find_config(None) is None:
        return {}
    from driftline.flows.config.driftline_toml import config_of

    config = config_of(workspace)
    return config.references() if config is not None else {}


def search_settings() -> Mapping[str, Any]:
    """Return the ``[search]`` table of the located file; empty if there is none. Raises UsageError."""
    path = find_config(None)
    if path is None:
        return {}
    from driftline.flows.config.driftline_toml import load_config

    return load_config(path).search


def cache_settings(cache: bool | None = None) -> tuple[bool, int]:
    """Return whether to search local copies of buckets, and their maximum size in bytes.

    ``cache`` overrides the setting in ``driftline.toml``. Raises UsageError if that file is invalid.
    """
    settings = search_settings()
    enabled = settings.get("cache", False) if cache is None else cache
    return bool(enabled), int(settings.get("cache_bytes", DEFAULT_COPIES_BYTES))


AUTO = "auto"


def named_branch(name: str | None, folder: str = ".") -> str | None:
    """Return the branch called ``name`` or, for ``auto``, the checked-out branch of the working tree around ``folder``.

    Raises UsageError if no branch is checked out there.
    """
    if name != AUTO:
        return name
    from driftline.tasks.git.commits import head

    commit = head(folder)
    if commit is None or commit.branch is None:
        raise UsageError("No branch is checked out here", folder, "Specify it: --branch NAME")
    return commit.branch


def on_named_branch(workspace: Workspace, name: str | None, within: Boundary | None = None) -> Workspace:
    """Return ``workspace`` on the branch called ``name``, for the sources at or below ``within``.

    ``auto`` falls back to the main index if the branch is not indexed. Raises UsageError for any other unknown branch.
    """
    if name is None:
        return workspace
    from driftline.storage.workspace.branch_cuts import has_branch, on_branch

    branch = named_branch(name)
    if branch is None or (name == AUTO and not has_branch(workspace, branch, within)):
        return workspace
    return on_branch(workspace, branch, within)


def boundary_in(workspace: Workspace, *names: str) -> Boundary:
    """Return the boundary that allows the entities called ``names``, and everything under them.

    Each is a full path in the hierarchy of sources or, if it does not fit there, of memory; a source may omit the
    levels that have defaults. The settings of memory are read only if needed. The catalog is not consulted, so a path
    names the same entity for lines and for memory. Raises BadEntity, UsageError.
    """
    from driftline.storage.entities import Boundary, Entity, Hierarchy

    levels = workspace.config.hierarchy

    @cache
    def memory() -> MemoryConfiguration:
        from driftline.flows.config.memory_settings import memory_of  # imports the memory libraries

        return memory_of(workspace.objects.uri)

    def top(name: str) -> Entity:
        named = tuple(segment.partition(":")[0] for segment in name.strip("/").split("/"))
        if named[-1] == levels[-1]:
            return Entity.parse(name, levels)
        if named == levels[: len(named)]:
            return Hierarchy(named).entity(name)  # decodes ids as memory does
        if named[0] not in memory().hierarchy.levels:
            return Entity.parse(name, levels)
        from driftline.flows.config.memory_settings import boundary_of

        return boundary_of(memory(), name)

    return Boundary.of(*map(top, names))


def source_access(workspace: str, given: str | None, config: str | None = None) -> SourceAccess:
    """Return which sources of ``workspace`` may be read.

    ``given`` and ``config`` are the workspace and configuration that the caller specified explicitly, if any. Locations
    listed in an explicit or trusted ``driftline.toml`` may be read. No other remote source may be read. Other local
    sources may be read if the workspace is explicit; otherwise, only those inside the folder where it was found. Raises
    UsageError.
    """
    from driftline.storage.sources.access import SourceAccess

    roots: tuple[str, ...] = ()
    if find_config(config) is not None:
        from driftline.flows.config.driftline_toml import named_or_trusted_config

        trusted = named_or_trusted_config(config)
        roots = tuple(source.uri for source in trusted.sources) if trusted is not None else ()
    if given or os.environ.get(WORKSPACE_VARIABLE):
        return SourceAccess(roots)
    found = local_path(workspace)
    return SourceAccess(roots, str(Path(found).resolve().parent) if found is not None else None)
