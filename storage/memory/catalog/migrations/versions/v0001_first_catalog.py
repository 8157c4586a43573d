"""The first catalog: tenants, entities and their closure, owners, entries, the outbox and retired blobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from driftline.storage.memory.catalog.migrations.unprefixed import is_unprefixed

revision = "0001"
down_revision = None

_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_moment = sa.DateTime(timezone=True)


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    if is_unprefixed(op.get_bind()):  # the tables exist under their first names; 0002 renames them
        return
    op.create_table("ltm_about", sa.Column("workspace_id", sa.String(64), primary_key=True))
    _create_entities()
    _create_entries()
    _create_outbox()


def _create_entities() -> None:
    op.create_table(
        "ltm_tenants",
        sa.Column("id", _number, primary_key=True),
        sa.Column("path", _text(1_024), nullable=False, unique=True),
        sa.Column("rev", sa.BigInteger, nullable=False),
        sa.Column("flusher", sa.String(64)),
        sa.Column("flusher_until", _moment),
    )
    op.create_table(
        "ltm_entities",
        sa.Column("id", _number, primary_key=True),
        sa.Column("tenant_id", _number, sa.ForeignKey("ltm_tenants.id"), nullable=False),
        sa.Column("path", _text(1_024), nullable=False, unique=True),
        sa.Column("type", _text(64), nullable=False),
        sa.Column("name", _text(200), nullable=False),
        sa.Column("created", _moment, nullable=False),
    )
    op.create_index("ltm_entities_by_name", "ltm_entities", ["tenant_id", "type", "name"])
    op.create_table(
        "ltm_entity_closure",
        sa.Column("ancestor_id", _number, sa.ForeignKey("ltm_entities.id"), primary_key=True),
        sa.Column("descendant_id", _number, sa.ForeignKey("ltm_entities.id"), primary_key=True),
        sa.Column("depth", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ltm_closure_by_descendant", "ltm_entity_closure", ["descendant_id", "ancestor_id"])


def _create_entries() -> None:
    op.create_table(
        "ltm_entry_owners",
        sa.Column("entity_id", _number, sa.ForeignKey("ltm_entities.id"), primary_key=True),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "ltm_entries",
        sa.Column("tenant_id", _number, primary_key=True),
        sa.Column("key", _text(1_024), primary_key=True),
        sa.Column("entity_id", _number, sa.ForeignKey("ltm_entities.id"), nullable=False),
        sa.Column("rev", sa.BigInteger, nullable=False),
        sa.Column("inline", sa.LargeBinary),
        sa.Column("blob_path", _text(1_024)),
        sa.Column("content_hash", sa.String(32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        sa.Column("created", _moment, nullable=False),
        sa.Column("updated", _moment, nullable=False),
        sa.Column("expires", _moment),
        sa.CheckConstraint("(inline IS NULL) <> (blob_path IS NULL)", name="ltm_entries_hold_one_value"),
    )
    op.create_index("ltm_entries_by_owner", "ltm_entries", ["entity_id", "key"])
    expiring = sa.text("expires IS NOT NULL")
    name, columns = "ltm_entries_by_expiry", ["expires"]
    op.create_index(name, "ltm_entries", columns, sqlite_where=expiring, postgresql_where=expiring)


def _create_outbox() -> None:
    op.create_table(
        "ltm_outbox",
        sa.Column("id", _number, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _number, nullable=False),
        sa.Column("key", _text(1_024), nullable=False),
        sa.Column("rev", sa.BigInteger, nullable=False),
        sa.Column("path", _text(1_024)),
        sa.Column("left_path", _text(1_024)),
        sa.Column("is_indexed", sa.Boolean, nullable=False, server_default=sa.false()),
        sqlite_autoincrement=True,
    )
    op.create_index("ltm_outbox_by_tenant", "ltm_outbox", ["tenant_id", "id"])
    op.create_table(
        "ltm_retired_blobs",
        sa.Column("path", _text(1_024), primary_key=True),
        sa.Column("retired", _moment, nullable=False),
    )
