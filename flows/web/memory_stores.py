"""The memory stores of the web server: one for each boundary that asks, bound to it, a bounded number at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driftline.storage.entities import Entity
from driftline.storage.errors import NotIndexed

if TYPE_CHECKING:
    from driftline.storage.memory.store import MemoryStore

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
