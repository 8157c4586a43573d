"""How far random tests go: by default little, many times as far under ``make soak``."""

from __future__ import annotations

import os

_FACTOR = int(os.environ.get("DRIFTLINE_SOAK_FACTOR", "1"))


def examples(number: int) -> int:
    """``number``, or many times as many."""
    return number * _FACTOR
