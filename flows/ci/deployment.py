"""Start Prefect deployments for a commit, once for each commit, and wait for their runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.utilities.urls import url_for

from driftline.flows.scheduling.registration import connected, server_url
from driftline.storage.errors import DeploymentFailed, UsageError

INDEX_FLOW = "driftline-index"
POLL_SECONDS = 1.0
MAX_ATTEMPTS = 20
"""Maximum number of runs of one commit: another build of the commit starts a failed run anew."""


def run_deployments(
    names: Sequence[str], commit: str, timeout_seconds: float, on_message: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Start each deployment (``NAME`` of the index flow, or ``FLOW/NAME``) and wait until all have ended.

    The commit is the idempotency key: a run of it that is under way, or has completed, is the one waited for.
    Returns ``{deployment, id, name, state, url, seconds}`` of each. Raises UsageError without a server or for an
    unknown name, DeploymentFailed.
    """
    server_url()
    deadline = time.monotonic() + timeout_seconds
    with connected() as client:
        ids = {_full_name(name): _deployment_id(client, _full_name(name)) for name in names}
        runs = {name: _start(client, name, ids[name], commit) for name in ids}
        for name, run in runs.items():
            on_message(f"{name}: waiting for run {run.name} ({url_for(run) or run.id})")
        while not all(_has_ended(run) for run in runs.values()):
            if time.monotonic() > deadline:
                raise _failure("has not ended in time", runs, "It continues: follow it, or allow a longer --timeout.")
            time.sleep(POLL_SECONDS)
            runs = {name: run if _has_ended(run) else client.read_flow_run(run.id) for name, run in runs.items()}
    if not all(_has_completed(run) for run in runs.values()):
        raise _failure("has failed", runs, "Read its log; another build of the commit starts it anew.")
    return [_report(name, run) for name, run in runs.items()]


def _start(client: SyncPrefectClient, name: str, deployment: Any, commit: str) -> FlowRun:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        # Prefect keeps these keys by flow, which all index deployments share.
        key = f"{commit}:{name}" if attempt == 1 else f"{commit}:{name}:{attempt}"
        run = client.create_flow_run_from_deployment(deployment, idempotency_key=key, tags=["ci", f"commit:{commit}"])
        if not _has_ended(run) or _has_completed(run):
            return run
    raise DeploymentFailed(f"The runs of commit {commit[:12]} fail repeatedly", name, "Read their logs.")


def _full_name(name: str) -> str:
    return name if "/" in name else f"{INDEX_FLOW}/{name}"


def _deployment_id(client: SyncPrefectClient, name: str) -> Any:
    try:
        return client.read_deployment_by_name(name).id
    except ObjectNotFound as error:
        raise UsageError("There is no such deployment", name, "Register it with: driftline deploy") from error


def _has_ended(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()


def _has_completed(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_completed()


def _failure(what: str, runs: dict[str, FlowRun], fix: str) -> DeploymentFailed:
    name, run = next((name, run) for name, run in runs.items() if not _has_completed(run))
    state = run.state.name if run.state is not None else "Pending"
    return DeploymentFailed(f"The run {run.name} of {name} {what} ({state})", url_for(run) or str(run.id), fix)


def _report(name: str, run: FlowRun) -> dict[str, Any]:
    return {
        "deployment": name,
        "id": str(run.id),
        "name": run.name,
        "state": run.state.name if run.state is not None else "",
        "url": url_for(run),
        "seconds": round(run.total_run_time.total_seconds(), 3),
    }
