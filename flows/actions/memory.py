"""Define the actions for memory: ``ltm.*`` (store, retrieve, retrieve_by_entity, delete, search) and ``memory.search``.

They share one store, configured by the agent's ``settings.ltm`` or ``$LTM_CONFIG`` and by the environment
(flows/config/memory_settings.py), opened on the first call and closed with the engine.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from driftline.flows.actions.arguments import (
    Anything,
    Count,
    Distance,
    Entities,
    Fields,
    Flag,
    Moment,
    Name,
    OneEntity,
    Query,
    SearchMode,
    Text,
)
from driftline.flows.actions.registry import Action, Result, action, bind, close_with, own_type
from driftline.storage.defaults import DEFAULT_ENTRIES
from driftline.storage.entities import EntityName
from driftline.storage.errors import StoreClosed

if TYPE_CHECKING:
    from driftline.flows.memory_backend import HierarchicalLTMBackend


BACKEND = "hierarchical"
_SETTINGS = ("settings", "config", "_config")
"""Attributes where engines keep their agent's settings or its whole document."""


_action = partial(action, type_of=own_type)


class MemoryHandle:
    """The store that the actions share; ``settings`` returns the agent's ``ltm`` section on the first call."""

    def __init__(
        self, settings: Callable[[], Mapping[str, Any] | None] = lambda: None, within: EntityName | None = None
    ) -> None:
        self._settings = settings
        self._within = within
        self._lock = threading.Lock()
        self._backend: HierarchicalLTMBackend | None = None
        self._closed = False

    def backend(self) -> HierarchicalLTMBackend:
        """Return the store, opening it on the first call.

        Raises UsageError if no setting specifies its workspace, and StoreClosed.
        """
        from driftline.flows.memory_backend import create_ltm_backend

        with self._lock:
            if self._closed:
                fix = "Register the actions with a new engine."
                raise StoreClosed("This action's engine has been closed", fix=fix)
            if self._backend is None:
                self._backend = create_ltm_backend(settings=self._settings(), within=self._within)
            return self._backend

    def close(self) -> None:
        """Flush and close the store if it was opened. Idempotent."""
        with self._lock:
            backend, self._backend, self._closed = self._backend, None, True
        if backend is not None:
            backend.close()


def _settings_of(engine: Any) -> Callable[[], Mapping[str, Any] | None]:
    """Return a function that looks up ``settings.ltm`` of the engine's agent, without keeping the engine alive."""
    try:
        running = weakref.ref(engine)
    except TypeError:  # None, or an object that does not support weak references
        return lambda: None

    def look() -> Mapping[str, Any] | None:
        shown = (getattr(running(), name, None) for name in _SETTINGS)
        return next((found for each in shown if (found := ltm_section(each)) is not None), None)

    return look


def ltm_section(settings: object) -> Mapping[str, Any] | None:
    """Return the ``ltm`` section of an agent's settings or of its whole document.

    Returns None if it is for another backend.
    """
    inner = settings.get("settings", settings) if isinstance(settings, Mapping) else None
    section = inner.get("ltm") if isinstance(inner, Mapping) else None
    if not isinstance(section, Mapping) or section.get("backend", BACKEND) != BACKEND:
        return None
    return section


@_action
def ltm_store(
    state: Any,
    memory: MemoryHandle,
    key: Text,
    value: Anything,
    entity: OneEntity | None = None,
    metadata: Fields | None = None,
    expires_at: Moment | None = None,
) -> Result:
    """Store a value: ``{key, entity, replaced, moved_from, redacted}``."""
    return memory.backend().store(key, value, entity, metadata, expires_at)


@_action
def ltm_retrieve(
    state: Any, memory: MemoryHandle, key: Text, entity: OneEntity | None = None, default: Anything = None
) -> Result:
    """Return one entry: ``{found, entry, value, metadata}``; ``value`` is ``default`` if there is no entry."""
    answer = memory.backend().retrieve(key, entity)
    if answer["success"]:
        entry = answer["entry"] or {"value": default, "metadata": None}
        answer |= {"value": entry["value"], "metadata": entry["metadata"]}
    return answer


@_action
def ltm_retrieve_by_entity(
    state: Any,
    memory: MemoryHandle,
    entity_type: Name,
    entity_id: Name,
    include_descendants: Flag = True,
    limit: Count = 1_000,
    offset: Count = 0,
    allowed_ancestors: Entities | None = None,
    cursor: Text | None = None,
    within: OneEntity | None = None,
) -> Result:
    """Return the entries of an entity: ``{entries, total_count, has_more, cursor, partial}``."""
    return memory.backend().retrieve_by_entity(
        entity_type, entity_id, include_descendants, limit, offset, allowed_ancestors, cursor, within
    )


@_action
def ltm_delete(state: Any, memory: MemoryHandle, key: Text, entity: OneEntity | None = None) -> Result:
    """Delete an entry: ``{deleted}``."""
    return memory.backend().delete(key, entity)


@_action
def ltm_search(
    state: Any,
    memory: MemoryHandle,
    query: Text = "",
    metadata_filter: Fields | None = None,
    entity: OneEntity | None = None,
    allowed_ancestors: Entities | None = None,
    limit: Count = 1_000,
) -> Result:
    """Find entries by words in their keys and by metadata: ``{entries, results, count, has_more}``; ``entries`` and
    ``results`` are equal.
    """
    answer = memory.backend().search(query, metadata_filter, entity, allowed_ancestors, limit)
    if answer["success"]:
        answer |= {"results": answer["entries"], "count": len(answer["entries"])}
    return answer


@_action
def memory_search(
    state: Any,
    memory: MemoryHandle,
    query: Query,
    top_k: Count = DEFAULT_ENTRIES,
    filter: Fields | None = None,
    entity: OneEntity | None = None,
    allowed_ancestors: Entities | None = None,
    max_distance: Distance | None = None,
    mode: SearchMode = "hybrid",
    explain: Flag = False,
) -> Result:
    """Find entries by hybrid search: ``{results: [{record, score, rank, distance}], notes}``.

    Blank values of ``filter``, which templates of undefined variables yield, are ignored. ``explain`` adds an
    ``explanation``.
    """
    backend = memory.backend()
    filter = {name: value for name, value in (filter or {}).items() if value != ""}
    return backend.search_memory(query, top_k, filter, entity, allowed_ancestors, max_distance, mode, explain)


MEMORY_ACTIONS: Mapping[str, Action] = {
    "ltm.store": ltm_store,
    "ltm.retrieve": ltm_retrieve,
    "ltm.retrieve_by_entity": ltm_retrieve_by_entity,
    "ltm.delete": ltm_delete,
    "ltm.search": ltm_search,
    "memory.search": memory_search,
}


def register_actions(
    registry: Any,
    engine: Any = None,
    *,
    settings: Mapping[str, Any] | None = None,
    within: EntityName | None = None,
    only: Collection[str] = frozenset(MEMORY_ACTIONS),
    replace: bool = False,
) -> None:
    """Register this group's actions (those in ``only``), which share a store; see ``driftline.flows.actions``."""
    memory = MemoryHandle(_settings_of(engine) if settings is None else partial(ltm_section, settings), within)
    actions = {name: function for name, function in MEMORY_ACTIONS.items() if name in only}
    bind(registry, actions, engine, replace=replace, memory=memory)
    close_with(engine, memory.close)
