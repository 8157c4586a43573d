"""Memory: configuration, entities, boundaries, maintenance, responses and search."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
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
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.config.memory_settings import MemoryConfiguration, find_memory, load_memory_configuration
from driftline.flows.memory_backend import HierarchicalLTMBackend
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.verify_and_repair import VerifyRequest, verify_workspace
from driftline.storage.errors import BadEntity, BadEntry, CatalogError, DriftlineError
from driftline.storage.memory.catalog import entry_writes
from driftline.storage.memory.store import MemoryItem
from tests.conformance.memory_support import (
    ACME,
    ALICE,
    ALPHA,
    GLOBEX,
    LARGE,
    LEVELS,
    LINEAGE,
    NOWHERE,
    PARENTS,
    ROOT,
    S123,
    arguments,
    blobs,
    decided,
    files,
    keys,
    ok,
    open_backend,
    public_calls,
    reference_pages,
    without_variables,
)
from tests.conformance.table import criterion
from tests.servers.postgres_server import PostgresServer
from tests.support.processes import forked_command
from tests.support.waiting import PATIENCE_SECONDS

Run = Callable[..., Any]
SESSION: Any = ("session", "s123")
PROGRAM = "import sys; from driftline.flows.commands.main import command_line; sys.exit(command_line())"
COMMAND = (sys.executable, "-c", PROGRAM)
"""The command, run like its console script."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The store's folder."""
    return tmp_path / "memory"


@pytest.fixture
def backend(folder: Path, sqlite_catalog: str) -> Iterator[HierarchicalLTMBackend]:
    """A store with only its location configured."""
    with open_backend(folder, sqlite_catalog) as opened:
        yield opened


@pytest.fixture
def acme(folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[HierarchicalLTMBackend]:
    """A store whose root is ``org:acme``."""
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "acme")
    with open_backend(folder, sqlite_catalog) as opened:
        yield opened


# -- 1: configuration ------------------------------------------------------------------------


@criterion("memory", "1", "catalog.type may be sqlalchemy, whatever the database")
@pytest.mark.parametrize("url", ["sqlite:///catalog.sqlite", "postgresql://db/memory", "postgresql+psycopg2://db/m"])
def test_the_type_of_the_catalog_may_be_sqlalchemy(url: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"settings: {{ltm: {{catalog: {{type: sqlalchemy, url: '{url}'}}}}}}")
    assert load_memory_configuration(path, {}).catalog.url == url


@criterion("memory", "1", "the factory takes the sections of the file, too")
def test_the_factory_takes_sections(folder: Path, sqlite_catalog: str) -> None:
    with dl.create_ltm_backend(
        "hierarchical",
        catalog={"type": "sqlalchemy", "url": sqlite_catalog, "pool_size": 3},
        storage={"uri": f"file://{folder}"},
        hierarchy={"levels": LEVELS, "root_entity": {"type": "org", "id": "acme"}, "defaults": {"project": "none"}},
        performance={"metadata_cache": {"enabled": False}, "parallel_reads": {"threads": 2}},
        index={"format": "parquet", "row_group_size": 122880, "compression": "zstd", "compaction_threshold": 9},
        embedding={"enabled": False},
    ) as backend:
        found = backend.configuration
        assert (found.catalog.pool_size, found.performance.parallel_reads.threads) == (3, 2)
        assert (found.performance.metadata_cache.enabled, found.index.compaction_threshold) == (False, 9)
        assert ok(backend.store("key", 1, "user:alice"))["entity"] == "org:acme/project:none/user:alice"


@criterion("memory", "1", "sections and flat arguments go together, and the flat ones win")
def test_flat_arguments_and_sections_go_together(folder: Path, sqlite_catalog: str) -> None:
    with dl.create_ltm_backend(
        "hierarchical",
        catalog_url=sqlite_catalog,
        catalog={"pool_size": 3},
        storage_uri=str(folder),
        storage={"uri": "file:///nowhere"},
        hierarchy_levels=LEVELS,
        hierarchy={"root_entity": {"id": "acme"}},
        embedding={"enabled": False},
    ) as backend:
        assert backend.configuration.catalog.pool_size == 3
        assert ok(backend.store("key", 1))["entity"] == ACME
    assert folder.exists()


@criterion("memory", "1", "postgresql+psycopg2:// is understood")
def test_the_url_may_name_the_driver_of_the_documents(folder: Path, postgres_catalog: str) -> None:
    with open_backend(folder, postgres_catalog.replace("postgresql:", "postgresql+psycopg2:")) as backend:
        ok(backend.store("key", 1, S123))
        assert ok(backend.retrieve("key", ACME))["value"] == 1


# -- 2: pairs --------------------------------------------------------------------------------


@criterion("memory", "2", "an entity may be a pair wherever one is taken")
def test_an_entity_may_be_a_pair_everywhere(acme: HierarchicalLTMBackend) -> None:
    user: Any = ("user", "alice")
    beta: Any = ("project", "beta")
    assert acme.register_entity_with_defaults("session", "s123", PARENTS) == S123
    assert ok(acme.store("key", 1, SESSION))["entity"] == S123
    assert ok(acme.store_many([{"key": "other", "value": 2, "entity": SESSION}]))["stored"] == 1
    assert ok(acme.retrieve("key", SESSION))["value"] == 1
    assert set(ok(acme.retrieve_batch(["key", "other"], user))["entries"]) == {"key", "other"}
    assert keys(acme.retrieve_by_entity("session", "s123", within=user)) == ["key", "other"]
    assert keys(acme.retrieve_by_entity("session", "s123", allowed_ancestors=[user])) == ["key", "other"]
    assert keys(acme.search("key", None, SESSION)) == ["key"]
    assert ok(acme.list_entities(user))["entities"] == [S123]
    assert ok(acme.register_entity(beta))["entity"] == f"{ACME}/project:beta"
    assert ok(acme.move_entity(user, beta))["entity"] == f"{ACME}/project:beta/user:alice"
    assert ok(acme.delete("key", SESSION))["deleted"]
    assert ok(acme.delete_entity(user, cascade=True))["entries_deleted"] == 1


@criterion("memory", "2", "the typed store takes pairs, too")
def test_the_typed_store_takes_pairs(folder: Path) -> None:
    with dl.MemoryStore(str(folder)) as store:
        store.store("key", 1, SESSION)
        store.store_many([MemoryItem("other", 2, SESSION)])
        assert sorted(entry.key for entry in store.search("", None, SESSION)) == ["key", "other"]
        record = store.get_entity(SESSION)
        assert record is not None
        assert record.entity.id == "s123"


@criterion("memory", "2", "in actions a pair is a list")
def test_a_pair_is_a_list_in_actions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTM_STORAGE_URI", str(folder))
    registry: dict[str, Run] = {}
    register_actions(registry)
    session = ["session", "s123"]
    ok(registry["ltm.store"]({}, key="key", value=1, entity=session))
    assert ok(registry["ltm.retrieve"]({}, key="key", entity=session))["value"] == 1
    assert keys(registry["ltm.search"]({}, query="key", entity=session)) == ["key"]
    assert keys(
        registry["ltm.retrieve_by_entity"]({}, entity_type="session", entity_id="s123", allowed_ancestors=[session])
    ) == ["key"]
    assert ok(registry["ltm.delete"]({}, key="key", entity=session))["deleted"]


# -- 3: found by name ------------------------------------------------------------------------


@criterion("memory", "3", "a registered entity is found by its name, for writes and reads")
@pytest.mark.parametrize("root", [None, "acme"])
def test_a_registered_entity_is_found_by_its_name(
    root: str | None, folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a configured root, the name is found in any organization; with a root, only under it."""
    if root:
        monkeypatch.setenv("LTM_ROOT_ENTITY_ID", root)
    with open_backend(folder, sqlite_catalog) as backend:
        assert backend.register_entity_with_defaults("session", "s123", parents=PARENTS) == S123
        assert ok(backend.store("key", 1, "session:s123"))["entity"] == S123
        assert ok(backend.retrieve("key", "session:s123"))["value"] == 1
        assert keys(backend.search("", None, "user:alice")) == ["key"]
        assert keys(backend.retrieve_by_entity("session", "s123")) == ["key"]
        assert keys(backend.retrieve_by_entity("project", "alpha")) == ["key"]
        assert ok(backend.list_entities("user:alice"))["entities"] == [S123]
        assert ok(backend.store("below", 1, "user:alice/session:new"))["entity"] == f"{ALICE}/session:new"
        assert ok(backend.delete("key", "session:s123"))["deleted"]


@criterion("memory", "3", "two entities of one name are an error that lists them")
def test_two_entities_of_one_name_are_an_error_that_lists_them(acme: HierarchicalLTMBackend) -> None:
    other = f"{ACME}/project:beta/user:bob/session:s123"
    for path in (S123, other):
        ok(acme.register_entity(path))
    for answer in (acme.store("key", 1, "session:s123"), acme.retrieve("key", "session:s123")):
        assert (answer["success"], answer.get("error_type")) == (False, "bad_entity")
        assert S123 in answer["error"]
        assert other in answer["error"]
    with pytest.raises(BadEntity):
        acme.core.store("key", 1, "session:s123")
    assert ok(acme.store("key", 1, other))["entity"] == other


@criterion("memory", "3", "only an unknown entity gets defaults")
def test_only_an_unknown_entity_gets_defaults(acme: HierarchicalLTMBackend) -> None:
    assert acme.register_entity_with_defaults("session", "s123", parents=PARENTS) == S123
    assert ok(acme.store("known", 1, "session:s123"))["entity"] == S123
    unknown = f"{ACME}/project:_unassigned/user:_unassigned/session:s9"
    assert ok(acme.store("unknown", 1, "session:s9"))["entity"] == unknown
    assert ok(acme.retrieve("unknown", "session:s9"))["value"] == 1


@criterion("memory", "3", "an entity of another organization is not what a name means")
def test_a_name_does_not_lead_to_another_organization(
    acme: HierarchicalLTMBackend, folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(acme.register_entity(S123))
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "globex")
    with open_backend(folder, sqlite_catalog) as globex:
        ok(globex.register_entity(GLOBEX))
    assert ok(acme.store("key", 1, "session:s123"))["entity"] == S123


# -- 4: the root -----------------------------------------------------------------------------


def ask_mcp(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Return the response of the tool ``search_memory``."""
    from driftline.storage.workspace.workspace import Workspace
    from tests.support.mcp import make_server

    opened = Workspace.open(str(folder))

    async def talk() -> Any:
        server = make_server(opened, find_memory(load_memory_configuration(), opened))
        async with Client(server, read_timeout_seconds=PATIENCE_SECONDS) as client:
            return await client.call_tool("search_memory", question)

    outcome = asyncio.run(talk())
    assert not outcome.is_error, outcome
    found: dict[str, Any] = outcome.structured_content
    return found


@criterion("memory", "4", "what names no organization is in that of the root")
def test_names_without_an_organization_are_in_the_root(acme: HierarchicalLTMBackend) -> None:
    assert ok(acme.store("a", 1))["entity"] == ACME
    assert ok(acme.store("b", 1, "project:alpha"))["entity"] == ALPHA
    filled = f"{ACME}/project:_unassigned/user:bob"
    assert acme.register_entity_with_defaults("user", "bob") == filled
    assert ok(acme.register_entity("project:beta"))["entity"] == f"{ACME}/project:beta"
    assert ok(acme.list_entities("project:_unassigned"))["entities"] == [filled]
    assert ok(acme.retrieve("b", "project:alpha"))["value"] == 1
    assert keys(acme.retrieve_by_entity("project", "alpha", within="project:alpha")) == ["b"]
    assert keys(acme.retrieve_by_entity("project", "alpha", allowed_ancestors=["project:alpha"])) == ["b"]
    assert keys(acme.search("", None, None, allowed_ancestors=["project:alpha"])) == ["b"]
    assert ok(acme.store_many([{"key": "c", "value": 1, "entity": "user:carol"}]))
    assert ok(acme.retrieve("c"))["entry"]["entity"] == f"{ACME}/project:_unassigned/user:carol"


@criterion("memory", "4", "a default for the organization does not beat the root")
def test_the_root_wins_over_the_default_of_its_level(
    folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "acme")
    with open_backend(folder, sqlite_catalog, hierarchy_defaults={"org": "default"}) as backend:
        assert ok(backend.store("key", 1, "project:alpha"))["entity"] == ALPHA


@criterion("memory", "4", "the command line and MCP look in the root")
def test_the_command_line_and_mcp_look_in_the_root(
    folder: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driftline: Run
) -> None:
    (tmp_path / "memory.yaml").write_text(f"settings: {{ltm: {{embedding: {{model: '{tiny_model}'}}}}}}")
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "acme")

    def run(*words: str) -> Any:
        return driftline("memory", *words, "--workspace", folder, "--json")

    assert run("put", "plan", "parser", "--entity", "project:alpha").json["entity"] == ALPHA
    assert run("get", "plan").json["value"] == "parser"
    assert run("get", "plan", "--in", "project:alpha").code == 0
    assert run("list", "project:alpha").json["entity"] == ALPHA
    assert [hit["record"]["key"] for hit in run("search", "parser", "--in", "project:alpha").json["results"]] == [
        "plan"
    ]
    (hit,) = ask_mcp(folder, {"query": "parser", "entity": "project:alpha"})["results"]
    assert hit["record"]["entity"] == ALPHA


@criterion("memory", "4", "either half of the root's variables works alone")
@pytest.mark.parametrize(
    ("variable", "value", "root"),
    [("LTM_ROOT_ENTITY_ID", "acme", ACME), ("LTM_ROOT_ENTITY_TYPE", "org", "org:default")],
)
def test_type_and_id_of_the_root_work_alone(
    variable: str, value: str, root: str, folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with open_backend(folder, sqlite_catalog) as backend:
        assert ok(backend.store("key", 1))["entity"] == root


# -- 5: a boundary ---------------------------------------------------------------------------

HIDDEN = "hidden"
"""Part of every name and value of the other organization only; no test passes it as an argument."""
ADJOINING = "adjoining"
"""Part of the value of project alpha's sibling in the same organization."""
SECRETS = {ACME: (HIDDEN,), ALPHA: (HIDDEN, ADJOINING)}
"""Values that a store bound to an entity must never show."""


@dataclass(frozen=True)
class Walls:
    """A store that holds two organizations; nothing outside ``org:acme/project:alpha`` may be shown or changed."""

    folder: Path
    model: Path

    def open(self, kind: str, within: str) -> Any:
        options: dict[str, Any] = {"within": within}
        if kind == "store":
            return dl.MemoryStore(str(self.folder), **options)
        return open_backend(self.folder, embedding={"model": str(self.model)}, **options)

    def outside(self, within: str) -> dict[str, Any]:
        """Return everything outside ``within``, read through an unbound store and from disk."""
        with dl.MemoryStore(str(self.folder)) as store:
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
            # The indexes of an ancestor change with its descendants; other indexes must stay.
            "files": [path for path in files(self.folder, "*") if path.startswith("org:globex/")],
        }


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Walls:
    folder = tmp_path_factory.mktemp("walls") / "memory"
    with pytest.MonkeyPatch.context() as patch:
        without_variables(patch)
        with open_backend(folder, embedding={"model": str(tiny_model)}) as backend:
            ok(backend.store("plan", "our parser", S123))
            ok(backend.store("beside", f"{ADJOINING} parser", f"{ACME}/project:beta"))
            ok(backend.store("plan", f"{HIDDEN} parser {LARGE}", GLOBEX))
            ok(backend.store(f"{HIDDEN} key", f"{HIDDEN} parser", f"org:globex/project:{HIDDEN}", {"phase": HIDDEN}))
            with patch.context() as failing:
                failing.setattr(entry_writes, "put", _fail)
                assert not backend.store("lost", LARGE, GLOBEX)["success"]
    return Walls(folder, tiny_model)


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


@criterion("memory", "5", "whatever a bound store is asked, nothing outside is read, written or revealed")
@pytest.mark.parametrize("kind", ["backend", "store"])
@pytest.mark.parametrize("within", [ACME, ALPHA])
def test_no_public_call_leaves_its_boundary(kind: str, within: str, walls: Walls, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    shutil.copytree(walls.folder, folder)
    bounded = Walls(folder, walls.model)
    before = bounded.outside(within)
    with bounded.open(kind, within) as target:
        calls = public_calls(target)

        # Calls build on each other, so Hypothesis could not shrink a failure.
        @settings(max_examples=60, deadline=None, phases=[Phase.generate], database=None)
        @given(st.data())
        def requested(data: st.DataObject) -> None:
            name = data.draw(st.sampled_from(sorted(calls)))
            drawn = {key: data.draw(each) for key, each in STRATEGIES.items() if key in calls[name].parameters}
            if kind == "store" and "items" in drawn:
                drawn["items"] = [MemoryItem(**item) for item in drawn["items"]]
            if kind == "store" and name == "retrieve_by_entity":
                drawn["type"] = drawn["type"] or "org"
            try:
                answer = repr(getattr(target, name)(**arguments(calls[name], drawn)))
            except DriftlineError as error:
                answer = str(error)
            assert not any(secret in answer for secret in SECRETS[within]), (name, drawn)

        requested()
    assert bounded.outside(within) == before


@criterion("memory", "5", "an entity outside that exists is told like one that does not")
def test_an_error_does_not_reveal_what_exists_outside(walls: Walls, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    shutil.copytree(walls.folder, folder)
    with Walls(folder, walls.model).open("backend", ACME) as backend:
        for name in ("retrieve", "delete", "register_entity", "delete_entity", "list_entities", "search"):
            said = []
            for org in ("globex", "umbrella"):
                given = {
                    "key": "plan",
                    "query": "",
                    "entity": f"org:{org}/project:alpha",
                    "within": f"org:{org}/project:alpha",
                }
                answer = getattr(backend, name)(**arguments(public_calls(backend)[name], given))
                said.append(json.dumps(answer).replace(org, "that"))
            assert said[0] == said[1], name


@criterion("memory", "5", "upkeep of a bound store counts and touches what lies within")
@pytest.mark.parametrize("within", [ACME, ALPHA])
def test_the_maintenance_of_a_bound_store_stays_within_its_boundary(within: str, walls: Walls, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    shutil.copytree(walls.folder, folder)
    with Walls(folder, walls.model).open("backend", within) as backend:
        cleaned = ok(backend.cleanup_orphans(0, True))
        assert (cleaned["orphan_count"], cleaned["deleted_count"]) == (0, 0)
        assert "globex" not in json.dumps(cleaned)
        compacted = ok(backend.compact_indexes(None, 0))
        assert compacted["compacted_paths"]
        assert all(f"{path}/".startswith(f"{within}/") for path in compacted["compacted_paths"])


@criterion("memory", "5", "a bound store takes its boundary for its root")
@pytest.mark.parametrize("within", [ACME, ALPHA])
def test_the_boundary_is_the_root(within: str, folder: Path) -> None:
    with open_backend(folder, within=within) as backend:
        assert ok(backend.store("key", 1))["entity"] == within
        assert ok(backend.store("deep", 1, "session:s1"))["entity"].startswith(f"{within}/")
        assert ok(backend.retrieve("key"))["value"] == 1
        assert not backend.store("outside", 1, GLOBEX)["success"]


@criterion("memory", "5", "actions can be bound")
def test_actions_can_be_bound(walls: Walls, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "memory"
    shutil.copytree(walls.folder, folder)
    monkeypatch.setenv("LTM_STORAGE_URI", str(folder))
    (tmp_path / "memory.yaml").write_text(f"settings: {{ltm: {{embedding: {{model: '{tiny_model}'}}}}}}")
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    before = Walls(folder, tiny_model).outside(ALPHA)
    registry: dict[str, Run] = {}
    options: dict[str, Any] = {"within": ALPHA}
    register_actions(registry, **options)
    assert ok(registry["ltm.retrieve"]({}, key="plan"))["value"] == "our parser"
    answers = [
        registry[name]({}, **given, entity=outside)
        for outside in (GLOBEX, "org:globex", f"{ACME}/project:beta", ["org", "globex"])
        for name, given in (
            ("ltm.store", {"key": "plan", "value": 1}),
            ("ltm.retrieve", {"key": "plan"}),
            ("ltm.delete", {"key": "plan"}),
            ("ltm.search", {"query": ""}),
            ("memory.search", {"query": "parser"}),
        )
    ]
    answers += [
        registry["ltm.retrieve_by_entity"]({}, entity_type="org", entity_id=name, within=f"org:{name}")
        for name in ("globex", "acme")
    ]
    assert not any(secret in json.dumps(answer) for secret in SECRETS[ALPHA] for answer in answers)
    assert Walls(folder, tiny_model).outside(ALPHA) == before


@criterion("memory", "5", "driftline mcp --within serves one entity")
def test_the_mcp_server_can_be_bound(walls: Walls, tmp_path: Path, tiny_model: Path) -> None:
    import os

    (tmp_path / "memory.yaml").write_text(f"settings: {{ltm: {{embedding: {{model: '{tiny_model}'}}}}}}")
    environment = {**os.environ, "LTM_CONFIG": str(tmp_path / "memory.yaml")}
    command = ["mcp", "--workspace", str(walls.folder), "--within", ALPHA]
    questions: list[dict[str, Any]] = [{"query": "parser"}]
    questions += [{"query": "parser", "entity": outside} for outside in ("org:globex", GLOBEX, ACME)]
    questions += [{"query": "parser", "filter": {"entity": "org:globex"}}]

    async def talk() -> list[Any]:
        server = StdioServerParameters(command=str(forked_command()), args=command, env=environment)
        async with Client(server, read_timeout_seconds=PATIENCE_SECONDS) as client:
            return [await client.call_tool("search_memory", question) for question in questions]

    first, *others = asyncio.run(talk())
    assert [hit["record"]["value"] for hit in first.structured_content["results"]] == ["our parser"]
    assert not any(secret in repr(outcome) for secret in SECRETS[ALPHA] for outcome in others)


# -- 6: the application's database -----------------------------------------------------------


@pytest.fixture(scope="module")
def index_only(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """An indexed workspace without memory."""
    folder = tmp_path_factory.mktemp("index-only")
    (folder / "tree").mkdir()
    (folder / "tree" / "notes.txt").write_text("parser\nnamespace\n")
    dl.index(str(folder / "tree"), workspace=str(folder / "ws"), model=str(tiny_model))
    return folder / "ws"


TABLES = ("entries", "entities", "owners", "outbox", "tenants", "about", "closure", "retired_blobs")


@criterion("memory", "6", "the tables are called ltm_..., with a version table of their own")
def test_the_tables_carry_a_prefix(folder: Path, tmp_path: Path) -> None:
    with open_backend(folder, f"sqlite:///{tmp_path}/catalog.sqlite") as backend:
        ok(backend.store("key", 1, S123))
    with sqlite3.connect(tmp_path / "catalog.sqlite") as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        names = {name for (name,) in connection.execute(query)}
    assert names >= {"ltm_entries", "ltm_entities", "ltm_entity_closure", "ltm_entry_owners"}
    assert [name for name in names if not name.startswith("ltm_")] == []
    assert any("version" in name for name in names)


@criterion("memory", "6", "the catalog lives beside the application's tables and Alembic history")
def test_the_catalog_shares_a_database_with_an_application(folder: Path, postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)")
        connection.execute("INSERT INTO alembic_version VALUES ('9f3e')")
        for name in TABLES:
            connection.execute(f"CREATE TABLE {name} (note text)".encode())
            connection.execute(f"INSERT INTO {name} VALUES ('of the application')".encode())
    with open_backend(folder, url) as backend:
        ok(backend.store("key", 1, S123))
    with open_backend(folder, url) as backend:
        assert ok(backend.retrieve("key", ACME))["value"] == 1
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9f3e",)]
        for name in TABLES:
            assert connection.execute(f"SELECT note FROM {name}".encode()).fetchall() == [("of the application",)]


@criterion("memory", "6", "an index without memory never connects to DATABASE_URL")
@pytest.mark.parametrize("command", ["cleanup", "verify", "compact", "status"])
def test_an_index_without_memory_never_connects_to_a_catalog(
    command: str, index_only: Path, monkeypatch: pytest.MonkeyPatch, driftline: Run
) -> None:
    monkeypatch.setenv("DATABASE_URL", NOWHERE)
    assert driftline(command, "--workspace", index_only).code == 0


@criterion("memory", "6", "the MCP server of an index does not connect, either")
@pytest.mark.parametrize("url", [NOWHERE, "mysql://app:secret@localhost/shop"])
def test_the_mcp_server_of_an_index_never_connects_to_a_catalog(
    url: str, index_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    done = subprocess.run(
        [str(forked_command()), "mcp", "--workspace", str(index_only)],
        env={**os.environ, "DATABASE_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# -- 7: upkeep -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damaged:
    """A workspace with an external catalog: one entry with a missing blob, and one blob without an entry."""

    folder: Path
    catalog: str
    orphan: str


@pytest.fixture
def damaged(folder: Path, sqlite_catalog: str, monkeypatch: pytest.MonkeyPatch) -> Damaged:
    with open_backend(folder, sqlite_catalog) as backend:
        ok(backend.store("key", LARGE, S123))
        (folder / blobs(folder)[0]).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(entry_writes, "put", _fail)
            assert not backend.store("lost", LARGE, S123)["success"]
    (orphan,) = blobs(folder)
    return Damaged(folder, sqlite_catalog, orphan)


@pytest.fixture(params=["LTM_CONFIG", "driftline.toml"])
def configured(
    request: pytest.FixtureRequest, damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Damaged:
    """The same, with the catalog configured in a file: under settings.ltm, or in the table [memory] and its
    sections.
    """
    if request.param == "LTM_CONFIG":
        path = tmp_path / "agent.yaml"
        path.write_text(
            f"settings: {{ltm: {{catalog: {{url: '{damaged.catalog}'}}, index: {{compaction_threshold: 1}}}}}}"
        )
        monkeypatch.setenv("LTM_CONFIG", str(path))
    else:
        path = tmp_path / "driftline.toml"
        path.write_text(
            f'workspace = "{damaged.folder}"\n[memory.catalog]\nurl = "{damaged.catalog}"\n'
            "[memory.index]\ncompaction_threshold = 1\n"
        )
        monkeypatch.setenv("DRIFTLINE_CONFIG", str(path))
    return damaged


@criterion("memory", "7", "verify looks at the catalog that is configured")
def test_verify_knows_the_catalog(configured: Damaged, driftline: Run) -> None:
    outcome = driftline("verify", "--workspace", configured.folder, "--json")
    assert (outcome.code, outcome.json["memory_entries"]) == (3, 1)
    assert outcome.json["findings"]


@criterion("memory", "7", "cleanup looks at the catalog that is configured")
def test_cleanup_knows_the_catalog(configured: Damaged, driftline: Run) -> None:
    outcome = driftline("cleanup", "--workspace", configured.folder, "--max-age-seconds", 0, "--delete", "--json")
    assert outcome.code == 0
    assert any(path.endswith(configured.orphan) for path in outcome.json["deleted_paths"])


@criterion("memory", "7", "compact goes by the compaction_threshold that is configured")
def test_compact_knows_the_threshold(configured: Damaged, driftline: Run) -> None:
    with open_backend(configured.folder, configured.catalog) as backend:
        for n in range(2):
            ok(backend.store(f"key {n}", n, S123))
            backend.core.flush()
    assert driftline("compact", "--workspace", configured.folder).code == 0
    assert not files(configured.folder, "_index_delta_*.parquet")


@criterion("memory", "7", "what the Prefect flows call knows the configuration, too")
@pytest.mark.parametrize("configured", ["LTM_CONFIG"], indirect=True)
def test_the_flows_use_the_configuration(configured: Damaged) -> None:
    """The compaction, cleanup and verification flows pass the same requests to these functions."""
    folder = str(configured.folder)
    report = verify_workspace(VerifyRequest(folder))
    assert report.memory_entries == 1
    cleaned = clean_workspace(CleanupRequest(folder, 0.0, dry_run=True))
    assert any(each.path.endswith(configured.orphan) for each in cleaned.orphans)
    unlimited = {"compaction_threshold": 100}  # with that of the configuration, the store would compact its indexes
    with open_backend(configured.folder, configured.catalog, index_config=unlimited) as backend:
        for n in range(2):
            ok(backend.store(f"key {n}", n, S123))
            backend.core.flush()
    compacted = compact_workspace(CompactRequest(folder))
    assert set(LINEAGE) <= {path for tenant in compacted.tenants for path in tenant.folded}


@criterion("memory", "7", "verify says that it did not look at a memory whose catalog it does not know")
def test_verify_never_passes_silently(damaged: Damaged, driftline: Run) -> None:
    outcome = driftline("verify", "--workspace", damaged.folder, "--json")
    assert outcome.code != 0 or any("catalog" in text for text in outcome.json["skipped"])


@criterion("memory", "7", "LTM_COMPACTION_THRESHOLD counts for the command line")
def test_the_threshold_can_be_set_in_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, driftline: Run
) -> None:
    with open_backend(folder) as backend:
        for n in range(3):
            ok(backend.store(f"key {n}", n, S123))
            backend.core.flush()
    monkeypatch.setenv("LTM_COMPACTION_THRESHOLD", "2")
    assert driftline("compact", "--workspace", folder).code == 0
    assert not files(folder, "_index_delta_*.parquet")


@criterion("memory", "7", "memory asks for its compaction, with the event of the sources")
def test_memory_asks_for_its_compaction(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If indexes have more deltas than the threshold, compaction is requested no later than when the store closes."""
    from prefect.events.clients import AssertingEventsClient
    from prefect.events.worker import EventsWorker

    sent: list[Any] = []
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setattr(EventsWorker, "_client_override", (AssertingEventsClient, ()))
    monkeypatch.setattr(EventsWorker, "send", lambda worker, event: sent.append(event))
    with open_backend(folder, index_config={"compaction_threshold": 1}) as backend:
        for n in range(3):
            ok(backend.store(f"key {n}", n, S123))
            backend.core.flush()
    requested = [event for event in sent if event.event == "driftline.deltas.threshold"]
    assert requested
    assert str(folder) in {event.payload["workspace"] for event in requested}


# -- 8: compaction ---------------------------------------------------------------------------


@pytest.fixture
def two_organizations(backend: HierarchicalLTMBackend) -> HierarchicalLTMBackend:
    """Two acme entries, one globex entry, and two deltas in each index."""
    for n, owner in enumerate((S123, f"{ALPHA}/user:bob")):
        ok(backend.store(f"key {n}", n, owner))
        ok(backend.store("key", n, GLOBEX))
        backend.core.flush()
    return backend


@criterion("memory", "8", "without a path all indexes with more than max_deltas are compacted")
def test_all_indexes_are_compacted_without_a_path(two_organizations: HierarchicalLTMBackend, folder: Path) -> None:
    answer = ok(two_organizations.compact_indexes(None, max_deltas=1))
    parts = GLOBEX.split("/")
    lineage = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    assert sorted(answer["compacted_paths"]) == sorted([ACME, ALPHA, *lineage])
    assert answer["entries_processed"] == 3  # two acme entries, one globex entry


@criterion("memory", "8", "with a path that index is compacted, however few deltas it has")
def test_the_index_of_a_path_is_compacted_even_with_few_deltas(
    two_organizations: HierarchicalLTMBackend, folder: Path
) -> None:
    answer = ok(two_organizations.compact_indexes(ALICE, max_deltas=100))
    assert answer["compacted_paths"] == [ALICE]
    assert answer["entries_processed"] == 1
    assert not list((folder / ALICE).glob("_index_delta_*.parquet"))
    assert len(list((folder / ACME).glob("_index_delta_*.parquet"))) == 2


@criterion("memory", "8", "an entry counts once, in however many indexes it is")
def test_an_entry_counts_once(acme: HierarchicalLTMBackend) -> None:
    for n in range(5):
        ok(acme.store(f"key {n}", n, S123))
    ok(acme.store("key 0", "again", S123))
    assert ok(acme.compact_indexes(None, 0))["entries_processed"] == 5


# -- 9: arguments and answers ----------------------------------------------------------------


@criterion("memory", "9", "the typed API gives None on a miss")
def test_the_typed_retrieve_gives_none_on_a_miss(folder: Path) -> None:
    with dl.MemoryStore(str(folder)) as store:
        assert store.retrieve("nothing") is None


@criterion("memory", "9", "the backend, the hit and the errors are public")
def test_the_names_of_memory_are_public() -> None:
    names = ["HierarchicalLTMBackend", "MemoryHit", "MemoryEntry", "MemoryItem", "MemoryStore", "DriftlineError"]
    names += ["StorageError", "CatalogError", "CatalogConnectionError", "BadEntity", "BadEntry", "UsageError"]
    assert [name for name in names if name not in dl.__all__] == []
    assert all(isinstance(getattr(dl, name), type) for name in names)


@criterion("memory", "9", "retrieve_by_entity has the documented order of arguments")
def test_the_arguments_have_the_documented_order(acme: HierarchicalLTMBackend) -> None:
    for n in range(4):
        ok(acme.store(f"key {n}", n, S123))
    backend: Any = acme
    page = ok(backend.retrieve_by_entity("project", "alpha", True, 2, 1))
    assert (keys(page), page["total_count"], page["has_more"]) == (["key 1", "key 2"], 4, True)
    core: Any = acme.core
    assert [entry.key for entry in core.retrieve_by_entity("project", "alpha", True, 2, 1).entries] == [
        "key 1",
        "key 2",
    ]


@criterion("memory", "9", 'errors="raise" has the backend raise typed exceptions')
def test_the_backend_can_raise(folder: Path) -> None:
    with open_backend(folder, errors="raise") as backend:
        with pytest.raises(BadEntry):
            backend.store("", 1)
        with pytest.raises(BadEntity):
            backend.store("key", 1, "galaxy:m31")
        assert ok(backend.store("key", 1))["entity"] == "org:default"
    with pytest.raises(DriftlineError):
        open_backend(folder, errors="perhaps")


@criterion("memory", "9", "every blob that was written in vain is named: error, dictionary, log")
def test_every_orphaned_blob_is_reported(
    backend: HierarchicalLTMBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(entry_writes, "put", _fail)
    with caplog.at_level(logging.WARNING), pytest.raises(CatalogError) as failure:
        backend.core.store_many([MemoryItem(f"key {n}", LARGE + str(n), S123) for n in range(3)])
    written = blobs(folder)
    assert len(written) == 3
    error: Any = failure.value
    assert sorted(error.blob_paths) == written
    assert error.blob_path in written
    assert all(path in caplog.text for path in written)
    answer = backend.store_many([{"key": f"key {n}", "value": LARGE + str(n), "entity": S123} for n in range(3)])
    assert answer["error_type"] == "catalog_error"
    assert sorted(answer["blob_paths"]) == sorted(set(blobs(folder)) - set(written))
    assert answer["blob_path"] in answer["blob_paths"]


@criterion("memory", "9", "unknown entity types are errors")
@pytest.mark.parametrize("wrong", ["galaxy", "sesion"])
def test_unknown_entity_types_are_errors(wrong: str, acme: HierarchicalLTMBackend) -> None:
    pair: Any = (wrong, "x")
    for answer in (
        acme.retrieve_by_entity(wrong, "x"),
        acme.list_entities(None, wrong),
        acme.store("key", 1, f"{wrong}:x"),
        acme.store("key", 1, pair),
    ):
        assert (answer["success"], answer.get("error_type")) == (False, "bad_entity")
        assert wrong in answer["error"]
        assert "session" in answer["error"]


# -- 10: defaults ----------------------------------------------------------------------------


@criterion("memory", "10", "the documented defaults, or a decision that says why not")
@pytest.mark.parametrize(
    ("found", "documented", "words"),
    [
        (lambda c: c.performance.metadata_cache.ttl_seconds, 600, ("ttl_seconds", "600")),
        (lambda c: c.performance.parallel_reads.threads, 8, ("parallel_reads", "8 threads")),
        (lambda c: c.catalog.pool_size, 10, ("pool_size", "10")),
        (lambda c: c.index.compaction_threshold, 100, ("compaction_threshold", "100")),
        (lambda c: c.index.row_group_size, 122_880, ("row_group_size",)),
        (lambda c: c.index.compression, "zstd", ("zstd",)),
    ],
    ids=["cache", "threads", "pool", "deltas", "rows", "codec"],
)
def test_defaults_are_the_documented_ones(
    found: Callable[[MemoryConfiguration], Any], documented: object, words: tuple[str, ...]
) -> None:
    assert found(MemoryConfiguration()) == documented or decided(*words)


# -- 11: DuckDB ------------------------------------------------------------------------------


def keeps_duckdb() -> bool:
    return '"duckdb' in (ROOT / "pyproject.toml").read_text()


@criterion("memory", "11", "listing prints nothing to standard error")
def test_a_listing_leaves_standard_error_empty(folder: Path) -> None:
    with open_backend(folder) as backend:
        ok(backend.store("key", 1, "org:default/project:alpha"))
    done = subprocess.run(
        [*COMMAND, "memory", "list", "--workspace", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "key" in done.stdout
    assert done.stderr == ""


@criterion("memory", "11", "query_index answers ranges and sums over base and deltas")
@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_indexes_are_queried(
    kind: str, folder: Path, sqlite_catalog: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``range`` is a first key and an exclusive last key; ``group_by`` is a level."""
    where = str(folder) if kind == "disk" else request.getfixturevalue("s3_bucket")
    monkeypatch.setenv("LTM_ROOT_ENTITY_ID", "acme")
    with open_backend(where, sqlite_catalog) as backend:
        for n in range(4):
            ok(backend.store(f"key {n}", n, f"{ACME}/project:{'ab'[n % 2]}"))
        backend.core.flush()
        ok(backend.compact_indexes(None, 0))
        ok(backend.delete("key 3"))
        requested: Any = backend
        query: Run = requested.query_index
        rows = ok(query(range=("key 1", "key 3")))["rows"]
        assert [row["key"] for row in rows] == ["key 1", "key 2"]
        totals = ok(query(group_by="project"))["rows"]
        assert {row["project"]: row["entries"] for row in totals} == {"a": 2, "b": 1}
        assert all(row["size_bytes"] > 0 for row in totals)


@criterion("memory", "11", "query_index knows earlier revisions")
def test_indexes_are_queried_as_of_a_revision(acme: HierarchicalLTMBackend) -> None:
    ok(acme.store("early", 1, S123))
    first = acme.core.retrieve("early", ACME)
    assert first is not None
    ok(acme.store("late", 2, S123))
    acme.core.flush()
    requested: Any = acme
    query: Run = requested.query_index
    assert [row["key"] for row in ok(query())["rows"]] == ["early", "late"]
    assert [row["key"] for row in ok(query(rev=first.rev))["rows"]] == ["early"]


@criterion(
    "memory", "11", "indexes are read without DuckDB, which did not pay: there is no connection to keep or to close"
)
def test_no_database_engine_is_needed_for_indexes() -> None:
    sources = [path.read_text() for path in (ROOT / "storage" / "memory").glob("*.py")]
    assert sources
    assert not [text for text in sources if "duckdb" in text.lower()]
    assert decided("DuckDB", "query_index")


# -- 12: search ------------------------------------------------------------------------------


@pytest.fixture
def remembered(folder: Path, tiny_model: Path) -> Iterator[HierarchicalLTMBackend]:
    """Four notes; only a name sets one of them apart."""
    with open_backend(folder, embedding={"model": str(tiny_model)}) as backend:
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


@criterion("memory", "12", "a metadata field called entity can be filtered")
def test_a_field_called_entity_can_be_filtered(remembered: HierarchicalLTMBackend) -> None:
    assert hits(remembered.search_memory("parser", 5, {"entity": "invoice"})) == ["names"]
    assert sorted(hits(remembered.search_memory("parser", 5, {"entity": ["invoice", "order"]}))) == ["names", "parser"]
    assert keys(remembered.search("", {"entity": "invoice"})) == ["names"]


@criterion("memory", "12", "numbers match numbers")
def test_numbers_match_numbers(remembered: HierarchicalLTMBackend) -> None:
    for wanted, expected in [
        (1, "names"),
        (1.0, "names"),
        (2, "parser"),
        (2.0, "parser"),
        (2**40, "other"),
        (10**20, "huge"),
    ]:
        assert hits(remembered.search_memory("parser", 5, {"n": wanted})) == [expected]
        assert keys(remembered.search("", {"n": wanted})) == [expected]
    assert hits(remembered.search_memory("parser", 5, {"ratio": 0.5})) == ["names"]
    for wrong in (True, "1"):
        assert hits(remembered.search_memory("parser", 5, {"n": wrong})) == []
        assert keys(remembered.search("", {"n": wrong})) == []


@criterion("memory", "12", "top_k=0 is valid through MCP")
def test_no_hits_can_be_requested_through_mcp(
    folder: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.yaml").write_text(f"settings: {{ltm: {{embedding: {{model: '{tiny_model}'}}}}}}")
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    with open_backend(folder, embedding={"model": str(tiny_model)}) as backend:
        ok(backend.store("key", "parser"))
    assert ask_mcp(folder, {"query": "parser", "top_k": 0})["results"] == []


@criterion("memory", "12", "the reference says what scores are")
def test_the_reference_documents_scores() -> None:
    pages = [text for text in reference_pages().values() if "memory.search" in text]
    assert any("1 - distance" in page and "cosine" in page for page in pages)


@criterion("memory", "12", "words are found as well as meaning")
def test_words_that_the_model_does_not_know_are_found(remembered: HierarchicalLTMBackend) -> None:
    """The model does not know this name; a word search finds it, whole or split."""
    assert hits(remembered.search_memory("acquireLease", 1)) == ["names"]
    assert hits(remembered.search_memory("acquire_lease", 1)) == ["names"]
    assert hits(remembered.search_memory("parser", 1)) == ["parser"]


@criterion("memory", "12", "max_distance drops what is farther")
def test_max_distance_drops_more_distant_lines(remembered: HierarchicalLTMBackend) -> None:
    options: dict[str, Any] = {"max_distance": 0.01}
    whole = "a namespace of its own"
    assert hits(remembered.search_memory(whole, 5, **options)) == ["other"]
    options = {"max_distance": 2.0}
    assert len(hits(remembered.search_memory(whole, 5, **options))) == 4


@criterion("memory", "12", "explain tells how the hits were found")
def test_explain_says_how_hits_were_found(remembered: HierarchicalLTMBackend, folder: Path, driftline: Run) -> None:
    options: dict[str, Any] = {"explain": True}
    answer = ok(remembered.search_memory("parser", 5, **options))
    assert answer["explanation"]
    assert "explanation" not in ok(remembered.search_memory("parser"))
    assert driftline("memory", "search", "parser", "--workspace", folder, "--explain", "--json").json["explanation"]


@criterion("memory", "12", "the actions take max_distance and explain")
def test_the_actions_take_the_options_of_the_search(
    remembered: HierarchicalLTMBackend, folder: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.yaml").write_text(f"settings: {{ltm: {{embedding: {{model: '{tiny_model}'}}}}}}")
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    monkeypatch.setenv("LTM_STORAGE_URI", str(folder))
    remembered.core.flush()
    registry: dict[str, Run] = {}
    register_actions(registry)
    answer = registry["memory.search"]({}, query="the parser of arguments", max_distance="0.01", explain="true")
    assert hits(answer) == ["parser"]
    assert answer["explanation"]


# -- 13: figures -----------------------------------------------------------------------------


@cache
def _benchmark_help() -> str:
    program = str(ROOT / "tests" / "benchmarks" / "memory_store.py")
    return subprocess.run([sys.executable, program, "--help"], capture_output=True, text=True, check=True).stdout


@criterion("memory", "13", "the benchmark offers the cases that are measured")
@pytest.mark.parametrize("option", ["--entries", "--postgres", "--fsync", "--bucket", "--search"])
def test_the_benchmark_offers_what_is_measured(option: str) -> None:
    """PostgreSQL with fsync, blobs in a bucket, and semantic search."""
    assert option in _benchmark_help()
