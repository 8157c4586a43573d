"""Remove the findings of a verification, so that an index run can complete the repair (DESIGN, "Verification")."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set

from driftline.storage.deltas.manifest import SCHEMA
from driftline.storage.entities import Entity
from driftline.storage.errors import ObjectNotFound
from driftline.storage.layout import SOURCE, lease_path
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.indexes import drop
from driftline.storage.lines.segments import maintain
from driftline.storage.workspace.source_lease import acquire_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.committer import ChangeSet, Committer, settle

DAMAGED_PREFIX = "_damaged_"


def set_aside(workspace: Workspace, entity: Entity, path: str, run_id: str) -> bool:
    """Rename a damaged base, delta, record or lease of ``entity``, so that the rest is readable. Raises LeaseHeld.

    The lines of its documents, or the next index run, reveal what is missing. Returns whether a file was renamed.
    """
    directory, _, name = path.rpartition("/")
    objects = workspace.objects
    if path == lease_path(entity):
        # Whoever still holds it loses it: the token of the next lease, which continues from the index, fences them.
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


def set_table_aside(workspace: Workspace, tenant: Entity, fingerprint: str, run_id: str) -> int:
    """Drop what cannot be read of the table of ``fingerprint``; returns how many versions and fragments those were.

    The manifests then reveal the documents whose lines are missing. Raises LeaseHeld, StorageError.
    """
    with acquire(workspace.objects, lease_path(tenant, "maintenance"), run_id):
        return workspace.lines(tenant, fingerprint).set_damage_aside(f".{DAMAGED_PREFIX}{run_id}")


def repair_source(workspace: Workspace, entity: Entity, paths: Mapping[str, Set[str]], run_id: str) -> None:
    """Settle ``entity``, and remove the documents ``paths`` from each table, by fingerprint. Raises LeaseHeld.

    A table without documents to remove gets a new commit marker, so that there is exactly one.
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
    """Rebuild the search indexes ``names`` of the serving table. Raises LeaseHeld."""
    with acquire(workspace.objects, lease_path(tenant, "maintenance"), run_id):
        table = workspace.lines(tenant)
        drop(table, names)
        maintain(table)
