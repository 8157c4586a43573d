"""The Prefect flow around a verification: the same checks as ``driftline verify``."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact

from driftline.flows.verification import VerifyRequest, verify_workspace
from driftline.storage.errors import StorageError

MAX_ROWS = 1_000


@flow(name="driftline-verify", flow_run_name="verify {workspace}")
def verify(workspace: str, repair: bool = False) -> dict[str, Any]:
    """Check a workspace against itself; the flow run fails when anything is wrong that was not mended.

    Args:
        workspace: Where the index lives: a folder, or s3://, gs:// or az://.
        repair: Take what is wrong out of the index and index it anew.

    Returns:
        What was checked and found, in the shape that ``driftline verify --json`` prints.
    """
    result = verify_workspace(VerifyRequest(workspace, repair)).to_dict()
    findings = result["findings"]
    create_table_artifact(
        findings[:MAX_ROWS],
        key="driftline-verify",
        description=f"{result['documents']:,} documents, {result['lines']:,} lines, {len(findings):,} findings",
    )
    if findings:
        raise StorageError(f"{len(findings):,} findings", result["workspace"], "See: driftline verify --repair")
    return result
