"""Entity names in a memory store are resolved from registered entities, then the root, then the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.entities import Entity, Hierarchy
from driftline.storage.errors import BadEntity, BadEntry
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.tasks.embedding.embedder import WordTableEmbedder
from tests.support.oracle import lineage

ALPHA, BETA = "org:acme/project:alpha", "org:acme/project:beta"
Opened = Callable[..., MemoryStore]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Open stores over one workspace, with or without a root."""
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


def test_a_root_limits_names_to_its_organization(opened: Opened) -> None:
    for path in (f"{ALPHA}/user:alice", "org:globex/project:alpha/user:alice", "org:globex/project:gamma"):
        opened().register_entity(path)
    store = opened(("org", "acme"))
    assert found(store, ("user", "alice")) == f"{ALPHA}/user:alice"
    assert found(store, "project:gamma") == "org:acme/project:gamma"
    for name in ("org:globex/user:alice", "org:globex"):
        with pytest.raises(BadEntity, match="outside the root"):
            found(store, name)


def test_a_deeper_root_limits_names_to_what_is_below_it(opened: Opened) -> None:
    for path in (f"{ALPHA}/user:alice", f"{BETA}/user:alice", f"{BETA}/user:bob"):
        opened().register_entity(path)
    store = opened(ALPHA)
    assert found(store, "user:alice") == f"{ALPHA}/user:alice"
    assert found(store, "user:new") == f"{ALPHA}/user:new"
    for name in ("user:bob", "project:new", "org:acme", "org:globex/user:new"):
        with pytest.raises(BadEntity, match="outside the root"):
            found(store, name)


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
def test_invalid_names_are_refused_before_the_catalog_sees_them(opened: Opened, name: Any) -> None:
    with pytest.raises(BadEntity) as refusal:
        opened().names.find(name)
    assert str(refusal.value).encode()


# -- calls without a scope -------------------------------------------------------------------

S123 = f"{ALPHA}/user:alice/session:s123"
KEYED: dict[str, Callable[[MemoryStore, str], object]] = {
    "retrieve": lambda store, key: [key] if store.retrieve(key) is not None else [],
    "retrieve_batch": lambda store, key: list(store.retrieve_batch([key, "unknown"])),
    "search": lambda store, key: [entry.key for entry in store.search(key)],
    "query_index": lambda store, key: [row["key"] for row in store.query_index((key, f"{key}~"))],
    "delete": lambda store, key: [key] if store.delete(key) else [],  # the last one
}


@pytest.mark.parametrize("root", [None, "org:acme", ALPHA, f"{ALPHA}/user:alice"])
@pytest.mark.parametrize("owner", ["org:acme", ALPHA, S123, ("session", "s123"), None])
def test_stored_entries_are_found_without_a_scope(root: Any, owner: Any, opened: Opened) -> None:
    opened().register_entity(S123)
    store = opened(root)
    owner = store.names.root if owner is None else owner
    try:
        store.store("conversation:001", {"n": 1}, owner)
    except BadEntity:
        assert root is not None
        assert owner in ("org:acme", ALPHA)
        return
    for name, call in KEYED.items():
        assert call(store, "conversation:001") == ["conversation:001"], name


@pytest.mark.parametrize("root", ["org:acme", ALPHA])
def test_nothing_is_written_outside_the_root(root: str, opened: Opened) -> None:
    opened().store("theirs", 1, "org:globex/project:alpha")
    store = opened(root)
    writes: list[Callable[[], object]] = [
        lambda: store.store("mine", 1, "org:globex"),
        lambda: store.store_many([MemoryItem("one", 1, ALPHA), MemoryItem("two", 2, "org:globex/project:alpha")]),
        lambda: store.register_entity("org:globex/project:new"),
        lambda: store.register_entity_with_defaults("user", "u", {"org": "globex"}),
        lambda: store.delete_entity("org:globex", cascade=True),
        lambda: store.move_entity("org:globex/project:alpha", "org:acme"),
        lambda: store.delete("theirs", "org:globex"),
        lambda: store.delete("theirs", "org:globex/project:alpha"),
    ]
    for write in writes:
        with pytest.raises(BadEntity, match="outside the root"):
            write()
    assert store.retrieve_batch(["mine", "one", "two"]) == {}
    assert opened().retrieve("theirs") is not None


def test_a_deeper_root_shows_nothing_above_and_replaces_nothing_outside(opened: Opened) -> None:
    everyone, store = opened(), opened(ALPHA)
    everyone.store("plan", "theirs", BETA)
    stored = store.store("plan", "ours", "user:alice")
    assert (stored.replaced, stored.moved_from) == (0, {})
    assert [str(above.entity.directory) for above in store.ancestors("user:alice")] == [ALPHA]
    assert [str(above.entity.directory) for above in everyone.ancestors("user:alice")] == [ALPHA, "org:acme"]
    assert [entry.value for entry in store.search("plan")] == ["ours"]
    assert store.delete("plan")
    assert everyone.retrieve_batch(["plan"])["plan"].value == "theirs"


def test_a_key_of_two_tenants_is_an_error_that_lists_both(opened: Opened) -> None:
    store = opened()
    for location in (S123, "org:globex"):
        store.store("plan", location, location)
    store.store("other", 1, "org:globex")
    calls: list[Callable[[], object]] = [
        lambda: store.retrieve("plan"),
        lambda: store.retrieve_batch(["other", "plan"]),
        lambda: store.delete("plan"),
    ]
    for call in calls:
        with pytest.raises(BadEntry, match=rf"Several tenants.*'plan'.*{S123}, org:globex"):
            call()
    assert {entry.value for entry in store.search("plan")} == {S123, "org:globex"}
    assert store.delete("plan", "org:globex")
    found = store.retrieve("plan")
    assert found is not None
    assert found.value == S123


def test_entities_are_listed_and_indexes_rebuilt_without_a_scope(opened: Opened) -> None:
    store = opened()
    store.store("plan", 1, S123)
    store.store("other", 2, "org:globex")
    every = [*lineage(Entity.of_directory(S123)), Entity.of_directory("org:globex")]
    assert [record.entity for record in store.list_entities()] == every
    assert [record.entity for record in store.list_entities(limit=2, after="org:acme")] == every[1:3]
    assert [record.entity.id for record in store.list_entities(type="org")] == ["acme", "globex"]
    assert sorted(store.rebuild()) == sorted(entity.directory for entity in every)
    assert opened("org:acme").rebuild().keys() == {entity.directory for entity in every[:-1]}


def test_a_private_key_is_found_without_a_scope(opened: Opened) -> None:
    """A store that is bound below its tenant may store a key that another entity also has."""
    store = opened()
    store.store("plan", "of beta", BETA)
    with MemoryStore(
        store.workspace.objects.uri, catalog_url=str(store.catalog.url.render_as_string(False)), within=ALPHA
    ) as bound:
        bound.store("plan", "of alpha", ALPHA)
        bound.store("own", "of alpha", ALPHA)
        assert bound.retrieve("plan").value == "of alpha"  # type: ignore[union-attr]
    assert store.retrieve("plan").value == "of beta"  # type: ignore[union-attr]
    store.delete("plan", BETA)
    assert store.retrieve("plan").value == "of alpha"  # type: ignore[union-attr]


def test_semantic_search_covers_all_tenants_without_a_scope(opened: Opened, tmp_path: Path, tiny_model: Path) -> None:
    uri, catalog = str(tmp_path / "workspace"), opened().catalog.url.render_as_string(False)
    with MemoryStore(uri, catalog_url=catalog, embedder=lambda: WordTableEmbedder.open(str(tiny_model))) as store:
        for location in (S123, "org:globex", "org:default/project:p"):
            for n in range(3):
                store.store(f"{n} {location}", f"the cat sat {n}", location)
        hits = store.search_memory("the cat sat 1", 4, explain=True)
        assert [hit.rank for hit in hits] == [1, 2, 3, 4]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert {hit.record.entity.tenant.id for hit in hits[:3]} == {"acme", "globex", "default"}
        assert hits.explanation is not None
        assert hits.explanation.entries == 9
        limited = store.search_memory("the cat sat", 9, allowed_ancestors=["org:globex"])
        assert {hit.record.entity.tenant.id for hit in limited} == {"globex"}
        filtered = store.search_memory("the cat sat", 9, {"entity": ALPHA})
        assert {hit.record.entity.tenant.id for hit in filtered} == {"acme"}
