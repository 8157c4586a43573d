"""The lease of a source, whose tokens keep growing even if its file is lost (DESIGN, "Leases")."""

from __future__ import annotations

import contextlib

from driftline.storage.deltas.manifest import token_of
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import Lease, acquire
from driftline.storage.workspace.workspace import Workspace


def acquire_source(workspace: Workspace, entity: Entity, run_id: str, *, wait_seconds: float = 0.0) -> Lease:
    """Acquire the lease of ``entity``; as ``acquire``.

    Raises LeaseHeld, CorruptFile, WorkspaceTooNew, StorageError.
    """
    return acquire(
        workspace.objects,
        lease_path(entity),
        run_id,
        wait_seconds=wait_seconds,
        known_token=lambda: _known_token(workspace, entity),
    )


def _known_token(workspace: Workspace, entity: Entity) -> int:
    """The highest token in the commit markers and the manifest; 0 for a new source."""
    tokens = [table.commit_marker(entity).token for table in workspace.line_tables(entity)]
    with contextlib.suppress(CorruptFile):  # a repair sets the damaged file aside under this very lease
        tokens.append(token_of(workspace.manifest(entity).max_rev()))
    return max(tokens, default=0)
