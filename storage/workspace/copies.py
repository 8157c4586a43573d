"""Maintain a local copy of a workspace that follows the original from version to version (decision 0011).

The copy is a symbolic link to a version's folder, ``.{name}.versions/{id}``. A newer version is completed in its own
folder, with unchanged files hard-linked, and replacing the link switches to it atomically.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftline.storage.entities import Entity
from driftline.storage.errors import LeaseHeld, ObjectNotFound, StorageError, UsageError
from driftline.storage.json_records import to_json
from driftline.storage.layout import (
    CONFIG,
    COPY_RECORD,
    SOURCE,
    ObjectInfo,
    ObjectKind,
    is_tenant,
    new_ulid,
    parse_name,
)
from driftline.storage.lines.line_table import LineTable
from driftline.storage.objects.local_disk import flush_to_disk
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import CopyRecord, read_copy_record
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from lance import LanceDataset

KEPT_VERSIONS = 2
"""The current version, and the previous one, which readers may still have open."""


@dataclass(frozen=True, slots=True)
class WorkspaceCopy:
    """The copy at ``location``, which need not exist yet."""

    location: Path

    @property
    def versions(self) -> Path:
        return self.location.parent / f".{self.location.name}.versions"

    @property
    def partial(self) -> Path:
        """The version under construction; the next pull reuses files of an interrupted one."""
        return self.versions / "partial"

    @property
    def current(self) -> Path | None:
        """The folder of the current version, if there is one."""
        is_valid = self.location.is_symlink() and self.location.exists()
        return self.location.parent / os.readlink(self.location) if is_valid else None

    def check_location(self) -> None:
        """Raise UsageError if ``location`` is anything other than a copy."""
        if os.path.lexists(self.location) and not self.location.is_symlink():
            empty = self.location.is_dir() and not any(self.location.iterdir())
            if not empty:
                fix = "Choose an empty or new folder."
                raise UsageError("The folder exists and is not a copy of a workspace", str(self.location), fix)
            self.location.rmdir()
        if self.current is not None and self.record() is None:
            raise UsageError("The link does not point to a copy", str(self.location), "Choose an empty or new folder.")

    @contextlib.contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Lock the copy against other processes. Raises LeaseHeld if it is locked, unless ``wait`` is set."""
        with (self.versions / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise LeaseHeld("Another process is updating this copy", str(self.location), "Wait for it.") from None
            yield

    def record(self) -> CopyRecord | None:
        """Return the current version's record. Raises CorruptFile, WorkspaceTooNew."""
        current = self.current
        return read_copy_record(ObjectStore.open(current.as_uri())) if current is not None else None

    def reuse(self, known: Mapping[str, tuple[int, str]], expected: Mapping[str, tuple[int, str]]) -> set[str]:
        """Link the current version's files that are also ``expected`` into the partial version, and return them.

        Files with the same size and version are identical. Unwanted files in the partial version are removed.
        """
        current = self.current
        for folder, _, names in os.walk(self.partial):
            for left in (Path(folder, name) for name in names):
                if left.relative_to(self.partial).as_posix() not in expected:
                    left.unlink()
        found: set[str] = set()
        for path, identity in expected.items():
            target = self.partial / path
            if current is None or known.get(path) != identity or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if _has_size(current / path, identity[0]):
                os.link(current / path, target)
                found.add(path)
        return found

    def confirm(self, record: CopyRecord) -> None:
        """Record that the current version was just found to be the newest. Raises StorageError."""
        current = self.current
        assert current is not None
        temporary = current / f".tmp-{COPY_RECORD}"
        try:
            temporary.write_bytes(to_json(record))
            temporary.replace(current / COPY_RECORD)
        except OSError as error:
            raise StorageError(f"Cannot write the copy ({error.strerror})", str(current)) from error

    def is_complete(self, known: Mapping[str, tuple[int, str]]) -> bool:
        """Return whether the current version has every file, at its full size."""
        current = self.current
        return current is not None and all(_has_size(current / path, size) for path, (size, _) in known.items())

    def switch(self, record: CopyRecord) -> Path:
        """Make the partial version, whose files are on the disk, the current one; delete all but KEPT_VERSIONS.

        Raises StorageError.
        """
        try:
            (self.partial / COPY_RECORD).write_bytes(to_json(record))
            flush_to_disk(str(self.partial / COPY_RECORD))
            for folder, *_ in os.walk(self.partial):
                flush_to_disk(folder)
            target = self.versions / new_ulid()
            self.partial.rename(target)
            link = self.versions / f"{target.name}.link"
            link.symlink_to(os.path.relpath(target, self.location.parent))
            flush_to_disk(str(self.versions))
            os.replace(link, self.location)
        except OSError as error:
            raise StorageError(f"Cannot update the copy ({error.strerror})", str(self.location)) from error
        names = sorted(entry.name for entry in self.versions.iterdir() if (entry / CONFIG).exists())
        for name in names[:-KEPT_VERSIONS]:
            shutil.rmtree(self.versions / name, ignore_errors=True)
        return target


def _has_size(file: Path, size_bytes: int) -> bool:
    """Return whether a file exists with this size: a crash may have deleted or cut it."""
    try:
        return file.stat().st_size == size_bytes
    except OSError:
        return False


_NEWEST = 2**64 - 1
"""Lance's version names count down from here, so a listing starts with the newest."""
_COPIED = (ObjectKind.BASE, ObjectKind.DELTA)
COPIED_RUNS = 50
"""Number of run records to copy for each tenant: scheduled runs write thousands a day."""


FilesByPath = Mapping[str, ObjectInfo]
"""All objects in a workspace, keyed by path, in the order of one listing."""


def version_metadata_files(workspace: Workspace, listing: FilesByPath) -> list[ObjectInfo]:
    """Return the small files that distinguish versions.

    These are the configuration, records, manifests, each tenant's newest runs, and table manifests.
    """
    of_sources = {path.rpartition("/")[0] for path in listing if path.endswith(f"/{SOURCE}")}
    files = [
        info
        for path, info in listing.items()
        if path == CONFIG or (parse_name(path).kind in _COPIED and path.rpartition("/")[0] in of_sources)
    ]
    files += [listing[f"{directory}/{SOURCE}"] for directory in sorted(of_sources)]
    files += _newest_runs(listing)
    return files + [manifest for _, manifest, _ in _tables(workspace, listing)]


def _newest_runs(listing: FilesByPath) -> list[ObjectInfo]:
    runs: dict[str, list[str]] = defaultdict(list)
    for path in listing:
        if parse_name(path).kind is ObjectKind.RUN:
            runs[path.rpartition("/")[0]].append(path)
    return [listing[path] for paths in runs.values() for path in sorted(paths)[-COPIED_RUNS:]]


def is_version_metadata(path: str) -> bool:
    """Return whether a copied file is one of ``version_metadata_files``; all other files have unique names."""
    return "/_tables/" not in path or "/_versions/" in path


def files_of_newest_version(workspace: Workspace, listing: FilesByPath) -> list[ObjectInfo]:
    """Return ``version_metadata_files``, and the files of the current line tables.

    Memory, leases, staged deltas, and files of other versions are excluded. Raises ObjectNotFound if files disappeared
    since the listing; also CorruptFile, StorageError.
    """
    files = version_metadata_files(workspace, listing)
    for table, manifest, of_table in _tables(workspace, listing):
        files += _of_table(table, manifest, of_table)
    return files


def _tables(workspace: Workspace, listing: FilesByPath) -> Iterator[tuple[LineTable, ObjectInfo, FilesByPath]]:
    """Yield each tenant's line table, its newest manifest, and its files, keyed by their path in the table."""
    if workspace.config.fingerprint is None:
        return
    of_tenants: dict[str, list[ObjectInfo]] = defaultdict(list)
    for path, info in listing.items():
        of_tenants[path.partition("/")[0]].append(info)
    for name in sorted(filter(is_tenant, of_tenants)):
        table = workspace.lines(Entity.of_directory(name))
        root = f"{table.path}/"
        of_table = {each.path.removeprefix(root): each for each in of_tenants[name] if each.path.startswith(root)}
        manifests = (each for each in of_table if each.startswith("_versions/") and each.endswith(".manifest"))
        newest = min(manifests, default=None)
        if newest is not None:
            yield table, of_table[newest], of_table


def _of_table(table: LineTable, manifest: ObjectInfo, of_table: FilesByPath) -> list[ObjectInfo]:
    """Return the data and index files that a table version refers to."""
    dataset = table.open(_NEWEST - int(manifest.path.rpartition("/")[2].removesuffix(".manifest")))
    names, folders = {*_data_files(dataset)}, {f"_indices/{uuid}" for uuid in _index_ids(dataset)}
    if missing := names - of_table.keys():
        raise ObjectNotFound(f"{len(missing)} files of the table are missing", f"{table.uri}/{min(missing)}")
    return [info for name, info in of_table.items() if name in names or "/".join(name.split("/", 2)[:2]) in folders]


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
