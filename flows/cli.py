"""The command line: ``driftline index | search | status | sources | remove | compact | cleanup | verify``.

Exit codes: 0 done or found, 1 nothing found, 2 wrong use or bad input, 3 failed. Heavy modules are imported
inside the commands, so that ``--help`` and wrong use answer at once.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal

import typer

from driftline.flows.logs import quiet_libraries
from driftline.flows.settings import (
    DEFAULT_MAX_DELTAS,
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_VERSION_RETENTION_SECONDS,
    workspace_for_indexing,
    workspace_for_reading,
)
from driftline.storage.errors import DriftlineError

DONE, NOTHING_FOUND, WRONG_USE, FAILED = 0, 1, 2, 3
_INTERRUPTED = 130  # what typer makes of KeyboardInterrupt

app = typer.Typer(
    name="driftline",
    help="Keeps a semantic index of every line in your repositories and buckets in step with what changed.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        metavar="URI",
        help="Where the index lives: a folder, s3://, gs:// or az://. "
        "Default: $DRIFTLINE_WORKSPACE, else the nearest .driftline folder.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every failure is told in one line, or as JSON with ``--json``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in takewhile(lambda argument: argument != "--", arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    quiet_libraries()
    try:
        code = int(app(args=arguments, prog_name="driftline", standalone_mode=False) or DONE)
    except typer.TyperException as error:
        fix = "Try 'driftline --help'."
        return _fail(WRONG_USE, "usage", f"{error.format_message().rstrip('.')}. {fix}", as_json, fix=fix)
    except DriftlineError as error:
        return _fail(error.exit_code, error.kind, str(error), as_json, error.where, error.fix)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        # A defect, or a failure that nobody foresaw: Python's own exit code would be 1, which means "nothing found".
        traceback.print_exc()
        return _fail(FAILED, "unexpected", f"unexpected {type(error).__name__}: {error}", as_json)
    if code == _INTERRUPTED:
        fix = "What was committed is kept: run the same command again to go on."
        return _fail(FAILED, "interrupted", f"interrupted. {fix}", as_json, fix=fix)
    return code


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"driftline {version_of('driftline')}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WRONG_USE)


@app.command()
def index(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Folders, git work trees or bucket URIs.")],
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
    executor: Annotated[
        str, typer.Option(metavar="WHERE", help="inline, local (processes), or tcp://HOST:PORT of a Dask scheduler.")
    ] = "inline",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of the local executor.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Read and embed everything again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would change, write nothing.")] = False,
    max_delete_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Refuse to delete more of a source than this; 1 confirms.")
    ] = 0.5,
    max_file_bytes: Annotated[int, typer.Option(min=0, help="Skip larger files.")] = DEFAULT_MAX_FILE_BYTES,
    rebind: Annotated[bool, typer.Option("--rebind", help="Let the entity move to another URI.")] = False,
    reembed: Annotated[bool, typer.Option("--reembed", help="Let the workspace move to another model.")] = False,
    wait: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Wait for another run of a source.")] = 0.0,
    indexes: Annotated[Literal["all", "text", "none"], typer.Option(help="Which search indexes to update.")] = "all",
    as_json: JsonOption = False,
) -> int:
    """Bring the index in step with SOURCE: embed what is new or changed, delete what is gone."""
    target = workspace_for_indexing(workspace, sources, os.environ, Path.cwd())
    from driftline.flows.display import print_index, print_json
    from driftline.flows.pipeline import IndexRequest, index_sources
    from driftline.flows.progress import open_progress

    request = IndexRequest(
        sources=tuple(sources),
        workspace=target,
        entity=entity,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        model=model,
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
    )
    with open_progress() as progress:
        result = index_sources(request, progress).to_dict()
    if as_json:
        print_json(result)
    else:
        print_index(result, dry_run)
    return DONE


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


@app.command()
def remove(
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="As 'driftline sources' lists it.")],
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Forget a source: delete its documents and lines from the index, never its files."""
    target = workspace_for_reading(workspace, os.environ, Path.cwd())
    from driftline.flows.display import print_json
    from driftline.flows.pipeline import remove_source

    result = remove_source(target, entity).to_dict()
    if as_json:
        print_json(result)
    else:
        typer.echo(f"removed {result['entity']}: {result['documents']:,} documents, {result['lines']:,} lines")
    return DONE


@app.command()
def compact(
    workspace: WorkspaceOption = None,
    entity: Annotated[
        str | None, typer.Option(metavar="PATH", help="Only this source, however few its deltas; default: all.")
    ] = None,
    max_deltas: Annotated[
        int, typer.Option(min=0, help="Without --entity, fold the deltas of sources that have more.")
    ] = DEFAULT_MAX_DELTAS,
    retention_seconds: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Remove versions of tables that are older.")
    ] = DEFAULT_VERSION_RETENTION_SECONDS,
    executor: Annotated[
        str, typer.Option(metavar="WHERE", help="inline, local (processes), or tcp://HOST:PORT of a Dask scheduler.")
    ] = "inline",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of the local executor.")] = None,
    wait: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Wait for runs that are at work.")] = 0.0,
    as_json: JsonOption = False,
) -> int:
    """Keep the workspace small and quick to read: fold deltas, merge fragments, remove old versions."""
    target = workspace_for_reading(workspace, os.environ, Path.cwd())
    from driftline.flows.compaction import CompactRequest, compact_workspace
    from driftline.flows.display import print_compact, print_json
    from driftline.flows.progress import open_progress

    request = CompactRequest(target, entity, max_deltas, retention_seconds, executor, workers, wait)
    with open_progress() as progress:
        result = compact_workspace(request, progress).to_dict()
    if as_json:
        print_json(result)
    else:
        print_compact(result)
    return DONE


@app.command()
def cleanup(
    workspace: WorkspaceOption = None,
    max_age_seconds: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Keep what is younger, by the clock of the store.")
    ] = 3600.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", " /--delete", help="Report only, or delete as well.")
    ] = True,
    as_json: JsonOption = False,
) -> int:
    """Find what crashed or superseded runs left in the workspace; with --delete, delete it."""
    target = workspace_for_reading(workspace, os.environ, Path.cwd())
    from driftline.flows.cleaning import CleanupRequest, clean_workspace
    from driftline.flows.display import print_cleanup, print_json
    from driftline.flows.progress import open_progress

    with open_progress() as progress, _audit_shown():
        result = clean_workspace(CleanupRequest(target, max_age_seconds, dry_run), progress).to_dict()
    if as_json:
        print_json(result)
    else:
        print_cleanup(result)
    return DONE


@app.command()
def verify(
    workspace: WorkspaceOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Take what is wrong out of the index and index it anew.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Check the workspace against itself. Exit code 3 when anything is wrong."""
    target = workspace_for_reading(workspace, os.environ, Path.cwd())
    from driftline.flows.display import print_json, print_verify
    from driftline.flows.progress import open_progress
    from driftline.flows.verification import VerifyRequest, verify_workspace

    with open_progress() as progress:
        result = verify_workspace(VerifyRequest(target, repair), progress).to_dict()
    if as_json:
        print_json(result)
    else:
        print_verify(result)
    return FAILED if result["findings"] else DONE


@contextmanager
def _audit_shown() -> Iterator[None]:
    """Send a line for each deletion to standard error."""
    import logging

    audit, handler = logging.getLogger("driftline.audit"), logging.StreamHandler()
    audit.setLevel(logging.INFO)
    audit.addHandler(handler)
    try:
        yield
    finally:
        audit.removeHandler(handler)


def _fail(code: int, kind: str, message: str, as_json: bool, where: str = "", fix: str = "") -> int:
    if as_json:
        from driftline.flows.display import print_json

        print_json({"error": kind, "message": message, "where": where, "fix": fix})
    else:
        # One line, whatever a file name or a library put into the message.
        print(f"driftline: {' '.join(message.split())}", file=sys.stderr)
    return code
