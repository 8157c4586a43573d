"""kill -9 of the processes around a flow run: the next runs complete its work."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from distributed import Client

from driftline.flows.runs.executors import running_loop
from driftline.storage.entities import Entity
from driftline.storage.layout import lease_path
from tests.servers.compose import compose_command
from tests.servers.ports import free_port
from tests.servers.prefect_server import PrefectServer, started
from tests.support.deployed import FINAL, Site
from tests.support.oracle import assert_nothing_staged, save_tiny_model
from tests.support.processes import stands_still
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.xdist_group("prefect")

ROOT = Path(__file__).resolve().parents[2]
INDEX = "driftline-index/kills:web"
FILES = 24
PAUSE = "after 3"
"""The commit (of six) at which a run stops itself, to be killed half-way."""
SECONDS_UNHEARD = 10
"""The minimum allowed by Prefect."""
HEARTBEAT_EVERY = 100
"""Number of polls between heartbeats; it takes much longer than SECONDS_UNHEARD."""
ENTITY = Entity.parse("source:web")
Workers = Callable[[], psutil.Process]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer) -> Iterator[Site]:
    """A source whose runs take several commits, and a pool of its own."""
    folder = tmp_path_factory.mktemp("kills")
    model = save_tiny_model(folder / "model")
    (folder / "web").mkdir()
    (folder / "driftline.toml").write_text(f'model = "{model}"\n[[sources]]\nuri = "web"\nschedule = "0 0 29 2 *"\n')
    site = Site(folder, prefect_server, "kills")
    site.driftline("deploy", "--pool", "kills", "--prefix", "kills:")
    slow = {"entrypoint": "tests.faults.slow_flow.index", "job_variables": {"env": {"PYTHONPATH": str(ROOT)}}}
    site.server.call("PATCH", f"deployments/{site.deployment(INDEX)['id']}", slow)
    with site.silence_allowed():
        yield site


@pytest.fixture(scope="module")
def worker(site: Site) -> Iterator[Workers]:
    """Yields a function that returns the pool's worker, and starts one if there is none or it was killed."""
    running: list[psutil.Process] = []
    with ExitStack() as stack:

        def current() -> psutil.Process:
            if not running or not running[-1].is_running():
                running.append(psutil.Process(stack.enter_context(site.worker()).pid))
            return running[-1]

        yield current


@contextmanager
def paused_run(site: Site, executor: str = "inline") -> Iterator[tuple[str, psutil.Process]]:
    """Change every file and start a run that pauses halfway through its commits until the block ends."""
    first_word = 10 * len(site.runs_of(INDEX))
    site.change("web", FILES, first_word)
    folder = site.folder / ".driftline" / ENTITY.directory
    before = len(list(folder.glob("_index_delta_*")))
    run = site.trigger(INDEX, {"command": site.forked_engine, "env": {"PAUSE": PAUSE}}, executor=executor)
    found: list[psutil.Process] = []

    def pauses() -> bool:
        found[:] = filter(stands_still, psutil.Process().children(recursive=True))
        assert site.run(run)["state_type"] in ("SCHEDULED", "PENDING", "RUNNING"), site.log_of(run)
        return bool(found)

    site.until(pauses, "the third commit")
    assert before < len(list(folder.glob("_index_delta_*"))) < before + FILES // 4
    (flow,) = found
    yield run, flow
    if flow.is_running():
        flow.resume()


def kill(process: psutil.Process) -> None:
    process.kill()
    process.wait(timeout=PATIENCE_SECONDS)


def lease_state(site: Site) -> str:
    lease: dict[str, str] = json.loads((site.folder / ".driftline" / lease_path(ENTITY)).read_bytes())
    return lease["state"]


def assert_completed(site: Site, run: str) -> None:
    """Assert that the run took over from the previous one and that the index is correct."""
    site.assert_completed(run)
    site.assert_in_step("web")
    assert_nothing_staged(site.workspace)


def test_a_killed_flow_process_is_detected_and_its_lease_is_released(site: Site, worker: Workers) -> None:
    worker()
    with paused_run(site) as (run, flow):
        flow.kill()
    assert site.end_of(run) == ["CRASHED"]
    site.until(lambda: lease_state(site) == "released", "the release of the lease")
    assert_completed(site, site.trigger(INDEX, {"command": site.forked_engine}))


def test_a_flow_whose_worker_was_killed_ends_and_the_next_run_resumes(site: Site, worker: Workers) -> None:
    worker()
    with paused_run(site) as (run, _):
        kill(worker())
    worker()
    assert site.end_of(run) == ["CRASHED"]  # at its next message, which nobody reads
    site.until(lambda: lease_state(site) == "released", "the release of the lease")
    assert_completed(site, site.trigger(INDEX, {"command": site.forked_engine}))


def test_missing_heartbeats_reveal_a_killed_worker_and_its_flow(site: Site, worker: Workers) -> None:
    worker()
    with paused_run(site) as (run, flow):
        kill(worker())
        flow.kill()
    with site.silence_allowed(SECONDS_UNHEARD):
        worker()
        beats = itertools.count()

        def has_ended() -> bool:  # the server may know the new limit a little later
            if next(beats) % HEARTBEAT_EVERY == 0:
                site.heartbeat(run)
            return site.run(run)["state_type"] in FINAL

        site.until(has_ended, "the end of the run that nobody hears")
        assert site.end_of(run) == ["CRASHED"]
    assert lease_state(site) == "held"
    assert_completed(site, site.trigger(INDEX, {"command": site.forked_engine}))


@contextmanager
def dask_clusters(site: Site, *sizes: int) -> Iterator[list[tuple[str, psutil.Process, psutil.Process]]]:
    """Start Dask clusters as compose.yaml does; yield the address, the scheduler and a worker of each."""
    log, environment = site.folder / "dask.log", site.server.environment
    with ExitStack() as stack:
        clusters = []
        for size in sizes:
            port = free_port()
            address = f"tcp://127.0.0.1:{port}"
            scheduler = compose_command("dask-scheduler", {"0.0.0.0": "127.0.0.1", "8786": str(port)})
            worker = [*compose_command("dask-worker", {"tcp://dask-scheduler:8786": address}), "--no-nanny"]
            commands = [scheduler, *[worker] * size]
            first, second, *_ = [stack.enter_context(started(one, log, environment, site.folder)) for one in commands]
            clusters.append((address, psutil.Process(first.pid), psutil.Process(second.pid)))
        for (address, _, _), size in zip(clusters, sizes, strict=True):
            with (
                running_loop() as loop,
                Client(address, loop=loop, timeout=PATIENCE_SECONDS, set_as_default=False) as client,
            ):
                client.wait_for_workers(size, timeout=PATIENCE_SECONDS)
        yield clusters


def test_a_killed_scheduler_fails_the_run_and_the_next_one_outlives_a_killed_dask_worker(
    site: Site, worker: Workers
) -> None:
    worker()
    with dask_clusters(site, 1, 2) as ((first, scheduler, _), (second, _, dask_worker)):
        with paused_run(site, first) as (run, _):
            scheduler.kill()
        assert site.end_of(run) == ["FAILED"]
        assert "The connection to the Dask scheduler was lost" in site.run(run)["state"]["message"]
        with paused_run(site, second) as (run, _):
            dask_worker.kill()
        assert_completed(site, run)
