"""What users may expect of memory, item by item: configuration, entities, boundaries, upkeep, answers, search."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st

import driftline as dl
from driftline.flows.memory.dict_backend import HierarchicalLTMBackend
from driftline.flows.memory.settings import find_memory, load_memory_configuration
from driftline.storage.errors import CatalogError
from driftline.storage.memory.catalog import writes as entry_rows
from tests.conformance.memory_places import (
    ACME,
    ALPHA,
    GLOBEX,
    LARGE,
    LEVELS,
    ROOT,
    S123,
    blobs,
    files,
    ok,
    open_backend,
    without_variables,
)
from tests.conformance.table import criterion
from tests.servers.postgres_server import PostgresServer

Run = Callable[..., Any]
SESSION: Any = ("session", "s123")
PROGRAM = "import sys; from driftline.flows.commands.main import command_line; sys.exit(command_line())"
COMMAND = (sys.executable, "-c", PROGRAM)
"""The command as its console script runs it."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of the store."""
    return tmp_path / "memory"


@pytest.fixture
def backend(place: Path, sqlite_catalog: str) -> Iterator[HierarchicalLTMBackend]:
    """A store of which nothing but its place is configured."""
    with open_backend(place, sqlite_catalog) as opened:
        yield opened


@pytest.fixture
def acme(place: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[HierarchicalLTMBackend]:
    """A store whose root is ``org:acme``."""
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "acme")
    with open_backend(place, sqlite_catalog) as opened:
        yield opened


# -- 1: configuration ------------------------------------------------------------------------


# -- 2: pairs --------------------------------------------------------------------------------


# -- 3: found by name ------------------------------------------------------------------------


# -- 4: the root -----------------------------------------------------------------------------


def ask_mcp(place: Path, question: dict[str, Any]) -> dict[str, Any]:
    """What the tool ``search_memory`` answers."""
    from mcp import Client

    from driftline.flows.mcp_server.server import make_server
    from driftline.storage.workspace.workspace import Workspace

    opened = Workspace.open(str(place))

    async def talk() -> Any:
        server = make_server(opened, find_memory(load_memory_configuration(), opened))
        async with Client(server, read_timeout_seconds=60) as client:
            return await client.call_tool("search_memory", question)

    outcome = asyncio.run(talk())
    assert not outcome.is_error, outcome
    found: dict[str, Any] = outcome.structured_content
    return found


# -- 5: a boundary ---------------------------------------------------------------------------

HIDDEN = "hidden"
"""Stands in every name and value that only the other organisation has, and in no argument of a test."""
ADJOINING = "adjoining"
"""Stands in the value that lies beside project alpha, in the same organisation."""
SECRETS = {ACME: (HIDDEN,), ALPHA: (HIDDEN, ADJOINING)}
"""What a store that is bound to an entity must never show."""


@dataclass(frozen=True)
class Walls:
    """A store of two organisations; what lies outside ``org:acme/project:alpha`` must neither show nor change."""

    place: Path
    model: Path

    def open(self, kind: str, within: str) -> Any:
        options: dict[str, Any] = {"within": within}
        if kind == "store":
            return dl.MemoryStore(str(self.place), **options)
        return open_backend(self.place, embedding={"model": str(self.model)}, **options)

    def outside(self, within: str) -> dict[str, Any]:
        """Everything outside ``within``, as an unbound store and the disk have it."""
        with dl.MemoryStore(str(self.place)) as store:
            everything = [
                entry
                for name in ("acme", "globex", "umbrella", "default")
                for entry in store.retrieve_by_entity("org", name, within=f"org:{name}").entries
            ]
            entities = [
                str(record.entity)
                for name in ("acme", "globex", "umbrella", "default")
                for record in store.list_entities(f"org:{name}")
            ]
        lies_within = f"{within}/"
        return {
            "entries": {
                (str(e.entity), e.key): (e.value, e.updated)
                for e in everything
                if not f"{e.entity}/".startswith(lies_within)
            },
            "entities": [name for name in entities if not f"{name}/".startswith(lies_within)],
            # Indexes of an ancestor change with what lies below it; those of others must stay.
            "files": [path for path in files(self.place, "*") if path.startswith("org:globex/")],
        }


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Walls:
    place = tmp_path_factory.mktemp("walls") / "memory"
    with pytest.MonkeyPatch.context() as patch:
        without_variables(patch)
        with open_backend(place, embedding={"model": str(tiny_model)}) as backend:
            ok(backend.store("plan", "our parser", S123))
            ok(backend.store("beside", f"{ADJOINING} parser", f"{ACME}/project:beta"))
            ok(backend.store("plan", f"{HIDDEN} parser {LARGE}", GLOBEX))
            ok(backend.store(f"{HIDDEN} key", f"{HIDDEN} parser", f"org:globex/project:{HIDDEN}", {"phase": HIDDEN}))
            with patch.context() as failing:
                failing.setattr(entry_rows, "put", _fail)
                assert not backend.store("lost", LARGE, GLOBEX)["success"]
    return Walls(place, tiny_model)


def _fail(*_: object) -> None:
    raise CatalogError("The catalog failed", "")


def _entity(name: str) -> st.SearchStrategy[Any]:
    pair: Any = ("org", name)
    return st.sampled_from(
        [f"org:{name}", pair, f"org:{name}/project:alpha", f"org:{name}/project:alpha/user:alice/session:s123"]
    )


ENTITIES = st.one_of(_entity("globex"), _entity("acme"), st.sampled_from(["project:alpha", "session:s123", SESSION]))
SOME_ENTITIES = st.none() | st.lists(ENTITIES, max_size=2)
KEYS = st.sampled_from(["plan", "beside", "new", "lost"])
FIELDS = st.sampled_from([None, {}, {"phase": "plan"}, {"entity": "org:globex"}, {"entity": ["org:globex", ACME]}])
STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "key": KEYS,
    "keys": st.lists(KEYS, max_size=3),
    "value": st.sampled_from([1, "text"]),
    "entity": ENTITIES,
    "scope": ENTITIES | st.none(),
    "within": ENTITIES | st.none(),
    "parent": ENTITIES,
    "entity_path": ENTITIES | st.none(),
    "after": st.none() | ENTITIES,
    "allowed_ancestors": SOME_ENTITIES,
    "metadata": FIELDS,
    "filter": FIELDS,
    "metadata_filter": FIELDS,
    "query": st.sampled_from(["", "parser", "plan"]),
    "entity_type": st.sampled_from(LEVELS),
    "type": st.none() | st.sampled_from(LEVELS),
    "entity_id": st.sampled_from(["globex", "acme", "alpha", "alice", "s123"]),
    "id": st.sampled_from(["globex", "acme", "alpha", "alice", "s123"]),
    "parents": st.sampled_from([None, {"org": "globex"}, {"org": "globex", "project": "alpha", "user": "alice"}]),
    "cascade": st.booleans(),
    "dry_run": st.booleans(),
    "include_descendants": st.booleans(),
    "max_age_seconds": st.just(0),
    "max_deltas": st.sampled_from([None, 0]),
    "max_depth": st.none(),
    "limit": st.sampled_from([0, 1, 1000]),
    "top_k": st.sampled_from([0, 20]),
    "items": st.tuples(KEYS, ENTITIES).map(lambda pair: [{"key": pair[0], "value": 1, "entity": pair[1]}]),
    "range": st.none(),
    "group_by": st.none() | st.sampled_from(LEVELS),
}


# -- 6: the application's database -----------------------------------------------------------


@pytest.fixture(scope="module")
def index_only(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A workspace that was indexed and never remembered anything."""
    place = tmp_path_factory.mktemp("index-only")
    (place / "tree").mkdir()
    (place / "tree" / "notes.txt").write_text("parser\nnamespace\n")
    dl.index(str(place / "tree"), workspace=str(place / "ws"), model=str(tiny_model))
    return place / "ws"


TABLES = ("entries", "entities", "owners", "outbox", "tenants", "about", "closure", "retired_blobs")


@criterion("memory", "6", "the tables are called ltm_..., with a version table of their own")
def test_the_tables_carry_a_prefix(place: Path, tmp_path: Path) -> None:
    with open_backend(place, f"sqlite:///{tmp_path}/catalog.sqlite") as backend:
        ok(backend.store("key", 1, S123))
    with sqlite3.connect(tmp_path / "catalog.sqlite") as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        names = {name for (name,) in connection.execute(query)}
    assert names >= {"ltm_entries", "ltm_entities", "ltm_entity_closure", "ltm_entry_owners"}
    assert [name for name in names if not name.startswith("ltm_")] == []
    assert any("version" in name for name in names)


@criterion("memory", "6", "the catalog lives beside the application's tables and Alembic history")
def test_the_catalog_lives_beside_an_application(place: Path, postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)")
        connection.execute("INSERT INTO alembic_version VALUES ('9f3e')")
        for name in TABLES:
            connection.execute(f"CREATE TABLE {name} (note text)".encode())
            connection.execute(f"INSERT INTO {name} VALUES ('of the application')".encode())
    with open_backend(place, url) as backend:
        ok(backend.store("key", 1, S123))
    with open_backend(place, url) as backend:
        assert ok(backend.retrieve("key", ACME))["value"] == 1
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9f3e",)]
        for name in TABLES:
            assert connection.execute(f"SELECT note FROM {name}".encode()).fetchall() == [("of the application",)]


# -- 7: upkeep -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damaged:
    """A workspace whose catalog lies elsewhere: one entry, whose blob is gone, and one blob without an entry."""

    place: Path
    catalog: str
    orphan: str


@pytest.fixture
def damaged(place: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch) -> Damaged:
    with open_backend(place, sqlite_catalog) as backend:
        ok(backend.store("key", LARGE, S123))
        (place / blobs(place)[0]).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(entry_rows, "put", _fail)
            assert not backend.store("lost", LARGE, S123)["success"]
    (orphan,) = blobs(place)
    return Damaged(place, sqlite_catalog, orphan)


@pytest.fixture(params=["LTM_CONFIG", "driftline.toml"])
def configured(
    request: pytest.FixtureRequest, damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Damaged:
    """The same, with its catalog configured in a file: as settings.ltm, or as the table [memory] with its sections."""
    if request.param == "LTM_CONFIG":
        path = tmp_path / "agent.yaml"
        path.write_text(
            f"settings: {{ltm: {{catalog: {{url: '{damaged.catalog}'}}, index: {{compaction_threshold: 1}}}}}}"
        )
        monkeypatch.setenv("LTM_CONFIG", str(path))
    else:
        path = tmp_path / "driftline.toml"
        path.write_text(
            f'workspace = "{damaged.place}"\n[memory.catalog]\nurl = "{damaged.catalog}"\n'
            "[memory.index]\ncompaction_threshold = 1\n"
        )
        monkeypatch.setenv("DRIFTLINE_CONFIG", str(path))
    return damaged


# -- 8: compaction ---------------------------------------------------------------------------


@pytest.fixture
def two_organisations(backend: HierarchicalLTMBackend) -> HierarchicalLTMBackend:
    """Two entries of acme, one of globex, two deltas in each index."""
    for n, owner in enumerate((S123, f"{ALPHA}/user:bob")):
        ok(backend.store(f"key {n}", n, owner))
        ok(backend.store("key", n, GLOBEX))
        backend.core.flush()
    return backend


# -- 9: arguments and answers ----------------------------------------------------------------


@criterion("memory", "9", "the typed API gives None on a miss")
def test_the_typed_retrieve_gives_none_on_a_miss(place: Path) -> None:
    with dl.MemoryStore(str(place)) as store:
        assert store.retrieve("nothing") is None


@criterion("memory", "9", "the backend, the hit and the errors are public")
def test_the_names_of_memory_are_public() -> None:
    names = ["HierarchicalLTMBackend", "MemoryHit", "MemoryEntry", "MemoryItem", "MemoryStore", "DriftlineError"]
    names += ["StorageError", "CatalogError", "CatalogConnectionError", "BadEntity", "BadEntry", "UsageError"]
    assert [name for name in names if name not in dl.__all__] == []
    assert all(isinstance(getattr(dl, name), type) for name in names)


# -- 10: defaults ----------------------------------------------------------------------------


# -- 11: DuckDB ------------------------------------------------------------------------------


def keeps_duckdb() -> bool:
    return '"duckdb' in (ROOT / "pyproject.toml").read_text()


# -- 12: search ------------------------------------------------------------------------------


@pytest.fixture
def remembered(place: Path, tiny_model: Path) -> Iterator[HierarchicalLTMBackend]:
    """Four notes, one of which nothing but a name tells apart."""
    with open_backend(place, embedding={"model": str(tiny_model)}) as backend:
        notes: dict[str, tuple[str, dict[str, Any]]] = {
            "names": ("call acquireLease before the commit", {"entity": "invoice", "n": 1, "ratio": 0.5}),
            "parser": ("the parser of arguments", {"entity": "order", "n": 2.0}),
            "other": ("a namespace of its own", {"n": 2**40}),
            "huge": ("a subcommand", {"n": 10**20}),
        }
        for key, (text, metadata) in notes.items():
            ok(backend.store(key, text, None, metadata))
        yield backend


def hits(answer: Any) -> list[str]:
    return [hit["record"]["key"] for hit in ok(answer)["results"]]


# -- 13: figures -----------------------------------------------------------------------------


@cache
def _benchmark_help() -> str:
    program = str(ROOT / "tests" / "benchmarks" / "memory_store.py")
    return subprocess.run([sys.executable, program, "--help"], capture_output=True, text=True, check=True).stdout
