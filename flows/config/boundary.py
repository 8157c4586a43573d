"""The entity beyond which a token or a server sees nothing, of lines and of memory."""

from __future__ import annotations

from driftline.flows.config.memory_settings import boundary_of
from driftline.flows.config.memory_upkeep import memory_of
from driftline.storage.entities import Entity
from driftline.storage.workspace.workspace import Workspace


def boundary_in(workspace: Workspace, within: str) -> Entity:
    """The entity that ``within`` names by its whole path: one of the memory's hierarchy, or a source.

    Nothing is looked up: lines and memory must mean the same entity. Raises BadEntity, UsageError.
    """
    levels = workspace.config.hierarchy
    if within.strip("/").rpartition("/")[2].startswith(f"{levels[-1]}:"):
        return Entity.parse(within, levels)
    return boundary_of(memory_of(workspace.objects.uri), within)
