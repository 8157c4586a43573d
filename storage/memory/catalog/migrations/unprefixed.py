"""Catalogs from before the prefix: their tables had plain names, and Alembic's default version table."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

FIRST_VERSION_TABLE = "alembic_version"
PREFIX = "ltm_"
RENAMED = {
    "about": "ltm_about",
    "tenants": "ltm_tenants",
    "entities": "ltm_entities",
    "closure": "ltm_entity_closure",
    "owners": "ltm_entry_owners",
    "entries": "ltm_entries",
    "outbox": "ltm_outbox",
    "retired_blobs": "ltm_retired_blobs",
}
_OWN_COLUMNS = {"about": "workspace_id", "entries": "content_hash", "outbox": "left_path", "retired_blobs": "retired"}
_OWN_VERSION = "0001"


def is_unprefixed(connection: Connection) -> bool:
    """Whether the database holds a catalog whose tables have no prefix, and not an application's tables."""
    inspector = sa.inspect(connection)
    names = set(inspector.get_table_names())
    if not {FIRST_VERSION_TABLE, *RENAMED} <= names or RENAMED["about"] in names:
        return False
    versions = connection.execute(sa.text(f"SELECT version_num FROM {FIRST_VERSION_TABLE}")).scalars().all()
    columns = {table: {each["name"] for each in inspector.get_columns(table)} for table in _OWN_COLUMNS}
    return versions == [_OWN_VERSION] and all(name in columns[table] for table, name in _OWN_COLUMNS.items())
