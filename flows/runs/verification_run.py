"""A verification, and with ``repair`` the mending of what it finds by indexing anew."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from driftline.flows.output.progress import NullProgress, Progress
from driftline.flows.runs.cleanup_run import DATABASE_VARIABLE
from driftline.flows.runs.index_run import IndexRequest, index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, LeaseHeld
from driftline.storage.ids import new_ulid
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import look
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.clean_memory import open_catalog
from driftline.tasks.maintenance.repair import mend_indexes, mend_source, set_aside
from driftline.tasks.maintenance.verify import OF_DOCUMENTS, OF_MEMORY, Finding, FindingKind, Verification, verify
from driftline.tasks.maintenance.verify_memory import mend_memory, verify_memory


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to verify. ``repair`` takes what is wrong out of the index and indexes its sources anew."""

    workspace: str
    repair: bool = False
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    catalog_url: str | None = field(default=None, repr=False)
    """Of the memory store; by default $DATABASE_URL, else the catalog in the workspace."""


@dataclass(slots=True)
class VerifyReport:
    """What was found; after a repair ``findings`` are what is left, ``mended`` counts what was wrong before."""

    run_id: str
    workspace: str
    documents: int = 0
    lines: int = 0
    memory_entries: int = 0
    findings: Sequence[Finding] = ()
    mended: int = 0
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As ``verify --json`` prints it."""
        return {
            "run_id": self.run_id,
            "workspace": self.workspace,
            "documents": self.documents,
            "lines": self.lines,
            "memory_entries": self.memory_entries,
            "findings": [{**asdict(finding), "kind": str(finding.kind)} for finding in self.findings],
            "mended": self.mended,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
        }


def verify_workspace(request: VerifyRequest, progress: Progress | None = None) -> VerifyReport:
    """Check a workspace against itself, and mend it if asked.

    Without ``repair`` nothing is written. Raises WorkspaceNotFound, WorkspaceTooNew, CatalogMismatch, CatalogError,
    StorageError.
    """
    told = progress or NullProgress()
    workspace = Workspace.open(request.workspace, request.storage_options)
    with open_catalog(workspace, request.catalog_url or os.environ.get(DATABASE_VARIABLE)) as catalog:
        return _verify(workspace, catalog, request, told)


def _verify(workspace: Workspace, catalog: Catalog | None, request: VerifyRequest, told: Progress) -> VerifyReport:
    started = time.monotonic()
    report = VerifyReport(new_ulid(), workspace.objects.uri)

    def skip(message: str) -> None:
        report.skipped.append(message)
        told.message(message)

    def check() -> Verification:
        found = verify(workspace, told.phase)
        if catalog is not None:
            told.phase("checking memory")
            verify_memory(workspace, catalog, found)
        return found

    found = check()
    before = len(found.findings)
    if request.repair and found.findings:
        workspace = Workspace.open_for_writing(request.workspace, request.storage_options)
        repair = _Repair(workspace, request, report.run_id, told, skip, catalog)
        if repair.set_damaged_files_aside(found):
            found = check()
            before = max(before, len(found.findings))
        repair.mend(found)
        found = check()
        report.mended = max(0, before - len(found.findings))
    for name in found.busy:
        skip(f"{name} was not judged, because a run works on it")
    report.documents, report.lines, report.memory_entries = found.documents, found.lines, found.memory_entries
    report.findings = found.findings
    report.seconds = time.monotonic() - started
    return report


@dataclass(slots=True)
class _Repair:
    workspace: Workspace
    request: VerifyRequest
    run_id: str
    progress: Progress
    skip: Any
    catalog: Catalog | None

    def set_damaged_files_aside(self, found: Verification) -> int:
        """Rename the files of manifests that cannot be read, so that the rest can be; returns how many."""
        count = 0
        for finding in found.findings:
            entity = _source_of(found, finding.entity)
            if finding.kind is FindingKind.UNREADABLE and entity is not None:
                try:
                    count += set_aside(self.workspace, entity, finding.path, self.run_id)
                except LeaseHeld as error:
                    self.skip(str(error))
        return count

    def mend(self, found: Verification) -> None:
        """Take what is wrong out of the index, then index the sources that it belongs to; make memory indexes anew."""
        self._mend_memory([finding for finding in found.findings if finding.kind in OF_MEMORY])
        wrong: dict[Entity, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        indexes: dict[str, set[str]] = defaultdict(set)
        for finding in found.findings:
            entity = _source_of(found, finding.entity)
            if finding.kind in OF_MEMORY:
                continue
            if finding.kind is FindingKind.INDEX:
                indexes[finding.entity].add(finding.path)
            elif entity is None:
                self.skip(f"Not mended, because no source has this name: {finding.entity}")
            elif finding.kind in OF_DOCUMENTS:
                wrong[entity][finding.fingerprint].add(finding.path)
            elif finding.kind is FindingKind.LEDGER:
                wrong[entity][finding.fingerprint] |= set()
            elif finding.kind is FindingKind.STAGED:
                wrong[entity] |= {}
        for entity, paths in sorted(wrong.items()):
            self.progress.phase(f"mending {entity}")
            if look(self.workspace.objects, lease_path(entity)) != found.leases[entity]:
                self.skip(f"{entity} has changed since it was verified: verify again")
                continue
            try:
                mend_source(self.workspace, entity, paths, self.run_id)
            except LeaseHeld as error:
                self.skip(str(error))
                continue
            if any(paths.values()):
                self._index(entity)
        for tenant, names in indexes.items():
            try:
                mend_indexes(self.workspace, Entity.of_directory(tenant), sorted(names), self.run_id)
            except LeaseHeld as error:
                self.skip(str(error))

    def _mend_memory(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            if finding.kind is FindingKind.BLOB:
                self.skip(f"Not mended, because nothing else holds its value: {finding.path!r} of {finding.entity}")
        for name in sorted({finding.entity for finding in findings if finding.kind is FindingKind.MEMORY_VECTORS}):
            self.skip(f"The vectors of {name} need a model: driftline memory rebuild {name}")
        try:
            if self.catalog is not None:
                mend_memory(self.workspace, self.catalog, findings)
        except LeaseHeld as error:
            self.skip(str(error))

    def _index(self, entity: Entity) -> None:
        record = self.workspace.source(entity)
        uri = record.uri if record else "its source"
        try:
            if record is not None:
                request = IndexRequest(
                    sources=(record.uri,),
                    workspace=self.request.workspace,
                    entity=str(entity),
                    storage_options=self.request.storage_options,
                )
                index_sources(request, self.progress)
        except DriftlineError as error:
            self.skip(f"The lines taken out of {entity} are to be indexed again with: driftline index {uri} ({error})")


def _source_of(found: Verification, name: str) -> Entity | None:
    return next((entity for entity in found.leases if str(entity) == name), None)
