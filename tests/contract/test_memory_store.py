"""The contract of memory stores, with SQLite and PostgreSQL, on a local disk and in a bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from driftline.storage.entities import MEMORY_LEVELS, Entity
from driftline.storage.errors import AccessDenied, BadEntity, CatalogMismatch, UsageError
from driftline.storage.memory.memory_indexes import MemoryIndex
from driftline.storage.memory.store import MemoryItem, MemoryStore

ACME = "org:acme"
ALICE = "org:acme/project:alpha/user:alice"
S1, S2 = f"{ALICE}/session:s1", f"{ALICE}/session:s2"
BOB = "org:acme/project:beta/user:bob"
LARGE = "a value that is not inlined " * 100


class Clock:
    """A clock set by tests."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite, disk", "postgres, bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The URIs of a fresh workspace and a fresh catalog: two pairs that cover each kind once."""
    catalog, kind = request.param.split(", ")
    workspace = str(tmp_path / "workspace") if kind == "disk" else request.getfixturevalue("s3_bucket")
    return workspace, request.getfixturevalue(f"{catalog}_catalog")


everywhere = pytest.mark.parametrize(
    "location", ["sqlite, disk", "sqlite, bucket", "postgres, disk", "postgres, bucket"], indirect=True
)
"""All four pairs, for tests that involve both the catalog and the workspace."""


@pytest.fixture
def opened(location: tuple[str, str], clock: Clock) -> Iterator[Callable[..., MemoryStore]]:
    """Open stores over the same workspace and catalog, and close them afterwards."""
    stores: list[MemoryStore] = []

    def open_store(**options: Any) -> MemoryStore:
        stores.append(MemoryStore(location[0], catalog_url=location[1], **{"now": clock, **options}))
        return stores[-1]

    yield open_store
    for each in stores:
        each.close()


@pytest.fixture
def store(opened: Callable[..., MemoryStore]) -> MemoryStore:
    return opened()


def keys(entries: Any) -> list[str]:
    return [entry.key for entry in entries]


def indexed(store: MemoryStore, directory: str) -> dict[str, str]:
    """Return the owner of each key in an entity's index."""
    store.flush()
    rows = MemoryIndex(store.workspace.objects, directory).read(columns=["key", "entity"]).to_pylist()
    return {row["key"]: row["entity"] for row in rows}


# -- entries ---------------------------------------------------------------------------------


@everywhere
def test_a_value_comes_back_as_it_was_stored(store: MemoryStore) -> None:
    small: list[Any] = [None, False, 0, "", "text", 1.5, [], {}, {"a": [1, None, "ü\x00 \u2028"]}]
    values = [*small, LARGE, {"large": LARGE}]
    for n, value in enumerate(values):
        store.store(f"key {n}", value, S1, {"n": n})
    for n, value in enumerate(values):
        entry = store.retrieve(f"key {n}", ACME)
        assert entry is not None
        assert (entry.value, entry.entity, entry.metadata) == (value, store.hierarchy.entity(S1), {"n": n})
        assert entry.created.utcoffset() == timedelta(0)


@everywhere
def test_a_large_value_is_stored_in_a_blob_and_a_small_one_inline(store: MemoryStore) -> None:
    store.store_many([MemoryItem("small", "x", S1), MemoryItem("large", LARGE, S1)])
    blobs = [info.path for info in store.workspace.objects.list(S1) if info.path.endswith(".json")]
    assert len(blobs) == 1
    entry = store.retrieve("large", ACME)
    assert entry is not None
    assert entry.content_hash in blobs[0]


@everywhere
def test_storing_a_key_again_replaces_it_and_under_another_entity_moves_it(store: MemoryStore, clock: Clock) -> None:
    store.store("key", LARGE, S1)
    first = store.retrieve("key", ACME)
    clock.time += timedelta(minutes=1)
    store.store("key", "second", BOB)
    entry = store.retrieve("key", ACME)
    assert first is not None
    assert entry is not None
    assert (entry.value, str(entry.entity)) == ("second", BOB)
    assert (entry.created, entry.updated) == (first.created, clock.time)
    assert entry.rev > first.rev
    assert store.retrieve_by_entity("session", "s1", within=ACME).total_count == 0
    assert keys(store.retrieve_by_entity("user", "bob", within=ACME).entries) == ["key"]


def test_a_key_that_was_never_stored_is_none_and_deleting_it_says_so(store: MemoryStore) -> None:
    assert store.retrieve("key", ACME) is None
    assert not store.delete("key", ACME)
    store.store("key", None, S1)
    assert store.delete("key", ACME)
    assert store.retrieve("key", ACME) is None
    assert not store.delete("key", ACME)


@everywhere
def test_a_batch_returns_the_entries_that_exist(store: MemoryStore) -> None:
    store.store_many(MemoryItem(f"key {n}", LARGE + str(n), S1) for n in range(40))
    found = store.retrieve_batch([f"key {n}" for n in range(0, 80, 2)], ACME)
    assert {key: entry.value for key, entry in found.items()} == {f"key {n}": LARGE + str(n) for n in range(0, 40, 2)}


def test_the_last_of_equal_keys_in_a_bulk_wins(store: MemoryStore) -> None:
    items = [MemoryItem("key", n, f"{ALICE}/session:s{n % 3}") for n in range(5)]
    assert store.store_many(items).entries == 1
    page = store.retrieve_by_entity("user", "alice", within=ACME)
    assert [(entry.value, entry.entity.id) for entry in page.entries] == [(4, "s1")]
    assert page.total_count == 1


def test_a_bulk_insert_may_exceed_one_statement(store: MemoryStore) -> None:
    count = 6_000
    store.store_many(MemoryItem(f"{n:05}", n, f"{ALICE}/session:s{n % 50}") for n in range(count))
    store.store_many(MemoryItem(f"{n:05}", -n, f"{ALICE}/session:s{n % 50}") for n in range(1_000))
    page = store.retrieve_by_entity("project", "alpha", within=ACME, limit=10)
    assert (page.total_count, page.has_more) == (count, True)
    assert sum(entry.value for entry in store.retrieve_batch([f"{n:05}" for n in range(2_000)], ACME).values()) == sum(
        n if n >= 1_000 else -n for n in range(2_000)
    )

    def known(connection: Connection) -> int | None:
        """Return the number of entries assumed by PostgreSQL's planner."""
        if connection.dialect.name != "postgresql":
            return None
        found = connection.exec_driver_sql("SELECT reltuples FROM pg_class WHERE oid = to_regclass('ltm_entries')")
        return int(found.scalar_one())

    assert store.catalog.read(known) in (None, count)


def test_expired_entries_are_not_returned_anywhere(store: MemoryStore, clock: Clock) -> None:
    store.store("short", 1, S1, {"phase": "plan"}, clock.time + timedelta(hours=1))
    store.store("long", 2, S1, {"phase": "plan"}, clock.time + timedelta(hours=3))
    clock.time += timedelta(hours=1)
    assert store.retrieve("short", ACME) is None
    assert list(store.retrieve_batch(["short", "long"], ACME)) == ["long"]
    page = store.retrieve_by_entity("session", "s1", within=ACME)
    assert (keys(page.entries), page.total_count) == (["long"], 1)
    assert keys(store.search("", {"phase": "plan"}, ACME)) == ["long"]
    assert store.collect_expired() == 1
    assert list(indexed(store, ACME)) == ["long"]
    store.store("short", 3, S1)
    assert store.retrieve_by_entity("session", "s1", within=ACME).total_count == 2


def test_an_expired_entry_is_treated_as_absent(store: MemoryStore, clock: Clock) -> None:
    for key in ("deleted", "stored again"):
        store.store(key, 1, S1, expires_at=clock.time + timedelta(hours=1))
    clock.time += timedelta(hours=2)
    assert not store.delete("deleted", ACME)
    stored = store.store("stored again", 2, S2)
    assert (stored.replaced, stored.moved_from) == (0, {})
    entry = store.retrieve("stored again")
    assert entry is not None
    assert entry.created == clock.time
    store.store("again", 1, S1, expires_at=clock.time + timedelta(hours=1))
    clock.time += timedelta(hours=2)
    assert store.delete_entity(S1) == 0


def test_a_write_reports_what_it_replaced_moved_and_redacted(store: MemoryStore) -> None:
    first = store.store("key", LARGE, S1)
    assert (first.entries, first.replaced, first.moved_from, first.redacted) == (1, 0, {}, {})
    again = store.store("key", "second", S1)
    assert (again.replaced, again.moved_from) == (1, {})
    moved = store.store_many([MemoryItem("key", 3, BOB), MemoryItem("new", 1, BOB)])
    assert (moved.entries, moved.replaced, moved.moved_from) == (2, 1, {"key": (Entity.parse(S1, MEMORY_LEVELS),)})
    token = "ghp_" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4zAb3d"
    redacted = store.store("key", {"token": token}, BOB, {"note": token}).redacted
    assert redacted == {"github": 2}


def test_a_write_to_several_tenants_reports_every_former_owner(store: MemoryStore) -> None:
    tenants = ("org:one", "org:two")
    store.store_many(MemoryItem("key", 1, f"{tenant}/project:p") for tenant in tenants)
    moved = store.store_many(MemoryItem("key", 2, f"{tenant}/project:q") for tenant in tenants)
    assert moved.replaced == 2
    assert [str(owner) for owner in moved.moved_from["key"]] == [f"{tenant}/project:p" for tenant in tenants]


def test_times_keep_their_instant_in_any_zone(store: MemoryStore, clock: Clock) -> None:
    instant = clock.time + timedelta(hours=1)
    for hours in (9, -8):
        store.store("key", 1, S1, expires_at=instant.astimezone(timezone(timedelta(hours=hours))))
        entry = store.retrieve("key", ACME)
        assert entry is not None
        assert entry.expires == instant


def test_metadata_is_filtered_by_type_and_value(store: MemoryStore) -> None:
    values: list[Any] = [1, 1.5, "1", True, "x' OR 1=1 --", [1], {"a": 1}, None]
    store.store_many(MemoryItem(f"{n}", n, S1, {"field": value, "other": n % 2}) for n, value in enumerate(values))
    for wanted, expected in [(1, "0"), (1.5, "1"), ("1", "2"), (True, "3"), ("x' OR 1=1 --", "4")]:
        assert keys(store.search("", {"field": wanted}, ACME)) == [expected], wanted
    assert set(keys(store.search("", {"field": [1, "1"]}, ACME))) == {"0", "2"}
    assert keys(store.search("", {"field": [1, "1"], "other": 0, "nobody set": None}, ACME)) == ["0", "2"]
    assert store.search("", {"field": []}, ACME) == []
    assert store.search("", {'fi"eld': 1}, ACME) == []


def test_a_search_finds_keys_by_all_their_words(store: MemoryStore, clock: Clock) -> None:
    for n, key in enumerate(["Plan of Monday", "plan_50%", "monday's notes", "Été"]):
        clock.time += timedelta(seconds=n)
        store.store(key, n, S1)
    assert keys(store.search("monday", None, ACME)) == ["monday's notes", "Plan of Monday"]
    assert keys(store.search("MONDAY plan", None, ACME)) == ["Plan of Monday"]
    assert keys(store.search("_50%", None, ACME)) == ["plan_50%"]
    assert keys(store.search("Été", None, ACME)) == ["Été"]
    assert len(store.search("", None, ACME, limit=3)) == 3


# -- by entity -------------------------------------------------------------------------------


@pytest.fixture
def filled(store: MemoryStore) -> MemoryStore:
    """Two projects, each with a user alice."""
    locations = [S1, S2, ALICE, BOB, "org:acme/project:beta/user:alice", "org:acme/project:beta/user:alice/session:s1"]
    store.store_many(MemoryItem(f"{location} {n}", n, location) for location in locations for n in range(3))
    return store


def test_pages_by_cursor_and_by_offset_hold_each_entry_once_in_the_same_order(filled: MemoryStore) -> None:
    everything = keys(filled.retrieve_by_entity("org", "acme", within=ACME).entries)
    assert len(everything) == len(set(everything)) == 18
    by_cursor: list[str] = []
    by_offset: list[str] = []
    cursor = None
    while True:
        page = filled.retrieve_by_entity("org", "acme", within=ACME, limit=4, cursor=cursor)
        by_cursor += keys(page.entries)
        by_offset += keys(filled.retrieve_by_entity("org", "acme", within=ACME, limit=4, offset=len(by_offset)).entries)
        assert page.total_count == 18
        assert page.has_more == (len(by_cursor) < 18)
        cursor = page.cursor
        if cursor is None:
            break
    assert by_cursor == by_offset == everything


def test_a_cursor_belongs_to_its_entity_and_an_empty_page_has_no_next(filled: MemoryStore) -> None:
    cursor = filled.retrieve_by_entity("org", "acme", limit=2).cursor
    assert cursor is not None
    with pytest.raises(UsageError, match="Invalid cursor"):
        filled.retrieve_by_entity("user", "bob", cursor=cursor)
    nothing = filled.retrieve_by_entity("org", "acme", limit=0)
    assert (nothing.entries, nothing.has_more, nothing.cursor) == ((), False, None)


def test_an_entity_can_be_listed_without_its_descendants(filled: MemoryStore) -> None:
    page = filled.retrieve_by_entity("user", "alice", within="org:acme/project:alpha", include_descendants=False)
    assert keys(page.entries) == [f"{ALICE} {n}" for n in range(3)]
    assert page.total_count == 3
    assert filled.retrieve_by_entity("user", "alice", within="org:acme/project:alpha").total_count == 9


def test_the_same_name_under_two_parents_means_both_within_their_scope(filled: MemoryStore) -> None:
    assert filled.retrieve_by_entity("user", "alice", within=ACME).total_count == 15
    assert filled.retrieve_by_entity("session", "s1", within=ACME).total_count == 6
    assert filled.retrieve_by_entity("session", "s1", within="org:acme/project:beta").total_count == 3
    assert filled.retrieve_by_entity("user", "nobody", within=ACME) == filled.retrieve_by_entity("user", "nobody")
    with pytest.raises(BadEntity, match="Several entities"):
        filled.retrieve_by_entity("user", "alice")


def test_allowed_ancestors_limit_and_an_empty_list_allows_nothing(filled: MemoryStore) -> None:
    def count(allowed: list[str] | None) -> int:
        page = filled.retrieve_by_entity("user", "alice", within=ACME, allowed_ancestors=allowed)
        assert len(page.entries) == page.total_count
        assert len(filled.search("alice", None, ACME, allowed_ancestors=allowed)) == page.total_count
        return page.total_count

    assert count(None) == 15
    assert count(["org:acme/project:beta"]) == 6
    assert count([S1, "org:acme/project:beta/user:alice/session:s1", "org:acme/project:none"]) == 6
    assert count([ACME]) == 15
    denied: list[list[str]] = [[], ["org:other"], ["org:acme/project:none"]]
    for allowed in denied:
        outcome = set()
        for name in ("alice", "bob", "nobody"):
            with pytest.raises(AccessDenied) as refusal:
                filled.retrieve_by_entity("user", name, within=ACME, allowed_ancestors=allowed)
            outcome.add(str(refusal.value).replace(name, "it"))
        assert len(outcome) == 1, allowed  # the error does not reveal whether the user exists
    for allowed in denied[:2]:
        with pytest.raises(AccessDenied):
            filled.search("alice", None, ACME, allowed_ancestors=allowed)


def test_a_scope_below_the_tenant_hides_its_siblings(filled: MemoryStore) -> None:
    key = f"{S1} 0"
    for scope, visible in [(ACME, True), (ALICE, True), (S1, True), (S2, False), (BOB, False), (None, True)]:
        assert (filled.retrieve(key, scope) is not None) == visible, scope
    assert not filled.delete(key, S2)
    assert filled.delete(key, S1)


# -- entities --------------------------------------------------------------------------------


def test_missing_levels_get_their_defaults(store: MemoryStore) -> None:
    record = store.register_entity_with_defaults("session", "s123", parents={"user": "alice"})
    assert str(record.entity) == "org:default/project:_unassigned/user:alice/session:s123"
    assert [str(above.entity) for above in store.ancestors(record.entity)] == [
        "org:default/project:_unassigned/user:alice",
        "org:default/project:_unassigned",
        "org:default",
    ]
    assert store.register_entity_with_defaults("session", "s123", parents={"user": "alice"}) == record


def test_a_subtree_is_listed_by_path_type_and_depth(filled: MemoryStore) -> None:
    below = [str(record.entity) for record in filled.descendants(ACME)]
    assert below == sorted(below)
    assert len(below) == 8
    assert [(r.entity.id, r.depth) for r in filled.descendants(ACME, max_depth=1)] == [("alpha", 1), ("beta", 1)]
    first = filled.list_entities(ACME, "session", limit=2)
    rest = filled.list_entities(ACME, "session", after=first[-1].entity)
    assert [str(r.entity) for r in [*first, *rest]] == [S1, S2, "org:acme/project:beta/user:alice/session:s1"]
    assert filled.get_entity("org:acme/project:gamma") is None


@everywhere
def test_a_moved_subtree_takes_its_entries_along(filled: MemoryStore) -> None:
    before = len(indexed(filled, "org:acme/project:alpha"))
    moved = filled.move_entity(ALICE, "org:acme/project:gamma")
    assert str(moved) == "org:acme/project:gamma/user:alice"
    assert filled.get_entity(ALICE) is None
    assert filled.retrieve_by_entity("project", "gamma", within=ACME).total_count == 9
    assert filled.retrieve_by_entity("project", "alpha", within=ACME).total_count == 0
    entry = filled.retrieve(f"{S1} 0", "org:acme/project:gamma")
    assert entry is not None
    assert str(entry.entity) == "org:acme/project:gamma/user:alice/session:s1"
    gamma = indexed(filled, "org:acme/project:gamma")
    assert len(gamma) == before == 9
    assert gamma[f"{S1} 0"] == "org:acme/project:gamma/user:alice/session:s1"
    assert indexed(filled, "org:acme/project:alpha") == {}
    assert indexed(filled, S1) == {}
    assert len(indexed(filled, ACME)) == 18


def test_an_invalid_move_is_refused_and_changes_nothing(filled: MemoryStore) -> None:
    before = filled.descendants(ACME)
    for entity, parent in [
        ("org:acme/project:alpha/user:nobody", "org:acme/project:beta"),
        (ALICE, "org:acme/project:beta"),
        (ALICE, "org:acme"),
        (ALICE, BOB),
        (ALICE, "org:other/project:beta"),
        (ACME, "org:other"),
    ]:
        with pytest.raises(BadEntity):
            filled.move_entity(entity, parent)
    assert filled.descendants(ACME) == before
    assert filled.get_entity("org:other") is None


def test_deleting_an_entity_with_content_requires_cascade(filled: MemoryStore) -> None:
    with pytest.raises(BadEntity, match="cascade"):
        filled.delete_entity(ALICE)
    assert filled.delete_entity(ALICE, cascade=True) == 9
    assert filled.retrieve_by_entity("org", "acme", within=ACME).total_count == 9
    assert filled.get_entity(S1) is None
    assert indexed(filled, S1) == {}
    assert len(indexed(filled, ACME)) == 9
    with pytest.raises(BadEntity, match="entity does not exist"):
        filled.delete_entity(ALICE, cascade=True)
    filled.delete_entity("org:acme/project:alpha")


def test_a_deleted_tenant_can_be_created_again(filled: MemoryStore) -> None:
    filled.delete_entity(ACME, cascade=True)
    filled.store("key", 1, S1)
    assert list(indexed(filled, ACME)) == ["key"]
    assert filled.retrieve_by_entity("org", "acme", within=ACME).total_count == 1


# -- concurrency -----------------------------------------------------------------------------


@everywhere
def test_fifty_threads_storing_one_key_leave_one_entry(store: MemoryStore) -> None:
    threads = 50
    barrier = threading.Barrier(threads)

    def put(n: int) -> None:
        barrier.wait()
        store.store("key", {"n": n, "text": LARGE}, f"{ALICE}/session:s{n % 5}")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(put, range(threads)))
    entry = store.retrieve("key", ACME)
    assert entry is not None
    assert entry.rev == threads
    page = store.retrieve_by_entity("org", "acme", within=ACME)
    assert (page.entries, page.total_count) == ((entry,), 1)
    owner = entry.entity.directory
    assert indexed(store, ACME) == {"key": owner}
    for n in range(5):
        session = f"{ALICE}/session:s{n}"
        assert indexed(store, session) == ({"key": owner} if session == owner else {})


@pytest.mark.parametrize("entity_id", [5, "", b"beta", ("beta",)])
def test_an_id_that_is_not_a_name_is_refused(store: MemoryStore, entity_id: Any) -> None:
    with pytest.raises(BadEntity):
        store.register_entity("project", entity_id, "org:acme")


def test_the_same_entities_may_be_registered_concurrently(opened: Callable[..., MemoryStore]) -> None:
    stores = [opened() for _ in range(4)]
    barrier = threading.Barrier(8)

    def register(n: int) -> list[Any]:
        barrier.wait()
        return [stores[n % 4].register_entity(f"org:acme/project:p{m}/user:u").entity for m in range(5)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(register, range(8)))
    assert all(each == found[0] for each in found)
    assert len(stores[0].descendants(ACME)) == 10


@everywhere
def test_two_stores_over_one_catalog_see_each_others_writes(opened: Callable[..., MemoryStore]) -> None:
    first, second = opened(), opened()
    first.store("key", LARGE, S1)
    entry = second.retrieve("key", ACME)
    assert entry is not None
    second.store("key", "new", S1)
    again = first.retrieve("key", ACME)
    assert again is not None
    assert (entry.value, again.value) == (LARGE, "new")


# -- opening ---------------------------------------------------------------------------------


def test_a_catalog_serves_one_workspace(store: MemoryStore, location: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(CatalogMismatch, match="belongs to workspace"):
        MemoryStore(str(tmp_path / "another"), catalog_url=location[1])


@everywhere
def test_an_index_is_rebuilt_from_the_catalog(filled: MemoryStore) -> None:
    want = {directory: indexed(filled, directory) for directory in (ACME, ALICE, S1)}
    objects = filled.workspace.objects
    damaged = MemoryIndex(objects, S1).log().deltas[0]
    objects.delete([f"{S1}/{damaged}"])
    objects.create(f"{S1}/{damaged}", b"damaged")
    objects.delete([f"{ACME}/{name}" for name in MemoryIndex(objects, ACME).log().deltas])
    filled.rebuild(ACME)
    assert {directory: indexed(filled, directory) for directory in (ACME, ALICE, S1)} == want


# -- bad input -------------------------------------------------------------------------------


HOSTILE = [
    "../../etc/passwd",
    "a/b",
    "/",
    "%2e%2e",
    "'; DROP TABLE entries; --",
    '"',
    "\\",
    "ал\u0456ce",
    "alice",
    " ",
    "~2F",
]


def test_hostile_ids_are_ordinary_names_and_stay_in_their_directory(store: MemoryStore) -> None:
    owners = [Entity((("org", "acme"), ("project", name), ("user", name))) for name in HOSTILE]
    store.store_many(MemoryItem(f"{n}", LARGE + str(n), owner) for n, owner in enumerate(owners))
    for n, owner in enumerate(owners):
        page = store.retrieve_by_entity("user", owner.id, within=ACME)
        assert [entry.value for entry in page.entries] == [LARGE + str(n)]
        assert page.entries[0].entity == store.hierarchy.entity(owner.directory) == owner
    written = [info.path for info in store.workspace.objects.list() if info.path.endswith(".json")]
    inside = [path for path in written if path not in ("_workspace.json", "_catalog.json")]
    assert len(inside) == len(HOSTILE)
    assert all(path.startswith("org:acme/project:") and path.count("/") == 3 for path in inside)


@everywhere
def test_hostile_keys_are_ordinary_keys(store: MemoryStore) -> None:
    names = [*HOSTILE, "k" * 1_024, "é" * 1_024, "%", "_"]
    store.store_many(MemoryItem(name, LARGE + name, S1) for name in names)
    for name in names:
        entry = store.retrieve(name, ACME)
        assert entry is not None
        assert entry.value == LARGE + name
    assert store.retrieve_by_entity("session", "s1", within=ACME).total_count == len(names)
    assert sorted(indexed(store, ACME)) == sorted(names)


def test_a_search_for_a_word_longer_than_any_key_finds_nothing(store: MemoryStore) -> None:
    store.store("a" * 1_000, 1, S1)
    assert store.search("a" * 100_000) == []
    with pytest.raises(UsageError, match="NUL"):
        store.search("\0")


@pytest.mark.parametrize("large", [2**63, 10**30])
def test_a_limit_above_the_number_of_entries_returns_them_all(store: MemoryStore, large: int) -> None:
    store.store_many([MemoryItem(f"key {n}", n, S1) for n in range(3)])
    assert len(store.retrieve_by_entity("org", "acme", limit=large).entries) == 3
    assert store.retrieve_by_entity("org", "acme", offset=large).entries == ()
    assert len(store.search("key", None, ACME, limit=large)) == 3
    assert len(store.list_entities(ACME, limit=large)) == 3
    for wrong in (-1, "5"):
        with pytest.raises(UsageError):
            store.search("key", None, ACME, limit=wrong)  # type: ignore[arg-type]
