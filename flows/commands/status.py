"""Define ``driftline status``, ``sources``, ``runs`` and ``report``: a workspace's contents, state and history."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, JsonOption, WorkspaceOption, app, show
from driftline.flows.config.which_workspace import open_for_reading
from driftline.flows.output.plain_text import print_json, printable, say
from driftline.storage.entities import DEFAULT_PARTS
from driftline.storage.errors import UsageError, WorkspaceNotFound

_FIRST_STEPS = """
  driftline index .               index this folder
  driftline search "your words"   search the index
  driftline grep "your words" .   search files without an index
  driftline --help                all commands"""
_NEXT_STEPS = """
  driftline search "your words"   search it
  {index:<30}  update the index of this folder
  driftline runs                  the history of runs
  driftline --help                all commands"""


def show_next_steps() -> int:
    """Print the state of this folder and the next steps, for ``driftline`` without a command."""
    try:
        stats = open_for_reading(None).stats()
    except WorkspaceNotFound as error:
        say(f"Nothing is indexed here yet: {error.what[0].lower()}{error.what[1:]} ({error.where}).")
        print(_FIRST_STEPS)
        return DONE
    from driftline.flows.output.terminal_reports import print_status

    print_status(asdict(stats))
    named = [source["entity"] for source in stats.sources if source["uri"] == os.path.realpath(".")]
    is_default = len(named) != 1 or {*named[0].split("/")[:-1]} <= DEFAULT_PARTS
    index = "driftline index ." if is_default else f"driftline index . --entity {printable(named[0])}"
    print(_NEXT_STEPS.format(index=index))
    return DONE


@app.command()
def status(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """Show the contents and state of the workspace."""
    opened = open_for_reading(workspace)
    from driftline.flows.output.terminal_reports import print_status
    from driftline.storage.workspace.records import read_copy_record

    copied = read_copy_record(opened.objects)
    of = {"copy_of": copied.origin, "pulled": copied.pulled.isoformat()} if copied is not None else {}
    show({**asdict(opened.stats()), **of}, as_json, print_status)
    return DONE


@app.command()
def sources(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """List the sources of the workspace."""
    stats = open_for_reading(workspace).stats()
    from driftline.flows.output.terminal_reports import print_sources

    show({"workspace": stats.workspace, "sources": list(stats.sources)}, as_json, print_sources)
    return DONE


@app.command()
def runs(
    workspace: WorkspaceOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of runs.")] = 20,
    as_json: JsonOption = False,
) -> int:
    """List the runs of the workspace, newest first."""
    opened = open_for_reading(workspace)
    from driftline.flows.output.report_page import newest_runs, to_row
    from driftline.flows.output.terminal_reports import print_runs
    from driftline.flows.search import searches_by_hour

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
            help="Output file. Default: report.html in the workspace, or ./driftline-report.html if the workspace "
            "is in a bucket.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Include at most this many runs, newest first.")] = 200,
    as_json: JsonOption = False,
) -> int:
    """Write an HTML page about the workspace: growth, run costs, deltas, recall and search times.

    The page is a single, self-contained file.
    """
    opened = open_for_reading(workspace)
    from datetime import UTC, datetime

    from driftline.flows.config.driftline_toml import prices_for
    from driftline.flows.output.report_page import newest_runs, render
    from driftline.flows.search import searches_by_hour
    from driftline.storage.layout import REPORT

    recent_runs = newest_runs(opened, limit, searches_by_hour(opened))
    page = render(opened.stats(), recent_runs, datetime.now(UTC), prices_for()).encode("utf-8", "backslashreplace")
    if out is None and opened.local_path is not None:  # index runs must not pick up the report
        opened.objects.delete([REPORT])
        opened.objects.create(REPORT, page)
        out = Path(opened.local_path, REPORT)
    else:
        try:
            if out is None:
                out = Path("driftline-report.html")
                out.unlink(missing_ok=True)  # it may be a link created by another user
            out.write_bytes(page)
        except OSError as error:
            what = f"Cannot write the report ({error.strerror})"
            raise UsageError(what, str(out), "Choose another file.") from error
    if as_json:
        print_json({"workspace": opened.objects.uri, "report": str(out.resolve()), "runs": len(recent_runs)})
    else:
        say(f"{out}: {len(recent_runs):,} {'run' if len(recent_runs) == 1 else 'runs'}")
    return DONE
