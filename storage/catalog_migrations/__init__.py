"""The migrations of the memory catalog, for alembic. ``storage/catalog.py`` runs them when it opens a catalog."""
