"""The memory store's dictionary adapter returns a dictionary for any arguments."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import driftline as dl
from driftline.flows.memory_arguments import ARGUMENTS
from driftline.flows.memory_backend import HierarchicalLTMBackend
from driftline.storage.errors import DriftlineError, UsageError
from tests.conformance.memory_support import arguments, public_calls, without_variables

VALID: dict[str, Any] = {
    "key": "plan",
    "value": {"step": 1},
    "entity": "org:acme",
    "metadata": {"phase": "plan"},
    "expires_at": datetime(2100, 1, 1, tzinfo=UTC),
    "items": [{"key": "k", "value": 1}],
    "keys": ["plan"],
    "entity_type": "org",
    "entity_id": None,
    "include_descendants": True,
    "limit": 5,
    "offset": 0,
    "allowed_ancestors": ["org:acme"],
    "after": "org:acme",
    "cursor": None,
    "within": "org:acme",
    "query": "plan",
    "metadata_filter": {"phase": "plan"},
    "top_k": 2,
    "filter": {"phase": "plan"},
    "max_distance": 2.0,
    "mode": "hybrid",
    "explain": False,
    "range": ("a", "z"),
    "group_by": "project",
    "rev": None,
    "parents": {},
    "parent": None,
    "cascade": False,
    "entity_path": "org:acme",
    "max_deltas": 100,
    "max_age_seconds": 3_600,
    "dry_run": True,
}


class Unprintable:
    """An object whose ``str`` and ``repr`` fail."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


LONG = "x" * 10_240
HUGE = 10**5_000  # with more digits than Python prints
ODD: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        2**70,
        1.5,
        math.nan,
        math.inf,
        -math.inf,
        HUGE,
        1 + 2j,
        b"bytes",
        object(),
        Unprintable(),
    ),
    *(
        "",
        "x",
        "nan",
        LONG,
        "\0",
        "\ud800",
        f"org:{LONG}",
        "org:acme/" * 1_000,
        "2024-13-01",
        "9999-12-31T23:59:59-23:59",
    ),
    *([], [1], [None], ["a", "b"], [LONG, LONG], (), ("org",), ("org", 1), [["org", "acme"]], [[[]]], {1, 2}, [b"x"]),
    *({}, {1: 2}, {"a": math.nan}, {"a": object()}, {"a": [math.inf]}, {"a": LONG}, {LONG: LONG}, {"a": {"b": 1}}),
    *(datetime(2024, 1, 1), datetime.min, datetime.max, date(2024, 1, 1), dl.Entity(()), dl.Entity((("org", LONG),))),
    *([{"key": 1}], [{"key": "k", "value": math.nan}], [{"key": "k", "value": 1, "entity": 5}], [None, "x"], range(3)),
]
NAMES = sorted(ARGUMENTS)
SETTINGS = [
    *("catalog", "storage", "hierarchy", "index", "performance", "embedding", "settings", "hierarchy_levels"),
    *("hierarchy_defaults", "index_config", "performance_config", "inline_threshold", "errors", "within"),
]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[HierarchicalLTMBackend]:
    with pytest.MonkeyPatch.context() as patch:
        without_variables(patch)
        location = tmp_path_factory.mktemp("memory")
        with HierarchicalLTMBackend(storage_uri=str(location), embedding={"model": str(tiny_model)}) as opened:
            opened.store("plan", {"step": 1}, "org:acme", {"phase": "plan"})
            opened.core.flush()
            yield opened


def check(method: str, answer: Any) -> None:
    """Assert that ``answer`` is JSON of bounded size: a success, or a failure with a known kind and a short message."""
    json.dumps(answer, allow_nan=False)
    if method == "register_entity_with_defaults" and isinstance(answer, str):
        return
    assert isinstance(answer["success"], bool)
    if not answer["success"]:
        assert answer["error_type"] in ("usage", "bad_entry", "bad_entity", "access_denied"), answer["error_type"]
        assert len(answer["error"]) < 1_500, method
        answer["error"].encode()


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_may_be_anything(name: str, backend: HierarchicalLTMBackend) -> None:
    calls = {method: signature for method, signature in public_calls(backend).items() if name in signature.parameters}
    assert calls
    for method, signature in calls.items():
        for odd in ODD:
            given = {**arguments(signature, {**VALID, "entity_id": "acme"}), name: odd}
            given.pop("parent", None) if name != "parent" else None
            check(method, getattr(backend, method)(**given))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_all_arguments_may_be_anything_at_once(data: st.DataObject, backend: HierarchicalLTMBackend) -> None:
    anything = st.one_of(
        st.integers(0, len(ODD) - 1).map(lambda n: ODD[n]),  # sampled_from() prints what cannot be printed
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.datetimes()),
            lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
            max_leaves=6,
        ),
    )
    method, signature = data.draw(st.sampled_from(sorted(public_calls(backend).items())))
    names = list(signature.parameters)
    given = {name: data.draw(st.one_of(st.just(VALID[name]), anything), name) for name in names}
    check(method, getattr(backend, method)(**given))


def test_wrong_arguments_return_errors(backend: HierarchicalLTMBackend) -> None:
    untyped: Any = backend
    for answer in (untyped.retrieve(), untyped.retrieve("plan", top=1), untyped.delete("a", "b", "c")):
        assert (answer["success"], answer["error_type"]) == (False, "usage")
    assert "top_k" in untyped.search_memory("plan", top_k="x")["error"]
    for name, answer in (("entity", untyped.query_index(scope="x")), ("top_k", untyped.search_memory("a", topK=3))):
        assert f"Did you mean '{name}'?" in answer["error"]
    assert untyped.store_many(None)["error_type"] == "bad_entry"
    uri = backend.core.workspace.objects.uri
    with (
        dl.create_ltm_backend(storage_uri=uri, errors="raise") as raising,
        pytest.raises(UsageError, match="top_k must be an integer, not 'x'"),
    ):
        raising.search_memory("plan", top_k="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_wrong_types_are_usage_errors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)
    for odd in (5, "x", b"x", 1.5, ["x"], {"no such": LONG}, object()):
        untyped: Any = dl.create_ltm_backend
        refused: list[DriftlineError] = []
        try:
            untyped(storage_uri=str(tmp_path / "memory"), **{name: odd}).close()
        except DriftlineError as error:
            refused.append(error)
        assert [error.exit_code for error in refused] in ([], [2])
        assert all(len(str(error)) < 1_500 for error in refused)


def test_a_time_without_a_zone_is_utc(backend: HierarchicalLTMBackend) -> None:
    for expires in (datetime(2100, 1, 1, 12), "2100-01-01T12:00:00", "2100-01-01T13:00:00+01:00"):
        backend.store("timed", 1, "org:acme", expires_at=expires)
        assert backend.retrieve("timed")["entry"]["expires"] == "2100-01-01T12:00:00+00:00"
        backend.core.store("timed", 2, "org:acme", expires_at=datetime(2100, 1, 1, 12))
        assert backend.retrieve("timed")["entry"]["expires"] == "2100-01-01T12:00:00+00:00"
