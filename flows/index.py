"""Run an index run as a Prefect flow: the same plan, map and commit as ``driftline index``.

Prefect builds the form of its web page from the parameters, and shows progress and report as artifacts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from driftline.flows.config.locate import workspace_named
from driftline.flows.runs.index import IndexRequest, index_sources
from driftline.flows.scheduling.artifacts import show_index
from driftline.flows.scheduling.events import ask_for_source
from driftline.flows.scheduling.flow_runs import attempt, flow_progress, options_of, release_leases
from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_DELETE_FRACTION,
    DEFAULT_MAX_DELTAS,
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_MAX_FILE_BYTES,
    Redaction,
)


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
    max_document_bytes: Annotated[int, Field(ge=0)] = DEFAULT_MAX_DOCUMENT_BYTES,
    rebind: bool = False,
    reembed: bool = False,
    wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0,
    indexes: Literal["all", "text", "none"] = "all",
    max_deltas: Annotated[int, Field(ge=0)] = DEFAULT_MAX_DELTAS,
    storage_options: dict[str, str] | None = None,
    branch: str | None = None,
    redact: Redaction | None = None,
) -> dict[str, Any]:
    """Update the index of the sources: embed new and changed documents, delete vanished ones.

    Args:
        sources: Folders, git work trees or bucket URIs, as the machine that runs the flow sees them.
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        entity: The entity of a single source, such as org:acme/project:alpha/source:web; default: from its name.
        include: Index only files that match one of these patterns.
        exclude: Skip files that match one of these patterns.
        model: A model2vec directory or name; default: the model that is installed with Driftline.
        executor: inline, local (processes on the same machine), or tcp://host:port of a Dask scheduler.
        workers: Number of processes of the local executor.
        full: Reread and re-embed every document.
        dry_run: Report what would change and write nothing.
        max_delete_fraction: Refuse to delete a larger fraction of a source; 1 confirms a large deletion.
        max_file_bytes: Skip larger files.
        max_document_bytes: Skip larger documents, logs, CSV and JSON lines.
        rebind: Allow the entity to move to another URI.
        reembed: Allow the workspace to switch to another model.
        wait_seconds: Seconds to wait for another run that holds the lease of a source.
        indexes: Which search indexes to update.
        max_deltas: Request a compaction when a source has more deltas than this.
        redact: Which credentials inside text are replaced; default: as before, else known.
        storage_options: Options of the stores; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        branch: Index this branch of the sources; the main index does not change.

    Returns:
        The report of the run, as ``driftline index --json`` prints it.
    """
    options = options_of(storage_options)
    request = IndexRequest(tuple(sources), workspace_named(workspace), entity, model=model, branch=branch)
    request = replace(request, include=tuple(include or ()), exclude=tuple(exclude or ()), redact=redact)
    request = replace(request, full=full, dry_run=dry_run, rebind=rebind, reembed=reembed, storage_options=options)
    request = replace(request, executor=executor, workers=workers, wait_seconds=wait_seconds, indexes=indexes)
    request = replace(request, max_file_bytes=max_file_bytes, max_document_bytes=max_document_bytes)
    request = replace(request, max_delete_fraction=max_delete_fraction)
    with flow_progress() as progress:
        result = attempt.with_options(name="index")(lambda: index_sources(request, progress).to_dict())
        _follow_up(result, request, workspace, max_deltas)
        progress.finish(f"{sum(source['lines_embedded'] for source in result['sources']):,} lines embedded")
    return result


def _follow_up(result: dict[str, Any], request: IndexRequest, workspace: str, max_deltas: int) -> None:
    for source in result["sources"]:
        if source["deltas"] > max_deltas and not request.dry_run:
            ask_for_source(workspace, source["entity"], source["deltas"])
    show_index(result, request)
