"""How often each client may ask: a token bucket for each, of which a bounded number is remembered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import LRUCache

MAX_CLIENTS = 10_000


@dataclass(slots=True)
class RateLimit:
    """Lets each client make ``per_second`` requests on average, and ``burst`` at once. For one event loop."""

    per_second: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _left: LRUCache[str, tuple[float, float]] = field(default_factory=lambda: LRUCache(MAX_CLIENTS))
    """For each client, the requests that were left, and when."""

    def seconds_to_wait(self, client: str) -> int:
        """0 if ``client`` may ask now, which counts; else the whole seconds until it may."""
        now = self.clock()
        left, then = self._left.get(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.per_second)
        allowed = left >= 1.0
        self._left[client] = (left - 1.0 if allowed else left, now)
        return 0 if allowed else max(1, math.ceil((1.0 - left) / self.per_second))
