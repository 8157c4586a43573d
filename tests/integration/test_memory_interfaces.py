"""Memory interfaces: the command line, the dictionary adapter, the factory and the actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.config.memory_settings import MEMORY_CONFIG_VARIABLE, VARIABLES
from driftline.flows.memory_backend import HierarchicalLTMBackend
from driftline.storage.errors import CatalogConnectionError, UsageError
from driftline.storage.memory.catalog.database import Catalog

OWNER = "org:acme/project:alpha/user:alice"
LARGE = "a value that is not inlined " * 100


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (MEMORY_CONFIG_VARIABLE, *VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def backend(tmp_path: Path, sqlite_catalog: str, tiny_model: Path) -> Iterator[HierarchicalLTMBackend]:
    with dl.create_ltm_backend(
        "hierarchical",
        catalog_url=sqlite_catalog,
        storage_uri=str(tmp_path / "workspace"),
        hierarchy_levels=["org", "project", "user", "session"],
        performance_config={"parallel_reads": {"threads": 4}},
        embedding={"model": str(tiny_model)},
    ) as opened:
        yield opened


# -- the command line ------------------------------------------------------------------------


def test_a_value_is_stored_and_read_by_the_command_line(
    driftline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", str(tmp_path / "workspace"))

    def run(*arguments: str) -> Any:
        return driftline("memory", *arguments, "--json")

    put = run("put", "plan", '{"step": 1}', "--entity", OWNER, "--metadata", "phase=plan", "--metadata", "n=1")
    nothing: dict[str, Any] = {"replaced": False, "moved_from": None, "redacted": {}}
    assert put.json == {"key": "plan", "entity": OWNER, **nothing}
    moved = run("put", "plan", '{"step": 1}', "--entity", "org:acme")
    assert (moved.json["moved_from"], moved.err) == (
        OWNER,
        f"driftline: The key belonged to {OWNER}; its entry moved.\n",
    )
    run("put", "plan", '{"step": 1}', "--entity", OWNER, "--metadata", "phase=plan", "--metadata", "n=1")
    assert run("put", "note", "the cat sleeps on the sofa", "--entity", OWNER).code == 0
    got = run("get", "plan", "--in", "org:acme")
    assert (got.json["value"], got.json["metadata"]) == ({"step": 1}, {"phase": "plan", "n": 1})
    assert driftline("memory", "get", "note", "--in", "org:acme").out == '"the cat sleeps on the sofa"\n'
    assert run("get", "plan").json["value"] == {"step": 1}
    missing = run("get", "plan", "--in", "org:default")
    assert (missing.code, missing.err) == (1, "driftline: There is no entry with the key 'plan'.\n")
    assert [entry["key"] for entry in run("list").json["entries"]] == ["note", "plan"]
    listed = run("list", "org:acme", "--limit", "1").json
    assert ([entry["key"] for entry in listed["entries"]], listed["total_count"]) == (["note"], 2)
    assert [e["key"] for e in run("list", "org:acme", "--after", "note").json["entries"]] == ["plan"]
    found = run("search", "a cat", "--in", "org:acme", "--top-k", "1").json["results"]
    assert (found[0]["record"]["key"], found[0]["rank"]) == ("note", 1)
    assert run("search", "a cat", "--in", "org:acme", "--where", "phase=act").code == 1
    assert run("move", OWNER, "org:acme/project:beta").json["moved_to"] == "org:acme/project:beta/user:alice"
    empty = run("list", "org:acme/project:alpha")
    assert (empty.code, empty.err) == (1, "driftline: No entry matches.\n")
    assert set(run("rebuild", "org:acme").json["indexes"].values()) == {2, 0}
    assert run("delete", "plan", "--in", "org:acme").json["deleted"]
    assert run("delete", "plan", "--in", "org:acme").code == 1


def test_usage_errors_of_memory_create_no_workspace(driftline: Callable[..., Any], tmp_path: Path) -> None:
    location = tmp_path / "workspace"
    for arguments in (["get", "key"], ["list"], ["search", "x"], ["delete", "key"], ["move", OWNER, "org:acme"]):
        assert driftline("memory", *arguments, "--workspace", location).code == 2
    for fields in (["=x"], ["n=1", "n=2"]):
        options = [word for field in fields for word in ("--metadata", field)]
        assert driftline("memory", "put", "key", "1", *options, "--workspace", "memory://").code == 2
    assert driftline("memory", "put", "key", "1", "--entity", "org:", "--workspace", "memory://").code == 2
    assert not location.exists()


# -- dictionaries ----------------------------------------------------------------------------


def test_the_adapter_returns_dictionaries(backend: HierarchicalLTMBackend) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    assert backend.store("key", {"a": LARGE}, OWNER, {"phase": "plan"}, later.isoformat()) == {
        "success": True,
        "key": "key",
        "entity": OWNER,
        "replaced": False,
        "moved_from": None,
        "redacted": {},
    }
    assert backend.store_many([{"key": "key", "value": 1, "entity": "org:acme"}])["moved_from"] == {"key": [OWNER]}
    assert backend.store("key", {"a": LARGE}, OWNER, {"phase": "plan"}, later)["moved_from"] == "org:acme"
    assert backend.store_many([{"key": f"k{n}", "value": n} for n in range(3)])["stored"] == 3
    got = backend.retrieve("key", "org:acme")
    assert (got["success"], got["found"], got["value"]) == (True, True, {"a": LARGE})
    assert datetime.fromisoformat(got["entry"]["expires"]) == later
    assert backend.retrieve("key")["entry"] == got["entry"]
    assert backend.retrieve("none") == {"success": True, "found": False, "entry": None, "value": None}
    assert backend.retrieve("k0")["value"] == 0
    batch = backend.retrieve_batch(["k1", "none"])
    assert (list(batch["entries"]), batch["missing"]) == (["k1"], ["none"])
    page = backend.retrieve_by_entity("user", "alice", within="org:acme")
    assert (page["total_count"], page["has_more"], page["cursor"]) == (1, False, None)
    denied = backend.retrieve_by_entity("user", "alice", within="org:acme", allowed_ancestors=[])
    assert (denied["success"], denied["error_type"]) == (False, "access_denied")
    assert len(backend.search("", {"phase": "plan"}, "org:acme")["entries"]) == 1
    results = backend.search_memory("inlined value", 5, {"entity": OWNER}, "org:acme")["results"]
    assert [(hit["record"]["key"], hit["rank"]) for hit in results] == [("key", 1)]
    registered = backend.register_entity_with_defaults("session", "s123", parents={"user": "alice"})
    assert registered == "org:default/project:_unassigned/user:alice/session:s123"
    compacted = backend.compact_indexes(OWNER, max_deltas=100)
    assert (compacted["compacted_paths"], compacted["entries_processed"]) == ([OWNER], 1)
    compacted = backend.compact_indexes(None, max_deltas=0)
    assert compacted["compacted_paths"] == ["org:acme", "org:acme/project:alpha", "org:default"]
    assert compacted["entries_processed"] == 4  # one for acme and three for the root
    assert backend.delete("key", "org:acme")["deleted"]
    cleaned = backend.cleanup_orphans(max_age_seconds=0)
    assert (cleaned["success"], cleaned["dry_run"], cleaned["deleted_count"] >= 1) == (True, False, True)
    json.dumps([got, batch, page, results, cleaned])


def test_a_cut_list_says_that_there_is_more(backend: HierarchicalLTMBackend) -> None:
    backend.store_many([{"key": f"k{n}", "value": n, "entity": f"org:many/project:p{n}"} for n in range(4)])
    lists: dict[str, Callable[..., dict[str, Any]]] = {
        "entries": partial(backend.search, "k", None, "org:many"),
        "entities": partial(backend.list_entities, "org:many"),
        "rows": partial(backend.query_index, entity="org:many"),
    }
    for name, call in lists.items():
        for limit, outcome in ((3, (3, True)), (4, (4, False)), (0, (0, False))):
            answer = call(limit=limit)
            assert (len(answer[name]), answer["has_more"]) == outcome, (name, limit)
        assert call(limit=-1)["error_type"] == "usage", name
    first = backend.list_entities("org:many", limit=3)["entities"]
    rest = backend.list_entities("org:many", after=first[-1])
    assert (rest["entities"], rest["has_more"]) == (["org:many/project:p3"], False)


def test_the_adapter_returns_errors_as_dictionaries(
    backend: HierarchicalLTMBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for failure, kind in [
        (backend.store("", 1), "bad_entry"),
        (backend.store("key", 1, "nowhere"), "bad_entity"),
        (backend.store("key", 1, expires_at="tomorrow"), "bad_entry"),
        (backend.store_many([{"key": "key"}]), "bad_entry"),
        (backend.retrieve_by_entity("org", "acme", limit=-1), "usage"),
        (backend.delete_entity("org:none"), "bad_entity"),
    ]:
        assert (failure["success"], failure["error_type"]) == (False, kind)
        assert failure["error"]

    def unreachable(*_: object) -> None:
        raise CatalogConnectionError("The catalog cannot be reached")

    monkeypatch.setattr(Catalog, "_run", unreachable)
    assert backend.retrieve("key")["error_type"] == "connection_error"


def test_the_factory_refuses_invalid_arguments(tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"backend": "flat"},
        {},
        {"index_config": {"compression": "none"}},
        {"embedding": {"modle": "x"}},
    ]
    for wrong in cases:
        with pytest.raises(UsageError):
            dl.create_ltm_backend(**{"storage_uri": None, **wrong})
    with pytest.raises(TypeError, match="cataloge"):
        dl.create_ltm_backend(cataloge={})  # type: ignore[call-arg]


def test_the_core_is_one_of_the_public_names(tmp_path: Path) -> None:
    with dl.MemoryStore(str(tmp_path / "workspace")) as store:
        store.store("key", None, "org:acme")
        entry = store.retrieve("key", "org:acme")
        assert isinstance(entry, dl.MemoryEntry)


# -- actions ---------------------------------------------------------------------------------


class Engine:
    def __init__(self) -> None:
        self.on_close: list[Callable[[], None]] = []


def test_actions_share_a_store_that_closes_with_the_engine(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"ltm": {"storage": {"uri": str(tmp_path / "workspace")}, "embedding": {"model": str(tiny_model)}}}
    (tmp_path / "memory.yaml").write_text(json.dumps({"settings": settings}))  # JSON is YAML
    monkeypatch.setenv(MEMORY_CONFIG_VARIABLE, str(tmp_path / "memory.yaml"))
    registry: dict[str, Callable[..., Any]] = {}
    engine = Engine()
    register_actions(registry, engine)
    call = {name: registry[name] for name in registry if name.startswith(("ltm.", "memory."))}
    assert call["ltm.store"]({}, key="key", value="a cat", entity=OWNER, run_id=1)["success"]
    assert call["ltm.store"]({}, key="mine", value=None)["entity"] == "org:default"
    assert call["ltm.retrieve"]({}, key="key", entity="org:acme")["value"] == "a cat"
    page = registry["actions.ltm_retrieve_by_entity"](
        {}, entity_type="org", entity_id="acme", within="org:acme", limit="5"
    )
    assert page["total_count"] == 1
    assert call["ltm.search"]({}, query="ke", entity="org:acme")["entries"][0]["key"] == "key"
    assert call["memory.search"]({}, query="a cat", entity="org:acme")["results"][0]["rank"] == 1
    assert call["ltm.delete"]({}, key="key", entity="org:acme")["deleted"]
    assert call["ltm.store"]({}, value=1)["error_type"] == "validation_error"
    assert call["ltm.store"]({}, key="", value=1)["error_type"] == "bad_entry"
    for close in engine.on_close:
        close()
    for name, given in (("ltm.store", {"key": "key", "value": 1}), ("memory.search", {"query": "a cat"})):
        assert call[name]({}, **given)["error_type"] == "store_closed"


def test_an_action_reports_the_kind_of_error_that_keeps_the_store_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry: dict[str, Callable[..., Any]] = {}
    register_actions(registry)
    assert registry["ltm.retrieve"]({}, key="key")["error_type"] == "validation_error"
    monkeypatch.setenv("LTM_STORAGE_URI", str(tmp_path / "workspace"))
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "_workspace.json").write_text("{")
    assert registry["ltm.retrieve"]({}, key="key")["error_type"] == "corrupt_file"


def test_a_deletion_says_what_it_did(driftline: Callable[..., Any], tmp_path: Path) -> None:
    at = ("--workspace", str(tmp_path / "ws"))
    assert driftline("memory", "put", "note", "1", "--entity", "org:acme", *at).code == 0
    assert driftline("memory", "delete", "note", *at).out == "deleted note\n"
    gone = driftline("memory", "delete", "note", *at)
    assert (gone.code, gone.out) == (1, "")
