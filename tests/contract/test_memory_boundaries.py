"""Boundaries below the tenant: siblings stay hidden, even if their keys and names are the same."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.errors import AccessDenied, BadEntity, BadEntry
from driftline.storage.memory.catalog.entry_writes import MAX_BOUND_CHARACTERS
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.tasks.embedding.embedder import WordTableEmbedder

ACME = "org:acme"
ALPHA, BETA = f"{ACME}/project:alpha", f"{ACME}/project:beta"
Opened = Callable[[str | None], MemoryStore]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, tiny_model: Path) -> Iterator[Opened]:
    """Open stores over one workspace, bound to an entity or unbound."""
    catalog = request.getfixturevalue(f"{request.param}_catalog")
    embedder = WordTableEmbedder.open(str(tiny_model))
    stores: list[MemoryStore] = []

    def open_store(within: str | None) -> MemoryStore:
        location = str(tmp_path / "workspace")
        stores.append(MemoryStore(location, catalog_url=catalog, within=within, embedder=lambda: embedder))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def listed(store: MemoryStore, type: str = "org", id: str = "acme", **options: Any) -> list[tuple[str, Any]]:
    return sorted((e.key, e.value) for e in store.retrieve_by_entity(type, id, **options).entries)


def test_two_projects_may_use_one_key_without_knowing_of_each_other(opened: Opened) -> None:
    unbound, alpha, beta = opened(None), opened(ALPHA), opened(BETA)
    beta.store("plan", "of beta", BETA)
    assert alpha.retrieve("plan") is None
    assert not alpha.delete("plan")
    alpha.store("plan", "of alpha", ALPHA)
    alpha.store_many([MemoryItem("plan", "of alpha again", "user:alice"), MemoryItem("other", 1, ALPHA)])
    for store, value, owner in ((alpha, "of alpha again", "user"), (beta, "of beta", "project")):
        entry = store.retrieve("plan")
        assert entry is not None
        assert (entry.key, entry.value, entry.entity.type) == ("plan", value, owner)
        assert [each.value for each in store.search("plan")] == [value]
        assert [hit.record.value for hit in store.search_memory(value, 5) if hit.record.key == "plan"] == [value]
        assert [row["key"] for row in store.query_index(("plan", None))] == ["plan"]
    assert listed(alpha, "project", "alpha") == [("other", 1), ("plan", "of alpha again")]
    assert listed(beta, "project", "beta") == [("plan", "of beta")]
    whole = [("other", 1), ("plan", "of alpha again"), ("plan", "of beta")]
    assert listed(unbound, within=ACME) == whole
    assert {e.value for e in unbound.retrieve_batch(["plan"], ALPHA).values()} == {"of alpha again"}
    assert {e.value for e in unbound.retrieve_batch(["plan"], ACME).values()} == {"of beta"}
    assert alpha.delete("plan")
    assert (alpha.retrieve("plan"), alpha.delete("plan")) == (None, False)
    assert listed(unbound, within=ACME) == [("other", 1), ("plan", "of beta")]


def test_the_key_of_a_project_stays_its_own_when_the_other_entry_is_gone(opened: Opened) -> None:
    alpha, beta = opened(ALPHA), opened(BETA)
    beta.store("plan", "of beta", BETA)
    alpha.store("plan", 1, ALPHA)
    assert beta.delete("plan")
    alpha.store("plan", 2, ALPHA)
    assert listed(alpha, "project", "alpha") == [("plan", 2)]
    beta.store("plan", "new", BETA)
    assert listed(alpha, "project", "alpha") == [("plan", 2)]
    assert listed(beta, "project", "beta") == [("plan", "new")]


def test_keys_that_begin_alike_are_different_keys(opened: Opened) -> None:
    alpha, beta = opened(ALPHA), opened(BETA)
    for key in ("a", "a b", "a!", "ab"):
        beta.store(key, f"beta {key}", BETA)
        alpha.store(key, f"alpha {key}", ALPHA)
    for key in ("a", "a b", "a!", "ab"):
        assert alpha.retrieve_batch([key])[key].value == f"alpha {key}"
    assert set(alpha.retrieve_batch(["a", "a b", "a!", "ab", "c"])) == {"a", "a b", "a!", "ab"}
    assert alpha.delete("a")
    assert set(alpha.retrieve_batch(["a", "a b", "a!", "ab"])) == {"a b", "a!", "ab"}


def test_a_boundary_at_the_tenant_may_overwrite_its_entries(opened: Opened) -> None:
    opened(BETA).store("plan", 1, BETA)
    opened(ACME).store("plan", 2, ALPHA)
    assert listed(opened(None), within=ACME) == [("plan", 2)]


def test_names_are_resolved_only_inside_the_boundary(opened: Opened) -> None:
    unbound, alpha = opened(None), opened(ALPHA)
    unbound.register_entity(f"{BETA}/user:alice")
    record = alpha.register_entity("user:alice")
    assert record.entity.directory == f"{ALPHA}/user:alice"
    alpha.store("note", 1, "user:alice")
    assert alpha.retrieve("note", "user:alice") is not None
    with pytest.raises(BadEntity, match="Several"):
        unbound.retrieve("note", "user:alice")


def test_existing_and_missing_names_outside_are_refused_alike(opened: Opened) -> None:
    opened(BETA).store("plan", 1, f"{BETA}/user:bob")
    alpha = opened(ALPHA)
    calls: list[Callable[[str], object]] = [
        lambda name: alpha.retrieve("plan", name),
        lambda name: alpha.store("plan", 1, name),
        lambda name: alpha.delete_entity(name, cascade=True),
        lambda name: alpha.move_entity(ALPHA, name),
        alpha.rebuild,
        lambda name: alpha.list_entities(after=name),
    ]
    for call in calls:
        outcome = set()
        for name in (f"{BETA}/user:bob", f"{BETA}/user:eve"):
            with pytest.raises(BadEntity) as refusal:
                call(name)
            outcome.add(str(refusal.value).replace(name, "it"))
        assert len(outcome) == 1
    assert alpha.ancestors("user:new") == []
    with pytest.raises(AccessDenied):
        alpha.search("", None, None, allowed_ancestors=[BETA])


def test_a_long_key_is_refused_whether_it_is_taken_or_not(opened: Opened) -> None:
    alpha, beta = opened(ALPHA), opened(BETA)
    longest = "k" * MAX_BOUND_CHARACTERS
    beta.store(longest, 1, BETA)
    alpha.store(longest, 2, ALPHA)
    assert alpha.retrieve_batch([longest])[longest].value == 2
    with pytest.raises(BadEntry, match="too long"):
        alpha.store(longest + "k", 1, ALPHA)


def test_an_explanation_counts_only_entries_inside(opened: Opened) -> None:
    opened(BETA).store_many(MemoryItem(f"key {n}", "a parser", BETA) for n in range(5))
    alpha = opened(ALPHA)
    alpha.store("key", "a parser", ALPHA)
    explanation = alpha.search_memory("parser", explain=True).explanation
    assert explanation is not None
    assert (explanation.entries, explanation.matches, explanation.unindexed_words) == (1, 1, 0)


def test_no_call_shows_whether_a_key_is_taken_outside(opened: Opened) -> None:
    beta, alpha = opened(BETA), opened(ALPHA)
    beta.store("taken", 1, BETA)
    outcomes: dict[str, list[object]] = {}
    for key in ("taken", "free0"):
        alpha.store_many([MemoryItem(key, "a parser", ALPHA), MemoryItem(f"{key}~", 1, ALPHA)])
        page = alpha.retrieve_by_entity("project", "alpha", limit=1)
        assert page.cursor is not None
        cursor = json.loads(urlsafe_b64decode(page.cursor + "=="))
        following = alpha.retrieve_by_entity("project", "alpha", cursor=page.cursor)
        outcomes[key] = [
            [entry.value for entry in alpha.search(f"{key} 0")],
            [entry.value for entry in alpha.search(f"{key} 01")],
            [row["size_bytes"] for row in alpha.query_index((key, f"{key}\x01"))],
            [row["size_bytes"] for row in alpha.query_index((f"{key}\x01", f"{key}~"))],
            [hit.record.value for hit in alpha.search_memory("01", mode="text")],
            cursor[-1].replace(key, "it"),
            [entry.value for entry in following.entries],
        ]
        assert alpha.delete_entity(ALPHA, cascade=True) == 2
    assert outcomes["taken"] == [[], [], [10], [], [], "it", [1]]
    outcomes["free0"][0] = []  # its name contains a 0
    assert outcomes["free0"] == outcomes["taken"]


def test_a_deleted_key_stays_deleted_after_stores_and_moves_below_it(opened: Opened) -> None:
    unbound, alpha = opened(None), opened(ALPHA)
    unbound.store("plan", "of beta", f"{BETA}/user:u")
    alpha.store("plan", "of alpha", ALPHA)
    unbound.move_entity(f"{BETA}/user:u", ALPHA)
    assert alpha.delete("plan")
    assert (alpha.retrieve("plan"), alpha.delete("plan")) == (None, False)
    opened(BETA).store("plan", "of beta", BETA)
    alpha.store("plan", "of alpha", ALPHA)
    assert unbound.delete("plan", ACME)
    assert unbound.retrieve("plan", ACME) is None
