"""The Prefect flow around one index run: the same plan, map and commit as ``driftline index``.

Its parameters make the form of the web page; progress and result appear there as artifacts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from prefect import flow
from prefect.events import emit_event
from prefect.runtime import flow_run
from pydantic import Field

from driftline.flows.config.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_DELETE_FRACTION,
    DEFAULT_MAX_DELTAS,
    DEFAULT_MAX_FILE_BYTES,
)
from driftline.flows.runs.index_run import IndexRequest, index_sources
from driftline.flows.scheduling.artifacts import show_index
from driftline.flows.scheduling.flow_runs import attempt, flow_progress, options_of, release_leases

DELTAS_EVENT = "driftline.deltas.threshold"
"""Tells that a source has so many deltas that it should be compacted; prefect.yaml has the trigger."""


@flow(
    name="driftline-index",
    flow_run_name=lambda: f"index {', '.join(flow_run.parameters['sources'])}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def index(
    sources: Annotated[list[str], Field(min_length=1)],
    workspace: str,
    entity: str | None = None,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    model: str | None = None,
    executor: str = DEFAULT_EXECUTOR,
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None,
    full: bool = False,
    dry_run: bool = False,
    max_delete_fraction: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_DELETE_FRACTION,
    max_file_bytes: Annotated[int, Field(ge=0)] = DEFAULT_MAX_FILE_BYTES,
    rebind: bool = False,
    reembed: bool = False,
    wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0,
    indexes: Literal["all", "text", "none"] = "all",
    max_deltas: Annotated[int, Field(ge=0)] = DEFAULT_MAX_DELTAS,
    storage_options: dict[str, str] | None = None,
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
        max_deltas: Ask for a compaction when a source has more deltas than this.
        storage_options: Options of the stores; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.

    Returns:
        The report of the run, in the shape that ``driftline index --json`` prints.
    """
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
        storage_options=options_of(storage_options),
    )
    with flow_progress() as progress:
        work = attempt.with_options(name="index")
        result = work(lambda: index_sources(request, progress).to_dict())
        if not dry_run:
            _ask_for_compaction(result, workspace, max_deltas)
        show_index(result, request)
        progress.finish(f"{sum(source['lines_embedded'] for source in result['sources']):,} lines embedded")
    return result


def _ask_for_compaction(result: dict[str, Any], workspace: str, max_deltas: int) -> None:
    for source in result["sources"]:
        if source["deltas"] > max_deltas:
            emit_event(
                DELTAS_EVENT,
                resource={
                    "prefect.resource.id": f"driftline.source.{source['entity']}",
                    "prefect.resource.name": source["entity"],
                    "driftline.workspace": workspace,
                },
                payload={"workspace": workspace, "entity": source["entity"], "deltas": source["deltas"]},
            )
