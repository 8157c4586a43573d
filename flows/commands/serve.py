"""Define ``driftline deploy`` and ``driftline serve``: run the sources of ``driftline.toml`` on Prefect schedules."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, ConfigOption, ExecutorOption, JsonOption, app
from driftline.flows.output.plain_text import print_json, say, say_done
from driftline.storage.defaults import DEFAULT_EXECUTOR

DEFAULT_POOL = "driftline"
DEFAULT_PORT = 4200
ENVIRONMENT = {
    # Runs send the heartbeat that the automation in prefect.yaml expects.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # Start runs triggered by CI within 5 s instead of 10.
    "PREFECT_RUNNER_POLL_FREQUENCY": "5",
    # Send no usage data.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "DO_NOT_TRACK": "1",
}

PrefixOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Prefix every name with TEXT, so that workspaces can share a server.")
]


@app.command()
def deploy(
    config: ConfigOption = None,
    pool: Annotated[
        str, typer.Option(metavar="NAME", help="The work pool; created if it does not exist.")
    ] = DEFAULT_POOL,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    prefix: PrefixOption = "",
    as_json: JsonOption = False,
) -> int:
    """Register schedules for the sources of driftline.toml on a Prefect server; its workers run them."""
    from driftline.flows.config.driftline_toml import trusted_config

    _prepare_environment()
    from driftline.flows.scheduling.deployments import deployments_of, register, server_url

    deployments = deployments_of(trusted_config(config), executor=executor, prefix=prefix)
    url = server_url()
    names, paused = register(deployments, pool=pool)
    if as_json:
        print_json({"server": url, "pool": pool, "deployments": names, "paused": paused})
        return DONE
    for name in names:
        say_done(f"deployed {name}")
    for name in paused:
        say_done(f"paused   {name}, which driftline.toml no longer contains")
    say(f"Start a worker on a machine with the sources: prefect worker start --pool {pool}")
    return DONE


@app.command()
def serve(
    config: ConfigOption = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the server started if none is configured.")
    ] = DEFAULT_PORT,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent runs.")] = 2,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    prefix: PrefixOption = "",
) -> int:
    """Run the sources of driftline.toml on schedule on this machine; start a Prefect server if none is configured."""
    from driftline.flows.config.driftline_toml import trusted_config

    _prepare_environment()
    from driftline.flows.scheduling.deployments import deployments_of
    from driftline.flows.scheduling.deployments import serve as serve_deployments

    configuration = trusted_config(config)
    deployments = deployments_of(configuration, executor=executor, prefix=prefix)
    if not serve_deployments(
        deployments, workspace=configuration.workspace, port=port, limit=limit, announce=typer.echo
    ):
        say("This machine is already serving them.")
    return DONE


def _prepare_environment() -> None:
    """Set the variables that Prefect reads on import, for this process and its children."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
