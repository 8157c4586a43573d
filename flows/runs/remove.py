"""Remove sources and documents from the index; the files themselves are kept."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from driftline.flows.output.run_reports import RemoveReport
from driftline.flows.runs.branches import delete_branch
from driftline.storage.deltas.manifest import SCHEMA, totals
from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntity
from driftline.storage.layout import lease_path, new_ulid
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.definition_table import deep_tables
from driftline.storage.workspace.branch_cuts import branch_records
from driftline.storage.workspace.fleet_state import forget_index
from driftline.storage.workspace.records import RunHistory, RunRecord, SourceRecord
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.indexing.commit import ChangeSet, Committer, remove_strays, settle


def remove_source(
    workspace_uri: str,
    entity_path: str,
    *,
    wait_seconds: float = 0.0,
    storage_options: Mapping[str, Any] | None = None,
) -> RemoveReport:
    """Delete a source, its documents and its lines from the index; its files are kept.

    Raises BadEntity for an unknown source, LeaseHeld while a run is working on it; also WorkspaceNotFound,
    StorageError.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    known = Workspace.open(workspace_uri, storage_options)
    entity = Entity.parse(entity_path, known.config.hierarchy)
    if known.source(entity) is None:
        names = ", ".join(str(name) for name, _ in known.sources()) or "none"
        raise BadEntity("The source does not exist", str(entity), f"Sources: {names}.")
    workspace = Workspace.open_for_writing(workspace_uri, storage_options)
    run_id = new_ulid()
    definitions = acquire(workspace.objects, lease_path(entity, "deep"), run_id, wait_seconds=wait_seconds)
    with definitions, acquire_source(workspace, entity, run_id, wait_seconds=wait_seconds) as lease:
        settle(workspace, entity, lease)
        manifest = workspace.manifest(entity).read(columns=["path", "lines", "reason"])
        documents, lines = totals(manifest)
        batch, dim = 0, workspace.config.dim or 0
        if len(manifest):
            committer = Committer(workspace, entity, lease, run_id, workspace.lines(entity), dim)
            committer.commit(ChangeSet(SCHEMA.empty_table(), removed=tuple(manifest["path"].to_pylist())))
            batch = committer.batch
        for table in workspace.line_tables(entity):  # including tables of other models
            remove_strays(Committer(workspace, entity, lease, run_id, table, dim, batch))
        for deep in deep_tables(workspace.objects, entity):
            deep.remove(entity)
        for branch in branch_records(workspace, entity):
            delete_branch(workspace, entity, branch.name, run_id, wait_seconds=wait_seconds)
        workspace.unbind_source(entity)
    forget_index(workspace.objects, entity)
    report = RemoveReport(run_id, str(entity), documents, lines)
    record = RunRecord(
        run_id=run_id,
        kind="remove",
        started=started.isoformat(),
        seconds=time.monotonic() - clock,
        outcome="done",
        report=report.to_dict(),
    )
    RunHistory(workspace.objects, entity.tenant).record(record)
    return report


def remove_documents(
    workspace: Workspace,
    entity: Entity,
    paths: Iterable[str],
    *,
    record: SourceRecord | None = None,
    run_id: str | None = None,
    wait_seconds: float = 0.0,
) -> int:
    """Remove a source's documents at ``paths``, set its record if given, and return how many were removed.

    Raises LeaseHeld, LeaseLost, StorageError.
    """
    run_id = run_id or new_ulid()
    with acquire_source(workspace, entity, run_id, wait_seconds=wait_seconds) as lease:
        settle(workspace, entity, lease)
        if record is not None:
            workspace.bind_source(entity, record)
        known = workspace.manifest(entity).get(list(paths), columns=["path"])["path"].to_pylist()
        if known:
            table, dim = workspace.lines(entity), workspace.config.dim or 0
            committer = Committer(workspace, entity, lease, run_id, table, dim)
            committer.commit(ChangeSet(SCHEMA.empty_table(), removed=tuple(known)))
    return len(known)
