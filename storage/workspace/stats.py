"""The figures of a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftline.storage.deltas.manifest import totals
from driftline.storage.lines.indexes import VECTOR, coverage
from driftline.storage.model import WorkspaceStats
from driftline.storage.workspace.run_history import RunHistory

if TYPE_CHECKING:
    from driftline.storage.workspace.workspace import Workspace


def collect(workspace: Workspace) -> WorkspaceStats:
    """Read the figures from the manifests, the tables and the markers; read access is enough."""
    sources: list[dict[str, Any]] = []
    deltas = 0
    for entity, record in workspace.sources():
        documents = workspace.manifest(entity)
        manifest = documents.read(columns=["lines", "reason"])
        indexed, lines = totals(manifest)
        deltas += len(documents.log().deltas)
        sources.append({"entity": str(entity), "uri": record.uri, "documents": indexed, "lines": lines})
    index_types = set()
    if workspace.config.fingerprint is not None:
        tables = [workspace.lines(tenant) for tenant in workspace.tenants()]
        kinds = (coverage(table.open()).get(VECTOR) for table in tables if table.exists())
        index_types = {found.kind for found in kinds if found is not None}
    runs = [run for tenant in workspace.tenants() if (run := RunHistory(workspace.objects, tenant).last()) is not None]
    last = max(runs, key=lambda run: run.run_id, default=None)
    return WorkspaceStats(
        workspace=workspace.objects.uri,
        total_documents=sum(source["documents"] for source in sources),
        total_lines=sum(source["lines"] for source in sources),
        has_index=bool(index_types),
        index_type=min(index_types, default=None),
        model=workspace.config.model,
        sources=tuple(sources),
        deltas=deltas,
        last_run=last.model_dump(exclude={"format_version"}) if last else None,
    )
