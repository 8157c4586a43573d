"""Find garbage: the tenants that may have it, then the objects that nothing refers to (DESIGN, "Cleanup").

Everything that may leave orphans holds a lease: index runs, compactions, branch deletions. Lease files are never
deleted, and each holder changes its file; a holder that fails leaves the lease held, or increments its failure count.
For each clean tenant, ``_cleanup.json`` records its leases as they were before the cleanup looked for garbage. While
these leases have only been held and released without failure since then, the tenant is still clean.

In all other tenants, a cleanup reads every reference before it deletes anything, or fails. Only objects with a name
that the layout defines can be orphans. All others are unrecognized: reported, never deleted.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import DeltaIndex, FileReader
from driftline.storage.deltas.manifest import parse_staged
from driftline.storage.entities import Entity
from driftline.storage.errors import AlreadyExists, CorruptFile, ObjectNotFound, PreconditionFailed
from driftline.storage.json_records import to_json
from driftline.storage.lance.lance_table import LanceTable
from driftline.storage.layout import (
    BASE,
    BRANCH,
    CLEANUP,
    CONFIG,
    SOURCE,
    ObjectInfo,
    ObjectKind,
    PathName,
    branch_of_lease,
    cut_at,
    is_tenant,
    leased_entity,
    parse_name,
    table_fingerprint,
)
from driftline.storage.leases.lease import LeaseStatus, peek
from driftline.storage.lines.commit_marker import CommitMarker
from driftline.storage.lines.definition_table import deep_tables
from driftline.storage.lines.line_table import LineTable
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.entry_queries import blob_references
from driftline.storage.memory.memory_indexes import MemoryIndex
from driftline.storage.memory.vectors import vector_tables
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel
from driftline.storage.workspace.records import FORMAT_VERSION, BranchRecord, parse_record, read_record
from driftline.storage.workspace.workspace import Workspace

FULL_EVERY = timedelta(days=7)
"""A cleanup lists everything if that last happened longer ago than this, which also finds garbage that left no trace.
"""
RUN_RETENTION = timedelta(days=90)
FIRST_TOKENS = 2
"""Lease tokens used by the first run on a branch: one to create the branch, one for the index run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A released lease: its ``version`` in a listing, its number of failed holders, and its branch's cut, if any."""

    version: str
    failures: int = 0
    cut: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupRecord:
    """The content of ``_cleanup.json``: when everything was last listed, and the leases of each clean tenant."""

    format_version: int = FORMAT_VERSION
    workspace_id: str
    models: tuple[str | None, ...]
    """The fingerprints of the current embedding models; a change makes tables superseded."""
    listed: datetime
    clean: Mapping[str, Mapping[str, LeaseState]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CleanTenants:
    """What leases reveal about garbage: ``candidates`` are the directories of the tenants that must be listed.

    ``leases`` contains the state of each tenant's leases, or None for a tenant that is in use or was abandoned.
    ``listed`` is the time of the last complete listing, or None if everything must be listed. ``version`` is the
    record's version, None if there is no record.
    """

    candidates: frozenset[str]
    leases: Mapping[str, Mapping[str, LeaseState] | None]
    listed: datetime | None
    version: str | None


def read_clean_tenants(workspace: Workspace, *, now: datetime, full: bool = False) -> CleanTenants:
    """Read the leases that changed since the last cleanup.

    Everything must be listed if ``full`` is set, if this workspace has no record, or after FULL_EVERY. Raises
    CorruptFile, WorkspaceTooNew, AccessDenied, StorageError.
    """
    objects = workspace.objects
    record, version = _read(workspace)
    expired = record is None or abs(now - record.listed) >= FULL_EVERY
    is_valid = record is not None and not (full or expired) and record.models == _models(workspace)
    known = record.clean if record is not None and is_valid else {}
    candidates: set[str] = set()
    leases: dict[str, Mapping[str, LeaseState] | None] = {}
    for tenant in filter(is_tenant, objects.list_dirs()):
        found = objects.list(f"{tenant}/_leases", recursive=False)
        states = _states(workspace, found, known.get(tenant, {}))
        whole = {path: state for path, state in states.items() if state is not None}
        leases[tenant] = whole if len(whole) == len(states) else None
        if tenant not in known or leases[tenant] is None or _tells_of_garbage(whole, known[tenant]):
            candidates.add(tenant)
    listed = None if full or expired or record is None else record.listed
    return CleanTenants(frozenset(candidates), leases, listed, version)


def _states(
    workspace: Workspace, listed: Iterable[ObjectInfo], known: Mapping[str, LeaseState]
) -> dict[str, LeaseState | None]:
    """Return the state of each lease, or None if it is held or was abandoned. Only changed leases are read."""
    infos = [info for info in listed if parse_name(info.path).kind in (ObjectKind.PERMANENT, ObjectKind.BRANCH_LEASE)]
    states: dict[str, LeaseState | None] = {
        info.path: known[info.path] for info in infos if info.path in known and known[info.path].version == info.version
    }
    changed = [info for info in infos if info.path not in states]
    read = workspace.map_parallel(lambda info: _state(workspace, info, known.get(info.path)), changed)
    return states | dict(zip((info.path for info in changed), read, strict=True))


def _state(workspace: Workspace, info: ObjectInfo, known: LeaseState | None) -> LeaseState | None:
    status = peek(workspace.objects, info.path)
    if not status.is_free or status.holder_died:
        return None
    failures = status.failures
    if parse_name(info.path).kind is not ObjectKind.BRANCH_LEASE:
        return LeaseState(version=info.version, failures=failures)
    record = read_record(workspace.objects, f"{branch_of_lease(info.path)}/{BRANCH}", BranchRecord)
    if record is None:
        # the lease of a deleted branch is itself garbage, and stays until the branch's other files are gone
        return None
    if known is None and status.token > FIRST_TOKENS:
        failures += 1  # the branch may have been created more than once
    return LeaseState(version=info.version, failures=failures, cut=record.cut)


def _tells_of_garbage(leases: Mapping[str, LeaseState], known: Mapping[str, LeaseState]) -> bool:
    new = LeaseState(version="")
    return any(
        state.failures != known.get(path, new).failures
        or (path in known and state.cut != known[path].cut)  # the former cut is deleted after its lease is released
        for path, state in leases.items()
    )


def write_clean_tenants(workspace: Workspace, known: CleanTenants, *, now: datetime, garbage: Iterable[str]) -> None:
    """Record each tenant that is not in ``garbage`` as clean, with its leases in ``known``.

    If another cleanup has since written a record, that record is kept. Raises StorageError.
    """
    left = {*garbage}
    clean = {tenant: leases for tenant, leases in known.leases.items() if leases is not None and tenant not in left}
    record = CleanupRecord(
        workspace_id=workspace.config.workspace_id,
        models=_models(workspace),
        listed=now if known.listed is None else known.listed,
        clean=clean,
    )
    objects, data = workspace.objects, to_json(record, compact=True)
    with suppress(AlreadyExists, PreconditionFailed):
        if known.version is None:
            objects.create(CLEANUP, data)
        else:
            objects.replace(CLEANUP, data, known.version)


def _models(workspace: Workspace) -> tuple[str | None, ...]:
    config = workspace.config
    return config.fingerprint, config.deep.fingerprint if config.deep else None


def tenants_with_other_models(workspace: Workspace, tables: Iterable[str]) -> set[str]:
    """Return the directories of tenants that have tables for models other than the current ones.

    A run that moves a tenant's last documents to the current model leaves no trace.
    """
    current = dict(zip(("line", "deep"), _models(workspace), strict=True))
    found: set[str] = set()
    for path in tables:
        tenant, _, name = path.partition("/_tables/")
        of_kinds = {kind: table_fingerprint(name, kind) for kind in current}
        if any(known is not None and known != current[kind] for kind, known in of_kinds.items()):
            found.add(tenant)
    return found


def _read(workspace: Workspace) -> tuple[CleanupRecord | None, str | None]:
    """Return this workspace's record and its file version. A damaged record is treated as missing, so everything is
    listed.
    """
    objects: ObjectStore = workspace.objects
    try:
        data, version = objects.get_versioned(CLEANUP)
    except ObjectNotFound:
        return None, None
    try:
        record = parse_record(objects, CLEANUP, data, CleanupRecord)
    except CorruptFile:
        return None, version
    return (record if record.workspace_id == workspace.config.workspace_id else None), version


class Reason(enum.StrEnum):
    """Why an object is an orphan."""

    FOLDED = "folded into the base"
    DEAD_RUN = "staged by a dead run and never committed"
    UNCOMMITTED = "belongs to no version of its table"
    SUPERSEDED = "table of a superseded embedding"
    EXPIRED = "run record beyond its retention"
    TEMPORARY = "left by a write that was killed"
    UNOWNED = "memory blob that no entry refers to"
    NO_BRANCH = "no longer belongs to a branch"


@dataclass(frozen=True, slots=True)
class References:
    """The references in a workspace. Objects not covered by these fields are not orphans.

    ``folded`` lists the deltas already folded into their base, and ``dead`` lists the staged deltas that can never be
    committed. ``tracked`` maps each table to the paths, relative to the table, that its versions refer to.
    ``superseded`` maps each unused embedding table to the time it was replaced. ``blobs`` contains the paths referenced
    by memory entries; None without a catalog. ``retired`` maps blobs to the time they lost their entry. ``cuts`` lists
    the cuts that contain branches, and ``branches`` lists the directories of existing or leased branches; both are None
    if they were not read.
    """

    folded: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()
    tracked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    superseded: Mapping[str, datetime] = field(default_factory=dict)
    blobs: frozenset[str] | None = None
    retired: Mapping[str, datetime] = field(default_factory=dict)
    cuts: frozenset[str] | None = None
    branches: frozenset[str] | None = None


class Orphan(NamedTuple):
    """An object that cleanup may delete."""

    path: str
    size_bytes: int
    age_seconds: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """``orphans`` in deletion order, and the sorted paths of ``foreign`` (unrecognized) objects."""

    orphans: tuple[Orphan, ...]
    foreign: tuple[str, ...]


def find_orphans(
    named: Sequence[tuple[ObjectInfo, PathName]],
    references: References,
    *,
    now: datetime,
    max_age: timedelta,
    run_retention: timedelta = RUN_RETENTION,
) -> GarbageReport:
    """Return the unreferenced objects of a listing that are at least ``max_age`` old.

    ``now`` is the current time by the store's clock. Run records expire after ``run_retention``, except each tenant's
    newest. A superseded table is deleted as a whole, ``max_age`` after both its last write and its replacement.
    """
    classifier = _Classifier.of(named, references, now, max_age, run_retention)
    orphans = []
    for info, name in named:
        reason = classifier.reason_of(info, name)
        if reason is not None:
            age = (now - info.modified).total_seconds()
            orphans.append((_deletion_order(name, reason), Orphan(info.path, info.size_bytes, age, reason)))
    orphans.sort(key=lambda pair: (pair[0], pair[1].path))
    foreign = sorted(info.path for info, name in named if name.kind is ObjectKind.FOREIGN)
    return GarbageReport(tuple(orphan for _, orphan in orphans), tuple(foreign))


@dataclass(frozen=True, slots=True)
class _Classifier:
    """Classify single objects by references, ages, and facts about the whole listing."""

    references: References
    now: datetime
    max_age: timedelta
    run_retention: timedelta
    newest_runs: frozenset[str]
    orphaned_tables: frozenset[str]
    orphaned_cuts: frozenset[str]

    @classmethod
    def of(
        cls,
        named: Sequence[tuple[ObjectInfo, PathName]],
        references: References,
        now: datetime,
        max_age: timedelta,
        run_retention: timedelta,
    ) -> _Classifier:
        """Create the classifier for a listing."""
        newest_run: dict[str, str] = {}
        newest_file: dict[str, datetime] = {}
        newest_of_cut: dict[str, datetime] = {}
        for info, name in named:
            if name.kind is ObjectKind.BRANCH and (cut := cut_at(info.path)) is not None:
                newest_of_cut[cut] = max(newest_of_cut.get(cut, info.modified), info.modified)
            if name.kind is ObjectKind.RUN:
                newest_run[name.directory] = max(newest_run.get(name.directory, ""), info.path)
            elif name.directory in references.superseded:
                newest_file[name.directory] = max(newest_file.get(name.directory, info.modified), info.modified)
        orphaned = frozenset(
            table
            for table, newest in newest_file.items()
            if min(now - newest, now - references.superseded[table]) >= max_age
        )
        dead = newest_of_cut.keys() - references.cuts if references.cuts is not None else set()
        cuts = frozenset(cut for cut in dead if now - newest_of_cut[cut] >= max_age)
        return cls(references, now, max_age, run_retention, frozenset(newest_run.values()), orphaned, cuts)

    def reason_of(self, info: ObjectInfo, name: PathName) -> Reason | None:
        """Return the reason why an object is an orphan, or None."""
        age = self.now - info.modified
        if name.directory in self.orphaned_tables:
            return Reason.SUPERSEDED
        if name.kind is ObjectKind.RUN:
            return Reason.EXPIRED if age >= self.run_retention and info.path not in self.newest_runs else None
        if age < self.max_age:
            return None
        references = self.references
        match name.kind:
            case ObjectKind.TEMPORARY:
                return Reason.TEMPORARY
            case ObjectKind.BRANCH if cut_at(info.path) in self.orphaned_cuts:
                return Reason.NO_BRANCH
            case ObjectKind.BRANCH if cut_at(info.path) is None and "/.tmp-" in info.path:
                return Reason.TEMPORARY
            case ObjectKind.BRANCH_LEASE if references.branches is not None:
                gone = branch_of_lease(info.path) not in references.branches
                return Reason.NO_BRANCH if gone else None
            case ObjectKind.DELTA if info.path in references.folded:
                return Reason.FOLDED
            case ObjectKind.STAGED if info.path in references.dead:
                return Reason.DEAD_RUN
            case ObjectKind.TABLE if (
                name.directory in references.tracked and name.rest not in references.tracked[name.directory]
            ):
                return Reason.UNCOMMITTED
            case ObjectKind.BLOB if references.blobs is not None and info.path not in references.blobs:
                since = references.retired.get(info.path, info.modified)
                retired_for = max(self.now - since, timedelta(0))  # the store's clock and the writer's may differ
                return Reason.UNOWNED if retired_for >= self.max_age else None
        return None


def _deletion_order(name: PathName, reason: Reason) -> int:
    """Return the position in the deletion order: in superseded tables, hint and versions go before their files."""
    if reason is Reason.NO_BRANCH and name.rest.startswith("_refs/"):
        return 0  # Lance must forget the branch before its files are deleted
    if reason is not Reason.SUPERSEDED:
        return 3
    return {ObjectKind.TABLE_HINT: 0, ObjectKind.VERSION: 1}.get(name.kind, 2)


NamesByKind = dict[ObjectKind, dict[str, list[str]]]

TABLE_ATTEMPTS = 3
"""Attempts to read a table that other processes may be writing or cleaning, before a file is treated as missing."""


@dataclass(frozen=True, slots=True)
class ReferenceScan:
    """All objects in a workspace and all references between them.

    ``committed`` contains the paths of staged deltas whose batch is committed but not yet published. ``leases`` were
    listed after ``listing``, so they include the lease of every listed file's writer.
    """

    listing: tuple[tuple[ObjectInfo, PathName], ...]
    references: References
    leases: dict[str, LeaseStatus]
    committed: frozenset[str]

    def sources_of(self, tenant: str) -> set[Entity]:
        """Return all past and present sources of the tenant in this directory, found by their lease files."""
        leased = (leased_entity(path) for path in self.leases if path.startswith(f"{tenant}/"))
        return {entity for purpose, entity in leased if purpose == "source"}


def scan_references(
    workspace: Workspace, catalog: Catalog | None = None, tenants: Set[str] | None = None
) -> ReferenceScan:
    """List ``workspace`` and read every reference in it; memory blob references need the ``catalog``.

    If ``tenants`` (their directories) is given, list only these tenants and the root, plus other tenants' blobs that
    the catalog retired. References never cross tenants.

    Raises CatalogError, CatalogMismatch, CorruptFile, WorkspaceTooNew, AccessDenied, StorageError.
    """
    objects = workspace.objects
    found = objects.list(temporary=True) if tenants is None else _below(objects, tenants)
    listing = tuple((info, parse_name(info.path)) for info in found)
    leases = _leases(workspace, listing)
    names_by_kind = _names_by_kind(workspace, listing)
    folded = _folded_deltas(workspace, names_by_kind)
    bound = next((info.modified for info, _ in listing if info.path == CONFIG), None)
    tracked, superseded = _tables(workspace, names_by_kind, bound)  # first, because it names missing files
    dead, committed = _staged_deltas(workspace, names_by_kind)
    blobs, retired = _memory(workspace, catalog) if catalog is not None else (None, {})
    if blobs is not None and tenants is not None:
        listing += _retired(objects, sorted(path for path in retired if path.partition("/")[0] not in tenants))
    cuts, branches = _branches(workspace, listing)
    references = References(folded, dead, tracked, superseded, blobs, retired, cuts, branches)
    return ReferenceScan(listing, references, leases, committed)


def _below(objects: ObjectStore, tenants: Set[str]) -> Iterator[ObjectInfo]:
    yield from objects.list(recursive=False, temporary=True)
    for tenant in sorted(tenants):
        yield from objects.list(tenant, temporary=True)


def _retired(objects: ObjectStore, paths: Sequence[str]) -> tuple[tuple[ObjectInfo, PathName], ...]:
    found = in_parallel(objects.head, paths, objects.requests_at_once)
    return tuple((info, parse_name(info.path)) for info in found if info is not None)


def _leases(workspace: Workspace, listing: Sequence[tuple[ObjectInfo, PathName]]) -> dict[str, LeaseStatus]:
    objects = workspace.objects
    roots = {info.path.partition("/")[0] for info, _ in listing if "/" in info.path}
    listed = workspace.map_parallel(lambda root: [*objects.list(f"{root}/_leases", recursive=False)], sorted(roots))
    paths = [info.path for infos in listed for info in infos if parse_name(info.path).kind is ObjectKind.PERMANENT]
    return dict(zip(paths, workspace.map_parallel(partial(peek, objects), paths), strict=True))


def _branches(
    workspace: Workspace, listing: Sequence[tuple[ObjectInfo, PathName]]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the cuts referenced by branch records, and the directories of existing or leased branches.

    Read after the listing, so every listed file in use belongs to a recorded cut, or is recent.
    """
    objects = workspace.objects
    paths = [info.path for info, name in listing if name.kind is ObjectKind.BRANCH and info.path.endswith(f"/{BRANCH}")]
    read = workspace.map_parallel(lambda path: read_record(objects, path, BranchRecord), paths)
    records = {path.rpartition("/")[0]: record for path, record in zip(paths, read, strict=True) if record is not None}
    leases = {branch_of_lease(info.path): info.path for info, name in listing if name.kind is ObjectKind.BRANCH_LEASE}
    held = (branch for branch, path in leases.items() if branch not in records and not peek(objects, path).is_free)
    return frozenset(record.cut for record in records.values()), frozenset({*records, *held})


def _names_by_kind(workspace: Workspace, listing: Sequence[tuple[ObjectInfo, PathName]]) -> NamesByKind:
    """Group names by kind and folder. Raises CorruptFile if a table version is empty or a source record is damaged."""
    names_by_kind: NamesByKind = defaultdict(lambda: defaultdict(list))
    for info, name in listing:
        names_by_kind[name.kind][name.directory].append(name.rest)
        if name.kind is ObjectKind.VERSION and info.size_bytes == 0:  # Lance's own error does not name the file
            raise CorruptFile("A version of a table is empty", f"{workspace.objects.uri}/{info.path}", "Restore it.")
    sources = (name.directory for _, name in listing if name.kind is ObjectKind.PERMANENT and name.rest == SOURCE)
    for _ in workspace.map_parallel(lambda directory: workspace.source(Entity.of_directory(directory)), sources):
        pass
    return names_by_kind


def _folded_deltas(workspace: Workspace, names_by_kind: NamesByKind) -> frozenset[str]:
    """Return the paths of document and memory deltas that are already folded into their base."""
    files: list[tuple[DeltaIndex, str]] = []
    for directory in sorted({*names_by_kind[ObjectKind.BASE], *names_by_kind[ObjectKind.DELTA]}):
        names = [*names_by_kind[ObjectKind.BASE][directory], *names_by_kind[ObjectKind.DELTA][directory]]
        entity = Entity.of_directory(directory)
        index: DeltaIndex = workspace.manifest(entity)
        if entity.type != workspace.config.hierarchy[-1]:
            index = MemoryIndex(workspace.objects, directory)
            names = [name for name in names if name == BASE]  # memory deltas have no references
        files += ((index, name) for name in names)
    read = workspace.map_parallel(_folded, files)
    return frozenset(
        f"{index.directory}/{name}" for (index, _), folded in zip(files, read, strict=True) for name in folded
    )


def _staged_deltas(workspace: Workspace, names_by_kind: NamesByKind) -> tuple[frozenset[str], frozenset[str]]:
    """Return the paths of staged deltas as ``(dead, committed)``; dead deltas can never be committed."""

    def of_source(directory: str) -> tuple[set[str], set[str]]:
        entity, staged = Entity.of_directory(directory), names_by_kind[ObjectKind.STAGED][directory]
        markers = [_marker(table, entity) for table in workspace.line_tables(entity) if table.exists()]
        for name in staged:
            _folded((workspace.manifest(entity), name))
        in_marker = {name for name in staged if any(marker.holds(parse_staged(name)) for marker in markers)}
        paths = {f"{directory}/{name}" for name in staged if name not in in_marker}
        return paths, {f"{directory}/{name}" for name in in_marker}

    found = [*workspace.map_parallel(of_source, [*names_by_kind[ObjectKind.STAGED]])]
    dead, committed = (frozenset(path for each in found for path in each[at]) for at in (0, 1))
    return dead, committed


def _tables(
    workspace: Workspace, names_by_kind: NamesByKind, bound: datetime | None
) -> tuple[dict[str, frozenset[str]], dict[str, datetime]]:
    """Return ``(tracked, superseded)`` for all tables; ``bound`` is the time the current embedding was bound."""
    tracked: dict[str, frozenset[str]] = {}
    superseded: dict[str, datetime] = {}
    current = workspace.config.fingerprint
    sources: dict[Entity, list[Entity]] = defaultdict(list)
    for entity in map(Entity.of_directory, {*names_by_kind[ObjectKind.BASE], *names_by_kind[ObjectKind.DELTA]}):
        if entity.type == workspace.config.hierarchy[-1]:
            sources[entity.tenant].append(entity)
    for tenant in _tenants(names_by_kind):
        line_tables = {table.path: table for table in workspace.line_tables(tenant)}
        deep = deep_tables(workspace.objects, tenant)
        every: list[LanceTable] = [*line_tables.values(), *vector_tables(workspace.objects, tenant), *deep]
        for table in every:
            tracked[table.path] = _tracked(workspace, table, _in_table(names_by_kind, table.path))
        if bound is not None:
            serving_deep = workspace.config.deep.fingerprint if workspace.config.deep else None
            superseded |= {table.path: bound for table in deep if table.fingerprint != serving_deep}
        others = [path for path, table in line_tables.items() if table.fingerprint != current]
        if others and bound is not None and current is not None:
            serving = _fingerprints(workspace, sources[tenant])
            superseded |= {path: bound for path in others if line_tables[path].fingerprint not in serving}
    return tracked, superseded


def _tenants(names_by_kind: NamesByKind) -> list[Entity]:
    tables = {
        directory
        for kind in (ObjectKind.TABLE, ObjectKind.VERSION, ObjectKind.TABLE_HINT)
        for directory in names_by_kind[kind]
    }
    return [Entity.of_directory(tenant) for tenant in sorted({table.partition("/")[0] for table in tables})]


def _in_table(names_by_kind: NamesByKind, path: str) -> set[str]:
    return {*names_by_kind[ObjectKind.TABLE][path], *names_by_kind[ObjectKind.VERSION][path]}


def _folded(file: tuple[DeltaIndex, str]) -> tuple[str, ...]:
    """Return the deltas already folded into a ``file`` of an index, if it is the base. Verifies the file's footer."""
    index, name = file
    try:
        with FileReader(index.objects, f"{index.directory}/{name}", index.layout) as reader:
            return reader.footer.folded if name == BASE else ()
    except ObjectNotFound:
        if name == BASE:
            raise
        return ()  # since the listing, a compaction folded it or a run published it


def _memory(workspace: Workspace, catalog: Catalog) -> tuple[frozenset[str], dict[str, datetime]]:
    """Return the entries' blobs and the retired blobs; read after the listing so that no live blob is missed."""
    catalog.check(workspace.config.workspace_id)
    return catalog.read(blob_references)


def _tracked(workspace: Workspace, table: LanceTable, present: set[str]) -> frozenset[str]:
    """Return the paths, relative to ``table``, that its versions refer to; each must be ``present`` in the listing.

    This also checks that Lance and the listing write paths the same way; otherwise, every file would look like an
    orphan.
    """
    for _ in range(TABLE_ATTEMPTS):
        tracked = table.tracked_files() if table.exists() else frozenset()
        # Lance removes the transaction file of the version that a branch was created from, and keeps the rest.
        missing = {path for path in tracked - present if not path.startswith("_transactions/")}
        if not missing:
            return tracked
        root = f"{table.path}/"
        present = {info.path.removeprefix(root) for info in workspace.objects.list(table.path)}
    raise CorruptFile(
        f"The table refers to {len(missing)} missing files, such as {min(missing)}",
        table.uri,
        "Run: driftline verify",
    )


def _marker(table: LineTable, entity: Entity) -> CommitMarker:
    try:
        return table.commit_marker(entity)
    except (ValueError, OSError) as error:
        raise CorruptFile(f"Cannot read a table ({str(error)[:300]})", table.uri, "Run: driftline verify") from error


def _fingerprints(workspace: Workspace, sources: Sequence[Entity]) -> set[Any]:
    """Return the fingerprints of all embeddings that the documents of ``sources`` are indexed with."""

    def of_source(entity: Entity) -> list[Any]:
        manifest = workspace.manifest(entity).read(columns=["fingerprint", "reason"])
        return list(pc.unique(manifest.filter(pc.is_null(manifest["reason"]))["fingerprint"]).to_pylist())

    return {fingerprint for found in workspace.map_parallel(of_source, sources) for fingerprint in found}
