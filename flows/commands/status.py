"""Define ``driftline status`` and ``sources``: the contents and state of a workspace."""

from __future__ import annotations

from dataclasses import asdict

from driftline.flows.commands.app import DONE, JsonOption, WorkspaceOption, app, show
from driftline.flows.commands.search import open_workspace
from driftline.flows.config.locate import workspace_for_reading
from driftline.flows.output.plain_text import say
from driftline.storage.errors import WorkspaceNotFound

_FIRST_STEPS = """
  driftline index .               index this folder
  driftline search "your words"   search the index
  driftline grep "your words" .   search files without an index
  driftline --help                all commands"""
_NEXT_STEPS = """
  driftline search "your words"   search it
  driftline index .               update the index of this folder
  driftline runs                  the history of runs
  driftline --help                all commands"""


def orient() -> int:
    """Print the state of this folder and the next steps, for ``driftline`` without a command."""
    try:
        target = workspace_for_reading(None)
        stats = open_workspace(target).stats()
    except WorkspaceNotFound as error:
        say(f"Nothing is indexed here yet: {error.what[0].lower()}{error.what[1:]} ({error.where}).")
        print(_FIRST_STEPS)
        return DONE
    from driftline.flows.output.rich_tables import print_status

    print_status(asdict(stats))
    print(_NEXT_STEPS)
    return DONE


@app.command()
def status(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """Show the contents and state of the workspace."""
    target = workspace_for_reading(workspace)
    from driftline.flows.output.rich_tables import print_status
    from driftline.storage.workspace.copies import read_copy_record

    opened = open_workspace(target)
    copied = read_copy_record(opened.objects)
    of = {"copy_of": copied.origin, "pulled": copied.pulled.isoformat()} if copied is not None else {}
    show({**asdict(opened.stats()), **of}, as_json, print_status)
    return DONE


@app.command()
def sources(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """List the sources of the workspace."""
    target = workspace_for_reading(workspace)
    from driftline.flows.output.rich_tables import print_sources

    stats = open_workspace(target).stats()
    show({"workspace": stats.workspace, "sources": list(stats.sources)}, as_json, print_sources)
    return DONE
