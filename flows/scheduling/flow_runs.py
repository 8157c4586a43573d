"""What all Prefect flows share: progress, the run's log, retries on storage errors, and leases of runs that died."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from logging import Logger, LoggerAdapter
from types import TracebackType
from typing import Any, cast
from uuid import UUID

from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow
from prefect.logging.loggers import flow_run_logger
from prefect.tasks import exponential_backoff

from driftline.flows.config.secret_references import check_options, resolve_options
from driftline.storage.errors import StorageError, WorkspaceNotFound
from driftline.storage.ids import new_ulid
from driftline.storage.workspace.workspace import Workspace

UPDATE_SECONDS = 1.0
MAX_SHARE = 0.01
"""Progress is told at most once a second, and never takes more of the time than this."""
RETRIES = 3
FIRST_DELAY_SECONDS = 10
"""A failing store is tried again after 10, 20 and 40 s, beside what its client tries by itself."""

RunLog = Logger | LoggerAdapter[Any]


class PrefectProgress(AbstractContextManager["PrefectProgress"]):
    """Writes phases to the log of the flow run, and figures to its progress artifact from a thread of its own.

    The pipeline only counts: a server that is slow or away does not hold it up.
    """

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._artifact = cast(UUID, create_progress_artifact(0.0, key="driftline-progress", description="starting"))
        self._name = ""
        self._total: int | None = None
        self._documents = self._lines = 0
        self._told = ""
        self._ended = threading.Event()
        # Prefect finds its server in the context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._tell_until_ended,), daemon=True)
        self._thread.start()

    def phase(self, name: str, total: int | None = None) -> None:
        self._log.info("%s%s", name, "" if total is None else f": {total:,} documents")
        self._name, self._total = name, total
        self._documents = self._lines = 0

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        self._documents += documents
        self._lines += lines

    def message(self, text: str) -> None:
        self._log.warning("%s", text)

    def finish(self, description: str) -> None:
        """Show 100 % and ``description``."""
        self._end()
        update_progress_artifact(self._artifact, progress=100.0, description=description)

    def _tell_until_ended(self) -> None:
        pause = UPDATE_SECONDS
        while not self._ended.wait(pause):
            description = f"{self._name}: {self._documents:,} documents, {self._lines:,} lines"
            if description == self._told:
                continue
            percent = min(100.0, 100.0 * self._documents / self._total) if self._total else 0.0
            started = time.monotonic()
            try:
                update_progress_artifact(self._artifact, progress=percent, description=description)
                self._told = description
            except Exception as error:  # whatever the client makes of a server that is away: the run goes on
                self._log.debug("Progress was not told: %s", error)
            pause = max(UPDATE_SECONDS, (time.monotonic() - started) / MAX_SHARE)

    def _end(self) -> None:
        self._ended.set()
        self._thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


class _ToRunLog(logging.Handler):
    """Passes records of any thread on to the log of one flow run."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(record.levelno, "%s", record.getMessage())


@contextmanager
def flow_progress() -> Iterator[PrefectProgress]:
    """The progress of the flow run at hand; meanwhile all that Driftline logs, here and on workers, goes to its log."""
    log = get_run_logger()
    own, handler = logging.getLogger("driftline"), _ToRunLog(log)
    before = own.level, own.propagate
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    own.propagate = False
    try:
        with PrefectProgress(log) as progress:
            yield progress
    finally:
        own.removeHandler(handler)
        own.level, own.propagate = before


def is_storage_error(_task: object, _run: object, state: State[Any]) -> bool:
    """Whether a task failed for a reason that may be gone the next time."""
    try:
        state.result()
    except StorageError:
        return True
    except Exception:  # asked for here only to see its kind: Prefect itself raises it, at the end of the run
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
    """Do ``work``; when the store fails, do it again from the start, which goes on from what was committed."""
    return work()


def options_of(given: dict[str, str] | None) -> dict[str, str] | None:
    """The storage options of a flow run with the values that they refer to, which the server never sees.

    Raises UsageError for a secret that was written out, and for a reference to what is not there.
    """
    if given is None:
        return None
    check_options(given, "storage_options")
    return resolve_options(given, os.environ, "storage_options")


def release_leases(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """A hook for crashed and cancelled runs: finish what the dead process had staged, and release its leases.

    Only of processes that are provably dead; a live one releases its leases itself, those on other hosts expire.
    """
    from driftline.tasks.maintenance.clean import release_abandoned  # loads SQLAlchemy, which no other flow run needs

    given = flow_run.parameters
    workspace, options = given["workspace"], options_of(given.get("storage_options"))
    try:
        Workspace.open(workspace, options)
    except WorkspaceNotFound:
        return
    freed = release_abandoned(Workspace.open_for_writing(workspace, options), new_ulid())
    flow_run_logger(flow_run, flow).info("%s: released %s leases of dead processes", state.name, freed)
