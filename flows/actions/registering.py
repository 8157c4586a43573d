"""How actions come into a registry: all of them, groups, or single ones, beside the actions that an engine has."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from driftline.flows.actions.calls import Action, Result
from driftline.storage.errors import UsageError

OWN_PREFIX = "driftline."
"""Stands before the names of actions whose plain names the engine resolves to its own."""
_REGISTRIES = ("actions_registry", "actions", "registry")
"""Attributes under which engines keep what they resolve names with; the first mapping counts."""


def chosen(only: Collection[str] | str | None, groups: Mapping[str, Mapping[str, Action]]) -> set[str]:
    """The names of the actions that ``only`` names, by themselves or by their groups; all without it.

    Raises UsageError for a name that is neither.
    """
    actions = {name: {name} for group in groups.values() for name in group}
    if only is None:
        return set(actions)
    known = {**actions, **{group: set(names) for group, names in groups.items()}}
    named = [only] if isinstance(only, str) else list(only)
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
            raise UsageError("There is no such action, and no such group", repr(name), fix)
    return set().union(*(known[name] for name in named))


class UnderNamespace(str):
    """A name in a registry that an engine hands over empty: the plain name below a namespace, else with OWN_PREFIX.

    Engines put what they find there into their own registry, as ``f"{namespace}.{name}"`` or, without a namespace, as
    the name itself, over actions of their own; which of the two they do shows only then. Formatted, this is
    ``ltm.store``, and as a key it is ``driftline.ltm.store``.
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return format(self.removeprefix(OWN_PREFIX), spec)


def bind(
    registry: Any, actions: Mapping[str, Action], engine: Any = None, *, replace: bool = False, **given: Any
) -> None:
    """Put ``actions`` into ``registry`` with the arguments ``given``.

    Each is there twice: by its name, and as ``actions.`` and its name with an underscore. Names that are there already
    stay unless ``replace``. So do those that ``engine`` resolves to actions of its own, which it would overwrite with
    what it finds in a registry that it hands over empty: it gets ours with OWN_PREFIX, and below every namespace by
    their plain names.
    """
    own = _registry_of(engine)
    for name, function in actions.items():
        bound = _bound(function, given)
        for known_as in (name, f"actions.{name.replace('.', '_')}"):
            if replace:
                _put(registry, known_as, bound)
            elif own is not None and known_as in own and not _is_ours(own[known_as]):
                target = own if isinstance(own, MutableMapping) else registry
                _put(target, OWN_PREFIX + known_as, bound)
                if registry is not own:
                    _put(registry, UnderNamespace(OWN_PREFIX + known_as), bound)
            elif not _holds(registry, known_as):
                _put(registry, known_as, bound)


def _bound(function: Action, given: Mapping[str, Any]) -> Action:
    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> Result:
        return function(*positional, **{**named, **given})

    return call


def _registry_of(engine: Any) -> Mapping[str, Any] | None:
    found = (getattr(engine, name, None) for name in _REGISTRIES)
    return next((each for each in found if isinstance(each, Mapping)), None)


def _is_ours(function: object) -> bool:
    return getattr(function, "__module__", "").startswith("driftline.flows.actions.")


def _put(registry: Any, name: str, function: Action) -> None:
    if isinstance(registry, MutableMapping):
        registry[name] = function
    else:
        registry.register(name, function)


def _holds(registry: Any, name: str) -> bool:
    if hasattr(registry, "__contains__"):
        return name in registry
    return hasattr(registry, "get") and registry.get(name) is not None
