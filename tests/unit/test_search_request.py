"""The search request model: its table, its checks, and no second declaration of its options."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from driftline.flows.client import search_parameters
from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.config.toml_schema import SearchTable
from driftline.flows.web.api import parameters
from driftline.storage.errors import UsageError
from driftline.storage.option_table import nearest_name
from driftline.tasks.search.request import OPTIONS, SearchFilter, SearchRequest, extensions_of

ROOT = Path(__file__).resolve().parents[2]
MAX_FUNCTIONS = {"top_k": 8, "min_relevance": 4}
"""Maximum number of functions that may have a parameter of this name."""
INTERNAL = {"query", "where", "also", "inside", "within", "on_this_machine"}
HEAVY = {"lance", "numpy", "pyarrow", "pydantic"}


def functions_with(parameter: str) -> list[str]:
    found = []
    for folder in ("flows", "tasks", "storage", "driftline"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                    declared = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                    if parameter in [each.arg for each in declared]:
                        found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


@pytest.mark.parametrize("parameter", MAX_FUNCTIONS)
def test_few_functions_declare_an_option(parameter: str) -> None:
    found = functions_with(parameter)
    assert 0 < len(found) <= MAX_FUNCTIONS[parameter], found


def test_the_model_is_light_to_import() -> None:
    code = "import sys, driftline.tasks.search.request; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(loaded.stdout.split())


def test_every_field_but_the_query_and_the_conditions_of_interfaces_is_in_the_table() -> None:
    assert {each.name for each in fields(SearchRequest)} - INTERNAL == set(OPTIONS)
    assert all(row.help.endswith(".") for row in OPTIONS.values())


def test_a_request_is_a_value() -> None:
    request = SearchRequest("lease", exts="py", dirs=["src", "lib"])
    assert (request.exts, request.dirs) == (("py",), ("src", "lib"))
    assert pickle.loads(pickle.dumps(request)) == request
    assert request.given() == {"exts": ("py",), "dirs": ("src", "lib")}
    assert SearchRequest.of("lease", {"top_k": None, "mode": "text"}) == SearchRequest("lease", mode="text")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"top_k": -1}, "top_k must not be negative"),
        ({"n_lines": -1}, "n_lines must not be negative"),
        ({"max_distance": 2.1}, "max_distance must be between 0 and 2"),
        ({"min_relevance": float("nan")}, "min_relevance must be between 0 and 1"),
        ({"fallback_threshold": 2}, "fallback_threshold must be between 0 and 1"),
        ({"rerank": 201}, "rerank must be between 0 and 200"),
        ({"mode": "hybird"}, "Unknown mode"),
        ({"strategy": "sometimes"}, "Unknown strategy"),
        ({"kinds": ["fuction"]}, "Did you mean 'function'"),
        ({"languages": ["pyton"]}, "Did you mean 'python'"),
        ({"paths": [" "]}, "Empty path"),
        ({"paths": ["/home/x/../a.py"]}, "'/home/a.py'"),
        ({"dirs": ["src/.."]}, r"must not contain '\.\.': 'src/\.\.'\. Use '\.'"),
        ({"dirs": [".."]}, r"points outside its source: '\.\.'\. "),
        ({"paths": ["a\0"]}, "contains NUL"),
        ({"exts": ["*.py"]}, "An extension must not be a glob"),
        ({"globs": ["*.{a, b}"]}, "glob|brace|blank"),
    ],
)
def test_filters_that_can_match_nothing_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        SearchRequest("lease", **options)


WRONG: dict[type, tuple[Any, ...]] = {
    bool: ("no", "false", None, [True], 0.5),
    int: ("5", 2.5, True, [5], None),
    float: ("0.5", True, [0.5]),
    str: (5, True, b"x", ["x"], {"x": 1}),
}


@pytest.mark.parametrize("name", [name for name, row in OPTIONS.items() if not row.is_list])
def test_values_of_another_type_are_refused_by_name(name: str) -> None:
    for wrong in WRONG[OPTIONS[name].type]:
        if wrong is not None or OPTIONS[name].default is not None:
            with pytest.raises(UsageError, match=rf"{name} must be .*: {re.escape(repr(wrong))}"):
                SearchRequest("lease", **{name: wrong})


@pytest.mark.parametrize("name", [name for name, row in OPTIONS.items() if row.is_list])
def test_lists_hold_text_and_one_text_is_a_list_of_one(name: str) -> None:
    not_text: tuple[Any, ...] = (5, True, {}, {"a": 1}, [None], ["a", 5], [b"a"], [["a", 1]])
    for wrong in not_text:
        with pytest.raises(UsageError, match=rf"{name} must be "):
            SearchRequest("lease", **{name: wrong})
    valid = {"kinds": "function", "languages": "python", "sources": "org:acme"}.get(name, "a")
    spellings: tuple[Any, ...] = (valid, [valid], (valid,), {valid}, iter([valid]))
    assert {getattr(SearchRequest("lease", **{name: each}), name) for each in spellings} == {(valid,)}


def test_numbers_of_numpy_are_numbers() -> None:
    given: dict[str, Any] = {"top_k": np.int64(3), "max_distance": np.float32(0.5), "rerank": np.int8(2), "prose": 0}
    request = SearchRequest("lease", **given)
    assert (request.top_k, request.max_distance, request.rerank, request.prose) == (3, 0.5, 2, 0)


@pytest.mark.parametrize("query", [None, 5, ["lease"], b"lease"])
def test_a_query_is_text(query: Any) -> None:
    with pytest.raises(UsageError, match="The query must be text"):
        SearchRequest(query)


def test_a_query_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        SearchRequest("\udcff")


def test_a_filter_checks_as_its_request_does() -> None:
    with pytest.raises(UsageError, match="Unknown language"):
        SearchFilter(languages=["klingon"])


@pytest.mark.parametrize(("written", "says"), [("pyhton", "Did you mean 'python'?"), ("zzz", "Use one of bash, ")])
def test_an_unknown_language_is_answered_with_the_nearest_or_with_all(written: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        extensions_of([written])
    assert refused.value.fix.startswith(says)


def test_every_interface_has_the_filters() -> None:
    filters = {"paths", "dirs", "globs", "exts", "languages", "kinds", "symbols", "tests", "sources", "branch"}
    for interface in ("action", "command", "http"):
        assert filters <= set(OPTIONS.offered_in(interface))


def test_each_setting_has_its_key_in_the_configuration() -> None:
    settings = {name for name, row in OPTIONS.items() if row.is_setting}
    assert settings == set(SearchTable.model_fields) - {"cache", "cache_bytes"}


def test_the_document_of_the_api_has_the_limits_of_the_table() -> None:
    top_k = next(each for each in parameters(OPTIONS.offered_in("http")) if each.name == "top_k")
    schema = TypeAdapter(top_k.annotation).json_schema()
    assert (schema["minimum"], schema["maximum"], top_k.default) == (1, 50, 10)


NAMES = {
    "path": ["src/a.py", "docs/grün.md"],
    "dir": ["src", "a b/c"],
    "glob": ["src/**/*.py", "README.md", "*.{py,js}"],
    "ext": ["py", "{py,js}", "tar.gz,v"],
    "source": ["source:web", "org:acme/project:alpha", "user:ann@example.org"],
    "branch": ["main", "feature/grün"],
}


def patterns_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from [schema["pattern"]] if "pattern" in schema else []
        for each in schema.values():
            yield from patterns_in(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from patterns_in(each)


@pytest.mark.parametrize(("name", "values"), NAMES.items(), ids=NAMES)
def test_the_document_of_the_api_permits_every_kind_of_name(name: str, values: list[str]) -> None:
    """Generated clients validate with it before they send a request."""
    parameter = next(each for each in parameters(OPTIONS.offered_in("http")) if each.name == name)
    patterns = list(patterns_in(TypeAdapter(parameter.annotation).json_schema()))
    assert [value for value in values for each in patterns if not re.search(each, value)] == []


@pytest.mark.parametrize(
    "options",
    [{"where": object()}, {"also": ["a"]}, {"inside": ["a"]}, {"within": object()}, {"on_this_machine": True}],
)
def test_a_client_refuses_what_servers_cannot_apply(options: dict[str, Any]) -> None:
    request = SearchRequest("lease")
    for name, value in options.items():
        object.__setattr__(request, name, value)
    with pytest.raises(UsageError, match=next(iter(options))):
        search_parameters(request)


@pytest.mark.parametrize("kind", [partial(SourceRequest, "folder"), partial(IndexRequest, ("folder",), "workspace")])
def test_patterns_of_sources_are_tuples_of_text(kind: Callable[..., SourceRequest | IndexRequest]) -> None:
    """A record holds them; other settings would change it."""
    assert kind(include="*.py").include == ("*.py",)
    assert kind(exclude=["*.py", "b/"]).exclude == ("*.py", "b/")
    for wrong in (5, {"*.py": 1}, [5]):
        with pytest.raises(UsageError, match="include must be"):
            kind(include=wrong)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("file", "paths"), ("document", "paths"), ("folder", "dirs"), ("include", "globs"), ("limit", "top_k"),
        ("max_results", "top_k"), ("repo", "sources"), ("regexp", "regex"), ("text", "query"),
    ],
)  # fmt: skip
def test_an_argument_of_another_tool_suggests_ours(name: str, meant: str) -> None:
    known = ["query", *OPTIONS]
    assert nearest_name(name, known) == f"Did you mean {meant!r}?"
