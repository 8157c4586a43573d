"""List the files that a search of a workspace's newest version reads, for its local copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from driftline.storage.entities import Entity
from driftline.storage.errors import ObjectNotFound
from driftline.storage.layout import CONFIG, SOURCE, Kind, is_tenant, parse_name
from driftline.storage.lines.line_table import LineTable
from driftline.storage.model import ObjectInfo
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from lance import LanceDataset

_NEWEST = 2**64 - 1
"""Lance's version names count down from here, so that a listing starts with the newest."""
_COPIED = (Kind.BASE, Kind.DELTA, Kind.RUN)


Listing = Mapping[str, ObjectInfo]
"""All objects in a workspace, keyed by path, in the order of one listing."""


def version_metadata_files(workspace: Workspace, listing: Listing) -> list[ObjectInfo]:
    """Return the small files that distinguish versions.

    These are the configuration, records, manifests, run history, and table manifests.
    """
    of_sources = {path.rpartition("/")[0] for path in listing if path.endswith(f"/{SOURCE}")}
    files = [
        info
        for path, info in listing.items()
        if path == CONFIG or (parse_name(path).kind in _COPIED and _is_wanted(path, of_sources))
    ]
    files += [listing[f"{directory}/{SOURCE}"] for directory in sorted(of_sources)]
    return files + [manifest for _, manifest in _tables(workspace, listing)]


def is_version_metadata(path: str) -> bool:
    """Return whether a copied file is one of ``version_metadata_files``; all other files have unique names."""
    return "/_tables/" not in path or "/_versions/" in path


def files_of_newest_version(workspace: Workspace, listing: Listing) -> list[ObjectInfo]:
    """Return ``version_metadata_files``, and the files of the current line tables.

    Memory, leases, staged deltas, and files of other versions are excluded. Raises ObjectNotFound if files disappeared
    since the listing, CorruptFile, StorageError.
    """
    files = version_metadata_files(workspace, listing)
    for table, manifest in _tables(workspace, listing):
        files += _of_table(table, manifest, listing)
    return files


def _tables(workspace: Workspace, listing: Listing) -> list[tuple[LineTable, ObjectInfo]]:
    """Return each tenant's line table, with its newest manifest."""
    if workspace.config.fingerprint is None:
        return []
    found: list[tuple[LineTable, ObjectInfo]] = []
    for name in sorted({path.partition("/")[0] for path in listing}):
        if not is_tenant(name):
            continue
        table = workspace.lines(Entity.of_directory(name))
        manifests = sorted(path for path in listing if path.startswith(f"{table.path}/_versions/"))
        newest = next((path for path in manifests if path.endswith(".manifest")), None)
        if newest is not None:
            found.append((table, listing[newest]))
    return found


def _is_wanted(path: str, of_sources: set[str]) -> bool:
    """Return whether a manifest or run record is not part of memory."""
    folder = path.rpartition("/")[0]
    return folder in of_sources or folder.endswith("/_runs")


def _of_table(table: LineTable, manifest: ObjectInfo, listing: Listing) -> list[ObjectInfo]:
    """Return the data and index files that a table version refers to."""
    dataset = table.open(_NEWEST - int(manifest.path.rpartition("/")[2].removesuffix(".manifest")))
    names = {*_data_files(dataset)}
    folders = {f"{table.path}/_indices/{uuid}/" for uuid in _index_ids(dataset)}
    found: list[ObjectInfo] = []
    for path, info in listing.items():
        name = path.removeprefix(f"{table.path}/")
        if name in names or any(path.startswith(folder) for folder in folders):
            found.append(info)
            names.discard(name)
    if names:
        raise ObjectNotFound(f"{len(names)} files of the table are missing", f"{table.uri}/{min(names)}")
    return found


def _data_files(dataset: LanceDataset) -> list[str]:
    names: list[str] = []
    for fragment in dataset.get_fragments():
        metadata: Any = fragment.metadata
        names += [f"data/{file.path}" for file in metadata.files]
        if metadata.deletion_file is not None:
            names.append(metadata.deletion_file.path(fragment.fragment_id))
    return names


def _index_ids(dataset: LanceDataset) -> list[str]:
    return [segment.uuid for index in dataset.describe_indices() for segment in index.segments]
