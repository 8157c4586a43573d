"""Define ``driftline index``, ``remove`` and ``fleet``, which change a workspace's content."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from driftline.flows.commands.app import (
    DONE,
    FAILED,
    BranchOption,
    Commands,
    ConfigOption,
    ExecutorOption,
    Interrupted,
    JsonOption,
    MaxDeleteFractionOption,
    ModelOption,
    WaitOption,
    WorkersOption,
    WorkspaceOption,
    app,
    show,
)
from driftline.flows.config.locate import (
    WORKSPACE_VARIABLE,
    named_branch,
    workspace_for_indexing,
    workspace_for_reading,
)
from driftline.flows.config.workspace_names import WORKSPACE_FOLDER
from driftline.flows.output.plain_text import print_json, say_done, warn
from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_DELETE_FRACTION,
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_MAX_FILE_BYTES,
    Redaction,
)
from driftline.storage.errors import DeletionRefused, DriftlineError, UsageError, WorkspaceNotFound

if TYPE_CHECKING:
    from driftline.flows.config.driftline_toml import Configuration
    from driftline.flows.output.run_reports import IndexReport
    from driftline.flows.runs.fleet import FleetRequest
    from driftline.flows.runs.plan import SourceRequest
    from driftline.flows.runs.watch import Watcher
    from driftline.storage.workspace.workspace import Workspace

SourcesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="SOURCE...", help="Folders, git working trees or bucket URIs.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Index all sources of driftline.toml.")]
EntityOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The source's entity, such as org:acme/project:alpha/source:web. Default: derived from its name.",
    ),
]
IncludeOption = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Index only matching files, now and in later runs; '*' resets.")
]
ExcludeOption = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Exclude matching files, now and in later runs.")
]
FullOption = Annotated[bool, typer.Option("--full", help="Reread and re-embed everything.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report what would change; write nothing.")]
MaxFileBytesOption = Annotated[int, typer.Option(min=0, help="Skip larger files.")]
MaxDocumentBytesOption = Annotated[
    int, typer.Option(min=0, help="Skip larger documents, logs, CSV and JSON Lines files.")
]
RedactOption = Annotated[
    Redaction | None,
    typer.Option(
        help="Which credentials in the text to redact.",
        show_default="the source's current setting; known for a new source",
    ),
]
ArchivesOption = Annotated[
    bool | None,
    typer.Option(
        "--archives/--no-archives",
        help="Index the files inside zip and tar archives and email.",
        show_default="the source's current setting; no for a new source",
    ),
]
NotebookOutputsOption = Annotated[
    bool | None,
    typer.Option(
        "--notebook-outputs/--no-notebook-outputs",
        help="Index the text outputs of notebooks.",
        show_default="the source's current setting; no for a new source",
    ),
]
RebindOption = Annotated[bool, typer.Option("--rebind", help="Allow the entity to change its URI.")]
ReembedOption = Annotated[bool, typer.Option("--reembed", help="Allow the workspace to change its model.")]
IndexesOption = Annotated[
    Literal["all", "text", "none"],
    typer.Option(help="Search indexes to update; text: only those for exact and full-text search."),
]
DeepOption = Annotated[
    bool | None,
    typer.Option(
        "--deep/--no-deep",
        help="Also embed definitions and sections with a transformer, now and in later runs (extra: deep).",
        show_default="the workspace's current setting",
    ),
]
DeepModelOption = Annotated[
    str | None,
    typer.Option(
        "--deep-model",
        metavar="NAME",
        help="Like --deep, with this transformer: a directory or a Hugging Face model name.",
    ),
]
ByCommitOption = Annotated[
    bool, typer.Option("--ci", help="Scan only files changed since the last indexed commit, like driftline ci.")
]


@app.command()
def index(
    sources: SourcesArgument = None,
    all_sources: AllOption = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    entity: EntityOption = None,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    model: ModelOption = None,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    workers: WorkersOption = None,
    full: FullOption = False,
    dry_run: DryRunOption = False,
    max_delete_fraction: MaxDeleteFractionOption = DEFAULT_MAX_DELETE_FRACTION,
    max_file_bytes: MaxFileBytesOption = DEFAULT_MAX_FILE_BYTES,
    max_document_bytes: MaxDocumentBytesOption = DEFAULT_MAX_DOCUMENT_BYTES,
    redact: RedactOption = None,
    archives: ArchivesOption = None,
    notebook_outputs: NotebookOutputsOption = None,
    rebind: RebindOption = False,
    reembed: ReembedOption = False,
    wait: WaitOption = 0.0,
    indexes: IndexesOption = "all",
    by_commit: ByCommitOption = False,
    branch: BranchOption = None,
    deep: DeepOption = None,
    deep_model: DeepModelOption = None,
    as_json: JsonOption = False,
) -> int:
    """Update the index of SOURCE: embed new and changed documents, and drop deleted ones.

    With --all, a source that fails does not stop the others; the exit code is then 3.
    """
    configuration = _configuration(config, sources, all_sources, filtered=bool(entity or include or exclude))
    target = workspace_for_indexing(workspace, sources or (), configuration)
    from driftline.flows.output.progress import open_progress
    from driftline.flows.output.rich_tables import print_index
    from driftline.flows.runs.index import IndexRequest, index_sources
    from driftline.flows.runs.plan import requests_of

    how: dict[str, Any] = {"executor": executor, "workers": workers, "full": full, "dry_run": dry_run}
    how |= {"max_delete_fraction": max_delete_fraction, "max_file_bytes": max_file_bytes, "rebind": rebind}
    how |= {"max_document_bytes": max_document_bytes, "redact": redact or (configuration and configuration.redact)}
    how |= _of_documents({"archives": archives, "notebook_outputs": notebook_outputs}, configuration)
    how |= {"reembed": reembed, "wait_seconds": wait, "indexes": indexes, "by_commit": by_commit, "entity": entity}
    how |= {"deep": deep_model if deep is not False and deep_model else deep}
    request = IndexRequest(
        sources=requests_of(configuration.sources) if configuration else tuple(sources or ()),
        workspace=target,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        model=configuration.model if configuration and model is None else model,
        storage_options=configuration.options() if configuration else None,
        keep_going=all_sources,
        branch=named_branch(branch, (sources or ["."])[0]),
        **how,
    )
    with _reporting_what_was_committed(), open_progress() as progress:
        result = index_sources(request, progress).to_dict()
    show(result, as_json, partial(print_index, dry_run=dry_run, prices=configuration.prices if configuration else {}))
    _warn_of_empty(result["sources"])
    _warn_of_joined(result["sources"], None if workspace or configuration or dry_run else target)
    return FAILED if result["failed"] else DONE


def _of_documents(given: Mapping[str, bool | None], configuration: Configuration | None) -> dict[str, bool | None]:
    """Return the options for reading documents: ``given``, falling back to driftline.toml."""
    return {name: value if value is not None else getattr(configuration, name, None) for name, value in given.items()}


@contextmanager
def _reporting_what_was_committed() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted("; ".join(getattr(error, "__notes__", ()))) from None


def _warn_of_empty(sources: Sequence[Mapping[str, Any]]) -> None:
    """Warn about each source that has no documents, and why."""
    for source in sources:
        documents = source["documents_total"] or source["new"] + source["changed"]
        if documents:
            continue
        reasons = Counter(str(skip["reason"]) for skip in source["skipped"])
        why = "it has no files" if not reasons else "none of its files can be indexed"
        counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        gone = f"; {source['deleted']:,} documents were deleted" if source["deleted"] else ""
        warn(f"No document of {source['uri']} is indexed: {why}{f' ({counts})' if counts else ''}{gone}.")


def _warn_of_joined(sources: Sequence[Mapping[str, Any]], workspace: str | None) -> None:
    """Say which new repositories joined a ``workspace`` found above them, which may be a forgotten one."""
    if workspace is None or os.environ.get(WORKSPACE_VARIABLE):
        return
    for source in sources:
        is_new = 0 < source["documents_total"] == source["new"]
        if not is_new or Path(workspace).parent not in Path(source["uri"]).parents:
            continue
        from driftline.storage.sources.git_isolation import find_repository

        repository = find_repository(source["uri"])
        if repository is not None and not Path(workspace).is_relative_to(repository.top):
            own = os.path.join(source["uri"], WORKSPACE_FOLDER)
            warn(f"{source['uri']} joined the index above it, {workspace}; for one of its own, use --workspace {own}")


def _configuration(
    config: str | None, sources: Sequence[str] | None, all_sources: bool, filtered: bool
) -> Configuration | None:
    """Return the configuration whose sources ``--all`` indexes; None without ``--all``.

    Raises UsageError for conflicting options.
    """
    if all_sources:
        if sources or filtered:
            fix = "Omit --all, or SOURCE, --entity, --include and --exclude."
            raise UsageError("--all takes the sources and their filters from driftline.toml", fix=fix)
        from driftline.flows.config.driftline_toml import open_config

        found = open_config(config)
        if found.fleets and not found.sources:
            fix = "Run: driftline fleet sync"
            raise UsageError("The driftline.toml has fleets, but no sources for --all", str(found.path), fix)
        return found
    if config or not sources:
        fix = "Specify a folder or a bucket, or use --all for the sources of a driftline.toml."
        raise UsageError("--config requires --all" if config else "No SOURCE was given", fix=fix)
    return None


@app.command()
def remove(
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="Entity, as listed by 'driftline sources'.")],
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove a source from the index. Its files are never deleted."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.locate import options_for
    from driftline.flows.runs.index import remove_source

    result = remove_source(target, entity, storage_options=options_for(target)).to_dict()
    if as_json:
        print_json(result)
    else:
        say_done(f"removed {result['entity']}: {result['documents']:,} documents, {result['lines']:,} lines")
    return DONE


fleet = Commands(help="Discover the repositories of the fleets in driftline.toml, and index them.")
app.add_typer(fleet, name="fleet")

RetryOption = Annotated[bool, typer.Option("--retry", help="Retry failing repositories now, ignoring their backoff.")]
MaxRetiredOption = Annotated[
    float,
    typer.Option(
        "--max-delete-fraction",
        min=0.0,
        max=1.0,
        help="Refuse to retire a larger fraction of a fleet, or to delete a larger fraction of a source; 1 allows all.",
    ),
]


@fleet.command(name="list")
def list_repositories(
    config: ConfigOption = None, workspace: WorkspaceOption = None, as_json: JsonOption = False
) -> int:
    """List the repositories on the hosts, and why some are excluded. Writes nothing."""
    from driftline.flows.output.progress import open_progress
    from driftline.flows.output.rich_tables import print_fleets
    from driftline.flows.runs.fleet import has_failed, list_fleets

    with open_progress() as progress:
        result = list_fleets(_fleet_request(config, workspace), progress)
    show(result, as_json, partial(print_fleets, everything=True))
    return FAILED if has_failed(result) else DONE


@fleet.command()
def sync(
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    retry: RetryOption = False,
    dry_run: DryRunOption = False,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    workers: WorkersOption = None,
    max_delete_fraction: MaxRetiredOption = DEFAULT_MAX_DELETE_FRACTION,
    indexes: IndexesOption = "all",
    wait: WaitOption = 0.0,
    as_json: JsonOption = False,
) -> int:
    """Index the repositories that changed, in one run, and retire missing ones.

    Exit code 3 if a repository fails or a listing is incomplete; the sync continues with the others.
    """
    from driftline.flows.output.progress import open_progress
    from driftline.flows.output.rich_tables import print_fleets
    from driftline.flows.runs.fleet import has_failed, sync_fleets

    request = _fleet_request(
        config,
        workspace,
        how={"executor": executor, "workers": workers, "indexes": indexes},
        max_delete_fraction=max_delete_fraction,
        wait_seconds=wait,
        retry=retry,
        dry_run=dry_run,
    )
    with _reporting_what_was_committed(), open_progress() as progress:
        result = sync_fleets(request, progress)
    show(result, as_json, print_fleets)
    return FAILED if has_failed(result) else DONE


@fleet.command()
def status(config: ConfigOption = None, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """Show each repository after the last sync: the indexed commit, lag, and failures. Contacts no host."""
    from driftline.flows.output.rich_tables import print_fleets
    from driftline.flows.runs.fleet import fleet_status, has_failed

    result = fleet_status(_fleet_request(config, workspace))
    show(result, as_json, partial(print_fleets, everything=True))
    return FAILED if has_failed(result) else DONE


def _fleet_request(config: str | None, workspace: str | None, **how: Any) -> FleetRequest:
    from driftline.flows.config.driftline_toml import open_config
    from driftline.flows.runs.fleet import FleetRequest

    configuration = open_config(config)
    return FleetRequest(configuration, workspace_for_indexing(workspace, (), configuration), **how)


WAIT_SECONDS = 30.0
"""How long a run waits for another run of the same source."""

SourceArgument = Annotated[str, typer.Argument(metavar="[SOURCE]", help="The folder; default: the current folder.")]


@app.command()
def watch(source: SourceArgument = ".", workspace: WorkspaceOption = None, model: ModelOption = None) -> int:
    """Update the index of SOURCE, then index each file as it is saved. Stop with Ctrl+C."""
    target = workspace_for_indexing(workspace, [source], None)
    from driftline.flows.config.locate import options_for

    watcher = watcher_of(known_at(source, target), target, model, options_for(target))
    with suppress(KeyboardInterrupt):  # the usual way to stop it
        watcher.run()
    warn(f"stopped; continue with: driftline watch {source}")
    return DONE


def known_at(source: str, workspace: str) -> str | SourceRequest:
    """Return the workspace's source at the folder ``source``, with its own entity and filters, or else ``source``."""
    from driftline.flows.config.locate import options_for
    from driftline.flows.runs.plan import known_request
    from driftline.storage.workspace.workspace import Workspace

    try:
        known = Workspace.open(workspace, options_for(workspace)).readable_sources()
    except WorkspaceNotFound:
        return source
    there = [known_request(entity, record) for entity, record in known if record.uri == os.path.realpath(source)]
    return there[0] if len(there) == 1 else source


def watcher_of(
    source: str | SourceRequest,
    workspace: str,
    model: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Watcher:
    """Return a watcher of ``source`` that reports each run on standard error."""
    from driftline.flows.runs.plan import IndexRequest
    from driftline.flows.runs.watch import Watcher

    # One process embeds a user's edits faster than it could start others.
    how: dict[str, Any] = {"model": model, "executor": "inline", "wait_seconds": WAIT_SECONDS}
    request = IndexRequest((source,), workspace, storage_options=storage_options, **how)
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
    from driftline.flows.runs.plan import known_request
    from driftline.storage.sources.source import known_source

    known = (known_request(entity, record) for entity, record in workspace.sources())
    local = [source for source in known if known_source(source.uri).is_local]
    stop, options = threading.Event(), workspace.objects.storage_options

    def run(source: SourceRequest) -> None:
        try:
            watcher_of(source, workspace.objects.uri, storage_options=options).run(stop)
        except DriftlineError as error:
            warn(f"{source.uri} is no longer watched: {error}")

    threads = [threading.Thread(target=run, args=(each,), name=f"watch {each.uri}") for each in local]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
