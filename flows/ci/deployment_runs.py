"""Start the Prefect deployments of a commit, once per commit or delivery, and wait for their runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.utilities.urls import url_for

from driftline.flows.runs.plan import SourceRequest
from driftline.flows.scheduling.deployments import connected, deployment_name, server_url
from driftline.storage.entities import Entity
from driftline.storage.errors import DeploymentFailed, StorageError, UsageError

INDEX_FLOW = "driftline-index"
FLEET_FLOW = "driftline-fleet"
POLL_SECONDS = 1.0
MAX_ATTEMPTS = 20
"""Maximum number of runs per commit: another build of the commit restarts a failed run."""


def run_deployments(
    names: Sequence[str], commit: str, timeout_seconds: float, on_message: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Start each deployment (``NAME`` of the index flow, or ``FLOW/NAME``) and wait until all have finished.

    The commit is the idempotency key: if the commit already has a run that did not fail, wait for that run. Returns
    ``{deployment, id, name, state, url, seconds}`` for each. Raises DeploymentFailed, and UsageError for an unknown
    name or if there is no server.
    """
    server_url()
    deadline = time.monotonic() + timeout_seconds
    with connected() as client:
        with _accepted(", ".join(names)):
            ids = {_full_name(name): _deployment_id(client, _full_name(name)) for name in names}
            runs = {name: _start(client, name, ids[name], commit) for name in ids}
        for name, run in runs.items():
            on_message(f"{name}: waiting for run {run.name} ({url_for(run) or run.id})")
        while not all(_has_ended(run) for run in runs.values()):
            if time.monotonic() > deadline:
                raise _failure(
                    "did not finish in time", runs, "It is still running: follow it, or set a longer --timeout."
                )
            time.sleep(POLL_SECONDS)
            try:
                runs = {name: run if _has_ended(run) else client.read_flow_run(run.id) for name, run in runs.items()}
            except HTTPError as error:
                on_message(f"The Prefect server does not respond, asking again: {error}")
    if not all(_has_completed(run) for run in runs.values()):
        raise _failure("has failed", runs, "Read its log; another build of the commit restarts it.")
    return [_report(name, run) for name, run in runs.items()]


def start_index_run(source: SourceRequest, commit: str, branch: str | None = None, delivery: str = "") -> None:
    """Start a source's deployment for a commit of its main index or of a branch, once per delivery.

    A push back to an earlier commit is another delivery.

    Does not wait for the run. Raises DeploymentFailed, StorageError, and UsageError if there is no server or
    deployment.
    """
    name = _full_name(deployment_name(Entity.parse(str(source.entity))))
    parameters = {"sources": [source.uri], "branch": branch} if branch is not None else None
    _start_run(name, commit, delivery, parameters)


def start_fleet_run(deployment: str, commit: str, delivery: str = "") -> None:
    """Start a fleet's deployment for a commit in one of its repositories, like ``start_index_run``."""
    _start_run(f"{FLEET_FLOW}/{deployment}", commit, delivery)


def _start_run(name: str, commit: str, delivery: str, parameters: dict[str, Any] | None = None) -> None:
    server_url()
    with _accepted(name), connected() as client:
        _start(client, name, _deployment_id(client, name), commit, delivery, parameters)


@contextmanager
def _accepted(name: str) -> Iterator[None]:
    """Raise StorageError if the server cannot be reached or does not accept a run of ``name``."""
    try:
        yield
    except HTTPError as error:
        raise StorageError("The Prefect server did not accept the run", name, str(error)) from error


def _start(
    client: SyncPrefectClient,
    name: str,
    deployment: Any,
    commit: str,
    delivery: str = "",
    parameters: dict[str, Any] | None = None,
) -> FlowRun:
    of = f"{name}@{parameters['branch']}" if parameters else name
    of += f":{delivery}" if delivery else ""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        # Prefect scopes these keys to a flow, and all index deployments share one.
        key = f"{commit}:{of}" if attempt == 1 else f"{commit}:{of}:{attempt}"
        run = client.create_flow_run_from_deployment(
            deployment, parameters=parameters, idempotency_key=key, tags=["ci", f"commit:{commit}"]
        )
        if not _has_ended(run) or _has_completed(run):
            return run
    raise DeploymentFailed(f"The runs of commit {commit[:12]} fail repeatedly", name, "Read their logs.")


def _full_name(name: str) -> str:
    return name if "/" in name else f"{INDEX_FLOW}/{name}"


def _deployment_id(client: SyncPrefectClient, name: str) -> Any:
    try:
        return client.read_deployment_by_name(name).id
    except ObjectNotFound as error:
        raise UsageError("The deployment does not exist", name, "Register it with: driftline deploy") from error


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
