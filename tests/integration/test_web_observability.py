"""The operator's view of the web server: metrics, access log, traces, and deployment files."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

import driftline as dl
from driftline.flows.config.which_workspace import boundary_in
from driftline.flows.http_server import HttpServer
from driftline.flows.runs.pull import PullRequest, pull_workspace
from driftline.flows.web import observability
from driftline.flows.web.access import Authentication, KnownTokens
from driftline.flows.web.api import Reader
from driftline.flows.web.observability import IndexMetrics, tracer
from driftline.flows.web.server import Exposure, web_server
from driftline.storage.errors import StorageError
from driftline.storage.layout import new_ulid
from driftline.storage.sources.hosts import HostedRepository
from driftline.storage.workspace.fleet_state import FleetRecord, KnownRepository
from driftline.storage.workspace.records import DONE, RunHistory, RunRecord
from driftline.storage.workspace.tokens import create_token, read_tokens
from driftline.storage.workspace.workspace import Workspace
from tests.support.waiting import until
from tests.support.web import ask, serving

DEPLOYMENTS = Path(__file__).parents[2] / "deployments/web"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Workspace:
    folder = tmp_path_factory.mktemp("web-observing")
    (folder / "tree").mkdir()
    (folder / "tree/notes.md").write_text("who renews the lease\n")
    dl.index(str(folder / "tree"), workspace=str(folder / "ws"), model=str(tiny_model), executor="inline")
    return Workspace.open(str(folder / "ws"))


LISTED = datetime(2026, 1, 1, tzinfo=UTC)


def fleets() -> dict[str, FleetRecord]:
    """Return a fleet with repositories in several states, and one whose host has never answered."""
    failing = KnownRepository(listed=HostedRepository("1", "acme/a")).failed(StorageError("gone"), LISTED)
    behind = KnownRepository(listed=HostedRepository("2", "acme/b"), indexed="1" * 40, commit="2" * 40)
    members = {
        "1": failing,
        "2": replace(behind, behind_since=datetime.now(UTC) - timedelta(hours=2)),
        "3": replace(behind, behind_since=datetime.now(UTC) - timedelta(hours=1)),
        "4": replace(behind, behind_since=LISTED, missed_since=LISTED),
        "5": replace(behind, behind_since=LISTED, excluded="archived"),
    }
    return {"acme": FleetRecord(repositories=members, listed_at=LISTED), "new": FleetRecord()}


def server(workspace: Workspace, exposure: Exposure | None = None) -> HttpServer:
    return web_server(Reader(workspace.reread, fleets=fleets), "127.0.0.1", 0, exposure)


def freshness(metrics: IndexMetrics) -> float | None:
    """Return when the last run of a source outside the fleets ended, as of now."""
    metrics._read_at = -60.0
    found = {each.name: each.samples[0].value for each in metrics.collect() if each.samples}
    return found.get("driftline_sources_last_run_timestamp_seconds")


def test_metrics_count_and_time_requests_by_route(workspace: Workspace) -> None:
    with serving(server(workspace)) as address:
        for target in ("/?q=lease", "/api/v1/search?q=lease", "/api/v1/search", "/nothing", "/d/source:x/y"):
            ask(address, target)
        ask(address, "/", Host="evil.example")
        answer = ask(address, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        'driftline_http_requests_total{method="GET",route="/",status="200"} 1.0',
        'driftline_http_requests_total{method="GET",route="/api/v1/search",status="200"} 1.0',
        'driftline_http_requests_total{method="GET",route="/api/v1/search",status="400"} 1.0',
        'driftline_http_requests_total{method="GET",route="/d/{address:path}",status="404"} 1.0',
        'driftline_http_requests_total{method="GET",route="none",status="404"} 1.0',
        'driftline_http_requests_total{method="GET",route="none",status="421"} 1.0',
        'driftline_http_errors_total{error="usage",route="/api/v1/search"} 1.0',
        'driftline_http_errors_total{error="not_indexed",route="/d/{address:path}"} 1.0',
        'driftline_http_errors_total{error="usage",route="none"} 2.0',
        'driftline_http_request_seconds_count{route="/"} 1.0',
        "driftline_http_requests_under_way 1.0",
        "driftline_index_readable 1.0",
    ):
        assert line in answer.body.splitlines(), line
    assert f'run_id="{_last_run(workspace)}"' in answer.body
    ended = re.search(r"driftline_index_last_run_timestamp_seconds ([\d.e+]+)", answer.body)
    assert ended is not None
    assert abs(float(ended[1]) - time.time()) < 600
    assert "process_resident_memory_bytes" in answer.body
    assert "driftline_cache" not in answer.body
    assert "lease" not in answer.body


@pytest.fixture
def copy(workspace: Workspace, tmp_path: Path) -> Workspace:
    pull_workspace(PullRequest(workspace.objects.uri, str(tmp_path / "copy")))
    return Workspace.open(str(tmp_path / "copy"))


def test_metrics_say_when_a_copy_was_compared_with_its_bucket(copy: Workspace) -> None:
    with serving(server(copy)) as address:
        found = re.search(r"driftline_cache_compared_timestamp_seconds ([\d.e+]+)", ask(address, "/metrics").body)
    assert found is not None
    assert abs(float(found[1]) - time.time()) < 600


def _last_run(workspace: Workspace) -> str:
    last = workspace.stats().last_run
    assert last is not None
    return str(last["run_id"])


def test_metrics_show_what_a_fleet_fails_to_index(workspace: Workspace) -> None:
    def unreadable() -> dict[str, FleetRecord]:
        raise StorageError("Could not read a file")

    metrics, found = IndexMetrics(workspace.reread), dict[str, float]()
    for given in (fleets, unreadable):  # which keeps what is known
        metrics.fleets, metrics._read_at = given, -60.0
        for metric in metrics.collect():
            found |= {"/".join((metric.name, *each.labels.values())): each.value for each in metric.samples}
        states = {name: value for name, value in found.items() if name.startswith("driftline_fleet_rep") and value}
        counts = {"failing": 1, "behind": 2, "missing": 1, "excluded": 1}
        assert states == {f"driftline_fleet_repositories/acme/{state}": count for state, count in counts.items()}
        assert found["driftline_fleet_listed_timestamp_seconds/acme"] == LISTED.timestamp()
        assert "driftline_fleet_listed_timestamp_seconds/new" not in found
        assert 7200 <= found["driftline_fleet_lag_seconds/acme"] < 10_000
        assert found["driftline_fleet_lag_seconds/new"] == 0
        assert found["driftline_index_readable"] == 1


def test_only_runs_of_sources_outside_the_fleets_make_the_index_fresh(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/notes.md").write_text("who renews the lease\n")
    for name in ("own", "member"):
        request = dl.SourceRequest(str(tmp_path / "tree"), entity=f"source:{name}")
        dl.index([request], workspace=str(tmp_path / "ws"), model=str(tiny_model), executor="inline")
    workspace = Workspace.open(str(tmp_path / "ws"))
    own, member = ({"entity": f"org:default/project:default/source:{name}"} for name in ("own", "member"))
    known = KnownRepository(listed=HostedRepository("1", "acme/a"), entity=member["entity"])
    metrics = IndexMetrics(workspace.reread, lambda: {"acme": FleetRecord(repositories={"1": known})})
    history = RunHistory(workspace.objects, workspace.tenants()[0])

    first = freshness(metrics)
    assert first is not None
    assert abs(first - time.time()) < 600
    started = datetime.now(UTC) + timedelta(hours=1)

    def record(kind: str, outcome: str, *sources: dict[str, str]) -> float:
        run = RunRecord(
            run_id=new_ulid(),
            kind=kind,
            started=started.isoformat(),
            seconds=1.0,
            outcome=outcome,
            report={"sources": sources},
        )
        history.record(run)
        return started.timestamp() + 1.0

    for kind, outcome, sources in (
        ("index", "failed", [own]),
        ("index", DONE, [member]),
        ("index", DONE, [own | {"branch": "topic"}]),
        ("index", DONE, [{"entity": own["entity"] + "-removed"}]),
        ("compact", DONE, [own]),
    ):
        record(kind, outcome, *sources)
        assert freshness(metrics) == first, (kind, outcome, sources)
    workspace.objects.create(f"{history._directory}/{new_ulid()}.json", b"damaged")
    assert record("index", DONE, member, own) == freshness(metrics)
    metrics.fleets = lambda: {"acme": FleetRecord(repositories={"1": known, "2": replace(known, entity=own["entity"])})}
    assert freshness(metrics) is None


def test_a_server_finds_the_last_run_of_a_source_among_many_runs_of_fleets(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for org in "ab":
        (tmp_path / org).mkdir()
        (tmp_path / org / "notes.md").write_text("who renews the lease\n")
    entities = [f"org:{org}/project:p/source:s" for org in "ab"]
    sources = [dl.SourceRequest(str(tmp_path / org), entity=each) for org, each in zip("ab", entities, strict=True)]
    done = dl.index(sources, workspace=str(tmp_path / "ws"), model=str(tiny_model), executor="inline")
    workspace = Workspace.open(str(tmp_path / "ws"))
    tenant, known = workspace.tenants()[0], KnownRepository(listed=HostedRepository("1", "acme/a"))
    fleets = {"acme": FleetRecord(repositories={"1": replace(known, entity=entities[0])})}
    for _ in range(5):
        run = RunHistory(workspace.objects, tenant).get(done.run_id)
        assert run is not None
        RunHistory(workspace.objects, tenant).record(replace(run, run_id=new_ulid()))
    monkeypatch.setattr(observability, "MAX_RUNS_READ", 2)
    metrics, read = IndexMetrics(workspace.reread, lambda: fleets), RunHistory.get

    def failing(self: RunHistory, run_id: str) -> RunRecord | None:
        if run_id == done.run_id and self.tenant != tenant and len(metrics._runs_read) > 4:
            raise StorageError("The store does not answer", "here")
        return read(self, run_id)

    monkeypatch.setattr(RunHistory, "get", failing)
    assert [freshness(metrics) for _ in range(4)] == [None] * 4
    monkeypatch.setattr(RunHistory, "get", read)
    assert freshness(metrics) is not None


def test_a_bound_token_sees_no_figures_of_the_index(workspace: Workspace) -> None:
    (boundary,) = boundary_in(workspace, "org:default/project:default").tops
    bound, _ = create_token(workspace, within=boundary, scopes=["metrics"], expires=None)
    whole, _ = create_token(workspace, within=None, scopes=["metrics"], expires=None)
    tokens = KnownTokens(lambda: read_tokens(workspace.objects))
    with serving(server(workspace, Exposure(authentication=Authentication(tokens)))) as address:
        answers = {token: ask(address, "/metrics", token=token) for token in (whole, bound)}
        for name in ("driftline_index", "driftline_fleet", "process_"):
            assert [name in answers[token].body for token in (whole, bound)] == [True, False]
        assert answers[bound].status == 200
        assert ask(address, "/api/v1/status", token=whole).status == 403


def test_the_access_log_has_a_record_of_each_request_without_its_query(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "driftline.access"), serving(server(workspace)) as address:
        answer = ask(address, "/api/v1/search?q=secretword")
        ask(address, "/d/source:secretword/x")
    records: list[dict[str, Any]] = [getattr(record, "fields") for record in caplog.records]  # noqa: B009
    assert [(each["route"], each["status"]) for each in records] == [
        ("/api/v1/search", 200),
        ("/d/{address:path}", 404),
    ]
    assert [each["error"] for each in records] == ["", "not_indexed"]
    assert records[0]["request_id"] == answer.headers["x-request-id"]
    assert records[0]["bytes"] == len(answer.body)
    assert "secretword" not in json.dumps(records)


def test_a_defect_is_reported_as_unexpected(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Workspace:
        raise RuntimeError("a secret of the server")

    with caplog.at_level(logging.INFO), serving(web_server(Reader(fail), "127.0.0.1", 0)) as address:
        for target in ("/api/v1/status", "/index"):
            answer = ask(address, target)
            assert (answer.status, "secret" in answer.body) == (500, False)
        assert json.loads(ask(address, "/api/v1/sources").body)["error"] == "unexpected"
    records = [getattr(record, "fields") for record in caplog.records if record.name == "driftline.access"]  # noqa: B009
    assert {record["error"] for record in records} == {"unexpected"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A list of the traces received by a collector on loopback."""
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listener.server_port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield received
    listener.shutdown()
    thread.join()
    listener.server_close()


def test_traces_go_to_the_collector_that_is_configured(workspace: Workspace, collector: list[bytes]) -> None:
    with serving(server(workspace)) as address:
        ask(address, "/api/v1/search?q=secretword", traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
        until(lambda: collector, "the trace")
    sent = b"".join(collector)
    assert bytes.fromhex(TRACE) in sent
    assert b"GET /api/v1/search" in sent
    assert b"secretword" not in sent


def test_without_an_exporter_nothing_is_traced() -> None:
    assert tracer({}) is None


@pytest.fixture
def names_of_metrics(copy: Workspace) -> set[str]:
    """Return the names of a server's metrics after a request, and of the documented webhook metrics."""
    with serving(server(copy)) as address:
        ask(address, "/nothing")
        found = ask(address, "/metrics").body
    documented = (DEPLOYMENTS.parents[1] / "docs/operate/web.md").read_text()
    hooks = re.findall(r"driftline_hook_[a-z_]+", documented)
    return {*re.findall(r"^(driftline_[a-z_]+)[ {]", found, re.MULTILINE), *hooks}


def test_the_dashboard_names_metrics_that_exist(names_of_metrics: set[str]) -> None:
    dashboard = (DEPLOYMENTS / "grafana-dashboard.json").read_text()
    named = set(re.findall(r"driftline_[a-z_]+", dashboard))
    assert len(named) >= 5
    assert named <= names_of_metrics
    assert len({panel["id"] for panel in json.loads(dashboard)["panels"]}) == 6


def test_the_alerts_name_metrics_that_exist(names_of_metrics: set[str]) -> None:
    alerts = yaml.safe_load((DEPLOYMENTS / "alerts.yml").read_text())
    (group,) = alerts["groups"]
    assert (set(alerts), set(group)) == ({"groups"}, {"name", "rules"}), "Prometheus refuses other keys"
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule
        assert (rule["labels"]["severity"], set(rule["annotations"])) in (
            ("page", {"summary"}),
            ("ticket", {"summary"}),
        )
        assert re.fullmatch(r"\d+[smhd]", rule["for"])
        assert rule["expr"].count("(") == rule["expr"].count(")")
    named = set(re.findall(r"driftline_[a-z_]+", " ".join(rule["expr"] for rule in group["rules"])))
    assert len(named) >= 5
    assert named <= names_of_metrics
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
    prometheus = yaml.safe_load((DEPLOYMENTS / "prometheus.yml").read_text())
    assert prometheus["rule_files"] == ["alerts.yml"]
    (job,) = prometheus["scrape_configs"]
    assert set(job) == {"job_name", "scheme", "metrics_path", "authorization", "static_configs"}
    assert set(re.findall(r'job="([^"]+)"', str(group))) == {job["job_name"]}


def test_probes_name_a_host_that_is_allowed() -> None:
    (deployment, *_) = yaml.safe_load_all((DEPLOYMENTS.parent / "kubernetes" / "web.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    hosts = [argument.partition("=")[2] for argument in container["args"] if "--allowed-host" in argument]
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        (header,) = container[probe]["httpGet"]["httpHeaders"]
        assert (header["name"], header["value"] in hosts) == ("Host", True)
    compose = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())["services"]["web"]
    assert "'Host': 'web:8030'" in compose["healthcheck"]["test"][-1]
    assert "--allowed-host=web:8030" in compose["command"]
