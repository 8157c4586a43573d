"""Pages of memory entries, and the cursors that continue from one page to the next."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Generic, TypeVar

from driftline.storage.errors import UsageError

MAX_COUNT = 2**62
"""More entries than databases count: a greater limit or offset means this one."""

_Entry = TypeVar("_Entry")
_SURROGATE = re.compile("[\x00\ud800-\udfff]")


def check_count(value: object, what: str) -> int:
    """``value``, a limit or an offset, as databases can take it. Raises UsageError."""
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"{what} must be a whole number, and not negative")
    return min(value, MAX_COUNT)


@dataclass(frozen=True, slots=True)
class Page(Generic[_Entry]):
    """A page of entries. ``total_count`` covers all pages; ``cursor`` continues with the next page if ``has_more``."""

    entries: tuple[_Entry, ...]
    total_count: int
    has_more: bool
    cursor: str | None


class Cursor(tuple[int, str]):
    """``(owner id, key)`` of the last entry of a page; its text is opaque and safe in URLs."""

    __slots__ = ()

    @classmethod
    def after(cls, owner: int, key: str) -> Cursor:
        """The cursor that continues after this entry."""
        return cls((owner, key))

    @classmethod
    def parse(cls, text: str | None) -> Cursor | None:
        """The cursor of a text from ``str(cursor)``, or None for None. Raises UsageError."""
        if text is None:
            return None
        invalid = UsageError("The cursor is not valid", repr(text[:80]), "Use the cursor of the previous page.")
        try:
            owner, key = json.loads(base64.urlsafe_b64decode(text.encode()))
        except (ValueError, TypeError, binascii.Error):
            raise invalid from None
        if not isinstance(owner, int) or not isinstance(key, str) or abs(owner) > MAX_COUNT or _SURROGATE.search(key):
            raise invalid
        return cls((owner, key))

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(list(self)).encode()).decode()
