"""Define ``driftline index``, ``watch`` and ``remove``, which change a workspace's content."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    DONE,
    FAILED,
    ConfigOption,
    JsonOption,
    ModelOption,
    WorkspaceOption,
    app,
    parameters,
    reporting_what_was_committed,
    show,
)
from driftline.flows.config.index_request import OPTIONS, IndexRequest
from driftline.flows.config.which_workspace import (
    WORKSPACE_VARIABLE,
    named_branch,
    references_for,
    workspace_for_indexing,
    workspace_for_reading,
)
from driftline.flows.config.workspace_names import WORKSPACE_FOLDER
from driftline.flows.output.plain_text import print_json, say_done, warn
from driftline.storage.errors import UsageError
from driftline.storage.option_table import given_values, spread

if TYPE_CHECKING:
    from driftline.flows.config.driftline_toml import Configuration

SourcesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="SOURCE...", help="Folders, git working trees or bucket URIs.")
]
FolderArgument = Annotated[str, typer.Argument(metavar="[SOURCE]", help="The folder; default: the current folder.")]
AllOption = Annotated[bool, typer.Option("--all", help="Index all sources of driftline.toml.")]
DeepModelOption = Annotated[
    str | None,
    typer.Option(
        "--deep-model",
        metavar="NAME",
        help="Like --deep, with this transformer: a directory or a Hugging Face model name.",
        rich_help_panel="Embedding",
    ),
]
_BRANCH = "Index this branch of the sources, not the main index; auto: the checked-out branch."


@app.command()
@spread("given", parameters(OPTIONS.offered_in("command") | {"branch": replace(OPTIONS["branch"], help=_BRANCH)}))
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
    chosen = requests_of(configuration.sources) if configuration else sources or ()
    references = references_for(target)
    request = IndexRequest(chosen, target, keep_going=all_sources, references=references, **given)
    with reporting_what_was_committed(), open_progress() as progress:
        result = index_sources(request, progress).to_dict()
    prices = configuration.prices if configuration else {}
    show(result, as_json, partial(print_index, dry_run=request.dry_run, prices=prices))
    failed = {failure["uri"] for failure in result["failed"]}
    _warn_of_empty([source for source in result["sources"] if source["uri"] not in failed])
    _warn_of_joined(result["sources"], None if workspace or configuration or request.dry_run else target)
    return FAILED if result["failed"] else DONE


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
    """Warn of new repositories added to a ``workspace`` in a parent folder, which may have been forgotten."""
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
def watch(source: FolderArgument = ".", workspace: WorkspaceOption = None, model: ModelOption = None) -> int:
    """Update the index of SOURCE, then index each file as it is saved. Stop with Ctrl+C."""
    target = workspace_for_indexing(workspace, [source], None)
    from driftline.flows.config.which_workspace import options_for
    from driftline.flows.runs.watch import entity_at, watcher_of

    options = options_for(target)
    watcher = watcher_of(source, target, entity_at(source, target, options), model=model, storage_options=options)
    with suppress(KeyboardInterrupt):  # the usual way to stop it
        watcher.run()
    warn(f"stopped; continue with: driftline watch {source}")
    return DONE


@app.command()
def remove(
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="Entity, as listed by 'driftline sources'.")],
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove a source from the index. Its files are never deleted."""
    target = workspace_for_reading(workspace)
    from driftline.flows.config.which_workspace import options_for
    from driftline.flows.runs.remove import remove_source

    result = remove_source(target, entity, storage_options=options_for(target)).to_dict()
    if as_json:
        print_json(result)
    else:
        say_done(f"removed {result['entity']}: {result['documents']:,} documents, {result['lines']:,} lines")
    return DONE
