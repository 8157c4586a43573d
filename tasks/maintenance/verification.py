"""Verify documents, lines, indexes, branches and memory against each other, and repair the findings (DESIGN,
"Verification").
"""

from __future__ import annotations

import contextlib
import enum
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.deltas.delta_index import ADD
from driftline.storage.deltas.manifest import SCHEMA, BatchId, Manifest
from driftline.storage.entities import Entity
from driftline.storage.errors import (
    AlreadyExists,
    CorruptFile,
    ModelNotFound,
    ObjectNotFound,
    PreconditionFailed,
)
from driftline.storage.json_records import to_json
from driftline.storage.lance.failures import read_fragments, reading
from driftline.storage.lance.lance_table import quote
from driftline.storage.lance.reader_process import ProcessDied, run_in_worker
from driftline.storage.layout import (
    CONFIG,
    SOURCE,
    branch_lease_path,
    lease_path,
    leased_entity,
)
from driftline.storage.leases.lease import LeaseStatus, acquire, peek
from driftline.storage.lines.block_codes import encode
from driftline.storage.lines.commit_marker import MARKER_LINE
from driftline.storage.lines.indexes import check_indexes, drop, index_names, maintain
from driftline.storage.lines.line_table import (
    CODE_COLUMN,
    EMPTY_INVENTORY,
    GRAMS_COLUMN,
    PACK_COLUMN,
    TEXT_COLUMN,
    Inventory,
    LineTable,
    take_inventory,
)
from driftline.storage.lines.packs import grams, text_in
from driftline.storage.memory.catalog import entity_tree, outbox
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.memory_indexes import MemoryIndex, index_files, pages, rebuild_indexes
from driftline.storage.memory.vectors import vector_tables
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.branch_cuts import branch_at, branch_records
from driftline.storage.workspace.records import BranchRecord, SourceRecord, WorkspaceConfig, read_record
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.embedding.models import model_of
from driftline.tasks.indexing.commit import ChangeSet, Committer, settle
from driftline.tasks.indexing.rows import RowPositions, extension, lines_of_blocks, parent_dirs

_COLUMNS = ["path", "hash", "lines", "reason"]
ROUNDED_BITS = 4
"""Bits of a block's code that may depend on how a processor rounds."""


def check_branches(workspace: Workspace, tenant: Entity) -> Iterator[Finding]:
    """Yield a tenant's branches whose content does not match their record or manifest, unless a run works on them.

    Compares the lines of documents that differ from the main index, the line counts of all others, and the values in
    fragments that only the branch has. Raises CorruptFile for an unreadable record, StorageError.
    """

    def is_idle(entity: Entity, record: BranchRecord) -> bool:
        return peek(workspace.objects, branch_lease_path(entity, record.name)).is_free

    def idle_branches(source: tuple[Entity, SourceRecord]) -> list[tuple[Entity, BranchRecord]]:
        found = ((source[0], record) for record in branch_records(workspace, source[0]))
        return [each for each in found if is_idle(*each)]

    found = workspace.map_parallel(idle_branches, workspace.readable_sources(tenant))
    for entity, record in itertools.chain.from_iterable(found):
        if record.fingerprint != workspace.config.fingerprint:
            continue  # the next run takes a new snapshot
        try:
            detail = run_in_worker(_difference, workspace.on([branch_at(entity, record)]), entity, record)
        except CorruptFile as error:
            detail = str(error)
        if detail and is_idle(entity, record):  # no run has started since
            yield Finding(FindingKind.BRANCH, str(entity), record.name, detail)


def _difference(workspace: Workspace, entity: Entity, record: BranchRecord) -> str:
    documents, table = workspace.manifest(entity), workspace.lines(entity)
    if not table.exists():
        return "the table of its lines does not exist"
    expected = pc.sum(documents.read(columns=["lines"])["lines"], min_count=0).as_py()
    with reading(table.TITLE, table.uri):
        actual = table.count(f"entity = {quote(str(entity))}")
    if expected != actual:
        return f"{actual:,} lines of {expected:,}"
    changed = documents.changes_since(record.main_revision, columns=_COLUMNS)
    there = changed.filter(pc.and_(pc.equal(changed["op"], ADD), pc.greater(changed["lines"], 0)))
    rows = table.of_documents(entity, changed["path"].to_pylist(), ["path", "hash"])
    counted = rows.group_by(["path", "hash"]).aggregate([([], "count_all")])
    wrong = _rows(there.select(["path", "hash", "lines"])) ^ _rows(counted.select(["path", "hash", "count_all"]))
    if wrong:
        return f"the lines of {min(wrong)[0]} differ from the document's"
    with reading(table.TITLE, table.uri):
        unreadable, altered = read_fragments(table.open(), table.own_fragments(), changed_documents)
    if unreadable:
        return f"{len(unreadable):,} of its fragments cannot be read"
    return f"the values of {min(altered)[1]} contradict each other" if altered else ""


def _rows(table: pa.Table) -> set[tuple[Any, ...]]:
    return set(zip(*(column.to_pylist() for column in table.columns), strict=True))


class FindingKind(enum.StrEnum):
    """The types of inconsistencies."""

    UNREADABLE = "unreadable"
    MISSING_LINES = "document without its lines"
    WRONG_COUNT = "document with another number of lines"
    STALE_LINES = "stale lines"
    NO_DOCUMENT = "lines without a document"
    DUPLICATE_LINES = "duplicate line"
    CHANGED_LINES = "lines that changed on the disk"
    COMMIT_MARKER = "source without exactly one commit marker"
    STAGED = "staged delta of a dead run"
    INDEX = "index that does not cover what it claims"
    BRANCH = "branch that does not hold its documents"
    NOT_REINDEXED = "removed document that was not reindexed"
    CATALOG = "memory without its catalog"
    BLOB = "memory entry without its value"
    MEMORY_INDEX = "memory index that differs from the catalog"
    MEMORY_VECTORS = "memory vectors that differ from the catalog"


OF_DOCUMENTS = {
    FindingKind.MISSING_LINES,
    FindingKind.WRONG_COUNT,
    FindingKind.STALE_LINES,
    FindingKind.NO_DOCUMENT,
    FindingKind.DUPLICATE_LINES,
    FindingKind.CHANGED_LINES,
}
"""Findings that are repaired by reindexing the document."""
OF_MEMORY = {FindingKind.CATALOG, FindingKind.BLOB, FindingKind.MEMORY_INDEX, FindingKind.MEMORY_VECTORS}


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency.

    ``path`` is a document or branch of ``entity``, a workspace file, an index name, or a memory entry's key.
    ``fingerprint`` identifies the affected table, "" if there is none.
    """

    kind: FindingKind
    entity: str
    path: str
    detail: str
    fingerprint: str = ""


@dataclass(slots=True)
class Verification:
    """The result of a verification.

    ``busy`` lists the sources that were skipped because another run was working on them.
    """

    documents: int = 0
    lines: int = 0
    memory_entries: int = 0
    findings: list[Finding] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    leases: dict[Entity, LeaseStatus] = field(default_factory=dict)


def verify(workspace: Workspace, on_phase: Callable[[str], None], run_id: str) -> Verification:
    """Check every tenant of ``workspace``; needs only read access. Damage is a finding, not an error.

    The indexes are checked with a sample of lines that differs from run to run.

    Raises WorkspaceTooNew, AccessDenied, StorageError.
    """
    verification = Verification()
    for tenant in workspace.tenants():
        on_phase(f"checking {tenant}")
        _TenantCheck(workspace, tenant, verification, run_id).run()
    return verification


class _TenantCheck:
    def __init__(self, workspace: Workspace, tenant: Entity, verification: Verification, run_id: str) -> None:
        self._workspace = workspace
        self._run_id = run_id
        self._tenant = tenant
        self._verification = verification
        self._findings: list[Finding] = []
        self._manifests: dict[Entity, pa.Table] = {}
        self._unknown: set[str] = set()

    def run(self) -> None:
        sources = self._sources()
        before = self._look(sources)
        self._read(sources)
        for table in self._tables():
            exists = table.exists()
            try:
                inventory = run_in_worker(take_inventory, table) if exists else EMPTY_INVENTORY
                damaged, changed = table.examined(changed_documents) if exists else ([], set())
            except CorruptFile as error:
                self._add(FindingKind.UNREADABLE, self._tenant, table.path, str(error), table.fingerprint)
                continue
            if damaged:
                detail = f"{len(damaged):,} fragments cannot be read"
                self._add(FindingKind.UNREADABLE, self._tenant, table.path, detail, table.fingerprint)
                continue
            self._compare(table, inventory)
            known = {(finding.entity, finding.path) for finding in self._findings}
            for name, path in sorted(changed - known):
                if name not in self._unknown:
                    detail = "Its values contradict each other."
                    self._add(FindingKind.CHANGED_LINES, name, path, detail, table.fingerprint)
            for index, detail in damaged_indexes(table, self._run_id) if exists else ():
                self._add(FindingKind.INDEX, self._tenant, index, detail, table.fingerprint)
        self._findings += check_branches(self._workspace, self._tenant)
        after = self._look(sources)
        busy = {str(source) for source in sources if not before[source].is_free or before[source] != after[source]}
        self._verification.busy += sorted(busy)
        self._verification.findings += [finding for finding in self._findings if finding.entity not in busy]
        self._verification.leases |= before

    def _sources(self) -> list[Entity]:
        """Return the sources bound to a URI, and sources that any run ever leased."""
        workspace, directory = self._workspace, f"{self._tenant.directory}/_leases"
        leased = (leased_entity(info.path) for info in workspace.objects.list(directory, recursive=False))
        bound = workspace.entities(self._tenant)
        return sorted({*bound, *(entity for purpose, entity in leased if purpose == "source")})

    def _read(self, sources: Sequence[Entity]) -> None:
        def read(source: Entity) -> tuple[pa.Table, Sequence[BatchId]] | CorruptFile:
            documents = self._workspace.manifest(source)
            try:
                self._workspace.source(source)
                manifest = documents.read(columns=["path", "hash", "lines", "reason", "fingerprint"])
            except CorruptFile as error:
                return error
            return manifest, documents.staged()

        for source, found in zip(sources, self._workspace.map_parallel(read, sources), strict=True):
            if isinstance(found, CorruptFile):
                self._add(FindingKind.UNREADABLE, source, self._relative(found.where), str(found))
                self._unknown.add(str(source))
                continue
            self._manifests[source], staged = found
            self._verification.documents += len(found[0])
            for batch in staged:
                detail = "The next run settles it."
                self._add(FindingKind.STAGED, source, f"{batch.run_id}, batch {batch.batch}", detail)

    def _tables(self) -> list[LineTable]:
        """Return the current table, and the tables of other fingerprints in the manifests."""
        fingerprints = {self._workspace.config.fingerprint}
        for manifest in self._manifests.values():
            fingerprints.update(pc.unique(manifest["fingerprint"]).to_pylist())
        return [self._workspace.lines(self._tenant, fingerprint) for fingerprint in sorted(filter(None, fingerprints))]

    def _compare(self, table: LineTable, inventory: Inventory) -> None:
        serves = table.fingerprint == self._workspace.config.fingerprint
        self._verification.lines += pc.sum(inventory.counts["rows"]).as_py() or 0 if serves else 0
        names = {str(source): source for source in self._manifests}
        for name in sorted({*inventory.counts["entity"].unique().to_pylist(), *names} - self._unknown):
            manifest = self._manifests.get(names[name]) if name in names else None
            for kind, path, detail in compare(manifest, inventory.of(name), table.fingerprint, serves=serves):
                self._add(kind, name, path, detail, table.fingerprint)
        for name, path in sorted(inventory.repeated):
            if name not in self._unknown:
                self._add(FindingKind.DUPLICATE_LINES, name, path, "It has duplicate lines.", table.fingerprint)
        for name in sorted({*inventory.counts["entity"].unique().to_pylist(), *inventory.markers} - self._unknown):
            rows = inventory.markers.get(name, 0)
            if rows != 1:
                self._add(FindingKind.COMMIT_MARKER, name, "", f"It has {rows}.", table.fingerprint)

    def _look(self, sources: Sequence[Entity]) -> dict[Entity, LeaseStatus]:
        def look(source: Entity) -> LeaseStatus | CorruptFile:
            try:
                return peek(self._workspace.objects, lease_path(source))
            except CorruptFile as error:
                return error

        statuses: dict[Entity, LeaseStatus] = {}
        for source, found in zip(sources, self._workspace.map_parallel(look, sources), strict=True):
            statuses[source] = LeaseStatus(True, "", "") if isinstance(found, CorruptFile) else found
            if isinstance(found, CorruptFile):
                finding = Finding(FindingKind.UNREADABLE, str(source), self._relative(found.where), str(found))
                if finding not in self._findings:
                    self._findings.append(finding)
        return statuses

    def _relative(self, where: str) -> str:
        return where.removeprefix(f"{self._workspace.objects.uri}/")

    def _add(self, kind: FindingKind, entity: Entity | str, path: str, detail: str, fingerprint: str = "") -> None:
        self._findings.append(Finding(kind, str(entity), path, detail, fingerprint))


def damaged_indexes(table: LineTable, seed: str) -> list[tuple[str, str]]:
    """Run ``check_indexes`` in another process; if an index crashes it, report all indexes as damaged."""
    try:
        return run_in_worker(_checked_indexes, table, seed)
    except ProcessDied:
        why = "it or another index crashes the process that reads it"
        return [(name, why) for name in run_in_worker(index_names, table)]


def _checked_indexes(table: LineTable, seed: str) -> list[tuple[str, str]]:
    with reading(table.TITLE, table.uri):
        return list(check_indexes(table, seed))


def compare(
    manifest: pa.Table | None, counts: pa.Table, fingerprint: str, *, serves: bool
) -> Iterator[tuple[FindingKind, str, str]]:
    """Yield ``(kind, path, detail)`` for each document whose lines differ from ``manifest``; a pure function.

    ``manifest`` has path, hash, lines and fingerprint, ``counts`` path, hash and rows. Only documents embedded with
    ``fingerprint`` are checked. During a re-embedding, the current table (``serves``) may keep lines of moved or
    deleted documents.
    """
    if manifest is None:
        manifest = pa.table({"path": [], "hash": [], "lines": [], "fingerprint": []}, schema=_MANIFEST)
    ours = pc.equal(manifest["fingerprint"], fingerprint)
    moving = serves and not pc.all(pc.or_(ours, pc.equal(manifest["lines"], 0)), min_count=0).as_py()
    documents = manifest.filter(ours).select(["path", "hash", "lines"])
    joined = documents.join(counts, ["path", "hash"], join_type="full outer")
    expected, actual = pc.fill_null(joined["lines"], 0), pc.fill_null(joined["rows"], 0)
    for row in joined.filter(pc.not_equal(expected, actual)).sort_by("path").to_pylist():
        if row["lines"] is not None:
            kind = FindingKind.WRONG_COUNT if row["rows"] else FindingKind.MISSING_LINES
            yield kind, row["path"], f"{row['rows'] or 0:,} lines of {row['lines']:,}"
    strays = joined.filter(pc.and_(pc.is_null(joined["lines"]), pc.greater(actual, 0)))
    if moving:
        strays = strays.filter(pc.is_in(strays["path"], documents["path"]))
    known = pc.is_in(strays["path"], documents["path"]).to_pylist()
    for row, is_known in zip(strays.select(["path", "rows"]).to_pylist(), known, strict=True):
        kind = FindingKind.STALE_LINES if is_known else FindingKind.NO_DOCUMENT
        yield kind, row["path"], f"{row['rows']:,} lines"


_MANIFEST = pa.schema(
    [("path", pa.string()), ("hash", pa.string()), ("lines", pa.int32()), ("fingerprint", pa.string())]
)


EVER = datetime(1, 1, 1, tzinfo=UTC)
"""A time before any expiry."""
_KEYS_IN_A_DETAIL = 3


_COMPARED = ("key", "entity", "content_hash")
_ENTRIES = pa.schema([*((name, pa.string()) for name in _COMPARED), ("rev", pa.int64()), ("is_indexed", pa.bool_())])
"""A tenant's entries in the catalog, without their values. ``entity`` is the owner's directory; expired entries and
unflushed ones may be missing from the indexes.
"""


def _at_or_below(entries: pa.Table, directory: str) -> pa.Table:
    """Return the rows of ``entries``, which are sorted by ``entity``, whose owner is at or below ``directory``."""
    # "0" follows "/": the range between them holds the descendants, but no sibling such as project:a-b.
    bounds = pa.array([directory, f"{directory}\0", f"{directory}/", f"{directory}0"])
    own, end, below, last = pc.search_sorted(entries["entity"], bounds).to_pylist()
    return pa.concat_tables([entries[own:end], entries[below:last]])


def verify_memory(workspace: Workspace, catalog: Catalog, verification: Verification) -> None:
    """Add each tenant's memory findings to ``verification``, skipping tenants that change during the check.

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


def _check(workspace: Workspace, catalog: Catalog, tenant: Entity) -> tuple[list[Finding], int]:
    waiting = frozenset(catalog.read(lambda connection: outbox.keys(connection, tenant)))
    now, alive = datetime.now(UTC), 0
    parts, blobs = [_ENTRIES.empty_table()], list[tuple[str, str, int]]()
    for page in pages(catalog, tenant, EVER):  # with values, so not all pages at once
        living = [row for row in page if row.expires is None or row.expires > now]
        alive += len(living)
        indexed = {row.key for row in living} - waiting
        values = ((row.key, row.path, row.content_hash, row.rev, row.key in indexed) for row in page)
        parts.append(pa.table([*map(list, zip(*values, strict=True))], schema=_ENTRIES))
        blobs += ((row.key, row.blob_path, row.size_bytes) for row in living if row.blob_path is not None)
    listing = {info.path: info.size_bytes for info in workspace.objects.list(tenant.directory)}
    findings = [
        Finding(FindingKind.BLOB, tenant.directory, key, f"{path} is missing or has the wrong size")
        for key, path, size_bytes in blobs
        if listing.get(path) != size_bytes
    ]
    entries = pa.concat_tables(parts)
    indexed_entries = entries.filter(entries["is_indexed"]).select(_COMPARED).sort_by("entity")
    entities = catalog.read(lambda connection: entity_tree.descendants(connection, tenant))
    directories = {tenant.directory, *(record.entity.directory for record in entities)}
    directories.update(name.directory for name in index_files(workspace, listing))

    def compare(directory: str) -> Finding | None:
        return _compare(workspace, tenant, directory, _at_or_below(indexed_entries, directory), waiting, now)

    findings += filter(None, workspace.map_parallel(compare, sorted(directories)))
    findings += _vectors(workspace, tenant, entries, waiting)
    return findings, alive


def _compare(
    workspace: Workspace,
    tenant: Entity,
    directory: str,
    expected: pa.Table,
    waiting: frozenset[str],
    now: datetime,
) -> Finding | None:
    """Compare an index with the ``expected`` entries of the catalog, ignoring expired entries in the index."""
    try:
        table = MemoryIndex(workspace.objects, directory).read(columns=[*_COMPARED, "expires"])
    except CorruptFile as error:
        return Finding(FindingKind.MEMORY_INDEX, tenant.directory, directory, str(error))
    is_waiting = pc.is_in(table["key"], value_set=pa.array(sorted(waiting), pa.string()))
    has_expired = pc.fill_null(pc.less_equal(table["expires"], now), False)
    actual = table.filter(pc.invert(pc.or_(is_waiting, has_expired))).select(_COMPARED)
    is_equal = actual.equals(expected.sort_by("key"))  # which takes no set of all rows
    wrong = [] if is_equal else sorted({key for key, _, _ in _rows(actual) ^ _rows(expected)})
    if not wrong:
        return None
    named = ", ".join(map(repr, wrong[:_KEYS_IN_A_DETAIL]))
    return Finding(
        FindingKind.MEMORY_INDEX, tenant.directory, directory, f"{len(wrong):,} keys differ, such as {named}"
    )


def _vectors(workspace: Workspace, tenant: Entity, entries: pa.Table, waiting: frozenset[str]) -> Iterator[Finding]:
    """Yield findings for vectors of entries that are not in the catalog.

    Detecting missing vectors would require a model.
    """
    tables = [*vector_tables(workspace.objects, tenant)]
    known = _rows(entries.select(["key", "rev"])) if tables else set()
    for table in tables:
        kind, name = FindingKind.MEMORY_VECTORS, table.fingerprint
        try:
            revs = run_in_worker(type(table).revs, table) if table.exists() else []
        except CorruptFile as error:
            yield Finding(kind, tenant.directory, table.path, str(error), name)
            continue
        keys = [key for key, _ in revs]
        stale = sorted({each[0] for each in revs if each not in known and each[0] not in waiting})
        repeated = len(keys) - len(set(keys))
        if stale or repeated:
            detail = f"{len(stale):,} vectors are stale, {repeated:,} are duplicates"
            yield Finding(kind, tenant.directory, table.path, detail, name)


def changed_documents(batches: Iterator[pa.RecordBatch]) -> set[tuple[str, str]]:
    """Return entity and path of documents whose rows, those of a fragment in order, contradict each other.

    A disk may change a bit that no reader of the table notices. Texts are compared with blocks, packs with their
    checksums, their grams with their text, codes with vectors, and folders and extensions with paths. Nothing can be
    compared with vectors or outlines.
    """
    found, rest = set[tuple[str, str]](), list[pa.RecordBatch]()
    for batch in batches:
        lines = batch.filter(pc.greater(batch["line_number"], MARKER_LINE))
        found |= _documents(lines, _wrong_paths(lines) | _wrong_packs(lines))
        starts = np.flatnonzero(lines[TEXT_COLUMN].is_valid().to_numpy(zero_copy_only=False)).tolist()
        if starts:
            found |= _with_changed_blocks([*rest, lines[0 if rest else starts[0] : starts[-1]]])
            rest, lines = [], lines[starts[-1] :]  # it may continue in the next batch
        if starts or rest:  # otherwise, the block began in another fragment
            rest.append(lines)
    return found | _with_changed_blocks(rest, may_continue=True)


def _documents(rows: pa.RecordBatch, wrong: NDArray[np.bool_]) -> set[tuple[str, str]]:
    return {(rows["entity"][row].as_py(), rows["path"][row].as_py()) for row in np.flatnonzero(wrong).tolist()}


def _with_changed_blocks(parts: list[pa.RecordBatch], *, may_continue: bool = False) -> set[tuple[str, str]]:
    """Check whole blocks; the last one ``may_continue`` in another fragment."""
    table = pa.Table.from_batches(parts).combine_chunks() if parts else pa.table({})
    return _documents(rows := table.to_batches()[0], _wrong_blocks(rows, may_continue)) if len(table) else set()


def _wrong_paths(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    paths = rows["path"].dictionary_encode()
    names = paths.dictionary.to_pylist()
    extensions = pa.array([extension(name) for name in names]).take(paths.indices)
    folders = pa.array(["\n".join(parent_dirs(name)) for name in names]).take(paths.indices)
    stored = pc.binary_join(rows["parent_dirs"], "\n")
    same = pc.and_(pc.equal(rows["ext"], extensions), pc.equal(stored, folders))
    return np.asarray(pc.invert(pc.fill_null(same, False)).to_numpy(zero_copy_only=False))


def _wrong_packs(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    wrong, packs = np.zeros(len(rows), np.bool_), rows[PACK_COLUMN].cast(pa.binary())
    for row in np.flatnonzero(packs.is_valid().to_numpy(zero_copy_only=False)).tolist():
        text, filter = text_in(packs[row].as_py()), rows[GRAMS_COLUMN][row].as_py()
        wrong[row] = text is None or filter != grams(text)
    return wrong


def _wrong_blocks(rows: pa.RecordBatch, may_continue: bool) -> NDArray[np.bool_]:
    keys = np.stack([rows[name].dictionary_encode().indices.to_numpy() for name in ("path", "entity")])
    document = np.append(0, np.cumsum((keys[:, 1:] != keys[:, :-1]).any(axis=0))).astype(np.int32)
    numbers = RowPositions.of(pa.array(document), rows["line_number"], rows["column_number"])
    wrong: NDArray[np.bool_] = rows[TEXT_COLUMN].is_valid().to_numpy(zero_copy_only=False)
    wrong[numbers.starts] ^= True
    starts = pa.array(numbers.starts)
    stored, paths = (rows[name].cast(pa.binary()).take(starts).to_pylist() for name in (TEXT_COLUMN, "path"))
    lines = lines_of_blocks(numbers, rows["text"]).cast(pa.binary()).to_pylist()
    vectors = np.zeros((len(rows), rows["vector"].type.list_size), np.float16)
    has_vector = rows["vector"].is_valid().to_numpy(zero_copy_only=False)
    vectors[has_vector] = rows["vector"].flatten().to_numpy().reshape(-1, vectors.shape[1])
    codes = zip(rows[CODE_COLUMN].take(starts).to_pylist(), encode(vectors, numbers.starts).to_pylist(), strict=True)
    for row, block, path, text, (code, own) in zip(numbers.starts.tolist(), stored, paths, lines, codes, strict=True):
        if block is None or not block.startswith(path):
            wrong[row] = True
        elif block.endswith(text):
            wrong[row] |= not _codes_agree(code, own)
        else:
            wrong[row] |= not (may_continue and row == numbers.starts[-1] and text in block)
    return wrong


def _codes_agree(code: bytes | None, own: bytes | None) -> bool:
    if code is None or own is None or len(code) != len(own):
        return code == own
    return (int.from_bytes(code) ^ int.from_bytes(own)).bit_count() <= ROUNDED_BITS


# -- repair: quarantine damaged parts for the next index run to rebuild ----------------------------

DAMAGED_PREFIX = "_damaged_"


def quarantine(workspace: Workspace, entity: Entity, path: str, run_id: str) -> bool:
    """Rename a damaged base, delta, record or lease of ``entity`` so that the rest is readable.

    Missing documents are then found through their lines, or by the next index run. Returns whether a file was renamed.
    Raises LeaseHeld.
    """
    directory, _, name = path.rpartition("/")
    objects = workspace.objects
    if path == lease_path(entity):
        # The holder loses its lease: the next lease's token continues from the index and fences it off.
        with contextlib.suppress(ObjectNotFound):
            objects.create(f"{path}.{DAMAGED_PREFIX}{run_id}", objects.get(path))
            objects.delete([path])
            return True
        return False
    if directory != entity.directory or not name.startswith(("_index", SOURCE)):
        return False
    with acquire_source(workspace, entity, run_id), contextlib.suppress(ObjectNotFound):
        objects.create(f"{directory}/{DAMAGED_PREFIX}{run_id}_{name}", objects.get(path))
        objects.delete([path])
        return True
    return False


def quarantine_table(workspace: Workspace, tenant: Entity, fingerprint: str, run_id: str) -> int:
    """Drop the unreadable versions and fragments of the table of ``fingerprint``, and return how many there were of
    each.

    Documents with missing lines are then found through the manifests. Raises LeaseHeld, StorageError.
    """
    with acquire(workspace.objects, lease_path(tenant, "maintenance"), run_id):
        return workspace.lines(tenant, fingerprint).quarantine_damage(f".{DAMAGED_PREFIX}{run_id}")


def repair_source(workspace: Workspace, entity: Entity, paths: Mapping[str, Set[str]], run_id: str) -> None:
    """Settle ``entity``, and remove its documents at ``paths``, grouped by table fingerprint.

    A table with nothing to remove gets a new commit marker, which replaces any duplicates. Raises LeaseHeld.
    """
    with acquire_source(workspace, entity, run_id) as lease:
        settle(workspace, entity, lease)
        batch = 0
        for fingerprint, names in sorted(paths.items()):
            table = workspace.lines(entity, fingerprint)
            if not names:
                table.fence(entity, lease.token)
                continue
            committer = Committer(workspace, entity, lease, run_id, table, workspace.config.dim or 0, batch=batch)
            committer.commit(ChangeSet(SCHEMA.empty_table(), removed=tuple(sorted(names))))
            batch = committer.batch


def repair_indexes(workspace: Workspace, tenant: Entity, names: Sequence[str], run_id: str) -> None:
    """Rebuild the current table's search indexes ``names``. Raises LeaseHeld."""
    with acquire(workspace.objects, lease_path(tenant, "maintenance"), run_id):
        table = workspace.lines(tenant)
        drop(table, names)
        maintain(table)


def config_is_lost(objects: ObjectStore) -> bool:
    """Return whether this is a workspace whose configuration is missing or damaged. Raises WorkspaceTooNew."""
    try:
        config = read_record(objects, CONFIG, WorkspaceConfig)
    except CorruptFile:
        return True
    return config is None and bool(Workspace(objects, WorkspaceConfig()).tenants())


def restore_config(objects: ObjectStore, run_id: str, workspace_id: str | None = None) -> None:
    """Rewrite a lost configuration, with the memory catalog's ``workspace_id``, if there is one.

    It records the model fingerprint that most documents use. Unless that is this host's default model, the model's name
    stays unknown until the next run supplies it. Raises StorageError.
    """
    config = WorkspaceConfig() if workspace_id is None else WorkspaceConfig(workspace_id=workspace_id)
    fingerprint, dim = _embedding(Workspace(objects, config))
    data = to_json(replace(config, fingerprint=fingerprint, dim=dim, model=_default_model(fingerprint)))
    with contextlib.suppress(AlreadyExists, PreconditionFailed):  # another process wrote it concurrently
        try:
            damaged, version = objects.get_versioned(CONFIG)
        except ObjectNotFound:
            objects.create(CONFIG, data)
        else:
            objects.create(f"_damaged_{run_id}{CONFIG}", damaged)
            objects.replace(CONFIG, data, version)


def _default_model(fingerprint: str | None) -> str | None:
    """Return the default model's name if it has this fingerprint."""
    with contextlib.suppress(ModelNotFound):
        model = model_of()
        return model.name if model.fingerprint == fingerprint else None
    return None


def _embedding(workspace: Workspace) -> tuple[str | None, int | None]:
    counts: Counter[str] = Counter()
    for entity in workspace.entities():
        with contextlib.suppress(CorruptFile):
            rows = Manifest(workspace.objects, entity).read(columns=["fingerprint"])
            counts.update(filter(None, rows["fingerprint"].to_pylist()))
    for fingerprint, _ in counts.most_common():
        for tenant in workspace.tenants():
            table = LineTable(workspace.objects, tenant, fingerprint)
            if table.exists():
                return fingerprint, int(table.open().schema.field("vector").type.list_size)
    return None, None


def repair_memory(workspace: Workspace, catalog: Catalog, findings: Sequence[Finding]) -> None:
    """Rebuild the indexes of ``findings`` from the catalog. Raises LeaseHeld, possibly after rebuilding some."""
    wrong: dict[str, list[Entity]] = defaultdict(list)
    for finding in findings:
        if finding.kind is FindingKind.MEMORY_INDEX:
            wrong[finding.entity].append(Entity.of_directory(finding.path))
    for tenant, entities in wrong.items():
        rebuild_indexes(catalog, workspace, Entity.of_directory(tenant), entities, lambda: datetime.now(UTC))
