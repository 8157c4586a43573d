"""The arguments of actions: conversion of rendered templates, and errors that name the argument."""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driftline.flows.actions.arguments import (
    MAX_NUMBER,
    Anything,
    Count,
    Distance,
    Entities,
    Fields,
    Flag,
    Moment,
    Name,
    Names,
    OneEntity,
    Parameters,
    Query,
    Seconds,
    SomeNames,
    Version,
)
from driftline.storage.errors import UsageError


def _action(
    state: Any,
    handle: Any,
    query: Query,
    value: Anything = None,
    name: Name | None = None,
    names: Names | None = None,
    files: SomeNames | None = None,
    top_k: Count = 5,
    far: Distance | None = None,
    timeout: Seconds = 1.0,
    deep: Flag = True,
    when: Moment | None = None,
    where: Fields | None = None,
    entity: OneEntity | None = None,
    allowed: Entities | None = None,
    version: Version | None = None,
) -> None: ...


PARAMETERS = Parameters.of(_action)


def read(*positional: object, **named: object) -> dict[str, Any]:
    if not positional:
        named.setdefault("query", "q")
    return PARAMETERS.read(positional, named)


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("query", 42, "42"),
        ("query", date(2026, 1, 2), "2026-01-02"),
        ("name", True, "true"),
        ("name", Path("a/b"), "a/b"),
        ("names", "one", ["one"]),
        ("names", 2024, ["2024"]),
        ("names", ("a", 1), ["a", "1"]),
        ("names", '["a", "b"]', ["a", "b"]),
        ("names", "[odd].md", ["[odd].md"]),
        ("names", "[]", []),
        ("top_k", "7", 7),
        ("top_k", 2.0, 2),
        ("top_k", " 2.0 ", 2),
        ("far", "0.5", 0.5),
        ("far", 2, 2.0),
        ("timeout", "1e-3", 0.001),
        ("deep", "no", False),
        ("deep", 1, True),
        ("when", date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC)),
        ("when", "2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("where", '{"phase": 2}', {"phase": 2}),
        ("entity", "org:acme", "org:acme"),
        ("entity", ["session", 42], ("session", "42")),
        ("entity", '["session", "s1"]', ("session", "s1")),
        ("allowed", "org:acme", ["org:acme"]),
        ("allowed", ["org:acme", ["user", "bob"]], ["org:acme", ("user", "bob")]),
        ("allowed", ["session", "s1"], [("session", "s1")]),
        ("allowed", ["org:acme", "org:globex"], ["org:acme", "org:globex"]),
        ("allowed", "[]", []),
        ("version", 1.5, "1.5"),
        ("value", "", ""),
        ("value", '{"a": 1}', '{"a": 1}'),
    ],
)
def test_values_are_converted_to_their_parameter_types(name: str, given: object, meant: object) -> None:
    assert read(**{name: given})[name] == meant


@pytest.mark.parametrize("blank", [None, "", "  "])
def test_blank_optional_values_mean_the_default(blank: str | None) -> None:
    assert read(name=blank, names=blank, top_k=blank, far=blank, deep=blank, when=blank, where=blank) == {"query": "q"}
    assert read(value=blank)["value"] == blank


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("query", " "),
        ("query", ["a"]),
        ("query", "a\0b"),
        ("query", "\ud800"),
        ("name", b"bytes"),
        ("names", {"a": 1}),
        ("names", ["a", ""]),
        ("files", []),
        ("top_k", -1),
        ("top_k", True),
        ("top_k", 1.5),
        ("top_k", "many"),
        ("top_k", MAX_NUMBER + 1),
        ("top_k", "1" + "0" * 5000),
        ("top_k", float("inf")),
        ("far", "nan"),
        ("far", 2.1),
        ("timeout", 0),
        ("timeout", 10**400),
        ("deep", "perhaps"),
        ("deep", 2),
        ("when", "soon"),
        ("when", 42),
        ("where", "[]"),
        ("where", '{"a": '),
        ("entity", ["session"]),
        ("entity", {"session": 1}),
        ("version", "new"),
    ],
)
def test_an_error_names_the_argument_and_can_be_printed(name: str, given: object) -> None:
    with pytest.raises(UsageError) as refusal:
        read(**{name: given})
    assert str(refusal.value).startswith(f"{name} must ")
    assert str(refusal.value).encode()
    assert len(str(refusal.value)) < 300


class Unprintable(dict[str, object]):
    """Data whose ``repr`` fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nested(levels: int) -> list[object]:
    return functools.reduce(lambda inner, _: [inner], range(levels), [])


@pytest.mark.parametrize("name", ["query", "top_k", "far", "deep", "when", "names"])
@pytest.mark.parametrize("value", [10**5000, nested(5_000), Unprintable()], ids=["large", "nested", "unprintable"])
def test_a_value_that_python_does_not_print_is_an_error(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"{name} must .*whose repr\(\) raises") as refusal:
        read(**{name: value})
    assert len(str(refusal.value)) < 300


def test_all_invalid_arguments_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as refusal:
        PARAMETERS.read((), {"top_k": -1, "deep": "perhaps"})
    assert [part.split()[0] for part in str(refusal.value).split("; ")] == ["query", "top_k", "deep"]


def test_positional_arguments_come_in_their_order() -> None:
    assert read("q", 1, "n", handle="h") == {"query": "q", "value": 1, "name": "n", "handle": "h"}
    with pytest.raises(UsageError, match="query is given twice"):
        read("q", query="r")
    with pytest.raises(UsageError, match="40 positional arguments"):
        read(*range(40))


def test_arguments_of_engines_are_dropped_and_misspelt_names_are_errors() -> None:
    assert read(engine=object(), node="n", config={}, _private=1, tracer=object()) == {"query": "q"}
    unknown: list[Any] = [np.float32(0.3), Decimal("0.3"), {"a"}, b"a"]
    for value in unknown:
        with pytest.raises(UsageError, match="'top_k'"):
            read(topk=value)
    for misspelt, outcome in (("topk", "'top_k'"), ("entity_", "'entity'"), ("in", "top_k"), ("in", "entity")):
        with pytest.raises(UsageError, match=outcome):
            read(**{misspelt: "x"})
