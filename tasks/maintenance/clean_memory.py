"""The part of a cleanup that concerns memory: its catalog, expired entries, and retired blobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from driftline.storage.errors import CatalogError
from driftline.storage.garbage.orphans import Orphan
from driftline.storage.layout import CATALOG
from driftline.storage.memory.binding import trouble
from driftline.storage.memory.catalog.database import Catalog, embedded_url
from driftline.storage.memory.catalog.queries import blob_references
from driftline.storage.memory.catalog.writes import forget_blobs
from driftline.storage.memory.flush import Flusher
from driftline.storage.memory.upkeep import collect_expired
from driftline.storage.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class CatalogAtHand:
    """The catalog that was found, if any, and the ``error`` if it cannot be read or reached."""

    catalog: Catalog | None = None
    error: CatalogError | None = None

    def problem(self, workspace: Workspace) -> str | None:
        """Why nothing of the memory in ``workspace`` may be judged, or None. Raises CatalogError, StorageError."""
        if self.error is not None:
            return f"its catalog cannot be read: {self.error}"
        return trouble(workspace, self.catalog)


@contextmanager
def open_catalog(workspace: Workspace, url: str | None) -> Iterator[CatalogAtHand]:
    """The catalog at ``url``, by default the one in the workspace. It is never created. Raises CatalogMismatch."""
    objects = workspace.objects
    if url is None and objects.is_local and objects.head(CATALOG) is not None:
        url = embedded_url(objects.uri)
    if url is None:
        yield CatalogAtHand()
        return
    catalog = Catalog(url)
    try:
        yield _look(catalog)
    finally:
        catalog.close()


def _look(catalog: Catalog) -> CatalogAtHand:
    try:
        return CatalogAtHand(catalog if catalog.belongs_to() is not None else None)
    except CatalogError as error:
        return CatalogAtHand(error=error)


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
