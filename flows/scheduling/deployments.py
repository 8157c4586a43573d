"""Build, register, serve and run a workspace's Prefect deployments.

``deployments_of`` fills ``deployments/prefect.yaml`` from ``driftline.toml``, without side effects. ``register`` sends
them and their automations to a Prefect server, and is idempotent. ``serve`` runs them on this machine, and starts a
Prefect server if there is none. ``run_deployments`` starts them for a commit, once per commit, and waits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from typing import Any, TypeVar

import yaml
from filelock import FileLock, Timeout
from httpx import HTTPError
from prefect import serve as serve_deployments
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import ConcurrencyLimitConfig, FlowRun
from prefect.deployments.runner import RunnerDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.events.schemas.deployment_triggers import DeploymentTriggerTypes
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.schedules import Cron, Interval, Schedule
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.urls import url_for
from prefect.workers.process import ProcessWorker
from pydantic import TypeAdapter

from driftline.flows.config.driftline_toml import Configuration, ConfiguredSource
from driftline.flows.config.driftline_toml import Schedule as ConfiguredSchedule
from driftline.flows.config.index_request import SourceRequest
from driftline.storage.defaults import DEFAULT_EXECUTOR
from driftline.storage.entities import DEFAULT_IDS, DEFAULT_PARTS, Entity, encode_id
from driftline.storage.errors import DeploymentFailed, ExecutorError, StorageError, UsageError

_T = TypeVar("_T")
WORKSPACE_PLACEHOLDER = "{{ $DRIFTLINE_WORKSPACE }}"
"""Placeholder for the workspace in the file; Prefect's own command fills it in from the environment."""
INDEX, FLEET = "index", "fleet"
WITH_EXECUTOR = (INDEX, FLEET, "compact")
WITH_CATALOG = ("cleanup", "verify")
ANCHOR = "2026-01-01T00:00:00+00:00"
"""Start of all intervals, fixed so that re-registering does not shift the schedule."""
INDEX_FLOW = "driftline-index"
FLEET_FLOW = "driftline-fleet"
POLL_SECONDS = 1.0
MAX_ATTEMPTS = 20
"""Maximum number of runs per commit: another build of the commit restarts a failed run."""


@dataclass(frozen=True, slots=True)
class Deployments:
    """Deployments and automations, each a dictionary in the format of ``prefect.yaml``.

    ``notify`` lists the server's blocks, as ``TYPE/NAME``, that report failed runs of the deployments.
    """

    deployments: tuple[dict[str, Any], ...]
    automations: tuple[dict[str, Any], ...]
    notify: tuple[str, ...] = ()


def deployments_of(configuration: Configuration, *, executor: str = DEFAULT_EXECUTOR, prefix: str = "") -> Deployments:
    """Return a deployment per source and per fleet, plus the workspace's maintenance deployments.

    ``executor`` is the executor for index and compact. ``prefix`` is prepended to every name so that several workspaces
    can share a server. Raises UsageError if the configuration has neither a source nor a fleet.
    """
    if not configuration.sources and not configuration.fleets:
        fix = "Add a [[sources]] or a [[fleet]] table."
        raise UsageError("The configuration has no sources and no fleets to deploy", str(configuration.path), fix)
    text = files("driftline.deployments").joinpath("prefect.yaml").read_text(encoding="utf-8")
    file = _filled(yaml.safe_load(text), configuration.workspace)
    deployments: list[dict[str, Any]] = []
    for template in file["deployments"]:
        if template["name"] in WITH_EXECUTOR and executor != DEFAULT_EXECUTOR:
            template["parameters"]["executor"] = executor
        make = {INDEX: _of_sources, FLEET: _of_fleets}.get(template["name"])
        deployments += list(make(template, configuration)) if make is not None else [template]
    for deployment in deployments:
        deployment["name"] = prefix + deployment["name"]
        if configuration.storage_options:
            deployment["parameters"]["storage_options"] = dict(configuration.storage_options)
    for deployment in deployments:
        deployment["tags"] = [*deployment["tags"], *_tags(deployment)]
        deployment["parameters"] |= _memory_parameters(deployment["entrypoint"], configuration)
    return Deployments(tuple(deployments), tuple(file["automations"]), configuration.notify)


def deployment_name(entity: Entity) -> str:
    """Return the name of a source's index deployment: ``web``, or ``acme:alpha:web`` outside the default org."""
    parts = list(entity.parts)
    while len(parts) > 1 and DEFAULT_IDS.get(parts[0][0]) == parts[0][1]:
        del parts[0]
    return ":".join(encode_id(name) for _, name in parts)


def fleet_deployments(configuration: Configuration) -> dict[str, str]:
    """Map fleet names to deployment names, such as ``github.com:acme``."""
    found: dict[str, str] = {}
    for fleet in configuration.fleets:
        name = ":".join(encode_id(part) for part in fleet.name.split("/") if part)
        found[fleet.name] = name if name not in found.values() else f"{name}-{len(found)}"
    return found


def _tags(deployment: Mapping[str, Any]) -> list[str]:
    """Return the flow's name and the ids of the source's entity, to select deployments and runs in Prefect."""
    entity = str(deployment["parameters"].get("entity", ""))
    flow = deployment["entrypoint"].rpartition(":")[2]
    return [flow, *(part for part in entity.split("/") if part and part not in DEFAULT_PARTS)]


def _of_sources(template: dict[str, Any], configuration: Configuration) -> Iterator[dict[str, Any]]:
    for source in configuration.sources:
        deployment = deepcopy(template)
        deployment["name"] = deployment_name(source.entity)
        deployment["description"] += f"\n\nSource: `{source.uri}`"
        deployment["parameters"] |= _parameters(source, configuration)
        yield _scheduled(deployment, source.schedule)


def _of_fleets(template: dict[str, Any], configuration: Configuration) -> Iterator[dict[str, Any]]:
    names = fleet_deployments(configuration)
    for fleet in configuration.fleets:
        deployment = deepcopy(template)
        deployment["name"] = names[fleet.name]
        deployment["description"] += f"\n\nFleet: `{fleet.name}`"
        deployment["parameters"] |= {"fleets": [dict(fleet.table)], **configuration.index}
        yield _scheduled(deployment, fleet.schedule)


def _scheduled(deployment: dict[str, Any], schedule: ConfiguredSchedule | None) -> dict[str, Any]:
    if schedule is not None:
        every = schedule.interval_seconds
        moment = {"cron": schedule.cron} if every is None else {"interval": every, "anchor_date": ANCHOR}
        deployment["schedules"] = [{"slug": "schedule", **moment}]
    return deployment


def _parameters(source: ConfiguredSource, configuration: Configuration) -> dict[str, Any]:
    """Return the parameters set in the configuration; Prefect's form shows defaults for the rest."""
    given = {
        "sources": [source.uri],
        "entity": str(source.entity),
        "include": list(source.include) or ["*"],  # none would keep the filters of the last run
        "exclude": list(source.exclude),
        "link": source.link or "",
    }
    return {name: value for name, value in given.items() if value or name == "link"} | dict(configuration.index)


def _memory_parameters(entrypoint: str, configuration: Configuration) -> dict[str, Any]:
    """Return the file's memory settings, because workers on other hosts cannot read the file."""
    url = configuration.memory.get("catalog", {}).get("url")
    threshold = configuration.memory.get("index", {}).get("compaction_threshold")
    flow = entrypoint.rpartition(":")[2]
    given = {"catalog_url": url} if flow in WITH_CATALOG else {}
    given |= {"compaction_threshold": threshold} if flow == "compact" else {}
    return {name: value for name, value in given.items() if value is not None}


def _filled(value: Any, workspace: str) -> Any:
    if isinstance(value, str):
        return value.replace(WORKSPACE_PLACEHOLDER, workspace)
    if isinstance(value, list):
        return [_filled(item, workspace) for item in value]
    if isinstance(value, dict):
        return {name: _filled(item, workspace) for name, item in value.items()}
    return value


TAG = "driftline"
_TRIGGER: TypeAdapter[DeploymentTriggerTypes] = TypeAdapter(DeploymentTriggerTypes)


def register(deployments: Deployments, *, pool: str) -> tuple[list[str], list[str]]:
    """Register ``deployments`` for the work pool ``pool``, which is created if it does not exist.

    Returns ``(registered, paused)`` names; deployments that the workspace no longer has are paused. Raises UsageError
    if no server responds, or if a name belongs to another workspace.
    """
    with connected() as client:
        check_names(client, deployments)
        actions = notifications(client, deployments)
        try:
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
        except ObjectAlreadyExists:
            pass  # keep the worker type that the team chose
        names = []
        for spec in deployments.deployments:
            deployment = to_prefect(spec, pool=pool)
            deployment.apply()
            names.append(deployment.full_name)
        register_automations(client, deployments, actions)
        return names, _pause_others(client, deployments, set(names))


def server_url() -> str:
    """Return the address of the configured server. Raises UsageError if none is configured."""
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
    """Yield a client of the configured server. Raises UsageError if the server does not respond."""
    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
        if error is not None:
            raise UsageError(
                f"No Prefect server responds ({error})", str(client.api_url), "Start it, or correct PREFECT_API_URL."
            ) from error
        yield client


def to_prefect(spec: dict[str, Any], *, pool: str | None) -> RunnerDeployment:
    """Convert a ``prefect.yaml`` deployment to Prefect's object, for workers of ``pool`` or for ``serve``."""
    return RunnerDeployment.from_flow(
        load_flow_from_entrypoint(spec["entrypoint"]),
        spec["name"],
        paused=False,
        schedules=[_schedule(given) for given in spec["schedules"]],
        concurrency_limit=ConcurrencyLimitConfig.model_validate(spec["concurrency_limit"]),
        parameters=spec["parameters"],
        triggers=[
            _TRIGGER.validate_python(given | {"name": f"driftline: {spec['name']} when there are too many deltas"})
            for given in spec.get("triggers", [])
        ],
        tags=spec["tags"],
        description=spec["description"],
        enforce_parameter_schema=spec["enforce_parameter_schema"],
        work_pool_name=pool,
        job_variables=spec["work_pool"]["job_variables"] if pool else None,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def check_names(client: SyncPrefectClient, deployments: Deployments) -> None:
    """Raise UsageError if a name belongs to another workspace on the server."""
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


WEBHOOK = "webhook"
_SUBJECT = "{{ flow_run.name }}: {{ flow_run.state.name }}"
_BODY = "{{ flow_run.state.message }}\n{{ flow_run | ui_url }}"
_LINES = "[flow_run.name ~ ': ' ~ flow_run.state.name, flow_run.state.message, flow_run | ui_url]"
_PAYLOAD = f'{{"text": {{{{ {_LINES} | join("\\n") | tojson }}}} }}'


def notifications(client: SyncPrefectClient, deployments: Deployments) -> list[dict[str, Any]]:
    """Return the actions that report a failed run. Raises UsageError if the server does not have one of the blocks."""
    found = []
    for name in deployments.notify:
        kind, _, block = name.partition("/")
        try:
            document = client.read_block_document_by_name(block, kind)
        except ObjectNotFound as error:
            fix = "Create it on the Blocks page of the Prefect UI; 'prefect block ls' lists them."
            raise UsageError("The Prefect server has no such block", name, fix) from error
        action: dict[str, Any] = {"block_document_id": document.id}
        if kind == WEBHOOK:
            found.append(action | {"type": "call-webhook", "payload": _PAYLOAD})
        else:
            found.append(action | {"type": "send-notification", "subject": _SUBJECT, "body": _BODY})
    return found


def _on_failure(deployments: Deployments, actions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the automation that executes ``actions`` when a run of the deployments fails or crashes."""
    workspace = deployments.deployments[0]["parameters"]["workspace"]
    related = [
        {"prefect.resource.role": "flow", "prefect.resource.name": ["driftline-*"]},
        {
            "prefect.resource.role": "deployment",
            "prefect.resource.name": [spec["name"] for spec in deployments.deployments],
        },
    ]
    failed = ["prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut"]
    return {
        "name": f"driftline: report failed runs in {workspace}",
        "description": "Sends a message when a run of the workspace fails.",
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": related,
            "for_each": ["prefect.resource.id"],
            "expect": failed,
            "threshold": 1,
        },
        "actions": list(actions),
    }


def register_automations(
    client: SyncPrefectClient, deployments: Deployments, actions: Sequence[dict[str, Any]] = ()
) -> None:
    """Create or update the automations, and delete duplicates by name.

    ``actions`` report failed runs; if empty, failures are not reported.
    """
    on_failure = _on_failure(deployments, actions)
    if not actions:
        for former in client.read_automations_by_name(on_failure["name"]):
            client.delete_automation(former.id)
    for spec in (*deployments.automations, *([on_failure] if actions else ())):
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


def _pause_others(client: SyncPrefectClient, deployments: Deployments, names: set[str]) -> list[str]:
    """Pause the workspace's other deployments, whose sources are no longer in the file, and return their names."""
    workspaces = {spec["parameters"]["workspace"] for spec in deployments.deployments}
    paused = []
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    flows = {flow.id: flow.name for flow in _all_pages(client.read_flows)}
    for known in list(_all_pages(partial(client.read_deployments, deployment_filter=ours))):
        name = f"{flows[known.flow_id]}/{known.name}"
        if name not in names and known.parameters.get("workspace") in workspaces and not known.paused:
            client.pause_deployment(known.id)
            paused.append(name)
    return paused


def _all_pages(read: Callable[..., list[_T]]) -> Iterator[_T]:
    """Yield everything that Prefect returns in pages, whose size the server limits."""
    offset = 0
    while page := read(offset=offset):
        yield from page
        offset += len(page)


START_SECONDS = 900
"""Startup timeout for a server whose process is running. On an idle machine, startup takes ten seconds."""
STOP_SECONDS = 20


def serve(deployments: Deployments, *, workspace: str, port: int, limit: int, announce: Callable[[str], None]) -> bool:
    """Run at most ``limit`` flow runs concurrently until the process is stopped.

    Returns False immediately if another process on this machine already serves the workspace. If no server is
    configured, it uses the server at this machine's ``port``, starting one there with its data in PREFECT_HOME if
    necessary. ``announce`` receives a line when a server starts, and another once the deployments are ready. Raises
    UsageError if a configured server does not respond, ExecutorError if a server does not start.
    """
    url = PREFECT_API_URL.value()
    own = f"http://127.0.0.1:{port}/api"
    key = blake2b(f"{url or own} {workspace}".encode(), digest_size=8).hexdigest()
    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home / f"driftline-serve-{key}.lock", timeout=0), _server(url, own, announce) as address:
            with connected() as client:
                check_names(client, deployments)
                register_automations(client, deployments, notifications(client, deployments))
            runners = [to_prefect(spec, pool=None) for spec in deployments.deployments]
            names = ", ".join(runner.full_name for runner in runners)
            announce(f"serving {names} at {address.removesuffix('/api')}; Ctrl-C stops it")
            serve_deployments(*runners, limit=limit, print_starting_message=False)
    except Timeout:
        return False
    return True


@contextmanager
def _server(configured: str | None, own: str, announce: Callable[[str], None]) -> Iterator[str]:
    """Yield the address of the server to use; a server started here is stopped when the context exits."""
    if configured is not None:
        yield configured
    elif _answers(own):
        with _used(own):
            yield own
    else:
        announce(f"starting a Prefect server at {own.removesuffix('/api')}")
        with _started(own), _used(own):
            yield own


@contextmanager
def _started(url: str) -> Iterator[None]:
    host, _, port = url.removeprefix("http://").removesuffix("/api").partition(":")
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", host, "--port", port]
    log = get_current_settings().home / "driftline-server.log"
    # The web UI calls the API at the default port unless configured otherwise.
    environment = {"PREFECT_UI_API_URL": url, **os.environ}
    with log.open("wb") as output:
        # A new session shields the server from Ctrl-C: the deployments still report to it while they stop.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ExecutorError("The Prefect server did not start", url, f"See {log}, or choose another --port.")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _used(url: str) -> AbstractContextManager[object]:
    """Use ``url`` as the Prefect server of this process and its children."""
    os.environ["PREFECT_API_URL"] = url
    return temporary_settings({PREFECT_API_URL: url})


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.read() == b"true")
    except OSError:
        return False


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
        raise StorageError(f"The Prefect server did not accept the run ({error})", name, "Check its log.") from error


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
