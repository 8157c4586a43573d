"""Check the arguments of the memory store's API of dictionaries; errors include the argument's name."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from driftline.storage.entities import Entity, EntityName
from driftline.storage.errors import BadEntry, UsageError
from driftline.storage.memory.memory_indexes import KeyRange
from driftline.storage.option_table import nearest_name

MAX_AGE_SECONDS = 10**9
_SHOWN_CHARACTERS = 80
_OF_ENTRIES = frozenset({"key", "metadata", "expires_at", "items"})
"""Arguments whose errors are of kind ``bad_entry``."""


def checked_arguments(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Check a call's arguments against ARGUMENTS, by name.

    Raises UsageError; the message includes the invalid argument's name.
    """
    known = [*signature.parameters][1:]
    if unknown := [name for name in kwargs if name not in known]:
        raise UsageError("Unknown argument", unknown[0][:_SHOWN_CHARACTERS], nearest_name(unknown[0], known))
    try:
        given = signature.bind(None, *args, **kwargs).arguments
    except TypeError as error:
        raise UsageError(f"Invalid arguments ({str(error)[:200]})", "", "See the Python reference.") from None
    given.pop("self")
    for name, value in given.items():
        optional = signature.parameters[name].default is None
        if not (value is None and optional):
            given[name] = checked_argument(name, value)
    return given


def checked_argument(name: str, value: Any) -> Any:
    """Return ``value`` converted to the type of an argument. Raises UsageError or BadEntry."""
    read, expected = ARGUMENTS[name]
    try:
        return read(value)
    except (TypeError, ValueError, OverflowError):
        kind = BadEntry if name in _OF_ENTRIES else UsageError
        raise kind(f"{name} must be {expected}, not {shortened(value)}") from None


def shortened(value: object) -> str:
    """Format ``value`` for an error message, shortened."""
    try:
        text = repr(value)
    except Exception as error:  # repr() of a caller's object may raise anything
        return f"{type(value).__name__} whose repr() raises {type(error).__name__}"
    return text.encode(errors="backslashreplace").decode()[:_SHOWN_CHARACTERS]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if "\0" in value:
        raise ValueError
    value.encode()  # rejects unpaired surrogates
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _range(value: Any) -> KeyRange:
    low, high = _list(value)
    return None if low is None else _text(low), None if high is None else _text(high)


def _revision(value: Any) -> int:
    if not 0 <= _count(value) < 2**63:
        raise ValueError
    return int(value)


def _number(low: float, high: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool | str | bytes) or not low <= float(value) <= high:  # false for NaN
            raise ValueError
        return float(value)

    return read


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return value


def _list(value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    return list(value)


def _texts(value: Any) -> list[str]:
    return [_text(each) for each in _list(value)]


def _ids(value: Any) -> dict[str, str]:
    return {_text(level): _text(name) for level, name in _mapping(value).items() if name is not None}


def _entity(value: Any) -> EntityName:
    if isinstance(value, Entity):
        return value
    if isinstance(value, str):
        return _text(value)
    kind, name = _texts(value)
    return kind, name


def _entities(value: Any) -> list[EntityName]:
    return [_entity(each) for each in _list(value)]


def _moment(value: Any) -> datetime:
    found = datetime.fromisoformat(value.isoformat() if isinstance(value, date) else _text(value).strip())
    found = found if found.utcoffset() is not None else found.replace(tzinfo=UTC)
    found.astimezone(UTC)  # overflows if the time is too early or late to be stored
    return found


_AN_ENTITY = "an entity: its path type:id/type:id, or the pair of its type and id"
_FIELDS = (_mapping, "a mapping")
_TEXT = (_text, "text without NUL and unpaired surrogates")
_FLAG = (_flag, "True or False")
_COUNT = (_count, "an integer")
ARGUMENTS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "key": (_text, "text without control characters"),
    "value": (lambda value: value, ""),  # the store checks that it is JSON
    **dict.fromkeys(("entity", "within", "parent", "entity_path", "after"), (_entity, _AN_ENTITY)),
    **dict.fromkeys(("metadata", "metadata_filter", "filter"), _FIELDS),
    **dict.fromkeys(("entity_type", "entity_id", "query", "mode", "cursor", "group_by"), _TEXT),
    **dict.fromkeys(("include_descendants", "explain", "cascade", "dry_run"), _FLAG),
    **dict.fromkeys(("limit", "offset", "top_k", "max_deltas"), _COUNT),
    "allowed_ancestors": (_entities, "a list of entities"),
    "expires_at": (_moment, "a datetime, or a date or time in ISO 8601; without a zone it is UTC"),
    "items": (_list, "a list of mappings"),
    "keys": (_texts, "a list of keys"),
    "max_age_seconds": (_number(0, MAX_AGE_SECONDS), f"a number from 0 to {MAX_AGE_SECONDS:,}"),
    "max_distance": (_number(0, 2), "a number from 0 to 2"),
    "parents": (_ids, "a mapping of levels to ids"),
    "range": (_range, "the first key and an exclusive upper bound: [low, high]"),
    "rev": (_revision, "a revision: an entry's rev"),
}
"""Maps argument names to their check and the description of valid values for errors."""
