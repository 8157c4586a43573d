"""Define ``driftline agents``: give coding agents access to the MCP server."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.flows.commands.app import DONE, Commands, JsonOption, WorkspaceOption, app
from driftline.flows.output.plain_text import print_json, say, warn
from driftline.storage.environment import with_home
from driftline.storage.errors import UsageError, WorkspaceNotFound
from driftline.storage.layout import CONFIG

if TYPE_CHECKING:
    from driftline.flows.config.coding_agents import InstallLevel

agents = Commands(help="Add the MCP server and its instructions to coding agents.", rich_markup_mode=None)
app.add_typer(agents, name="agents")


def _completed(incomplete: str) -> list[str]:
    from driftline.flows.config.coding_agents import AGENTS

    return [name for name in AGENTS if name.startswith(incomplete)]


NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="AGENT...", help="Agents, as listed by 'agents list'.", autocompletion=_completed),
]
AllOption = Annotated[bool, typer.Option("--all", help="All agents.")]
UserOption = Annotated[
    bool, typer.Option("--user/--project", help="Configure agents for this user, or in the current folder.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report what would change; write nothing.")]


@agents.command("install")
def install(
    names: NamesArgument = None,
    every: AllOption = False,
    user: UserOption = False,
    workspace: WorkspaceOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Add Driftline to AGENT. Keeps comments and other entries; backs up an existing file first."""
    return _change(names, every, user, workspace, dry_run, as_json, remove=False)


@agents.command("uninstall")
def uninstall(
    names: NamesArgument = None,
    every: AllOption = False,
    user: UserOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove Driftline from AGENT."""
    return _change(names, every, user, None, dry_run, as_json, remove=True)


@agents.command("list")
def list_agents(as_json: JsonOption = False) -> int:
    """List the agents, and for each, where Driftline is installed."""
    from driftline.flows.config.coding_agents import AGENTS

    here, home = Path.cwd(), with_home("~")
    found = [
        {"agent": name, "project": _state(name, "project", here), "user": _state(name, "user", home)} for name in AGENTS
    ]
    if as_json:
        print_json({"agents": found})
        return DONE
    for agent in found:
        where = [scope for scope in ("project", "user") if agent[scope]]
        state = "unreadable" if None in agent.values() else "not installed"
        say(f"{agent['agent']:<12} {', '.join(where) or state}")
    return DONE


def _state(name: str, scope: InstallLevel, folder: Path) -> bool | None:
    """Return whether Driftline is installed for an agent; warn and return None if its configuration cannot be read."""
    from driftline.flows.config.coding_agents import is_installed

    try:
        return is_installed(name, scope, folder)
    except UsageError as error:
        warn(f"{name}: {error}")
        return None


def _change(
    names: list[str] | None,
    every: bool,
    user: bool,
    workspace: str | None,
    dry_run: bool,
    as_json: bool,
    *,
    remove: bool,
) -> int:
    from driftline.flows.config.coding_agents import AGENTS, agents_in, changes

    unknown = [name for name in names or () if name not in AGENTS]
    if unknown or bool(names) == every:
        what = f"No such agent: {unknown[0]}" if unknown else "Specify agents, or use --all"
        raise UsageError(what, fix=f"Known agents: {', '.join(AGENTS)}.")
    scope: InstallLevel = "user" if user else "project"
    folder = with_home("~") if user else Path.cwd()
    chosen = agents_in(scope) if every else list(names or ())
    found = changes(chosen, scope, folder, _command(user, workspace), remove=remove)
    if not remove:
        _warn_if_it_cannot_start(user, workspace)
    for change in found:
        if not dry_run:
            change.apply()
        if not as_json:
            verb = "delete" if change.after is None else "create" if change.before is None else "change"
            say(f"{'would ' if dry_run else ''}{verb}{'' if dry_run else 'd'} {change.path}  ({change.agent})")
    if as_json:
        print_json({"changed": [{"agent": each.agent, "path": str(each.path)} for each in found], "dry_run": dry_run})
        return DONE
    for name in [name for name in AGENTS if name not in chosen] if every and not remove else ():
        warn(f"{name} has no project configuration: use --user.")
    if not found:
        warn("Nothing to change.")
    return DONE


def _warn_if_it_cannot_start(user: bool, workspace: str | None) -> None:
    """Warn if the server has nothing to serve, or if agents started elsewhere do not find the program."""
    from driftline.flows.config.which_workspace import workspace_for_reading
    from driftline.flows.config.workspace_names import local_path

    if workspace is not None or not user:
        try:
            found = workspace_for_reading(workspace)
        except WorkspaceNotFound:
            found = str(Path.cwd() / ".driftline")
        location = local_path(found)
        if location is not None and not (location / CONFIG).exists():
            warn(f"There is no index in {location}: run 'driftline index' before you start an agent.")
    if not user and _on_path_outside_environment() is None:
        where = shutil.which("driftline") or f"{Path(sys.executable).parent}/driftline"
        warn(f"Programs that you start outside this shell do not find {where}: put it on the PATH, or use --user.")


def _on_path_outside_environment() -> str | None:
    """Return the program on the PATH, ignoring the active virtual environment, which only this shell uses."""
    own = {str(Path(sys.prefix, "bin"))} if sys.prefix != sys.base_prefix else set()
    folders = [each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if each.rstrip("/") not in own]
    return shutil.which("driftline", path=os.pathsep.join(folders))


def _command(user: bool, workspace: str | None) -> list[str]:
    """Return the command that starts the server: its name for a shared project, its path for a user."""
    found = shutil.which("driftline", path=str(Path(sys.executable).parent)) or shutil.which("driftline")
    program = found if user and found else "driftline"
    if workspace is None:
        return [program, "mcp"]
    from driftline.flows.config.workspace_names import absolute_workspace

    return [program, "mcp", "--workspace", absolute_workspace(workspace)]
