"""Read and write JSON records as dataclasses, with their types checked.

Pydantic would do the same, but takes longer to import than a search takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

_Record = TypeVar("_Record")


def to_json(record: object, *, compact: bool = False) -> bytes:
    """Return a dataclass as JSON, indented unless it is ``compact``."""
    return orjson.dumps(record, option=None if compact else orjson.OPT_INDENT_2)


def from_json(kind: type[_Record], data: bytes) -> _Record:
    """Parse a dataclass; unknown keys are ignored. Raises ValueError if ``data`` is none.

    Fields are of the types of JSON, ``datetime``, ``Literal``, ``Any``, dataclasses, and ``tuple``, ``Mapping`` and
    ``| None`` of these.
    """
    record: _Record = _checked(kind, orjson.loads(data))
    return record


def _checked(kind: Any, value: Any) -> Any:
    """Return a ``value`` of JSON as a ``kind``. Raises ValueError if it is none."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or (origin is Literal and value in args):
        return value
    if origin in (Union, UnionType):
        return None if value is None and NoneType in args else _checked(args[0], value)
    if origin is tuple and isinstance(value, list):
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_checked(each, item) for each, item in zip(kinds, value, strict=True))
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _checked(args[1], item) for key, item in value.items()}
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        known = {name: _checked(each, value[name]) for name, each in _fields(kind).items() if name in value}
        try:
            return kind(**known)
        except TypeError as error:  # a field is missing
            raise ValueError(f"it is not a {kind.__name__} ({error})") from error
    if kind is datetime and isinstance(value, str):
        return datetime.fromisoformat(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{value!r:.100} is not of the type {kind}")
    return value


@cache
def _fields(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}
