"""The number of examples in random tests: small by default, much larger under ``make soak``."""

from __future__ import annotations

import os

_FACTOR = int(os.environ.get("DRIFTLINE_SOAK_FACTOR", "1"))


def examples(number: int) -> int:
    """Return ``number``, multiplied under ``make soak``."""
    return number * _FACTOR
