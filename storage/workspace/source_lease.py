"""The lease of a source, whose tokens keep growing even if its file is lost (DESIGN, "Leases")."""

from __future__ import annotations

import contextlib

from driftline.storage.deltas.manifest import token_of
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, LeaseLost
from driftline.storage.leases.lease import Lease, acquire
from driftline.storage.workspace.records import BranchRecord, read_record
from driftline.storage.workspace.workspace import Branch, Workspace


def acquire_source(workspace: Workspace, entity: Entity, run_id: str, *, wait_seconds: float = 0.0) -> Lease:
    """Acquire the lease of ``entity``, or of its branch; as ``acquire``.

    Raises LeaseHeld, LeaseLost if the branch is another cut by now, CorruptFile, WorkspaceTooNew, StorageError.
    """
    branch = workspace.branch_of(entity)
    lease = acquire(
        workspace.objects,
        workspace.lease_of(entity),
        run_id,
        wait_seconds=wait_seconds,
        known_token=lambda: _known_token(workspace, entity),
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
    """The record of the cut that holds ``branch``. Raises LeaseLost if there is none any more."""
    record = read_record(workspace.objects, branch.record_path, BranchRecord)
    if record is None or record.cut != branch.cut:
        where = f"{workspace.objects.uri}/{branch.record_path}"
        raise LeaseLost("Another run has deleted this branch, or cut it anew", where, "Run it again.")
    return record


def _known_token(workspace: Workspace, entity: Entity) -> int:
    """The highest token in the commit markers and the manifest; 0 for a new source."""
    # The first run of another source may have written fragments, and no version of the table yet.
    tables = [table for table in workspace.line_tables(entity) if table.exists()]
    tokens = [table.commit_marker(entity).token for table in tables]
    with contextlib.suppress(CorruptFile):  # a repair sets the damaged file aside under this very lease
        tokens.append(token_of(workspace.manifest(entity).max_rev()))
    return max(tokens, default=0)
