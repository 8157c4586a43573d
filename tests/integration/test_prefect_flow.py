"""The Prefect flow against a real server: the same run as from the command line, with a form, progress, result and
logs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.servers.git_server import Checkout, git
from tests.servers.prefect_server import PrefectServer
from tests.servers.s3_server import S3Server
from tests.support.waiting import until

PROGRAM = """
import json, sys
from driftline.flows.prefect_flows import index
from driftline.storage.errors import DriftlineError
from prefect import tags
from prefect.utilities.callables import parameter_schema

tagged = tags("program")
tagged.__enter__()
tree, workspace, model, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
told = {"schema": parameter_schema(index).model_dump(), "loaded": [*sys.modules]}
there = {"workspace": workspace, "storage_options": options}
told["report"] = index([tree], model=model, **there)
told["again"] = index([tree], model=model, executor="local", workers=1, **there)
for name, arguments in {
    "bad": {"sources": [tree], "max_delete_fraction": 7},
    "unknown": {"sources": [tree], "indexes": "some"},
    "missing": {"sources": [tree + "/nowhere"], "model": model},
}.items():
    try:
        index(**there, **arguments)
    except Exception as error:
        told[name] = [isinstance(error, DriftlineError), type(error).__name__, str(error)]
from driftline.flows.scheduling import flow_execution
from driftline.flows import prefect_flows as module
from driftline.storage.errors import LeaseHeld, StorageError

def failing(kind, real=module.index_sources):
    failures = [kind("the store is away", workspace)] * 2
    def work(request, progress):
        if failures:
            raise failures.pop()
        return real(request, progress)
    return work

flow_execution.attempt.retry_delay_seconds = [0, 0, 0]
module.index_sources = failing(StorageError)
told["retried"] = index([tree], model=model, **there)
module.index_sources = failing(LeaseHeld)
told["not_retried"] = type(index([tree], model=model, return_state=True, **there).result(False)).__name__
from driftline.flows.prefect_flows import cleanup
from driftline.flows.prefect_flows import compact
from driftline.flows.prefect_flows import verify

told["upkeep"] = [flow(**there) for flow in (compact, cleanup, verify)]
from driftline.flows.runs.index import index_sources

tagged.__exit__(None, None, None)
module.index_sources = index_sources
told["plain"] = [index([tree], "@notes", model=model)["workspace"]]
told["plain"] += [flow("@notes").get("workspace") for flow in (compact, verify)] + [cleanup("@notes")["scanned_count"]]
from driftline.flows.prefect_flows import fleet

tables = [{"provider": "folder", "url": sys.argv[5], "name": "mirrors", "grace_days": 0}]
there["workspace"] += "/fleet"
with tags("fleet"):
    told["fleet"] = [fleet(fleets=tables, model=model, **there) for _ in range(2)]
    gone = [{"provider": "list", "repositories": ["git+file:///nowhere.git"]}]
    failure = fleet(fleets=gone, model=model, return_state=True, **there).result(False)
    told["failing fleet"] = [type(failure).__name__, str(failure)]
print("TOLD" + json.dumps(told))
"""

OPTIONS = {
    "aws_endpoint_url": "${TEAM_STORE}",
    "aws_access_key_id": "${TEAM_KEY}",
    "aws_secret_access_key": "${TEAM_SECRET}",
    "aws_region": "us-east-1",
}


@pytest.fixture(scope="module")
def outcome(
    prefect_server: PrefectServer, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> dict[str, Any]:
    """The output of the program above, run once for all tests, on a workspace that requires its storage options."""
    location = tmp_path_factory.mktemp("flow")
    tree = location / "web"
    tree.mkdir()
    (tree / "parser.py").write_text("import argparse\nparser = argparse.ArgumentParser()\n")
    (tree / ".env").write_text("TOKEN=1\n")
    (location / "mirrors").mkdir()
    remote = location / "mirrors" / "app.git"
    git(location, "init", "--quiet", "--bare", "--initial-branch=main", str(remote))
    project = Checkout.of(remote, location / "app")
    project.write("a.md", "alpha\n")
    project.push()
    workspace = f"s3://{s3_server.bucket}/{uuid.uuid4().hex}"
    arguments = [str(tree), workspace, str(tiny_model), json.dumps(OPTIONS), str(location / "mirrors")]
    variables = {name: value for name, value in prefect_server.environment.items() if not name.startswith("AWS_")}
    variables |= {
        "TEAM_STORE": s3_server.endpoint,
        "TEAM_KEY": s3_server.access_key,
        "TEAM_SECRET": s3_server.secret_key,
        "DRIFTLINE_HOME": str(location / "home"),
    }
    (location / "program.py").write_text(f"if __name__ == '__main__':\n    exec({PROGRAM!r})\n")
    done = subprocess.run(
        [sys.executable, str(location / "program.py"), *arguments],
        env=variables,
        cwd=location,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.rpartition("TOLD")[2])
    return found


@pytest.fixture(scope="module")
def runs(prefect_server: PrefectServer, outcome: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the flow runs known to the server, oldest first."""
    mine = {"sort": "START_TIME_ASC", "flow_runs": {"tags": {"all_": ["program"]}}}
    found: list[dict[str, Any]] = prefect_server.post("flow_runs/filter", mine)
    return found


pytestmark = pytest.mark.xdist_group("prefect")


def test_the_flow_returns_the_report_of_the_command_line(outcome: dict[str, Any]) -> None:
    (source,) = outcome["report"]["sources"]
    assert (source["new"], source["lines_embedded"], source["lines_total"]) == (1, 2, 2)
    assert source["skipped"] == [{"path": ".env", "reason": "secret"}]
    (again,) = outcome["again"]["sources"]
    assert (again["unchanged"], again["lines_embedded"]) == (1, 0)


def test_the_server_shows_the_runs_by_the_names_of_their_sources(runs: list[dict[str, Any]]) -> None:
    assert [run["state_type"] for run in runs[:2]] == ["COMPLETED", "COMPLETED"]
    assert "web" in runs[0]["name"]


def test_the_graph_of_a_run_leads_from_stage_to_stage(
    prefect_server: PrefectServer, runs: list[dict[str, Any]]
) -> None:
    location = f"flow_runs/{runs[0]['id']}/graph-v2"

    def edges() -> set[tuple[str, str]]:
        """Return the edges between tasks, by the first words of the task names; the server learns of tasks through
        events.
        """
        nodes = {node["id"]: node for _, node in prefect_server.get(location)["nodes"]}
        assert not any(node["encapsulating"] for node in nodes.values()), "the graph hides what is inside a node"
        names = {key: re.split(r"[- ]", node["label"])[0] for key, node in nodes.items()}
        whole = {key for key, node in nodes.items() if re.fullmatch(r"index-\w+", node["label"])}
        names |= dict.fromkeys(whole, "whole run")
        return {(names[parent["id"]], names[key]) for key, node in nodes.items() for parent in node["parents"]}

    expected = {("whole run", "scan"), ("scan", "embed"), ("embed", "commit"), ("embed", "index"), ("commit", "index")}
    until(lambda: edges() == expected, "the edges between tasks", poll=0.5)


def test_progress_ends_at_100_and_a_report_shows_counts_and_phases(
    prefect_server: PrefectServer, runs: list[dict[str, Any]]
) -> None:
    artifacts = prefect_server.post("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [runs[0]["id"]]}}})
    of_key = {artifact["key"]: artifact for artifact in artifacts}
    assert set(of_key) == {"driftline-progress", "driftline-report-web", "driftline-skipped-web"}
    assert of_key["driftline-progress"]["data"] == 100
    assert "2 lines" in of_key["driftline-progress"]["description"]
    report = of_key["driftline-report-web"]["data"]
    assert "|  | new | changed | deleted | unchanged | skipped | lines embedded | lines total |" in report
    assert "source:web | 1 | 0 | 0 | 0 | 1 | 2 | 2 |" in report
    assert "\n| all | " in report.partition("Seconds by phase")[2]
    assert of_key["driftline-report-web"]["description"] == "1 new, 2 lines embedded"
    assert "![Lines and documents]" not in report, "a first run has no growth"
    (skipped,) = json.loads(of_key["driftline-skipped-web"]["data"])
    assert (skipped["path"], skipped["reason"]) == (".env", "secret")


def test_a_run_that_changes_nothing_publishes_nothing(
    prefect_server: PrefectServer, outcome: dict[str, Any], runs: list[dict[str, Any]]
) -> None:
    assert outcome["again"]["sources"][0]["skipped"] == [{"path": ".env", "reason": "secret"}]
    again = {"artifacts": {"flow_run_id": {"any_": [runs[1]["id"]]}}}
    assert prefect_server.post("artifacts/filter", again) == []


def test_a_sync_of_fleets_is_one_run_and_shows_only_changes(
    prefect_server: PrefectServer, outcome: dict[str, Any]
) -> None:
    first, second = outcome["fleet"]
    assert (len(first["to_index"]), second["to_index"], second["run_id"]) == (1, [], None)
    assert outcome["failing fleet"][0] == "StorageError"
    assert "nowhere.git" in outcome["failing fleet"][1]
    mine = {"sort": "START_TIME_ASC", "flow_runs": {"tags": {"all_": ["fleet"]}}}
    found = prefect_server.post("flow_runs/filter", mine)
    assert [run["state_type"] for run in found] == ["COMPLETED", "COMPLETED", "FAILED"]
    keys = []
    for run in found:
        artifacts = prefect_server.post("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
        keys.append({artifact["key"] for artifact in artifacts if artifact["key"]})  # a result has none
    assert keys == [{"driftline-progress", "driftline-fleet"}, set(), {"driftline-fleet"}]


def test_the_log_of_a_run_shows_its_phases(prefect_server: PrefectServer, runs: list[dict[str, Any]]) -> None:
    logs = prefect_server.post(
        "logs/filter", {"logs": {"flow_run_id": {"any_": [runs[0]["id"]]}}, "sort": "TIMESTAMP_ASC"}
    )
    messages = [log["message"] for log in logs]
    assert any("scanning" in message for message in messages)
    assert any("embedding: 1 documents" in message for message in messages)


def test_the_parameters_make_a_form_with_descriptions_bounds_and_choices(outcome: dict[str, Any]) -> None:
    properties = outcome["schema"]["properties"]
    assert outcome["schema"]["required"] == ["sources", "workspace"]
    assert [name for name, shown in properties.items() if not shown.get("description")] == []
    assert (properties["max_delete_fraction"]["minimum"], properties["max_delete_fraction"]["maximum"]) == (0, 1)
    assert properties["max_file_bytes"]["anyOf"][0]["minimum"] == 0
    assert properties["indexes"]["enum"] == ["all", "text", "none"]


def test_bad_parameters_are_refused(outcome: dict[str, Any]) -> None:
    for name in ("bad", "unknown"):
        ours, kind, message = outcome[name]
        assert not ours
        assert "Parameter" in kind or "Validation" in kind, (kind, message)
    assert "max_delete_fraction" in outcome["bad"][2]


def test_a_failing_run_ends_as_failed_with_a_clear_message(outcome: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    ours, kind, message = outcome["missing"]
    assert (ours, kind) == (True, "SourceNotFound")
    assert "nowhere" in message
    (failed,) = [run for run in runs if run["state_type"] == "FAILED" and "nowhere" in run["name"]]
    assert message in failed["state"]["message"]


def test_only_storage_errors_are_retried(outcome: dict[str, Any]) -> None:
    assert outcome["retried"]["sources"][0]["unchanged"] == 1
    assert outcome["not_retried"] == "LeaseHeld"


def test_all_flows_open_a_store_by_references_that_the_server_keeps_unread(
    outcome: dict[str, Any], runs: list[dict[str, Any]], s3_server: S3Server
) -> None:
    compacted, cleaned, verified = outcome["upkeep"]
    assert compacted["tenants"][0]["after"]["files"] > 0
    assert (cleaned["dry_run"], cleaned["scanned_count"] > 0) == (True, True)
    assert (verified["lines"], verified["findings"]) == (2, [])
    assert all(run["parameters"]["storage_options"] == OPTIONS for run in runs)
    assert s3_server.secret_key not in json.dumps([runs, outcome["report"]])


def test_a_name_is_the_workspace_of_commands_and_flows(outcome: dict[str, Any]) -> None:
    *workspaces, scanned = outcome["plain"]
    assert [Path(location).parts[-2:] for location in workspaces] == [("home", "notes")] * 3
    assert scanned > 0


# Modules that flows and the command line must not import.


def test_the_index_flow_loads_no_catalog_and_no_cluster(outcome: dict[str, Any]) -> None:
    assert not {name.partition(".")[0] for name in outcome["loaded"]} & {"sqlalchemy", "distributed"}


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys; print('MODULES', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.rpartition("MODULES")[2].split()}


HEAVY = {"prefect", "distributed", "dask", "sqlalchemy", "lancedb", "mcp", "pandas", "torch", "transformers"}


def test_the_command_line_indexes_and_searches_without_prefect_and_dask(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.py").write_text("import argparse\n")
    at = ["--workspace", str(tmp_path / "ws")]
    code = "from driftline.flows.commands.main import main\n"
    loaded = modules_after(
        f"{code}assert main({['index', str(tmp_path / 'tree'), '--model', str(tiny_model), *at]}) == 0"
    )
    assert "lance" in loaded
    assert not loaded & HEAVY
    loaded = modules_after(f"{code}assert main({['search', 'argparse', *at]}) == 0")
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    "arguments", [["--help"], ["index", "--help"], ["search", "x", "--top-k", "-1"], ["--version"]]
)
def test_help_and_usage_errors_load_nothing_heavy(arguments: list[str]) -> None:
    loaded = modules_after(f"from driftline.flows.commands.main import main\nmain({arguments})")
    heavy = {"prefect", "distributed", "dask", "lance", "pyarrow", "numpy", "model2vec", "fsspec", "obstore"}
    assert loaded & heavy == set()
