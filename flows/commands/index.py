"""Define ``driftline index``, ``remove`` and ``fleet``, which change a workspace's content."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    DONE,
    FAILED,
    Commands,
    ConfigOption,
    Interrupted,
    JsonOption,
    ModelOption,
    WorkspaceOption,
    app,
    parameters,
    show,
)
from driftline.flows.config.index_request import FLEET_OPTIONS, OPTIONS, IndexRequest, options_in
from driftline.flows.config.locate import (
    WORKSPACE_VARIABLE,
    named_branch,
    workspace_for_indexing,
    workspace_for_reading,
)
from driftline.flows.config.workspace_names import WORKSPACE_FOLDER
from driftline.flows.output.plain_text import print_json, say_done, warn
from driftline.storage.errors import DeletionRefused, DriftlineError, UsageError, WorkspaceNotFound
from driftline.storage.option_table import given_values, spread

if TYPE_CHECKING:
    from driftline.flows.config.driftline_toml import Configuration
    from driftline.flows.output.run_reports import FleetsReport, IndexReport
    from driftline.flows.runs.fleet import FleetRequest
    from driftline.flows.runs.watch import Watcher
    from driftline.storage.workspace.workspace import Workspace

SourcesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="SOURCE...", help="Folders, git working trees or bucket URIs.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Index all sources of driftline.toml.")]
DeepModelOption = Annotated[
    str | None,
    typer.Option(
        "--deep-model",
        metavar="NAME",
        help="Like --deep, with this transformer: a directory or a Hugging Face model name.",
    ),
]
_BRANCH = "Index this branch of the sources, not the main index; auto: the checked-out branch."


@app.command()
@spread("given", parameters(options_in("command") | {"branch": replace(OPTIONS["branch"], help=_BRANCH)}))
def index(
    sources: SourcesArgument = None,
    all_sources: AllOption = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    *,
    given: dict[str, Any],
    deep_model: DeepModelOption = None,
    as_json: JsonOption = False,
) -> int:
    """Update the index of SOURCE: embed new and changed documents, and drop deleted ones.

    With --all, a source that fails does not stop the others; the exit code is then 3.
    """
    given = given_values(given)
    is_filtered = not given.keys().isdisjoint(("include", "exclude"))
    configuration = _configuration(config, sources, all_sources, filtered=is_filtered or "entity" in given)
    target = workspace_for_indexing(workspace, sources or (), configuration)
    from driftline.flows.output.progress import open_progress
    from driftline.flows.output.terminal_reports import print_index
    from driftline.flows.runs.index import index_sources
    from driftline.flows.runs.plan import requests_of

    if deep_model and given.get("deep") is not False:
        given["deep"] = deep_model
    given["branch"] = named_branch(given.get("branch"), (sources or ["."])[0])
    if configuration is not None:
        given = configuration.run_options() | given
    request = IndexRequest(
        requests_of(configuration.sources) if configuration else sources or (), target, keep_going=all_sources, **given
    )
    with _reporting_what_was_committed(), open_progress() as progress:
        result = index_sources(request, progress).to_dict()
    prices = configuration.prices if configuration else {}
    show(result, as_json, partial(print_index, dry_run=request.dry_run, prices=prices))
    _warn_of_empty(result["sources"])
    _warn_of_joined(result["sources"], None if workspace or configuration or request.dry_run else target)
    return FAILED if result["failed"] else DONE


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


@fleet.command(name="list")
def list_repositories(
    config: ConfigOption = None, workspace: WorkspaceOption = None, as_json: JsonOption = False
) -> int:
    """List the repositories on the hosts, and why some are excluded. Writes nothing."""
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.fleet import list_fleets

    with open_progress() as progress:
        report = list_fleets(_fleet_request(config, workspace), progress)
    return _show_fleets(report, as_json, everything=True)


@fleet.command()
@spread("given", parameters(options_in("command", "dry_run") | FLEET_OPTIONS))
def sync(
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    retry: RetryOption = False,
    *,
    given: dict[str, Any],
    as_json: JsonOption = False,
) -> int:
    """Index the repositories that changed, in one run, and retire missing ones.

    Exit code 3 if a repository fails or a listing is incomplete; the sync continues with the others.
    """
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.fleet import sync_fleets

    request = _fleet_request(config, workspace, given, retry=retry)
    with _reporting_what_was_committed(), open_progress() as progress:
        report = sync_fleets(request, progress)
    return _show_fleets(report, as_json)


@fleet.command()
def status(config: ConfigOption = None, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """Show each repository after the last sync: the indexed commit, lag, and failures. Contacts no host."""
    from driftline.flows.runs.fleet import fleet_status

    return _show_fleets(fleet_status(_fleet_request(config, workspace)), as_json, everything=True)


def _show_fleets(report: FleetsReport, as_json: bool, *, everything: bool = False) -> int:
    """Print the report, and return the exit code."""
    from driftline.flows.output.terminal_reports import print_fleets

    show(report.to_dict(), as_json, lambda _: print_fleets(report, everything))
    return FAILED if report.failures else DONE


def _fleet_request(
    config: str | None, workspace: str | None, given: Mapping[str, Any] | None = None, *, retry: bool = False
) -> FleetRequest:
    from driftline.flows.config.driftline_toml import open_config
    from driftline.flows.runs.fleet import FleetRequest

    configuration = open_config(config)
    return FleetRequest.of(
        configuration, workspace_for_indexing(workspace, (), configuration), given or {}, retry=retry
    )


WAIT_SECONDS = 30.0
"""How long a run waits for another run of the same source."""

SourceArgument = Annotated[str, typer.Argument(metavar="[SOURCE]", help="The folder; default: the current folder.")]


@app.command()
def watch(source: SourceArgument = ".", workspace: WorkspaceOption = None, model: ModelOption = None) -> int:
    """Update the index of SOURCE, then index each file as it is saved. Stop with Ctrl+C."""
    target = workspace_for_indexing(workspace, [source], None)
    from driftline.flows.config.locate import options_for

    options = options_for(target)
    watcher = watcher_of(source, target, entity_at(source, target, options), model=model, storage_options=options)
    with suppress(KeyboardInterrupt):  # the usual way to stop it
        watcher.run()
    warn(f"stopped; continue with: driftline watch {source}")
    return DONE


def entity_at(folder: str, workspace: str, storage_options: Mapping[str, Any] | None = None) -> str | None:
    """Return the entity of the workspace's only source at ``folder``, or None if there is none or several."""
    from driftline.storage.workspace.workspace import Workspace

    try:
        known = Workspace.open(workspace, storage_options).readable_sources()
    except WorkspaceNotFound:
        return None
    there = [str(entity) for entity, record in known if record.uri == os.path.realpath(folder)]
    return there[0] if len(there) == 1 else None


def watcher_of(
    uri: str,
    workspace: str,
    entity: str | None = None,
    *,
    model: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Watcher:
    """Return a watcher of the folder ``uri`` that reports each run on standard error.

    Each run applies the filters that the source has then, since other runs may change them meanwhile.
    """
    from driftline.flows.runs.watch import Watcher

    # One process embeds a user's edits faster than it could start others.
    how: dict[str, Any] = {"model": model, "executor": "inline", "wait_seconds": WAIT_SECONDS}
    request = IndexRequest(uri, workspace, entity=entity, storage_options=storage_options, **how)
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

    local = [(record.uri, str(entity)) for entity, record in workspace.sources() if known_source(record.uri).is_local]
    stop, options = threading.Event(), workspace.objects.storage_options

    def run(uri: str, entity: str) -> None:
        try:
            watcher_of(uri, workspace.objects.uri, entity, storage_options=options).run(stop)
        except DriftlineError as error:
            warn(f"{uri} is no longer watched: {error}")

    threads = [threading.Thread(target=run, args=each, name=f"watch {each[0]}") for each in local]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
