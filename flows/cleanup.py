"""The Prefect flow around a cleanup: the same steps as ``driftline cleanup``, and a dry run by default."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from pydantic import Field

from driftline.flows.cleaning import DEFAULT_MAX_AGE_SECONDS, CleanupRequest, clean_workspace

MAX_ROWS = 1_000
"""So many orphans are shown; the run ledger in the workspace holds all that were deleted."""


@flow(name="driftline-cleanup", flow_run_name="cleanup {workspace}")
def cleanup(
    workspace: str,
    max_age_seconds: Annotated[float, Field(ge=0)] = DEFAULT_MAX_AGE_SECONDS,
    dry_run: bool = True,
) -> dict[str, Any]:
    """Find what crashed or superseded runs left in a workspace, and delete it unless this is a dry run.

    Args:
        workspace: Where the index lives: a folder, or s3://, gs:// or az://.
        max_age_seconds: Keep what is younger than this, by the clock of the store.
        dry_run: Report only.

    Returns:
        What was scanned, found and deleted, in the shape that ``driftline cleanup --json`` prints.
    """
    result = clean_workspace(CleanupRequest(workspace, max_age_seconds, dry_run)).to_dict()
    verb = "would be deleted" if dry_run else "found"
    create_table_artifact(
        result["orphans"][:MAX_ROWS],
        key="driftline-cleanup",
        description=f"{result['scanned_count']:,} objects, {result['orphan_count']:,} orphans {verb}, "
        f"{result['deleted_count']:,} deleted",
    )
    return result
