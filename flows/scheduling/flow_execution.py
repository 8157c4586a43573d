"""Common code of the Prefect flows: progress, logs, retries on storage errors, releasing leases of dead runs, and the
event that requests a compaction.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from logging import Logger, LoggerAdapter
from typing import Any, cast
from uuid import UUID

from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State, StateDetails
from prefect.context import TaskRunContext
from prefect.events import emit_event
from prefect.flows import Flow
from prefect.logging.loggers import flow_run_logger
from prefect.states import Completed
from prefect.tasks import exponential_backoff

from driftline.flows.config.secret_references import check_catalog, check_options, resolve_catalog, resolve_options
from driftline.flows.config.workspace_names import absolute_workspace
from driftline.flows.output.progress import Stage, stages_run_by
from driftline.storage.errors import LeaseHeld, StorageError, WorkspaceNotFound
from driftline.storage.layout import lease_path, new_ulid
from driftline.storage.leases.lease import acquire, peek
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.indexing.commit import publish_committed

UPDATE_SECONDS = 1.0
MAX_SHARE = 0.01
"""Maximum fraction of time spent on progress updates, which are limited to one per second."""
RETRIES = 3
FIRST_DELAY_SECONDS = 10
"""Storage errors are retried after 10, 20 and 40 s, in addition to the store client's own retries."""

STAGE_RETRIES = 1
"""Retries of a repeatable stage, before the whole run is retried."""

DELTAS_EVENT = "driftline.deltas.threshold"
"""The event that requests a compaction; a trigger in prefect.yaml starts it."""

RunLog = Logger | LoggerAdapter[Any]


class PrefectProgress(AbstractContextManager["PrefectProgress"]):
    """Writes phases to the flow run's log and, once there are any, counts to its progress artifact.

    A separate thread updates the artifact, so a slow or unreachable server does not delay the run. If ``quiet`` is set,
    no phases are logged before there is something to show.
    """

    def __init__(self, log: RunLog, *, quiet: bool = False) -> None:
        self._log = log
        self._quiet = quiet
        self._artifact: UUID | None = None
        self._name = ""
        self._total: int | None = None
        self._documents = self._lines = 0
        self._shown = ""
        self._ended = threading.Event()
        # Prefect stores its server's address in the context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._update_until_ended,), daemon=True)
        self._thread.start()

    def phase(self, name: str, total: int | None = None) -> None:
        level = logging.DEBUG if self._quiet and not self._artifact else logging.INFO
        self._log.log(level, "%s%s", name, "" if total is None else f": {total:,} documents")
        self._name, self._total = name, total
        self._documents = self._lines = 0

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        self._documents += documents
        self._lines += lines

    def message(self, text: str) -> None:
        self._log.warning("%s", text)

    def finish(self, description: str, *, has_changed: bool = True) -> None:
        """Show 100 % and ``description``, unless the run neither showed nor changed anything."""
        self._end()
        if has_changed or self._artifact is not None:
            self._show(100.0, description)

    def _show(self, percent: float, description: str) -> None:
        if self._artifact is None:
            self._artifact = cast("UUID", create_progress_artifact(percent, key="driftline-progress"))
        update_progress_artifact(self._artifact, progress=percent, description=description)

    def _update_until_ended(self) -> None:
        pause = UPDATE_SECONDS
        while not self._ended.wait(pause):
            description = f"{self._name}: {self._documents:,} documents, {self._lines:,} lines"
            if description == self._shown or not (self._artifact or self._documents or self._lines):
                continue
            percent = min(100.0, 100.0 * self._documents / self._total) if self._total else 0.0
            started = time.monotonic()
            try:
                self._show(percent, description)
                self._shown = description
            except (
                Exception
            ) as error:  # the client raises many types of errors if the server is down; the run continues
                self._log.debug("The progress artifact was not updated: %s", error)
            pause = max(UPDATE_SECONDS, (time.monotonic() - started) / MAX_SHARE)

    def _end(self) -> None:
        self._ended.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self._end()


class _ToRunLog(logging.Handler):
    """Forward records from all threads to one flow run's log."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(record.levelno, "%s", record.getMessage())


@contextmanager
def flow_progress(*, quiet: bool = False) -> Iterator[PrefectProgress]:
    """Yield the current flow run's progress; its log receives Driftline's records from here and from workers.

    A ``quiet`` run logs no phases until it changes something, and its stages do not become tasks.
    """
    log = get_run_logger()
    own, handler = logging.getLogger("driftline"), _ToRunLog(log)
    before = own.level, own.propagate
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    own.propagate = False
    try:
        stages = nullcontext() if quiet else stages_run_by(TaskStages())
        with PrefectProgress(log, quiet=quiet) as progress, stages:
            yield progress
    finally:
        own.removeHandler(handler)
        own.setLevel(before[0])
        own.propagate = before[1]


def is_storage_error(_task: object, _run: object, state: State[Any]) -> bool:
    """Return whether a task failed with a StorageError, which a retry may fix."""
    try:
        state.result()
    except StorageError:
        return True
    except Exception:  # only the type matters; Prefect raises the error at the end of the run
        return False
    return False


@task(
    retries=RETRIES,
    retry_delay_seconds=exponential_backoff(FIRST_DELAY_SECONDS),
    retry_jitter_factor=0.5,
    retry_condition_fn=is_storage_error,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run ``work``, retrying on StorageError. Each attempt continues after the batches already committed."""
    return work()


class TaskStages:
    """Runs a flow run's stages as tasks so that its graph and timeline show them and their counts.

    The graph has an edge to a stage from each stage that it follows, or from the task that runs it. Prefect draws edges
    only for inputs, so these tasks are passed as inputs; nothing waits for them. It hides tasks that run inside another
    task, so the stages do not see the task that runs them.
    """

    def __init__(self) -> None:
        self._runs: dict[str, UUID] = {}

    def __call__(self, stage: Stage) -> Any:
        """Run ``stage``, and return its result or raise its errors."""
        outer = TaskRunContext.get()
        before = [self._runs[name] for name in stage.after if name in self._runs]
        before = before or ([outer.task_run.id] if outer is not None else [])
        inputs: list[State[UUID]] = [
            Completed(data=each, state_details=StateDetails(task_run_id=each)) for each in before
        ]
        run = _repeated_stage if stage.repeatable else _single_stage
        begun = replace(stage, work=partial(self._begin, stage))
        token = TaskRunContext.__var__.set(cast("Any", None))
        try:
            return run.with_options(name=_short(stage.name))(begun, wait_for=inputs)
        finally:
            TaskRunContext.__var__.reset(token)

    def _begin(self, stage: Stage) -> Any:
        here = TaskRunContext.get()
        if here is not None:
            self._runs[stage.name] = here.task_run.id
        return stage.work()


def _short(name: str) -> str:
    """Shorten a stage's name to the last id of each source: timelines truncate long names.

    Examples:
        >>> _short("scan org:acme/project:shop/source:web"), _short("scan")
        ('scan web', 'scan')
    """
    stage, _, entities = name.partition(" ")
    shown = ", ".join(entity.rpartition(":")[2] for entity in entities.split(", "))
    return f"{stage} {shown}".rstrip()


def _run_stage(stage: Stage) -> Any:
    result = stage.work()
    get_run_logger().info("%s", stage.summarize(result))
    return result


_single_stage = task(cache_policy=NO_CACHE, persist_result=False)(_run_stage)
_repeated_stage = task(
    retries=STAGE_RETRIES,
    retry_delay_seconds=FIRST_DELAY_SECONDS,
    retry_condition_fn=is_storage_error,
    cache_policy=NO_CACHE,
    persist_result=False,
)(_run_stage)


def options_of(options: dict[str, str] | None) -> dict[str, str] | None:
    """Return a flow run's storage options with references resolved; the server sees only the references.

    Raises UsageError for plain-text secrets and for unresolved references.
    """
    if options is None:
        return None
    check_options(options, "storage_options")
    return resolve_options(options, "storage_options")


def catalog_of(url: str | None) -> str | None:
    """Return a flow run's memory catalog URL with references resolved. Raises UsageError."""
    if url is None:
        return None
    check_catalog(url, "catalog_url")
    return resolve_catalog(url, "catalog_url")


def release_leases(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """After a crashed or cancelled run, settle the staged files of dead processes and release their leases.

    Only leases whose holder is provably dead are released: live holders release their own leases, and leases of other
    hosts expire.
    """
    parameters = flow_run.parameters
    workspace = absolute_workspace(parameters["workspace"])
    options = options_of(parameters.get("storage_options"))
    try:
        Workspace.open(workspace, options)
    except WorkspaceNotFound:
        return
    released = _release_abandoned(Workspace.open_for_writing(workspace, options), new_ulid())
    flow_run_logger(flow_run, flow).info("%s: released %s leases of dead processes", state.name, released)


def _release_abandoned(workspace: Workspace, run_id: str) -> int:
    """Return the number of leases that were released; leases that another run has since taken are skipped."""
    released = 0
    for source, _ in workspace.sources():
        if peek(workspace.objects, lease_path(source)).holder_died:
            with suppress(LeaseHeld), acquire_source(workspace, source, run_id) as lease:
                publish_committed(workspace, source, lease)
                released += 1
    for tenant in workspace.tenants():
        path = lease_path(tenant, "maintenance")
        if peek(workspace.objects, path).holder_died:
            with suppress(LeaseHeld), acquire(workspace.objects, path, run_id):
                released += 1
    return released


def request_compaction(workspace: str, resource: str, entity: str, deltas: int) -> None:
    """Emit the event that requests a compaction, because ``entity`` has more deltas than its threshold.

    ``resource`` is "source", or "memory" with a tenant.
    """
    only = {"entity": entity} if resource == "source" else {"entity": "", resource: entity}
    emit_event(
        DELTAS_EVENT,
        resource={
            "prefect.resource.id": f"driftline.{resource}.{entity}",
            "prefect.resource.name": entity,
            "driftline.workspace": workspace,
        },
        payload={"workspace": workspace, **only, "deltas": deltas},
    )
