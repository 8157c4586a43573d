"""Verify a workspace as a Prefect flow: the same checks as ``driftline verify``."""

from __future__ import annotations

from typing import Any

from prefect import flow

from driftline.flows.config.locate import workspace_named
from driftline.flows.runs.verify import VerifyRequest, verify_workspace
from driftline.flows.scheduling.artifacts import show_verification
from driftline.flows.scheduling.flow_runs import attempt, catalog_of, flow_progress, options_of, release_leases
from driftline.storage.errors import StorageError


@flow(
    name="driftline-verify",
    flow_run_name="verify {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def verify(
    workspace: str,
    repair: bool = False,
    storage_options: dict[str, str] | None = None,
    catalog_url: str | None = None,
) -> dict[str, Any]:
    """Check the consistency of a workspace; the flow run fails if findings remain.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        repair: Remove inconsistent documents from the index and reindex them.
        storage_options: Options of the store; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        catalog_url: URL of the memory catalog, any password as a reference; default: from the worker's configuration.

    Returns:
        The report of the run, as ``driftline verify --json`` prints it.
    """
    options = options_of(storage_options)
    request = VerifyRequest(workspace_named(workspace), repair, options, catalog_of(catalog_url))
    with flow_progress() as progress:
        work = attempt.with_options(name="verify")
        result = work(lambda: verify_workspace(request, progress).to_dict())
        show_verification(result)
        findings = len(result["findings"])
        progress.finish(f"{result['lines']:,} lines, {findings:,} findings")
    if findings:
        raise StorageError(f"{findings:,} findings", result["workspace"], "See: driftline verify --repair")
    return result
