"""A site with deployed sources: its driftline.toml, a worker, and the server's view of its runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from driftline.flows.commands.main import main
from driftline.storage.entities import Entity
from driftline.storage.workspace.workspace import Workspace
from tests.servers.compose import compose_command
from tests.servers.prefect_server import PrefectServer, started
from tests.support.oracle import WORDS, assert_in_step, files_below

BIN = Path(sys.executable).parent
RUN_SECONDS = 200
POLL_SECONDS = 0.3
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
Run = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """A folder with trees and a ``driftline.toml``; ``pool`` is where its deployments run."""

    folder: Path
    server: PrefectServer
    pool: str = "driftline"

    @property
    def workspace(self) -> Workspace:
        return Workspace.open(str(self.folder / ".driftline"))

    def driftline(self, *arguments: str) -> Any:
        """The JSON that a command prints; in this process, which imports Prefect only once."""
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
        """Write ``files`` files of three lines into a source, from the words of the oracle."""
        for number in range(files):
            path = self.folder / source / f"{number % 3}" / f"file{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{WORDS[(first_word + number + line) % len(WORDS)]}\n" for line in range(3)))

    def worker(self, log: str = "worker.log") -> AbstractContextManager[subprocess.Popen[bytes]]:
        command = compose_command("worker", {"driftline": self.pool})
        return started(command, self.folder / log, self.server.environment, self.folder)

    @property
    def page(self) -> str:
        """The address of the Prefect UI."""
        return self.server.url.removesuffix("/api")

    # -- server ----------------------------------------------------------------------------------

    def deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.get(f"deployments/name/{name}")
        return found

    def pause_schedules(self, name: str) -> None:
        """Let a deployment run when it is triggered only."""
        deployment = self.deployment(name)
        for schedule in deployment["schedules"]:
            self.server.call("PATCH", f"deployments/{deployment['id']}/schedules/{schedule['id']}", {"active": False})

    def trigger(
        self, name: str, job_variables: dict[str, Any] | None = None, key: str | None = None, **parameters: Any
    ) -> str:
        """Start a run; returns its id."""
        body = {"parameters": parameters, "idempotency_key": key, "job_variables": job_variables}
        run: Run = self.server.post(f"deployments/{self.deployment(name)['id']}/create_flow_run", body)
        return str(run["id"])

    def run(self, identifier: str) -> Run:
        found: Run = self.server.get(f"flow_runs/{identifier}")
        return found

    def runs_of(self, name: str) -> list[Run]:
        mine = {"id": {"any_": [self.deployment(name)["id"]]}}
        found: list[Run] = self.server.post("flow_runs/filter", {"deployments": mine, "sort": "START_TIME_ASC"})
        return found

    def end_of(self, *identifiers: str) -> list[str]:
        """The final states of runs, in the order given."""
        until(lambda: all(self.run(one)["state_type"] in FINAL for one in identifiers), "the end of the runs")
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


def until(is_so: Callable[[], bool], what: str, seconds: float = RUN_SECONDS) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(POLL_SECONDS)
