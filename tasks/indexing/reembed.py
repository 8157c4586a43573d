"""Switch to the table of a new embedding once every source is complete in it (DESIGN, "Embedding")."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pyarrow.compute as pc

from driftline.storage.errors import LeaseHeld
from driftline.storage.ids import new_ulid
from driftline.storage.workspace.source_lease import acquire_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.context import ModelRef
from driftline.tasks.indexing.committer import Committer, settle


def complete_reembedding(workspace: Workspace, model: ModelRef, replaces: str, report: Callable[[str], None]) -> bool:
    """Make ``model`` current if all documents of all sources have its fingerprint; otherwise report what is missing.

    Until then the old table serves. The leases of all sources are held, so that none moves back. Returns whether
    ``model`` is current. Raises FingerprintMismatch if a third model became current meanwhile.
    """
    run_id = new_ulid()
    missing = []
    with ExitStack() as leases:
        for entity, _ in workspace.sources():
            try:
                lease = leases.enter_context(acquire_source(workspace, entity, run_id))
            except LeaseHeld as error:
                report(f"The old model serves until the next run with --reembed: {error.what}")
                return False
            settle(workspace, entity, lease)
            manifest = workspace.manifest(entity).read(columns=["fingerprint", "reason"])
            documents = manifest.filter(pc.is_null(manifest["reason"]))
            if pc.any(pc.not_equal(documents["fingerprint"], model.fingerprint)).as_py():
                missing.append(str(entity))
            table = workspace.lines(entity, model.fingerprint)
            remove_strays(Committer(workspace, entity, lease, run_id, table, model.dim))
        if missing:
            report(f"The old model serves until these sources are embedded again, too: {', '.join(missing)}")
            return False
        workspace.bind_model(model.name, model.fingerprint, model.dim, instead_of=replaces)
    return True


def remove_strays(committer: Committer) -> int:
    """Remove the lines of documents that are not in the manifest; returns the number of such documents.

    A run writes only one of two tables of a tenant, so the other keeps the lines of documents that are deleted
    meanwhile.
    """
    if not committer.table.exists():
        return 0
    manifest = committer.workspace.manifest(committer.entity).read(columns=["path", "reason"])
    indexed = manifest.filter(pc.is_null(manifest["reason"]))["path"].to_pylist()
    strays = committer.table.paths(committer.entity).difference(indexed)
    if strays:
        committer.remove_lines(sorted(strays))
    return len(strays)
