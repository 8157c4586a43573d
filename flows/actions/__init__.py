"""Actions for YAML agents: ``f(state, **with_args, **engine_kwargs) -> dict`` (docs/reference/yaml-actions.md)."""

from __future__ import annotations

from typing import Any

from driftline.flows.actions import memory, search
from driftline.flows.actions.calls import bind
from driftline.flows.actions.handles import Handles, close_with

__all__ = ["register_actions"]


def register_actions(registry: Any, engine: Any = None, *, home: str | None = None) -> None:
    """Register every action under its name and under ``actions.`` with an underscore; existing names stay.

    ``registry`` is a mutable mapping, or has ``register(name, function)`` and ``in`` or ``get``. The actions share open
    handles, which close with ``engine`` (handles.CLOSE_HOOKS). ``home`` holds workspaces with plain names.
    """
    handles = Handles(home)
    bind(registry, search.ACTIONS, handles=handles)
    close_with(engine, handles.close)
    memory.register(registry, engine)
