"""Actions for YAML agents: ``f(state, **with_args, **engine_kwargs) -> dict`` (docs/reference/yaml-actions.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from driftline.flows.actions import memory, search
from driftline.flows.actions.registry import chosen
from driftline.storage.entities import EntityName

__all__ = ["register_actions"]


def register_actions(
    registry: Any,
    engine: Any = None,
    *,
    home: str | None = None,
    settings: Mapping[str, Any] | None = None,
    within: EntityName | None = None,
    only: Collection[str] | str | None = None,
    replace: bool = False,
) -> None:
    """Register actions under their names and under ``actions.`` with an underscore.

    ``registry`` is a mutable mapping, or has ``register(name, function)`` and ``in`` or ``get``. The actions share open
    handles, which close with ``engine`` (registry.CLOSE_HOOKS). ``home`` is the folder with named workspaces.
    ``settings`` contains the agent's settings (default: the engine's); its ``ltm`` section configures the memory. The
    actions see only memory at or below ``within``. ``only`` lists actions, or the groups ``search`` and ``memory``.
    Unless ``replace`` is set, existing names are kept, including names that the engine resolves to its own actions.
    Raises UsageError.
    """
    names = chosen(only, {"search": search.ACTIONS, "memory": memory.MEMORY_ACTIONS})
    if names & set(search.ACTIONS):
        search.register_actions(registry, engine, home=home, only=names, replace=replace)
    if names & set(memory.MEMORY_ACTIONS):
        memory.register_actions(registry, engine, settings=settings, within=within, only=names, replace=replace)
