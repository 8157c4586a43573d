"""What a run reports: the JSON shapes of ``driftline index``, ``remove`` and ``compact``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from driftline.storage.errors import DriftlineError
from driftline.storage.model import DocumentState
from driftline.tasks.compact import Figures


@dataclass(slots=True)
class SourceReport:
    """One source's part of a run. ``skipped`` are all files left out, as ``(path, reason)``, newly or not.

    ``revision`` is the ``rev`` of its last commit: reading the manifest as of it shows what the run left. ``commit`` is
    what git had checked out; with ``base`` only what differs between the two was looked at, otherwise everything,
    ``full_scan_reason`` says why if less was asked for.
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
    commit: str | None = None
    base: str | None = None
    full_scan_reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As ``index --json`` prints it; ``phases`` are in seconds."""
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
            "phases": {name: round(seconds, 3) for name, seconds in self.phases.items()},
        }


@dataclass(slots=True)
class IndexReport:
    """One run over all its sources. ``indexes`` names the search indexes that were built or extended.

    ``failed`` are the sources, by URI, whose failure was not raised.
    """

    run_id: str
    workspace: str
    sources: list[SourceReport] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    failed: list[tuple[str, DriftlineError]] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As ``index --json`` prints it."""
        return {
            "run_id": self.run_id,
            "workspace": self.workspace,
            "sources": [source.to_dict() for source in self.sources],
            "failed": [{"uri": uri, **error.to_dict()} for uri, error in self.failed],
            "indexes": self.indexes,
            "seconds": round(self.seconds, 3),
        }


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
