"""Run a cleanup as a Prefect flow: the same steps as ``driftline cleanup``; a dry run by default."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from driftline.flows.config.locate import workspace_named
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.flows.scheduling.artifacts import show_cleanup
from driftline.flows.scheduling.flow_runs import attempt, catalog_of, flow_progress, options_of, release_leases
from driftline.storage.defaults import DEFAULT_MAX_AGE_SECONDS


@flow(
    name="driftline-cleanup",
    flow_run_name="cleanup {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def cleanup(
    workspace: str,
    max_age_seconds: Annotated[float, Field(ge=0)] = DEFAULT_MAX_AGE_SECONDS,
    dry_run: bool = True,
    storage_options: dict[str, str] | None = None,
    catalog_url: str | None = None,
) -> dict[str, Any]:
    """Find the orphans left by crashed and superseded runs, and delete them unless this is a dry run.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        max_age_seconds: Keep objects younger than this many seconds, by the store's clock.
        dry_run: Report orphans and delete nothing.
        storage_options: Options of the store; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        catalog_url: URL of the memory catalog, any password as a reference; default: from the worker's configuration.

    Returns:
        The report of the run, as ``driftline cleanup --json`` prints it.
    """
    options, catalog = options_of(storage_options), catalog_of(catalog_url)
    place = workspace_named(workspace)
    request = CleanupRequest(place, max_age_seconds, dry_run, storage_options=options, catalog_url=catalog)
    with flow_progress() as progress:
        work = attempt.with_options(name="cleanup")
        result = work(lambda: clean_workspace(request, progress).to_dict())
        show_cleanup(result)
        progress.finish(f"{result['orphan_count']:,} orphans, {result['deleted_count']:,} deleted")
    return result
