"""``driftline runs`` and ``report``: what runs did, from the run history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, JsonOption, WorkspaceOption, app
from driftline.flows.config.locate import workspace_for_reading
from driftline.storage.errors import UsageError


@app.command()
def runs(
    workspace: WorkspaceOption = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20,
    as_json: JsonOption = False,
) -> int:
    """List what was done to the workspace, newest first."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.toml_file import options_for
    from driftline.flows.output.run_series import newest_runs, to_row
    from driftline.flows.output.terminal import print_json, print_runs
    from driftline.storage.workspace.workspace import Workspace

    opened = Workspace.open(target, options_for(target))
    result = {"workspace": opened.objects.uri, "runs": [to_row(run) for run in newest_runs(opened, limit)]}
    if as_json:
        print_json(result)
    else:
        print_runs(result)
    return DONE


@app.command()
def report(
    workspace: WorkspaceOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write the page.")] = Path(
        "driftline-report.html"
    ),
    limit: Annotated[int, typer.Option(min=1, help="Over at most so many runs, the newest.")] = 200,
    as_json: JsonOption = False,
) -> int:
    """Write a page about the workspace: growth, cost of runs, deltas, recall and search times. It loads nothing."""
    target = workspace_for_reading(workspace)
    from datetime import UTC, datetime

    from driftline.flows.config.toml_file import options_for, prices_for
    from driftline.flows.output.html_report import render
    from driftline.flows.output.run_series import newest_runs
    from driftline.flows.output.terminal import print_json, printable
    from driftline.storage.workspace.workspace import Workspace

    opened = Workspace.open(target, options_for(target))
    found = newest_runs(opened, limit)
    page = render(opened.stats(), found, datetime.now(UTC), prices_for())
    try:
        out.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError("The report cannot be written", str(out), f"{error.strerror}.") from error
    if as_json:
        print_json({"workspace": opened.objects.uri, "report": str(out.resolve()), "runs": len(found)})
    else:
        typer.echo(f"{printable(str(out))}: {len(found):,} runs")
    return DONE
