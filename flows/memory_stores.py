"""The memory stores of the servers: one for each boundary that asks, bound to it, a bounded number at a time.

Servers search memory in another process, as they search lines: a damaged file of a table can end the process that reads
it. So what they hold of a memory is where it is, which another process can be told.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from driftline.flows.config.memory_settings import MemoryConfiguration, find_memory
from driftline.storage.entities import Entity
from driftline.storage.errors import NotIndexed
from driftline.storage.memory.entries import MemoryEntry
from driftline.storage.memory.search import MemoryHits
from driftline.storage.memory.store import MemoryStore
from driftline.storage.workspace.workspace import Workspace

MAX_STORES = 16
"""Each has connections to the catalog and threads of its own."""


@dataclass(slots=True)
class _Shared:
    store: MemoryStore
    users: int = 0


@dataclass(slots=True)
class MemoryStores:
    """Opens stores by ``find``, which returns what opens the store of a boundary, or None where there is no memory."""

    find: Callable[[Entity | None], Callable[[], MemoryStore] | None]
    _open: OrderedDict[Entity | None, _Shared] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def bound_to(self, boundary: Entity | None) -> Iterator[MemoryStore]:
        """The store that sees nothing beyond ``boundary``. Raises NotIndexed where there is no memory."""
        with self._lock:
            shared = self._open.get(boundary) or self._add(boundary)
            self._open.move_to_end(boundary)
            shared.users += 1
        try:
            yield shared.store
        finally:
            with self._lock:
                shared.users -= 1

    def close(self) -> None:
        """Close all stores."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].store.close()

    def _add(self, boundary: Entity | None) -> _Shared:
        opened = self.find(boundary)
        if opened is None:
            raise no_memory()
        for other in [name for name, shared in self._open.items() if not shared.users]:
            if len(self._open) < MAX_STORES:
                break
            self._open.pop(other).store.close()
        return self._open.setdefault(boundary, _Shared(opened()))


def no_memory() -> NotIndexed:
    """What a search of memory is answered with where there is none."""
    return NotIndexed("The workspace holds no memory", "", "Store some: driftline memory put")


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the memory of a server is: in ``workspace``, or where ``configuration`` says."""

    workspace: Workspace
    configuration: MemoryConfiguration


_STORES: dict[tuple[str, str], MemoryStores] = {}
_LOCK = threading.Lock()


def search_memory(
    workspace: Workspace, settings: MemoryConfiguration, within: Entity | None, query: str, **options: Any
) -> MemoryHits[MemoryEntry]:
    """Search a memory as ``MemoryStore.search_memory`` does, in a store of this process, which stays open.

    Raises NotIndexed where there is no memory, and what the store raises.
    """
    key = (workspace.objects.uri, settings.model_dump_json())
    with _LOCK:
        stores = _STORES.setdefault(key, MemoryStores(partial(find_memory, settings, workspace)))
    with stores.bound_to(within) as store:
        return store.search_memory(query, **options)
