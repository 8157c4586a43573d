"""The tables of the first catalog, which had no prefix, as version 0.1 made them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.dialects.postgresql import JSONB

_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_moment = sa.DateTime(timezone=True)


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def create_first_catalog(connection: sa.Connection) -> None:
    """The tables, and Alembic's version."""
    with Operations.context(MigrationContext.configure(connection)):
        _create()
        op.create_table("alembic_version", sa.Column("version_num", sa.String(32), primary_key=True))
        op.execute("INSERT INTO alembic_version VALUES ('0001')")


def _create() -> None:
    op.create_table("about", sa.Column("workspace_id", sa.String(64), primary_key=True))
    _create_entities()
    _create_entries()
    _create_outbox()


def _create_entities() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", _number, primary_key=True),
        sa.Column("path", _text(1_024), nullable=False, unique=True),
        sa.Column("rev", sa.BigInteger, nullable=False),
        sa.Column("flusher", sa.String(64)),
        sa.Column("flusher_until", _moment),
    )
    op.create_table(
        "entities",
        sa.Column("id", _number, primary_key=True),
        sa.Column("tenant_id", _number, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("path", _text(1_024), nullable=False, unique=True),
        sa.Column("type", _text(64), nullable=False),
        sa.Column("name", _text(200), nullable=False),
        sa.Column("created", _moment, nullable=False),
    )
    op.create_index("entities_by_name", "entities", ["tenant_id", "type", "name"])
    op.create_table(
        "closure",
        sa.Column("ancestor_id", _number, sa.ForeignKey("entities.id"), primary_key=True),
        sa.Column("descendant_id", _number, sa.ForeignKey("entities.id"), primary_key=True),
        sa.Column("depth", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("closure_by_descendant", "closure", ["descendant_id", "ancestor_id"])


def _create_entries() -> None:
    op.create_table(
        "owners",
        sa.Column("entity_id", _number, sa.ForeignKey("entities.id"), primary_key=True),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "entries",
        sa.Column("tenant_id", _number, primary_key=True),
        sa.Column("key", _text(1_024), primary_key=True),
        sa.Column("entity_id", _number, sa.ForeignKey("entities.id"), nullable=False),
        sa.Column("rev", sa.BigInteger, nullable=False),
        sa.Column("inline", sa.LargeBinary),
        sa.Column("blob_path", _text(1_024)),
        sa.Column("content_hash", sa.String(32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        sa.Column("created", _moment, nullable=False),
        sa.Column("updated", _moment, nullable=False),
        sa.Column("expires", _moment),
        sa.CheckConstraint("(inline IS NULL) <> (blob_path IS NULL)", name="entries_hold_one_value"),
    )
    op.create_index("entries_by_owner", "entries", ["entity_id", "key"])
    expiring = sa.text("expires IS NOT NULL")
    op.create_index("entries_by_expiry", "entries", ["expires"], sqlite_where=expiring, postgresql_where=expiring)


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", _number, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _number, nullable=False),
        sa.Column("key", _text(1_024), nullable=False),
        sa.Column("rev", sa.BigInteger, nullable=False),
        sa.Column("path", _text(1_024)),
        sa.Column("left_path", _text(1_024)),
        sa.Column("is_indexed", sa.Boolean, nullable=False, server_default=sa.false()),
        sqlite_autoincrement=True,
    )
    op.create_index("outbox_by_tenant", "outbox", ["tenant_id", "id"])
    op.create_table(
        "retired_blobs",
        sa.Column("path", _text(1_024), primary_key=True),
        sa.Column("retired", _moment, nullable=False),
    )
