"""Keys that are taken outside of a boundary: there, an entry has a private form of its key, which nobody sees.

A key is unique in its tenant, but a store that is bound below the tenant must not learn from a refusal which keys
others use. If an entry outside of its boundary has the key, it stores under ``private(key)`` instead. Entries are shown
with ``shown(key)``, and a lookup that does not find a key takes the newest private form of it that its scope has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.ids import new_ulid
from driftline.storage.memory.catalog import queries
from driftline.storage.memory.catalog.drafts import Drafts
from driftline.storage.memory.catalog.queries import EntryRow, Everywhere, Scope
from driftline.storage.memory.catalog.tables import MAX_KEY_CHARACTERS, entries, tenants

MARK = "\x1f"
"""Stands between a key and what makes it private; keys of users have no control characters."""
BEHIND_PRIVATE = f"{MARK}~"
"""A key with this is behind all private forms of it."""
_BEHIND = " "
"""The character after MARK: what lies between both begins with the key and MARK."""
MAX_BOUND_CHARACTERS = MAX_KEY_CHARACTERS - len(MARK) - len(new_ulid())


def private(key: str) -> str:
    """A private form of ``key``, unlike any other."""
    return f"{key}{MARK}{new_ulid()}"


def shown(key: str) -> str:
    """``key`` without what makes it private."""
    return key.partition(MARK)[0]


def get(connection: Connection, keys: Sequence[str], scope: Scope | Everywhere, now: datetime) -> list[EntryRow]:
    """The entries of ``keys`` that are in ``scope`` and have not expired, by their own key or a private form of it.

    A scope of all tenants may have several entries of one key, one for each tenant.
    """
    rows = queries.get(connection, keys, scope, now)
    if isinstance(scope, Everywhere):
        found = {(_tenant(row), shown(row.key)): row for row in [*_private(connection, keys, scope, now), *rows]}
        return list(found.values())
    missing = set(keys) - {row.key for row in rows}
    return [*rows, *find(connection, missing, scope, now).values()] if missing else rows


def find(connection: Connection, keys: Collection[str], scope: Scope, now: datetime) -> dict[str, EntryRow]:
    """The newest entry in ``scope`` of each of ``keys`` that has one under a private form, by key."""
    return {shown(row.key): row for row in _private(connection, keys, scope, now)}


def _private(connection: Connection, keys: Collection[str], scope: Scope | Everywhere, now: datetime) -> list[EntryRow]:
    """The entries in ``scope`` under private forms of ``keys``, the newest of each tenant last."""
    query = _query(connection.dialect.name, queries.depth_of(scope), scope.allowed is not None)
    parameters = {**queries.parameters_of(scope, now), "keys": queries.as_list(connection, keys)}
    return sorted((EntryRow(*row) for row in connection.execute(query, parameters)), key=lambda row: row.rev)


def _tenant(row: EntryRow) -> str:
    return row.path.partition("/")[0]


def apart(connection: Connection, new: Drafts, known: Collection[EntryRow], within: Entity, now: datetime) -> Drafts:
    """``new`` with private forms of the keys that entries outside of ``within`` have; ``known`` are all of these keys.

    What is stored in ``within`` under a private form already is replaced there.
    """
    inside = {row.key for row in known if f"{row.path}/".startswith(f"{within.directory}/")}
    taken = {row.key for row in known} - inside
    own = find(connection, [key for key in new.key if key not in inside], Scope(within), now)
    forms = {key: private(key) for key in taken} | {key: row.key for key, row in own.items()}
    return replace(new, key=[forms.get(key, key) for key in new.key]) if forms else new


@cache
def _query(dialect: str, depth: int, is_limited: bool) -> sa.Select[Any]:
    if dialect == "postgresql":
        given = sa.func.unnest(sa.bindparam("keys", type_=ARRAY(sa.Text)))
        asked = given.table_valued("value").render_derived()
    else:
        asked = sa.func.json_each(sa.bindparam("keys")).table_valued("value")
    begins = sa.and_(entries.c.key > asked.c.value.concat(MARK), entries.c.key < asked.c.value.concat(_BEHIND))
    query = queries.visible(depth, is_limited).join(asked, begins)
    if depth:
        return query
    return query.where(entries.c.tenant_id.in_(sa.select(tenants.c.id)))  # so that the index by tenant and key serves
