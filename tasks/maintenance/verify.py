"""Check a workspace against itself: documents against lines, lines against documents, indexes against both."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile
from driftline.storage.layout import lease_path, leased_entity
from driftline.storage.leases.lease import Sighting, look
from driftline.storage.lines.inventory import EMPTY, Inventory, check_indexes, take_inventory
from driftline.storage.lines.table import LineTable
from driftline.storage.workspace.workspace import Workspace


class FindingKind(enum.StrEnum):
    """What can be wrong with a workspace."""

    UNREADABLE = "unreadable"
    MISSING_LINES = "document without its lines"
    WRONG_COUNT = "document with another number of lines"
    OTHER_CONTENT = "lines of another content than the document's"
    NO_DOCUMENT = "lines without a document"
    REPEATED = "line that stands twice"
    LEDGER = "source without exactly one commit marker"
    STAGED = "staged delta of a dead run"
    INDEX = "index that does not cover what it claims"
    BLOB = "memory entry without its value"
    MEMORY_INDEX = "memory index that differs from the catalog"
    MEMORY_VECTORS = "memory vectors that differ from the catalog"


OF_DOCUMENTS = {
    FindingKind.MISSING_LINES,
    FindingKind.WRONG_COUNT,
    FindingKind.OTHER_CONTENT,
    FindingKind.NO_DOCUMENT,
    FindingKind.REPEATED,
}
"""What is mended by indexing the document anew."""
OF_MEMORY = {FindingKind.BLOB, FindingKind.MEMORY_INDEX, FindingKind.MEMORY_VECTORS}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``path`` is a document of ``entity``, a file of the workspace, the name of an index, or
    the key of a memory entry.

    ``fingerprint`` names the table that it concerns, "" for none.
    """

    kind: FindingKind
    entity: str
    path: str
    detail: str
    fingerprint: str = ""


@dataclass(slots=True)
class Verification:
    """What was checked and found. ``busy`` are the sources that a run worked on meanwhile: they were not judged."""

    documents: int = 0
    lines: int = 0
    memory_entries: int = 0
    findings: list[Finding] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    leases: dict[Entity, Sighting] = field(default_factory=dict)


def verify(workspace: Workspace, tell: Callable[[str], None]) -> Verification:
    """Check every tenant of ``workspace``; read access is enough. Damage is found, not raised.

    Raises WorkspaceTooNew, AccessDenied, StorageError.
    """
    found = Verification()
    for tenant in workspace.tenants():
        tell(f"checking {tenant}")
        _Tenant(workspace, tenant, found).check()
    return found


class _Tenant:
    def __init__(self, workspace: Workspace, tenant: Entity, found: Verification) -> None:
        self._workspace = workspace
        self._tenant = tenant
        self._found = found
        self._findings: list[Finding] = []
        self._manifests: dict[Entity, pa.Table] = {}
        self._unknown: set[str] = set()

    def check(self) -> None:
        sources = self._sources()
        before = {source: self._look(source) for source in sources}
        for source in sources:
            self._read(source)
        for table in self._tables():
            exists = table.exists()
            try:
                inventory = take_inventory(table) if exists else EMPTY
            except CorruptFile as error:
                self._add(FindingKind.UNREADABLE, self._tenant, table.path, str(error), table.fingerprint)
                continue
            self._compare(table, inventory)
            for index, detail in check_indexes(table) if exists else ():
                self._add(FindingKind.INDEX, self._tenant, index, detail, table.fingerprint)
        busy = {str(source) for source in sources if not before[source].is_free or before[source] != self._look(source)}
        self._found.busy += sorted(busy)
        self._found.findings += [finding for finding in self._findings if finding.entity not in busy]
        self._found.leases |= before

    def _sources(self) -> list[Entity]:
        """Those that are bound to a place, and those that a run has ever worked on."""
        workspace, directory = self._workspace, f"{self._tenant.directory}/_leases"
        leased = (leased_entity(info.path) for info in workspace.objects.list(directory, recursive=False))
        bound = workspace.entities(self._tenant)
        return sorted({*bound, *(entity for purpose, entity in leased if purpose == "source")})

    def _read(self, source: Entity) -> None:
        documents = self._workspace.manifest(source)
        try:
            self._workspace.source(source)
            manifest = documents.read(columns=["path", "hash", "lines", "reason", "fingerprint"])
        except CorruptFile as error:
            self._add(FindingKind.UNREADABLE, source, self._relative(error.where), str(error))
            self._unknown.add(str(source))
            return
        self._manifests[source] = manifest
        self._found.documents += len(manifest)
        for batch in documents.staged():
            self._add(FindingKind.STAGED, source, f"{batch.run_id}, batch {batch.batch}", "The next run settles it.")

    def _tables(self) -> list[LineTable]:
        """The table that serves, and those that documents have moved to."""
        wanted = {self._workspace.config.fingerprint}
        for manifest in self._manifests.values():
            wanted.update(pc.unique(manifest["fingerprint"]).to_pylist())
        return [self._workspace.lines(self._tenant, fingerprint) for fingerprint in sorted(filter(None, wanted))]

    def _compare(self, table: LineTable, inventory: Inventory) -> None:
        serves = table.fingerprint == self._workspace.config.fingerprint
        self._found.lines += pc.sum(inventory.counts["rows"]).as_py() or 0 if serves else 0
        names = {str(source): source for source in self._manifests}
        for name in sorted({*inventory.counts["entity"].unique().to_pylist(), *names} - self._unknown):
            manifest = self._manifests.get(names[name]) if name in names else None
            for kind, path, detail in compare(manifest, inventory.of(name), table.fingerprint, serves=serves):
                self._add(kind, name, path, detail, table.fingerprint)
        for name, path in sorted(inventory.repeated):
            if name not in self._unknown:
                self._add(FindingKind.REPEATED, name, path, "A line of it is there more than once.", table.fingerprint)
        for name in sorted({*inventory.counts["entity"].unique().to_pylist(), *inventory.markers} - self._unknown):
            rows = inventory.markers.get(name, 0)
            if rows != 1:
                self._add(FindingKind.LEDGER, name, "", f"It has {rows}.", table.fingerprint)

    def _look(self, source: Entity) -> Sighting:
        try:
            return look(self._workspace.objects, lease_path(source))
        except CorruptFile as error:
            finding = Finding(FindingKind.UNREADABLE, str(source), self._relative(error.where), str(error))
            if finding not in self._findings:
                self._findings.append(finding)
            return Sighting(True, "", "")

    def _relative(self, where: str) -> str:
        return where.removeprefix(f"{self._workspace.objects.uri}/")

    def _add(self, kind: FindingKind, entity: Entity | str, path: str, detail: str, fingerprint: str = "") -> None:
        self._findings.append(Finding(kind, str(entity), path, detail, fingerprint))


def compare(
    manifest: pa.Table | None, counts: pa.Table, fingerprint: str, *, serves: bool
) -> Iterator[tuple[FindingKind, str, str]]:
    """``(kind, path, detail)`` for each document whose lines are not what ``manifest`` says; pure.

    ``manifest`` has path, hash, lines and fingerprint, ``counts`` path, hash and rows. Only documents embedded with
    ``fingerprint`` are judged; while others are on their way to another table, the one that ``serves`` may
    keep lines of what has moved or gone.
    """
    if manifest is None:
        manifest = pa.table({"path": [], "hash": [], "lines": [], "fingerprint": []}, schema=_MANIFEST)
    ours = pc.equal(manifest["fingerprint"], fingerprint)
    moving = serves and not pc.all(pc.or_(ours, pc.equal(manifest["lines"], 0)), min_count=0).as_py()
    documents = manifest.filter(ours).select(["path", "hash", "lines"])
    joined = documents.join(counts, ["path", "hash"], join_type="full outer")
    wanted, there = pc.fill_null(joined["lines"], 0), pc.fill_null(joined["rows"], 0)
    for row in joined.filter(pc.not_equal(wanted, there)).sort_by("path").to_pylist():
        if row["lines"] is not None:
            kind = FindingKind.WRONG_COUNT if row["rows"] else FindingKind.MISSING_LINES
            yield kind, row["path"], f"{row['rows'] or 0:,} lines of {row['lines']:,}"
    strays = joined.filter(pc.and_(pc.is_null(joined["lines"]), pc.greater(there, 0)))
    if moving:
        strays = strays.filter(pc.is_in(strays["path"], documents["path"]))
    known = pc.is_in(strays["path"], documents["path"]).to_pylist()
    for row, is_known in zip(strays.select(["path", "rows"]).to_pylist(), known, strict=True):
        kind = FindingKind.OTHER_CONTENT if is_known else FindingKind.NO_DOCUMENT
        yield kind, row["path"], f"{row['rows']:,} lines"


_MANIFEST = pa.schema(
    [("path", pa.string()), ("hash", pa.string()), ("lines", pa.int32()), ("fingerprint", pa.string())]
)
