"""What a workflow engine meets in memory: processes that end, its own writes, arguments from templates."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.config.memory_settings import find_memory, load_memory_configuration
from driftline.storage import errors
from driftline.storage.memory.store import MemoryItem
from driftline.tasks.embedding.embedder import WordTableEmbedder
from tests.conformance.memory_places import (
    LARGE,
    ROOT,
    arguments,
    files,
    ok,
    open_backend,
    public_calls,
    without_variables,
)
from tests.conformance.table import criterion

Run = Callable[..., Any]
MOMENT_SECONDS = 4.0
"""How long others may take to take over what a process left behind."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Run]]:
    """The actions, over a store that embeds nothing."""
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
    """An engine that says when it closes."""

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
    """A store whose only process has ended right after a write, and what that process said on standard error."""
    place = tmp_path_factory.mktemp("ended") / "memory"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LTM_", "DATABASE_URL"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, request.param],
        env={**kept, "LTM_CONFIG": str(configuration), "LTM_STORAGE_URI": str(place), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == (-signal.SIGKILL if request.param == "kill" else 0), done.stderr
    return place, done.stderr


def search_by_action(place: Path, driftline: Run) -> list[str]:
    registry: dict[str, Run] = {}
    engine = Closing()
    register_actions(registry, engine)
    found = ok(registry["memory.search"]({}, query="parser"))["results"]
    for close in engine.on_close:
        close()
    return [hit["record"]["key"] for hit in found]


def search_by_command(place: Path, driftline: Run) -> list[str]:
    found = driftline("memory", "search", "parser", "--workspace", place, "--json").json["results"]
    return [hit["record"]["key"] for hit in found]


def list_by_command(place: Path, driftline: Run) -> list[str]:
    return [entry["key"] for entry in driftline("memory", "list", "--workspace", place, "--json").json["entries"]]


def search_by_mcp(place: Path, driftline: Run) -> list[str]:
    from mcp import Client

    from driftline.flows.mcp_server.server import make_server
    from driftline.storage.workspace.workspace import Workspace

    opened = Workspace.open(str(place))

    async def talk() -> Any:
        server = make_server(opened, find_memory(load_memory_configuration(), opened))
        async with Client(server, read_timeout_seconds=60) as client:
            return await client.call_tool("search_memory", {"query": "parser"})

    return [hit["record"]["key"] for hit in asyncio.run(talk()).structured_content["results"]]


READERS = [search_by_action, search_by_command, list_by_command, search_by_mcp]


@criterion("engine", "1", "what is stored just before a process ends is found by every reader")
@pytest.mark.parametrize("read", READERS)
def test_what_a_process_left_is_found(
    read: Callable[[Path, Run], list[str]],
    ended: tuple[Path, str],
    configuration: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driftline: Run,
) -> None:
    place = tmp_path / "memory"
    shutil.copytree(ended[0], place)
    monkeypatch.setenv("LTM_CONFIG", str(configuration))
    monkeypatch.setenv("LTM_STORAGE_URI", str(place))
    deadline = time.monotonic() + MOMENT_SECONDS
    found: list[str] = []
    while not found and time.monotonic() < deadline:
        found = read(place, driftline)
        time.sleep(0.0 if found else 0.5)
    assert found == ["plan"]


@criterion("engine", "1", "a process that ends says nothing, and has flushed")
@pytest.mark.parametrize("ended", ["exit"], indirect=True)
def test_a_process_ends_without_a_complaint(ended: tuple[Path, str]) -> None:
    assert ended[1] == ""
    assert files(ended[0], "_index_delta_*.parquet")


# -- 2: reading one's own writes -------------------------------------------------------------


class Slow:
    """An embedder that holds every flush up, and says when one has begun."""

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
        assert slow.begun.wait(10)  # the flush in the background holds the write now
        assert [hit.record.key for hit in store.search_memory("parser")] == ["first"]
        slow.begun.clear()
        store.store("second", "namespace", "org:default")
        assert slow.begun.wait(10)
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
    """An engine that keeps the settings of its agent under ``name``."""

    def __init__(self, name: str, document: dict[str, Any]) -> None:
        self.on_close: list[Callable[[], None]] = []
        setattr(self, name, document["settings"] if name == "settings" else document)


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
    """The value is the user's: what looks like JSON in it is not read."""
    ok(registry["ltm.store"]({}, key="key", value='{"a": 1}'))
    assert ok(registry["ltm.retrieve"]({}, key="key"))["value"] == '{"a": 1}'


@criterion("engine", "7", "what an engine passes of its own is ignored")
def test_what_an_engine_passes_is_ignored(registry: dict[str, Run]) -> None:
    own = {"engine": object(), "node": "remember", "checkpoint_dir": None, "config": {}, "_private": 1}
    ok(registry["ltm.store"]({}, key="key", value=1, **own))
    assert ok(registry["ltm.retrieve"]({}, key="key", **own))["found"]


def kinds_of(error: type[errors.DriftlineError]) -> Iterator[str]:
    yield error.kind
    for below in error.__subclasses__():
        yield from kinds_of(below)
