"""Pages of memory entries, and the cursors that lead from one to the next."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Generic, TypeVar

from driftline.storage.errors import UsageError

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Page(Generic[_Entry]):
    """Some entries of many. ``total_count`` counts all pages; ``cursor`` leads to the next one, if ``has_more``."""

    entries: tuple[_Entry, ...]
    total_count: int
    has_more: bool
    cursor: str | None


class Cursor(tuple[int, str]):
    """The owner and the key of the last entry of a page; as text it says nothing to people and fits into a URL."""

    __slots__ = ()

    @classmethod
    def after(cls, owner: int, key: str) -> Cursor:
        """The cursor behind this entry."""
        return cls((owner, key))

    @classmethod
    def parse(cls, text: str | None) -> Cursor | None:
        """What ``str`` wrote. Raises UsageError."""
        if text is None:
            return None
        try:
            owner, key = json.loads(base64.urlsafe_b64decode(text.encode()))
        except (ValueError, TypeError, binascii.Error):
            raise UsageError("This is not a cursor", repr(text[:80]), "Use that of the page before.") from None
        if not isinstance(owner, int) or not isinstance(key, str):
            raise UsageError("This is not a cursor", repr(text[:80]), "Use that of the page before.")
        return cls((owner, key))

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(list(self)).encode()).decode()
