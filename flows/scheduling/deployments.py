"""What Prefect runs for a workspace: ``deployments/prefect.yaml`` with the sources of ``driftline.toml`` put in.

Pure values; ``registration`` brings them to a server.
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

WORKSPACE_PLACE = "{{ $DRIFTLINE_WORKSPACE }}"
"""Where the file has the workspace; Prefect's own command takes it from the environment."""
INDEX = "index"
WITH_EXECUTOR = (INDEX, "compact")
ANCHOR = "2026-01-01T00:00:00+00:00"
"""Intervals are counted from here, so that registering again moves no run."""


@dataclass(frozen=True, slots=True)
class Deployments:
    """Deployments and automations, each in the form of the file."""

    deployments: tuple[dict[str, Any], ...]
    automations: tuple[dict[str, Any], ...]


def deployments_of(configuration: Configuration, *, executor: str = DEFAULT_EXECUTOR, prefix: str = "") -> Deployments:
    """One index deployment for each source, and those that look after the workspace.

    ``executor`` is where index and compact run their tasks. ``prefix`` goes before every name, for several workspaces
    on one server. Raises UsageError if there is no source.
    """
    if not configuration.sources:
        raise UsageError("There is no source to deploy", str(configuration.path), "Add a [[sources]] table.")
    text = files("driftline.deployments").joinpath("prefect.yaml").read_text(encoding="utf-8")
    file = _filled(yaml.safe_load(text), configuration.workspace)
    found: list[dict[str, Any]] = []
    for template in file["deployments"]:
        if template["name"] in WITH_EXECUTOR and executor != DEFAULT_EXECUTOR:
            template["parameters"]["executor"] = executor
        found += list(_of_sources(template, configuration)) if template["name"] == INDEX else [template]
    for deployment in found:
        deployment["name"] = prefix + deployment["name"]
        if configuration.storage_options:
            deployment["parameters"]["storage_options"] = dict(configuration.storage_options)
    return Deployments(tuple(found), tuple(file["automations"]))


def deployment_name(entity: Entity) -> str:
    """The name of the index deployment of a source: ``web``, or ``acme:alpha:web`` beyond the default organisation."""
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
    """Only what is given: the form shows the rest with its defaults."""
    given = {
        "sources": [source.uri],
        "entity": str(source.entity),
        "include": list(source.include),
        "exclude": list(source.exclude),
        "model": configuration.model,
    }
    return {name: value for name, value in given.items() if value}


def _filled(value: Any, workspace: str) -> Any:
    if isinstance(value, str):
        return value.replace(WORKSPACE_PLACE, workspace)
    if isinstance(value, list):
        return [_filled(item, workspace) for item in value]
    if isinstance(value, dict):
        return {name: _filled(item, workspace) for name, item in value.items()}
    return value
