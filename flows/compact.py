"""Run a compaction as a Prefect flow: the same plan, map and commit as ``driftline compact``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from driftline.flows.config.locate import workspace_named
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.scheduling.artifacts import show_compaction
from driftline.flows.scheduling.flow_runs import attempt, flow_progress, options_of, release_leases
from driftline.storage.defaults import DEFAULT_EXECUTOR, DEFAULT_VERSION_RETENTION_SECONDS


@flow(
    name="driftline-compact",
    flow_run_name="compact {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def compact(
    workspace: str,
    entity: str | None = None,
    max_deltas: Annotated[int, Field(ge=0)] | None = None,
    retention_seconds: Annotated[float, Field(ge=0)] = DEFAULT_VERSION_RETENTION_SECONDS,
    executor: str = DEFAULT_EXECUTOR,
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None,
    wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0,
    storage_options: dict[str, str] | None = None,
    compaction_threshold: Annotated[int, Field(ge=0)] | None = None,
) -> dict[str, Any]:
    """Keep a workspace small and fast to read: fold deltas, merge fragments, remove old versions.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        entity: Compact only this source, regardless of its number of deltas; default: all sources. Example:
            org:acme/project:alpha/source:web.
        max_deltas: Without an entity, fold the deltas of sources and memory that have more than this; default: 100 for
            sources, compaction_threshold for memory.
        retention_seconds: Remove table versions older than this many seconds.
        executor: inline, local (processes on the same machine), or tcp://host:port of a Dask scheduler.
        workers: Number of processes of the local executor.
        wait_seconds: Seconds to wait for runs that hold a lease.
        storage_options: Options of the store; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        compaction_threshold: Default of max_deltas for memory; default: from the worker's configuration.

    Returns:
        The report of the run, as ``driftline compact --json`` prints it.
    """
    options = options_of(storage_options)
    place = workspace_named(workspace)
    request = CompactRequest(
        place, entity or None, max_deltas, retention_seconds, executor, workers, wait_seconds, options
    )
    request = replace(request, compaction_threshold=compaction_threshold)
    with flow_progress() as progress:
        work = attempt.with_options(name="compact")
        result = work(lambda: compact_workspace(request, progress).to_dict())
        show_compaction(result)
        folded = sum(source["deltas"] for part in result["tenants"] for source in part["folded"])
        progress.finish(f"{folded:,} deltas folded")
    return result
