"""The migrations of the memory catalog, for alembic; ``database.py`` runs them when it opens a catalog."""
