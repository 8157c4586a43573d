"""Memory in a workflow engine: short-lived processes, read-your-writes consistency, template arguments."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.actions.arguments import Parameters
from driftline.flows.actions.memory import MEMORY_ACTIONS
from driftline.flows.config.memory_settings import find_memory, load_memory_configuration
from driftline.storage import errors
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.tasks.embedding.embedder import WordTableEmbedder
from tests.conformance.memory_support import (
    LARGE,
    ROOT,
    arguments,
    files,
    keys,
    ok,
    open_backend,
    public_calls,
    reference_pages,
)
from tests.conformance.table import criterion
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.yaml_engine import run_yaml

Run = Callable[..., Any]
"""Maximum time for other processes to take over the work of a process that ended."""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Run]]:
    """The actions over a store without an embedder."""
    (tmp_path / "memory.yaml").write_text("settings: {ltm: {embedding: {enabled: false}}}")
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    monkeypatch.setenv("LTM_STORAGE_URI", str(tmp_path / "memory"))
    engine = Closing()
    found: dict[str, Run] = {}
    register_actions(found, engine)
    yield found
    for close in engine.on_close:
        close()


class Closing:
    """An engine with a list of functions to call when it closes."""

    def __init__(self) -> None:
        self.on_close: list[Callable[[], None]] = []


# -- 1: processes that end -------------------------------------------------------------------

PROGRAM = """
import os, signal, sys
from driftline.flows.actions import register_actions

class Engine:
    "Closes nothing, as real ones do."

engine, registry = Engine(), {}
register_actions(registry, engine)
stored = registry["ltm.store"]({}, key="plan", value="the parser of arguments", engine=engine)
assert stored["success"], stored
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    path = tmp_path_factory.mktemp("engine") / "memory.yaml"
    path.write_text(f"settings: {{ltm: {{embedding: {{model: '{tiny_model}'}}}}}}")
    return path


@pytest.fixture(scope="module", params=["exit", "kill"])
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, configuration: Path
) -> tuple[Path, str]:
    """A store whose only process ended right after a write, and that process's standard error."""
    location = tmp_path_factory.mktemp("ended") / "memory"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LTM_", "DATABASE_URL"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, request.param],
        env={**kept, "LTM_CONFIG": str(configuration), "LTM_STORAGE_URI": str(location), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (-signal.SIGKILL if request.param == "kill" else 0), done.stderr
    return location, done.stderr


def search_by_action(location: Path, driftline: Run) -> list[str]:
    registry: dict[str, Run] = {}
    engine = Closing()
    register_actions(registry, engine)
    found = ok(registry["memory.search"]({}, query="parser"))["results"]
    for close in engine.on_close:
        close()
    return [hit["record"]["key"] for hit in found]


def search_by_command(location: Path, driftline: Run) -> list[str]:
    found = driftline("memory", "search", "parser", "--workspace", location, "--json").json["results"]
    return [hit["record"]["key"] for hit in found]


def list_by_command(location: Path, driftline: Run) -> list[str]:
    return [entry["key"] for entry in driftline("memory", "list", "--workspace", location, "--json").json["entries"]]


def search_by_mcp(location: Path, driftline: Run) -> list[str]:
    from mcp import Client

    from driftline.storage.workspace.workspace import Workspace
    from tests.support.mcp import make_server

    opened = Workspace.open(str(location))

    async def talk() -> Any:
        server = make_server(opened, find_memory(load_memory_configuration(), opened))
        async with Client(server, read_timeout_seconds=PATIENCE_SECONDS) as client:
            return await client.call_tool("search_memory", {"query": "parser"})

    return [hit["record"]["key"] for hit in asyncio.run(talk()).structured_content["results"]]


READERS = [search_by_action, search_by_command, list_by_command, search_by_mcp]


@criterion("engine", "1", "what is stored just before a process ends is found by every reader")
@pytest.mark.parametrize("read", READERS)
def test_leftovers_of_a_process_are_found(
    read: Callable[[Path, Run], list[str]],
    ended: tuple[Path, str],
    configuration: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driftline: Run,
) -> None:
    location = tmp_path / "memory"
    shutil.copytree(ended[0], location)
    monkeypatch.setenv("LTM_CONFIG", str(configuration))
    monkeypatch.setenv("LTM_STORAGE_URI", str(location))
    until(lambda: read(location, driftline) == ["plan"], "the entry", poll=0.5)


@criterion("engine", "1", "a process that ends says nothing, and has flushed")
@pytest.mark.parametrize("ended", ["exit"], indirect=True)
def test_a_process_ends_without_warnings(ended: tuple[Path, str]) -> None:
    assert ended[1] == ""
    assert files(ended[0], "_index_delta_*.parquet")


# -- 2: reading one's own writes -------------------------------------------------------------


class Slow:
    """An embedder that delays every flush and signals when one starts."""

    def __init__(self, inner: WordTableEmbedder) -> None:
        self.inner = inner
        self.dim, self.fingerprint = inner.dim, inner.fingerprint
        self.begun = threading.Event()

    def embed(self, lines: Any, dtype: Any = np.float32) -> NDArray[Any]:
        self.begun.set()
        time.sleep(0.5)
        return self.inner.embed(lines, dtype)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return self.inner.embed_query(text)


@criterion("engine", "2", "so do threads that write and search beside each other")
def test_threads_find_their_own_writes(tmp_path: Path, tiny_model: Path) -> None:
    embedder = WordTableEmbedder.open(str(tiny_model))
    missed: list[str] = []
    with dl.MemoryStore(str(tmp_path / "memory"), embedder=lambda: embedder) as store:

        def work(number: int) -> None:
            for n in range(6):
                key = f"{number}-{n}"
                store.store(key, f"parser {key}", "org:default")
                if key not in {hit.record.key for hit in store.search_memory(f"parser {key}", 100)}:
                    missed.append(key)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert missed == []


@criterion("engine", "2", "a search finds what its own process wrote, while a flush runs")
def test_a_search_finds_its_own_writes(tmp_path: Path, tiny_model: Path) -> None:
    slow = Slow(WordTableEmbedder.open(str(tiny_model)))
    with dl.MemoryStore(str(tmp_path / "memory"), embedder=lambda: slow) as store:
        store.store("first", "parser", "org:default")
        assert slow.begun.wait(PATIENCE_SECONDS)  # the background flush now holds the write
        assert [hit.record.key for hit in store.search_memory("parser")] == ["first"]
        slow.begun.clear()
        store.store("second", "namespace", "org:default")
        assert slow.begun.wait(PATIENCE_SECONDS)
        store.store("third", "subcommand", "org:default")
        assert {hit.record.key for hit in store.search_memory("subcommand")} == {"first", "second", "third"}


# -- 5: settings of the agent ----------------------------------------------------------------

AGENT = """
settings:
  ltm:
    backend: hierarchical
    catalog: {{type: sqlalchemy, url: "sqlite:///{folder}/catalog.sqlite"}}
    storage: {{uri: "file://{folder}/ltm"}}
    hierarchy: {{root_entity: {{type: org, id: "${{ORG_ID}}"}}}}
    embedding: {{enabled: false}}
nodes:
  - name: remember
    uses: ltm.store
    with: {{key: plan, value: 1}}
    output: stored
"""


class Configured:
    """An engine that stores its agent's settings under ``name``."""

    def __init__(self, name: str, document: dict[str, Any]) -> None:
        self.on_close: list[Callable[[], None]] = []
        setattr(self, name, document["settings"] if name == "settings" else document)


@criterion("engine", "5", "settings.ltm of the agent's YAML is read")
@pytest.mark.parametrize("attribute", ["settings", "config"])
def test_the_settings_of_the_agent_are_read(attribute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings are the engine's own, or part of its full document."""
    monkeypatch.setenv("ORG_ID", "acme")
    document = AGENT.format(folder=tmp_path)
    engine = Configured(attribute, yaml.safe_load(document))
    registry: dict[str, Run] = {}
    register_actions(registry, engine)
    state = run_yaml(document, registry, {})
    assert ok(state["stored"])["entity"] == "org:acme"
    for close in engine.on_close:
        close()
    assert files(tmp_path / "ltm", "_index_delta_*.parquet")


@criterion("engine", "5", "settings that the engine learns of later count, too")
def test_settings_may_come_after_the_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines import actions before they read the agent's settings."""
    monkeypatch.setenv("ORG_ID", "acme")
    registry: dict[str, Run] = {}
    document = AGENT.format(folder=tmp_path)
    engine = Configured("settings", {"settings": {}})
    register_actions(registry, engine)
    engine.__dict__["settings"] = yaml.safe_load(document)["settings"]
    assert ok(run_yaml(document, registry, {})["stored"])["entity"] == "org:acme"
    assert (tmp_path / "catalog.sqlite").exists()


@criterion("engine", "5", "settings can be given with the registration")
def test_settings_can_be_given_with_the_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORG_ID", "acme")
    registry: dict[str, Run] = {}
    options: dict[str, Any] = {"settings": yaml.safe_load(AGENT.format(folder=tmp_path))["settings"]}
    register_actions(registry, **options)
    assert ok(registry["ltm.store"]({}, key="plan", value=1))["entity"] == "org:acme"


# -- 6: closed -------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "key": "key",
    "keys": ["key"],
    "value": LARGE,
    "entity": "session:s1",
    "parent": "user:alice",
    "items": [{"key": "key", "value": 1}],
    "query": "parser",
    "entity_type": "session",
    "type": "session",
    "entity_id": "s1",
    "id": "s1",
}


@criterion("engine", "6", "a closed backend answers every call with one typed error")
def test_a_closed_backend_answers_with_one_error(tmp_path: Path, tiny_model: Path) -> None:
    backend = open_backend(tmp_path / "memory", embedding={"model": str(tiny_model)})
    ok(backend.store("key", LARGE, "session:s1"))
    backend.close()
    backend.close()
    kinds = {}
    for name, signature in public_calls(backend).items():
        try:
            answer = getattr(backend, name)(**arguments(signature, GIVEN))
        except Exception as error:
            answer = {"success": "raised", "error_type": repr(error)}
        kinds[name] = (answer["success"], answer.get("error_type"))
    assert len(set(kinds.values())) == 1, kinds
    assert next(iter(kinds.values()))[0] is False
    assert "closed" in backend.store("small", 1)["error"]


@criterion("engine", "6", "a closed store raises one typed error")
def test_a_closed_store_raises_one_error(tmp_path: Path) -> None:
    store = dl.MemoryStore(str(tmp_path / "memory"))
    store.close()
    store.close()
    given = {**GIVEN, "items": [MemoryItem("key", 1, "session:s1")]}
    kinds = {}
    for name, signature in public_calls(store).items():
        try:
            getattr(store, name)(**arguments(signature, given))
            kinds[name] = "no error"
        except Exception as error:
            kinds[name] = type(error).__name__ if isinstance(error, dl.DriftlineError) else repr(error)
    assert len(set(kinds.values())) == 1, kinds
    assert next(iter(kinds.values())).isidentifier(), kinds


# -- 7: arguments from templates -------------------------------------------------------------


@criterion("engine", "7", "a value that is text stays text")
def test_a_value_that_is_text_stays_text(registry: dict[str, Run]) -> None:
    """A value that looks like JSON is stored as text."""
    ok(registry["ltm.store"]({}, key="key", value='{"a": 1}'))
    assert ok(registry["ltm.retrieve"]({}, key="key"))["value"] == '{"a": 1}'


@criterion("engine", "7", "what an engine passes of its own is ignored")
def test_arguments_of_the_engine_are_ignored(registry: dict[str, Run]) -> None:
    own = {"engine": object(), "node": "remember", "checkpoint_dir": None, "config": {}, "_private": 1}
    ok(registry["ltm.store"]({}, key="key", value=1, **own))
    assert ok(registry["ltm.retrieve"]({}, key="key", **own))["found"]


def kinds_of(error: type[errors.DriftlineError]) -> Iterator[str]:
    yield error.kind
    for below in error.__subclasses__():
        yield from kinds_of(below)


@criterion("engine", "7", "scalars that are not text become text")
def test_scalars_become_text(registry: dict[str, Run]) -> None:
    ok(registry["ltm.store"]({}, key=42, value=1, entity="session:42"))
    assert ok(registry["ltm.retrieve"]({}, key="42"))["found"]
    assert ok(registry["ltm.retrieve"]({}, key=42))["found"]
    assert keys(registry["ltm.retrieve_by_entity"]({}, entity_type="session", entity_id=42)) == ["42"]
    ok(registry["ltm.store"]({}, key=1.5, value=1, entity=["session", 42]))
    assert ok(registry["ltm.retrieve"]({}, key="1.5"))["found"]
    assert ok(registry["ltm.search"]({}, query=42))["entries"]
    assert ok(registry["ltm.delete"]({}, key=42))["deleted"]


@criterion("engine", "7", "a date or a time that YAML has read is a time of expiry")
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (date(2999, 1, 1), True),
        (datetime(2999, 1, 1, 12, 30), True),
        (datetime(2999, 1, 1, tzinfo=UTC), True),
        ("2999-01-01", True),
        ("2999-01-01T00:00:00Z", True),
        (date(1999, 1, 1), False),
        (datetime.now(UTC) - timedelta(hours=1), False),
    ],
)
def test_a_date_is_a_time_of_expiry(given: object, found: bool, registry: dict[str, Run]) -> None:
    """A date without a time zone is UTC."""
    ok(registry["ltm.store"]({}, key="key", value=1, expires_at=given))
    assert ok(registry["ltm.retrieve"]({}, key="key"))["found"] is found


@criterion("engine", "7", "an empty or missing optional value means its default")
@pytest.mark.parametrize("empty", ["", None, "  "])
def test_an_empty_value_means_its_default(empty: str | None, registry: dict[str, Run]) -> None:
    ok(registry["ltm.store"]({}, key="key", value=1, entity=empty, metadata=empty, expires_at=empty))
    assert ok(registry["ltm.retrieve"]({}, key="key", entity=empty))["found"]
    page = registry["ltm.retrieve_by_entity"](
        {},
        entity_type="org",
        entity_id="default",
        include_descendants=empty,
        allowed_ancestors=empty,
        limit=empty,
        offset=empty,
        cursor=empty,
        within=empty,
    )
    assert keys(page) == ["key"]
    found = registry["ltm.search"](
        {}, query=empty, metadata_filter=empty, entity=empty, allowed_ancestors=empty, limit=empty
    )
    assert keys(found) == ["key"]
    assert ok(registry["ltm.delete"]({}, key="key", entity=empty))["deleted"]


@criterion("engine", "7", "JSON text is read where a list or a mapping is expected")
def test_json_text_is_read(registry: dict[str, Run]) -> None:
    ok(registry["ltm.store"]({}, key="key", value=1, entity='["session", "s1"]', metadata='{"phase": 2}'))
    assert ok(registry["ltm.retrieve"]({}, key="key"))["entry"]["metadata"] == {"phase": 2}
    assert keys(registry["ltm.search"]({}, metadata_filter='{"phase": [1, 2]}')) == ["key"]
    page = registry["ltm.retrieve_by_entity"](
        {}, entity_type="session", entity_id="s1", allowed_ancestors='["org:default"]', include_descendants="false"
    )
    assert keys(page) == ["key"]
    wrong = registry["ltm.store"]({}, key="key", value=1, metadata='{"phase": ')
    assert (wrong["success"], wrong["error_type"]) == (False, "validation_error")


@criterion("engine", "7", "an agent whose templates all render to text works")
@pytest.mark.parametrize("keeps_types", [True, False])
def test_a_templated_agent_works(keeps_types: bool, registry: dict[str, Run]) -> None:
    document = """
nodes:
  - name: remember
    uses: ltm.store
    with:
      key: "{{ number }}"
      value: "{{ text }}"
      entity: "user:{{ number }}"
      metadata: {n: 1}
      expires_at: "{{ none }}"
    output: stored
  - name: list
    uses: ltm.retrieve_by_entity
    with: {entity_type: user, entity_id: "{{ number }}", limit: "{{ number }}", include_descendants: "{{ yes }}"}
    output: page
  - name: again
    uses: ltm.retrieve
    with: {key: "{{ stored.key }}", entity: "{{ stored.entity }}"}
    output: found
"""
    state = {"number": 42, "text": "a cat", "none": None, "yes": True}
    done = run_yaml(document, registry, state, keeps_types=keeps_types)
    assert ok(done["stored"])["key"] == "42"
    assert keys(done["page"]) == ["42"]
    assert ok(done["found"])["value"] == "a cat"


@criterion("engine", "7", "a misspelt argument is an error that names the nearest")
@pytest.mark.parametrize(
    ("name", "misspelt", "meant"),
    [
        ("memory.search", "topk", "top_k"),
        ("memory.search", "filters", "filter"),
        ("ltm.store", "entiti", "entity"),
        ("ltm.retrieve_by_entity", "include_descendents", "include_descendants"),
        ("ltm.search", "metadata_filters", "metadata_filter"),
        ("ltm.retrieve", "entity_", "entity"),
    ],
)
def test_a_misspelt_argument_is_reported(name: str, misspelt: str, meant: str, registry: dict[str, Run]) -> None:
    required = {"query": "x", "key": "k", "value": 1, "entity_type": "org", "entity_id": "default"}
    signature = inspect.signature(registry[name])
    given = {key: value for key, value in required.items() if key in signature.parameters}
    answer = registry[name]({}, **given, **{misspelt: "x"})
    assert (answer["success"], answer.get("error_type")) == (False, "validation_error")
    assert misspelt in answer["error"]
    assert f"'{meant}'" in answer["error"]


@criterion("engine", "7", "messages are ours")
def test_messages_of_the_parser_are_translated_to_our_own(registry: dict[str, Run]) -> None:
    failures = [
        registry["ltm.store"]({}, value=1),
        registry["ltm.store"]({}, key=[1], value=1),
        registry["ltm.store"]({}, key="key", value=1, metadata="[]"),
        registry["ltm.store"]({}, key="key", value=1, expires_at="soon"),
        registry["ltm.retrieve_by_entity"]({}, entity_type="org", entity_id="default", limit="many"),
        registry["ltm.retrieve_by_entity"]({}, entity_type="org", entity_id="default", limit=-1),
        registry["ltm.retrieve_by_entity"]({}, entity_type="org", entity_id="default", include_descendants="perhaps"),
        registry["memory.search"]({}, query="x", top_k=-1),
        registry["memory.search"]({}),
    ]
    for failure, argument in zip(
        failures,
        ["key", "key", "metadata", "expires_at", "limit", "limit", "include_descendants", "top_k", "query"],
        strict=True,
    ):
        assert not failure["success"]
        assert failure["error_type"] in ("validation_error", "bad_entry")
        assert argument in failure["error"] or failure["error_type"] == "bad_entry"
        for foreign in ("pydantic", "Input should", "input_value", "Field required", "String should", "Value should"):
            assert foreign not in failure["error"]


@criterion("engine", "7", "impossible names and numbers give dictionaries")
@pytest.mark.parametrize("wrong", ["a\0b", "\ud800", "", "x" * 5_000], ids=["NUL", "surrogate", "empty", "long"])
def test_impossible_names_return_errors(wrong: str, registry: dict[str, Run]) -> None:
    """Storing an impossible value is a failure; reading it also fails, or finds nothing."""
    for answer in (
        registry["ltm.store"]({}, key=wrong, value=1),
        registry["ltm.store"]({}, key="key", value=1, entity=f"user:{wrong}"),
        registry["ltm.store"]({}, key="key", value="\ud800"),
        registry["ltm.retrieve_by_entity"]({}, entity_type=wrong, entity_id="x"),
    ):
        assert (answer["success"], bool(answer.get("error"))) == (False, True), answer
        answer["error"].encode()
    for answer in (
        registry["ltm.retrieve"]({}, key=wrong),
        registry["ltm.retrieve_by_entity"]({}, entity_type="user", entity_id=wrong),
        registry["ltm.delete"]({}, key=wrong),
        registry["ltm.search"]({}, query=wrong),
        registry["ltm.search"]({}, metadata_filter={wrong: wrong}),
        registry["ltm.search"]({}, metadata_filter={"field": wrong}),
        registry["memory.search"]({}, query=wrong),
    ):
        assert isinstance(answer["success"], bool)


@criterion("engine", "7", "every error_type stands in the reference")
def test_the_reference_lists_every_error_type() -> None:
    """Memory actions return their error kinds; the actions page, or a page linked from it, lists them."""
    fill = runpy.run_path(str(ROOT / "docs/hooks.py"))["fill"]  # error kinds are derived from error classes
    pages = [fill(text) for path, text in reference_pages().items() if path.endswith(("yaml-actions.md", "errors.md"))]
    of_memory = {"validation_error", "prerequisite_missing", *kinds_of(errors.CatalogError)}
    of_memory |= set(kinds_of(errors.UsageError)) | set(kinds_of(errors.StorageError)) | {"lease_held", "lease_lost"}
    of_memory -= {"source_not_found", "source_conflict"}
    missing = {kind for kind in of_memory if not any(f"`{kind}`" in page for page in pages)}
    assert missing == set()


@criterion("engine", "7", "arguments by position follow the tables of the reference")
@pytest.mark.parametrize("name", MEMORY_ACTIONS)
def test_arguments_by_position_follow_the_reference(name: str) -> None:
    (row,) = (
        line
        for line in (ROOT / "docs/reference/yaml-actions.md").read_text().splitlines()
        if line.startswith(f"| `{name}` |")
    )
    listed = re.findall(r"`(\w+)`", row.split("|")[2])
    assert listed == list(Parameters.of(MEMORY_ACTIONS[name]).kinds)


@criterion("engine", "7", "the typed store refuses the same")
@pytest.mark.parametrize("wrong", ["a\0b", "\ud800"], ids=["NUL", "surrogate"])
def test_the_typed_store_refuses_impossible_names(wrong: str, tmp_path: Path) -> None:
    with MemoryStore(str(tmp_path / "memory")) as store:
        for call in (
            lambda: store.store(wrong, 1, "user:alice"),
            lambda: store.store("key", 1, f"user:{wrong}"),
            lambda: store.retrieve_by_entity(wrong, "x"),
        ):
            with pytest.raises(dl.DriftlineError):
                call()
        with contextlib.suppress(dl.DriftlineError):
            assert store.retrieve_by_entity("user", wrong).entries == ()


@criterion("engine", "7", "numbers that are too large give dictionaries")
@pytest.mark.parametrize("limit", [10**30, 2**63, "1" + "0" * 30])
def test_a_too_large_number_returns_an_error(limit: object, registry: dict[str, Run]) -> None:
    ok(registry["ltm.store"]({}, key="key", value=1))
    for answer in (
        registry["ltm.retrieve_by_entity"]({}, entity_type="org", entity_id="default", limit=limit),
        registry["ltm.search"]({}, limit=limit),
    ):
        assert answer["error_type"] == "validation_error" if not answer["success"] else keys(answer) == ["key"]
    answer = registry["ltm.retrieve_by_entity"]({}, entity_type="org", entity_id="default", offset=limit)
    assert isinstance(answer["success"], bool)
    assert registry["ltm.search"]({}, metadata_filter={"n": 10**30})["success"] in (True, False)
