"""A site with deployed sources: its driftline.toml, a worker, and its runs on the server."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from driftline.flows.commands.main import main
from driftline.storage.entities import Entity
from driftline.storage.workspace.workspace import Workspace
from tests.servers.compose import compose_command
from tests.servers.prefect_server import PrefectServer, started
from tests.support.oracle import WORDS, assert_in_step, files_below
from tests.support.processes import forked_engine
from tests.support.waiting import ended, until

BIN = Path(sys.executable).parent
POLL_SECONDS = 0.3
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
DAY_SECONDS = 86_400
HEARTBEAT = "prefect.flow-run.heartbeat"
Run = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """A folder that contains trees and a ``driftline.toml``; its deployments run in ``pool``."""

    folder: Path
    server: PrefectServer
    pool: str = "driftline"
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The running workers."""

    @property
    def workspace(self) -> Workspace:
        return Workspace.open(str(self.folder / ".driftline"))

    def driftline(self, *arguments: str) -> Any:
        """Run a command and return its JSON. It runs in this process, so Prefect is imported only once."""
        from prefect.settings import PREFECT_API_URL, temporary_settings  # slow to import, so not at collection

        printed = io.StringIO()
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, {"PREFECT_API_URL": self.server.url}))
            stack.enter_context(temporary_settings({PREFECT_API_URL: self.server.url}))
            stack.enter_context(chdir(self.folder))
            stack.enter_context(redirect_stdout(printed))
            code = main([*arguments, "--json"])
        assert code == 0, printed.getvalue()
        return json.loads(printed.getvalue())

    def change(self, source: str, files: int, first_word: int) -> None:
        """Write ``files`` three-line files, made of the oracle's words, into a source."""
        for number in range(files):
            path = self.folder / source / f"{number % 3}" / f"file{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{WORDS[(first_word + number + line) % len(WORDS)]}\n" for line in range(3)))

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker for the pool until the block ends."""
        command = compose_command("worker", {"driftline": self.pool})
        with started(command, self.folder / "worker.log", self.server.environment, self.folder) as process:
            self.workers[:] = [process]
            yield process
            self.workers.clear()

    def fork_engines(self) -> None:
        """Let the pool's workers fork run processes, which would otherwise import Prefect twice."""
        path = f"work_pools/{self.pool}"
        template = self.server.get(path)["base_job_template"]
        template["job_configuration"]["command"] = self.forked_engine
        self.server.call("PATCH", path, {"base_job_template": template})

    @property
    def forked_engine(self) -> str:
        """The command that forks a run's process, which sends heartbeats as those of ``driftline deploy`` do."""
        variables = self.server.environment | {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
        return str(forked_engine(*sorted(variables.items())))

    def until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; fails as soon as the worker ends."""
        until(is_so, what, unless=self._end_of_worker, poll=POLL_SECONDS)

    def _end_of_worker(self) -> str:
        return "".join(ended(process, self.folder / "worker.log") for process in self.workers)

    @property
    def page(self) -> str:
        """The address of the Prefect UI."""
        return self.server.url.removesuffix("/api")

    # -- server ----------------------------------------------------------------------------------

    def deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.get(f"deployments/name/{name}")
        return found

    def pause_schedules(self, name: str) -> None:
        """Let a deployment run only when triggered."""
        self._set_schedules(name, {"active": False})

    def resume_schedules(self, name: str) -> None:
        self._set_schedules(name, {"active": True})

    def _set_schedules(self, name: str, change: dict[str, bool]) -> None:
        deployment = self.deployment(name)
        for schedule in deployment["schedules"]:
            self.server.call("PATCH", f"deployments/{deployment['id']}/schedules/{schedule['id']}", change)

    @contextmanager
    def silence_allowed(self, seconds: int = DAY_SECONDS) -> Iterator[None]:
        """Change the time after which a run without heartbeats counts as crashed."""
        (automation,) = [one for one in self.server.post("automations/filter", {}) if "heartbeat" in one["name"]]
        body = {name: automation[name] for name in ("name", "trigger", "actions")}
        path = f"automations/{automation['id']}"
        self.server.call("PUT", path, body | {"trigger": automation["trigger"] | {"within": seconds}})
        yield
        self.server.call("PUT", path, body)

    def heartbeat(self, identifier: str) -> None:
        """Send a run's first heartbeat again, with the current time."""
        of_run = {"event": {"name": [HEARTBEAT]}, "resource": {"id": [f"prefect.flow-run.{identifier}"]}}
        found: list[Run] = []

        def is_stored() -> bool:
            found[:] = self.server.post("events/filter", {"filter": of_run})["events"]
            return bool(found)

        self.until(is_stored, "a heartbeat of the run")
        sent = {name: found[0][name] for name in ("event", "resource", "related", "payload")}
        self.server.post("events", [sent | {"id": str(uuid.uuid4()), "occurred": datetime.now(UTC).isoformat()}])

    def trigger(
        self, name: str, job_variables: dict[str, Any] | None = None, key: str | None = None, **parameters: Any
    ) -> str:
        """Start a run and return its id."""
        body = {"parameters": parameters, "idempotency_key": key, "job_variables": job_variables}
        run: Run = self.server.post(f"deployments/{self.deployment(name)['id']}/create_flow_run", body)
        return str(run["id"])

    def begin(self, name: str) -> str:
        """Start a run that the test controls: no worker picks it up, and it lasts until ``set_state``."""
        later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": later}}
        path, begun = f"deployments/{self.deployment(name)['id']}/create_flow_run", list[str]()

        def begins() -> bool:  # an earlier run may hold the slot
            begun[:] = [self.server.post(path, {"state": state})["id"]]
            self.set_state(begun[0], "PENDING")
            return bool(self.run(begun[0])["state_type"] == "PENDING")

        self.until(begins, "the start of a run")
        return begun[0]

    def set_state(self, identifier: str, state: str) -> Any:
        return self.server.post(f"flow_runs/{identifier}/set_state", {"state": {"type": state}})

    def run(self, identifier: str) -> Run:
        found: Run = self.server.get(f"flow_runs/{identifier}")
        return found

    def runs_of(self, name: str) -> list[Run]:
        mine = {"id": {"any_": [self.deployment(name)["id"]]}}
        found: list[Run] = self.server.post("flow_runs/filter", {"deployments": mine, "sort": "START_TIME_ASC"})
        return found

    def end_of(self, *identifiers: str) -> list[str]:
        """Return the final states of runs, in the given order."""
        self.until(lambda: all(self.run(one)["state_type"] in FINAL for one in identifiers), "the end of the runs")
        return [self.run(one)["state_type"] for one in identifiers]

    def log_of(self, identifier: str) -> str:
        body = {"logs": {"flow_run_id": {"any_": [identifier]}}, "sort": "TIMESTAMP_ASC"}
        return "\n".join(log["message"] for log in self.server.post("logs/filter", body))

    def assert_completed(self, *identifiers: str) -> None:
        for identifier, state in zip(identifiers, self.end_of(*identifiers), strict=True):
            assert state == "COMPLETED", f"{self.run(identifier)['state']}\n{self.log_of(identifier)}"

    # -- the index ---------------------------------------------------------------------------------

    def assert_in_step(self, source: str) -> None:
        assert_in_step(self.workspace, Entity.parse(f"source:{source}"), files_below(self.folder / source))
