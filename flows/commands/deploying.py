"""``driftline deploy`` and ``driftline serve``: the sources of ``driftline.toml`` on a schedule, through Prefect."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, ConfigOption, ExecutorOption, JsonOption, app
from driftline.flows.config.defaults import DEFAULT_EXECUTOR

DEFAULT_POOL = "driftline"
DEFAULT_PORT = 4200
ENVIRONMENT = {
    # A run tells that it lives; prefect.yaml has the automation that listens for it.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # A run that CI asks for begins within 5 s, not 10.
    "PREFECT_RUNNER_POLL_FREQUENCY": "5",
    # Nothing leaves this machine unasked.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "DO_NOT_TRACK": "1",
}

PrefixOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Before every name, for several workspaces on one server.")
]


@app.command()
def deploy(
    config: ConfigOption = None,
    pool: Annotated[str, typer.Option(metavar="NAME", help="The work pool; made if it is not there.")] = DEFAULT_POOL,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    prefix: PrefixOption = "",
    as_json: JsonOption = False,
) -> int:
    """Register schedules for the sources of driftline.toml with a Prefect server, for workers to run."""
    from driftline.flows.config.toml_file import open_config
    from driftline.flows.scheduling.deployments import deployments_of

    wanted = deployments_of(open_config(config), executor=executor, prefix=prefix)
    _prepare_environment()
    from driftline.flows.output.terminal import print_json
    from driftline.flows.scheduling.registration import register, server_url

    url = server_url()
    names, paused = register(wanted, pool=pool)
    if as_json:
        print_json({"server": url, "pool": pool, "deployments": names, "paused": paused})
        return DONE
    for name in names:
        typer.echo(f"deployed {name}")
    for name in paused:
        typer.echo(f"paused   {name}, which is not in driftline.toml any more")
    typer.echo(f"Start a worker where the sources are: prefect worker start --pool {pool}")
    return DONE


@app.command()
def serve(
    config: ConfigOption = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the server, if none is configured.")] = DEFAULT_PORT,
    limit: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 2,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    prefix: PrefixOption = "",
) -> int:
    """Run the sources of driftline.toml on schedule on this machine, with a Prefect server of its own if need be."""
    from driftline.flows.config.toml_file import open_config
    from driftline.flows.scheduling.deployments import deployments_of

    configuration = open_config(config)
    wanted = deployments_of(configuration, executor=executor, prefix=prefix)
    _prepare_environment()
    from driftline.flows.scheduling.serving import serve as serve_deployments

    if not serve_deployments(wanted, workspace=configuration.workspace, port=port, limit=limit, announce=typer.echo):
        typer.echo("This machine serves them already.")
    return DONE


def _prepare_environment() -> None:
    """Before Prefect is imported, which reads it then, and for the processes that it starts."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
