"""The environment variables and the working directory that a front door resolves its defaults from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "DRIFTLINE_HOME"
"""Names the folder of the workspaces that are called by a plain name."""
DATABASE_VARIABLE = "DATABASE_URL"
SERVER_VARIABLE = "DRIFTLINE_SERVER"
"""The URL of the web server that searches ask, and that reports of flows lead to."""
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

    @property
    def workspaces_home(self) -> str:
        """Where the plain names of workspaces lead: DRIFTLINE_HOME, else the user's data folder (XDG)."""
        data = self.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return self.environ.get(HOME_VARIABLE) or f"{data}/driftline/workspaces"
