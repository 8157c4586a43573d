"""Define the memory catalog's tables for SQLAlchemy.

All names start with ``ltm_``, because an application may keep its own tables in the same database.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect

MAX_KEY_CHARACTERS = 1_024
MAX_KEY_BYTES = 2_600
"""PostgreSQL's indexes hold rows of at most 2,704 bytes; 27 of them may be the suffix of a private key."""
FORMAT_VERSION = 1
"""The version of the schema below. Catalogs with another version are rejected."""


class UtcTime(sa.types.TypeDecorator[datetime]):
    """A time with a time zone. SQLite does not store zones, so times are converted to UTC on write and read."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def text(length: int) -> sa.types.TypeEngine[str]:
    """Return a text type that both databases compare by code point, like the Parquet indexes."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite only assigns row ids to columns of type INTEGER, which has 64 bits."""
path = text(1_024)

metadata = sa.MetaData()

version = sa.Table("ltm_version", metadata, sa.Column("format_version", sa.Integer, primary_key=True))
"""One row: the ``FORMAT_VERSION`` that the catalog was created with."""

about = sa.Table(
    "ltm_about",
    metadata,
    sa.Column("workspace_id", sa.String(64), primary_key=True),
    sa.Column("catalog_id", sa.String(32), nullable=False),
)
"""One row: the workspace that owns this catalog, and the catalog's own id, which the workspace records."""

tenants = sa.Table(
    "ltm_tenants",
    metadata,
    sa.Column("id", number, primary_key=True),
    sa.Column("path", path, nullable=False, unique=True),
    sa.Column("rev", sa.BigInteger, nullable=False),
    sa.Column("flusher", sa.String(64)),
    sa.Column("flusher_until", UtcTime),
)
"""Every write locks its tenant's row and increments ``rev``, which orders the tenant's writes."""

entities = sa.Table(
    "ltm_entities",
    metadata,
    sa.Column("id", number, primary_key=True),
    sa.Column("tenant_id", number, sa.ForeignKey("ltm_tenants.id"), nullable=False),
    sa.Column("path", path, nullable=False, unique=True),
    sa.Column("type", text(64), nullable=False),
    sa.Column("name", text(200), nullable=False),
    sa.Column("created", UtcTime, nullable=False),
    sa.Index("ltm_entities_by_name", "tenant_id", "type", "name"),
    sa.Index("ltm_entities_by_type", "type", "name"),
)
"""``path`` is ``Entity.directory``; ``name`` is the unencoded id."""

closure = sa.Table(
    "ltm_entity_closure",
    metadata,
    sa.Column("ancestor_id", number, sa.ForeignKey("ltm_entities.id"), primary_key=True),
    sa.Column("descendant_id", number, sa.ForeignKey("ltm_entities.id"), primary_key=True),
    sa.Column("depth", sa.Integer, nullable=False),
    sa.Index("ltm_closure_by_descendant", "descendant_id", "ancestor_id"),
    sqlite_with_rowid=False,
)
"""Every pair of an entity and an entity at or below it."""

owners = sa.Table(
    "ltm_entry_owners",
    metadata,
    sa.Column("entity_id", number, sa.ForeignKey("ltm_entities.id"), primary_key=True),
    sa.Column("entries", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
)
"""The totals of each entity's own entries, so counting millions of entries only sums a few rows."""

entries = sa.Table(
    "ltm_entries",
    metadata,
    sa.Column("tenant_id", number, primary_key=True),  # no foreign key: it would be checked for each row
    sa.Column("key", text(MAX_KEY_CHARACTERS), primary_key=True),
    sa.Column("entity_id", number, sa.ForeignKey("ltm_entities.id"), nullable=False),
    sa.Column("rev", sa.BigInteger, nullable=False),
    sa.Column("inline", sa.LargeBinary),
    sa.Column("blob_path", path),
    sa.Column("content_hash", sa.String(32), nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("metadata", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
    sa.Column("created", UtcTime, nullable=False),
    sa.Column("updated", UtcTime, nullable=False),
    sa.Column("expires", UtcTime),
    sa.CheckConstraint("(inline IS NULL) <> (blob_path IS NULL)", name="ltm_entries_hold_one_value"),
    sa.Index("ltm_entries_by_owner", "entity_id", "key"),
    sa.Index(
        "ltm_entries_by_expiry",
        "tenant_id",
        "expires",
        sqlite_where=sa.text("expires IS NOT NULL"),
        postgresql_where=sa.text("expires IS NOT NULL"),
    ),
)
"""The value is ``inline`` or in the blob at ``blob_path``."""

outbox = sa.Table(
    "ltm_outbox",
    metadata,
    sa.Column("id", number, primary_key=True, autoincrement=True),
    sa.Column("tenant_id", number, nullable=False),
    sa.Column("key", text(MAX_KEY_CHARACTERS), nullable=False),
    sa.Column("rev", sa.BigInteger, nullable=False),
    sa.Column("path", path),
    sa.Column("left_path", path),
    sa.Column("is_indexed", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("written", UtcTime, nullable=False),
    sa.Index("ltm_outbox_by_tenant", "tenant_id", "id"),
    sa.Index("ltm_outbox_to_index", "tenant_id", "is_indexed", "id"),
    sqlite_autoincrement=True,
)
"""Changes not yet applied to indexes and vectors: at ``rev`` the entry was written to ``path`` (null: deleted) and left
``left_path``. A change with ``is_indexed`` set only needs its vector, which a process without a model cannot compute.
``written`` is the time of the change. Ids are never reused: the vector table records the last one it contains.
"""

retired_blobs = sa.Table(
    "ltm_retired_blobs",
    metadata,
    sa.Column("path", path, primary_key=True),
    sa.Column("retired", UtcTime, nullable=False),
)
"""Blobs that are no longer referenced, and when each lost its entry; cleanup deletes them."""
