"""A memory store rejects invalid input with a clear error before it writes anything."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from driftline.storage.entities import Entity, Hierarchy
from driftline.storage.errors import BadEntity, BadEntry, UsageError
from driftline.storage.memory.catalog.database import parse_url
from driftline.storage.memory.catalog.entry_writes import check_metadata, encode
from driftline.storage.memory.store import MemoryItem, MemoryStore

LARGE = "a value that is not inlined " * 100


class Colour(Enum):
    RED = "red"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryStore]:
    """One store for all tests, to which nothing is written."""
    with MemoryStore(str(tmp_path_factory.mktemp("memory") / "workspace")) as opened:
        yield opened
        assert not [info for info in opened.workspace.objects.list() if ":" in info.path]
        assert opened.list_entities("org:acme") == []


@pytest.mark.parametrize("name", ["", ".", "..", "a\x00b", "x" * 2_000, "\ud800", "😀" * 100], ids=ascii)
def test_an_id_that_cannot_be_a_directory_name_is_refused(store: MemoryStore, name: str) -> None:
    with pytest.raises(BadEntity):
        store.store("key", LARGE, Entity((("org", "acme"), ("project", name))))
    with pytest.raises(BadEntity):
        store.register_entity_with_defaults("user", name)


@pytest.mark.parametrize("entity", ["org:acme ", "org: acme", ("org", "acme\t"), "org:acme\u00a0/user:a"], ids=ascii)
def test_spaces_around_an_id_are_refused(store: MemoryStore, entity: Any) -> None:
    with pytest.raises(BadEntity, match="whitespace"):
        store.store("key", LARGE, entity)
    assert store.names.find("org:acme~20").id == "acme "


def test_a_path_too_long_for_a_bucket_is_refused(store: MemoryStore) -> None:
    parts = tuple((level, "ü" * 40) for level in store.hierarchy.levels)
    with pytest.raises(BadEntity, match="path"):
        store.store("key", LARGE, Entity(parts))


@pytest.mark.parametrize("key", ["", "a\x00b", "a\nb", "x" * 1_025, "語" * 900, "\udc80", None, 7], ids=ascii)
def test_a_key_that_no_database_can_store_is_rejected(store: MemoryStore, key: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.store(key, LARGE, "org:acme"),
        lambda: store.retrieve(key, "org:acme"),
        lambda: store.delete(key, "org:acme"),
    ]
    for call in calls:
        with pytest.raises(BadEntry):
            call()


@pytest.mark.parametrize(
    ("value", "metadata", "expires"),
    [
        (float("nan"), None, None),
        (object(), None, None),
        ("\ud800", None, None),
        (1, {"a": float("inf")}, None),
        (1, {"a": "\x00"}, None),
        (1, {"a": "x" * 70_000}, None),
        (1, {"a": {1}}, None),
        (1, {1: "a"}, None),
    ],
    ids=range(8),
)
def test_an_invalid_entry_is_refused_before_anything_is_written(
    store: MemoryStore, value: Any, metadata: Any, expires: datetime | None
) -> None:
    with pytest.raises(BadEntry):
        store.store_many(
            [MemoryItem("fine", LARGE, "org:acme"), MemoryItem("key", value, "org:acme", metadata, expires)]
        )


def test_both_json_encoders_agree() -> None:
    for value in ({"a": Colour.RED, "b": UUID(int=1)}, [1.5, -0.0, True, "ü\x00\u2028"], {"large": 2**63}):
        with_null = json.loads(encode([value, None]))  # which uses the other encoder
        assert json.dumps(json.loads(encode(value))) == json.dumps(with_null[0])
    assert json.loads(encode({1: 2**70, "a": (1, None)})) == {"1": 2**70, "a": [1, None]}
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert json.loads(encode({1: "a", "b": None})) == {"1": "a", "b": None}
    odd_numbers = (float("nan"), [None, float("inf")])
    colliding = ({1: "a", "1": "b"}, [{"x": {None: 1, "null": 2}}])
    for unfit in (*odd_numbers, *colliding, {"a": moment}, [None, date(2026, 1, 1)], {1}):
        with pytest.raises(BadEntry):
            encode(unfit)


def test_metadata_may_hold_an_escaped_nul_but_not_a_nul(store: MemoryStore) -> None:
    assert json.loads(check_metadata({"a": "\\u0000"})) == {"a": "\\u0000"}
    with pytest.raises(BadEntry, match="NUL"):
        check_metadata({"a": "\\\x00"})


@pytest.mark.parametrize(
    "entity",
    [
        "",
        "acme",
        "org",
        "project:a/org:b",
        "org:a/org:b",
        "team:x",
        "org:a//project:b",
        "source:web",
        ":x",
    ],
)
def test_an_invalid_entity_is_refused(store: MemoryStore, entity: str) -> None:
    with pytest.raises(BadEntity):
        store.store("key", LARGE, entity)
    with pytest.raises(BadEntity):
        store.retrieve("key", entity)


BAD_CURSORS: list[Any] = [
    *("", "x", "WzFd", "WyJhIiwgMV0=", "\x00", "é", "A" * 1_000_000, 5, b"x"),
    *(
        urlsafe_b64encode(data).decode()
        for data in (
            b"[" * 5_000,
            b'["org:acme",1,"\\ud800"]',
            b'["org:acme",1,"\\u0000"]',
            b'["org:acme",true,"a"]',
            b'["org:acme",%d,"a"]' % 2**70,
            b'["org:acme",1,"a",2]',
            b'["org:other",1,"a"]',
        )
    ),
]


@pytest.mark.parametrize("cursor", BAD_CURSORS)
def test_an_invalid_cursor_is_refused(store: MemoryStore, cursor: str) -> None:
    with pytest.raises(UsageError, match="Invalid cursor"):
        store.retrieve_by_entity("org", "acme", cursor=cursor)


@pytest.mark.parametrize("fields", [{"a": {}}, {"a": [[]]}, {"a": object()}])
def test_a_filter_value_must_be_a_scalar(store: MemoryStore, fields: dict[str, Any]) -> None:
    with pytest.raises(BadEntry):
        store.search("", fields)


def test_a_semantic_search_needs_a_model(store: MemoryStore) -> None:
    with pytest.raises(UsageError, match="embedding model"):
        store.search_memory("query")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("org:acme", ["acme"]),
        ("project:p", ["default", "p"]),
        ("session:s", ["default", "_unassigned", "_unassigned", "s"]),
        ("org:a~2Fb", ["a/b"]),
        ("org:a~b", ["a~b"]),
        ("org:a~2fb", ["a~2fb"]),
        ("org:Zoë", ["Zoë"]),
        ("org:Zo~C3~AB", ["Zoë"]),
        ("org:~7E2F", ["~2F"]),
    ],
)
def test_an_entity_is_parsed_from_its_path_or_its_directory(text: str, ids: list[str]) -> None:
    entity = Hierarchy().entity(text)
    assert [name for _, name in entity.parts] == ids
    assert Hierarchy().entity(entity.directory) == entity


@pytest.mark.parametrize(
    "options",
    [
        {"levels": ()},
        {"levels": ("org", "org")},
        {"levels": ("org", "source")},
        {"levels": ("Org",)},
        {"levels": tuple(f"l{n}" for n in range(9))},
        {"defaults": {"team": "x"}},
        {"defaults": {"org": ".."}},
        {"root": ("team", "x")},
    ],
)
def test_an_invalid_hierarchy_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Hierarchy(**options)


def test_a_lower_level_cannot_be_a_parent() -> None:
    with pytest.raises(BadEntity, match="below"):
        Hierarchy().named("project", "p", {"user": "u"})


@pytest.mark.parametrize("url", ["", "x", "mysql://u:secret@h/d", "sqlite://", "sqlite:///:memory:"])
def test_an_invalid_catalog_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_url(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_means_psycopg(scheme: str) -> None:
    assert parse_url(f"{scheme}://u@h/d").drivername == "postgresql+psycopg"


def test_a_workspace_in_a_bucket_needs_a_catalog_of_its_own(s3_bucket: str) -> None:
    with pytest.raises(UsageError, match="catalog"):
        MemoryStore(s3_bucket)


def test_an_unusable_catalog_is_an_error(tmp_path: Path) -> None:
    from driftline.storage.errors import CatalogError

    with pytest.raises(CatalogError, match="unable to open"):
        MemoryStore(str(tmp_path / "workspace"), catalog_url=f"sqlite:///{tmp_path}/missing/catalog.sqlite")
