"""kill -9 of the processes around a flow run, in the middle of it: what the runs after it make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

from driftline.storage.entities import Entity
from driftline.storage.workspace import lease_path
from tests.compose import compose_command
from tests.deployed import Site, until
from tests.oracle import assert_nothing_staged, save_tiny_model
from tests.prefect_server import PrefectServer, free_port, started

# a server, workers and eight runs, on a machine that may be busy
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("prefect")]

ROOT = Path(__file__).resolve().parents[2]
INDEX = "driftline-index/kills:web"
FILES = 60
SECONDS_UNHEARD = 20
ENTITY = Entity.parse("source:web")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer) -> Site:
    """A source whose runs take their time: small batches, slow commits, and a pool of their own."""
    folder = tmp_path_factory.mktemp("kills")
    model = save_tiny_model(folder / "model")
    (folder / "web").mkdir()
    (folder / "driftline.toml").write_text(f'model = "{model}"\n[[sources]]\nuri = "web"\nschedule = "0 0 29 2 *"\n')
    site = Site(folder, prefect_server, "kills")
    site.driftline("deploy", "--pool", "kills", "--prefix", "kills:")
    environment = {
        "PYTHONPATH": str(ROOT),
        "DELAY_SECONDS": "0.3",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    }
    slow = {"entrypoint": "tests.faults.slow_flow.index", "job_variables": {"env": environment}}
    site.server.call("PATCH", f"deployments/{site.deployment(INDEX)['id']}", slow)
    return site


@pytest.fixture
def worker(site: Site) -> Iterator[psutil.Process]:
    with site.worker() as process:
        yield psutil.Process(process.pid)


@pytest.fixture
def impatient(site: Site) -> Iterator[None]:
    """The automation for runs without a heartbeat does not wait for as long as it does for people."""
    (automation,) = [one for one in site.server.post("automations/filter", {}) if "heartbeat" in one["name"]]
    body = {name: automation[name] for name in ("name", "trigger", "actions")}
    path = f"automations/{automation['id']}"
    site.server.call("PUT", path, body | {"trigger": automation["trigger"] | {"within": SECONDS_UNHEARD}})
    yield
    site.server.call("PUT", path, body)


def start_run(site: Site, first_word: int, **parameters: Any) -> str:
    """Change every file, start a run, and wait until it is in the middle of its commits."""
    site.change("web", FILES, first_word)
    folder = site.folder / ".driftline" / ENTITY.directory
    before = len(list(folder.glob("_index_delta_*")))
    run = site.trigger(INDEX, **parameters)
    until(lambda: len(list(folder.glob("_index_delta_*"))) > before + 2, "the first commits")
    assert site.run(run)["state_type"] == "RUNNING"
    return run


def flow_process(worker: psutil.Process) -> psutil.Process:
    (process,) = [one for one in worker.children(recursive=True) if "prefect.engine" in " ".join(one.cmdline())]
    return process


def lease_state(site: Site) -> str:
    lease: dict[str, str] = json.loads((site.folder / ".driftline" / lease_path(ENTITY)).read_bytes())
    return lease["state"]


def assert_mended(site: Site, **parameters: Any) -> None:
    """The next run takes over, and the index ends right."""
    site.assert_completed(site.trigger(INDEX, **parameters))
    site.assert_in_step("web")
    assert_nothing_staged(site.workspace)


def test_a_killed_flow_process_is_noticed_and_its_lease_released(site: Site, worker: psutil.Process) -> None:
    run = start_run(site, 0)
    flow_process(worker).kill()
    assert site.end_of(run) == ["CRASHED"]
    until(lambda: lease_state(site) == "released", "the release of the lease")
    assert_mended(site)


def test_a_killed_worker_and_its_flow_are_noticed_by_their_silence(site: Site, impatient: object) -> None:
    with site.worker() as process:
        worker = psutil.Process(process.pid)
        run = start_run(site, 100)
        flow = flow_process(worker)
        worker.kill()
        flow.kill()
        process.wait()
    with site.worker():
        assert site.end_of(run) == ["CRASHED"]
        assert lease_state(site) == "held"
        assert_mended(site)


def start_dask(stack: ExitStack, site: Site, port: int) -> tuple[psutil.Process, psutil.Process]:
    """A scheduler at ``port`` with two workers, as compose.yaml starts them; the scheduler and one worker."""
    address, log, environment = f"tcp://127.0.0.1:{port}", site.folder / "dask.log", site.server.environment
    scheduler = compose_command("dask-scheduler", {"0.0.0.0": "127.0.0.1", "8786": str(port)})
    worker = [*compose_command("dask-worker", {"tcp://dask-scheduler:8786": address}), "--no-nanny"]
    first = stack.enter_context(started(scheduler, log, environment, site.folder))
    workers = [stack.enter_context(started(worker, log, environment, site.folder)) for _ in range(2)]
    with Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    return psutil.Process(first.pid), psutil.Process(workers[0].pid)


def test_a_killed_dask_worker_and_then_a_killed_scheduler(site: Site, worker: psutil.Process) -> None:
    port = free_port()
    executor = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack:
        scheduler, dask_worker = start_dask(stack, site, port)
        run = start_run(site, 200, executor=executor)
        dask_worker.kill()
        site.assert_completed(run)
        site.assert_in_step("web")
        run = start_run(site, 300, executor=executor)
        scheduler.kill()
        assert site.end_of(run) == ["FAILED"]
        assert "The Dask scheduler has gone away" in site.run(run)["state"]["message"]
    with ExitStack() as stack:
        start_dask(stack, site, port)
        assert_mended(site, executor=executor)
