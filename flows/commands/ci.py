"""``driftline ci``: the index after a commit, for the people and programs of a build."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.flows.commands.app import DONE, FAILED, ConfigOption, JsonOption, WorkspaceOption, app
from driftline.flows.config.defaults import DEFAULT_CI_TIMEOUT_SECONDS, DEFAULT_MAX_DELETE_FRACTION
from driftline.flows.config.locate import workspace_for_indexing
from driftline.storage.errors import DriftlineError, UsageError

if TYPE_CHECKING:
    from driftline.flows.ci.run import CiReport

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@app.command("ci")
def ci(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...", help="Default: those of driftline.toml in this work tree; without it, this folder."
        ),
    ] = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    deployment: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Start this deployment of Prefect and wait, instead of indexing here."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait for a deployment.")
    ] = DEFAULT_CI_TIMEOUT_SECONDS,
    max_staleness: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="SECONDS", help="Only check: fail if the index is older than the commit by more."
        ),
    ] = None,
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="Do nothing in builds of other branches.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A model2vec directory or name; default: an installed one.")
    ] = None,
    max_delete_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Refuse to delete more of a source than this; 1 confirms.")
    ] = DEFAULT_MAX_DELETE_FRACTION,
    wait: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Wait for another run of a source.")] = 0.0,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Append a summary in markdown. Default: ${SUMMARY_VARIABLE}, if it is set."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Bring the index in step with the commit of a build, looking only at what has changed where git can tell.

    Exit code 3 when it fails, or when the index is older than --max-staleness allows.
    """
    from driftline.flows.ci.build import Build
    from driftline.flows.ci.run import CiReport, CiRequest, run_ci, sources_here
    from driftline.flows.ci.summary import lines
    from driftline.flows.config.toml_file import find_config, load_config
    from driftline.flows.output.progress import open_progress
    from driftline.flows.output.terminal import print_json, printable

    if deployment and (sources or config or max_staleness is not None):
        raise UsageError("--deployment knows what to index", fix="Leave out SOURCE, --config and --max-staleness.")
    if sources and config:
        raise UsageError("--config says what to index", fix="Leave it out, or SOURCE.")
    path = None if sources or deployment else find_config(config)
    configuration = load_config(path) if path is not None else None
    names = tuple(sources or (".",))
    report = CiReport(Build.detect(os.environ, names[0]))
    request = CiRequest(
        build=report.build,
        sources=names if configuration is None else sources_here(configuration, "."),
        workspace=workspace_for_indexing(workspace, names, configuration),
        model=configuration.model if configuration and model is None else model,
        deployments=tuple(deployment or ()),
        timeout_seconds=timeout,
        max_staleness_seconds=max_staleness,
        only_branch=branch,
        wait_seconds=wait,
        max_delete_fraction=max_delete_fraction,
        storage_options=configuration.options() if configuration else None,
    )
    named = summary or (Path(given) if (given := os.environ.get(SUMMARY_VARIABLE)) else None)
    try:
        with open_progress() as progress:
            run_ci(request, report, progress)
    except DriftlineError as error:
        _summarise(report, named, error)
        raise
    _summarise(report, named, None)
    if as_json:
        print_json(report.to_dict())
    else:
        for line in lines(report):
            typer.echo(printable(line))
    return FAILED if report.failed else DONE


def _summarise(report: CiReport, file: Path | None, error: DriftlineError | None) -> None:
    if file is None:
        return
    from driftline.flows.ci.summary import markdown

    try:
        with file.open("a", encoding="utf-8", errors="backslashreplace") as summary:
            summary.write(markdown(report, error))
    except OSError as failure:  # what was asked for is done, or has its own error
        typer.echo(f"driftline: the summary was not written: {file}: {failure.strerror}", err=True)
