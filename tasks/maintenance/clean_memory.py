"""The part of a cleanup that concerns memory: its catalog, expired entries, and retired blobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from driftline.storage.garbage.orphans import Orphan
from driftline.storage.layout import CATALOG
from driftline.storage.memory.catalog.database import Catalog, embedded_url
from driftline.storage.memory.catalog.queries import blob_references
from driftline.storage.memory.catalog.writes import forget_blobs
from driftline.storage.memory.flush import Flusher
from driftline.storage.memory.upkeep import collect_expired
from driftline.storage.workspace.workspace import Workspace


@contextmanager
def open_catalog(workspace: Workspace, url: str | None) -> Iterator[Catalog | None]:
    """The catalog at ``url``, by default the one in the workspace; None if there is none. It is never created.

    Raises CatalogError, CatalogConnectionError, CatalogMismatch.
    """
    objects = workspace.objects
    if url is None and objects.is_local and objects.head(CATALOG) is not None:
        url = embedded_url(objects.uri)
    if url is None:
        yield None
        return
    catalog = Catalog(url)
    try:
        yield catalog if catalog.belongs_to() is not None else None
    finally:
        catalog.close()


def drop_expired(workspace: Workspace, catalog: Catalog) -> int:
    """Delete expired entries and update the indexes; returns their number. Raises CatalogError, StorageError."""
    removed = collect_expired(catalog, datetime.now(UTC))
    if removed:
        Flusher(catalog, workspace.objects, None, lambda: datetime.now(UTC)).flush()
    return removed


def forget_deleted(workspace: Workspace, catalog: Catalog, deleted: Sequence[Orphan]) -> None:
    """Remove deleted blobs from the catalog's list of retired ones, including those that a killed cleanup deleted."""
    _, retired = catalog.read(blob_references)
    gone = {orphan.path for orphan in deleted} & retired.keys()
    gone |= {path for path in retired.keys() - gone if workspace.objects.head(path) is None}
    catalog.write(lambda connection: forget_blobs(connection, gone))
