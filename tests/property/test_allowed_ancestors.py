"""What ``allowed_ancestors`` excludes affects no answer and no error: it might as well not exist."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.entities import EntityName, Hierarchy
from driftline.storage.errors import BadEntity, DriftlineError
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.tasks.embedding.embedder import WordTableEmbedder

ALPHA, BETA, MERGER = "org:acme/project:alpha", "org:acme/project:beta", "org:globex/project:merger"
OWNERS = (
    "org:acme",
    "org:acme/project:_unassigned/user:dora",
    f"{ALPHA}/user:alice/session:s1",
    f"{ALPHA}/user:bob",
    f"{BETA}/user:alice",
    f"{BETA}/user:carol/session:s1",
    f"{MERGER}/user:alice",
    "org:globex/project:alpha",
    "org:default/project:secret/user:zoe",
)
NAMES: tuple[tuple[str, str], ...] = (
    ("org", "acme"),
    ("org", "globex"),
    ("project", "alpha"),
    ("project", "merger"),
    ("project", "nope"),
    ("user", "alice"),
    ("user", "carol"),
    ("user", "zoe"),
    ("session", "s1"),
)
ALLOWED: tuple[list[str], ...] = (
    [],
    ["org:acme"],
    [ALPHA],
    [BETA, "org:default"],
    [MERGER, f"{ALPHA}/user:alice"],
    ["org:acme/project:_unassigned"],
    ["org:nowhere/project:new/user:alice"],
)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what the caller of a read learns, as one comparable value."""
    try:
        found = call()
    except DriftlineError as error:
        return type(error), str(error)
    if hasattr(found, "entries"):
        return [e.value for e in found.entries], found.total_count, found.has_more, found.is_partial
    if not hasattr(found, "explanation"):
        return [e.value for e in found]
    figures = {**asdict(found.explanation), "seconds": None} if found.explanation else None
    return [(hit.record.value, round(hit.score, 6), hit.rank) for hit in found], figures


def reads(store: MemoryStore, allowed: Sequence[str]) -> dict[str, Any]:
    """Return the outcome of every kind of read that accepts ``allowed_ancestors``."""
    given: dict[str, Any] = {"allowed_ancestors": allowed}
    calls: dict[str, Callable[[], Any]] = {}
    for name in NAMES:
        named = {"entity": f"{name[0]}:{name[1]}"}
        calls[f"entity {name}"] = partial(store.retrieve_by_entity, *name, **given)
        calls[f"search {name}"] = partial(store.search, "note", None, name, **given)
        calls[f"meaning {name}"] = partial(store.search_memory, "note", scope=name, explain=True, **given)
        calls[f"filter {name}"] = partial(store.search_memory, "note", 5, named, explain=True, **given)
    scopes: tuple[EntityName, ...] = ("project:alpha", "org:acme", ("user", "alice"))
    for name, within in product(NAMES, scopes):
        calls[f"{name} in {within}"] = partial(store.retrieve_by_entity, *name, within=within, **given)
    calls["search"] = partial(store.search, "", None, **given)
    calls["meaning"] = partial(store.search_memory, "note", 20, explain=True, **given)
    return {name: outcome(call) for name, call in calls.items()}


@pytest.fixture
def opened(catalog_file: Path, tiny_model: Path, tmp_path: Path) -> Iterator[Callable[..., MemoryStore]]:
    """Open stores with a note of each of some owners, each over a workspace of its own."""
    embedder = WordTableEmbedder.open(str(tiny_model))
    numbers = count()

    def fill(owners: Sequence[str], root: str | None = None) -> MemoryStore:
        folder = tmp_path / str(next(numbers))
        url = f"sqlite:///{shutil.copy(catalog_file, f'{folder}.sqlite')}"
        with MemoryStore(str(folder), catalog_url=url, embedder=lambda: embedder) as store:
            store.store_many(MemoryItem(f"note of {owner}", f"note {owner}", owner) for owner in owners)
        hierarchy = Hierarchy(root=root)
        return stack.enter_context(
            MemoryStore(str(folder), catalog_url=url, hierarchy=hierarchy, embedder=lambda: embedder)
        )

    with ExitStack() as stack:
        yield fill


@pytest.mark.parametrize("root", [None, ALPHA])
def test_entities_that_are_not_allowed_might_as_well_not_exist(
    opened: Callable[..., MemoryStore], root: str | None
) -> None:
    everything = opened(OWNERS, root)
    for allowed in ALLOWED:
        visible = [owner for owner in OWNERS if any(f"{owner}/".startswith(f"{top}/") for top in allowed)]
        expected = reads(opened(visible, root), allowed)
        for call, found in reads(everything, allowed).items():
            assert found == expected[call], (allowed, call)


def test_a_name_that_is_unique_in_what_is_allowed_is_resolved(opened: Callable[..., MemoryStore]) -> None:
    store = opened(OWNERS)
    page = store.retrieve_by_entity("user", "alice", allowed_ancestors=[ALPHA])
    assert [entry.entity.directory for entry in page.entries] == [f"{ALPHA}/user:alice/session:s1"]
    with pytest.raises(BadEntity) as refusal:
        store.retrieve_by_entity("user", "alice", allowed_ancestors=["org:acme"])
    assert f"{ALPHA}/user:alice, {BETA}/user:alice." in str(refusal.value)
    with pytest.raises(BadEntity) as refusal:
        store.retrieve_by_entity("user", "alice", allowed_ancestors=["project:alpha"])
    assert "globex" not in str(refusal.value)


def test_a_page_says_that_it_is_only_a_part(opened: Callable[..., MemoryStore]) -> None:
    store = opened(OWNERS)
    parts = {
        name: store.retrieve_by_entity("org", "acme", allowed_ancestors=name and [name])
        for name in (None, "org:acme", ALPHA)
    }
    assert [(page.is_partial, page.total_count) for page in parts.values()] == [(False, 6), (False, 6), (True, 2)]
