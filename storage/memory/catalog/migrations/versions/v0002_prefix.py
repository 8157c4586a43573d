"""The prefix ``ltm_`` of all names, the time of changes in the outbox, and the lookup of entities by name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.engine import Connection

from driftline.storage.memory.catalog.migrations.unprefixed import (
    FIRST_VERSION_TABLE,
    PREFIX,
    RENAMED,
    is_unprefixed,
)

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    connection = op.get_bind()
    if is_unprefixed(connection):
        _rename(connection)
    op.add_column("ltm_outbox", sa.Column("written", sa.DateTime(timezone=True)))
    op.create_index("ltm_entities_by_type", "ltm_entities", ["type", "name"])


def _rename(connection: Connection) -> None:
    for old, new in RENAMED.items():
        op.rename_table(old, new)
    op.drop_table(FIRST_VERSION_TABLE)
    if connection.dialect.name == "postgresql":
        _rename_in_schema(connection)
    else:
        _create_indexes_again(connection)


def _rename_in_schema(connection: Connection) -> None:
    """Rename indexes and sequences, whose names PostgreSQL shares with all tables of the schema."""
    for table in RENAMED.values():
        owned = sa.text(
            "SELECT i.relname, i.relkind FROM pg_class t JOIN pg_index x ON x.indrelid = t.oid"
            " JOIN pg_class i ON i.oid = x.indexrelid WHERE t.oid = to_regclass(:table)"
            " UNION SELECT s.relname, s.relkind FROM pg_class s JOIN pg_depend d ON d.objid = s.oid"
            " AND d.deptype IN ('a', 'i') WHERE s.relkind = 'S' AND d.refobjid = to_regclass(:table)"
        )
        for name, kind in connection.execute(owned, {"table": table}).all():
            if not name.startswith(PREFIX):
                what = "SEQUENCE" if kind in ("S", b"S") else "INDEX"
                op.execute(f'ALTER {what} "{name}" RENAME TO "{PREFIX}{name}"')


def _create_indexes_again(connection: Connection) -> None:
    """SQLite renames no index."""
    inspector = sa.inspect(connection)
    for table in RENAMED.values():
        for index in inspector.get_indexes(table):
            name = index["name"]
            if name is None or name.startswith(PREFIX):
                continue
            op.drop_index(name, table)
            columns = [column for column in index["column_names"] if column is not None]
            expiring = sa.text("expires IS NOT NULL") if name == "entries_by_expiry" else None
            op.create_index(f"{PREFIX}{name}", table, columns, sqlite_where=expiring)
