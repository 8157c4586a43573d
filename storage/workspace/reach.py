"""Which sources a reader may look at itself, beyond what the workspace says of them (docs: "Threat model")."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """What a workspace says of its sources may come from somebody else, so nothing is contacted for that alone.

    Remote sources are read only at or below one of ``places``, the URIs and folders that the caller has named; local
    ones also at or below ``folder``, and anywhere if that is None.
    """

    places: tuple[str, ...] = ()
    folder: str | None = None

    def allows(self, uri: str) -> bool:
        """Whether the source at ``uri``, as its record has it, may be read. Contacts nothing, not even a disk."""
        is_local = "://" not in uri and "::" not in uri
        if is_local and self.folder is None:
            return True
        if is_local and os.path.normpath(uri) != uri:
            return False
        places = self.places if self.folder is None or not is_local else (*self.places, self.folder)
        return any(uri == place or uri.startswith(f"{place.rstrip('/')}/") for place in places)


LOCAL = Reach()
"""All local sources, and no remote ones."""
