"""The Prefect deployments of a workspace: ``deployments/prefect.yaml`` filled in from ``driftline.toml``.

Pure values; ``registration`` sends them to a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from driftline.flows.config.defaults import DEFAULT_EXECUTOR
from driftline.flows.config.toml_file import Configuration, ConfiguredSource
from driftline.storage.entities import DEFAULT_IDS, Entity, encode_id
from driftline.storage.errors import UsageError

WORKSPACE_PLACEHOLDER = "{{ $DRIFTLINE_WORKSPACE }}"
"""Stands for the workspace in the file; Prefect's own command replaces it from the environment."""
INDEX = "index"
WITH_EXECUTOR = (INDEX, "compact")
WITH_CATALOG = ("cleanup", "verify")
ANCHOR = "2026-01-01T00:00:00+00:00"
"""Start of all intervals, so that registering again does not shift the schedule."""


@dataclass(frozen=True, slots=True)
class Deployments:
    """Deployments and automations, each a dictionary as in the file."""

    deployments: tuple[dict[str, Any], ...]
    automations: tuple[dict[str, Any], ...]


def deployments_of(configuration: Configuration, *, executor: str = DEFAULT_EXECUTOR, prefix: str = "") -> Deployments:
    """An index deployment for each source, and the maintenance deployments of the workspace.

    ``executor`` is where index and compact run their tasks. ``prefix`` precedes every name, so that several workspaces
    can share a server. Raises UsageError if the configuration has no source.
    """
    if not configuration.sources:
        raise UsageError("There is no source to deploy", str(configuration.path), "Add a [[sources]] table.")
    text = files("driftline.deployments").joinpath("prefect.yaml").read_text(encoding="utf-8")
    file = _filled(yaml.safe_load(text), configuration.workspace)
    deployments: list[dict[str, Any]] = []
    for template in file["deployments"]:
        if template["name"] in WITH_EXECUTOR and executor != DEFAULT_EXECUTOR:
            template["parameters"]["executor"] = executor
        deployments += list(_of_sources(template, configuration)) if template["name"] == INDEX else [template]
    for deployment in deployments:
        deployment["name"] = prefix + deployment["name"]
        if configuration.storage_options:
            deployment["parameters"]["storage_options"] = dict(configuration.storage_options)
    for deployment in deployments:
        deployment["parameters"] |= _memory_parameters(deployment["entrypoint"], configuration)
    return Deployments(tuple(deployments), tuple(file["automations"]))


def deployment_name(entity: Entity) -> str:
    """The name of a source's index deployment: ``web``, or ``acme:alpha:web`` outside the default organisation."""
    parts = list(entity.parts)
    while len(parts) > 1 and DEFAULT_IDS.get(parts[0][0]) == parts[0][1]:
        del parts[0]
    return ":".join(encode_id(name) for _, name in parts)


def _of_sources(template: dict[str, Any], configuration: Configuration) -> Iterator[dict[str, Any]]:
    for source in configuration.sources:
        deployment = deepcopy(template)
        deployment["name"] = deployment_name(source.entity)
        deployment["parameters"] |= _parameters(source, configuration)
        if source.schedule is not None:
            every = source.schedule.interval_seconds
            moment = {"cron": source.schedule.cron} if every is None else {"interval": every, "anchor_date": ANCHOR}
            deployment["schedules"] = [{"slug": "schedule", **moment}]
        yield deployment


def _parameters(source: ConfiguredSource, configuration: Configuration) -> dict[str, Any]:
    """The parameters that the configuration sets; Prefect's form shows the defaults of the others."""
    given = {
        "sources": [source.uri],
        "entity": str(source.entity),
        "include": list(source.include),
        "exclude": list(source.exclude),
        "model": configuration.model,
    }
    return {name: value for name, value in given.items() if value}


def _memory_parameters(entrypoint: str, configuration: Configuration) -> dict[str, Any]:
    """What the file says of the memory, which a worker elsewhere does not see."""
    url = configuration.memory.get("catalog", {}).get("url")
    threshold = configuration.memory.get("index", {}).get("compaction_threshold")
    flow = entrypoint.rpartition(":")[2]
    given = {"catalog_url": url} if flow in WITH_CATALOG else {}
    given |= {"compaction_threshold": threshold} if flow == "compact" else {}
    return {name: value for name, value in given.items() if value is not None}


def _filled(value: Any, workspace: str) -> Any:
    if isinstance(value, str):
        return value.replace(WORKSPACE_PLACEHOLDER, workspace)
    if isinstance(value, list):
        return [_filled(item, workspace) for item in value]
    if isinstance(value, dict):
        return {name: _filled(item, workspace) for name, item in value.items()}
    return value
