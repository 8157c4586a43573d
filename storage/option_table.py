"""Declare each request argument once, with its type, default, limits, names and help.

A request is a frozen dataclass whose fields are made by ``option``. ``Options.of`` returns its table: the command line,
HTTP and MCP servers, actions and configuration build their declarations from it; ``Option.check`` checks a value
regardless of its origin. The module imports no libraries, to keep ``--help`` and ``import driftline`` fast.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from numbers import Integral, Real
from types import UnionType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Union, get_args, get_origin

from driftline.storage.errors import UsageError

INTERFACES = frozenset({"action", "command", "flow", "http"})
"""The interfaces that have the option, in addition to Python."""
MAX_SERVED_NAMES = 100
"""Maximum number of values of one filter that servers accept."""
_T = TypeVar("_T")
_M = TypeVar("_M")
_R = TypeVar("_R")
_P = ParamSpec("_P")
_OPTION = "driftline.option"


_KINDS: Mapping[type, tuple[type, str]] = {
    bool: (Integral, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
}
"""For each option type, the types that are accepted for it, such as NumPy's, and its name in errors."""


@dataclass(frozen=True, slots=True)
class Option:
    """A row of a request's option table: everything an interface needs to declare, check and explain the option.

    ``type`` is the type of one value or, for a list, of its items; ``types`` are all types of a value. ``unset``
    describes the default of an option that may be None. ``guide`` is the part of a guide that explains it. ``bounds``
    limit numbers; servers only accept the narrower ``served`` range. ``group`` is the option's heading in ``--help``.
    ``flag``, ``parameter`` and ``argument`` are the option's names on the command line, in HTTP requests and in
    actions; ``aliases`` are more flags or, if they contain an underscore or capitals, configuration keys. ``choices``
    are the valid values. If a switch is off, the search excludes documents whose paths ``leaves_out`` accepts. A
    setting can have a default in ``driftline.toml``.
    """

    help: str
    name: str = ""
    type: type = str
    types: tuple[Any, ...] = ()
    default: Any = None
    unset: str = ""
    guide: str = ""
    is_list: bool = False
    bounds: tuple[float, float] | None = None
    served: tuple[float, float] | None = None
    group: str = ""
    flag: str = ""
    parameter: str = ""
    argument: str = ""
    aliases: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    leaves_out: Callable[[str], bool] | None = None
    max_characters: int = 4_096
    is_entity: bool = False
    is_setting: bool = False
    only_in: frozenset[str] = INTERFACES

    @property
    def is_switch(self) -> bool:
        """Whether the option is a switch, either on or off."""
        return self.type is bool

    @property
    def description(self) -> str:
        """The help, with the default of an option that may be None."""
        return f"{self.help} Default: {self.unset}." if self.unset else self.help

    @property
    def value_type(self) -> Any:
        """The annotation of a value: a list of strings, one of the choices, or the type."""
        if self.is_list:
            return list[str]
        return Literal[self.choices] if self.choices else self.type

    def limits(self, *, served: bool = False) -> tuple[float | None, float | None]:
        """Return the lowest and the highest number, or None, that the option or, with ``served``, a server accepts."""
        if self.is_switch:
            return None, None
        low, high = (self.served if served else None) or self.bounds or (None, None)
        return low, None if high == math.inf else high

    def keyword(self, annotation: Any, default: Any = None, *, name: str = "") -> inspect.Parameter:
        """Return the option as a keyword-only parameter, called ``name`` if the interface has another name for it."""
        return inspect.Parameter(
            name or self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    def check(self, value: Any) -> None:
        """Raise UsageError if a value has the wrong type, is out of bounds, or is not one of the choices."""
        if value is None and self.default is None:
            return
        if not all(self._is_one(each) for each in (value if self.is_list else (value,))):
            raise UsageError(
                f"{self.name} must be {' or '.join(_KINDS[each][1] for each in self.types)}", repr(value)[:100]
            )
        if self.is_list:
            return
        if self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]:
            low, high = self.bounds
            rule = f"must be between {low:g} and {high:g}"
            if high == math.inf:
                rule = f"must be at least {low:g}" if low else "must not be negative"
            raise UsageError(f"{self.name} {rule}", str(value))
        if self.choices and self.type is str and value not in self.choices:
            raise UsageError(f"Unknown {self.name}", str(value), f"Use one of {', '.join(self.choices)}.")

    def _is_one(self, value: Any) -> bool:
        """Return whether ``value`` has the type of one value; 0 and 1 are accepted as switches, but booleans are not
        numbers.
        """
        if self.is_entity and isinstance(value, (tuple, list)):  # a (type, id) pair
            return all(isinstance(part, str) for part in value)
        if isinstance(value, bool):
            return self.is_switch
        return any(isinstance(value, _KINDS[each][0]) for each in self.types)


def listed(name: str, given: Any) -> tuple[Any, ...] | None:
    """Return the values of a list; text or a path is one value, and paths become text. Raises UsageError."""
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        given = (given,)
    if not isinstance(given, Iterable) or isinstance(given, Mapping | bytes):
        raise UsageError(f"{name} must be a list", repr(given)[:100])
    return tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in given)


def path_or_uri(what: str, given: object) -> str:
    """Return a path or a URI as text. Raises UsageError for anything else; the message includes ``what``."""
    found = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(found, str) or "\0" in found:
        raise UsageError(f"{what} must be one path or URI", repr(given)[:100])
    return found


MAX_SECONDS = 1e10
"""About 300 years; dates cannot express an age that is much longer."""


def duration(name: str, seconds: float) -> timedelta:
    """Return ``seconds`` as a duration. Raises UsageError if they are negative, not finite, or above MAX_SECONDS."""
    if not 0 <= seconds <= MAX_SECONDS:
        raise UsageError(f"{name} is negative or too long", f"{seconds:g} s", f"Pass 0 to {MAX_SECONDS:g} seconds.")
    return timedelta(seconds=seconds)


def option(default: _T, help: str, **row: Any) -> _T:
    """Return the dataclass field for an option: its default, its help, and more fields of ``Option``."""
    declared: Any = field(default=default, metadata={_OPTION: Option(help, default=default, **row)})
    found: _T = declared
    return found


def given_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Remove None and empty lists from ``given``: interfaces pass them for omitted options."""
    return {name: value for name, value in given.items() if value not in (None, [], ())}


class Options(Mapping[str, Option]):
    """Options of a request, keyed by name, in the order that interfaces show them."""

    def __init__(self, rows: Mapping[str, Option]) -> None:
        self._rows = dict(rows)

    @classmethod
    def of(cls, model: type) -> Self:
        """Return a dataclass's options, own fields before inherited ones."""
        inherited = {each.name for base in model.__mro__[1:] if is_dataclass(base) for each in fields(base)}
        ordered = sorted(fields(model), key=lambda each: each.name in inherited)
        return cls({each.name: _named(each) for each in ordered if _OPTION in each.metadata})

    def __getitem__(self, name: str) -> Option:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __or__(self, others: Mapping[str, Option]) -> Self:
        return type(self)(self._rows | dict(others))

    def offered_in(self, interface: str, *names: str) -> Self:
        """Return the options that ``interface`` offers, limited to ``names`` if given."""
        return type(self)(
            {name: row for name, row in self.items() if interface in row.only_in and (not names or name in names)}
        )

    def given_by(self, attribute: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` keyed by option name; their keys are the options' ``attribute``, parameter or argument."""
        names = {getattr(row, attribute): name for name, row in self.items()}
        return {names[each]: value for each, value in values.items()}


def _named(declared: Any) -> Option:
    """Return a field's option, with its derived names and type."""
    row: Option = declared.metadata[_OPTION]
    name, kind = declared.name, _members(declared.type)[0]
    is_list = get_origin(kind) is not None and get_origin(kind) is not Literal
    choices = row.choices or (get_args(kind) if get_origin(kind) is Literal else ())
    of_value = str if is_list or choices else kind
    return replace(
        row,
        name=name,
        type=of_value,
        types=(of_value, *(each for each in _members(declared.type)[1:] if each in _KINDS)),
        is_list=is_list,
        choices=choices,
        flag=row.flag or f"--{name.replace('_', '-')}",
        parameter=row.parameter or name,
        argument=row.argument or name,
    )


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; any other type is its only member."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def documented(function: Callable[..., Any], options: Iterable[Option]) -> str:
    """Return a function's docstring with ``options`` as its last arguments."""
    rows = "".join(f"    {row.name}: {row.description}\n" for row in options)
    return inspect.cleandoc(function.__doc__ or "").replace("\n\nReturns:", f"\n{rows}\nReturns:", 1)


def called_with(model: Callable[_P, _M], options: Iterable[Option]) -> Callable[[Callable[[_M], _R]], Callable[_P, _R]]:
    """Make a function of a request accept the arguments that build it; type checkers see them as well.

    ``f(request)`` becomes ``f(sources, workspace, *, full=False, ...)``.
    """

    def decorate(function: Callable[[_M], _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            return function(model(*args, **kwargs))

        call.__doc__ = documented(function, options)
        returned = inspect.signature(function).return_annotation
        vars(call)["__signature__"] = inspect.signature(model).replace(return_annotation=returned)
        return call

    return decorate


def from_keywords(
    model: Callable[_P, _M],
) -> Callable[[Callable[[_T, _M], _R]], Callable[Concatenate[_T, _P], _R]]:
    """Make a function of a request accept the arguments that build it; type checkers see them as well.

    ``f(workspace, request)`` becomes ``f(workspace, query, *, top_k=10, ...)``.
    """

    def decorate(function: Callable[[_T, _M], _R]) -> Callable[Concatenate[_T, _P], _R]:
        first = next(iter(inspect.signature(function).parameters))
        build: Callable[..., _M] = model

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            owner = args[0] if args else kwargs.pop(first)
            return function(owner, build(*args[1:], **kwargs))

        own = inspect.signature(function)
        parameters = [own.parameters[first], *inspect.signature(model).parameters.values()]
        vars(call)["__signature__"] = own.replace(parameters=parameters)
        return call

    return decorate


def spread(name: str, parameters: Sequence[inspect.Parameter]) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Replace a function's parameter ``name``, a dict, with individual ``parameters``.

    Libraries that read signatures (typer, FastAPI, MCP) see the parameters as if they were declared one by one.
    """
    names = [each.name for each in parameters]

    def decorate(function: Callable[..., _R]) -> Callable[..., _R]:
        signature = inspect.signature(function, eval_str=True)

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> _R:
            values = {each: given.pop(each) for each in names if each in given}
            return function(*args, **{name: values}, **given)

        declared = list(signature.parameters.values())
        at = next(number for number, each in enumerate(declared) if each.name == name)
        later = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*parameters, *declared[at + 1 :])]
        vars(call)["__signature__"] = signature.replace(parameters=[*declared[:at], *later])
        kinds = {each.name: each.annotation for each in (*declared[:at], *later) if each.annotation is not each.empty}
        call.__annotations__ = {**kinds, "return": signature.return_annotation}
        return call

    return decorate


_FILES = {"paths", "path", "file", "filename", "document", "documents"}
_FOLDERS = {"dirs", "dir", "directory", "directories", "folder", "folders"}
_GLOBS = {"globs", "glob", "include", "includes"}
SYNONYMS = (
    {"top_k", "k", "n", "limit", "count", "size", "max_results", "num_results", "n_results"},
    {"n_lines", "context", "context_lines", "lines"},
    {"q", "query", "text", "search"},
    _FILES,
    _FOLDERS,
    _GLOBS,
    _FILES | _FOLDERS | _GLOBS,
    _FILES | {"files"},
    {"pattern", "patterns", "globs"},
    {"regex", "regexp"},
    {"pattern", "q", "query", "regex", "regexp", "text"},
    {"name", "symbol", "identifier"},
    {"exts", "ext", "extension", "extensions", "ending", "endings", "suffix", "file_types", "filetype"},
    {"languages", "lang", "langs", "language"},
    {"kinds", "kind", "type", "types", "symbol_kind"},
    {"entity", "entities", "source", "sources", "repo", "repository", "project", "scope"},
    {"max_distance", "distance", "threshold"},
    {"min_relevance", "min_score", "score", "relevance"},
)
"""Argument names used by other tools. Each set is one argument, or several of a kind; the first that fits counts."""


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown argument ``name``: a synonym among the ``known`` names, or the closest of them."""
    plain = name.strip("-").replace("-", "_").lower()
    same = ([each for each in known if each in synonyms] for synonyms in SYNONYMS if plain in synonyms)
    near = next(filter(None, same), None) or difflib.get_close_matches(plain, known, 1)
    return f"Did you mean {near[0]!r}?" if near else f"Known names: {', '.join(known) or 'none'}."
