"""Define the run reports, and their JSON format for ``driftline index``, ``remove`` and ``compact``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driftline.storage.documents import DocumentState
from driftline.storage.errors import DriftlineError
from driftline.storage.objects.store_requests import Counts, by_kind
from driftline.tasks.maintenance.search_quality import Figures

MAX_TOO_LARGE = 10
"""Maximum number of oversized files to list, each with its size."""


@dataclass(slots=True)
class SourceReport:
    """One source's part of a run.

    ``skipped`` lists every file that is not indexed as ``(path, reason)``, including files skipped by earlier runs;
    ``truncated`` lists this run's files with overlong lines, as ``(path, characters dropped)``; ``too_large`` maps
    paths to sizes, as does ``partially_indexed`` for files indexed only with their first and last lines;
    ``missing_extra`` counts documents whose extractor is not installed; ``redacted`` counts the credentials that this
    run redacted, by rule. ``revision`` is the ``rev`` of the run's last commit; the manifest at that ``rev`` is the
    run's final state. ``commit`` is the commit that git had checked out. If ``base`` is set, the run scanned only the
    differences from ``base`` to ``commit``; if it fell back to a full scan, ``full_scan_reason`` explains why.
    ``lines_reused`` counts lines copied from other branches or from the main index. ``branch_cut`` explains why this
    run took a new snapshot for its ``branch`` or kept the old one. ``phases`` are wall-clock seconds of the
    coordinator; ``worker_phases`` are task seconds during the ``batches`` phase, summed over workers.
    ``documents_committed`` and ``lines_committed`` count what this run embedded and committed.
    """

    entity: str
    uri: str
    states: dict[DocumentState, int] = field(default_factory=lambda: dict.fromkeys(DocumentState, 0))
    skipped: list[tuple[str, str]] = field(default_factory=list)
    truncated: list[tuple[str, int]] = field(default_factory=list)
    too_large: dict[str, int] = field(default_factory=dict)
    partially_indexed: dict[str, int] = field(default_factory=dict)
    missing_extra: int = 0
    redacted: dict[str, int] = field(default_factory=dict)
    lines_embedded: int = 0
    lines_reused: int = 0
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
    branch: str | None = None
    branch_cut: str = ""
    documents_committed: int = 0
    lines_committed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary.

        Returns:
            The source's object in ``index --json``.

        Examples:
            >>> SourceReport("source:a", "/a").to_dict()["entity"]
            'source:a'
        """
        return {
            "entity": self.entity,
            "uri": self.uri,
            **{str(state): count for state, count in self.states.items()},
            "skipped": [{"path": path, "reason": str(reason)} for path, reason in sorted(self.skipped)],
            "truncated": [{"path": path, "characters": count} for path, count in sorted(self.truncated)],
            "too_large": [{"path": path, "bytes": size} for path, size in _largest(self.too_large)],
            "partially_indexed": [{"path": path, "bytes": size} for path, size in _largest(self.partially_indexed)],
            "missing_extra": self.missing_extra,
            "redacted": dict(sorted(self.redacted.items())),
            "lines_embedded": self.lines_embedded,
            "lines_reused": self.lines_reused,
            "documents_total": self.documents_total,
            "lines_total": self.lines_total,
            "bytes_read": self.bytes_read,
            "revision": self.revision,
            "deltas": self.deltas,
            "commit": self.commit,
            "base": self.base,
            "full_scan_reason": self.full_scan_reason,
            "branch": self.branch,
            "branch_cut": self.branch_cut,
            "phases": _rounded(self.phases),
            "worker_phases": _rounded(self.worker_phases),
        }


def _largest(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda file: (-file[1], file[0]))[:MAX_TOO_LARGE]


@dataclass(slots=True)
class IndexReport:
    """The report of an index run over all its sources.

    ``indexes`` lists the search indexes that the run built or extended; ``definitions_embedded`` counts the definitions
    embedded with a transformer. ``failed`` maps URIs to failures that were not raised. ``phases`` are seconds of the
    run itself; the phases of concurrent sources overlap. ``requests`` counts the object store requests per phase,
    excluding Lance's own requests.
    """

    run_id: str
    workspace: str
    sources: list[SourceReport] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    definitions_embedded: int = 0
    failed: list[tuple[str, DriftlineError]] = field(default_factory=list)
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    requests: Counts = field(default_factory=dict)

    def kept(self) -> str:
        """Return a sentence about the work committed so far.

        Returns:
            The sentence, with no final period.

        Examples:
            >>> IndexReport("01J", "/w", [SourceReport("source:a", "/a", documents_committed=1_200)]).kept()
            'This run committed 1,200 documents with 0 lines, which are kept'
        """
        documents = sum(source.documents_committed for source in self.sources)
        lines = sum(source.lines_committed for source in self.sources)
        if not documents:
            return "This run did not commit any documents"
        return f"This run committed {documents:,} documents with {lines:,} lines, which are kept"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary; ``phases`` and ``worker_phases`` are summed over the run and its sources.

        Returns:
            The ``index --json`` object.

        Examples:
            >>> IndexReport("01J", "/w", []).to_dict()["sources"]
            []
        """
        return {
            "run_id": self.run_id,
            "workspace": self.workspace,
            "sources": [source.to_dict() for source in self.sources],
            "failed": [{"uri": uri, **error.to_dict()} for uri, error in self.failed],
            "indexes": self.indexes,
            "definitions_embedded": self.definitions_embedded,
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
    """The documents and lines that ``driftline remove`` deleted from the index."""

    run_id: str
    entity: str
    documents: int
    lines: int

    def to_dict(self) -> dict[str, Any]:
        """Return the ``remove --json`` object."""
        return {"run_id": self.run_id, "entity": self.entity, "documents": self.documents, "lines": self.lines}


@dataclass(slots=True)
class TenantCompaction:
    """One tenant's part of a compaction. ``folded`` counts deltas by source; ``skipped`` contains messages.

    ``measured`` is when search quality was last measured, in this or an earlier compaction.
    """

    tenant: str
    folded: dict[str, int] = field(default_factory=dict)
    indexes: list[str] = field(default_factory=list)
    versions_removed: int = 0
    skipped: list[str] = field(default_factory=list)
    before: Figures | None = None
    after: Figures | None = None
    measured: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the tenant's object in ``compact --json``."""
        return {
            "tenant": self.tenant,
            "folded": [{"entity": entity, "deltas": deltas} for entity, deltas in sorted(self.folded.items())],
            "indexes": self.indexes,
            "versions_removed": self.versions_removed,
            "skipped": self.skipped,
            "before": self.before.to_dict() if self.before else None,
            "after": self.after.to_dict() if self.after else None,
            "measured": self.measured,
        }


@dataclass(slots=True)
class CompactReport:
    """The report of a compaction over all its tenants."""

    run_id: str
    workspace: str
    tenants: list[TenantCompaction] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the ``compact --json`` object."""
        return {
            "run_id": self.run_id,
            "workspace": self.workspace,
            "tenants": [tenant.to_dict() for tenant in self.tenants],
            "seconds": round(self.seconds, 3),
        }


def price(requests: Mapping[str, int], prices: Mapping[str, float]) -> float | None:
    """Return the cost of ``requests``; ``prices`` are per 1,000 requests. Returns None if no kind has a price."""
    priced = [kind for kind in requests if kind in prices]
    return sum(prices[kind] * requests[kind] for kind in priced) / 1000 if priced else None
