"""A fleet for tests: its configuration, its workspace, and a clock that the test advances."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driftline.flows.config.driftline_toml import load_config
from driftline.flows.output.run_reports import FleetsReport
from driftline.flows.runs.fleet import FleetRequest, sync_fleets
from driftline.storage.workspace.branch_cuts import branch_at, branch_records
from driftline.storage.workspace.workspace import Workspace


@dataclass
class Fleet:
    """A configuration, its workspace, and a clock advanced by tests."""

    folder: Path
    model: Path
    tables: str
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    report: FleetsReport | None = None
    """The last sync's report."""

    @property
    def config(self) -> Path:
        path = self.folder / "driftline.toml"
        path.write_text(f'workspace = "index"\nmodel = {json.dumps(str(self.model))}\n{self.tables}')
        return path

    def sync(self, **options: Any) -> dict[str, Any]:
        config = load_config(self.config)
        how = {name: options.pop(name) for name in ("retry", "has_all_fleets") if name in options}
        request = FleetRequest.of(config, config.workspace, options, **how)
        self.report = sync_fleets(request, now=lambda: self.now)
        return self.report.to_dict()

    @property
    def has_failed(self) -> bool:
        """Whether the last sync failed for a repository or could not list all of them."""
        return self.report is not None and bool(self.report.failures)

    @property
    def workspace(self) -> Workspace:
        return Workspace.open(str(self.folder / "index"))

    def documents(self) -> dict[str, set[str]]:
        """Return each source's document paths, by source id."""
        workspace = self.workspace
        return {
            entity.id: set(workspace.manifest(entity).read(columns=["path"])["path"].to_pylist())
            for entity, _ in workspace.sources()
        }

    def runs(self) -> int:
        return len(list((self.folder / "index").glob("org:*/_runs/*.json")))


def states(report: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["state"] for fleet in report["fleets"] for row in fleet["repositories"]}


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for fleet in report["fleets"] for row in fleet["repositories"]}


def branches(fleet: Fleet) -> dict[str, dict[str, set[str]]]:
    """Return the document paths of each branch of each source."""
    workspace, found = fleet.workspace, dict[str, dict[str, set[str]]]()
    for entity, _ in workspace.sources():
        for record in branch_records(workspace, entity):
            documents = workspace.on([branch_at(entity, record)]).manifest(entity).read(columns=["path"])
            found.setdefault(entity.id, {})[record.name] = set(documents["path"].to_pylist())
    return found
