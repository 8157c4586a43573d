"""Define ``driftline watch`` and ``pull``: keep the index of a folder, or a copy of a workspace, up to date."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import DONE, JsonOption, ModelOption, WorkspaceOption, app, show
from driftline.flows.config.environment import absolute_workspace
from driftline.flows.config.locate import workspace_for_indexing
from driftline.flows.output.plain_text import say_done, warn
from driftline.storage.errors import DeletionRefused, DriftlineError

if TYPE_CHECKING:
    from driftline.flows.output.run_reports import IndexReport
    from driftline.flows.runs.watch import Watcher
    from driftline.storage.workspace.workspace import Workspace

WAIT_SECONDS = 30.0
"""How long a run waits for another run of the same source."""

SourceArgument = Annotated[str, typer.Argument(metavar="[SOURCE]", help="The folder; default: the current folder.")]


@app.command()
def watch(source: SourceArgument = ".", workspace: WorkspaceOption = None, model: ModelOption = None) -> int:
    """Update the index of SOURCE, then index each file as it is saved. Stop with Ctrl+C."""
    watcher = watcher_of(source, workspace_for_indexing(workspace, [source], None), model)
    with suppress(KeyboardInterrupt):  # the usual way to stop it
        watcher.run()
    warn(f"stopped; continue with: driftline watch {source}")
    return DONE


def watcher_of(source: str, workspace: str, model: str | None = None) -> Watcher:
    """Return a watcher of ``source`` that reports each run on standard error."""
    from driftline.flows.runs.plan import IndexRequest
    from driftline.flows.runs.watch import Watcher

    # One process embeds a user's edits faster than it could start others.
    request = IndexRequest((source,), workspace, model=model, executor="inline", wait_seconds=WAIT_SECONDS)
    return Watcher(request, _report, _failed)


def _report(report: IndexReport) -> None:
    for source in report.sources:
        states = ", ".join(f"{count:,} {state}" for state, count in source.states.items() if count)
        warn(f"{source.uri}: {states or 'no documents'} after {report.seconds:.1f} s")


def _failed(error: DriftlineError) -> None:
    warn(str(error) if isinstance(error, DeletionRefused) else f"{error} Trying again.")


@contextmanager
def watching_sources(workspace: Workspace) -> Iterator[None]:
    """Update each local source of ``workspace`` on changes, in its own thread, until the context exits."""
    from driftline.storage.sources.source import known_source

    local = [record.uri for _, record in workspace.sources() if known_source(record.uri).is_local]
    stop = threading.Event()

    def run(uri: str) -> None:
        try:
            watcher_of(uri, workspace.objects.uri).run(stop)
        except DriftlineError as error:
            warn(f"{uri} is no longer watched: {error}")

    threads = [threading.Thread(target=run, args=(uri,), name=f"watch {uri}") for uri in local]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@app.command()
def pull(
    origin: Annotated[str, typer.Argument(metavar="ORIGIN", help="The workspace to copy: a path or URI.")],
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Directory of the copy; default: the last name in ORIGIN.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Copy the newest version of a workspace to local disk, to search it offline and without credentials.

    Later pulls fetch only new files. A search sees either the old or the new version.
    """
    from driftline.flows.config.driftline_toml import options_for
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.pull import PullRequest, pull_workspace

    uri = absolute_workspace(origin)
    request = PullRequest(uri, directory or uri.rstrip("/").rpartition("/")[2], options_for(uri))
    with open_progress() as progress:
        report = pull_workspace(request, progress)
    show(report.to_dict(), as_json, _print_pull)
    return DONE


def _print_pull(report: dict[str, Any]) -> None:
    files = f"{report['fetched']:,} of {report['files']:,} files fetched"
    say_done(f"{report['copy']}: {files}, {report['bytes'] / 1e6:,.1f} MB, in {report['seconds']:.1f} s")
