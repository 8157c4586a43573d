"""Explain a search: its strategy, counts and times by phase."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Explanation:
    """The figures of a search.

    ``lines`` is the number of lines, ``matches`` the number that its filter allows, ``examined`` the number of compared
    vectors. ``index`` is the kind of the vector index, None if lines were compared one by one.
    ``blocks_without_definitions`` were indexed without looking for any. ``seconds`` are by phase.
    """

    mode: str
    strategy: str
    lines: int = 0
    matches: int = 0
    examined: int = 0
    index: str | None = None
    blocks: int = 0
    blocks_without_definitions: int = 0
    candidates: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Like ``search --explain --json`` prints it."""
        return {**asdict(self), "hit_rate": self.matches / self.lines if self.lines else 0.0}

    def timed(self, phase: str) -> _Timer:
        """Add the time of a ``with`` block to ``seconds[phase]``."""
        return _Timer(self.seconds, phase)


@dataclass(slots=True)
class _Timer:
    seconds: dict[str, float]
    phase: str
    started: float = 0.0

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + time.perf_counter() - self.started
