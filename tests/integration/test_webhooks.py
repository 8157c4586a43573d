"""Webhooks: a push to a repository is found without polling, in the main index and on branches."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import driftline
from driftline.flows.ci import webhooks
from driftline.flows.ci.webhooks import Hooks, Runs, Work, hooks_of
from driftline.flows.config.driftline_toml import HookSettings, load_config, locate_config
from driftline.flows.config.index_request import SourceRequest
from driftline.flows.runs.plan import requests_of
from driftline.flows.scheduling import deployments
from driftline.flows.web.api import Reader
from driftline.flows.web.server import web_server
from driftline.storage.errors import DriftlineError, ExecutorError, LeaseHeld, StorageError, UsageError
from driftline.storage.workspace.workspace import Workspace
from tests.servers.git_server import Checkout, GitServer, git
from tests.support.fleets import Fleet, rows
from tests.support.hooks import SECRET, deliver, push, request
from tests.support.waiting import until
from tests.support.web import ask, serving

Driftline = Callable[..., Any]
ALL = dict.fromkeys(webhooks.HOSTS, "${HOOK_SECRET}")


@dataclass
class Site:
    """A web server that accepts webhooks for ``url``, and the runs that have ended."""

    address: str
    url: str
    workspace: str
    ended: list[Work] = field(default_factory=list)

    def send(self, host: str, sent: tuple[str, dict[str, Any]], **changed: str) -> int:
        return deliver(self.address, host, *sent, **changed).status

    def finds(self, text: str, branch: str | None = None) -> bool:
        return any(text in hit.text for hit in driftline.search(self.workspace, "", fixed=text, branch=branch))


@contextmanager
def taking(workspace: str, hooks: Hooks) -> Iterator[str]:
    """Serve ``workspace`` with ``hooks``; yields ``host:port``."""
    server = web_server(Reader(Workspace.open(workspace).reread), "127.0.0.1", 0, hooks=hooks)
    with serving(server) as address, hooks.running():
        yield address


@pytest.fixture
def project(git_server: GitServer, tmp_path: Path) -> Checkout:
    (git_server.root / "team").mkdir()
    tree = Checkout.of(git_server.create("team/app.git"), tmp_path / "app")
    tree.write("a.py", "alpha = 1\n")
    tree.push()
    return tree


@pytest.fixture
def site(
    git_server: GitServer, project: Checkout, tmp_path: Path, tiny_model: Path, driftline: Driftline
) -> Iterator[Site]:
    url, workspace = git_server.url("team/app.git"), str(tmp_path / "index")
    assert driftline("index", url, "--workspace", workspace, "--model", tiny_model).code == 0
    file = tmp_path / "driftline.toml"
    file.write_text(f'workspace = "{workspace}"\n[[sources]]\nuri = "{url}"\n')
    found = Site("", url.removeprefix("git+"), workspace)
    runs = Runs(load_config(file))

    def run(work: Work) -> None:
        runs(work)
        found.ended.append(work)

    settings = HookSettings(ALL, ("release/*",), pull_requests=True)
    (source,) = hooks_sources(file)
    hooks = Hooks(settings, dict.fromkeys(ALL, SECRET), (source,), run, debounce_seconds=0.05)
    with taking(workspace, hooks) as found.address:
        yield found


def hooks_sources(file: Path) -> tuple[SourceRequest, ...]:
    return requests_of(load_config(file).sources)


@pytest.mark.parametrize("host", webhooks.HOSTS)
def test_a_push_is_indexed_and_its_lag_is_a_metric(site: Site, project: Checkout, host: str) -> None:
    project.write("a.py", f"beta_{host} = 2\n")
    project.push()
    assert site.send(host, push(host, site.url)) == 202
    until(lambda: site.ended)
    assert site.finds(f"beta_{host}")
    until(lambda: "driftline_hook_lag_seconds_count 1.0" in ask(site.address, "/metrics").body)
    assert f'driftline_hook_deliveries_total{{host="{host}",status="202"}} 1.0' in ask(site.address, "/metrics").body


@pytest.mark.parametrize("host", ["github", "gitlab", "gitea"])
def test_a_pull_request_of_a_fork_has_a_branch_until_it_is_closed(
    site: Site, project: Checkout, git_server: GitServer, host: str
) -> None:
    git(project.folder, "switch", "--quiet", "-c", "topic")
    project.write("b.py", "gamma = 3\n")
    commit = project.push("elsewhere")
    ref = webhooks.HOSTS[host].request_ref.format(7)
    git(git_server.root / "team/app.git", "update-ref", ref, commit)
    assert site.send(host, request(host, site.url, 7, "topic", fork=True)) == 202
    until(lambda: site.ended)
    assert site.finds("gamma", "pr/7")
    assert not site.finds("gamma")
    assert site.send(host, request(host, site.url, 7, "topic", state="closed", fork=True)) == 202
    until(lambda: len(site.ended) == 2)
    assert branches(site) == []


def branches(site: Site) -> list[str]:
    return [each.name for each in driftline.open(site.workspace).branches()]


def test_branches_are_indexed_by_pattern_and_deleted_with_the_branch(
    site: Site, project: Checkout, git_server: GitServer
) -> None:
    project.write("b.py", "delta = 4\n")
    project.push("release/1")
    project.push("other")
    assert site.send("github", push("github", site.url, "other")) == 200
    assert site.send("github", push("github", site.url, "release/1")) == 202
    until(lambda: site.ended)
    assert site.finds("delta", "release/1")
    gone = push("github", site.url, "release/1", is_gone=True)
    assert site.send("github", gone) == 202
    until(lambda: len(site.ended) == 2)
    assert branches(site) == ["release/1"]  # the delivery says it was deleted, but the repository has it
    git(git_server.root / "team/app.git", "update-ref", "-d", "refs/heads/release/1")
    assert site.send("github", gone) == 202
    until(lambda: len(site.ended) == 3)
    assert branches(site) == []


@pytest.mark.parametrize("host", webhooks.HOSTS)
def test_a_pull_request_of_the_repository_is_its_branch(site: Site, project: Checkout, host: str) -> None:
    project.write("b.py", "epsilon = 5\n")
    project.push("topic")
    for number, state, left in [
        (7, "open", ["topic"]),
        (8, "open", ["topic"]),
        (9, "closed", ["topic"]),  # was open before the webhook was set up
        (7, "closed", ["topic"]),  # 8 has the branch, too
        (8, "closed", []),
        (7, "closed", []),
    ]:
        site.ended.clear()
        assert site.send(host, request(host, site.url, number, "topic", state=state)) == 202
        until(lambda: site.ended)
        assert branches(site) == left, (number, state)


def test_a_branch_whose_pull_requests_are_unknown_is_kept(site: Site, project: Checkout) -> None:
    project.write("b.py", "zeta = 6\n")
    project.push("topic")
    driftline.index(f"{site.url}@topic".replace("http", "git+http", 1), workspace=site.workspace, branch="topic")
    assert site.send("github", request("github", site.url, 7, "topic", state="closed")) == 202
    until(lambda: site.ended)
    assert branches(site) == ["topic"]


SOURCE = SourceRequest("git+https://code.example/team/app.git", "org:a/project:b/source:app")


@contextmanager
def counting(tmp_path: Path, run: Callable[[Work], None], **options: Any) -> Iterator[tuple[str, Hooks]]:
    """Run a server whose webhooks call ``run``."""
    Workspace.open_for_writing(str(tmp_path / "ws"))
    settings = HookSettings(ALL, ("*",), pull_requests=True)
    hooks = Hooks(settings, dict.fromkeys(ALL, SECRET), (SOURCE,), run, **{"debounce_seconds": 0.0, **options})
    with taking(str(tmp_path / "ws"), hooks) as address:
        yield address, hooks


def test_deliveries_for_one_index_make_one_run(tmp_path: Path) -> None:
    ran: list[Work] = []
    now = [0.0]
    with counting(tmp_path, ran.append, debounce_seconds=2.0, clock=lambda: now[0]) as (address, hooks):
        for _ in range(5):
            assert deliver(address, "github", *push("github", "git@code.example:team/app.git")).status == 202
        assert deliver(address, "github", *push("github", "https://code.example/Team/App", "x")).status == 202
        assert ran == []
        now[0] = 2.0
        with hooks._changed:
            hooks._changed.notify()
        until(lambda: len(ran) == 2)
    assert [work.key[1] for work in ran] == ["", "x"]


def test_a_repository_with_a_push_every_second_is_indexed(tmp_path: Path) -> None:
    ran: list[Work] = []
    now = [0.0]
    with counting(tmp_path, ran.append, debounce_seconds=2.0, clock=lambda: now[0]) as (address, hooks):
        while now[0] < 2.0 * webhooks.MAX_DEBOUNCES:
            assert deliver(address, "github", *push("github", "git@code.example:team/app.git")).status == 202
            now[0] += 1.0
        with hooks._changed:
            hooks._changed.notify()
        until(lambda: ran)


def test_a_run_that_failed_because_of_the_host_is_retried(tmp_path: Path) -> None:
    attempts: list[Work] = []

    def run(work: Work) -> None:
        attempts.append(work)
        if len(attempts) == 1:
            raise ZeroDivisionError
        if len(attempts) < 4:
            raise StorageError("The host is away", "code.example")

    with counting(tmp_path, run, retry_seconds=0.0) as (address, _):
        deliver(address, "github", *push("github", "https://code.example/team/app.git"))
        until(lambda: 'driftline_hook_runs_total{outcome="unexpected"} 1.0' in ask(address, "/metrics").body)
        deliver(address, "github", *push("github", "https://code.example/team/app.git"))
        until(lambda: len(attempts) == 4)
        until(lambda: 'driftline_hook_runs_total{outcome="done"} 1.0' in ask(address, "/metrics").body)


@pytest.mark.parametrize("error", [LeaseHeld("Another run holds the lease", "app"), ExecutorError("No worker", "tcp")])
def test_a_run_that_conflicts_with_another_is_retried(tmp_path: Path, error: DriftlineError) -> None:
    attempts: list[Work] = []

    def run(work: Work) -> None:
        attempts.append(work)
        if len(attempts) < 3:
            raise error

    with counting(tmp_path, run, retry_seconds=0.0) as (address, _):
        deliver(address, "github", *push("github", "https://code.example/team/app.git"))
        until(lambda: 'driftline_hook_runs_total{outcome="done"} 1.0' in ask(address, "/metrics").body)
    assert len(attempts) == 3


def test_a_source_that_stays_busy_is_given_up_and_can_be_redelivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "BUSY_SECONDS", 0.0)
    ran: list[Work] = []

    def run(work: Work) -> None:
        ran.append(work)
        raise LeaseHeld("Another run holds the lease", "app")

    name, body = push("github", "https://code.example/team/app.git")
    with counting(tmp_path, run) as (address, _):
        assert deliver(address, "github", name, body, delivery="one").status == 202
        until(lambda: 'driftline_hook_runs_total{outcome="lease_held"} 1.0' in ask(address, "/metrics").body)
        assert deliver(address, "github", name, body, delivery="one").status == 202
        until(lambda: len(ran) == 2)


def test_prefect_runs_the_deployment_once_for_each_delivery(
    git_server: GitServer, project: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: dict[str, dict[str, Any]] = {}
    completed = SimpleNamespace(is_final=lambda: True, is_completed=lambda: True)

    class Client:
        def read_deployment_by_name(self, name: str) -> Any:
            return SimpleNamespace(id=name)

        def create_flow_run_from_deployment(self, deployment: str, **given: Any) -> Any:
            """Like Prefect, return the run that a key already has."""
            requested.setdefault(given["idempotency_key"], {"deployment": deployment, **given})
            return SimpleNamespace(state=completed)

    @contextmanager
    def connected() -> Iterator[Client]:
        yield Client()

    monkeypatch.setattr(deployments, "connected", connected)
    monkeypatch.setattr(deployments, "server_url", lambda: "http://prefect")
    file = tmp_path / "driftline.toml"
    url = git_server.url("team/app.git")
    file.write_text(f'[[sources]]\nuri = "{url}"\n')
    (source,) = hooks_sources(file)
    runs = Runs(load_config(file), by_prefect=True)
    commit = git(project.folder, "rev-parse", "HEAD")
    runs(Work(source, delivery="1"))
    runs(Work(source, delivery="1"))
    runs(Work(source, delivery="2"))  # a push back to the same commit, after another one
    runs(Work(source, "release/1", "refs/heads/main", delivery="3"))
    main, again, branch = requested.values()
    assert {each["deployment"] for each in requested.values()} == {"driftline-index/app"}
    assert (main["idempotency_key"], main["parameters"]) == (f"{commit}:driftline-index/app:1", None)
    assert again["idempotency_key"] == f"{commit}:driftline-index/app:2"
    assert branch["idempotency_key"] == f"{commit}:driftline-index/app@release/1:3"
    assert branch["parameters"] == {"sources": [f"{url}@refs/heads/main"], "branch": "release/1"}


def test_webhooks_are_off_unless_the_configuration_names_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Workspace.open_for_writing(str(tmp_path / "ws"))
    with serving(web_server(Reader(Workspace.open(str(tmp_path / "ws")).reread), "127.0.0.1", 0)) as address:
        assert deliver(address, "github", *push("github", "https://code.example/team/app")).status == 404
    file = tmp_path / "driftline.toml"
    sources = '[[sources]]\nuri = "git+https://code.example/team/app.git"\n'
    file.write_text(sources)
    assert hooks_of(load_config(file)) is None
    file.write_text(sources + '[web.hooks]\ngithub = "plain"\n')
    with pytest.raises(UsageError, match="plain-text"):
        load_config(file)
    file.write_text(sources + '[web.hooks]\nbranches = ["x"]\n')
    with pytest.raises(UsageError, match="No webhook secret"):
        load_config(file)
    file.write_text(sources + '[web.hooks]\ngithub = "${HOOK_SECRET}"\nbranchs = ["x"]\n')
    with pytest.raises(UsageError, match="Did you mean 'branches'"):
        load_config(file)
    file.write_text(sources + '[web.hooks]\ngithub = "${HOOK_SECRET}"\n')
    monkeypatch.delenv("HOOK_SECRET", raising=False)
    with pytest.raises(UsageError, match="needs the variable HOOK_SECRET"):
        hooks_of(load_config(file))
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    found = hooks_of(load_config(file))
    assert found is not None
    assert (found.secrets, SECRET in repr(found)) == ({"github": SECRET}, False)
    file.write_text('[[sources]]\nuri = "."\n[web.hooks]\ngithub = "${HOOK_SECRET}"\n')
    with pytest.raises(UsageError, match="need at least one source that is a repository URL"):
        hooks_of(load_config(file))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    withheld = locate_config(None)
    assert withheld is not None
    assert withheld.hooks is None  # nobody has trusted the file


def test_a_push_to_a_repository_of_a_fleet_is_found(
    project: Checkout, git_server: GitServer, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    url = git_server.url("team/app.git")
    text = f'[[fleet]]\nprovider = "list"\nname = "team"\nrepositories = ["{url}"]\n'
    fleet = Fleet(tmp_path, tiny_model, text + '[web.hooks]\ngithub = "${HOOK_SECRET}"\n')
    fleet.sync()
    configuration = load_config(fleet.config)
    hooks = hooks_of(configuration)
    assert hooks is not None
    hooks.debounce_seconds = 0.05
    project.write("a.py", "gamma = 3\n")
    commit = project.push()
    with taking(configuration.workspace, hooks) as address:
        site = Site(address, url.removeprefix("git+"), configuration.workspace)
        assert site.send("github", push("github", site.url)) == 202
        assert site.send("github", push("github", site.url.replace("app", "other"))) == 200
        until(lambda: site.finds("gamma"))
    assert rows(fleet.sync())["team/app"]["indexed"] == commit, "the next sync finds it done"
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(deployments, "start_fleet_run", lambda *of: started.append(of))
    (source,) = hooks.of_fleets()
    Runs(configuration, by_prefect=True)(Work(source, delivery="1"))
    assert started == [("team", commit, "1")]
    (tmp_path / "index" / "_fleet.json").write_text("{")
    with taking(configuration.workspace, hooks) as address:
        assert deliver(address, "github", *push("github", site.url)).status == 503


def test_the_command_takes_the_webhooks_of_the_configuration_that_names_its_workspace(
    project: Checkout, git_server: GitServer, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "driftline.toml"
    file.write_text(
        f'model = "{tiny_model}"\n[[sources]]\nuri = "{git_server.url("team/app.git")}"\n'
        '[web.hooks]\ngithub = "${HOOK_SECRET}"\n'
    )
    for name, value in {"DRIFTLINE_CONFIG": str(file), "HOOK_SECRET": SECRET}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    driftline.index(git_server.url("team/app.git"), workspace=str(tmp_path / ".driftline"), model=str(tiny_model))
    project.write("a.py", "omega = 9\n")
    project.push()
    command = [sys.executable, "-m", "driftline", "web", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = re.search(r"serving http://(\S+)/", next(line for line in process.stderr if "serving" in line))
            assert said is not None
            url = git_server.url("team/app.git").removeprefix("git+")
            assert deliver(said[1], "github", *push("github", url)).status == 202
            until(lambda: any(driftline.search(str(tmp_path / ".driftline"), "", fixed="omega")))
            until(lambda: "driftline_hook_lag_seconds_count 1.0" in ask(said[1], "/metrics").body)
            print(re.findall("driftline_hook_lag_seconds_sum.*", ask(said[1], "/metrics").body))
        finally:
            process.kill()
