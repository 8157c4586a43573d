"""The statistics of a workspace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from driftline.storage.deltas.manifest import Manifest, totals
from driftline.storage.entities import Entity
from driftline.storage.lance.vector_index import VECTOR
from driftline.storage.lines.table import LineTable
from driftline.storage.model import WorkspaceStats
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import SourceRecord, WorkspaceConfig
from driftline.storage.workspace.run_history import RunHistory


def collect(
    objects: ObjectStore,
    config: WorkspaceConfig,
    sources_of_workspace: Iterable[tuple[Entity, SourceRecord]],
    tenants: Sequence[Entity],
) -> WorkspaceStats:
    """Collect the statistics from manifests, tables and the run history; needs only read access."""
    sources: list[dict[str, Any]] = []
    deltas = 0
    for entity, record in sources_of_workspace:
        manifest = Manifest(objects, entity)
        rows = manifest.read(columns=["lines", "reason"])
        indexed, lines = totals(rows)
        deltas += len(manifest.log().deltas)
        sources.append({"entity": str(entity), "uri": record.uri, "documents": indexed, "lines": lines})
    index_types = set()
    if config.fingerprint is not None:
        tables = [LineTable(objects, tenant, config.fingerprint) for tenant in tenants]
        known = (index for table in tables if table.exists() for index in table.open().describe_indices())
        index_types = {index.index_type for index in known if index.name == VECTOR}
    runs = [run for tenant in tenants if (run := RunHistory(objects, tenant).last()) is not None]
    last = max(runs, key=lambda run: run.run_id, default=None)
    return WorkspaceStats(
        workspace=objects.uri,
        total_documents=sum(source["documents"] for source in sources),
        total_lines=sum(source["lines"] for source in sources),
        has_index=bool(index_types),
        index_type=min(index_types, default=None),
        model=config.model,
        sources=tuple(sources),
        deltas=deltas,
        last_run=last.model_dump(exclude={"format_version"}) if last else None,
    )
