"""Alembic's entry point: migrate over the connection that ``storage/memory/catalog/database.py`` has opened."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
