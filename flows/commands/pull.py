"""Define ``driftline pull``: a copy of a workspace on the local disk that follows the original."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from driftline.flows.commands.app import DONE, JsonOption, app, show
from driftline.flows.config.environment import absolute_workspace
from driftline.flows.output.plain_text import say_done


@app.command()
def pull(
    origin: Annotated[str, typer.Argument(metavar="ORIGIN", help="The workspace to copy: a path or URI.")],
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Directory of the copy; default: the last name in ORIGIN.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Copy the newest version of a workspace to a local disk, to search it offline and without credentials.

    Later pulls fetch only new files. Searches see either the old or the new version.
    """
    from driftline.flows.config.driftline_toml import options_for
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.pull import PullRequest, pull_workspace

    uri = absolute_workspace(origin)
    request = PullRequest(uri, directory or uri.rstrip("/").rpartition("/")[2], options_for(uri))
    with open_progress() as progress:
        report = pull_workspace(request, progress)
    show(report.to_dict(), as_json, _print)
    return DONE


def _print(report: dict[str, Any]) -> None:
    files = f"{report['fetched']:,} of {report['files']:,} files fetched"
    say_done(f"{report['copy']}: {files}, {report['bytes'] / 1e6:,.1f} MB, in {report['seconds']:.1f} s")
