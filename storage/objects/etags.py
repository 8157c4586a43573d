"""How a store of the S3 kind wants etags to be spelled in ``If-Match``: quoted, or bare as Ceph's up to version 16."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from obstore.exceptions import BaseError

_STALE = '"00000000000000000000000000000000"'
"""The etag of no object."""


class Etags:
    """The spelling that one store takes: quoted, as HTTP demands, until it shows otherwise."""

    def __init__(self) -> None:
        self._is_bare = False
        self.are_known = False
        """Whether a condition has ever been accepted in this spelling."""

    def spelled(self, etag: str) -> str:
        return etag.strip('"') if self._is_bare else etag

    def learn(self, etag: str, replace: Callable[[str], str]) -> bool:
        """Find the spelling with an object of ``etag``, which ``replace`` replaces if an etag matches.

        False if the store takes neither, or takes a bare etag without comparing it.
        """
        with contextlib.suppress(BaseError):
            replace(etag)
            self.are_known = True
            return True
        bare = etag.strip('"')
        if bare == etag:
            return False
        with contextlib.suppress(BaseError):
            replace(_STALE.strip('"'))
            return False
        with contextlib.suppress(BaseError):
            replace(bare)
            self._is_bare = self.are_known = True
            return True
        return False
