"""Watches how many deltas the indexes of memory have, so that a program can ask for a compaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from driftline.storage.entities import Entity
from driftline.storage.memory.index import MemoryIndex
from driftline.storage.objects.store import ObjectStore


@dataclass(slots=True)
class DeltaWatch:
    """Calls ``tell`` with a tenant and its deltas when its index has more than ``threshold``.

    Every flush adds a delta to the index of its tenant, so no index below has more. Counting them lists a directory,
    which happens after as many flushes of this process as the threshold has, and in ``look``.
    """

    objects: ObjectStore
    threshold: int
    tell: Callable[[Entity, int], None]
    _flushes: Counter[Entity] = field(default_factory=Counter)

    def flushed(self, tenant: Entity) -> None:
        """Take note of a flush. Raises StorageError."""
        self._flushes[tenant] += 1
        if self._flushes[tenant] > self.threshold:
            self._count(tenant)

    def look(self) -> None:
        """Count the deltas of every tenant that was flushed since they were counted last. Raises StorageError."""
        for tenant in [tenant for tenant, flushes in self._flushes.items() if flushes]:
            self._count(tenant)

    def _count(self, tenant: Entity) -> None:
        self._flushes[tenant] = 0
        deltas = len(MemoryIndex(self.objects, tenant.directory).log().deltas)
        if deltas > self.threshold:
            self.tell(tenant, deltas)
