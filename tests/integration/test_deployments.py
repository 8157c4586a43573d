"""``driftline deploy`` against a real Prefect server and worker: registered objects and automatic runs."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import SecretStr

from tests.servers.browser import CHROMIUM, Browser, open_browser
from tests.servers.prefect_server import PrefectServer
from tests.support.deployed import FINAL, Site
from tests.support.oracle import WORDS, save_tiny_model

pytestmark = pytest.mark.xdist_group("prefect")

NEVER = "0 0 29 2 *"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer) -> Site:
    """Two sources without a schedule and one that is indexed every minute."""
    folder = tmp_path_factory.mktemp("site")
    for tree in ("web", "docs", "ticking"):
        (folder / tree).mkdir()
        (folder / tree / "a.txt").write_text(f"{WORDS[1]} {WORDS[2]}\n{WORDS[3]}\n")
    model = save_tiny_model(folder / "model")
    schedules = {"web": f'"{NEVER}"', "docs": f'"{NEVER}"', "ticking": '"* * * * *"'}
    sources = [f'[[sources]]\nuri = "{name}"\nschedule = {schedule}' for name, schedule in schedules.items()]
    (folder / "driftline.toml").write_text("\n\n".join([f'model = "{model}"', *sources]))
    return Site(folder, prefect_server)


def registered(site: Site) -> dict[str, Any]:
    """Return the objects registered on the server, without modification times."""
    tagged = site.server.post("deployments/filter", {"deployments": {"tags": {"all_": ["driftline"]}}})
    deployments = [one for one in tagged if ":" not in one["name"]]  # other tests register with a prefix
    automations = [
        one for one in site.server.post("automations/filter", {}) if ":" not in one["name"].partition(": ")[2]
    ]
    return {
        "deployments": sorted((one["id"], one["name"], one["schedules"][0]["id"]) for one in deployments),
        "schedules": [len(one["schedules"]) for one in deployments],
        "automations": sorted(one["name"] for one in automations),
        "pools": [one["name"] for one in site.server.post("work_pools/filter", {})],
    }


@pytest.fixture(scope="module")
def deployed(site: Site) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The output of ``driftline deploy``, and the registered objects after the first and second call."""
    outcome = site.driftline("deploy")
    once = registered(site)
    site.driftline("deploy")
    return outcome, once, registered(site)


class Pager(BaseHTTPRequestHandler):
    """Receives notifications as a chat service would."""

    messages: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.messages.append(body["text"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def pager(prefect_server: PrefectServer) -> Iterator[list[str]]:
    """The messages that the server sent through its webhook/pager block."""
    from prefect.blocks.webhook import Webhook
    from prefect.settings import PREFECT_API_URL, temporary_settings

    Pager.messages.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Pager) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        with temporary_settings({PREFECT_API_URL: prefect_server.url}):
            Webhook(url=SecretStr(f"http://127.0.0.1:{receiver.server_port}/")).save("pager", overwrite=True)
        yield Pager.messages
        receiver.shutdown()


def test_a_failed_run_sends_a_notification(tmp_path: Path, prefect_server: PrefectServer, pager: list[str]) -> None:
    def configure(*notify: str) -> None:
        lines = [f"notify = {json.dumps(notify)}", '[[sources]]\nuri = "tree"', f'schedule = "{NEVER}"']
        (tmp_path / "driftline.toml").write_text("\n".join(lines))

    (tmp_path / "tree").mkdir()
    site = Site(tmp_path, prefect_server, pool="told")
    deploy = ("deploy", "--prefix", "told:", "--pool", "told")
    name = f"driftline: report failed runs in {tmp_path / '.driftline'}"

    def automations() -> list[Any]:
        return [each for each in prefect_server.post("automations/filter", {}) if each["name"] == name]

    configure("webhook/nobody")
    with pytest.raises(AssertionError, match="The Prefect server has no such block: webhook/nobody"):
        site.driftline(*deploy)
    assert not [each for each in prefect_server.post("work_pools/filter", {}) if each["name"] == "told"]
    configure("webhook/pager")
    for _ in range(2):
        site.driftline(*deploy)
    assert len(automations()) == 1
    for state in ("COMPLETED", "FAILED"):
        run = site.begin("driftline-index/told:tree")
        body = {"state": {"type": state, "message": f"It has {state}."}, "force": True}
        prefect_server.post(f"flow_runs/{run}/set_state", body)
    site.until(lambda: pager, "the message")
    (message,) = pager
    assert "It has FAILED." in message
    assert f"/runs/flow-run/{run}" in message
    configure()
    site.driftline(*deploy)
    assert automations() == []


@pytest.fixture(scope="module")
def worker(site: Site, deployed: object) -> Iterator[subprocess.Popen[bytes]]:
    site.pause_schedules("driftline-compact/compact")  # its run at a quarter past would make the tests' runs fail
    site.fork_engines()
    with site.silence_allowed(), site.worker() as process:
        yield process


def test_deploying_twice_registers_everything_once(deployed: tuple[Any, Any, Any]) -> None:
    outcome, once, twice = deployed
    names = [f"driftline-index/{source}" for source in ("web", "docs", "ticking")]
    assert outcome["deployments"] == [
        *names,
        "driftline-compact/compact",
        "driftline-cleanup/cleanup",
        "driftline-prune/prune",
        "driftline-verify/verify",
    ]
    assert len(once["deployments"]) == len(outcome["deployments"])
    assert set(once["schedules"]) == {1}
    assert len(once["automations"]) == 2  # the compaction trigger, and the automation for runs without heartbeats
    assert "driftline" in once["pools"]
    assert twice == once


def test_limits_and_parameters_are_registered(site: Site, deployed: object) -> None:
    web, compact = site.deployment("driftline-index/web"), site.deployment("driftline-compact/compact")
    assert web["global_concurrency_limit"]["limit"] == compact["global_concurrency_limit"]["limit"] == 1
    assert web["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert compact["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert web["parameters"]["sources"] == [str(site.folder / "web")]
    assert web["parameters"]["workspace"] == str(site.folder / ".driftline")
    assert site.deployment("driftline-cleanup/cleanup")["parameters"]["dry_run"] is True
    assert web["parameter_openapi_schema"]["properties"]["workers"]["anyOf"][0]["minimum"] == 1


@pytest.fixture(scope="module")
def docs_runs(site: Site, worker: object) -> list[str]:
    """Two completed runs of one source for three triggers; the first two triggers have the same commit."""
    triggered = [site.trigger("driftline-index/docs", key="4f0bdaf") for _ in range(2)]
    triggered.append(site.trigger("driftline-index/docs", key="b65ff4b", max_deltas=0))
    site.assert_completed(*triggered)
    site.pause_schedules("driftline-index/ticking")  # a run every minute would use half of a busy machine
    return triggered


def test_one_commit_makes_one_run_and_runs_of_a_source_queue_up(site: Site, docs_runs: list[str]) -> None:
    first, second, other = docs_runs
    assert first == second
    assert len([run for run in site.runs_of("driftline-index/docs") if not run["auto_scheduled"]]) == 2
    states = [
        state["name"] for one in (first, other) for state in site.server.get(f"flow_run_states/?flow_run_id={one}")
    ]
    assert "AwaitingConcurrencySlot" in states
    site.assert_in_step("docs")


def test_a_run_that_leaves_too_many_deltas_starts_a_compaction(site: Site, docs_runs: list[str]) -> None:
    def started() -> list[Any]:
        runs = site.runs_of("driftline-compact/compact")
        return [run for run in runs if run["created_by"]["type"] == "AUTOMATION"]

    site.until(started, "the compaction")
    (run,) = started()
    assert run["parameters"]["entity"].endswith("source:docs")
    site.assert_completed(run["id"])
    (docs,) = (source for source in site.driftline("sources")["sources"] if source["entity"].endswith("source:docs"))
    assert docs["lines"] == 2
    site.assert_in_step("docs")


def test_a_second_compaction_is_cancelled_and_the_rest_completes(site: Site, worker: object) -> None:
    """The test starts and ends the first compaction itself."""
    others = [site.trigger(f"driftline-{name}/{name}") for name in ("cleanup", "prune", "verify")]
    first = site.begin("driftline-compact/compact")
    assert site.end_of(site.trigger("driftline-compact/compact")) == ["CANCELLED"]
    site.set_state(first, "COMPLETED")
    site.assert_completed(*others)

    def completes() -> bool:  # the server may free the first one's slot a little later
        third = site.trigger("driftline-compact/compact")
        return site.end_of(third) == ["COMPLETED"]

    site.until(completes, "a compaction after the first")


def test_the_schedule_fires_by_itself(site: Site, worker: object) -> None:
    def ended() -> list[str]:
        runs = site.runs_of("driftline-index/ticking")
        return [run["id"] for run in runs if run["auto_scheduled"] and run["state_type"] in FINAL]

    site.resume_schedules("driftline-index/ticking")
    site.until(ended, "a scheduled run")
    site.pause_schedules("driftline-index/ticking")
    site.assert_completed(ended()[0])
    site.assert_in_step("ticking")


def test_a_source_removed_from_the_file_is_paused(site: Site, worker: object) -> None:
    file = site.folder / "driftline.toml"
    file.write_text(file.read_text().partition('[[sources]]\nuri = "ticking"')[0])
    assert site.driftline("deploy")["paused"] == ["driftline-index/ticking"]
    assert site.deployment("driftline-index/ticking")["paused"] is True
    for run in site.runs_of("driftline-index/ticking"):  # on a busy machine some runs may be queued
        if run["state_type"] == "SCHEDULED":
            site.server.call("DELETE", f"flow_runs/{run['id']}")


# User interface.


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with open_browser() as window:
        yield window


@pytest.fixture(scope="module")
def shown_run(site: Site, worker: object) -> str:
    """A run that follows others and has a skipped file."""
    site.change("web", 30, 5)
    (site.folder / "web" / ".env").write_text("TOKEN=1\n")
    run = site.trigger("driftline-index/web", max_deltas=1000)
    site.assert_completed(run)
    return run


def test_the_page_of_a_run_shows_its_state_and_its_log(site: Site, shown_run: str, browser: Browser) -> None:
    browser.open(f"{site.page}/runs/flow-run/{shown_run}", "Completed", "driftline-index", "embedding: 31 documents")
    browser.keep("run")


def test_the_report_of_a_run_shows_tables_and_plots(site: Site, shown_run: str, browser: Browser) -> None:
    artifacts = site.server.post("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [shown_run]}}})
    of_key = {artifact["key"]: artifact["id"] for artifact in artifacts}
    browser.open(f"{site.page}/artifacts/artifact/{of_key['driftline-skipped-web']}", ".env", "secret")
    browser.open(
        f"{site.page}/artifacts/artifact/{of_key['driftline-report-web']}", "Documents and lines", "Seconds by phase"
    )
    widths = browser.page.eval_on_selector_all("img", "images => images.map(image => image.naturalWidth)")
    assert len(widths) >= 2
    assert min(widths) > 100
    browser.keep("report", height=1250)


def test_the_form_of_a_deployment_explains_its_parameters(site: Site, deployed: object, browser: Browser) -> None:
    form = f"{site.page}/deployments/deployment/{site.deployment('driftline-index/web')['id']}/run"
    browser.open(form, "Folders, git working trees or bucket URIs", "Reread and re-embed every document.")
    assert str(site.folder / "web") in browser.page.locator("textarea").first.input_value()
    browser.keep("form")


def test_the_page_of_a_workspace_opens_without_a_server(site: Site, shown_run: str, browser: Browser) -> None:
    page = site.folder / "report.html"
    site.driftline("report", "--out", str(page))
    browser.open(page.as_uri(), "Runs", "index")
    assert browser.page.locator("svg").count() >= 2
    browser.keep("workspace", height=1000)
