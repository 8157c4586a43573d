"""Verify memory: compare blobs, indexes and vectors with the catalog, which is the source of truth."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile
from driftline.storage.lance.reader_process import survived
from driftline.storage.layout import Kind, parse_name
from driftline.storage.memory import maintenance as memory_maintenance
from driftline.storage.memory.catalog import entity_tree, outbox
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.memory_indexes import MemoryIndex
from driftline.storage.memory.vectors import vector_tables
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.verify_documents import Finding, FindingKind, Verification

READ_THREADS = 16
EVER = datetime(1, 1, 1, tzinfo=UTC)
"""A time before any expiry."""
_KEYS_IN_A_DETAIL = 3


@dataclass(frozen=True, slots=True)
class _CatalogEntries:
    """The entries of a tenant in the catalog, sorted by the directory of their owner."""

    paths: list[str]
    rows: list[tuple[str, str, str]]
    """``(key, directory of the owner, content hash)`` of each entry, in the order of ``paths``."""

    def at_or_below(self, directory: str) -> Iterator[tuple[str, str, str]]:
        yield from self.rows[bisect_left(self.paths, directory) : bisect_right(self.paths, directory)]
        # "0" follows "/": the range between them holds the descendants, but no sibling such as project:a-b.
        yield from self.rows[bisect_left(self.paths, f"{directory}/") : bisect_left(self.paths, f"{directory}0")]


def verify_memory(workspace: Workspace, catalog: Catalog, verification: Verification) -> None:
    """Add the findings in the memory of each tenant to ``verification``; skip a tenant that changes during the check.

    Raises CatalogMismatch, CatalogError, StorageError.
    """
    catalog.check(workspace.config.workspace_id)
    for tenant in catalog.read(entity_tree.all_tenants):
        rev = partial(entity_tree.rev_of, tenant=tenant)
        before = catalog.read(rev)
        findings, entries = _check(workspace, catalog, tenant)
        if catalog.read(rev) != before:
            verification.busy.append(f"memory of {tenant}")
            continue
        verification.memory_entries += entries
        verification.findings += findings


def repair_memory(workspace: Workspace, catalog: Catalog, findings: Sequence[Finding]) -> None:
    """Rebuild the indexes of ``findings`` from the catalog. Raises LeaseHeld, possibly after rebuilding some."""
    wrong: dict[str, list[Entity]] = defaultdict(list)
    for finding in findings:
        if finding.kind is FindingKind.MEMORY_INDEX:
            wrong[finding.entity].append(Entity.of_directory(finding.path))
    for tenant, entities in wrong.items():
        memory_maintenance.rebuild_indexes(
            catalog, workspace, Entity.of_directory(tenant), entities, lambda: datetime.now(UTC)
        )


def _check(workspace: Workspace, catalog: Catalog, tenant: Entity) -> tuple[list[Finding], int]:
    waiting = frozenset(catalog.read(lambda connection: outbox.keys(connection, tenant)))
    rows = [row for page in memory_maintenance.pages(catalog, tenant, EVER) for row in page]
    now = datetime.now(UTC)
    alive = [row for row in rows if row.expires is None or row.expires > now]
    listing = {info.path: info.size_bytes for info in workspace.objects.list(tenant.directory)}
    findings = [
        Finding(FindingKind.BLOB, tenant.directory, row.key, f"{row.blob_path} is missing or has another size")
        for row in alive
        if row.blob_path is not None and listing.get(row.blob_path) != row.size_bytes
    ]
    ordered = sorted((row.path, row.key, row.content_hash) for row in alive if row.key not in waiting)
    known = _CatalogEntries([path for path, _, _ in ordered], [(key, path, digest) for path, key, digest in ordered])
    entities = catalog.read(lambda connection: entity_tree.descendants(connection, tenant))
    directories = {tenant.directory, *(record.entity.directory for record in entities)}
    of_sources = workspace.config.hierarchy[-1]
    for path in listing:
        name = parse_name(path)
        if name.kind in (Kind.BASE, Kind.DELTA) and Entity.of_directory(name.directory).type != of_sources:
            directories.add(name.directory)

    def compare(directory: str) -> Finding | None:
        return _compare(workspace, tenant, directory, set(known.at_or_below(directory)), waiting, now)

    with ThreadPoolExecutor(READ_THREADS, "driftline-memory-verify") as pool:
        findings += filter(None, pool.map(compare, sorted(directories)))
    findings += _vectors(workspace, tenant, {(row.key, row.rev) for row in rows}, waiting)
    return findings, len(alive)


def _compare(
    workspace: Workspace,
    tenant: Entity,
    directory: str,
    expected: set[tuple[str, str, str]],
    waiting: frozenset[str],
    now: datetime,
) -> Finding | None:
    """Compare an index with the catalog; whether the index has expired entries does not matter."""
    try:
        table = MemoryIndex(workspace.objects, directory).read(columns=["key", "entity", "content_hash", "expires"])
    except CorruptFile as error:
        return Finding(FindingKind.MEMORY_INDEX, tenant.directory, directory, str(error))
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    actual = {row[:3] for row in rows if row[0] not in waiting and (row[3] is None or row[3] > now)}
    wrong = sorted({key for key, _, _ in actual ^ expected})
    if not wrong:
        return None
    named = ", ".join(map(repr, wrong[:_KEYS_IN_A_DETAIL]))
    return Finding(
        FindingKind.MEMORY_INDEX, tenant.directory, directory, f"{len(wrong):,} keys differ, such as {named}"
    )


def _vectors(
    workspace: Workspace, tenant: Entity, known: set[tuple[str, int]], waiting: frozenset[str]
) -> Iterator[Finding]:
    """Yield findings for vectors of entries that are not in the catalog.

    Missing vectors cannot be detected without a model.
    """
    for table in vector_tables(workspace.objects, tenant):
        kind, name = FindingKind.MEMORY_VECTORS, table.fingerprint
        try:
            revs = survived(type(table).revs, table) if table.exists() else []
        except CorruptFile as error:
            yield Finding(kind, tenant.directory, table.path, str(error), name)
            continue
        keys = [key for key, _ in revs]
        stale = sorted({each[0] for each in revs if each not in known and each[0] not in waiting})
        repeated = len(keys) - len(set(keys))
        if stale or repeated:
            detail = f"{len(stale):,} vectors are stale, {repeated:,} are duplicates"
            yield Finding(kind, tenant.directory, table.path, detail, name)
