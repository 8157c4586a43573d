"""Convert the arguments of actions from template values to their declared types; errors name the argument.

An action declares its arguments as annotations that contain an ``ArgumentType``:
``top_k: Count = 10``, ``paths: Names | None = None``.
``Parameters.of(action).read(positional, named)`` then returns its keyword arguments:

- scalars are converted to text where text is expected, and text to numbers, booleans and times;
- JSON text is parsed where a list or a mapping is expected;
- None and blank text select an optional argument's default, unless its type is ``Anything``;
- positional arguments fill the declared arguments in order;
- the engines' own arguments (``ENGINE_ARGUMENTS``, names that start with ``_``, objects that are not data) are dropped;
  any other unknown name is an error that suggests the closest known name.

Parameters without one (``state``, handles) are not arguments: ``read`` passes them on by name.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from numbers import Number
from types import MappingProxyType
from typing import Annotated, Any, Self, TypeAlias, get_args, get_type_hints

from driftline.flows.memory_arguments import shortened
from driftline.storage.defaults import Mode
from driftline.storage.errors import UsageError
from driftline.storage.option_table import Option, nearest_name

ENGINE_ARGUMENTS = frozenset(
    {"state", "engine", "node", "node_name", "graph", "config", "parallel_results", "run_id", "thread_id"}
    | {"checkpoint", "checkpoint_dir", "checkpointer"}
)
"""Arguments that engines pass to every action in addition to its own."""
MAX_NUMBER = 2**31 - 1
"""Limit of integer arguments: no search returns more results."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}(\.0*)?")
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")
_FLAGS: Mapping[str, bool] = MappingProxyType(
    dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
)


class InvalidArgument(ValueError):
    """An argument rejects this value; the message describes valid values: "must be ..."."""


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """The type of an argument. ``read`` converts a value or raises InvalidArgument. If ``keeps_blank`` is set, blank
    text is a value.
    """

    read: Callable[[object], Any]
    keeps_blank: bool = False


@dataclass(frozen=True, slots=True)
class Parameters:
    """An action's declared arguments, in order, and its other parameters."""

    kinds: Mapping[str, ArgumentType]
    required: frozenset[str]
    others: frozenset[str]

    @classmethod
    def of(cls, action: Callable[..., Any]) -> Self:
        """Return the parameters that the annotations of ``action`` declare."""
        hints = get_type_hints(action, include_extras=True)
        parameters = inspect.signature(action).parameters
        found = {name: _kind_in(hints.get(name)) for name in parameters}
        kinds = {name: kind for name, kind in found.items() if kind is not None}
        required = {name for name in kinds if parameters[name].default is inspect.Parameter.empty}
        return cls(kinds, frozenset(required), frozenset(parameters) - set(kinds))

    def read(self, positional: Sequence[object], named: Mapping[str, object]) -> dict[str, Any]:
        """Return a call's keyword arguments. Raises UsageError; the message lists every invalid argument."""
        given, problems = self._named(positional, named)
        result: dict[str, Any] = {name: value for name, value in named.items() if name in self.others}
        for name, kind in self.kinds.items():
            value = _plain(given.get(name))
            if name not in given or (_is_blank(value, name in self.required) and not kind.keeps_blank):
                if name in self.required:
                    problems.append(f"{name} is missing")
                continue
            try:
                result[name] = kind.read(value)
            except InvalidArgument as error:
                problems.append(f"{name} {error}, not {shortened(value)}")
        if problems:
            raise UsageError("; ".join(problems))
        return result

    def _named(self, positional: Sequence[object], named: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
        """Return the arguments keyed by name, and errors for unknown names."""
        given = dict(zip(self.kinds, positional, strict=False))
        problems = [f"{name} is given twice" for name in given if name in named]
        if len(positional) > len(self.kinds):
            problems.append(f"{len(positional)} positional arguments given, but there are only {len(self.kinds)}")
        for name, value in named.items():
            if name in self.kinds:
                given[name] = value
            elif name not in self.others and not _is_of_the_engine(name, value):
                problems.append(self._unknown(name))
        return given, problems

    def _unknown(self, name: str) -> str:
        advice = nearest_name(name.strip("_"), [*self.kinds])
        return f"Unknown argument {shortened(name)}: {advice[0].lower()}{advice[1:].rstrip('.')}"


def _kind_in(hint: Any) -> ArgumentType | None:
    """Return the type in an annotation, even inside ``... | None``."""
    own = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, ArgumentType)), None)
    return own or next((kind for each in get_args(hint) if (kind := _kind_in(each)) is not None), None)


def _plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays as Python's, and sets and generators as lists."""
    if isinstance(value, Set | Iterator):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _is_blank(value: object, is_required: bool) -> bool:
    """Return whether ``value`` is None or optional blank text; required arguments leave it to their type."""
    return value is None or (not is_required and isinstance(value, str) and not value.strip())


def _is_of_the_engine(name: str, value: object) -> bool:
    data = (str, bytes, Number, list, tuple, Set, Mapping, date, time, os.PathLike)
    is_data = value is None or isinstance(value, data) or hasattr(value, "tolist")
    return name in ENGINE_ARGUMENTS or name.startswith("_") or not is_data


# -- text ------------------------------------------------------------------------------------


def text(value: object) -> str:
    """Return text, a path, or a scalar in YAML's spelling. Raises InvalidArgument."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, date | time):
        value = value.isoformat()
    elif isinstance(value, int | float):
        try:
            value = str(value)
        except ValueError as error:
            raise InvalidArgument("must be text") from error
    if not isinstance(value, str):
        raise InvalidArgument("must be text")
    if _UNUSABLE.search(value):
        raise InvalidArgument("must not contain NUL or unpaired surrogates")
    return value


def name(value: object) -> str:
    """Return non-empty text. Raises InvalidArgument."""
    found = text(value)
    if not found:
        raise InvalidArgument("must not be empty")
    return found


def query(value: object) -> str:
    """Return non-blank text. Raises InvalidArgument."""
    found = text(value)
    if not found.strip():
        raise InvalidArgument("must not be blank")
    return found


def names(value: object) -> list[str]:
    """Return a list of names from one name, a list, or a list as JSON text. Raises InvalidArgument."""
    value = _parsed(value, list)
    if isinstance(value, Mapping):
        raise InvalidArgument("must be a name or a list of names")
    return [name(each) for each in value] if isinstance(value, list | tuple) else [name(value)]


def nonempty_names(value: object) -> list[str]:
    """Like ``names``, but require at least one. Raises InvalidArgument."""
    found = names(value)
    if not found:
        raise InvalidArgument("must list at least one")
    return found


def version(value: object) -> str:
    """Parse a version: numbers separated by dots. Raises InvalidArgument."""
    found = text(value).strip()
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", found):
        raise InvalidArgument("must be a version such as 1.5.1")
    return found


# -- numbers, booleans, times ----------------------------------------------------------------


def whole(at_least: int) -> Callable[[object], int]:
    """Return a parser for integers from ``at_least`` to MAX_NUMBER, given as numbers or as text."""

    def read(value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value.strip().partition(".")[0])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument("must be an integer")
        if not at_least <= value <= MAX_NUMBER:
            raise InvalidArgument(f"must be from {at_least} to {MAX_NUMBER:,}")
        return value

    return read


def real(at_least: float, at_most: float = math.inf, *, above: bool = False) -> Callable[[object], float]:
    """Return a parser for finite numbers within bounds, or their text; ``above`` excludes the lower bound."""
    low = f"more than {at_least:g}" if above else f"at least {at_least:g}"
    expected = f"a number of {low}" if at_most == math.inf else f"a number from {at_least:g} to {at_most:g}"

    def read(value: object) -> float:
        try:
            found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            found = math.nan
        if not (math.isfinite(found) and at_least <= found <= at_most) or (above and found == at_least):
            raise InvalidArgument(f"must be {expected}")
        return found

    return read


def flag(value: object) -> bool:
    """Parse a boolean, which may also be given as text or as a number. Raises InvalidArgument."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in _FLAGS:
        return _FLAGS[value.strip().lower()]
    raise InvalidArgument("must be true or false")


def moment(value: object) -> datetime:
    """Parse a timestamp and return it with its time zone (default: UTC); a date means midnight.

    Raises InvalidArgument.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError as error:
            raise InvalidArgument("must be a date or a time in ISO 8601") from error
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise InvalidArgument("must be a date or a time in ISO 8601")
    return value if value.utcoffset() is not None else value.replace(tzinfo=UTC)


# -- mappings and entities -------------------------------------------------------------------


def fields(value: object) -> Mapping[str, Any]:
    """Return a mapping; a string is parsed as a JSON object. Raises InvalidArgument."""
    found = _parsed(value, dict)
    if not isinstance(found, Mapping):
        raise InvalidArgument("must be a mapping, or a JSON object as text")
    return found


def entity(value: object) -> str | tuple[str, str]:
    """Parse an entity: a path, a pair ``(type, id)``, or such a pair as JSON text. Raises InvalidArgument."""
    value = _parsed(value, list)
    if not isinstance(value, list | tuple):
        return name(value)
    if len(value) != 2:
        raise InvalidArgument("must be an entity: type:id, a path of these, or the pair [type, id]")
    return name(value[0]), name(value[1])


def entities(value: object) -> list[str | tuple[str, str]]:
    """Parse one entity or a list of entities. Raises InvalidArgument."""
    value = _parsed(value, list)
    if not isinstance(value, list | tuple) or _is_pair(value):
        return [entity(value)]
    return [entity(each) for each in value]


def choice(*allowed: str) -> Callable[[object], str]:
    """Return a parser that accepts only these words, ignoring case. It raises InvalidArgument for other values."""

    def read(value: object) -> str:
        found = value.strip().lower() if isinstance(value, str) else ""
        if found not in allowed:
            raise InvalidArgument(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return found

    return read


def _is_pair(value: Sequence[object]) -> bool:
    """Return whether a list is an entity's type and id rather than two entity paths, which contain colons."""
    return len(value) == 2 and isinstance(value[0], str) and not any(c in value[0] for c in ":[")


def _parsed(value: object, kind: type) -> object:
    """Parse JSON text if the result is of type ``kind``; return anything else unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith("[" if kind is list else "{"):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, kind) else value


# -- what actions declare --------------------------------------------------------------------

Anything: TypeAlias = Annotated[Any, ArgumentType(lambda value: value, keeps_blank=True)]
Text: TypeAlias = Annotated[str, ArgumentType(text)]
Name: TypeAlias = Annotated[str, ArgumentType(name)]
Names: TypeAlias = Annotated[list[str], ArgumentType(names)]
SomeNames: TypeAlias = Annotated[list[str], ArgumentType(nonempty_names)]
Query: TypeAlias = Annotated[str, ArgumentType(query)]
Version: TypeAlias = Annotated[str, ArgumentType(version)]
Count: TypeAlias = Annotated[int, ArgumentType(whole(0))]
Distance: TypeAlias = Annotated[float, ArgumentType(real(0, 2))]
Fraction: TypeAlias = Annotated[float, ArgumentType(real(0, 1))]
Seconds: TypeAlias = Annotated[float, ArgumentType(real(0, above=True))]
Flag: TypeAlias = Annotated[bool, ArgumentType(flag)]
Moment: TypeAlias = Annotated[datetime, ArgumentType(moment)]
Fields: TypeAlias = Annotated[Mapping[str, Any], ArgumentType(fields)]
SearchMode: TypeAlias = Annotated[Mode, ArgumentType(choice(*get_args(Mode)))]
OneEntity: TypeAlias = Annotated[str | tuple[str, str], ArgumentType(entity)]
Entities: TypeAlias = Annotated[list[str | tuple[str, str]], ArgumentType(entities)]

# -- the options of a search -----------------------------------------------------------------


def parameters(options: Mapping[str, Option], *first: str) -> list[inspect.Parameter]:
    """Return a request's options as action parameters, starting with those in ``first``.

    Options that are not given are omitted.
    """
    ordered = [*(options[name] for name in first), *(row for name, row in options.items() if name not in first)]
    return [row.keyword(Annotated[Any, ArgumentType(_reader(row))], name=row.argument) for row in ordered]


def _reader(row: Option) -> Callable[[object], Any]:
    if row.is_list:
        return entities if row.is_entity else names
    if row.choices:
        return choice(*row.choices)
    if row.type is bool:
        return flag
    if row.bounds is None:
        return name
    return whole(int(row.bounds[0])) if row.type is int else real(*row.bounds)
