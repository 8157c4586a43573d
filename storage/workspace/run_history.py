"""The run history: one immutable JSON file for each run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, UsageError
from driftline.storage.layout import run_directory, run_id_of
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import FORMAT_VERSION, read_record

log = logging.getLogger(__name__)


class RunRecord(BaseModel):
    """The record of one run. ``report`` is its JSON report, including every skipped file with its reason."""

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    run_id: str
    kind: str
    started: str
    seconds: float
    outcome: str
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The run history of one tenant."""

    objects: ObjectStore
    tenant: Entity

    def record(self, run: RunRecord) -> None:
        """Write the record of a finished run."""
        self.objects.create(f"{self._directory}/{run.run_id}.json", run.model_dump_json(indent=1).encode())

    def get(self, run_id: str) -> RunRecord | None:
        """The record of a run, or None."""
        return read_record(self.objects, f"{self._directory}/{run_id}.json", RunRecord)

    def revision(self, run_id: str, entity: Entity) -> int:
        """The ``rev`` of ``entity`` after a run, for ``as_of`` of its manifest. Raises UsageError."""
        run = self.get(run_id)
        sources = run.report.get("sources", []) if run is not None else []
        revisions = [source["revision"] for source in sources if source["entity"] == str(entity)]
        if not revisions:
            raise UsageError(
                f"No run {run_id} has indexed this source", str(entity), "The run ids are the file names in _runs/."
            )
        return int(revisions[0])

    def last(self) -> RunRecord | None:
        """The run that started last, or None."""
        return next(self.newest_first(), None)

    def ids(self) -> list[str]:
        """The ids of all runs, newest first."""
        names = (info.path.rsplit("/", 1)[-1] for info in self.objects.list(self._directory, recursive=False))
        return sorted((run_id for name in names if (run_id := run_id_of(name))), reverse=True)

    def newest_first(self) -> Iterator[RunRecord]:
        """The runs, newest first, each read lazily; a damaged record is left out, with a warning."""
        for run_id in self.ids():
            try:
                run = self.get(run_id)
            except CorruptFile as error:
                log.warning("A run is left out: %s", error)
                continue
            if run is not None:
                yield run

    @property
    def _directory(self) -> str:
        return run_directory(self.tenant)
