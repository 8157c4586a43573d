"""What a search of memory did, for those who ask."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class MemoryExplanation:
    """What a search did.

    ``words`` are those of the query that were looked for. ``entries`` is how many have text, ``matches`` how many of
    them the filter allows. ``index`` is the kind of the vector index, None if entries were compared one by one, and
    ``unindexed_words`` the number of entries that the index of words does not cover. ``by_words`` and ``by_meaning``
    are what each search has found, ``candidates`` both together, ``dropped`` those that the catalog has not confirmed.
    ``seconds`` are by phase.
    """

    mode: str
    words: list[str] = field(default_factory=list)
    entries: int = 0
    matches: int = 0
    index: str | None = None
    unindexed_words: int = 0
    by_words: int = 0
    by_meaning: int = 0
    candidates: int = 0
    dropped: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def hide_tenant(self) -> None:
        """Leave out what counts entries of the whole tenant, of which a store bound below it must not learn."""
        self.entries, self.unindexed_words = self.matches, 0

    def to_dict(self) -> dict[str, Any]:
        """As ``memory search --explain --json`` prints it."""
        return asdict(self)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of a ``with`` block to ``seconds[phase]``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started


def added_up(explanations: Sequence[MemoryExplanation]) -> MemoryExplanation | None:
    """One explanation of searches of several tenants for the same words; None of none."""
    if not explanations:
        return None
    total = MemoryExplanation(explanations[0].mode, explanations[0].words)
    for each in explanations:
        for name in ("entries", "matches", "unindexed_words", "by_words", "by_meaning", "candidates", "dropped"):
            setattr(total, name, getattr(total, name) + getattr(each, name))
        total.index = total.index or each.index
        for phase, seconds in each.seconds.items():
            total.seconds[phase] = total.seconds.get(phase, 0.0) + seconds
    return total
