"""Documents whose lines are embedded already, in the main index or on a branch: a run copies them (decision 0015).

What counts is the content: a donor's document has the same path, the same hash and the same embedding fingerprint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import ADD
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.lines.table import schema
from driftline.storage.workspace.branches import branch_at, branch_records
from driftline.storage.workspace.records import BranchRecord
from driftline.storage.workspace.workspace import Branch, Workspace

log = logging.getLogger(__name__)

MAX_DONORS = 20
"""Branches that a run looks at, the newest first: each costs it a few requests."""
_COLUMNS = ["path", "hash", "lines", "fingerprint", "reason"]


@dataclass(frozen=True, slots=True)
class Donated:
    """A document that a donor has embedded: the main index, where ``branch`` is None, or a branch."""

    hash: str
    lines: int
    branch: Branch | None


Donations = Mapping[str, tuple[Donated, ...]]
"""What donors have of each path; picklable."""


def find_donations(
    workspace: Workspace, entity: Entity, paths: pa.Array, fingerprint: str, superseded: BranchRecord | None = None
) -> Donations:
    """What others have embedded of ``paths`` of a source.

    A run of the main index looks at branches, a run of a branch at the main index and at the cut that was
    ``superseded``. A donor that cannot be read is left out.
    """
    if not len(paths):
        return {}
    found: dict[str, tuple[Donated, ...]] = {}

    def add(branch: Branch | None, rows: pa.Table) -> None:
        is_there = pc.and_(pc.is_null(rows["reason"]), pc.equal(rows["fingerprint"], fingerprint))
        for row in rows.filter(pc.and_(is_there, pc.greater(rows["lines"], 0))).to_pylist():
            found[row["path"]] = (*found.get(row["path"], ()), Donated(row["hash"], row["lines"], branch))

    donors: list[BranchRecord | None] = [None, superseded] if workspace.branch_of(entity) else []
    try:
        if not donors:
            newest = sorted(branch_records(workspace, entity), key=lambda record: record.updated, reverse=True)
            donors = [*newest[:MAX_DONORS]]
        for record in donors:
            if record is None:
                if workspace.branch_of(entity):
                    add(None, workspace.on(()).manifest(entity).get(paths.to_pylist(), columns=_COLUMNS))
                continue
            branch = branch_at(entity, record)
            changed = workspace.on([branch]).manifest(entity).changes_since(record.main_revision, columns=_COLUMNS)
            wanted = pc.and_(pc.equal(changed["op"], ADD), pc.is_in(changed["path"], value_set=paths))
            add(branch, changed.filter(wanted))
    except DriftlineError as error:  # embedding does not need it
        log.warning("Nothing is copied from branches of %s: %s", entity, error)
    return found


def copy_rows(
    workspace: Workspace, entity: Entity, fingerprint: str, dim: int, wanted: Mapping[str, Donated]
) -> Iterable[tuple[str, pa.Table]]:
    """The rows of each wanted document, by path, where its donor still has them all."""
    columns = schema(dim)
    for branch in {donated.branch for donated in wanted.values()}:
        paths = [path for path, donated in wanted.items() if donated.branch == branch]
        table = workspace.on([branch] if branch else ()).lines(entity, fingerprint)
        try:
            rows = table.of_documents(entity, paths)
        except DriftlineError as error:  # a branch that was deleted meanwhile
            log.info("Lines of %s are embedded again: %s", entity, error)
            continue
        if rows.schema.names != columns.names:  # of an earlier version
            continue
        for path in paths:
            of_path = rows.filter(pc.and_(pc.equal(rows["path"], path), pc.equal(rows["hash"], wanted[path].hash)))
            if len(of_path) == wanted[path].lines:
                yield (
                    path,
                    of_path.sort_by([("line_number", "ascending"), ("column_number", "ascending")]).cast(columns),
                )


def only(donations: Donations, paths: Sequence[str]) -> Donations:
    """The donations of ``paths``."""
    return {path: donations[path] for path in paths if path in donations} if donations else {}
