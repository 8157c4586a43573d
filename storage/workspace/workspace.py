"""Open a workspace: the URI where Driftline stores everything, its configuration, sources, statistics and leases.

The tokens of a source's lease keep increasing even if the lease file is lost (DESIGN, "Leases").
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from driftline.storage.embedding import DeepModel
from driftline.storage.entities import Boundary, Entity, decode_id
from driftline.storage.errors import (
    AlreadyExists,
    CorruptFile,
    FingerprintMismatch,
    LeaseLost,
    ObjectNotFound,
    UsageError,
    WorkspaceNotFound,
)
from driftline.storage.json_records import to_json
from driftline.storage.lance.lance_table import VECTOR
from driftline.storage.layout import (
    BRANCH,
    CONFIG,
    GITIGNORE,
    SOURCE,
    branch_directory,
    branch_lease_path,
    branches_directory,
    lease_path,
    table_fingerprint,
    tables_directory,
)
from driftline.storage.lines.definition_table import DeepTable
from driftline.storage.lines.line_table import LineTable
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel
from driftline.storage.sources.access import LOCAL, SourceAccess, only_owner_reads
from driftline.storage.workspace.early_reads import EarlyReads, tenants_in
from driftline.storage.workspace.records import (
    BranchRecord,
    DeepRecord,
    RunHistory,
    SourceRecord,
    WorkspaceConfig,
    WorkspaceStats,
    parse_record,
    read_copy_record,
    read_record,
    update_record,
    whole_run,
)

if TYPE_CHECKING:  # a search loads neither
    from driftline.storage.deltas.manifest import Manifest
    from driftline.storage.leases.lease import Lease
    from driftline.storage.lines.table_searcher import TableSearcher

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")
_RESTORE = "Run 'driftline verify --repair'."

log = logging.getLogger(__name__)


def collect(
    workspace: Workspace, sources: Sequence[tuple[Entity, SourceRecord]], tenants: Sequence[Entity]
) -> WorkspaceStats:
    """Collect statistics from manifests, tables and the run history; needs only read access."""
    from driftline.storage.deltas.manifest import totals

    objects, config = workspace.objects, workspace.config

    def count(source: tuple[Entity, SourceRecord]) -> tuple[dict[str, Any], int]:
        entity, record = source
        manifest = workspace.manifest(entity)
        indexed, lines = totals(manifest.read(columns=["lines", "reason"]))
        row = {"entity": str(entity), "uri": record.uri, "documents": indexed, "lines": lines}
        return row, len(manifest.log().deltas)

    counted = list(workspace.map_parallel(count, sources))
    index_types = set()
    if config.fingerprint is not None:
        tables = [LineTable(objects, tenant, config.fingerprint) for tenant in tenants]
        known = (index for table in tables if table.exists() for index in table.open().describe_indices())
        index_types = {index.index_type for index in known if index.name == VECTOR}
    runs = [run for run in workspace.map_parallel(lambda tenant: RunHistory(objects, tenant).last(), tenants) if run]
    newest = max((run.run_id for run in runs), default=None)
    last = whole_run([run for run in runs if run.run_id == newest]) if runs else None
    return WorkspaceStats(
        workspace=objects.uri,
        total_documents=sum(row["documents"] for row, _ in counted),
        total_lines=sum(row["lines"] for row, _ in counted),
        has_index=bool(index_types),
        index_type=min(index_types, default=None),
        model=config.model,
        sources=tuple(row for row, _ in counted),
        deltas=sum(deltas for _, deltas in counted),
        last_run={each.name: getattr(last, each.name) for each in fields(last) if each.name != "format_version"}
        if last
        else None,
    )


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a source, held by ``cut``. Picklable."""

    entity: Entity
    name: str
    cut: str

    @property
    def directory(self) -> str:
        return branch_directory(self.entity, self.name)

    @property
    def record_path(self) -> str:
        return f"{self.directory}/{BRANCH}"

    @property
    def index_directory(self) -> str:
        """The directory of the branch's manifest."""
        return f"{self.directory}/{self.cut}"


def check_is_folder(objects: ObjectStore) -> None:
    """Raise WorkspaceNotFound if a file is at the place of a workspace."""
    if objects.is_local and os.path.isfile(objects.uri):
        raise WorkspaceNotFound("A workspace is a folder, not a file", objects.uri, "Specify the folder.")


@dataclass(frozen=True, slots=True)
class Workspace:
    """An open workspace. Picklable. Opening and reading need only read access.

    ``on`` returns a view of the workspace in which some sources are on branches.
    """

    objects: ObjectStore
    config: WorkspaceConfig
    access: SourceAccess = LOCAL
    branches: Mapping[Entity, Branch] = field(default_factory=dict)
    early: EarlyReads = field(default_factory=EarlyReads, repr=False, compare=False)

    def on(self, branches: Iterable[Branch]) -> Workspace:
        """Return the workspace with sources on ``branches``, one per source, and all others on the main index."""
        return replace(self, branches={branch.entity: branch for branch in branches})

    def branch_of(self, entity: Entity) -> Branch | None:
        """Return the source's branch that this workspace is on, if any."""
        return self.branches.get(entity)

    def lease_of(self, entity: Entity) -> str:
        """Return the path of the lease on a source, or on its branch."""
        branch = self.branch_of(entity)
        return branch_lease_path(entity, branch.name) if branch else lease_path(entity)

    def table_owner(self, entity: Entity) -> Entity:
        """Return the owner to pass to ``lines`` for a source's table: its tenant or, on a branch, the source itself."""
        return entity if self.branch_of(entity) else entity.tenant

    def maintenance_lease_of(self, owner: Entity) -> str:
        """Return the path of the lease that guards index changes in the table ``lines(owner)``."""
        return self.lease_of(owner) if self.branch_of(owner) else lease_path(owner.tenant, "maintenance")

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        access: SourceAccess | None = None,
    ) -> Workspace:
        """Open an existing workspace; readers may read the sources within ``access``, by default only local ones.

        Raises WorkspaceNotFound, WorkspaceTooNew, CorruptFile, AccessDenied.
        """
        return cls.read_from(ObjectStore.open(uri, storage_options), access)

    @classmethod
    def read_from(
        cls, objects: ObjectStore, access: SourceAccess | None = None, early: EarlyReads | None = None
    ) -> Workspace:
        """Like ``open``, for an open store, whose ``early`` reads may have begun."""
        return cls(objects, WorkspaceConfig(), access or LOCAL, early=early or EarlyReads()).reread()

    def reread(self) -> Workspace:
        """Return the workspace with its current configuration.

        Raises WorkspaceNotFound, WorkspaceTooNew, CorruptFile, AccessDenied.
        """
        data = self.early.take_config()
        known = parse_record(self.objects, CONFIG, data, WorkspaceConfig) if data else None
        config = known or read_record(self.objects, CONFIG, WorkspaceConfig)
        if config is None:
            if self.tenants():
                raise CorruptFile("A workspace file is missing", f"{self.objects.uri}/{CONFIG}", _RESTORE)
            check_is_folder(self.objects)
            raise WorkspaceNotFound("No workspace exists here", self.objects.uri, "Index a source into it first.")
        return replace(self, config=config)

    @classmethod
    def open_for_writing(
        cls, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
    ) -> Workspace:
        """Open a workspace, or create it.

        Raises UnsafeStore, UnknownScheme, UsageError, WorkspaceTooNew, CorruptFile, AccessDenied, StorageError.
        """
        return cls.prepare(ObjectStore.open(uri, storage_options))

    @classmethod
    def prepare(cls, objects: ObjectStore, folders: Iterable[str] = ()) -> Workspace:
        """Like ``open_for_writing``, for an open store.

        Only its owner can read a new workspace if only the owner can read one of ``folders``, its first sources.
        """
        config = read_record(objects, CONFIG, WorkspaceConfig)
        if (copied := read_copy_record(objects)) is not None:
            raise UsageError("Cannot write to a copy", objects.uri, f"Write to {copied.origin}, then pull again.")
        if not objects.is_local:
            objects.probe_conditional_writes()
        if config is not None:
            return cls(objects, config)
        check_is_folder(objects)
        new = WorkspaceConfig()
        if cls(objects, new).tenants():  # a new id would lock out memory and cleanup
            raise CorruptFile("A workspace file is missing", f"{objects.uri}/{CONFIG}", _RESTORE)
        if any(map(only_owner_reads, folders)):
            objects.make_private()
        try:
            if objects.is_local:
                objects.create(GITIGNORE, b"*\n")  # keeps a workspace inside a working tree out of its commits
        except AlreadyExists:
            pass
        try:
            objects.create(CONFIG, to_json(new))
        except AlreadyExists:
            return cls(objects, new).reread()
        return cls(objects, new)

    # -- the current embedding ---------------------------------------------------------------

    def bind_model(self, model: str, fingerprint: str, dim: int, *, instead_of: str | None = None) -> Workspace:
        """Replace the current fingerprint ``instead_of`` with ``fingerprint``; idempotent.

        Raises FingerprintMismatch if the workspace has some other fingerprint.
        """

        def bound(current: WorkspaceConfig) -> WorkspaceConfig:
            if current.fingerprint == fingerprint and current.model is not None:
                return current
            if current.fingerprint not in (instead_of, fingerprint):
                raise fingerprint_mismatch(self.objects.uri, current, model)
            return replace(current, model=model, fingerprint=fingerprint, dim=dim)

        return replace(self, config=update_record(self.objects, CONFIG, WorkspaceConfig, bound))

    def bind_deep(self, model: DeepModel | None) -> Workspace:
        """Switch to the definitions embedded by ``model``; None means no definition embeddings. Idempotent."""
        record = DeepRecord(model=model.name, fingerprint=model.fingerprint, dim=model.dim) if model else None
        bound = update_record(self.objects, CONFIG, WorkspaceConfig, lambda current: replace(current, deep=record))
        return replace(self, config=bound)

    @property
    def deep_model(self) -> DeepModel | None:
        """The transformer that produced the current definition embeddings."""
        known = self.config.deep
        return DeepModel(known.model, known.fingerprint, known.dim) if known else None

    def deep(self, owner: Entity, model: DeepModel) -> DeepTable:
        """Return the tenant's definition table for ``model``; it may not exist yet."""
        return DeepTable(self.objects, owner.tenant, model.fingerprint)

    def has_branches(self, entity: Entity) -> bool:
        """Return whether a source has any branches."""
        return bool(self.objects.list_dirs(branches_directory(entity)))

    def lines(self, owner: Entity, fingerprint: str | None = None) -> LineTable:
        """Return the tenant's line table for ``fingerprint``, by default the current one; it may not exist yet.

        ``owner`` is the tenant or one of its sources; a source on a branch has a branch of the table. Raises
        WorkspaceNotFound if no run has chosen a model yet.
        """
        selected = fingerprint or self.config.fingerprint
        if selected is None:
            raise WorkspaceNotFound("Nothing has been indexed here yet", self.objects.uri, "Index a source first.")
        branch = self.branch_of(owner)
        return LineTable(self.objects, owner.tenant, selected, branch.cut if branch else None)

    def line_tables(self, tenant: Entity) -> list[LineTable]:
        """Return all of the tenant's line tables: the current one, and tables under construction or superseded.

        A branch has only one table.
        """
        if self.branch_of(tenant):
            return [self.lines(tenant)]
        names = self.objects.list_dirs(tables_directory(tenant))
        fingerprints = (table_fingerprint(name, LineTable.KIND) for name in names)
        return [LineTable(self.objects, tenant.tenant, fingerprint) for fingerprint in fingerprints if fingerprint]

    def stats(self, within: Boundary | None = None) -> WorkspaceStats:
        """Return the statistics of the workspace, or of the sources ``within`` a boundary.

        Statistics for a boundary have no last run, because a run also reports on other sources.
        """
        tenants = [tenant for tenant in self.tenants() if within is None or tenant in within.tenants]
        stats = collect(self, list(self.readable_sources(within)), tenants)
        return stats if within is None else replace(stats, last_run=None)

    # -- sources -----------------------------------------------------------------------------

    def manifest(self, entity: Entity) -> Manifest:
        """Return a source's manifest."""
        from driftline.storage.deltas.manifest import Manifest

        branch = self.branch_of(entity)
        return Manifest(self.objects, entity, branch.index_directory if branch else None)

    def source(self, entity: Entity) -> SourceRecord | None:
        """Return a source's record, or None. Raises CorruptFile, WorkspaceTooNew."""
        branch = self.branch_of(entity)
        if branch is not None:
            cut = read_record(self.objects, branch.record_path, BranchRecord)
            return self._seen_from_here(cut.source) if cut is not None else None
        known = read_record(self.objects, f"{entity.directory}/{SOURCE}", SourceRecord)
        return self._seen_from_here(known) if known is not None else None

    def _seen_from_here(self, record: SourceRecord) -> SourceRecord:
        """Return ``record`` with its source's current location: the source may have moved, along with its index."""
        here = self.local_path
        if here is None or here == record.workspace or record.workspace is None:
            return record
        # The copy may be anywhere, so source locations are relative to the original.
        return record if read_copy_record(self.objects) is not None else record.seen_from(here)

    @property
    def local_path(self) -> str | None:
        """The real path, if the workspace is on a local disk."""
        return os.path.realpath(self.objects.uri) if self.objects.is_local else None

    def readable_source(self, entity: Entity) -> SourceRecord | None:
        """Return a source's record, or None. A damaged record is skipped with a warning.

        The next run replaces it.
        """
        try:
            return self.source(entity)
        except CorruptFile as error:
            log.warning("Skipped the damaged record of %s: %s", entity, error)
            return None

    def bind_source(self, entity: Entity, record: SourceRecord) -> None:
        """Create or replace a source's record. The caller holds the source's lease."""
        record = replace(record, workspace=self.local_path)
        branch = self.branch_of(entity)
        if branch is not None:
            self._change_branch(branch, {"source": record})
            return
        path = f"{entity.directory}/{SOURCE}"
        data = to_json(record)
        try:
            before, version = self.objects.get_versioned(path)
        except ObjectNotFound:
            self.objects.create(path, data)
            return
        if before != data:
            self.objects.replace(path, data, version)

    def _change_branch(self, branch: Branch, fields: Mapping[str, Any]) -> None:
        """Change ``fields`` of a branch's record. Raises LeaseLost if the branch has a different cut by now."""
        data, version = self.objects.get_versioned(branch.record_path)
        known = parse_record(self.objects, branch.record_path, data, BranchRecord)
        if known.cut != branch.cut:
            fix = "Run the command again."
            raise LeaseLost("Another run recreated this branch", f"{self.objects.uri}/{branch.record_path}", fix)
        changed = replace(known, **fields)
        if changed != known:
            self.objects.replace(branch.record_path, to_json(changed), version)

    def note_branch(self, entity: Entity, build: int | None, own_commit: str | None) -> None:
        """Record that a run updated a source's branch, the number of its build, and its commit, if any."""
        branch = self.branch_of(entity)
        if branch is not None:
            noted = {"build": build, "own_commit": own_commit}
            noted = {name: value for name, value in noted.items() if value is not None}
            self._change_branch(branch, {"updated": datetime.now(UTC), **noted})

    def unbind_source(self, entity: Entity) -> None:
        """Delete a source's record. The caller holds its lease and has removed its documents."""
        self.objects.delete([f"{entity.directory}/{SOURCE}"])

    def tenants(self) -> list[Entity]:
        """Return all tenants, sorted; the first level may have any type, because memory may have its own levels."""
        names = self.early.take_names()
        return tenants_in(self.objects.list_dirs() if names is None else names)

    def open_ahead(self, read: Callable[[TableSearcher], None]) -> None:
        """Start opening the main indexes' tables, if the workspace was opened for a search; see ``EarlyReads.open``."""
        early = self.early
        if early.opens_tables and early.names is not None and self.config.fingerprint is not None and not self.branches:
            early.open(map(self.lines, tenants_in(early.names.result())), read)

    def sources(self, below: Entity | None = None) -> Iterator[tuple[Entity, SourceRecord]]:
        """Yield the sources at or below an entity (default: all) and their records, sorted."""
        return self._known(self.source, below)

    def readable_sources(self, below: Entity | Boundary | None = None) -> Iterator[tuple[Entity, SourceRecord]]:
        """Like ``sources``, for readers: skips sources with damaged records."""
        return self._known(self.readable_source, below)

    def _known(
        self, read: Callable[[Entity], SourceRecord | None], below: Entity | Boundary | None
    ) -> Iterator[tuple[Entity, SourceRecord]]:
        entities = self.entities(below)
        for entity, record in zip(entities, self.map_parallel(read, entities), strict=True):
            if record is not None:
                yield entity, record

    def map_parallel(self, read: Callable[[_Item], _Read], items: Iterable[_Item]) -> Iterator[_Read]:
        """Yield the result of ``read`` for each item, in order; in parallel for a bucket, where each read is slow."""
        return in_parallel(read, items, self.objects.requests_at_once)

    def entities(self, below: Entity | Boundary | None = None) -> list[Entity]:
        """Return all entities that have a directory at the source level, with or without a source record, sorted."""
        if isinstance(below, Boundary):
            return sorted((entity for top in below.tops for entity in self.entities(top)), key=str)
        start = below or Entity(())
        levels = self.config.hierarchy[len(start.parts) :]
        nodes = [start]
        for level in levels:
            nodes = [child for found in self.map_parallel(partial(self._children, level), nodes) for child in found]
        return nodes

    def _children(self, level: str, parent: Entity) -> list[Entity]:
        names = self.objects.list_dirs(parent.directory)
        ids = (decode_id(name.partition(":")[2]) for name in names if name.startswith(f"{level}:"))
        return [Entity((*parent.parts, (level, each))) for each in ids]


def fingerprint_mismatch(where: str, current: WorkspaceConfig, model: str) -> FingerprintMismatch:
    """Return the error that prevents mixing the vectors of two models."""
    return FingerprintMismatch(
        f"This workspace was embedded with {current.model} (fingerprint {current.fingerprint}), not with {model}",
        where,
        "Use the same model, or embed everything again: driftline index (or fleet sync) --reembed",
    )


def acquire_source(
    workspace: Workspace,
    entity: Entity,
    run_id: str,
    *,
    wait_seconds: float = 0.0,
    marker_token: Callable[[Entity], int] | None = None,
) -> Lease:
    """Acquire the lease on ``entity``, or on its branch; see ``acquire``.

    Pass the result of ``marker_tokens`` as ``marker_token`` if several leases are acquired. Raises LeaseHeld, LeaseLost
    if the branch has a different cut by now, CorruptFile, WorkspaceTooNew, StorageError.
    """
    from driftline.storage.leases.lease import acquire

    branch = workspace.branch_of(entity)
    lease = acquire(
        workspace.objects,
        workspace.lease_of(entity),
        run_id,
        wait_seconds=wait_seconds,
        known_token=lambda: _known_token(workspace, entity, marker_token or marker_tokens(workspace, [entity])),
        at_least=_record(workspace, branch).token if branch else 0,
    )
    if branch is not None:
        try:
            _record(workspace, branch)
        except BaseException:
            lease.release()
            raise
    return lease


def _record(workspace: Workspace, branch: Branch) -> BranchRecord:
    """Return the record of the cut that contains ``branch``. Raises LeaseLost if that cut no longer exists."""
    record = read_record(workspace.objects, branch.record_path, BranchRecord)
    if record is None or record.cut != branch.cut:
        where = f"{workspace.objects.uri}/{branch.record_path}"
        raise LeaseLost("Another run deleted or recreated this branch", where, "Run the command again.")
    return record


def marker_tokens(workspace: Workspace, entities: Sequence[Entity]) -> Callable[[Entity], int]:
    """Return a function that maps a source to the highest token in its commit markers, 0 for a new source.

    On the first call for a table, it reads the markers of all ``entities`` there, because finding one takes
    milliseconds. They stay valid while the sources' lease files are missing: nobody commits without one.
    """
    known: dict[Entity, int] = {}

    def token(entity: Entity) -> int:
        if entity not in known:
            owner = workspace.table_owner(entity)
            sharing = [each for each in {*entities, entity} if workspace.table_owner(each) == owner]
            found = dict.fromkeys(sharing, 0)
            # The first run of another source may have written fragments before the table has a version.
            for table in (each for each in workspace.line_tables(entity) if each.exists()):
                for each, marker in table.commit_markers(sharing).items():
                    found[each] = max(found[each], marker.token)
            known.update(found)  # only now, so that the next source retries a failed read
        return known[entity]

    return token


def _known_token(workspace: Workspace, entity: Entity, marker_token: Callable[[Entity], int]) -> int:
    """Return the highest token in the commit markers and the manifest; 0 for a new source."""
    from driftline.storage.deltas.manifest import token_of

    token = marker_token(entity)
    with contextlib.suppress(CorruptFile):  # a repair renames the damaged file under this lease
        token = max(token, token_of(workspace.manifest(entity).max_rev()))
    return token
