"""What can be asked of the entries in the catalog, within a scope that every question names.

Functions of an open transaction. The parts of queries are built once: building one takes longer than running it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.memory.catalog.tables import UtcTime, closure, entities, entries, owners, retired_blobs, tenants

MAX_ROWS = 2**62
"""No limit, as a number."""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry as the catalog holds it: its value is ``inline``, or lies at ``blob_path``. ``path`` is its owner's."""

    key: str
    path: str
    owner_id: int
    rev: int
    inline: bytes | None
    blob_path: str | None
    content_hash: str
    size_bytes: int
    metadata: dict[str, Any]
    created: datetime
    updated: datetime
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which entries of one tenant a call may see: those at or below ``within``.

    ``allowed`` limits further, to those at or below one of these; None does not, an empty tuple allows nothing.
    """

    within: Entity
    allowed: tuple[Entity, ...] | None = None


COLUMNS = (
    entries.c.key,
    entities.c.path,
    entries.c.entity_id.label("owner_id"),
    entries.c.rev,
    entries.c.inline,
    entries.c.blob_path,
    entries.c.content_hash,
    entries.c.size_bytes,
    entries.c.metadata,
    entries.c.created,
    entries.c.updated,
    entries.c.expires,
)


def get(connection: Connection, keys: Iterable[str], scope: Scope, now: datetime) -> list[EntryRow]:
    """The entries of these keys that ``scope`` shows and that have not expired."""
    query = _get_query(connection.dialect.name, len(scope.within.parts) > 1, scope.allowed is not None)
    given = {"tenant": scope.within.tenant.directory, **_parameters(scope, now)}
    return [EntryRow(*row) for row in connection.execute(query, {**given, "keys": as_list(connection, keys)})]


def page(
    connection: Connection,
    tops: Sequence[int],
    scope: Scope,
    now: datetime,
    *,
    include_descendants: bool = True,
    after: tuple[int, str] | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> list[EntryRow]:
    """The entries of the entities ``tops``, by id, and by default of all below them, ordered by owner and key.

    The closure gives the owners in order, and the index of each owner's keys its entries: nothing is sorted, so that a
    page costs what it holds. ``after`` is the owner id and the key of the last entry of the page before.
    """
    query = _page_query(len(tops) == 1, scope.allowed is not None, include_descendants, after is not None)
    given = {**_parameters(scope, now), "tops": tops[0] if len(tops) == 1 else list(tops), "offset": offset}
    if after is not None:
        given |= {"after_owner": after[0], "after_key": after[1]}
    return [
        EntryRow(*row) for row in connection.execute(query, {**given, "limit": MAX_ROWS if limit is None else limit})
    ]


def count(
    connection: Connection, tops: Sequence[int], scope: Scope, now: datetime, *, include_descendants: bool = True
) -> int:
    """How many entries ``page`` would give in all: the sum of what the owners have, less what has expired."""
    owned, expired = _count_queries(scope.allowed is not None, include_descendants)
    given = {**_parameters(scope, now), "tops": list(tops)}
    return int(connection.execute(owned, given).scalar_one()) - int(connection.execute(expired, given).scalar_one())


def tops_of(connection: Connection, type: str, name: str, within: Entity) -> list[int]:
    """The ids of the entities of this type and id at or below ``within``."""
    given = {"type": type, "name": name, "within": within.directory, "tenant": within.tenant.directory}
    return list(connection.execute(_TOPS, given).scalars())


def search(
    connection: Connection, words: Sequence[str], fields: Mapping[str, Any], scope: Scope, now: datetime, limit: int
) -> list[EntryRow]:
    """The entries whose key holds all ``words``, in any case, and whose metadata has ``fields``; latest first.

    The value of a field is what it must be equal to, or a list of such values.
    """
    query = (
        _visible(len(scope.within.parts) > 1, scope.allowed is not None)
        .where(*(sa.func.lower(entries.c.key).contains(_lower(word), autoescape=True) for word in words))
        .order_by(entries.c.updated.desc(), entries.c.key)
        .limit(limit)
    )
    for name, wanted in fields.items():
        values = wanted if isinstance(wanted, (list, tuple)) else [wanted]
        query = query.where(sa.or_(sa.false(), *(_has_field(connection, name, value) for value in values)))
    given = {"tenant": scope.within.tenant.directory, **_parameters(scope, now)}
    return [EntryRow(*row) for row in connection.execute(query, given)]


def expired_keys(connection: Connection, now: datetime, limit: int) -> list[tuple[str, str]]:
    """``(path of the tenant, key)`` of entries that have expired."""
    query = (
        sa.select(tenants.c.path, entries.c.key)
        .join(tenants, tenants.c.id == entries.c.tenant_id)
        .where(entries.c.expires <= now)
        .limit(limit)
    )
    return [(path, key) for path, key in connection.execute(query)]


def blob_references(connection: Connection) -> tuple[frozenset[str], dict[str, datetime]]:
    """The paths of all blobs that entries refer to, of all tenants, and since when retired ones are not among them."""
    live = connection.execute(sa.select(entries.c.blob_path).where(entries.c.blob_path.is_not(None))).scalars()
    retired = connection.execute(sa.select(retired_blobs.c.path, retired_blobs.c.retired))
    return frozenset(path for path in live if path is not None), dict(retired.tuples().all())


# -- parts of queries ------------------------------------------------------------------------


_top = entities.alias("top")
_TOPS = (
    sa.select(entities.c.id)
    .join(closure, closure.c.descendant_id == entities.c.id)
    .join(_top, _top.c.id == closure.c.ancestor_id)
    .join(tenants, tenants.c.id == entities.c.tenant_id)
    .where(
        tenants.c.path == sa.bindparam("tenant"),
        entities.c.type == sa.bindparam("type"),
        entities.c.name == sa.bindparam("name"),
        _top.c.path == sa.bindparam("within"),
    )
)


def _parameters(scope: Scope, now: datetime) -> dict[str, Any]:
    given: dict[str, Any] = {"now": now, "within": [scope.within.directory]}
    if scope.allowed is not None:
        given["allowed"] = [entity.directory for entity in scope.allowed]
    return given


@cache
def _get_query(dialect: str, is_deep: bool, is_limited: bool) -> sa.Select[Any]:
    return _visible(is_deep, is_limited).where(is_listed(dialect, entries.c.key, "keys"))


@cache
def _page_query(is_single: bool, is_limited: bool, with_descendants: bool, is_following: bool) -> sa.Select[Any]:
    top = closure.c.ancestor_id
    query = (
        sa.select(*COLUMNS)
        .select_from(closure)
        .join(entries, entries.c.entity_id == closure.c.descendant_id)
        .join(entities, entities.c.id == entries.c.entity_id)
        # Only of a single top are the owners known to come in order.
        .where(top == sa.bindparam("tops") if is_single else top.in_(sa.bindparam("tops", expanding=True)))
        .where(_is_alive(), *_allowed(closure.c.descendant_id, is_limited))
        .order_by(closure.c.descendant_id, entries.c.key)
        .offset(sa.bindparam("offset"))
        .limit(sa.bindparam("limit"))
    )
    if not with_descendants:
        query = query.where(closure.c.depth == 0)
    if is_following:
        query = query.where(
            closure.c.descendant_id >= sa.bindparam("after_owner"),
            sa.or_(closure.c.descendant_id > sa.bindparam("after_owner"), entries.c.key > sa.bindparam("after_key")),
        )
    return query


@cache
def _count_queries(is_limited: bool, with_descendants: bool) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """The sum of what the owners have, and of what of it has expired."""
    places = [
        closure.c.ancestor_id.in_(sa.bindparam("tops", expanding=True)),
        *_allowed(closure.c.descendant_id, is_limited),
    ]
    if not with_descendants:
        places.append(closure.c.depth == 0)
    owned = (
        sa.select(sa.func.coalesce(sa.func.sum(owners.c.entries), 0))
        .select_from(closure)
        .join(owners, owners.c.entity_id == closure.c.descendant_id)
        .where(*places)
    )
    # A sum, so that no index of owners seems of use: few entries have expired, and their index knows them.
    owner = entries.c.entity_id + 0
    expired_by_owner = (
        sa.select(owner.label("owner"), sa.func.count().label("entries"))
        .where(entries.c.expires <= sa.bindparam("now", type_=UtcTime()))
        .group_by(owner)
        .subquery()
    )
    expired = (
        sa.select(sa.func.coalesce(sa.func.sum(expired_by_owner.c.entries), 0))
        .select_from(expired_by_owner)
        .join(closure, closure.c.descendant_id == expired_by_owner.c.owner)
        .where(*places)
    )
    return owned, expired


@cache
def _visible(is_deep: bool, is_limited: bool) -> sa.Select[Any]:
    """What a scope shows: one that ``is_deep`` lies below its tenant, one that ``is_limited`` names ancestors."""
    return (
        sa.select(*COLUMNS)
        .select_from(entries)
        .join(tenants, tenants.c.id == entries.c.tenant_id)
        .join(entities, entities.c.id == entries.c.entity_id)
        .where(tenants.c.path == sa.bindparam("tenant"), _is_alive(), *conditions(is_deep, is_limited))
    )


def _is_alive() -> sa.ColumnElement[bool]:
    return sa.or_(entries.c.expires.is_(None), entries.c.expires > sa.bindparam("now", type_=UtcTime()))


def conditions(is_deep: bool, is_limited: bool) -> list[sa.ColumnElement[bool]]:
    """What keeps entries within a scope, whose parameters are ``within`` and, if it is limited, ``allowed``."""
    parts = _allowed(entries.c.entity_id, is_limited)
    if is_deep:
        parts.append(_at_or_below("within", entries.c.entity_id))
    return parts


def _allowed(owner: sa.ColumnElement[int], is_limited: bool) -> list[sa.ColumnElement[bool]]:
    return [_at_or_below("allowed", owner)] if is_limited else []


def _at_or_below(tops: str, owner: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """``owner`` is one of the entities of the parameter ``tops``, or lies below one; none lies below none."""
    above, top = closure.alias(), entities.alias()
    joined = above.join(top, top.c.id == above.c.ancestor_id)
    named = top.c.path.in_(sa.bindparam(tops, expanding=True))
    return sa.exists().select_from(joined).where(above.c.descendant_id == owner, named)


def is_listed(dialect: str, column: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """``column`` is in the parameter ``name``, which ``as_list`` made: one parameter, however many values there are."""
    if dialect == "postgresql":
        return column == sa.any_(sa.bindparam(name, type_=ARRAY(sa.Text)))
    return column.in_(sa.select(sa.func.json_each(sa.bindparam(name)).table_valued("value").c.value))


def as_list(connection: Connection, values: Iterable[str]) -> list[str] | str:
    """Distinct ``values`` as one parameter."""
    distinct = list(dict.fromkeys(values))
    return distinct if connection.dialect.name == "postgresql" else json.dumps(distinct)


def _lower(word: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in word)  # all that both databases do


def _has_field(connection: Connection, name: str, value: object) -> sa.ColumnElement[bool]:
    if connection.dialect.name == "postgresql":
        return entries.c.metadata.op("@>", is_comparison=True)(sa.literal({name: value}, JSONB()))
    fields = sa.func.json_each(entries.c.metadata).table_valued("key", "value", "type")
    match value:
        case bool():
            same = fields.c.type == ("true" if value else "false")
        case str():
            same = sa.and_(fields.c.type == "text", fields.c.value == value)
        case _:
            same = sa.and_(fields.c.type.in_(["integer", "real"]), fields.c.value == value)
    return sa.exists().select_from(fields).where(fields.c.key == name, same)
