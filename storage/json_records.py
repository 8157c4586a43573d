"""Read and write JSON records as dataclasses, with their types checked.

Every command reads records first, and msgspec is imported much sooner than pydantic.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any, TypeVar

import msgspec.json

_Record = TypeVar("_Record")


def to_json(record: object, *, compact: bool = False) -> bytes:
    """Return a dataclass as JSON, indented unless it is ``compact``."""
    data = msgspec.json.encode(record, enc_hook=_plain)
    return data if compact else msgspec.json.format(data)


def _plain(value: Any) -> Any:
    """Return NumPy's numbers, subclasses of built-in types and paths as what JSON knows. Raises TypeError."""
    if isinstance(value, datetime):
        return value.isoformat()
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value.item() if hasattr(value, "item") else os.fspath(value)


def _time(kind: Any, value: Any) -> Any:
    """Return an ISO 8601 text as a subclass of ``datetime``, such as that of a shifted clock."""
    return kind.fromisoformat(value)


def from_json(kind: type[_Record], data: bytes) -> _Record:
    """Parse a dataclass; unknown keys are ignored.

    Raises:
        ValueError: if ``data`` is not such a record.
    """
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_time)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
