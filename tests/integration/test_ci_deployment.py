"""``driftline ci --deployment`` against a real Prefect server; a thread replaces the worker and ends the runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.prefect_server import PrefectServer
from tests.support.ci_examples import github_jobs, gitlab_jobs
from tests.support.processes import forked_command

pytestmark = pytest.mark.xdist_group("prefect")
Driftline = Callable[..., Any]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Worker:
    """Ends each run of the ``mine`` deployments with the next of ``outcomes``; the last outcome repeats."""

    def __init__(self, server: PrefectServer, mine: dict[str, str]) -> None:
        self.outcomes = ["COMPLETED"]
        self._server, self._mine = server, mine
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def runs(self, *states: str) -> list[dict[str, Any]]:
        wanted: dict[str, Any] = {"deployment_id": {"any_": list(self._mine.values())}}
        if states:
            wanted["state"] = {"type": {"any_": list(states)}}
        found: list[dict[str, Any]] = self._server.post("flow_runs/filter", {"flow_runs": wanted})
        return found

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(0.1):
            for run in self.runs("SCHEDULED", "PENDING") if self.outcomes else ():
                outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
                body = {"state": {"type": outcome, "name": outcome.title()}, "force": True}
                self._server.post(f"flow_runs/{run['id']}/set_state", body)


@pytest.fixture
def deployments(prefect_server: PrefectServer) -> dict[str, str]:
    """Two deployments of the index flow for this test only, as ``{name: id}``."""
    flow = prefect_server.post("flows/", {"name": "driftline-index"})["id"]
    names = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("web", "docs")]
    return {
        name: prefect_server.post("deployments/", {"name": name, "flow_id": flow, "entrypoint": "x:y"})["id"]
        for name in names
    }


@pytest.fixture
def worker(prefect_server: PrefectServer, deployments: dict[str, str]) -> Iterator[Worker]:
    working = Worker(prefect_server, deployments)
    yield working
    working.stop()


@pytest.fixture
def ci(
    driftline: Driftline, prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Driftline]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from driftline.flows.ci import deployment_runs

    monkeypatch.setattr(deployment_runs, "POLL_SECONDS", 0.1)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("CI_COMMIT_SHA", COMMIT)
    monkeypatch.chdir(tmp_path)
    with temporary_settings({PREFECT_API_URL: prefect_server.url}):
        yield lambda *arguments: driftline("ci", "--json", *arguments)


def test_one_commit_makes_one_run_of_each_deployment(
    ci: Driftline, worker: Worker, deployments: dict[str, str], tmp_path: Path
) -> None:
    web, docs = deployments
    first = ci("--deployment", web, "--summary", tmp_path / "summary.md")
    assert first.code == 0, first.out
    assert first.json["action"] == "deployed"
    (run,) = first.json["flow_runs"]
    assert (run["deployment"], run["state"]) == (f"driftline-index/{web}", "Completed")
    assert f"driftline-index/{web}" in (tmp_path / "summary.md").read_text()
    again = ci("--deployment", f"driftline-index/{web}", "--deployment", docs)
    assert again.code == 0
    assert again.json["flow_runs"][0]["id"] == run["id"]
    (both, other) = (worker.runs(), again.json["flow_runs"][1])
    assert {found["id"] for found in both} == {run["id"], other["id"]}
    assert all(f"commit:{COMMIT}" in found["tags"] for found in both)


def test_a_connection_that_drops_while_a_run_is_awaited_is_retried(
    ci: Driftline, worker: Worker, deployments: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from httpx import ConnectError
    from prefect.client.orchestration import SyncPrefectClient

    web, _ = deployments
    dropped: list[object] = []
    read = SyncPrefectClient.read_flow_run

    def failing(client: SyncPrefectClient, run: Any) -> Any:
        if not dropped:
            dropped.append(run)
            raise ConnectError("connection refused")
        return read(client, run)

    monkeypatch.setattr(SyncPrefectClient, "read_flow_run", failing)
    assert ci("--deployment", web).code == 0
    assert dropped


def test_a_failed_run_fails_the_build_and_the_next_build_starts_another(
    ci: Driftline, worker: Worker, deployments: dict[str, str]
) -> None:
    web, _ = deployments
    worker.outcomes = ["FAILED", "CRASHED", "COMPLETED"]
    failed = ci("--deployment", web)
    assert (failed.code, failed.json["error"]) == (3, "deployment_failed")
    assert "(Failed)" in failed.json["message"]
    assert ci("--deployment", web).code == 3
    completed = ci("--deployment", web)
    assert completed.code == 0, completed.out
    assert len(worker.runs()) == 3
    assert ci("--deployment", web).json["flow_runs"][0]["id"] == completed.json["flow_runs"][0]["id"]


def test_a_run_that_takes_too_long_fails_the_build_and_continues(
    ci: Driftline, worker: Worker, deployments: dict[str, str]
) -> None:
    web, _ = deployments
    worker.outcomes = []
    late = ci("--deployment", web, "--timeout", 0)
    assert (late.code, late.json["error"]) == (3, "deployment_failed")
    assert "did not finish in time" in late.json["message"]
    (run,) = worker.runs()
    worker.outcomes = ["COMPLETED"]
    assert ci("--deployment", web).json["flow_runs"][0]["id"] == run["id"]


def test_the_example_starts_a_deployment_and_waits(
    worker: Worker, deployments: dict[str, str], prefect_server: PrefectServer, tmp_path: Path
) -> None:
    web, _ = deployments
    job = github_jobs()["deployment"]
    assert gitlab_jobs()["driftline-deployment"].script == job.script
    assert "--deployment web " in job.script
    script = job.script.replace("--deployment web ", f"--deployment {web} ")
    path = os.pathsep.join([str(forked_command().parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = prefect_server.environment | {"CI": "true", "CI_COMMIT_SHA": COMMIT, "PATH": path}
    subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, env=variables, check=True)
    (run,) = worker.runs()
    assert run["state_type"] == "COMPLETED"


def test_an_unknown_deployment_is_a_usage_error(ci: Driftline) -> None:
    unknown = ci("--deployment", "nowhere")
    assert (unknown.code, "driftline deploy" in unknown.json["message"]) == (2, True)


def test_a_missing_server_or_commit_is_a_usage_error(
    driftline: Driftline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.chdir(tmp_path)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        monkeypatch.setenv("CI_COMMIT_SHA", COMMIT)
        monkeypatch.setenv("CI", "true")
        without_server = driftline("ci", "--deployment", "web")
        assert (without_server.code, "PREFECT_API_URL" in without_server.err) == (2, True)
        monkeypatch.delenv("CI_COMMIT_SHA")
        assert driftline("ci", "--deployment", "web").code == 2
