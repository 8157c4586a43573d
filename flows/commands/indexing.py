"""``driftline index`` and ``driftline remove``: what a workspace holds."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from driftline.flows.commands.app import (
    DONE,
    FAILED,
    ConfigOption,
    ExecutorOption,
    JsonOption,
    WorkersOption,
    WorkspaceOption,
    app,
)
from driftline.flows.config.defaults import DEFAULT_EXECUTOR, DEFAULT_MAX_DELETE_FRACTION, DEFAULT_MAX_FILE_BYTES
from driftline.flows.config.locate import workspace_for_indexing, workspace_for_reading
from driftline.storage.errors import UsageError


@app.command()
def index(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="SOURCE...", help="Folders, git work trees or bucket URIs.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All sources of driftline.toml instead.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    entity: Annotated[
        str | None, typer.Option(metavar="PATH", help="org:acme/project:alpha/source:web; default: from the name.")
    ] = None,
    include: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Index only what matches.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Leave out what matches.")] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A model2vec directory or name; default: an installed one."),
    ] = None,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    workers: WorkersOption = None,
    full: Annotated[bool, typer.Option("--full", help="Read and embed everything again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would change, write nothing.")] = False,
    max_delete_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Refuse to delete more of a source than this; 1 confirms.")
    ] = DEFAULT_MAX_DELETE_FRACTION,
    max_file_bytes: Annotated[int, typer.Option(min=0, help="Skip larger files.")] = DEFAULT_MAX_FILE_BYTES,
    rebind: Annotated[bool, typer.Option("--rebind", help="Let the entity move to another URI.")] = False,
    reembed: Annotated[bool, typer.Option("--reembed", help="Let the workspace move to another model.")] = False,
    wait: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Wait for another run of a source.")] = 0.0,
    indexes: Annotated[Literal["all", "text", "none"], typer.Option(help="Which search indexes to update.")] = "all",
    by_commit: Annotated[
        bool, typer.Option("--ci", help="Look only at what has changed since the commit indexed last, as driftline ci.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Bring the index in step with SOURCE: embed what is new or changed, delete what is gone.

    With --all, a source that fails does not stop the others; the exit code is 3 then.
    """
    from driftline.flows.config.toml_file import open_config
    from driftline.flows.output.terminal import print_index, print_json

    configuration = None
    if every:
        if sources or entity or include or exclude:
            fix = "Leave out SOURCE, --entity, --include and --exclude, or --all."
            raise UsageError("With --all the file says what to index", fix=fix)
        configuration = open_config(config)
    elif config or not sources:
        fix = "Name a folder or a bucket, or use --all for those of a driftline.toml."
        raise UsageError("--config goes with --all" if config else "No SOURCE was given", fix=fix)
    target = workspace_for_indexing(workspace, sources or (), configuration)
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.index_run import IndexRequest, index_sources
    from driftline.flows.runs.plan import requests_of

    request = IndexRequest(
        sources=requests_of(configuration.sources) if configuration else tuple(sources or ()),
        workspace=target,
        entity=entity,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        model=configuration.model if configuration and model is None else model,
        executor=executor,
        workers=workers,
        full=full,
        dry_run=dry_run,
        max_delete_fraction=max_delete_fraction,
        max_file_bytes=max_file_bytes,
        rebind=rebind,
        reembed=reembed,
        wait_seconds=wait,
        indexes=indexes,
        storage_options=configuration.options() if configuration else None,
        keep_going=every,
        by_commit=by_commit,
    )
    with open_progress() as progress:
        result = index_sources(request, progress).to_dict()
    if as_json:
        print_json(result)
    else:
        print_index(result, dry_run, configuration.prices if configuration else {})
    return FAILED if result["failed"] else DONE


@app.command()
def remove(
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="As 'driftline sources' lists it.")],
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Forget a source: delete its documents and lines from the index, never its files."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.toml_file import options_for
    from driftline.flows.output.terminal import print_json
    from driftline.flows.runs.index_run import remove_source

    options = options_for(target)
    result = remove_source(target, entity, storage_options=options).to_dict()
    if as_json:
        print_json(result)
    else:
        typer.echo(f"removed {result['entity']}: {result['documents']:,} documents, {result['lines']:,} lines")
    return DONE
