"""The environment variables and the working directory that a front door resolves its defaults from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DATABASE_VARIABLE = "DATABASE_URL"
"""Names the catalog of the memory store."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment variables and the working directory of a process."""

    environ: Mapping[str, str]
    cwd: Path

    @classmethod
    def current(cls) -> Surroundings:
        """Those of this process, as they are at the time of the call."""
        return cls(os.environ, Path.cwd())
