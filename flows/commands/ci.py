"""Define ``driftline ci``: index a commit, and report to the build log and job summary."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    DONE,
    FAILED,
    ConfigOption,
    JsonOption,
    WorkspaceOption,
    app,
    parameters,
    show,
)
from driftline.flows.commands.index import DeepModelOption
from driftline.flows.config.index_request import OPTIONS, IndexRequest
from driftline.flows.config.which_workspace import references_for, workspace_for_indexing
from driftline.flows.output.plain_text import say, warn
from driftline.storage.defaults import DEFAULT_CI_TIMEOUT_SECONDS
from driftline.storage.errors import DriftlineError, UsageError
from driftline.storage.option_table import Options, given_values, spread

if TYPE_CHECKING:
    from driftline.flows.ci.job import CiReport, CiRequest
    from driftline.flows.config.driftline_toml import Configuration

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"

SourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE...",
        help="Default: the sources of driftline.toml in this working tree, or this folder if there is no such file.",
    ),
]
DeploymentOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Start this Prefect deployment and wait for it, instead of indexing here."),
]
TimeoutOption = Annotated[
    float, typer.Option(min=0.0, metavar="SECONDS", help="Wait this long for a deployment to finish.")
]
MaxStalenessOption = Annotated[
    float | None,
    typer.Option(min=0.0, metavar="SECONDS", help="Do not index; fail if the index lags the commit by more than this."),
]
BranchOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Index only builds of this branch, into the main index; skip all others."),
]
DefaultBranchOption = Annotated[
    str | None,
    typer.Option(
        "--default-branch",
        metavar="NAME",
        help="Builds of this branch update the main index; builds of other branches get their own index. "
        "Default: from CI or git.",
    ),
]
DuplicatesOption = Annotated[
    str | None,
    typer.Option(
        "--duplicates-of", metavar="main", help="For each new function of a branch, report similar existing code."
    ),
]
SummaryOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"Append a Markdown summary. Default: ${SUMMARY_VARIABLE}, if it is set.",
        rich_help_panel="Output",
    ),
]


_OF_RUNS = Options(
    {name: row for name, row in OPTIONS.offered_in("command").items() if name not in ("branch", "by_commit", "dry_run")}
)
"""The options of an index run. A build decides on its branch, and always indexes by commit."""
_FLAGS = {name: row.flag.partition("/")[0] for name, row in _OF_RUNS.items()}
_OF_RUNS_HERE = {"--default-branch", "--duplicates-of", "--deep-model", *_FLAGS.values()}
_OF_SOURCES = {"--entity", "--include", "--exclude"}
_IGNORED_WITH = {
    "--deployment": {"SOURCE", "--workspace", "--config", "--max-staleness", *_OF_RUNS_HERE},
    "--max-staleness": _OF_RUNS_HERE,
    "--config": {"SOURCE", *_OF_SOURCES},
    "--branch": {"--default-branch", "--duplicates-of"},
}


def _refuse_ignored(given: Set[str]) -> None:
    """Raise UsageError if an option in ``given`` would have no effect beside another."""
    for option in _IGNORED_WITH.keys() & given:
        if ignored := _IGNORED_WITH[option] & given:
            raise UsageError(f"{option} cannot be combined with {', '.join(sorted(ignored))}", fix="Omit one of them.")


@app.command("ci")
@spread("given", parameters(_OF_RUNS))
def ci(
    sources: SourcesArgument = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    deployment: DeploymentOption = None,
    timeout: TimeoutOption = DEFAULT_CI_TIMEOUT_SECONDS,
    max_staleness: MaxStalenessOption = None,
    branch: BranchOption = None,
    default_branch: DefaultBranchOption = None,
    duplicates_of: DuplicatesOption = None,
    *,
    given: dict[str, Any],
    deep_model: DeepModelOption = None,
    summary: SummaryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Update the index to a build's commit, scanning only files that changed in git if possible.

    Exit code 3 if it fails, or if the index is older than --max-staleness allows.
    """
    given = given_values(given)
    flags = {
        "SOURCE": sources,
        "--workspace": workspace,
        "--config": config,
        "--deployment": deployment,
        "--max-staleness": max_staleness is not None,
        "--branch": branch,
        "--default-branch": default_branch,
        "--duplicates-of": duplicates_of,
        "--deep-model": deep_model,
    }
    _refuse_ignored({option for option, value in flags.items() if value} | {_FLAGS[name] for name in given})
    if deep_model and given.get("deep") is not False:
        given["deep"] = deep_model
    from driftline.flows.ci.build import Build
    from driftline.flows.ci.job import CiReport, CiRequest, sources_here

    configuration = None if sources or deployment else _configuration(config)
    names = tuple(sources or (".",))
    if configuration is not None:
        if own := _OF_SOURCES & {_FLAGS[name] for name in given}:
            fix = f"Specify SOURCE, or omit {', '.join(sorted(own))}."
            raise UsageError("The sources and their filters come from driftline.toml", str(configuration.path), fix)
        given = configuration.run_options() | given
    found = names if configuration is None else sources_here(configuration, ".")
    target = workspace_for_indexing(workspace, names, configuration)
    folders = [source if isinstance(source, str) else source.uri for source in found]
    builds = Build.of_sources(os.environ, folders, branch or default_branch)
    report = CiReport(builds[0])
    request = CiRequest(
        builds=builds,
        run=IndexRequest(found, target, keep_going=len(found) > 1, references=references_for(target), **given),
        deployments=tuple(deployment or ()),
        timeout_seconds=timeout,
        max_staleness_seconds=max_staleness,
        only_branch=branch,
        default_branch=default_branch,
        duplicates_of=duplicates_of,
    )
    _run(request, report, summary or _summary_file())
    show(report.to_dict(), as_json, lambda _: _print(report))
    return FAILED if report.failed else DONE


def _configuration(config: str | None) -> Configuration | None:
    from driftline.flows.config.driftline_toml import locate_config

    return locate_config(config)


def _summary_file() -> Path | None:
    """Return the summary file set by GitHub Actions."""
    path = os.environ.get(SUMMARY_VARIABLE)
    return Path(path) if path else None


def _run(request: CiRequest, report: CiReport, summary: Path | None) -> None:
    """Run ``request``, fill in ``report`` and append to ``summary``, even if the run fails."""
    from driftline.flows.ci.job import run_ci
    from driftline.flows.output.progress import open_progress

    try:
        with open_progress() as progress:
            run_ci(request, report, progress)
    except DriftlineError as error:
        _summarize(report, summary, error)
        raise
    _summarize(report, summary, None)


def _print(report: CiReport) -> None:
    from driftline.flows.ci.job import lines

    for line in lines(report):
        say(line)


def _summarize(report: CiReport, file: Path | None, error: DriftlineError | None) -> None:
    if file is None:
        return
    from driftline.flows.ci.job import markdown

    try:
        with file.open("a", encoding="utf-8", errors="backslashreplace") as summary:
            summary.write(markdown(report, error))
    except OSError as failure:  # the run itself finished, or raises its own error
        warn(f"the summary was not written: {file}: {failure.strerror}")
