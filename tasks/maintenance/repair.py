"""Repair a workspace step by step: quarantine damaged parts for the next index run to rebuild, and restore a lost
``_workspace.json`` (DESIGN, "Verification").
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime

from driftline.storage.deltas.manifest import SCHEMA, Manifest
from driftline.storage.entities import Entity
from driftline.storage.errors import (
    AlreadyExists,
    CorruptFile,
    ModelNotFound,
    ObjectNotFound,
    PreconditionFailed,
)
from driftline.storage.json_records import to_json
from driftline.storage.layout import (
    CONFIG,
    SOURCE,
    lease_path,
)
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.indexes import drop, maintain
from driftline.storage.lines.line_table import LineTable
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.memory_indexes import rebuild_indexes
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import WorkspaceConfig, read_record
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.embedding.models import model_of
from driftline.tasks.indexing.commit import ChangeSet, Committer, settle
from driftline.tasks.maintenance.verification import Finding, FindingKind

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
