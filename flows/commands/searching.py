"""``driftline search``, ``status`` and ``sources``: what a workspace answers."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, NOTHING_FOUND, JsonOption, WorkspaceOption, app
from driftline.flows.settings import workspace_for_reading


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for, in words or code.")],
    workspace: WorkspaceOption = None,
    top_k: Annotated[int, typer.Option(min=0, help="At most so many results.")] = 10,
    max_distance: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="Drop results that are farther (1 - cosine).")
    ] = None,
    n_lines: Annotated[int, typer.Option("--n-lines", "-n", min=0, help="Lines of context on each side.")] = 3,
    paths: Annotated[list[str] | None, typer.Option("--path", metavar="PATH", help="Only in this file.")] = None,
    dirs: Annotated[list[str] | None, typer.Option("--dir", metavar="DIR", help="Only below this directory.")] = None,
    exts: Annotated[list[str] | None, typer.Option("--ext", metavar="EXT", help="Only files with this ending.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Find the lines that mean QUERY. Exit code 1 when there are none."""
    target = workspace_for_reading(workspace, os.environ, Path.cwd())
    from driftline.flows.display import print_json, print_search
    from driftline.tasks.search import search_workspace

    result = search_workspace(
        target,
        query,
        top_k=top_k,
        max_distance=max_distance,
        n_lines=n_lines,
        paths=tuple(paths or ()),
        dirs=tuple(dirs or ()),
        exts=tuple(exts or ()),
    ).to_dict()
    if as_json:
        print_json(result)
    else:
        print_search(result)
    return DONE if result["results"] else NOTHING_FOUND


@app.command()
def status(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """Show what the workspace holds."""
    target = workspace_for_reading(workspace, os.environ, Path.cwd())
    from driftline.flows.display import print_json, print_status
    from driftline.storage.workspace import Workspace

    result = asdict(Workspace.open(target).stats())
    if as_json:
        print_json(result)
    else:
        print_status(result)
    return DONE


@app.command()
def sources(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """List the sources of the workspace."""
    target = workspace_for_reading(workspace, os.environ, Path.cwd())
    from driftline.flows.display import print_json, print_sources
    from driftline.storage.workspace import Workspace

    stats = Workspace.open(target).stats()
    result = {"workspace": stats.workspace, "sources": list(stats.sources)}
    if as_json:
        print_json(result)
    else:
        print_sources(result)
    return DONE
