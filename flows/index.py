"""The Prefect flow around one index run: the same plan, map and commit as ``driftline index``.

Its parameters make the form of the web page; progress and result appear there as artifacts.
"""

from __future__ import annotations

import time
from logging import Logger, LoggerAdapter
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from pydantic import Field

from driftline.flows.pipeline import IndexRequest, index_sources
from driftline.flows.settings import DEFAULT_MAX_FILE_BYTES

UPDATE_SECONDS = 1.0
_STATES = ("new", "changed", "touched", "unchanged", "deleted")


class PrefectProgress:
    """Writes phases to the log of the flow run, and figures to its progress artifact at most once a second."""

    def __init__(self, log: Logger | LoggerAdapter[Any]) -> None:
        self._log = log
        self._artifact = cast(UUID, create_progress_artifact(0.0, key="driftline-progress", description="starting"))
        self._name = ""
        self._total: int | None = None
        self._documents = self._lines = 0
        self._told_at = time.monotonic()

    def phase(self, name: str, total: int | None = None) -> None:
        self._log.info("%s%s", name, "" if total is None else f": {total:,} documents")
        self._name, self._total = name, total
        self._documents = self._lines = 0

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        self._documents += documents
        self._lines += lines
        now = time.monotonic()
        if now - self._told_at >= UPDATE_SECONDS:
            self._told_at = now
            percent = min(100.0, 100.0 * self._documents / self._total) if self._total else 0.0
            self._tell(percent, f"{self._name}: {self._documents:,} documents, {self._lines:,} lines")

    def message(self, text: str) -> None:
        self._log.warning("%s", text)

    def finish(self, description: str) -> None:
        self._tell(100.0, description)

    def _tell(self, percent: float, description: str) -> None:
        update_progress_artifact(self._artifact, progress=percent, description=description)


@flow(name="driftline-index", flow_run_name="index {sources}")
def index(
    sources: Annotated[list[str], Field(min_length=1)],
    workspace: str,
    entity: str | None = None,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    model: str | None = None,
    executor: str = "inline",
    workers: Annotated[int, Field(ge=1)] | None = None,
    full: bool = False,
    dry_run: bool = False,
    max_delete_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5,
    max_file_bytes: Annotated[int, Field(ge=0)] = DEFAULT_MAX_FILE_BYTES,
    rebind: bool = False,
    reembed: bool = False,
    wait_seconds: Annotated[float, Field(ge=0)] = 0.0,
    indexes: Literal["all", "text", "none"] = "all",
) -> dict[str, Any]:
    """Bring the index in step with its sources: embed what is new or changed, delete what is gone.

    Args:
        sources: Folders, git work trees or bucket URIs, as the machine that runs the flow sees them.
        workspace: Where the index lives: a folder, or s3://, gs:// or az://.
        entity: The entity of a single source, such as org:acme/project:alpha/source:web; by default from its name.
        include: Index only files that match one of these patterns.
        exclude: Leave out files that match one of these patterns.
        model: A model2vec directory or name; by default the one that comes with the installation.
        executor: inline, local (processes on the same machine), or tcp://host:port of a Dask scheduler.
        workers: Processes of the local executor.
        full: Read and embed everything again.
        dry_run: Report what would change and write nothing.
        max_delete_fraction: Refuse to delete more of a source than this; 1 confirms a large deletion.
        max_file_bytes: Skip larger files.
        rebind: Let the entity move to another URI.
        reembed: Let the workspace move to another model.
        wait_seconds: How long to wait while another run works on the same source.
        indexes: Which search indexes to update.

    Returns:
        The report of the run, in the shape that ``driftline index --json`` prints.
    """
    progress = PrefectProgress(get_run_logger())
    request = IndexRequest(
        sources=tuple(sources),
        workspace=workspace,
        entity=entity,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        model=model,
        executor=executor,
        workers=workers,
        full=full,
        dry_run=dry_run,
        max_delete_fraction=max_delete_fraction,
        max_file_bytes=max_file_bytes,
        rebind=rebind,
        reembed=reembed,
        wait_seconds=wait_seconds,
        indexes=indexes,
    )
    result: dict[str, Any] = index_sources(request, progress).to_dict()
    rows = [_row(source) for source in result["sources"]]
    create_table_artifact(rows, key="driftline-index", description=f"Run {result['run_id']}, {result['seconds']:.1f} s")
    progress.finish(f"{sum(row['embedded'] for row in rows):,} lines embedded")
    return result


def _row(source: dict[str, Any]) -> dict[str, Any]:
    counts = {state: source[state] for state in _STATES}
    lines = {"embedded": source["lines_embedded"], "lines": source["lines_total"]}
    return {"source": source["entity"], **counts, "skipped": len(source["skipped"]), **lines}
