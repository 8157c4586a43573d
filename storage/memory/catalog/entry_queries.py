"""Query the catalog's entries; every query is limited to a scope.

The functions run in an open transaction. Query objects are cached, because building one takes longer than running it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.memory.catalog.tables import (
    UtcTime,
    closure,
    entities,
    entries,
    outbox,
    owners,
    retired_blobs,
    tenants,
)

MARK = "\x1f"
"""Separates a key from the suffix that makes it private; users' keys contain no control characters."""
MAX_WHOLE = 2**63
MAX_ROWS = 2**62
""""No limit", for SQL that requires a number."""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry in the catalog. The value is ``inline``, or in the blob at ``blob_path``; ``path`` is the owner's."""

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
    """The entries in one tenant, at or below ``within``, that a call may see.

    ``allowed`` restricts them further, to entries at or below any of its entities. None adds no restriction; an empty
    tuple allows nothing.
    """

    within: Entity
    allowed: tuple[Entity, ...] | None = None

    def of(self, path: str) -> Scope:
        """Return this scope, which covers the owner ``path`` of any entry read through it."""
        return self


@dataclass(frozen=True, slots=True)
class Unscoped:
    """The entries of all tenants, for unscoped calls on a store without a root; for ``allowed``, see Scope."""

    allowed: tuple[Entity, ...] | None = None

    def of(self, path: str) -> Scope:
        """Return the scope of the tenant that the directory at ``path`` belongs to."""
        return Scope(Entity.of_directory(path).tenant, self.allowed)


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


def get(connection: Connection, keys: Iterable[str], scope: Scope | Unscoped, now: datetime) -> list[EntryRow]:
    """Return the unexpired entries stored under ``keys`` in ``scope``."""
    query = _get_query(connection.dialect.name, depth_of(scope), scope.allowed is not None)
    parameters = {**parameters_of(scope, now), "keys": as_list(connection, keys)}
    return [EntryRow(*row) for row in connection.execute(query, parameters)]


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
    """Return a page of the entries owned by ``tops`` (entity ids), by default including their descendants.

    The entries are sorted by owner and key. The closure yields the owners in order, and an index yields each owner's
    keys in order. Nothing is sorted, so the cost of a page depends only on its size. ``after`` is the ``(owner id,
    key)`` of the previous page's last entry.
    """
    query = _page_query(len(tops) == 1, scope.allowed is not None, include_descendants, after is not None)
    parameters = {**parameters_of(scope, now), "tops": tops[0] if len(tops) == 1 else list(tops), "offset": offset}
    parameters["limit"] = MAX_ROWS if limit is None else limit
    if after is not None:
        parameters |= {"after_owner": after[0], "after_key": after[1]}
    return [EntryRow(*row) for row in connection.execute(query, parameters)]


def count(
    connection: Connection, tops: Sequence[int], scope: Scope, now: datetime, *, include_descendants: bool = True
) -> int:
    """Count the entries on all pages: the owners' totals, minus expired entries."""
    owned_query, expired_query = _count_queries(scope.allowed is not None, include_descendants)
    parameters = {**parameters_of(scope, now), "tops": list(tops)}
    owned = int(connection.execute(owned_query, parameters).scalar_one())
    return owned - int(connection.execute(expired_query, parameters).scalar_one())


def tops_of(connection: Connection, type: str, name: str, within: Entity) -> list[int]:
    """Return the catalog ids of entities with this type and name at or below ``within``."""
    parameters = {"type": type, "name": name, "within": within.directory, "tenant": within.tenant.directory}
    return list(connection.execute(_TOPS, parameters).scalars())


def search(
    connection: Connection,
    words: Sequence[str],
    fields: Mapping[str, Any],
    scope: Scope | Unscoped,
    now: datetime,
    limit: int,
) -> list[EntryRow]:
    """Return the entries whose key contains all ``words``, case-insensitively, and whose metadata matches ``fields``.

    The newest entries come first. A field matches a value that it equals, or a list that contains it.
    """
    query = (
        visible(depth_of(scope), scope.allowed is not None)
        .where(*(sa.func.lower(_shown_key(connection)).contains(_lower(word), autoescape=True) for word in words))
        .order_by(entries.c.updated.desc(), entries.c.key)
        .limit(limit)
    )
    for name, expected in fields.items():
        values = expected if isinstance(expected, (list, tuple)) else [expected]
        query = query.where(sa.or_(sa.false(), *(_has_field(connection, name, value) for value in values)))
    return [EntryRow(*row) for row in connection.execute(query, parameters_of(scope, now))]


def expired_keys(
    connection: Connection, now: datetime, limit: int, within: Entity | None = None
) -> list[tuple[str, str]]:
    """Return ``(tenant path, key)`` for up to ``limit`` expired entries, by default from all tenants."""
    query = (
        sa.select(tenants.c.path, entries.c.key)
        .join(tenants, tenants.c.id == entries.c.tenant_id)
        .where(entries.c.expires <= now)
        .limit(limit)
    )
    if within is None:
        return [(path, key) for path, key in connection.execute(query)]
    query = query.where(_at_or_below("within", entries.c.entity_id))
    return [(path, key) for path, key in connection.execute(query, {"within": [within.directory]})]


def has_no_entries(connection: Connection) -> bool:
    """Return whether no tenant has an entry or an unflushed change."""
    pending = connection.execute(sa.select(sa.exists().select_from(outbox))).scalar()
    return not pending and not connection.execute(sa.select(sa.exists().select_from(entries))).scalar()


def blob_references(connection: Connection) -> tuple[frozenset[str], dict[str, datetime]]:
    """Return the paths of all blobs that entries refer to, and a mapping of retired blobs to the time of retirement."""
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


def depth_of(scope: Scope | Unscoped) -> int:
    """Return how many levels the scope fixes: 0 for all tenants, 1 for one, more below it."""
    return len(scope.within.parts) if isinstance(scope, Scope) else 0


def parameters_of(scope: Scope | Unscoped, now: datetime) -> dict[str, Any]:
    """Return the parameters of a query in ``scope`` for entries that have not expired by ``now``."""
    parameters: dict[str, Any] = {"now": now}
    if isinstance(scope, Scope):
        parameters |= {"within": [scope.within.directory], "tenant": scope.within.tenant.directory}
    if scope.allowed is not None:
        parameters["allowed"] = [entity.directory for entity in scope.allowed]
    return parameters


@cache
def _get_query(dialect: str, depth: int, is_limited: bool) -> sa.Select[Any]:
    query = visible(depth, is_limited).where(is_listed(dialect, entries.c.key, "keys"))
    if depth:
        return query
    # lets the query use the index on tenant and key
    return query.where(entries.c.tenant_id.in_(sa.select(tenants.c.id)))


@cache
def _page_query(is_single: bool, is_limited: bool, with_descendants: bool, is_following: bool) -> sa.Select[Any]:
    top = closure.c.ancestor_id
    query = (
        sa.select(*COLUMNS)
        .select_from(closure)
        .join(entries, entries.c.entity_id == closure.c.descendant_id)
        .join(entities, entities.c.id == entries.c.entity_id)
        # The database knows that the owners are in order only if there is a single top.
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
    """Return two queries: the number of entries of the owners, and the number of expired entries among them."""
    restrictions = [
        closure.c.ancestor_id.in_(sa.bindparam("tops", expanding=True)),
        *_allowed(closure.c.descendant_id, is_limited),
    ]
    if not with_descendants:
        restrictions.append(closure.c.depth == 0)
    owned = (
        sa.select(sa.func.coalesce(sa.func.sum(owners.c.entries), 0))
        .select_from(closure)
        .join(owners, owners.c.entity_id == closure.c.descendant_id)
        .where(*restrictions)
    )
    # An expression keeps the planner off the owner index: few entries have expired, and the expiry index finds them.
    owner = entries.c.entity_id + 0
    tenant = sa.select(entities.c.tenant_id).where(entities.c.id.in_(sa.bindparam("tops", expanding=True)))
    expired_by_owner = (
        sa.select(owner.label("owner"), sa.func.count().label("entries"))
        .where(entries.c.tenant_id.in_(tenant), entries.c.expires <= sa.bindparam("now", type_=UtcTime()))
        .group_by(owner)
        .subquery()
    )
    expired = (
        sa.select(sa.func.coalesce(sa.func.sum(expired_by_owner.c.entries), 0))
        .select_from(expired_by_owner)
        .join(closure, closure.c.descendant_id == expired_by_owner.c.owner)
        .where(*restrictions)
    )
    return owned, expired


@cache
def visible(depth: int, is_limited: bool) -> sa.Select[Any]:
    """Select the entries in a scope of this ``depth``; ``is_limited`` is set if it has ``allowed``."""
    query = sa.select(*COLUMNS).select_from(entries).join(entities, entities.c.id == entries.c.entity_id)
    if depth:
        query = query.join(tenants, tenants.c.id == entries.c.tenant_id).where(tenants.c.path == sa.bindparam("tenant"))
    return query.where(_is_alive(), *conditions(depth > 1, is_limited))


def _is_alive() -> sa.ColumnElement[bool]:
    return sa.or_(entries.c.expires.is_(None), entries.c.expires > sa.bindparam("now", type_=UtcTime()))


def conditions(is_deep: bool, is_limited: bool) -> list[sa.ColumnElement[bool]]:
    """Return a scope's conditions, with the parameters ``within`` and, if ``is_limited`` is set, ``allowed``."""
    parts = _allowed(entries.c.entity_id, is_limited)
    if is_deep:
        parts.append(_at_or_below("within", entries.c.entity_id))
    return parts


def _allowed(owner: sa.ColumnElement[int], is_limited: bool) -> list[sa.ColumnElement[bool]]:
    return [_at_or_below("allowed", owner)] if is_limited else []


def _at_or_below(tops: str, owner: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return the condition that ``owner`` is at or below an entity in parameter ``tops``.

    It is false for an empty list.
    """
    above, top = closure.alias(), entities.alias()
    joined = above.join(top, top.c.id == above.c.ancestor_id)
    named = top.c.path.in_(sa.bindparam(tops, expanding=True))
    return sa.exists().select_from(joined).where(above.c.descendant_id == owner, named)


def is_listed(dialect: str, column: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """Return the condition that ``column`` is one of the values of parameter ``name`` (see ``as_list``)."""
    if dialect == "postgresql":
        return column == sa.any_(sa.bindparam(name, type_=ARRAY(sa.Text)))
    return column.in_(sa.select(sa.func.json_each(sa.bindparam(name)).table_valued("value").c.value))


def as_list(connection: Connection, values: Iterable[str]) -> list[str] | str:
    """Return the distinct ``values`` as a single parameter."""
    distinct = list(dict.fromkeys(values))
    return distinct if connection.dialect.name == "postgresql" else json.dumps(distinct)


def _shown_key(connection: Connection) -> sa.ColumnElement[str]:
    """Return the key without a private suffix, which would reveal that the key exists outside a boundary."""
    if connection.dialect.name == "postgresql":
        return sa.func.split_part(entries.c.key, MARK, 1)
    return sa.func.substr(entries.c.key, 1, sa.func.instr(entries.c.key.concat(MARK), MARK) - 1)


def _lower(word: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in word)  # SQLite's lower() only changes ASCII


def _as_number(value: object) -> object:
    """Return ``value`` as SQLite stores it: integers of more than 64 bits become floats."""
    if not isinstance(value, int) or -MAX_WHOLE <= value < MAX_WHOLE:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


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
            same = sa.and_(fields.c.type.in_(["integer", "real"]), fields.c.value == _as_number(value))
    return sa.exists().select_from(fields).where(fields.c.key == name, same)
