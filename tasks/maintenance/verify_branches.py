"""Check the branches of sources: each cut must hold the lines of its documents (decision 0015)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import ADD
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, StorageError
from driftline.storage.lance.beside import survived
from driftline.storage.lance.table import quote
from driftline.storage.layout import branch_lease_path
from driftline.storage.leases.lease import look
from driftline.storage.workspace.branches import branch_at, branch_records
from driftline.storage.workspace.records import BranchRecord
from driftline.storage.workspace.workspace import Workspace

_COLUMNS = ["path", "hash", "lines", "reason"]


@dataclass(frozen=True, slots=True)
class BranchFinding:
    """A branch that does not hold what it says, and in what way."""

    entity: Entity
    name: str
    detail: str


def check_branches(workspace: Workspace, tenant: Entity) -> Iterator[BranchFinding]:
    """The branches of a tenant that are inconsistent; those that a run works on are not judged.

    It compares the lines of each document that differs from the main index, and the number of all others.
    Raises CorruptFile for a record that cannot be read, StorageError.
    """
    for entity, _ in workspace.readable_sources(tenant):
        for record in branch_records(workspace, entity):
            if not look(workspace.objects, branch_lease_path(entity, record.name)).is_free:
                continue
            if record.fingerprint != workspace.config.fingerprint:
                continue  # the next run of the branch cuts it anew
            try:
                detail = survived(_difference, workspace.on([branch_at(entity, record)]), entity, record)
            except (CorruptFile, StorageError) as error:
                detail = str(error)
            if detail:
                yield BranchFinding(entity, record.name, detail)


def _difference(workspace: Workspace, entity: Entity, record: BranchRecord) -> str:
    documents, table = workspace.manifest(entity), workspace.lines(entity)
    expected = pc.sum(documents.read(columns=["lines"])["lines"], min_count=0).as_py()
    actual = table.count(f"entity = {quote(str(entity))}")
    if expected != actual:
        return f"{actual:,} lines of {expected:,}"
    changed = documents.changes_since(record.main_revision, columns=_COLUMNS)
    there = changed.filter(pc.and_(pc.equal(changed["op"], ADD), pc.greater(changed["lines"], 0)))
    rows = table.of_documents(entity, changed["path"].to_pylist()).select(["path", "hash"])
    counted = rows.group_by(["path", "hash"]).aggregate([([], "count_all")])
    found = _triples(counted["path"], counted["hash"], counted["count_all"])
    wrong = _triples(there["path"], there["hash"], there["lines"]) ^ found
    return f"the lines of {min(wrong)[0]} are not those of its document" if wrong else ""


def _triples(*columns: pa.ChunkedArray) -> set[tuple[str, str, int]]:
    return set(zip(*(column.to_pylist() for column in columns), strict=True))
