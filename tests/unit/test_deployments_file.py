"""The deployments defined by ``driftline.toml`` and deployments/prefect.yaml, without a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient

from driftline.flows.config.driftline_toml import Configuration, fleets_of, load_config
from driftline.flows.config.toml_schema import FleetTable
from driftline.flows.config.workspace_names import CONFIG_VARIABLE
from driftline.flows.prefect_flows import _source_names, configuration_of
from driftline.flows.runs.fleet import FleetRequest
from driftline.flows.scheduling.deployments import Deployments, _pause_others, deployment_name, deployments_of
from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError

FILE = Path(__file__).resolve().parents[2] / "deployments" / "prefect.yaml"


def configuration(folder: Path, text: str) -> Configuration:
    (folder / "driftline.toml").write_text(text)
    return load_config(folder / "driftline.toml")


def by_name(folder: Path, text: str, **options: Any) -> dict[str, dict[str, Any]]:
    return {spec["name"]: spec for spec in deployments_of(configuration(folder, text), **options).deployments}


def test_a_deployment_beyond_the_first_page_of_the_server_is_paused() -> None:
    paused: list[int] = []
    flows = [SimpleNamespace(id=number, name=f"flow-{number}") for number in range(500)]
    parameters = {"workspace": "/srv/index"}
    ours = [SimpleNamespace(id=n, flow_id=n, name="web", parameters=parameters, paused=False) for n in range(500)]
    client = SimpleNamespace(
        read_flows=lambda offset: flows[offset : offset + 200],
        read_deployments=lambda offset, deployment_filter: ours[offset : offset + 200],
        pause_deployment=paused.append,
    )
    known = Deployments(({"parameters": parameters},), ())
    assert len(_pause_others(cast("SyncPrefectClient", client), known, {"flow-450/web"})) == 499
    assert sorted({*range(500)} - {*paused}) == [450]


def test_each_source_has_a_deployment_with_its_own_schedule(tmp_path: Path) -> None:
    found = by_name(
        tmp_path,
        '[[sources]]\nuri = "web"\nschedule = "0 * * * *"\ninclude = ["*.py"]\nlink = "gitlab"\n'
        '[[sources]]\nuri = "s3://bucket/docs"\nentity = "org:acme/project:a/source:docs"\nschedule = 90\n'
        '[[sources]]\nuri = "plain"\n',
    )
    assert list(found) == ["web", "acme:a:docs", "plain", "compact", "cleanup", "prune", "verify"]
    web, docs = found["web"], found["acme:a:docs"]
    assert web["schedules"] == [{"slug": "schedule", "cron": "0 * * * *"}]
    assert docs["schedules"][0]["interval"] == 90
    assert found["plain"]["schedules"][0]["cron"] == "*/15 * * * *"
    assert web["parameters"]["sources"] == [str(tmp_path / "web")]
    assert (web["parameters"]["include"], web["parameters"]["link"]) == (["*.py"], "gitlab")
    assert docs["parameters"]["entity"] == "org:acme/project:a/source:docs"
    assert (docs["parameters"]["include"], docs["parameters"]["link"]) == (["*"], "")  # remove those of earlier runs
    assert {spec["parameters"]["workspace"] for spec in found.values()} == {str(tmp_path / ".driftline")}


def test_each_fleet_has_one_deployment(tmp_path: Path) -> None:
    found = by_name(
        tmp_path,
        'redact = "strict"\n'
        '[[fleet]]\nprovider = "github"\norg = "acme"\ntoken = "${TOKEN}"\nschedule = 300\nforks = false\n'
        '[[fleet]]\nprovider = "folder"\nurl = "mirrors"\nname = "here"\ngrace_days = 1\n',
        prefix="team:",
    )
    assert list(found)[:3] == ["team:github.com:acme", "team:here", "team:compact"]
    hosted, here = found["team:github.com:acme"], found["team:here"]
    assert hosted["schedules"][0]["interval"] == 300
    assert here["schedules"][0]["cron"] == "*/15 * * * *"
    assert hosted["parameters"]["redact"] == "strict"
    for spec, fleet in zip((hosted, here), load_config(tmp_path / "driftline.toml").fleets, strict=True):
        (table,) = spec["parameters"]["fleets"]
        (elsewhere,) = fleets_of([FleetTable.model_validate(table)])
        assert replace(elsewhere, schedule=fleet.schedule) == fleet, "a worker without the file syncs the same fleet"
    assert hosted["parameters"]["fleets"][0]["token"] == "${TOKEN}"


def test_no_placeholder_remains(tmp_path: Path) -> None:
    wanted = deployments_of(configuration(tmp_path, '[[sources]]\nuri = "web"\n'))
    assert "$DRIFTLINE" not in yaml.safe_dump(list(wanted.deployments))
    (trigger,) = next(spec for spec in wanted.deployments if spec["name"] == "compact")["triggers"]
    assert trigger["match"]["driftline.workspace"] == str(tmp_path / ".driftline")


def test_references_to_secrets_are_not_resolved_early(tmp_path: Path) -> None:
    text = '[storage_options]\nsecret = "${STORE_SECRET}"\n[[sources]]\nuri = "web"\n'
    for spec in by_name(tmp_path, text).values():
        assert spec["parameters"]["storage_options"] == {"secret": "${STORE_SECRET}"}


def test_the_memory_of_the_file_reaches_the_flows_that_keep_it(tmp_path: Path) -> None:
    text = '[memory.catalog]\nurl = "${CATALOG}"\n[memory.index]\ncompaction_threshold = 5\n[[sources]]\nuri = "web"\n'
    found = {name: spec["parameters"] for name, spec in by_name(tmp_path, text).items()}
    with_catalog = {name for name, given in found.items() if given.get("catalog_url") == "${CATALOG}"}
    assert with_catalog == {"cleanup", "verify"}
    assert [name for name, given in found.items() if given.get("compaction_threshold") == 5] == ["compact"]


def test_a_password_in_the_url_of_the_catalog_is_refused(tmp_path: Path) -> None:
    for url in ("postgresql://me:secret@host/db", "${A}://me:secret@host/db"):
        with pytest.raises(UsageError, match="password") as refused:
            configuration(tmp_path, f'[memory.catalog]\nurl = "{url}"\n')
        assert "secret" not in str(refused.value).replace("Prefect Secret", "")
    configuration(tmp_path, '[memory.catalog]\nurl = "postgresql://me:${PASSWORD}@host/db"\n')


def test_prefix_and_executor_reach_their_deployments(tmp_path: Path) -> None:
    text = '[[sources]]\nuri = "web"\n'
    found = by_name(tmp_path, text, prefix="team:", executor="tcp://dask:8786")
    with_executor = [name for name, spec in found.items() if spec["parameters"].get("executor") == "tcp://dask:8786"]
    assert with_executor == ["team:web", "team:compact"]


def test_a_file_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no source"):
        deployments_of(configuration(tmp_path, ""))


@pytest.mark.parametrize(
    ("entity", "name"),
    [
        ("source:web", "web"),
        ("project:alpha/source:web", "alpha:web"),
        ("org:acme/source:web", "acme:default:web"),
        ("source:a:b", "a~3Ab"),
    ],
)
def test_names_are_short_and_unique(entity: str, name: str) -> None:
    assert deployment_name(Entity.parse(entity)) == name


def test_prefect_reads_the_file_without_driftline() -> None:
    spec = yaml.safe_load(FILE.read_text())
    assert spec["pull"] == []
    assert {one["concurrency_limit"]["collision_strategy"] for one in spec["deployments"][2:]} == {"CANCEL_NEW"}
    (automation,) = spec["automations"]
    assert automation["trigger"]["posture"] == "Proactive"


def test_a_flow_without_fleets_syncs_those_of_the_file_with_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driftline.toml").write_text(
        'redact = "strict"\nmax_file_bytes = 10\n[[fleet]]\nprovider = "folder"\nurl = "mirrors"\n'
    )
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "driftline.toml"))
    found = configuration_of("/srv/index", None)
    request = FleetRequest.of(found, found.workspace, {}).run
    assert (found.workspace, [each.host.provider for each in found.fleets]) == ("/srv/index", ["folder"])
    assert (request.redact, request.max_file_bytes) == ("strict", 10)
    given = configuration_of("/srv/index", [FleetTable(provider="folder", url="others")])
    assert FleetRequest.of(given, given.workspace, {}).run.redact is None


def test_deployments_say_what_they_do_and_are_found_by_flow_and_source(tmp_path: Path) -> None:
    text = """
        [[sources]]
        uri = "web"
        [[sources]]
        uri = "s3://bucket/api"
        entity = "org:acme/project:alpha/source:api"
    """
    specs = by_name(tmp_path, text)
    assert {name: spec["tags"] for name, spec in specs.items() if name in ("web", "acme:alpha:api", "verify")} == {
        "web": ["driftline", "index", "source:web"],
        "acme:alpha:api": ["driftline", "index", "org:acme", "project:alpha", "source:api"],
        "verify": ["driftline", "verify"],
    }
    assert all(spec["description"].endswith(".") or "`" in spec["description"] for spec in specs.values())
    assert "`s3://bucket/api`" in specs["acme:alpha:api"]["description"]


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"sources": ["/srv/repositories/web/"]}, "web"),
        ({"sources": ["https://github.com/acme/web.git", "s3://bucket/api"]}, "web, api"),
        ({"sources": ["/srv/x"], "entity": "org:acme/project:alpha/source:api"}, "api"),
        ({"sources": ["/"]}, "/"),
    ],
)
def test_a_run_is_called_by_its_sources(parameters: dict[str, Any], name: str) -> None:
    assert _source_names(parameters) == name
