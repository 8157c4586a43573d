"""Compute statistics from a workspace's run history: rows for ``driftline runs``, series for ``driftline report``."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from driftline.flows.output.run_reports import price
from driftline.storage.entities import Boundary
from driftline.storage.workspace.records import RunHistory, RunRecord, whole_run
from driftline.storage.workspace.workspace import Workspace

_SUMMED = ("new", "changed", "touched", "deleted", "lines_embedded", "bytes_read")


@dataclass(frozen=True, slots=True)
class Series:
    """A line in a plot: its values over time, oldest first."""

    name: str
    points: Sequence[tuple[datetime, float]]


def newest_runs(
    workspace: Workspace, limit: int, others: Iterable[RunRecord] = (), within: Boundary | None = None
) -> list[RunRecord]:
    """Return up to ``limit`` runs of all tenants and ``others``, newest first; a run over several tenants is listed
    once.

    ``others`` must be sorted newest first. With ``within``, the boundary's tenants are read, and nothing else.
    """
    tenants = [tenant for tenant in workspace.tenants() if within is None or tenant in within.tenants]
    histories = [RunHistory(workspace.objects, tenant) for tenant in tenants]
    run_ids = heapq.merge(*([(run_id, n) for run_id in runs.ids()] for n, runs in enumerate(histories)), reverse=True)
    every = heapq.merge(_read(run_ids, histories), others, key=_moment, reverse=True)
    return list(islice(every, limit))


def _read(run_ids: Iterable[tuple[str, int]], histories: Sequence[RunHistory]) -> Iterator[RunRecord]:
    """Yield the records of ``(run id, position of its history)`` pairs, merged by run id."""
    for run_id, group in groupby(run_ids, key=itemgetter(0)):
        records = [record for _, tenant in group if (record := histories[tenant].get(run_id)) is not None]
        if records:
            yield whole_run(records)


def _parts(run: RunRecord) -> list[dict[str, Any]]:
    """Return a run's reports, one per tenant."""
    parts: list[dict[str, Any]] = run.report.get("parts", [run.report])
    return parts


def to_row(run: RunRecord) -> dict[str, Any]:
    """Return a run's ``runs --json`` object: the fields common to all runs, then those specific to its kind."""
    return {
        "run_id": run.run_id,
        "kind": run.kind,
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "outcome": run.outcome,
        **_figures(run),
    }


OF_EVERY_RUN = ("run_id", "kind", "started", "seconds", "outcome")
SHOWN_COMMIT = 12
"""How many characters of a commit id to show."""


def in_words(row: Mapping[str, Any]) -> str:
    """Format the nonzero statistics of a row from ``to_row``.

    Examples:
        >>> in_words({"kind": "index", "sources": ["source:a"], "new": 1_200, "changed": 0, "commits": ["5e50c5f"]})
        'source:a, 1,200 new, commits 5e50c5f'
    """
    shown = []
    for name, value in row.items():
        if name in OF_EVERY_RUN or not value:
            continue
        words = name.replace("_", " ")
        if name == "sources":
            shown.append(value[0] if len(value) == 1 else f"{len(value):,} sources")
        elif isinstance(value, list):
            each = [str(one)[:SHOWN_COMMIT] if name == "commits" else str(one) for one in value]
            shown.append(f"{words} {' '.join(each)}")
        else:
            shown.append(f"{value:,} {words}" if isinstance(value, int) else f"{words} {value}")
    return ", ".join(shown)


def _figures(run: RunRecord) -> dict[str, Any]:
    report = run.report
    match run.kind:
        case "index":
            sources = report.get("sources", [])
            return {
                "sources": [source["entity"] for source in sources],
                **{name: sum(source.get(name, 0) for source in sources) for name in _SUMMED},
                "skipped": sum(len(source.get("skipped", ())) for source in sources),
                "commits": sorted({source["commit"] for source in sources if source.get("commit")}),
                "failed": [failure["uri"] for failure in report.get("failed", ())],
                "requests": sum(report.get("requests", {}).values()),
            }
        case "compact":
            parts = _parts(run)
            return {
                "folded": sum(source["deltas"] for part in parts for source in part["folded"]),
                "versions_removed": sum(part["versions_removed"] for part in parts),
                "bytes_before": sum((part["before"] or {}).get("bytes", 0) for part in parts),
                "bytes_after": sum((part["after"] or {}).get("bytes", 0) for part in parts),
            }
        case "cleanup":
            return {"deleted": sum(part.get("deleted_count", 0) for part in _parts(run))}
        case "search":
            return {name: report.get(name) for name in ("searches", "hit_rate")}
        case "remove":
            return {name: report.get(name) for name in ("entity", "documents", "lines")}
    return {}


@dataclass(frozen=True, slots=True)
class History:
    """A workspace's history as series for plots; ``runs`` are oldest first."""

    runs: Sequence[RunRecord]

    def growth(self, name: str) -> Series:
        """Return the sum of ``name`` (``documents_total`` or ``lines_total``) over all sources, after each run.

        A source that was indexed before the first of these runs is included from the start, with its first known total.
        """
        totals = self._before(name)
        points: list[tuple[datetime, float]] = []
        for run in self.runs:
            if run.kind == "remove":
                totals.pop(run.report.get("entity", ""), None)
            for source in _finished_sources(run):
                totals[source["entity"]] = source.get(name, 0)
            if run.kind == "remove" or any(_finished_sources(run)):
                points.append((_moment(run), float(sum(totals.values()))))
        return Series(name.removesuffix("_total"), points)

    def _before(self, name: str) -> dict[str, int]:
        totals: dict[str, int] = {}
        removed = set[str]()
        for run in self.runs:
            if run.kind == "remove":
                removed.add(run.report.get("entity", ""))
            for source in _finished_sources(run):
                entity = source["entity"]
                existed = source.get("base") or source["unchanged"] + source["touched"] + source["changed"]
                if entity not in totals and entity not in removed:
                    totals[entity] = source.get(name, 0) if existed else 0
        return totals

    def of_runs(self, kind: str, name: str, value: Callable[[RunRecord], float | None]) -> Series:
        """Return ``value`` for each run of ``kind``, skipping runs where it is None."""
        points = ((_moment(run), value(run)) for run in self.runs if run.kind == kind)
        return Series(name, [(moment, figure) for moment, figure in points if figure is not None])

    def deltas(self) -> list[Series]:
        """Return each source's number of deltas, the source with the most deltas first."""
        by_entity: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
        for run in self.runs:
            for source in _finished_sources(run):
                if source.get("deltas") is not None:
                    by_entity[source["entity"]].append((_moment(run), float(source["deltas"])))
            for part in _parts(run) if run.kind == "compact" else ():
                for folded in part["folded"]:
                    by_entity[folded["entity"]].append((_moment(run), 0.0))
        series = [Series(entity, points) for entity, points in by_entity.items()]
        return sorted(series, key=lambda line: max(value for _, value in line.points), reverse=True)

    def measured(self, name: str, scale: float = 1.0) -> list[Series]:
        """Return a metric recorded at the end of each compaction, such as ``recall_at_10``, keyed by tenant."""
        by_tenant: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
        for run in self.runs:
            for part in _parts(run) if run.kind == "compact" else ():
                figure = (part["after"] or {}).get(name)
                if figure is not None:
                    by_tenant[part["tenant"]].append((_moment(run), float(figure) * scale))
        return [Series(tenant, points) for tenant, points in by_tenant.items()]

    def requests(self, prices: Mapping[str, float]) -> tuple[list[Series], float | None]:
        """Return the requests to the store by type, and their cost; ``prices`` are per 1,000 requests.

        The cost is None if no type has a price. Runs that recorded no requests are skipped.
        """
        by_kind: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
        for run in self.runs:
            for kind, count in run.report.get("requests", {}).items():
                by_kind[kind].append((_moment(run), float(count)))
        cost = price({kind: round(sum(count for _, count in points)) for kind, points in by_kind.items()}, prices)
        return [Series(kind, points) for kind, points in by_kind.items()], cost


def _finished_sources(run: RunRecord) -> list[Mapping[str, Any]]:
    """Return the sources whose main index a run completed; failed sources have no revision."""
    return [source for source in run.main_sources if source.get("revision")]


def _moment(run: RunRecord) -> datetime:
    return datetime.fromisoformat(run.started)
