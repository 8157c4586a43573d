"""``driftline serve``: a single machine with its own Prefect server, without a worker or pool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.workspace.workspace import Workspace
from tests.servers.ports import free_port
from tests.servers.prefect_server import PATIENT, answers, started
from tests.support.deployed import BIN
from tests.support.oracle import WORDS, assert_in_step, files_below, save_tiny_model
from tests.support.waiting import PATIENCE_SECONDS, ended, until

SECONDS = 30
"""The interval of scheduled runs, each of which takes seconds of CPU time."""


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)


def test_serving_starts_a_server_keeps_the_index_in_step_and_is_safe_to_start_twice(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.txt").write_text(f"{WORDS[1]}\n")
    model = save_tiny_model(tmp_path / "model")
    (tmp_path / "driftline.toml").write_text(f'model = "{model}"\n[[sources]]\nuri = "web"\nschedule = {SECONDS}\n')
    port = free_port()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DRIFTLINE_"))}
    environment = {**variables, **PATIENT} | {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
    }
    command = [str(BIN / "driftline"), "serve", "--port", str(port)]
    url, entity = f"http://127.0.0.1:{port}/api", Entity.parse("source:web")

    def runs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = post(f"{url}/flow_runs/filter", {"sort": "START_TIME_ASC"})
        return [run for run in found if run["state_type"] not in ("SCHEDULED", "PENDING")]

    def in_step() -> bool:
        try:
            assert_in_step(Workspace.open(str(tmp_path / ".driftline")), entity, files_below(tmp_path / "web"))
        except (DriftlineError, AssertionError):
            return False
        return True

    log = tmp_path / "serve.log"
    with started(command, log, environment, tmp_path) as process:
        until(in_step, "the first run", unless=lambda: ended(process, log), poll=0.3)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ui-settings", timeout=PATIENCE_SECONDS) as answer:
            assert json.load(answer)["api_url"] == url  # the web page's request
        again = subprocess.run(
            command,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (again.returncode, again.stdout) == (0, "This machine is already serving them.\n")
        (tmp_path / "web" / "b.txt").write_text(f"{WORDS[2]}\n")
        until(in_step, "a run that sees the change", unless=lambda: ended(process, log), poll=0.3)
        assert all(run["auto_scheduled"] for run in runs())
        times = [run["expected_start_time"] for run in runs()]
        assert len(times) == len(set(times))  # no scheduled time ran twice
        assert len(post(f"{url}/automations/filter", {})) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert not answers(f"{url}/health")  # its server has also stopped
