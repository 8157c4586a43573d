"""Alembic's entry point: migrate over the connection that ``storage/memory/catalog/database.py`` has opened."""

from __future__ import annotations

from alembic import context

from driftline.storage.memory.catalog.tables import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
