"""The files that a search of the newest version of a workspace reads: what a copy of it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftline.storage.errors import ObjectNotFound
from driftline.storage.layout import CONFIG, Kind, parse_name
from driftline.storage.lines.table import LineTable
from driftline.storage.objects.backend import ObjectInfo
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from lance import LanceDataset

_NEWEST = 2**64 - 1
"""Names of Lance's versions count down from here, so that a listing begins with the newest."""
_COPIED = (Kind.BASE, Kind.DELTA, Kind.RUN)


def files_of_newest_version(workspace: Workspace) -> list[ObjectInfo]:
    """The configuration, records, manifests, run history and the serving tables of lines, in one listing's order.

    Without memory, leases, staged deltas, and files of other versions. Raises ObjectNotFound if files vanish
    meanwhile, CorruptFile, StorageError.
    """
    listing = {info.path: info for info in workspace.objects.list()}
    of_sources = {entity.directory for entity, _ in workspace.sources()}
    wanted = [
        info
        for path, info in listing.items()
        if path == CONFIG or (parse_name(path).kind in _COPIED and _is_wanted(path, of_sources))
    ]
    wanted += [listing[f"{place}/_source.json"] for place in sorted(of_sources) if f"{place}/_source.json" in listing]
    if workspace.config.fingerprint is not None:
        for tenant in workspace.tenants():
            wanted += _of_table(workspace.lines(tenant), listing)
    return wanted


def _is_wanted(path: str, of_sources: set[str]) -> bool:
    """Whether a manifest or run record is no index of memory."""
    folder = path.rpartition("/")[0]
    return folder in of_sources or folder.endswith("/_runs")


def _of_table(table: LineTable, listing: dict[str, ObjectInfo]) -> list[ObjectInfo]:
    manifests = sorted(path for path in listing if path.startswith(f"{table.path}/_versions/"))
    newest = next((path for path in manifests if path.endswith(".manifest")), None)
    if newest is None:
        return []
    dataset = table.open(_NEWEST - int(newest.rpartition("/")[2].removesuffix(".manifest")))
    names = {*_data_files(dataset)}
    folders = {f"{table.path}/_indices/{uuid}/" for uuid in _index_ids(dataset)}
    found = [listing[newest]]
    for path, info in listing.items():
        name = path.removeprefix(f"{table.path}/")
        if name in names or any(path.startswith(folder) for folder in folders):
            found.append(info)
            names.discard(name)
    if names:
        raise ObjectNotFound(f"{len(names)} files of the table have vanished", f"{table.uri}/{min(names)}")
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
