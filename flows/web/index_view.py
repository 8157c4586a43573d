"""What the page of the index shows: its figures, its growth, its runs, and what was skipped and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from driftline.flows.output.run_series import newest_runs
from driftline.storage.entities import Entity
from driftline.storage.hierarchy import is_within
from driftline.storage.model import WorkspaceStats
from driftline.storage.workspace.run_history import RunRecord
from driftline.storage.workspace.workspace import Workspace

MAX_RUNS = 200
MAX_SKIPPED_PATHS = 20
"""Paths shown of each reason."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Documents that have no lines for the same ``reason``; ``paths`` are the first ones."""

    reason: str
    count: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexView:
    """The index at or below an entity; ``runs`` are newest first."""

    stats: WorkspaceStats
    skipped: tuple[Skipped, ...]
    runs: tuple[RunRecord, ...]


def index_view(workspace: Workspace, within: Entity | None = None) -> IndexView:
    """Read the view of what is at or below ``within``. Raises StorageError, CorruptFile."""
    runs = newest_runs(workspace, MAX_RUNS)
    return IndexView(
        stats=workspace.stats(within),
        skipped=tuple(_skipped(workspace, within)),
        runs=tuple(runs) if within is None else tuple(_within(runs, within)),
    )


def _skipped(workspace: Workspace, within: Entity | None) -> list[Skipped]:
    tables = [
        workspace.manifest(entity).read(columns=["path", "reason"]) for entity, _ in workspace.readable_sources(within)
    ]
    if not tables:
        return []
    rows = pa.concat_tables(tables)
    rows = rows.filter(pc.is_valid(rows["reason"]))
    found = []
    for count in pc.value_counts(rows["reason"]).to_pylist():
        reason = count["values"]
        paths = rows.filter(pc.equal(rows["reason"], reason))["path"].slice(0, MAX_SKIPPED_PATHS).to_pylist()
        found.append(Skipped(reason, count["counts"], tuple(paths)))
    return sorted(found, key=lambda each: -each.count)


def _within(runs: Iterable[RunRecord], within: Entity) -> Iterable[RunRecord]:
    """Index runs with nothing but what they say of the sources at or below ``within``.

    A run reports on sources beside each other: how long it took, and what it cost, is of all of them.
    """
    for run in runs:
        sources = [
            source
            for source in run.report.get("sources", ())
            if run.kind == "index" and is_within(Entity.parse(source["entity"]), within)
        ]
        if sources:
            yield run.model_copy(update={"report": {"sources": sources}, "seconds": 0.0, "outcome": "done"})
