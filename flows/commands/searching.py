"""``driftline search``, ``status`` and ``sources``: what a workspace answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from driftline.flows.commands.app import DONE, NOTHING_FOUND, ConfigOption, JsonOption, WorkspaceOption, app
from driftline.flows.config.locate import workspace_for_reading

if TYPE_CHECKING:
    from driftline.storage.lines.filters import LineFilter
    from driftline.storage.workspace.workspace import Workspace


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
    globs: Annotated[list[str] | None, typer.Option("--glob", metavar="GLOB", help="Only files like this.")] = None,
    exts: Annotated[list[str] | None, typer.Option("--ext", metavar="EXT", help="Only files with this ending.")] = None,
    entities: Annotated[
        list[str] | None,
        typer.Option("--entity", metavar="PATH", help="Only this source, or the sources below org:acme/project:alpha."),
    ] = None,
    named: Annotated[
        str | None, typer.Option("--in", metavar="NAME", help="Only in this named workspace of driftline.toml.")
    ] = None,
    mode: Annotated[
        Literal["hybrid", "vector", "text"], typer.Option(help="By words and meaning, by meaning, or by words.")
    ] = "hybrid",
    strategy: Annotated[
        Literal["auto", "prefilter", "postfilter", "hybrid"],
        typer.Option(help="When filters are applied; all but auto are for comparison."),
    ] = "auto",
    explain: Annotated[bool, typer.Option("--explain", help="Say what the search did, and how long it took.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find the lines that answer QUERY. Exit code 1 when there are none."""
    within: LineFilter | None = None
    if named is not None:
        from driftline.flows.config.toml_file import named_workspace_filter, open_config

        configuration = open_config(config)
        within = named_workspace_filter(configuration, named)
        workspace = workspace or configuration.workspace
    target = workspace_for_reading(workspace)
    from driftline.flows.output.terminal import print_explanation, print_json, print_search
    from driftline.storage.entities import Entity
    from driftline.storage.lines.filters import LineFilter
    from driftline.tasks.search.query import search as search_lines

    opened = _open(target)
    where = LineFilter(
        entities=tuple(Entity.parse(path, opened.config.hierarchy) for path in entities) if entities else None,
        paths=tuple(paths) if paths else None,
        dirs=tuple(dirs) if dirs else None,
        globs=tuple(globs) if globs else None,
        exts=tuple(exts) if exts else None,
        any_of=(within,) if within else None,
    )
    result = search_lines(
        opened,
        query,
        top_k=top_k,
        max_distance=max_distance,
        n_lines=n_lines,
        where=where,
        mode=mode,
        strategy=strategy,
        explain=explain,
    ).to_dict()
    if as_json:
        print_json(result)
    else:
        if explain:
            print_explanation(result["explanation"])
        print_search(result, _local_folders(target, result["results"]) if sys.stdout.isatty() else None)
    return DONE if result["results"] else NOTHING_FOUND


def _open(workspace: str) -> Workspace:
    """The workspace, with the storage options of ``driftline.toml`` if it is the one named there."""
    from driftline.flows.config.toml_file import options_for
    from driftline.storage.workspace.workspace import Workspace

    return Workspace.open(workspace, options_for(workspace))


def _local_folders(workspace: str, hits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The folder of each local source that has hits, for links."""
    from driftline.flows.config.paths import local_path
    from driftline.storage.entities import Entity

    opened = _open(workspace)
    folders: dict[str, str] = {}
    for entity in {hit["source"] for hit in hits}:
        record = opened.source(Entity.parse(entity, opened.config.hierarchy))
        if record is not None and local_path(record.uri) is not None:
            folders[entity] = record.uri
    return folders


@app.command()
def status(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """Show what the workspace holds."""
    target = workspace_for_reading(workspace)
    from driftline.flows.output.terminal import print_json, print_status

    result = asdict(_open(target).stats())
    if as_json:
        print_json(result)
    else:
        print_status(result)
    return DONE


@app.command()
def sources(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """List the sources of the workspace."""
    target = workspace_for_reading(workspace)
    from driftline.flows.output.terminal import print_json, print_sources

    stats = _open(target).stats()
    result = {"workspace": stats.workspace, "sources": list(stats.sources)}
    if as_json:
        print_json(result)
    else:
        print_sources(result)
    return DONE
