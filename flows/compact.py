"""The Prefect flow around one compaction: the same plan, map and commit as ``driftline compact``."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from pydantic import Field

from driftline.flows.compaction import CompactRequest, compact_workspace
from driftline.flows.index import PrefectProgress
from driftline.flows.settings import DEFAULT_MAX_DELTAS, DEFAULT_VERSION_RETENTION_SECONDS


@flow(name="driftline-compact", flow_run_name="compact {workspace}")
def compact(
    workspace: str,
    entity: str | None = None,
    max_deltas: Annotated[int, Field(ge=0)] = DEFAULT_MAX_DELTAS,
    retention_seconds: Annotated[float, Field(ge=0)] = DEFAULT_VERSION_RETENTION_SECONDS,
    executor: str = "inline",
    workers: Annotated[int, Field(ge=1)] | None = None,
    wait_seconds: Annotated[float, Field(ge=0)] = 0.0,
) -> dict[str, Any]:
    """Keep a workspace small and quick to read: fold deltas, merge fragments, remove old versions.

    Args:
        workspace: Where the index lives: a folder, or s3://, gs:// or az://.
        entity: Only this source, however few its deltas, such as org:acme/project:alpha/source:web; by default all.
        max_deltas: Without an entity, fold the deltas of sources that have more.
        retention_seconds: Remove versions of tables that are older.
        executor: inline, local (processes on the same machine), or tcp://host:port of a Dask scheduler.
        workers: Processes of the local executor.
        wait_seconds: How long to wait for runs that are at work.

    Returns:
        The report of the run, in the shape that ``driftline compact --json`` prints.
    """
    progress = PrefectProgress(get_run_logger())
    request = CompactRequest(workspace, entity, max_deltas, retention_seconds, executor, workers, wait_seconds)
    result: dict[str, Any] = compact_workspace(request, progress).to_dict()
    moments = ("before", "after")
    rows = [{"tenant": part["tenant"], "when": when, **part[when]} for part in result["tenants"] for when in moments]
    create_table_artifact(rows, key="driftline-compact", description=f"Run {result['run_id']}")
    progress.finish(
        f"{sum(source['deltas'] for part in result['tenants'] for source in part['folded']):,} deltas folded"
    )
    return result
