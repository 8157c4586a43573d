"""What the names of entities mean in a memory store: registered entities first, then the root, then defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.errors import BadEntity
from driftline.storage.hierarchy import Hierarchy
from driftline.storage.memory.store import MemoryStore

ALPHA, BETA = "org:acme/project:alpha", "org:acme/project:beta"
Opened = Callable[..., MemoryStore]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens stores over one workspace, with a root or without."""
    catalog = request.getfixturevalue(f"{request.param}_catalog")
    stores: list[MemoryStore] = []

    def open_store(root: Any = None) -> MemoryStore:
        store = MemoryStore(str(tmp_path / "workspace"), catalog_url=catalog, hierarchy=Hierarchy(root=root))
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        store.close()


def found(store: MemoryStore, name: Any) -> str:
    return store.names.find(name).directory


def test_a_path_with_gaps_means_the_registered_entity_that_fills_them(opened: Opened) -> None:
    store = opened()
    for path in (f"{ALPHA}/user:alice/session:s1", f"{BETA}/user:bob", "org:globex/project:alpha/user:alice"):
        store.register_entity(path)
    assert found(store, "org:acme/user:alice") == f"{ALPHA}/user:alice"
    assert found(store, "org:globex/user:alice") == "org:globex/project:alpha/user:alice"
    assert found(store, "org:acme/session:s1") == f"{ALPHA}/user:alice/session:s1"
    assert found(store, "project:beta/user:bob") == f"{BETA}/user:bob"
    assert found(store, "user:bob/session:new") == f"{BETA}/user:bob/session:new"
    assert found(store, "project:beta/session:new") == f"{BETA}/user:_unassigned/session:new"
    assert found(store, "org:acme/user:carol") == "org:acme/project:_unassigned/user:carol"
    with pytest.raises(BadEntity, match=r"Several entities.*org:acme/project:alpha, org:globex/project:alpha"):
        store.names.find("project:alpha")


def test_a_root_limits_names_to_its_organisation_and_an_organisation_wins_over_it(opened: Opened) -> None:
    for path in (f"{ALPHA}/user:alice", "org:globex/project:alpha/user:alice", "org:globex/project:gamma"):
        opened().register_entity(path)
    store = opened(("org", "acme"))
    assert found(store, ("user", "alice")) == f"{ALPHA}/user:alice"
    assert found(store, "project:gamma") == "org:acme/project:gamma"
    assert found(store, "org:globex/user:alice") == "org:globex/project:alpha/user:alice"


def test_a_deeper_root_comes_first_and_then_its_organisation(opened: Opened) -> None:
    for path in (f"{ALPHA}/user:alice", f"{BETA}/user:alice", f"{BETA}/user:bob"):
        opened().register_entity(path)
    store = opened(ALPHA)
    assert found(store, "user:alice") == f"{ALPHA}/user:alice"
    assert found(store, "user:bob") == f"{BETA}/user:bob"
    assert found(store, "user:new") == f"{ALPHA}/user:new"
    assert found(store, "project:new") == "org:acme/project:new"
    assert found(store, "org:globex/user:new") == "org:globex/project:_unassigned/user:new"


def test_reads_of_a_name_agree_with_writes(opened: Opened) -> None:
    store = opened()
    store.register_entity(f"{ALPHA}/user:alice")
    store.store("key", 1, ("user", "alice"))
    for name in ("user:alice", ("user", "alice"), f"{ALPHA}/user:alice", "org:acme/user:alice"):
        entry = store.retrieve("key", name)
        assert entry is not None
        assert entry.entity.directory == f"{ALPHA}/user:alice"
    assert [each.key for each in store.retrieve_by_entity("user", "alice").entries] == ["key"]
    store.move_entity("user:alice", BETA)
    assert store.retrieve("key", "user:alice") is not None
    assert found(store, "user:alice") == f"{BETA}/user:alice"
    store.delete_entity("user:alice", cascade=True)
    assert found(store, "user:alice") == "org:default/project:_unassigned/user:alice"


@pytest.mark.parametrize(
    "name", ["user:", "user:a\0b", "user:\ud800", ("user", ""), ("user",), ("user", 1), 5, "galaxy:x"]
)
def test_what_cannot_be_a_name_is_refused_before_the_catalog_sees_it(opened: Opened, name: Any) -> None:
    with pytest.raises(BadEntity) as refusal:
        opened().names.find(name)
    assert str(refusal.value).encode()
