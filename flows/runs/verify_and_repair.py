"""Run a verification (DESIGN, "Verification"): check a workspace and, on request, repair it by reindexing."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.config.memory_settings import WHERE_CATALOGS_ARE_NAMED, catalog_to_keep
from driftline.flows.output.progress import NullProgress, Progress
from driftline.flows.output.run_reports import PASSING
from driftline.flows.runs.branches import delete_branch
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, DriftlineError, LeaseHeld
from driftline.storage.json_records import as_dict
from driftline.storage.layout import CATALOG_RECORD, CONFIG, lease_path, new_ulid
from driftline.storage.leases.lease import peek
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.workspace_catalog import WAYS_BACK, adopt, holds_memory, record_may_be_damaged, recorded
from driftline.storage.objects.store import ObjectStore
from driftline.storage.sources.mirror import with_reference
from driftline.storage.sources.source import open_source
from driftline.storage.workspace.records import WorkspaceConfig
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.cleanup import OpenedCatalog, open_catalog
from driftline.tasks.maintenance.verification import (
    OF_DOCUMENTS,
    OF_MEMORY,
    Finding,
    FindingKind,
    Verification,
    config_is_lost,
    quarantine,
    quarantine_table,
    repair_indexes,
    repair_memory,
    repair_source,
    restore_config,
    verify,
    verify_memory,
)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The inputs of a verification.

    ``repair`` removes inconsistent documents and reindexes their sources, unless a source cannot be read.
    """

    workspace: str
    repair: bool = False
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    catalog_url: str | None = field(default=None, repr=False)
    """The memory catalog; default: the configured catalog, then the workspace's own."""
    references: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The references to the tokens of repositories, which the workspace does not record."""


@dataclass(slots=True)
class VerifyReport:
    """The report of a verification.

    After a repair, ``findings`` lists the remaining findings, and ``repaired`` counts the repaired ones.
    """

    run_id: str
    workspace: str
    documents: int = 0
    lines: int = 0
    memory_entries: int = 0
    findings: Sequence[Finding] = ()
    repaired: int = 0
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the ``verify --json`` object."""
        return as_dict(self)


def verify_workspace(request: VerifyRequest, progress: Progress | None = None) -> VerifyReport:
    """Check a workspace's consistency, and repair it if ``request.repair`` is set.

    Writes nothing without ``repair``. Raises WorkspaceNotFound, WorkspaceTooNew, CatalogMismatch, CatalogError,
    StorageError.
    """
    progress = progress or NullProgress()
    if request.repair:
        _restore_config(request, progress)
    workspace = Workspace.open(request.workspace, request.storage_options)
    had_catalog = workspace.objects.head(CATALOG_RECORD) is not None
    with open_catalog(workspace, request.catalog_url or catalog_to_keep(workspace)) as opened:
        return _verify(workspace, opened, request, progress, had_catalog=had_catalog)


def _restore_config(request: VerifyRequest, progress: Progress) -> None:
    objects = ObjectStore.open(request.workspace, request.storage_options)
    if not config_is_lost(objects):
        return
    run_id = new_ulid()
    workspace_id = _id_of_memory(Workspace(objects, WorkspaceConfig()), request.catalog_url)
    progress.message(f"{CONFIG} was lost and has been rewritten")
    restore_config(objects, run_id, workspace_id)


def _id_of_memory(workspace: Workspace, catalog_url: str | None) -> str | None:
    """Return the previous id of a workspace whose configuration is lost: its memory catalog accepts no other id."""
    with suppress(CorruptFile):
        record = recorded(workspace)
        if record is not None:
            return record.workspace_id
    with open_catalog(workspace, catalog_url) as opened:
        if opened.error is not None:
            raise opened.error  # the catalog may contain the id
        return opened.catalog.belongs_to() if opened.catalog is not None else None


def _verify(
    workspace: Workspace, opened: OpenedCatalog, request: VerifyRequest, progress: Progress, *, had_catalog: bool
) -> VerifyReport:
    """Verify a workspace. ``had_catalog``: whether a catalog was recorded before ``opened`` was opened."""
    started, catalog = time.monotonic(), opened.catalog
    report = VerifyReport(new_ulid(), workspace.objects.uri)

    def skip(message: str) -> None:
        report.skipped.append(message)
        progress.message(message)

    def check() -> Verification:
        verification = verify(workspace, progress.phase, report.run_id)
        if catalog is not None:
            catalog.check(workspace.config.workspace_id)
        if catalog is None and not had_catalog and workspace.objects.head(CATALOG_RECORD) is not None:
            verification.busy.append("the memory")  # a memory store created it concurrently
            return verification
        problem = opened.problem(workspace)
        if problem is not None:
            verification.findings.append(Finding(FindingKind.CATALOG, "", CATALOG_RECORD, problem))
        elif catalog is not None:
            progress.phase("checking memory")
            verify_memory(workspace, catalog, verification)
        return verification

    if catalog is None and holds_memory(workspace):
        skip(f"Cannot check memory without its catalog: set {WHERE_CATALOGS_ARE_NAMED}")
    verification = check()
    before = len(verification.findings)
    if request.repair and verification.findings:
        workspace = Workspace.open_for_writing(request.workspace, request.storage_options)
        repair = _Repair(workspace, request, report.run_id, progress, skip, catalog)
        if repair.quarantine_damaged_files(verification):
            verification = check()
            before = max(before, len(verification.findings))
        repair.execute(verification)
        verification = check()
        verification.findings += repair.not_reindexed
        report.repaired = max(0, before - len(verification.findings))
    for name in verification.busy:
        skip(f"Skipped {name}: another run is working on it")
    report.documents, report.lines = verification.documents, verification.lines
    report.memory_entries = verification.memory_entries
    report.findings = verification.findings
    report.seconds = time.monotonic() - started
    return report


@dataclass(slots=True)
class _Repair:
    workspace: Workspace
    request: VerifyRequest
    run_id: str
    progress: Progress
    skip: Callable[[str], None]
    catalog: Catalog | None
    not_reindexed: list[Finding] = field(default_factory=list)

    def quarantine_damaged_files(self, verification: Verification) -> int:
        """Rename unreadable files of manifests and tables so that the rest can be read, and return their number."""
        count = 0
        for finding in verification.findings:
            if finding.kind is not FindingKind.UNREADABLE:
                continue
            entity = _source_of(verification, finding.entity)
            try:
                if finding.fingerprint:
                    tenant = Entity.of_directory(finding.entity)
                    count += quarantine_table(self.workspace, tenant, finding.fingerprint, self.run_id)
                elif entity is not None:
                    count += quarantine(self.workspace, entity, finding.path, self.run_id)
            except LeaseHeld as error:
                self.skip(str(error))
        return count

    def execute(self, verification: Verification) -> None:
        """Remove inconsistent documents and reindex their sources; rebuild search and memory indexes."""
        self._repair_memory([finding for finding in verification.findings if finding.kind in OF_MEMORY])
        damaged: dict[Entity, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        indexes: dict[str, set[str]] = defaultdict(set)
        for finding in verification.findings:
            entity = _source_of(verification, finding.entity)
            if finding.kind in OF_MEMORY:
                continue
            if finding.kind is FindingKind.INDEX:
                indexes[finding.entity].add(finding.path)
            elif finding.kind is FindingKind.BRANCH:
                self._drop_branch(finding)
            elif entity is None:
                self.skip(f"Not repaired, because the source no longer exists: {finding.entity}")
            elif finding.kind in OF_DOCUMENTS:
                damaged[entity][finding.fingerprint].add(finding.path)
            elif finding.kind is FindingKind.COMMIT_MARKER:
                damaged[entity][finding.fingerprint] |= set()
            elif finding.kind is FindingKind.STAGED:
                damaged[entity] |= {}
        for entity, paths in sorted(damaged.items()):
            self.progress.phase(f"repairing {entity}")
            if peek(self.workspace.objects, lease_path(entity)) != verification.leases[entity]:
                self.skip(f"Not repaired, because {entity} has changed since it was checked: verify again")
            else:
                self._repair_source(entity, paths)
        for tenant, names in indexes.items():
            try:
                repair_indexes(self.workspace, Entity.of_directory(tenant), sorted(names), self.run_id)
            except LeaseHeld as error:
                self.skip(str(error))

    def _repair_source(self, entity: Entity, damaged: Mapping[str, set[str]]) -> None:
        """Remove and reindex a source's ``damaged`` documents, or keep them if they cannot be read again."""
        removed = set[str]().union(*damaged.values())
        if removed and (why := self._why_unreadable(entity)) is not None:
            self.skip(f"Kept the inconsistent documents of {entity}: {why}")
            removed, damaged = set(), {fingerprint: set() for fingerprint in damaged}
        try:
            repair_source(self.workspace, entity, damaged, self.run_id)
        except LeaseHeld as error:
            self.skip(str(error))
        else:
            if removed:
                self._index(entity, removed)

    def _drop_branch(self, finding: Finding) -> None:
        """Delete a damaged branch; its next run takes a new snapshot."""
        entity = Entity.parse(finding.entity, self.workspace.config.hierarchy)
        try:
            delete_branch(self.workspace, entity, finding.path, self.run_id)
        except LeaseHeld as error:
            self.skip(str(error))
        else:
            self.skip(f"Deleted the branch {finding.path} of {entity}. Run: driftline index --branch {finding.path}")

    def _repair_memory(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            if finding.kind is FindingKind.CATALOG and not self._restore_catalog_record():
                self.skip(f"Not repaired, because {finding.detail}. {WAYS_BACK}")
            if finding.kind is FindingKind.BLOB:
                self.skip(f"Not repaired, because the value is lost: {finding.path!r} of {finding.entity}")
        for name in sorted({finding.entity for finding in findings if finding.kind is FindingKind.MEMORY_VECTORS}):
            self.skip(
                f"Not repaired, because the vectors of {name} require a model. Run: driftline memory rebuild {name}"
            )
        try:
            if self.catalog is not None:
                repair_memory(self.workspace, self.catalog, findings)
        except LeaseHeld as error:
            self.skip(str(error))

    def _restore_catalog_record(self) -> bool:
        """Rewrite a damaged catalog record. Return whether that was the problem, and not the catalog itself."""
        if self.catalog is None or not record_may_be_damaged(self.workspace, self.catalog):
            return False
        adopt(self.workspace, self.catalog)
        return True

    def _why_unreadable(self, entity: Entity) -> str | None:
        """Return why the documents of ``entity`` cannot be read again after removing them, or None if they can."""
        try:
            record = self.workspace.source(entity)
            if record is None:
                return f"the source's record is lost. Run: driftline index SOURCE --entity {entity}"
            if record.is_stored_by_program:
                return "only the program that stored them has their text, and must store them again"
            open_source(with_reference(record.uri, self.request.references), self.request.storage_options).close()
        except DriftlineError as error:
            return f"the source cannot be read ({error})"
        return None

    def _index(self, entity: Entity, removed: set[str]) -> None:
        """Index a source again. Add each ``removed`` document that it could not read to ``not_reindexed``."""
        record = self.workspace.source(entity)
        if record is None:  # removed since the repair released its lease
            return
        request = IndexRequest(
            sources=(record.uri,),
            workspace=self.request.workspace,
            entity=str(entity),
            storage_options=self.request.storage_options,
            references=self.request.references,
        )
        unread = dict[str, str]()
        try:
            for source in index_sources(request, self.progress, alone=True).sources:
                unread |= {path: str(reason) for path, reason in source.skipped if reason in PASSING}
        except DriftlineError as error:
            self.skip(
                f"Not reindexed, because the run over {entity} failed ({error}). Run: driftline index {record.uri}"
            )
            unread = dict.fromkeys(removed, str(error))
        self.not_reindexed += [
            Finding(FindingKind.NOT_REINDEXED, str(entity), path, unread[path])
            for path in sorted(removed.intersection(unread))
        ]


def _source_of(verification: Verification, name: str) -> Entity | None:
    return next((entity for entity in verification.leases if str(entity) == name), None)
