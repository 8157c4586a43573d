"""Whether a workspace holds memory, and which catalog is its own. Looking creates and changes nothing."""

from __future__ import annotations

from driftline.storage.entities import Entity
from driftline.storage.layout import CATALOG, CATALOG_RECORD, Kind, parse_name
from driftline.storage.memory.catalog.database import Catalog, embedded_url
from driftline.storage.memory.vectors import vector_tables
from driftline.storage.workspace.workspace import Workspace

_OF_MEMORY = (Kind.BASE, Kind.DELTA, Kind.BLOB)


def holds_memory(workspace: Workspace) -> bool:
    """Whether a memory store has flushed something into this workspace, or has its catalog in it.

    Every entry is in the index of its tenant, where documents have none. Raises StorageError.
    """
    objects = workspace.objects
    return has_embedded_catalog(workspace) or objects.head(CATALOG_RECORD) is not None or remembers(workspace)


def remembers(workspace: Workspace) -> bool:
    """Whether a memory store has flushed something into this workspace. Raises StorageError."""
    return any(_remembers(workspace, tenant) for tenant in workspace.tenants())


def has_embedded_catalog(workspace: Workspace) -> bool:
    """Whether the catalog is a file of the workspace, as it is unless another was configured."""
    return workspace.objects.is_local and workspace.objects.head(CATALOG) is not None


def find_catalog(workspace: Workspace, configured: str | None) -> str | None:
    """The URL of the workspace's own catalog: the ``configured`` one, else the file in it; None if neither is it.

    Raises UsageError for a URL of another kind of database, CatalogError, CatalogConnectionError.
    """
    urls = [configured, embedded_url(workspace.objects.uri) if has_embedded_catalog(workspace) else None]
    return next((url for url in urls if url is not None and belongs(workspace, url)), None)


def belongs(workspace: Workspace, url: str) -> bool:
    """Whether the database at ``url`` holds the catalog of this workspace. Raises as ``find_catalog``."""
    catalog = Catalog(url)
    try:
        return catalog.belongs_to() == workspace.config.workspace_id
    finally:
        catalog.close()


def _remembers(workspace: Workspace, tenant: Entity) -> bool:
    files = workspace.objects.list(tenant.directory, recursive=False)
    return any(parse_name(info.path).kind in _OF_MEMORY for info in files) or bool(
        vector_tables(workspace.objects, tenant)
    )
