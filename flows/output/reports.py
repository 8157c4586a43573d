"""What a run reports: the JSON shapes of ``driftline index``, ``remove`` and ``compact``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driftline.storage.errors import DriftlineError
from driftline.storage.model import DocumentState
from driftline.storage.objects.request_counts import Counts, by_kind
from driftline.tasks.maintenance.compact import Figures


@dataclass(slots=True)
class SourceReport:
    """One source's part of a run. ``skipped`` are all files left out, as ``(path, reason)``, newly or not.

    ``revision`` is the ``rev`` of its last commit: reading the manifest as of it shows what the run left. ``commit`` is
    what git had checked out; with ``base`` only what differs between the two was looked at, otherwise everything,
    ``full_scan_reason`` says why if less was asked for. ``phases`` are the seconds that pass for the coordinator,
    ``worker_phases`` those that tasks take, summed over workers, while the phase ``batches`` passes.
    """

    entity: str
    uri: str
    states: dict[DocumentState, int] = field(default_factory=lambda: dict.fromkeys(DocumentState, 0))
    skipped: list[tuple[str, str]] = field(default_factory=list)
    lines_embedded: int = 0
    documents_total: int = 0
    lines_total: int = 0
    bytes_read: int = 0
    revision: int = 0
    deltas: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    worker_phases: dict[str, float] = field(default_factory=dict)
    commit: str | None = None
    base: str | None = None
    full_scan_reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As ``index --json`` prints it."""
        return {
            "entity": self.entity,
            "uri": self.uri,
            **{str(state): count for state, count in self.states.items()},
            "skipped": [{"path": path, "reason": str(reason)} for path, reason in sorted(self.skipped)],
            "lines_embedded": self.lines_embedded,
            "documents_total": self.documents_total,
            "lines_total": self.lines_total,
            "bytes_read": self.bytes_read,
            "revision": self.revision,
            "deltas": self.deltas,
            "commit": self.commit,
            "base": self.base,
            "full_scan_reason": self.full_scan_reason,
            "phases": _rounded(self.phases),
            "worker_phases": _rounded(self.worker_phases),
        }


@dataclass(slots=True)
class IndexReport:
    """One run over all its sources. ``indexes`` names the search indexes that were built or extended.

    ``failed`` are the sources, by URI, whose failure was not raised. ``phases`` are of the run itself; those of its
    sources may overlap, where several are worked on at once. ``requests`` are those to object stores, without Lance's.
    """

    run_id: str
    workspace: str
    sources: list[SourceReport] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    failed: list[tuple[str, DriftlineError]] = field(default_factory=list)
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    requests: Counts = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As ``index --json`` prints it; ``phases`` and ``worker_phases`` are the sums over run and sources."""
        return {
            "run_id": self.run_id,
            "workspace": self.workspace,
            "sources": [source.to_dict() for source in self.sources],
            "failed": [{"uri": uri, **error.to_dict()} for uri, error in self.failed],
            "indexes": self.indexes,
            "seconds": round(self.seconds, 3),
            "phases": _rounded(_summed([*(source.phases for source in self.sources), self.phases])),
            "worker_phases": _rounded(_summed(source.worker_phases for source in self.sources)),
            "requests": by_kind(self.requests),
            "requests_by_phase": self.requests,
        }


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            sums[name] = sums.get(name, 0.0) + seconds
    return sums


def _rounded(phases: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in phases.items()}


@dataclass(frozen=True, slots=True)
class RemoveReport:
    """What ``driftline remove`` took out of the index."""

    run_id: str
    entity: str
    documents: int
    lines: int

    def to_dict(self) -> dict[str, Any]:
        """As ``remove --json`` prints it."""
        return {"run_id": self.run_id, "entity": self.entity, "documents": self.documents, "lines": self.lines}


@dataclass(slots=True)
class TenantCompaction:
    """One tenant's part of a compaction. ``folded`` counts deltas by source; ``skipped`` says what was left and why."""

    tenant: str
    folded: dict[str, int] = field(default_factory=dict)
    indexes: list[str] = field(default_factory=list)
    versions_removed: int = 0
    skipped: list[str] = field(default_factory=list)
    before: Figures | None = None
    after: Figures | None = None

    def to_dict(self) -> dict[str, Any]:
        """As ``compact --json`` prints it."""
        return {
            "tenant": self.tenant,
            "folded": [{"entity": entity, "deltas": deltas} for entity, deltas in sorted(self.folded.items())],
            "indexes": self.indexes,
            "versions_removed": self.versions_removed,
            "skipped": self.skipped,
            "before": self.before.to_dict() if self.before else None,
            "after": self.after.to_dict() if self.after else None,
        }


@dataclass(slots=True)
class CompactReport:
    """One compaction over all its tenants."""

    run_id: str
    workspace: str
    tenants: list[TenantCompaction] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As ``compact --json`` prints it."""
        return {
            "run_id": self.run_id,
            "workspace": self.workspace,
            "tenants": [tenant.to_dict() for tenant in self.tenants],
            "seconds": round(self.seconds, 3),
        }
