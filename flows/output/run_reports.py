"""Define the run reports, and their JSON format for ``driftline index``, ``remove`` and ``compact``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.manifest import totals
from driftline.storage.documents import DocumentState, SkipReason
from driftline.storage.errors import DriftlineError
from driftline.storage.json_records import as_dict
from driftline.storage.objects.store_requests import Counts, by_kind
from driftline.tasks.extraction.extractor import ENDS_MARK, MISSING_MARK
from driftline.tasks.scanning.scan import is_container

if TYPE_CHECKING:
    from driftline.storage.workspace.fleet_state import KnownRepository
    from driftline.tasks.indexing.batch import BatchResult
    from driftline.tasks.maintenance.search_quality import Figures
    from driftline.tasks.scanning.scan import ScanResult

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
    ``partial`` is set if it scanned only these differences or named files. ``lines_reused`` counts lines copied from
    other branches or from the main index. ``branch_cut`` explains why this run took a new snapshot for its ``branch``
    or kept the old one. ``phases`` are wall-clock seconds of the coordinator; ``worker_phases`` are task seconds during
    the ``batches`` phase, summed over workers.
    ``unmatched_excludes`` are new patterns of ``--exclude`` that match no file outside excluded folders.
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
    partial: bool = False
    full_scan_reason: str = ""
    branch: str | None = None
    branch_cut: str = ""
    unmatched_excludes: tuple[str, ...] = ()
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
            "partial": self.partial,
            "full_scan_reason": self.full_scan_reason,
            "branch": self.branch,
            "branch_cut": self.branch_cut,
            "unmatched_excludes": [*self.unmatched_excludes],
            "phases": _rounded(self.phases),
            "worker_phases": _rounded(self.worker_phases),
        }


def _largest(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda file: (-file[1], file[0]))[:MAX_TOO_LARGE]


TOTALS = ("path", "size_bytes", "lines", "reason", "extractor")
"""The columns of the manifest that ``SourceTally.totals`` reads."""
PASSING = frozenset({SkipReason.UNREADABLE, SkipReason.UNSTABLE})
"""Temporary reasons, which may not apply in the next run."""


@dataclass(slots=True)
class SourceTally:
    """Counts one source's run into its ``report``.

    ``new_hashes`` counts the contents of new documents. ``archives`` is the source's setting.
    """

    report: SourceReport
    archives: bool
    new_hashes: Counter[str] = field(default_factory=Counter)

    @property
    def seen_before(self) -> int:
        """The number of scanned documents that were known before the run."""
        known = (DocumentState.UNCHANGED, DocumentState.TOUCHED, DocumentState.CHANGED)
        return sum(self.report.states[state] for state in known)

    def temporarily_skipped(self) -> list[str]:
        """Return the files that this run could not read, but the next one may."""
        return [path for path, reason in self.report.skipped if reason in PASSING]

    def in_words(self) -> str:
        counts = ", ".join(f"{count:,} {state} documents" for state, count in self.report.states.items() if count)
        return f"{counts or 'no documents'}; {self.report.lines_embedded:,} lines embedded"

    def scanned(self, scan: ScanResult) -> None:
        """Count what a scan found, without the documents to embed."""
        report = self.report
        self._add_seconds({"scan": scan.seconds})
        report.states[DocumentState.UNCHANGED] += scan.diff.unchanged
        report.too_large.update(scan.too_large)
        self._skip(zip(*(scan.skipped[name].to_pylist() for name in ("path", "reason")), strict=True))

    def retouched(self, documents: pa.Table) -> None:
        """Count ``documents`` (diff.CHANGE_SCHEMA) whose metadata changed, but not their content."""
        if not len(documents):
            return
        indexed = pc.is_null(documents["reason"])
        self.report.states[DocumentState.TOUCHED] += pc.sum(indexed, min_count=0).as_py()
        skipped = documents.filter(pc.invert(indexed))
        self.report.skipped += zip(*(skipped[name].to_pylist() for name in ("path", "reason")), strict=True)

    def embedded(self, result: BatchResult) -> None:
        """Count a batch."""
        report = self.report
        for state, count in result.states.items():
            report.states[state] += count
        report.skipped += result.skipped
        report.truncated += result.truncated
        report.lines_embedded += result.lines
        report.lines_reused += result.lines_reused
        report.bytes_read += result.bytes_read
        for rule, count in result.redacted.items():
            report.redacted[rule] = report.redacted.get(rule, 0) + count
        self._add_seconds(result.seconds)
        self.new_hashes.update(result.new_hashes)

    def committed(self, rows: pa.Table, results: Iterable[BatchResult]) -> None:
        """Count a commit of ``results`` that added ``rows`` (manifest.SCHEMA)."""
        self.report.documents_committed += pc.sum(pc.is_null(rows["reason"]), min_count=0).as_py()
        self.report.lines_committed += sum(result.lines + result.lines_reused for result in results)

    def opened(self, failed: Mapping[str, str]) -> None:
        """Remove archives whose members are now documents from the skipped files; ``failed`` maps others to reasons."""
        skipped, self.report.skipped = self.report.skipped, []
        self._skip((path, failed.get(path, reason)) for path, reason in skipped)

    def deleted(self, documents: pa.Table) -> None:
        """Count deleted ``documents`` (diff.DELETED_SCHEMA)."""
        self.report.states[DocumentState.DELETED] += pc.sum(pc.is_null(documents["reason"]), min_count=0).as_py()

    def unchanged(self, documents: pa.Table, revision: int) -> None:
        """Count a source that is unchanged at ``revision``; ``documents`` has the columns TOTALS of its manifest."""
        self.report.revision = revision
        self.totals(documents)
        self.report.states[DocumentState.UNCHANGED] = self.report.documents_total

    def totals(self, documents: pa.Table, *, is_partial: bool = False) -> None:
        """Count the manifest after the run; ``documents`` has its columns TOTALS.

        If ``is_partial`` is set, the run scanned only changed files, and the others are unchanged.
        """
        report = self.report
        report.documents_total, report.lines_total = totals(documents)
        marks = [mark for mark in pc.unique(documents["extractor"]).to_pylist() if mark]
        none = documents.slice(0, 0)

        def marked(pattern: str) -> pa.Table:
            found = [mark for mark in marks if re.search(pattern, mark)]
            return documents.filter(pc.is_in(documents["extractor"], pa.array(found, pa.string()))) if found else none

        report.missing_extra, partially_indexed = len(marked(MISSING_MARK)), marked(ENDS_MARK)
        report.partially_indexed = dict(
            zip(partially_indexed["path"].to_pylist(), partially_indexed["size_bytes"].to_pylist(), strict=True)
        )
        if is_partial:
            seen = (DocumentState.NEW, DocumentState.CHANGED, DocumentState.TOUCHED)
            others = report.documents_total - sum(report.states[state] for state in seen)
            report.states[DocumentState.UNCHANGED] = others

    def _skip(self, files: Iterable[tuple[str, str]]) -> None:
        """Add skipped ``files``, except archives that are "skipped" only because their members are documents."""
        self.report.skipped += [
            (path, reason)
            for path, reason in files
            if not (reason == SkipReason.ARCHIVE and self.archives and is_container(path))
        ]

    def _add_seconds(self, of_workers: Mapping[str, float]) -> None:
        for phase, seconds in of_workers.items():
            self.report.worker_phases[phase] = self.report.worker_phases.get(phase, 0.0) + seconds


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
        return as_dict(self)


@dataclass(frozen=True, slots=True)
class RepositoryReport:
    """One repository of a fleet. ``lag_seconds`` is how long its index is known to be behind.

    ``has_failed`` is set if this run failed for it; in the report of ``fleet status``, if its last attempt failed.
    """

    id: str
    path: str
    entity: str
    state: str
    former_path: str
    archived: bool
    fork: bool
    visibility: str
    size_bytes: int
    commit: str
    indexed: str
    lag_seconds: float
    failures: int
    reason: str
    branches: dict[str, str | None]
    skipped_branches: dict[str, str]
    pull_requests_problem: str
    readers_at: datetime | None
    readers_problem: str
    looked_at: datetime | None
    indexed_at: datetime | None
    missed_since: datetime | None
    retry_at: datetime | None
    is_new: bool
    has_failed: bool

    @classmethod
    def of(cls, known: KnownRepository, now: datetime, before: KnownRepository | None, state: str = "") -> Self:
        """Return the report on a repository that was in the state ``before`` when the run started."""
        listed, readers = known.listed, known.readers
        same = ("entity", "former_path", "commit", "indexed", "failures", "skipped_branches", "readers_problem")
        times = ("looked_at", "indexed_at", "missed_since", "retry_at")
        return cls(
            **{name: getattr(listed, name) for name in ("id", "path", "archived", "fork", "visibility", "size_bytes")},
            **{name: getattr(known, name) for name in (*same, *times)},
            state=state or known.state,
            lag_seconds=known.lag_seconds(now),
            reason=known.excluded or known.reason,
            branches={name: each.indexed or None for name, each in known.branches.items()},
            pull_requests_problem=known.pulls_problem,
            readers_at=readers.at if readers is not None else None,
            is_new=before is None,
            has_failed=known.failures > (before.failures if before is not None else 0),
        )


@dataclass(frozen=True, slots=True)
class ListingReport:
    """What a host listed, the number of requests it took, and how many repositories were ``asked`` for their commit."""

    found: int
    complete: bool
    requests: int
    unchanged_pages: int
    waited_seconds: float
    asked: int


@dataclass(frozen=True, slots=True)
class FleetReport:
    """One fleet: its ``listing`` in this run or, for ``fleet status``, when it was ``listed_at``.

    ``provider`` is None if the fleet is no longer configured. ``problems`` are listings that are incomplete, and
    deletions that were refused.
    """

    name: str
    provider: str | None
    problems: tuple[str, ...]
    repositories: tuple[RepositoryReport, ...]
    listing: ListingReport | None = None
    listed_at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fleet's object in ``fleet list``, ``sync`` and ``status --json``."""
        fleet = as_dict(self)
        listed_at, listing = fleet.pop("listed_at"), fleet.pop("listing")
        return fleet | (listing or {"listed_at": listed_at})


@dataclass(frozen=True, slots=True)
class BranchToIndex:
    """A branch that a sync updates; ``commit`` is None if it is gone."""

    entity: str
    name: str
    commit: str | None


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync indexes, or would index. ``run_id`` is None without a run."""

    dry_run: bool
    run_id: str | None
    branch_run_ids: tuple[str, ...]
    to_index: tuple[str, ...]
    branches: tuple[BranchToIndex, ...]

    @property
    def has_changed(self) -> bool:
        """Whether there was a run."""
        return self.run_id is not None or bool(self.branch_run_ids)


@dataclass(frozen=True, slots=True)
class FleetsReport:
    """The fleets of a workspace; ``sync`` is None in the report of ``fleet list`` and ``fleet status``."""

    workspace: str
    fleets: tuple[FleetReport, ...]
    sync: SyncReport | None = None

    @property
    def failures(self) -> list[str]:
        """The fleets' problems, and why each failed repository failed."""
        problems = [f"{fleet.name}: {problem}" for fleet in self.fleets for problem in fleet.problems]
        rows = (row for fleet in self.fleets for row in fleet.repositories)
        return problems + [f"{row.path}: {row.reason}" for row in rows if row.has_failed]

    def in_words(self) -> str:
        """Summarize a sync in one line."""
        states = [row.state for fleet in self.fleets for row in fleet.repositories]
        to_index, branches = (len(self.sync.to_index), len(self.sync.branches)) if self.sync else (0, 0)
        changed = f", {branches:,} branches changed" if branches else ""
        return f"{len(states):,} repositories, {to_index:,} changed{changed}, {states.count('retired'):,} retired"

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``fleet list``, ``sync`` and ``status --json``."""
        sync = as_dict(self.sync) if self.sync is not None else {}
        return {"workspace": self.workspace, **sync, "fleets": [fleet.to_dict() for fleet in self.fleets]}


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
        folded = [{"entity": entity, "deltas": deltas} for entity, deltas in sorted(self.folded.items())]
        return as_dict(self) | {"folded": folded}


@dataclass(slots=True)
class CompactReport:
    """The report of a compaction over all its tenants."""

    run_id: str
    workspace: str
    tenants: list[TenantCompaction] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the ``compact --json`` object."""
        return as_dict(self)
