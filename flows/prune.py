"""Prune branches as a Prefect flow, like ``driftline branches prune``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from driftline.flows.config.locate import workspace_named
from driftline.flows.runs.branches import DEFAULT_PRUNED_AFTER_DAYS, prune_branches
from driftline.flows.scheduling.flow_runs import attempt, flow_progress, options_of, release_leases
from driftline.storage.workspace.workspace import Workspace


@flow(
    name="driftline-prune",
    flow_run_name="prune {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def prune(
    workspace: str,
    older_than_days: Annotated[float, Field(ge=0)] = DEFAULT_PRUNED_AFTER_DAYS,
    dry_run: bool = False,
    storage_options: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Delete branches that are merged, gone from the remote, or not indexed for a while.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        older_than_days: Delete branches not indexed for this many days.
        dry_run: Report the branches and delete nothing.
        storage_options: Options of the store; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.

    Returns:
        The report, as ``driftline branches prune --json`` prints it.
    """
    options, place = options_of(storage_options), workspace_named(workspace)
    with flow_progress() as progress:

        def work() -> dict[str, Any]:
            opened = Workspace.open(place, options)
            pruned = prune_branches(opened, older_than_days=older_than_days, dry_run=dry_run, skip=progress.message)
            return {"workspace": place, "dry_run": dry_run, "pruned": [asdict(branch) for branch in pruned]}

        result = attempt.with_options(name="prune")(work)
        progress.finish(f"{len(result['pruned']):,} branches pruned")
    return result
