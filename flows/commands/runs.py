"""Define ``driftline runs`` and ``report``: the run history as a table and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, JsonOption, WorkspaceOption, app, show
from driftline.flows.config.locate import workspace_for_reading
from driftline.flows.output.plain_text import print_json, say
from driftline.storage.errors import UsageError


@app.command()
def runs(
    workspace: WorkspaceOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of runs.")] = 20,
    as_json: JsonOption = False,
) -> int:
    """List the runs of the workspace, newest first."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.driftline_toml import options_for
    from driftline.flows.output.rich_tables import print_runs
    from driftline.flows.output.run_history import newest_runs, searches_by_hour, to_row
    from driftline.storage.workspace.workspace import Workspace

    opened = Workspace.open(target, options_for(target))
    result = {
        "workspace": opened.objects.uri,
        "runs": [to_row(run) for run in newest_runs(opened, limit, searches_by_hour(opened))],
    }
    show(result, as_json, print_runs)
    return DONE


@app.command()
def report(
    workspace: WorkspaceOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write. Default: report.html in the workspace, or for one in a bucket, "
            "driftline-report.html here.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of runs, counted from the newest.")] = 200,
    as_json: JsonOption = False,
) -> int:
    """Write an HTML page about the workspace: growth, run costs, deltas, recall and search times.

    The page is one file that loads nothing else.
    """
    target = workspace_for_reading(workspace)
    from datetime import UTC, datetime

    from driftline.flows.config.driftline_toml import options_for, prices_for
    from driftline.flows.output.html_report import render
    from driftline.flows.output.run_history import newest_runs, searches_by_hour
    from driftline.storage.layout import REPORT
    from driftline.storage.workspace.workspace import Workspace

    opened = Workspace.open(target, options_for(target))
    recent_runs = newest_runs(opened, limit, searches_by_hour(opened))
    page = render(opened.stats(), recent_runs, datetime.now(UTC), prices_for()).encode("utf-8", "backslashreplace")
    if out is None and opened.local_path is not None:  # a run over the sources must not index the page
        opened.objects.delete([REPORT])
        opened.objects.create(REPORT, page)
        out = Path(opened.local_path, REPORT)
    else:
        try:
            if out is None:
                out = Path("driftline-report.html")
                out.unlink(missing_ok=True)  # it may be a link that somebody else has made
            out.write_bytes(page)
        except OSError as error:
            raise UsageError("The report cannot be written", str(out), f"{error.strerror}.") from error
    if as_json:
        print_json({"workspace": opened.objects.uri, "report": str(out.resolve()), "runs": len(recent_runs)})
    else:
        say(f"{out}: {len(recent_runs):,} {'run' if len(recent_runs) == 1 else 'runs'}")
    return DONE
