"""Define ``driftline fleet``: list the repositories on git hosts, index them, and show their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    DONE,
    FAILED,
    Commands,
    ConfigOption,
    JsonOption,
    WorkspaceOption,
    app,
    parameters,
    reporting_what_was_committed,
    show,
)
from driftline.flows.config.index_request import FLEET_OPTIONS, OPTIONS
from driftline.flows.config.which_workspace import workspace_for_indexing
from driftline.storage.option_table import spread

if TYPE_CHECKING:
    from driftline.flows.output.run_reports import FleetsReport
    from driftline.flows.runs.fleet import FleetRequest


fleet = Commands(help="Discover the repositories of the fleets in driftline.toml, and index them.")


app.add_typer(fleet, name="fleet")


RetryOption = Annotated[bool, typer.Option("--retry", help="Retry failing repositories now, ignoring their backoff.")]


@fleet.command(name="list")
def list_repositories(
    config: ConfigOption = None, workspace: WorkspaceOption = None, as_json: JsonOption = False
) -> int:
    """List the repositories on the hosts, and why some are excluded. Writes nothing."""
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.fleet import list_fleets

    with open_progress() as progress:
        report = list_fleets(_fleet_request(config, workspace), progress)
    return _show_fleets(report, as_json, everything=True)


@fleet.command()
@spread("given", parameters(OPTIONS.offered_in("command", "dry_run") | FLEET_OPTIONS))
def sync(
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    retry: RetryOption = False,
    *,
    given: dict[str, Any],
    as_json: JsonOption = False,
) -> int:
    """Index the repositories that changed, in one run, and retire missing ones.

    Exit code 3 if a repository fails or a listing is incomplete; the sync continues with the others.
    """
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.fleet import sync_fleets

    request = _fleet_request(config, workspace, given, retry=retry)
    with reporting_what_was_committed(), open_progress() as progress:
        report = sync_fleets(request, progress)
    return _show_fleets(report, as_json)


@fleet.command()
def status(config: ConfigOption = None, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """Show each repository after the last sync: the indexed commit, lag, and failures. Contacts no host."""
    from driftline.flows.runs.fleet import fleet_status

    return _show_fleets(fleet_status(_fleet_request(config, workspace)), as_json, everything=True)


def _show_fleets(report: FleetsReport, as_json: bool, *, everything: bool = False) -> int:
    """Print the report, and return the exit code."""
    from driftline.flows.output.terminal_reports import print_fleets

    show(report.to_dict(), as_json, lambda _: print_fleets(report, everything))
    return FAILED if report.failures else DONE


def _fleet_request(
    config: str | None, workspace: str | None, given: Mapping[str, Any] | None = None, *, retry: bool = False
) -> FleetRequest:
    from driftline.flows.config.driftline_toml import open_config
    from driftline.flows.runs.fleet import FleetRequest

    configuration = open_config(config)
    return FleetRequest.of(
        configuration, workspace_for_indexing(workspace, (), configuration), given or {}, retry=retry
    )
