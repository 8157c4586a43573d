"""Validate memory entries, and write them, their owners' totals, retired blobs and the outbox to the catalog.

The functions run in an open transaction under the tenant's lock (``entity_tree.lock_tenant``). Bulk loads pass entries
as columns, because creating an object per entry would account for a third of the time. A key is unique within its
tenant. If an entry outside the store's root already has the key, the store writes under ``private(key)``, because
rejecting the write would reveal that the key exists. ``shown(key)`` undoes this; a failed lookup falls back to the
newest private form in its scope.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from itertools import compress, repeat
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Connection

from driftline.storage.documents import content_hash
from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntry
from driftline.storage.layout import new_ulid
from driftline.storage.memory.catalog import entry_queries
from driftline.storage.memory.catalog.database import bulk_insert, upsert
from driftline.storage.memory.catalog.entity_tree import Tenant, chunks, ensure, ids_of
from driftline.storage.memory.catalog.entry_queries import (
    COLUMNS,
    MARK,
    EntryRow,
    Scope,
    Unscoped,
    as_list,
    conditions,
    is_listed,
)
from driftline.storage.memory.catalog.tables import (
    MAX_KEY_BYTES,
    MAX_KEY_CHARACTERS,
    UtcTime,
    closure,
    entities,
    entries,
    outbox,
    retired_blobs,
    tenants,
)

MAX_METADATA_BYTES = 64 * 1024

_FORBIDDEN = re.compile("[\x00-\x1f\ud800-\udfff]")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(slots=True)
class Drafts:
    """Entries of one tenant. Columns are named like the catalog's; ``path`` is the owner's directory, ``metadata`` is
    JSON text. ``large`` maps the keys of entries that are not ``inline`` to their values.
    """

    key: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    inline: list[bytes | None] = field(default_factory=list)
    blob_path: list[str | None] = field(default_factory=list)
    content_hash: list[str] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    expires: list[datetime | None] = field(default_factory=list)
    large: dict[str, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.key)

    def add(
        self,
        key: str,
        value: Any,
        path: str,
        metadata: Mapping[str, Any] | None,
        expires_at: datetime | None,
        inline_bytes: int,
    ) -> None:
        """Append an entry. Raises BadEntry."""
        data = encode(value)
        is_small = len(data) <= inline_bytes
        self.key.append(check_key(key))
        self.path.append(path)
        self.inline.append(data if is_small else None)
        self.blob_path.append(None)
        self.content_hash.append(content_hash(data))
        self.size_bytes.append(len(data))
        self.metadata.append(check_metadata(metadata))
        self.expires.append(check_expiry(expires_at))
        if is_small:
            self.large.pop(key, None)
        else:
            self.large[key] = data

    def latest(self) -> Drafts:
        """Return the last entry for each key."""
        positions = {key: position for position, key in enumerate(self.key)}
        if len(positions) == len(self):
            return self
        return self.some([positions[key] == position for position, key in enumerate(self.key)])

    def some(self, chosen: Sequence[bool]) -> Drafts:
        """Return the entries at positions where ``chosen`` is true."""
        columns = {name: list(compress(getattr(self, name), chosen)) for name in DRAFT_COLUMNS}
        return Drafts(**columns, large=self.large)


DRAFT_COLUMNS = tuple(each.name for each in fields(Drafts) if each.name != "large")


BEHIND_PRIVATE = f"{MARK}~"
"""Sorts after all private forms of a key."""
_BEHIND = " "
"""The character after MARK: strings below it start with the key and MARK."""
MAX_BOUND_CHARACTERS = MAX_KEY_CHARACTERS - len(MARK) - len(new_ulid())


def private(key: str) -> str:
    """Return a unique private form of ``key``."""
    return f"{key}{MARK}{new_ulid()}"


def shown(key: str) -> str:
    """Return ``key`` with any private suffix removed."""
    return key.partition(MARK)[0]


def get(connection: Connection, keys: Sequence[str], scope: Scope | Unscoped, now: datetime) -> list[EntryRow]:
    """Return the unexpired entries for ``keys`` in ``scope``, found by the key or a private form of it.

    A scope of all tenants may yield several entries for one key, one per tenant.
    """
    rows = entry_queries.get(connection, keys, scope, now)
    if isinstance(scope, Unscoped):
        found = {(_tenant(row), shown(row.key)): row for row in [*_private(connection, keys, scope, now), *rows]}
        return list(found.values())
    missing = set(keys) - {row.key for row in rows}
    return [*rows, *find(connection, missing, scope, now).values()] if missing else rows


def forms(connection: Connection, key: str, scope: Scope, now: datetime) -> list[str]:
    """Return ``key`` and its private forms in ``scope``."""
    return [key, *(row.key for row in _private(connection, [key], scope, now))]


def find(connection: Connection, keys: Collection[str], scope: Scope, now: datetime) -> dict[str, EntryRow]:
    """Return, for each key, the newest entry in ``scope`` stored under a private form of it."""
    return {shown(row.key): row for row in _private(connection, keys, scope, now)}


def _private(connection: Connection, keys: Collection[str], scope: Scope | Unscoped, now: datetime) -> list[EntryRow]:
    """Return the entries in ``scope`` stored under private forms of ``keys``, each tenant's newest last."""
    query = _query(connection.dialect.name, entry_queries.depth_of(scope), scope.allowed is not None)
    parameters = {**entry_queries.parameters_of(scope, now), "keys": entry_queries.as_list(connection, keys)}
    return sorted((EntryRow(*row) for row in connection.execute(query, parameters)), key=lambda row: row.rev)


def _tenant(row: EntryRow) -> str:
    return row.path.partition("/")[0]


def with_private_keys(
    connection: Connection, new: Drafts, known: Collection[EntryRow], within: Entity, now: datetime
) -> Drafts:
    """Return ``new``, replacing keys already used by entries outside ``within`` with private forms.

    ``known`` contains all entries with these keys. An entry that already has a private form in ``within`` is replaced
    there.
    """
    inside = {row.key for row in known if f"{row.path}/".startswith(f"{within.directory}/")}
    taken = {row.key for row in known} - inside
    own = find(connection, [key for key in new.key if key not in inside], Scope(within), now)
    keys = {key: private(key) for key in taken} | {key: row.key for key, row in own.items()}
    return replace(new, key=[keys.get(key, key) for key in new.key]) if keys else new


@cache
def _query(dialect: str, depth: int, is_limited: bool) -> sa.Select[Any]:
    if dialect == "postgresql":
        given = sa.func.unnest(sa.bindparam("keys", type_=ARRAY(sa.Text)))
        requested = given.table_valued("value").render_derived()
    else:
        requested = sa.func.json_each(sa.bindparam("keys")).table_valued("value")
    begins = sa.and_(entries.c.key > requested.c.value.concat(MARK), entries.c.key < requested.c.value.concat(_BEHIND))
    query = entry_queries.visible(depth, is_limited).join(requested, begins)
    if depth:
        return query
    # lets the query use the index on tenant and key
    return query.where(entries.c.tenant_id.in_(sa.select(tenants.c.id)))


def put(
    connection: Connection, tenant: Tenant, new: Drafts, now: datetime, within: Entity | None = None
) -> dict[str, str]:
    """Store ``new`` (keys are distinct), register the owners, and retire the blobs of replaced entries.

    Entries outside ``within`` are kept; for their keys, ``new`` gets private forms. Returns the former owners of the
    replaced keys, as directories.
    """
    ids = ensure(connection, tenant, set(new.path), now)
    known = {row.key: row for row in _locked(connection, tenant, new.key)}
    if within is not None and within.tenant != within:
        separate = with_private_keys(connection, new, known.values(), within, now)
        if separate is not new:
            new, known = separate, {row.key: row for row in _locked(connection, tenant, separate.key)}
    same = {"tenant_id": tenant.id, "rev": tenant.rev, "updated": now}
    added = new.some([key not in known for key in new.key]) if known else new
    bulk_insert(connection, entries, _columns(added, ids), {**same, "created": now})
    alive = {key: row for key, row in known.items() if _is_alive(row, now)}
    if known:
        replacing = new.some([key in known for key in new.key])
        created = [alive[key].created if key in alive else now for key in replacing.key]
        columns = {**_columns(replacing, ids), "created": created}
        names = [f"new_{name}" for name in (*columns, *same)]
        rows = zip(*columns.values(), *(repeat(value) for value in same.values()), strict=False)
        connection.execute(_REPLACE, [dict(zip(names, row, strict=True)) for row in rows])
    add_to_owners(connection, [ids[path] for path in new.path], new.size_bytes, known.values())
    blobs = set(new.blob_path)
    _retire(connection, (row.blob_path for row in known.values() if row.blob_path not in blobs), now)
    left = [known[key].path if key in known else None for key in new.key]
    moved_from = [was if was != path else None for was, path in zip(left, new.path, strict=True)]
    _enqueue(connection, tenant, new.key, new.path, moved_from, now)
    return {shown(key): row.path for key, row in alive.items()}


def _is_alive(row: EntryRow, now: datetime) -> bool:
    return row.expires is None or row.expires > now


def _columns(new: Drafts, ids: Mapping[str, int]) -> dict[str, Sequence[Any]]:
    columns = {name: getattr(new, name) for name in DRAFT_COLUMNS if name != "path"}
    return {**columns, "entity_id": [ids[path] for path in new.path]}


_KEPT = frozenset({"tenant_id", "key"})
_REPLACE = (
    entries.update()
    .where(entries.c.tenant_id == sa.bindparam("new_tenant_id"), entries.c.key == sa.bindparam("new_key"))
    .values({c.name: sa.bindparam(f"new_{c.name}", type_=c.type) for c in entries.c if c.name not in _KEPT})
)


class Removed(NamedTuple):
    """How many entries were deleted, and how many of these had not expired."""

    entries: int = 0
    alive: int = 0


def remove(connection: Connection, tenant: Tenant, keys: Iterable[str], scope: Scope, now: datetime) -> Removed:
    """Delete the entries for ``keys`` that are in ``scope``, expired or not."""
    rows = _locked(connection, tenant, keys, scope)
    for some in chunks(row.key for row in rows):
        connection.execute(entries.delete().where(entries.c.tenant_id == tenant.id, entries.c.key.in_(some)))
    add_to_owners(connection, [], [], rows)
    _retire(connection, (row.blob_path for row in rows), now)
    _enqueue(connection, tenant, [row.key for row in rows], [None] * len(rows), [row.path for row in rows], now)
    return Removed(len(rows), sum(_is_alive(row, now) for row in rows))


def keys_below(connection: Connection, entity: Entity) -> list[str]:
    """Return the keys of all entries at or below ``entity``, expired or not."""
    tops = list(ids_of(connection, [entity.directory]).values())
    query = (
        sa.select(entries.c.key)
        .join(closure, closure.c.descendant_id == entries.c.entity_id)
        .where(closure.c.ancestor_id.in_(tops))
    )
    return list(connection.execute(query).scalars())


def relocate(connection: Connection, tenant: Tenant, source: Entity, target: Entity, now: datetime) -> int:
    """Enqueue in the outbox that all entries moved from ``source`` to ``target``, and return how many there are."""
    tops = list(ids_of(connection, [target.directory]).values())
    below = sa.select(closure.c.descendant_id).where(closure.c.ancestor_id.in_(tops))
    moved = connection.execute(entries.update().where(entries.c.entity_id.in_(below)).values(rev=tenant.rev))
    left = sa.literal(source.directory).concat(sa.func.substr(entities.c.path, len(target.directory) + 1))
    rows = (
        sa.select(entries.c.tenant_id, entries.c.key, entries.c.rev, entities.c.path, left, sa.literal(now, UtcTime))
        .join(entities, entities.c.id == entries.c.entity_id)
        .where(entries.c.entity_id.in_(below))
    )
    connection.execute(outbox.insert().from_select(["tenant_id", "key", "rev", "path", "left_path", "written"], rows))
    return moved.rowcount


def _locked(connection: Connection, tenant: Tenant, keys: Iterable[str], scope: Scope | None = None) -> list[EntryRow]:
    """Return the entries for ``keys``, expired or not; the caller holds the tenant's lock."""
    is_deep = scope is not None and len(scope.within.parts) > 1
    query = _locked_query(connection.dialect.name, is_deep, scope is not None and scope.allowed is not None)
    parameters: dict[str, Any] = {"tenant_id": tenant.id, "keys": as_list(connection, keys)}
    if scope is not None:
        parameters |= {"within": [scope.within.directory], "allowed": [e.directory for e in scope.allowed or ()]}
    return [EntryRow(*row) for row in connection.execute(query, parameters)]


@cache
def _locked_query(dialect: str, is_deep: bool, is_limited: bool) -> sa.Select[Any]:
    return (
        sa.select(*COLUMNS)
        .join(entities, entities.c.id == entries.c.entity_id)
        .where(
            entries.c.tenant_id == sa.bindparam("tenant_id"),
            is_listed(dialect, entries.c.key, "keys"),
            *conditions(is_deep, is_limited),
        )
    )


def add_to_owners(
    connection: Connection, added: Sequence[int], sizes_bytes: Sequence[int], removed: Iterable[EntryRow]
) -> None:
    """Update the owners' totals; ``added`` and ``sizes_bytes`` hold the owner and size of each new entry."""
    number = Counter(added)
    size: Counter[int] = Counter()
    for owner, size_bytes in zip(added, sizes_bytes, strict=True):
        size[owner] += size_bytes
    for row in removed:
        number[row.owner_id] -= 1
        size[row.owner_id] -= row.size_bytes
    changes = [
        {"entity_id": owner, "entries": number[owner], "size_bytes": size[owner]}
        for owner in sorted(number)
        if number[owner] or size[owner]
    ]
    if changes:
        connection.execute(_ADD_TO_OWNERS, changes)


_ADD_TO_OWNERS = sa.text(  # SQLAlchemy does not cache the compiled form of its own upserts
    "INSERT INTO ltm_entry_owners (entity_id, entries, size_bytes) VALUES (:entity_id, :entries, :size_bytes)"
    " ON CONFLICT (entity_id) DO UPDATE"
    " SET entries = ltm_entry_owners.entries + excluded.entries,"
    " size_bytes = ltm_entry_owners.size_bytes + excluded.size_bytes"
)


def _retire(connection: Connection, blobs: Iterable[str | None], now: datetime) -> None:
    rows = [{"path": path, "retired": now} for path in dict.fromkeys(blobs) if path is not None]
    if rows:
        # A store that retries after a lost acknowledgement may reuse a retired blob, which already has a row.
        insert = upsert(connection, retired_blobs)
        again = insert.on_conflict_do_update(index_elements=["path"], set_={"retired": insert.excluded.retired})
        connection.execute(again, rows)


def _enqueue(
    connection: Connection,
    tenant: Tenant,
    keys: Sequence[str],
    paths: Sequence[str | None],
    left_paths: Sequence[str | None],
    now: datetime,
) -> None:
    if keys:
        columns = {"key": keys, "path": paths, "left_path": left_paths}
        bulk_insert(connection, outbox, columns, {"tenant_id": tenant.id, "rev": tenant.rev, "written": now})


def forget_blobs(connection: Connection, paths: Iterable[str]) -> None:
    """Remove the records of deleted retired blobs."""
    for some in chunks(paths):
        connection.execute(retired_blobs.delete().where(retired_blobs.c.path.in_(some)))


# -- valid keys, metadata and values -----------------------------------------------------------


def check_key(key: Any) -> str:
    """Return ``key`` if it is valid: 1 to 1,024 Unicode characters, in at most 2,600 bytes, without control
    characters.

    Raises BadEntry.
    """
    if not isinstance(key, str) or not key:
        raise BadEntry("A key must be a non-empty string", repr(key)[:80])
    if len(key) > MAX_KEY_CHARACTERS:
        raise BadEntry(f"The key has more than {MAX_KEY_CHARACTERS:,} characters", repr(key[:40] + "…"), "Shorten it.")
    if _FORBIDDEN.search(key):
        raise BadEntry("A key must not contain control characters or unpaired surrogates", repr(key)[:80])
    if len(key.encode()) > MAX_KEY_BYTES:
        raise BadEntry(f"The key has more than {MAX_KEY_BYTES:,} bytes in UTF-8", repr(key[:40] + "…"), "Shorten it.")
    return key


def check_metadata(metadata: Mapping[str, Any] | None) -> str:
    """Encode ``metadata`` as a JSON object. Raises BadEntry."""
    if not metadata:
        return "{}"
    if not all(isinstance(name, str) for name in metadata):
        raise BadEntry("Names of metadata fields must be strings", repr(list(metadata))[:80])
    data = encode(metadata if isinstance(metadata, dict) else dict(metadata), "metadata")
    if len(data) > MAX_METADATA_BYTES:
        raise BadEntry(f"The metadata takes more than {MAX_METADATA_BYTES:,} bytes", "", "Put it into the value.")
    if b"u0000" in data and _NUL.search(data):
        raise BadEntry("Metadata must not contain NUL", "", "Databases cannot store it; put it into the value.")
    return data.decode()


def check_fields(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a metadata filter with None fields omitted; values are scalars or lists of scalars.

    Raises BadEntry.
    """
    conditions = {name: value for name, value in (fields or {}).items() if value is not None}
    for name, value in conditions.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(each, (str, int, float)) for each in values):
            raise BadEntry("A filter value must be a string, a number, a boolean, or a list of them", repr(name))
    checked: dict[str, Any] = json.loads(check_metadata(conditions))
    return checked


def check_expiry(expires_at: datetime | None) -> datetime | None:
    """Convert ``expires_at`` to UTC; a time with no zone is taken as UTC. Raises BadEntry."""
    if expires_at is None:
        return None
    if not isinstance(expires_at, datetime):
        raise BadEntry("expires_at must be a datetime", repr(expires_at)[:80])
    try:
        return (expires_at if expires_at.utcoffset() is not None else expires_at.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise BadEntry("expires_at is out of range", str(expires_at)) from error


def encode(value: Any, what: str = "value") -> bytes:
    """Encode ``value`` as JSON in UTF-8. Raises BadEntry."""
    try:
        data = orjson.dumps(value, option=_STRICT)
        if b"null" not in data:
            return data
        has_odd_names = False
    except orjson.JSONEncodeError:
        has_odd_names = True
    # Fall back to the slower encoder: orjson writes NaN as null, and rejects keys and numbers that JSON can represent.
    try:
        text = _ENCODER.encode(value)
        if has_odd_names:
            json.loads(text, object_pairs_hook=_distinct)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise BadEntry(f"Cannot write the {what} as JSON ({error})", "", "Store JSON values.") from error


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    """Raise ValueError if two names of an object are the same in JSON, such as 1 and "1"."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("two names of an object are the same in JSON")


def _as_json(value: object) -> Any:
    """Encode enum members and UUIDs like orjson."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json)
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
