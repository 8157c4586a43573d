"""Whether others on this machine can read a folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def only_owner_reads(folder: str) -> bool:
    """Whether modes keep group and others from reading ``folder``, its own or those of a folder above it."""
    place = Path(os.path.realpath(folder))
    try:
        own = place.stat().st_mode
        above = [parent.stat().st_mode for parent in place.parents]
    except OSError:
        return False
    others = own & stat.S_IROTH and all(mode & stat.S_IXOTH for mode in above)
    group = own & stat.S_IRGRP and all(mode & (stat.S_IXGRP | stat.S_IXOTH) for mode in above)
    return not others and not group
