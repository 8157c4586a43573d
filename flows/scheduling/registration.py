"""Registers deployments and automations with a Prefect server; registering again is idempotent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.deployments.runner import RunnerDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.events.schemas.deployment_triggers import DeploymentTriggerTypes
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.schedules import Cron, Interval, Schedule
from prefect.settings import PREFECT_API_URL
from prefect.types.entrypoint import EntrypointType
from prefect.workers.process import ProcessWorker
from pydantic import TypeAdapter

from driftline.flows.scheduling.deployments import Deployments
from driftline.storage.errors import UsageError

TAG = "driftline"
_TRIGGER: TypeAdapter[DeploymentTriggerTypes] = TypeAdapter(DeploymentTriggerTypes)


def register(deployments: Deployments, *, pool: str) -> tuple[list[str], list[str]]:
    """Register ``deployments`` for the workers of the work pool ``pool``; creates the pool if it does not exist.

    Returns ``(registered, paused)`` names; deployments that the workspace no longer has are paused. Raises UsageError
    if no server answers, or if a name belongs to another workspace.
    """
    with connected() as client:
        check_names(client, deployments)
        try:
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
        except ObjectAlreadyExists:
            pass  # keep the worker type that the team has chosen
        names = []
        for spec in deployments.deployments:
            deployment = to_prefect(spec, pool=pool)
            deployment.apply()
            names.append(deployment.full_name)
        register_automations(client, deployments)
        return names, _pause_others(client, deployments, set(names))


def server_url() -> str:
    """The address of the configured server. Raises UsageError if none is configured."""
    url = PREFECT_API_URL.value()
    if url is None:
        raise UsageError(
            "No Prefect server is configured",
            "PREFECT_API_URL",
            "Set it, for example to http://HOST:4200/api, or run 'driftline serve', which starts one.",
        )
    return str(url)


@contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """A client of the configured server. Raises UsageError if it does not answer."""
    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
        if error is not None:
            raise UsageError(
                f"No Prefect server answers ({error})", str(client.api_url), "Start it, or correct PREFECT_API_URL."
            ) from error
        yield client


def to_prefect(spec: dict[str, Any], *, pool: str | None) -> RunnerDeployment:
    """A deployment of ``prefect.yaml`` as Prefect's object: for workers of ``pool``, or to be served without one."""
    return RunnerDeployment.from_flow(
        load_flow_from_entrypoint(spec["entrypoint"]),
        spec["name"],
        paused=False,
        schedules=[_schedule(given) for given in spec["schedules"]],
        concurrency_limit=ConcurrencyLimitConfig.model_validate(spec["concurrency_limit"]),
        parameters=spec["parameters"],
        triggers=[
            _TRIGGER.validate_python(given | {"name": _trigger_name(spec)}) for given in spec.get("triggers", [])
        ],
        tags=spec["tags"],
        enforce_parameter_schema=spec["enforce_parameter_schema"],
        work_pool_name=pool,
        job_variables=spec["work_pool"]["job_variables"] if pool else None,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def check_names(client: SyncPrefectClient, deployments: Deployments) -> None:
    """Refuse names that the server uses for another workspace. Raises UsageError."""
    for spec in deployments.deployments:
        flow: Flow[..., Any] = load_flow_from_entrypoint(spec["entrypoint"])
        try:
            known = client.read_deployment_by_name(f"{flow.name}/{spec['name']}")
        except ObjectNotFound:
            continue
        workspace = known.parameters.get("workspace")
        if workspace != spec["parameters"]["workspace"]:
            raise UsageError(
                f"The deployment belongs to another workspace, {workspace}",
                f"{flow.name}/{spec['name']}",
                "Choose other names with --prefix, or delete that deployment.",
            )


def register_automations(client: SyncPrefectClient, deployments: Deployments) -> None:
    """Create or update the automations, and delete duplicates by name."""
    for spec in deployments.automations:
        automation = AutomationCore.model_validate(spec)
        known = client.read_automations_by_name(automation.name)
        for duplicate in known[1:]:
            client.delete_automation(duplicate.id)
        if known:
            client.update_automation(known[0].id, automation)
        else:
            client.create_automation(automation)


def _schedule(given: dict[str, Any]) -> Schedule:
    if "cron" in given:
        return Cron(given["cron"], slug=given["slug"])
    return Interval(given["interval"], anchor_date=datetime.fromisoformat(given["anchor_date"]), slug=given["slug"])


def _trigger_name(spec: dict[str, Any]) -> str:
    return f"driftline: {spec['name']} when there are too many deltas"


def _pause_others(client: SyncPrefectClient, deployments: Deployments, names: set[str]) -> list[str]:
    """Pause the workspace's other deployments, whose sources are no longer in the file; returns their names."""
    workspaces = {spec["parameters"]["workspace"] for spec in deployments.deployments}
    paused = []
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    flows = {flow.id: flow.name for flow in client.read_flows()}
    for known in client.read_deployments(deployment_filter=ours):
        name = f"{flows[known.flow_id]}/{known.name}"
        if name not in names and known.parameters.get("workspace") in workspaces and not known.paused:
            client.pause_deployment(known.id)
            paused.append(name)
    return paused
