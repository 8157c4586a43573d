"""The tasks of a compaction: fold the deltas of a source, rewrite fragments of a table, collect figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from driftline.storage.deltas.delta_index import Folded
from driftline.storage.entities import Entity
from driftline.storage.lance.maintenance import rewrite
from driftline.storage.leases.lease import Lease
from driftline.storage.lines.quality import SearchQuality, measure
from driftline.storage.lines.table import LineTable
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.context import TaskContext
from driftline.tasks.indexing.committer import settle


@dataclass(frozen=True, slots=True)
class RewriteSpec:
    """A task of a compaction plan for the table of a tenant and a fingerprint."""

    tenant: Entity
    fingerprint: str
    task: Any


@dataclass(frozen=True, slots=True)
class Figures:
    """Sizes of a tenant's part of a workspace, and latency and recall of its search, which are None without lines."""

    files: int
    bytes: int
    deltas: int
    fragments: int
    versions: int
    p50_seconds: float | None
    recall_at_10: float | None

    def to_dict(self) -> dict[str, Any]:
        """As ``compact --json`` prints it."""
        return asdict(self)


def rewrite_fragments(spec: RewriteSpec, context: TaskContext) -> Any:
    """Execute a task of a plan on any worker; returns its result for the commit."""
    return rewrite(context.workspace.lines(spec.tenant, spec.fingerprint), spec.task)


def fold_deltas(workspace: Workspace, entity: Entity, lease: Lease) -> Folded:
    """Settle the staged deltas of a source, then fold its deltas under ``lease``, the lease of the source."""
    settle(workspace, entity, lease)
    lease.check()
    return workspace.manifest(entity).compact()


def take_stock(workspace: Workspace, tenant: Entity) -> Figures:
    """Count the tenant's files, and measure the search of the serving table."""
    files = list(workspace.objects.list(tenant.directory))
    tables = [table for table in workspace.line_tables(tenant) if table.exists()]
    quality = _quality([table for table in tables if table.fingerprint == workspace.config.fingerprint])
    return Figures(
        files=len(files),
        bytes=sum(info.size_bytes for info in files),
        deltas=sum(len(workspace.manifest(entity).log().deltas) for entity, _ in workspace.sources(tenant)),
        fragments=sum(len(table.open().get_fragments()) for table in tables),
        versions=sum(info.path.endswith(".manifest") for info in files),
        p50_seconds=quality.p50_seconds if quality else None,
        recall_at_10=quality.recall if quality else None,
    )


def _quality(serving: list[LineTable]) -> SearchQuality | None:
    return measure(serving[0]) if serving else None
