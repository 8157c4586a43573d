"""Actions for memory: ``ltm.store``, ``ltm.retrieve``, ``ltm.retrieve_by_entity``, ``ltm.delete``, ``ltm.search`` and
``memory.search``.

They share one store, set up by ``$LTM_CONFIG`` and the environment (flows/config/memory_settings.py), opened at the
first call and closed with the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from driftline.flows.actions.arguments import (
    Anything,
    Count,
    EntityName,
    EntityNames,
    Fields,
    Flag,
    Moment,
    Name,
    Query,
    Text,
)
from driftline.flows.actions.calls import Action, Result, action, bind
from driftline.flows.actions.handles import close_with

if TYPE_CHECKING:
    from driftline.flows.memory.dict_backend import HierarchicalLTMBackend


class MemoryHandle:
    """The store that the actions share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._backend: HierarchicalLTMBackend | None = None

    def backend(self) -> HierarchicalLTMBackend:
        """The store, opened at the first call. Raises UsageError where nothing names its workspace."""
        from driftline.flows.memory.dict_backend import create_ltm_backend

        with self._lock:
            if self._backend is None:
                self._backend = create_ltm_backend()
            return self._backend

    def close(self) -> None:
        """Flush and close the store, if it was opened; the next call opens it again."""
        with self._lock:
            backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()


@action
def ltm_store(
    state: Any,
    memory: MemoryHandle,
    key: Text,
    value: Anything,
    entity: EntityName | None = None,
    metadata: Fields | None = None,
    expires_at: Moment | None = None,
) -> Result:
    """Store a value: ``{key, entity}``."""
    return memory.backend().store(key, value, entity, metadata, expires_at)


@action
def ltm_retrieve(state: Any, memory: MemoryHandle, key: Text, entity: EntityName | None = None) -> Result:
    """One entry: ``{found, entry, value}``."""
    return memory.backend().retrieve(key, entity)


@action
def ltm_retrieve_by_entity(
    state: Any,
    memory: MemoryHandle,
    entity_type: Name,
    entity_id: Name,
    include_descendants: Flag = True,
    allowed_ancestors: EntityNames | None = None,
    limit: Count = 1_000,
    offset: Count = 0,
    cursor: Text | None = None,
    within: EntityName | None = None,
) -> Result:
    """The entries of an entity: ``{entries, total_count, has_more, cursor}``."""
    return memory.backend().retrieve_by_entity(
        entity_type, entity_id, include_descendants, limit, offset, allowed_ancestors, cursor, within
    )


@action
def ltm_delete(state: Any, memory: MemoryHandle, key: Text, entity: EntityName | None = None) -> Result:
    """Delete an entry: ``{deleted}``."""
    return memory.backend().delete(key, entity)


@action
def ltm_search(
    state: Any,
    memory: MemoryHandle,
    query: Text = "",
    metadata_filter: Fields | None = None,
    entity: EntityName | None = None,
    allowed_ancestors: EntityNames | None = None,
    limit: Count = 1_000,
) -> Result:
    """Entries by the words of their keys and by their metadata: ``{entries}``."""
    return memory.backend().search(query, metadata_filter, entity, allowed_ancestors, limit)


@action
def memory_search(
    state: Any,
    memory: MemoryHandle,
    query: Query,
    top_k: Count = 5,
    filter: Fields | None = None,
    entity: EntityName | None = None,
    allowed_ancestors: EntityNames | None = None,
) -> Result:
    """Entries by their meaning: ``{results: [{record, score, rank}]}``."""
    return memory.backend().search_memory(query, top_k, filter, entity, allowed_ancestors)


MEMORY_ACTIONS: Mapping[str, Action] = {
    "ltm.store": ltm_store,
    "ltm.retrieve": ltm_retrieve,
    "ltm.retrieve_by_entity": ltm_retrieve_by_entity,
    "ltm.delete": ltm_delete,
    "ltm.search": ltm_search,
    "memory.search": memory_search,
}


def register(registry: Any, engine: Any = None) -> None:
    """Register MEMORY_ACTIONS, each also under ``actions.``; the store that they share closes with ``engine``."""
    memory = MemoryHandle()
    bind(registry, MEMORY_ACTIONS, memory=memory)
    close_with(engine, memory.close)
