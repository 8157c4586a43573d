"""A bounded cache of word vectors that evicts the least recently used words."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_WORD_CHARACTERS = 64
"""Longer words (hashes, base64) hardly ever repeat, and would make the memory of the table unbounded."""

_EVICTED_SHARE = 8  # evict an eighth of the table at a time
_NEVER = np.int64(2**63 - 1)  # sorts free slots last in the order of eviction


class WordTable:
    """Words with their vectors and numbers of tokens; thread-safe.

    Memory is ``capacity * dim * 4`` bytes, allocated as the table fills.
    """

    def __init__(self, capacity: int, dim: int) -> None:
        if capacity < 1:
            raise ValueError(f"The capacity of a word table must be at least 1, not {capacity}")
        self._capacity = capacity
        self._vectors = np.empty((capacity, dim), np.float32)
        self._tokens = np.empty(capacity, np.float32)
        self._words = [""] * capacity
        self._slots: dict[str, int] = {}
        self._free = np.arange(capacity)
        self._last_used = np.full(capacity, _NEVER)  # the lookup that last touched each slot
        self._clock = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, word: str) -> bool:
        return word in self._slots

    def lookup(self, words: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]:
        """``(n, dim)`` vectors, ``(n,)`` token counts, and the positions of missing words, whose rows are undefined."""
        with self._lock:
            get = self._slots.get
            slots = np.fromiter((get(word, -1) for word in words), np.intp, len(words))
            known = slots >= 0
            self._clock += 1
            self._last_used[slots[known]] = self._clock
            return self._vectors[slots], self._tokens[slots], np.flatnonzero(~known)

    def insert(self, words: Sequence[str], vectors: NDArray[np.float32], tokens: NDArray[np.float32]) -> None:
        """Add distinct words as far as they fit; words in the table do not change."""
        with self._lock:
            # Another thread may have inserted some of them.
            new = [i for i, word in enumerate(words) if len(word) <= MAX_WORD_CHARACTERS and word not in self._slots]
            new = new[: self._capacity]
            slots = self._free_slots(len(new))
            self._vectors[slots] = vectors[new]
            self._tokens[slots] = tokens[new]
            self._last_used[slots] = self._clock
            for slot, i in zip(slots.tolist(), new, strict=True):
                self._words[slot] = words[i]
                self._slots[words[i]] = slot

    def _free_slots(self, count: int) -> NDArray[np.intp]:
        """``count`` free slots; evicts in blocks, so that partitioning by age is rare."""
        missing = count - len(self._free)
        if missing > 0:
            evict = min(max(missing, self._capacity // _EVICTED_SHARE), len(self._slots))
            oldest = np.argpartition(self._last_used, evict - 1)[:evict]
            for slot in oldest.tolist():
                del self._slots[self._words[slot]]
            self._last_used[oldest] = _NEVER
            self._free = np.concatenate([self._free, oldest])
        slots, self._free = self._free[:count], self._free[count:]
        return slots
