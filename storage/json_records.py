"""Read and write JSON records as type-checked dataclasses.

Every command reads records at startup, and msgspec imports much faster than pydantic.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

import msgspec.json

_Record = TypeVar("_Record")


def to_json(record: object, *, compact: bool = False) -> bytes:
    """Encode a dataclass as JSON, indented unless ``compact`` is set."""
    data = msgspec.json.encode(record, enc_hook=_plain)
    return data if compact else msgspec.json.format(data)


def _plain(value: Any) -> Any:
    """Convert NumPy numbers, subclasses of built-in types, and paths to JSON types. Raises TypeError."""
    if isinstance(value, datetime):
        return value.isoformat()
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value.item() if hasattr(value, "item") else os.fspath(value)


def _time(kind: Any, value: Any) -> Any:
    """Parse an ISO 8601 string as a subclass of ``datetime``, such as a shifted clock's."""
    return kind.fromisoformat(value)


def as_dict(record: object) -> dict[str, Any]:
    """Convert a report to the dictionary that is printed as JSON, with its fields in order.

    A nested record with its own ``to_dict`` is converted by that method. Times are in ISO 8601, and fields that are
    named ``seconds`` or ``..._seconds`` are rounded to milliseconds.
    """
    return {each.name: _as_plain(each.name, getattr(record, each.name)) for each in fields(record)}  # type: ignore[arg-type]


def _as_plain(name: str, value: Any) -> Any:
    if is_dataclass(value):
        return value.to_dict() if hasattr(value, "to_dict") else as_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _as_plain("", each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_plain("", each) for each in value]
    if isinstance(value, float) and name.endswith("seconds"):
        return round(value, 3)
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if isinstance(value, datetime) else value


def from_json(kind: type[_Record], data: bytes) -> _Record:
    """Parse a dataclass; unknown keys are ignored.

    Raises:
        ValueError: if ``data`` is not a valid record.
    """
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_time)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_type(value: object, kind: Any) -> None:
    """Check a JSON value against a type, such as a ``TypedDict``, in which unknown keys are ignored.

    Raises:
        ValueError: if the value is of another type.
    """
    msgspec.convert(value, kind)


def check_times(value: object) -> None:
    """Check that the times in a record have a zone, so that they can be compared, and exist in UTC.

    Raises:
        ValueError: if one does not.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"the time {value} has no zone")
        try:
            value.astimezone(UTC)
        except OverflowError as error:
            raise ValueError(f"the time {value} is out of range") from error
    elif is_dataclass(value) or isinstance(value, Mapping | list | tuple):
        within = (getattr(value, each.name) for each in fields(value)) if is_dataclass(value) else value
        for each in within.values() if isinstance(within, Mapping) else within:
            check_times(each)


MAX_CURSOR_CHARACTERS = 8_192


def encode_cursor(*parts: int | str) -> str:
    """Encode the position of a page as opaque, URL-safe text."""
    return urlsafe_b64encode(to_json(parts, compact=True)).decode().rstrip("=")


def decode_cursor(kind: type[_Record], cursor: object) -> _Record:
    """Decode the parts of ``encode_cursor`` as ``kind``, such as ``tuple[int, str]``.

    Raises:
        ValueError: if anything else is given.
    """
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_CHARACTERS:
        raise ValueError("it is not a cursor")
    return from_json(kind, urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
