"""Rebuilds a lost ``_workspace.json`` from what the workspace holds (DESIGN, "Verification")."""

from __future__ import annotations

import contextlib
from collections import Counter

from driftline.storage.deltas.manifest import Manifest
from driftline.storage.errors import AlreadyExists, CorruptFile, ObjectNotFound, PreconditionFailed
from driftline.storage.layout import CONFIG
from driftline.storage.lines.table import LineTable
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import WorkspaceConfig, read_record
from driftline.storage.workspace.workspace import Workspace


def config_is_lost(objects: ObjectStore) -> bool:
    """Whether a workspace lies here whose configuration is missing or damaged. Raises WorkspaceTooNew."""
    try:
        config = read_record(objects, CONFIG, WorkspaceConfig)
    except CorruptFile:
        return True
    return config is None and bool(Workspace(objects, WorkspaceConfig()).tenants())


def restore_config(objects: ObjectStore, run_id: str, workspace_id: str | None = None) -> None:
    """Write a lost configuration again; ``workspace_id`` is what the memory catalog says, if there is one.

    The embedding is that of most documents. The name of its model is unknown until the next run chooses the model.
    Raises StorageError.
    """
    config = WorkspaceConfig() if workspace_id is None else WorkspaceConfig(workspace_id=workspace_id)
    fingerprint, dim = _embedding(Workspace(objects, config))
    data = config.model_copy(update={"fingerprint": fingerprint, "dim": dim}).model_dump_json(indent=1).encode()
    with contextlib.suppress(AlreadyExists, PreconditionFailed):  # somebody else has written it meanwhile
        try:
            damaged, version = objects.get_versioned(CONFIG)
        except ObjectNotFound:
            objects.create(CONFIG, data)
        else:
            objects.create(f"_damaged_{run_id}{CONFIG}", damaged)
            objects.replace(CONFIG, data, version)


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
