"""Resolve limits of access: the entity that bounds a token or a server, and the sources that a command may read."""

from __future__ import annotations

from pathlib import Path

from driftline.flows.config.environment import Environment, local_path
from driftline.flows.config.locate import WORKSPACE_VARIABLE
from driftline.flows.config.toml_file import named_or_trusted_config
from driftline.storage.entities import Entity
from driftline.storage.sources.access import SourceAccess
from driftline.storage.workspace.workspace import Workspace


def boundary_in(workspace: Workspace, within: str) -> Entity:
    """Return the entity that ``within`` names by its complete path: one of the memory's hierarchy, or a source.

    Nothing is looked up, because lines and memory must mean the same entity. Raises BadEntity, UsageError.
    """
    from driftline.flows.config.memory_settings import boundary_of, memory_of

    levels = workspace.config.hierarchy
    if within.strip("/").rpartition("/")[2].startswith(f"{levels[-1]}:"):
        return Entity.parse(within, levels)
    return boundary_of(memory_of(workspace.objects.uri), within)


def source_access(
    workspace: str, given: str | None, config: str | None = None, environment: Environment | None = None
) -> SourceAccess:
    """Return which sources of ``workspace`` may be read. Raises UsageError.

    ``given`` is the name of the workspace if the caller named it, ``config`` a configuration that the caller named. The
    places that a named or trusted ``driftline.toml`` lists may be read. Beyond them, no remote source may be read. A
    local source may be read if the workspace was named, else only in the folder in which the workspace was found.
    """
    environment = environment or Environment.current()
    trusted = named_or_trusted_config(config, environment)
    places = tuple(source.uri for source in trusted.sources) if trusted is not None else ()
    if given or environment.environ.get(WORKSPACE_VARIABLE):
        return SourceAccess(places)
    found = local_path(workspace)
    return SourceAccess(places, str(Path(found).resolve().parent) if found is not None else None)
