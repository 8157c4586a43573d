"""``driftline search``, ``status`` and ``sources``: what a workspace answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from driftline.flows.commands.app import DONE, NOTHING_FOUND, app, show
from driftline.flows.commands.options import (
    ConfigOption,
    JsonOption,
    MaxDistanceOption,
    NLinesOption,
    QueryArgument,
    TopKOption,
    WorkspaceOption,
)
from driftline.flows.config.locate import workspace_for_reading
from driftline.tasks.search.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K

if TYPE_CHECKING:
    from driftline.storage.lines.filters import LineFilter
    from driftline.storage.workspace.workspace import Workspace

PathsOption = Annotated[list[str] | None, typer.Option("--path", metavar="PATH", help="Only in this file.")]
DirsOption = Annotated[list[str] | None, typer.Option("--dir", metavar="DIR", help="Only below this directory.")]
GlobsOption = Annotated[list[str] | None, typer.Option("--glob", metavar="GLOB", help="Only in matching files.")]
ExtsOption = Annotated[list[str] | None, typer.Option("--ext", metavar="EXT", help="Only in files with this ending.")]
EntitiesOption = Annotated[
    list[str] | None,
    typer.Option("--entity", metavar="PATH", help="Only this source, or the sources below org:acme/project:alpha."),
]
NamedOption = Annotated[
    str | None, typer.Option("--in", metavar="NAME", help="Only in this named workspace of driftline.toml.")
]
ModeOption = Annotated[
    Literal["hybrid", "vector", "text"],
    typer.Option(help="Rank by words and meaning, by meaning alone, or by words alone."),
]
StrategyOption = Annotated[
    Literal["auto", "prefilter", "postfilter", "hybrid"],
    typer.Option(help="When filters apply; all values but auto are for comparison."),
]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Show what the search did and how long it took.")]


@app.command()
def search(
    query: QueryArgument,
    workspace: WorkspaceOption = None,
    top_k: TopKOption = DEFAULT_TOP_K,
    max_distance: MaxDistanceOption = None,
    n_lines: NLinesOption = DEFAULT_N_LINES,
    paths: PathsOption = None,
    dirs: DirsOption = None,
    globs: GlobsOption = None,
    exts: ExtsOption = None,
    entities: EntitiesOption = None,
    named: NamedOption = None,
    mode: ModeOption = "hybrid",
    strategy: StrategyOption = "auto",
    explain: ExplainOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find the lines that answer QUERY. Exit code 1 when there are none."""
    within: LineFilter | None = None
    if named is not None:
        within, default_workspace = _named(config, named)
        workspace = workspace or default_workspace
    target = workspace_for_reading(workspace)
    from driftline.storage.entities import Entity
    from driftline.storage.lines.filters import LineFilter
    from driftline.tasks.search.named_places import where_named
    from driftline.tasks.search.query import search as search_lines

    opened = _open(target)
    where = LineFilter(
        entities=tuple(Entity.parse(path, opened.config.hierarchy) for path in entities) if entities else None,
        globs=tuple(globs) if globs else None,
        exts=tuple(exts) if exts else None,
        any_of=(within,) if within else None,
        all_of=(
            *([where_named(opened, paths, "file")] if paths else []),
            *([where_named(opened, dirs, "folder")] if dirs else []),
        ),
    )
    report = search_lines(
        opened,
        query,
        top_k=top_k,
        max_distance=max_distance,
        n_lines=n_lines,
        where=where,
        mode=mode,
        strategy=strategy,
        explain=explain,
    )
    show(report.to_dict(), as_json, partial(_print_hits, target))
    return DONE if report.results else NOTHING_FOUND


def _named(config: str | None, name: str) -> tuple[LineFilter, str]:
    """The filter of a named workspace of ``driftline.toml``, and the workspace that the file names."""
    from driftline.flows.config.toml_file import named_workspace_filter, open_config

    configuration = open_config(config)
    return named_workspace_filter(configuration, name), configuration.workspace


def _print_hits(workspace: str, result: dict[str, Any]) -> None:
    from driftline.flows.output.terminal import print_explanation, print_search

    if "explanation" in result:
        print_explanation(result["explanation"])
    print_search(result, _local_folders(workspace, result["results"]) if sys.stdout.isatty() else None)


def _open(workspace: str) -> Workspace:
    """Open a workspace, with the storage options of ``driftline.toml`` if that file names it."""
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
    from driftline.flows.output.terminal import print_status

    show(asdict(_open(target).stats()), as_json, print_status)
    return DONE


@app.command()
def sources(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """List the sources of the workspace."""
    target = workspace_for_reading(workspace)
    from driftline.flows.output.terminal import print_sources

    stats = _open(target).stats()
    show({"workspace": stats.workspace, "sources": list(stats.sources)}, as_json, print_sources)
    return DONE
