"""Cache the memory stores that servers open: at most MAX_STORES, each bound to one boundary.

Servers search memory, like lines, in another process, because a damaged table file can crash its reader. They therefore
hold only the memory's location, and pass it to that process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from driftline.flows.config.memory_settings import MemoryConfiguration, find_memory
from driftline.storage.entities import INDEX_LEVELS, Boundary, Entity
from driftline.storage.errors import NotIndexed, UsageError
from driftline.storage.memory.entries import MemoryEntry
from driftline.storage.memory.search import MemoryHits
from driftline.storage.memory.store import MemoryStore
from driftline.storage.workspace.workspace import Workspace

MAX_STORES = 16
"""Each store has its own threads and connections to the catalog."""


@dataclass(slots=True)
class _Shared:
    store: MemoryStore | None = None
    users: int = 0
    opening: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class MemoryStores:
    """Opens and shares memory stores, one per boundary.

    ``find(boundary)`` returns a function that opens the store, or None if there is no memory.
    """

    find: Callable[[Entity | None], Callable[[], MemoryStore] | None]
    _open: OrderedDict[Entity | None, _Shared] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def bound_to(self, boundary: Entity | None) -> Iterator[MemoryStore]:
        """Yield a store restricted to ``boundary``. Raises NotIndexed if there is no memory."""
        with self._lock:
            shared = self._open.setdefault(boundary, _Shared())
            self._open.move_to_end(boundary)
            shared.users += 1
            unused = [name for name, other in self._open.items() if not other.users]
            retired = [self._open.pop(name) for name in unused[: max(0, len(self._open) - MAX_STORES)]]
        try:
            # Opening and closing wait for catalogs, which may be slow: they must not delay searches of other stores.
            _close(retired)
            with shared.opening:
                store = shared.store = shared.store or self._opened(boundary)
            yield store
        finally:
            with self._lock:
                shared.users -= 1

    def close(self) -> None:
        """Close all stores."""
        with self._lock:
            retired = list(self._open.values())
            self._open.clear()
        _close(retired)

    def _opened(self, boundary: Entity | None) -> MemoryStore:
        opened = self.find(boundary)
        if opened is None:
            raise no_memory()
        return opened()


def _close(stores: Iterable[_Shared]) -> None:
    for shared in stores:
        if shared.store is not None:
            shared.store.close()


def no_memory() -> NotIndexed:
    """Return the error for a memory search in a workspace that has no memory."""
    return NotIndexed("The workspace has no memory", "", "Store some: driftline memory put")


@dataclass(frozen=True, slots=True)
class Memory:
    """The location of a server's memory: ``workspace``, or the workspace set in ``configuration``."""

    workspace: Workspace
    configuration: MemoryConfiguration


_STORES: dict[tuple[str, str], MemoryStores] = {}
_LOCK = threading.Lock()


def search_memory(
    workspace: Workspace, settings: MemoryConfiguration, within: Boundary | None, query: str, **options: Any
) -> MemoryHits[MemoryEntry]:
    """Search memory like ``MemoryStore.search_memory``, in a store that stays open in this process.

    Raises NotIndexed without memory, UsageError if the scope is not in the boundary, and the errors of the store.
    """
    top = None if within is None else _top_of(within, options.get("scope"))
    key = (workspace.objects.uri, settings.model_dump_json())
    with _LOCK:
        stores = _STORES.setdefault(key, MemoryStores(partial(find_memory, settings, workspace)))
    with stores.bound_to(top) as store:
        return store.search_memory(query, **options)


def _top_of(within: Boundary, scope: str | None) -> Entity:
    """Return the boundary entity to search: the only one, or the one that contains ``scope``.

    Sources have no memory.
    """
    tops = [top for top in within.tops if top.type != INDEX_LEVELS[-1]]
    if not tops:
        raise NotIndexed("None of the entities that you can access has memory", scope or "", "Request access to one.")
    if len(tops) == 1:
        return tops[0]
    for top in tops:
        if f"{scope}/".startswith(f"{top}/"):
            return top
    known = ", ".join(map(str, tops))
    raise UsageError(
        "Memory can only be searched in one entity at a time", scope or "", f"Specify an entity at or below: {known}."
    )
