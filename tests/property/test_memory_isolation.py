"""Three tenants with the same keys, users and sessions: no tenant's call sees, counts or changes another's data."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from driftline.storage.embedding import Embedder
from driftline.storage.entities import Entity
from driftline.storage.errors import AccessDenied, BadEntity, UsageError
from driftline.storage.memory.memory_indexes import MemoryIndex, MemoryListing
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.tasks.embedding.embedder import WordTableEmbedder

TENANTS = ("org:a", "org:b", "org:a.b")
KEYS = ("plan", "notes", "../plan", "plan' OR '1'='1")
OWNERS = ("", "/project:p", "/project:p/user:alice", "/project:p/user:alice/session:s", "/project:q/user:alice")

tenants, keys, owners = st.sampled_from(TENANTS), st.sampled_from(KEYS), st.sampled_from(OWNERS)


@dataclass
class Held:
    """A tenant's expected entries: each key's owner (relative to the tenant) and value."""

    entries: dict[str, tuple[str, Any]] = field(default_factory=dict)
    entities: set[str] = field(default_factory=set)


class IsolationMachine(RuleBasedStateMachine):
    def __init__(self, template: Path, embedder: Callable[[], Embedder]) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="driftline-isolation-"))
        shutil.copy(template, self.directory / "catalog.sqlite")
        url = f"sqlite:///{self.directory / 'catalog.sqlite'}"
        self.store = MemoryStore(str(self.directory / "workspace"), catalog_url=url, embedder=embedder)
        self.held = {tenant: Held() for tenant in TENANTS}
        self.number = 0

    def value(self, tenant: str, is_large: bool) -> dict[str, Any]:
        self.number += 1
        return {"owner": tenant, "number": self.number, "text": f"secret of {tenant} " * (200 if is_large else 1)}

    @initialize()
    def fill(self) -> None:
        for tenant in TENANTS:
            self.put(tenant, KEYS[0], OWNERS[3], True)

    @rule(tenant=tenants, key=keys, owner=owners, is_large=st.booleans())
    def put(self, tenant: str, key: str, owner: str, is_large: bool) -> None:
        value = self.value(tenant, is_large)
        self.store.store(key, value, tenant + owner, {"phase": "plan", "number": self.number})
        held = self.held[tenant]
        held.entries[key] = owner, value
        held.entities |= {"/".join(owner.split("/")[:depth]) for depth in range(1, owner.count("/") + 2)}

    @rule(tenant=tenants, owner=owners)
    def put_many(self, tenant: str, owner: str) -> None:
        values = {key: self.value(tenant, False) for key in KEYS}
        self.store.store_many(MemoryItem(key, value, tenant + owner, {"phase": "act"}) for key, value in values.items())
        held = self.held[tenant]
        held.entries |= {key: (owner, value) for key, value in values.items()}
        held.entities |= {"/".join(owner.split("/")[:depth]) for depth in range(1, owner.count("/") + 2)}

    @rule(tenant=tenants, key=keys)
    def delete(self, tenant: str, key: str) -> None:
        assert self.store.delete(key, tenant) == (self.held[tenant].entries.pop(key, None) is not None)

    @rule(tenant=tenants)
    def delete_entity(self, tenant: str) -> None:
        doomed = "/project:p/user:alice"
        held = self.held[tenant]
        if doomed not in held.entities:
            with pytest.raises(BadEntity):
                self.store.delete_entity(tenant + doomed, cascade=True)
            return
        gone = [key for key, (owner, _) in held.entries.items() if (owner + "/").startswith(doomed + "/")]
        assert self.store.delete_entity(tenant + doomed, cascade=True) == len(gone)
        held.entities = {entity for entity in held.entities if not (entity + "/").startswith(doomed + "/")}
        for key in gone:
            del held.entries[key]

    @rule(tenant=tenants)
    def move(self, tenant: str) -> None:
        held = self.held[tenant]
        source, target = "/project:p/user:alice", "/project:q/user:alice"
        if source not in held.entities or target in held.entities:
            with pytest.raises(BadEntity):
                self.store.move_entity(tenant + source, f"{tenant}/project:q")
            return
        self.store.move_entity(tenant + source, f"{tenant}/project:q")

        def moved(path: str) -> str:
            return target + path.removeprefix(source) if (path + "/").startswith(source + "/") else path

        held.entries = {key: (moved(owner), value) for key, (owner, value) in held.entries.items()}
        held.entities = {moved(path) for path in held.entities} | {"/project:q"}

    @rule(tenant=tenants)
    def make_anew(self, tenant: str) -> None:
        held = self.store.rebuild(tenant)
        assert held[tenant] == len(self.held[tenant].entries)
        assert all(directory == tenant or directory.startswith(f"{tenant}/") for directory in held)

    @rule(tenant=tenants, foreign=tenants, owner=owners)
    def entities_are_those_of_the_tenant_alone(self, tenant: str, foreign: str, owner: str) -> None:
        location = tenant + owner
        is_there = not owner or owner in self.held[tenant].entities
        assert (self.store.get_entity(location) is not None) == is_there
        below = [str(record.entity) for record in self.store.descendants(location)]
        assert all(name.startswith(f"{location}/") for name in below)
        above = [str(record.entity) for record in self.store.ancestors(location)]
        assert all(location.startswith(f"{name}/") for name in above)
        if foreign != tenant:
            # A scope limits what a call sees, whatever its other arguments.
            found = [str(record.entity) for record in self.store.list_entities(location, after=foreign)]
            assert all(name.startswith(f"{tenant}/") for name in found)
            with pytest.raises(AccessDenied):
                self.store.retrieve_by_entity("project", "p", within=location, allowed_ancestors=[foreign + owner])

    @rule(tenant=tenants, other=tenants)
    def move_abroad(self, tenant: str, other: str) -> None:
        if tenant != other:
            with pytest.raises(BadEntity):
                self.store.move_entity(f"{tenant}/project:p/user:alice", f"{other}/project:q")

    @rule(tenant=tenants, foreign=tenants, owner=owners)
    def every_read_sees_its_own_tenant_alone(self, tenant: str, foreign: str, owner: str) -> None:
        own = self.held[tenant].entries
        want = {key: value for key, (_, value) in own.items()}
        assert {key: e.value for key, e in self.store.retrieve_batch(KEYS, tenant).items()} == want
        assert {e.key: e.value for e in self.store.search("", {"phase": ["plan", "act"]}, tenant)} == want
        page = self.store.retrieve_by_entity("org", tenant.partition(":")[2], within=tenant)
        assert ({e.key: e.value for e in page.entries}, page.total_count) == (want, len(want))
        everywhere = self.store.retrieve_by_entity("user", "alice", within=tenant)
        assert all(e.value["owner"] == tenant for e in everywhere.entries)
        listed = {r.entity for r in self.store.list_entities(tenant)}
        assert listed == {self.store.hierarchy.entity(tenant + path) for path in self.held[tenant].entities if path}
        if foreign == tenant:
            return
        name = foreign.partition(":")[2]
        assert self.store.retrieve_by_entity("org", name, within=tenant).total_count == 0
        with pytest.raises(AccessDenied):
            self.store.retrieve_by_entity("user", "alice", within=tenant, allowed_ancestors=[foreign])
        with pytest.raises(AccessDenied):
            self.store.search("", None, tenant, allowed_ancestors=[foreign + owner])
        cursor = self.store.retrieve_by_entity("org", name, within=foreign, limit=1).cursor
        if cursor is not None:
            with pytest.raises(UsageError, match="Invalid cursor"):
                self.store.retrieve_by_entity("org", tenant.partition(":")[2], within=tenant, cursor=cursor)

    @rule(tenant=tenants, foreign=tenants)
    def a_search_by_meaning_sees_its_own_tenant_alone(self, tenant: str, foreign: str) -> None:
        hits = self.store.search_memory(f"secret of {foreign}", 20, None, tenant)
        assert sorted(hit.record.key for hit in hits) == sorted(self.held[tenant].entries)
        assert all(hit.record.value["owner"] == tenant for hit in hits)
        if foreign != tenant:
            assert self.store.search_memory("secret", 20, {"entity": foreign}, tenant) == []
            with pytest.raises(AccessDenied):
                self.store.search_memory("secret", 20, None, tenant, allowed_ancestors=[foreign])

    def teardown(self) -> None:
        self.store.flush()
        objects = self.store.workspace.objects
        for tenant in TENANTS:
            entries = self.held[tenant].entries
            index = MemoryIndex(objects, tenant).read().to_pylist()
            assert {row["key"]: row["entity"] for row in index} == {
                key: Entity(self.store.hierarchy.entity(tenant + owner).parts).directory
                for key, (owner, _) in entries.items()
            }
            assert MemoryListing(objects).totals(tenant).entries == len(entries)
            for info in objects.list(tenant):
                if info.path.endswith(".json") and "/_" not in info.path:
                    assert f'"owner":"{tenant}"'.encode() in objects.get(info.path)
        self.store.close()
        shutil.rmtree(self.directory)


def test_no_call_of_a_tenant_sees_another(catalog_file: Path, tiny_model: Path) -> None:
    embedder = WordTableEmbedder.open(str(tiny_model))
    run_state_machine_as_test(
        lambda: IsolationMachine(catalog_file, lambda: embedder),  # type: ignore[arg-type]  # a class or what makes one
        settings=settings(max_examples=6, stateful_step_count=15, deadline=None),
    )
