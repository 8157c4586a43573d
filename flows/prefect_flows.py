"""The Prefect flows of ``prefect.yaml``, one for each command: index, fleet, compact, cleanup, prune and verify.

Prefect builds its web form from the parameters, and shows progress and reports as artifacts. An index run does not
import other flows' libraries, such as the memory catalog's.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from pydantic import Field

from driftline.flows.config.toml_schema import FleetTable
from driftline.flows.config.workspace_names import absolute_workspace
from driftline.flows.runs.branches import DEFAULT_PRUNED_AFTER_DAYS, prune_branches
from driftline.flows.runs.index import IndexRequest, index_sources
from driftline.flows.scheduling.artifacts import (
    show_cleanup,
    show_compaction,
    show_fleets,
    show_index,
    show_verification,
)
from driftline.flows.scheduling.events import ask_for_source
from driftline.flows.scheduling.flow_execution import (
    attempt,
    catalog_of,
    flow_progress,
    options_of,
    release_leases,
)
from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_MAX_DELETE_FRACTION,
    DEFAULT_MAX_DELTAS,
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_VERSION_RETENTION_SECONDS,
    Redaction,
)
from driftline.storage.errors import StorageError
from driftline.storage.workspace.workspace import Workspace


@flow(
    name="driftline-index",
    flow_run_name=lambda: f"index {', '.join(flow_run.parameters['sources'])}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def index(
    sources: Annotated[list[str], Field(min_length=1)],
    workspace: str,
    entity: str | None = None,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    model: str | None = None,
    executor: str = DEFAULT_EXECUTOR,
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None,
    full: bool = False,
    dry_run: bool = False,
    max_delete_fraction: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_DELETE_FRACTION,
    max_file_bytes: Annotated[int, Field(ge=0)] = DEFAULT_MAX_FILE_BYTES,
    max_document_bytes: Annotated[int, Field(ge=0)] = DEFAULT_MAX_DOCUMENT_BYTES,
    rebind: bool = False,
    reembed: bool = False,
    wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0,
    indexes: Literal["all", "text", "none"] = "all",
    max_deltas: Annotated[int, Field(ge=0)] = DEFAULT_MAX_DELTAS,
    storage_options: dict[str, str] | None = None,
    branch: str | None = None,
    redact: Redaction | None = None,
    link: str | None = None,
    archives: bool | None = None,
    notebook_outputs: bool | None = None,
) -> dict[str, Any]:
    """Update the index of the sources: embed new and changed documents, and drop deleted ones.

    Args:
        sources: Folders, git working trees or bucket URIs, as seen by the machine that runs the flow.
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        entity: The entity of a single source, such as org:acme/project:alpha/source:web; default: derived from its
            name.
        include: Index only files that match one of these patterns.
        exclude: Skip files that match one of these patterns.
        model: A model2vec directory or name; default: the model installed with Driftline.
        executor: inline, local (processes on the same machine), or a Dask scheduler's tcp://host:port.
        workers: Number of processes of the local executor.
        full: Reread and re-embed every document.
        dry_run: Report what would change and write nothing.
        max_delete_fraction: Refuse to delete a larger fraction of a source; 1 allows all deletions.
        max_file_bytes: Skip larger files.
        max_document_bytes: Skip larger documents, logs, CSV and JSON Lines files.
        rebind: Allow the entity to move to another URI.
        reembed: Allow the workspace to switch to another model.
        wait_seconds: Seconds to wait for another run that holds the lease of a source.
        indexes: Which search indexes to update.
        max_deltas: Request a compaction when a source has more deltas than this.
        redact: Which credentials in the text are redacted; default: the source's current setting; known for a new
            source.
        storage_options: Object store options; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        branch: Index this branch of the sources; the main index does not change.
        link: The type of the sources' host, or a link template; default: the source's current setting; derived from the
            host name for a new source.
        archives: Index the files inside zip and tar archives and email; default: the source's current setting; no for a
            new source.
        notebook_outputs: Index the text outputs of notebooks; default: the source's current setting; no for a new
            source.

    Returns:
        The run's report, as in ``driftline index --json``.
    """
    how: dict[str, Any] = {"redact": redact, "rebind": rebind, "reembed": reembed, "full": full, "dry_run": dry_run}
    request = IndexRequest(tuple(sources), absolute_workspace(workspace), entity, model=model, branch=branch, **how)
    request = replace(request, include=tuple(include or ()), exclude=tuple(exclude or ()), link=link)
    request = replace(request, executor=executor, workers=workers, wait_seconds=wait_seconds, indexes=indexes)
    request = replace(request, max_file_bytes=max_file_bytes, max_document_bytes=max_document_bytes)
    request = replace(request, max_delete_fraction=max_delete_fraction, storage_options=options_of(storage_options))
    request = replace(request, archives=archives, notebook_outputs=notebook_outputs)
    return _run(request, workspace, max_deltas)


@flow(
    name="driftline-fleet",
    flow_run_name="sync fleets of {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def fleet(
    workspace: str,
    fleets: list[FleetTable] | None = None,
    model: str | None = None,
    executor: str = DEFAULT_EXECUTOR,
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None,
    retry: bool = False,
    max_delete_fraction: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_DELETE_FRACTION,
    wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0,
    indexes: Literal["all", "text", "none"] = "all",
    storage_options: dict[str, str] | None = None,
    redact: Redaction | None = None,
    archives: bool | None = None,
    notebook_outputs: bool | None = None,
) -> dict[str, Any]:
    """Index the changed repositories of fleets, and retire missing repositories.

    A run with nothing to do logs one line and creates no artifact. The flow run fails if a repository failed or a
    listing was incomplete; the remaining repositories are indexed even so.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        fleets: [[fleet]] tables; tokens only as the worker's ${VARIABLE}. Default: the tables in its driftline.toml.
        model: A model2vec directory or name; default: the model installed with Driftline.
        executor: inline, local (processes on the same machine), or a Dask scheduler's tcp://host:port.
        workers: Number of processes of the local executor.
        retry: Retry failing repositories now, ignoring their backoff.
        max_delete_fraction: Refuse to retire a larger fraction of a fleet, or to delete a larger fraction of a source;
            1 allows all.
        wait_seconds: Seconds to wait for another sync, or for a run that holds the lease of a source.
        indexes: Which search indexes to update.
        storage_options: Object store options; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        redact: Which credentials in the text are redacted; default: the source's current setting; known for a new
            source.
        archives: Index the files inside zip and tar archives and email; default: the source's current setting; no for a
            new source.
        notebook_outputs: Index the text outputs of notebooks; default: the source's current setting; no for a new
            source.

    Returns:
        The sync's report, as in ``driftline fleet sync --json``.
    """
    from driftline.flows.config.driftline_toml import Configuration, fleets_of, open_config
    from driftline.flows.runs.fleet import FleetRequest, summary, sync_fleets

    uri, found = absolute_workspace(workspace), fleets_of(fleets) if fleets else open_config(None).fleets
    configuration = Configuration(Path("fleets"), uri, model, fleets=found, redact=redact)
    configuration = replace(configuration, archives=archives, notebook_outputs=notebook_outputs)
    how = {"executor": executor, "workers": workers, "indexes": indexes}
    request = FleetRequest(configuration, uri, how, max_delete_fraction, wait_seconds, retry)
    request = replace(request, storage_options=options_of(storage_options), has_all_fleets=False)
    with flow_progress(quiet=True) as progress:
        result = attempt.with_options(name="sync")(lambda: sync_fleets(request, progress))
        show_fleets(result)
        get_run_logger().info("%s", summary(result))
        progress.finish(summary(result), has_changed=result["run_id"] is not None or bool(result["branch_run_ids"]))
    problems = [f"{each['name']}: {problem}" for each in result["fleets"] for problem in each["problems"]]
    problems += [f"{row['path']}: {row['reason']}" for each in result["fleets"] for row in _failed(each)]
    if problems:
        raise StorageError(f"{len(problems):,} problems, first {problems[0]}", uri, "See the artifact driftline-fleet.")
    return result


def _failed(fleet: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in fleet["repositories"] if row["has_failed"]]


def _run(request: IndexRequest, workspace: str, max_deltas: int) -> dict[str, Any]:
    """Index, request compactions, and publish and return the report."""
    with flow_progress() as progress:
        result = attempt.with_options(name="index")(lambda: index_sources(request, progress).to_dict())
        for source in result["sources"]:
            if source["deltas"] > max_deltas and not request.dry_run:
                ask_for_source(workspace, source["entity"], source["deltas"])
        has_changed = show_index(result, request)
        lines = sum(source["lines_embedded"] for source in result["sources"])
        progress.finish(f"{lines:,} line{'' if lines == 1 else 's'} embedded", has_changed=has_changed)
        return result


@flow(
    name="driftline-compact",
    flow_run_name="compact {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def compact(
    workspace: str,
    entity: str | None = None,
    max_deltas: Annotated[int, Field(ge=0)] | None = None,
    retention_seconds: Annotated[float, Field(ge=0)] = DEFAULT_VERSION_RETENTION_SECONDS,
    executor: str = DEFAULT_EXECUTOR,
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None,
    wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0,
    storage_options: dict[str, str] | None = None,
    compaction_threshold: Annotated[int, Field(ge=0)] | None = None,
) -> dict[str, Any]:
    """Keep a workspace small and fast to read: fold deltas, merge fragments, remove old versions.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        entity: Compact only this source, regardless of its number of deltas; default: all sources. Example:
            org:acme/project:alpha/source:web.
        max_deltas: Without an entity, fold the deltas of sources and memory that have more than this; default: 100 for
            sources, compaction_threshold for memory.
        retention_seconds: Remove table versions older than this many seconds.
        executor: inline, local (processes on the same machine), or a Dask scheduler's tcp://host:port.
        workers: Number of processes of the local executor.
        wait_seconds: Seconds to wait for runs that hold a lease.
        storage_options: Object store options; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        compaction_threshold: Default of max_deltas for memory; default: from the worker's configuration.

    Returns:
        The run's report, as in ``driftline compact --json``.
    """
    from driftline.flows.runs.compact import CompactRequest, compact_workspace

    options = options_of(storage_options)
    uri = absolute_workspace(workspace)
    request = CompactRequest(
        uri, entity or None, max_deltas, retention_seconds, executor, workers, wait_seconds, options
    )
    request = replace(request, compaction_threshold=compaction_threshold)
    with flow_progress() as progress:
        work = attempt.with_options(name="compact")
        result = work(lambda: compact_workspace(request, progress).to_dict())
        show_compaction(result)
        folded = sum(source["deltas"] for part in result["tenants"] for source in part["folded"])
        progress.finish(f"{folded:,} deltas folded")
    return result


@flow(
    name="driftline-cleanup",
    flow_run_name="cleanup {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def cleanup(
    workspace: str,
    max_age_seconds: Annotated[float, Field(ge=0)] = DEFAULT_MAX_AGE_SECONDS,
    dry_run: bool = True,
    storage_options: dict[str, str] | None = None,
    catalog_url: str | None = None,
) -> dict[str, Any]:
    """Find orphans left by crashed and superseded runs, and delete them unless this is a dry run.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        max_age_seconds: Keep objects younger than this many seconds, by the store's clock.
        dry_run: Report orphans and delete nothing.
        storage_options: Object store options; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        catalog_url: URL of the memory catalog, any password as a reference; default: from the worker's configuration.

    Returns:
        The run's report, as in ``driftline cleanup --json``.
    """
    from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace

    options, catalog = options_of(storage_options), catalog_of(catalog_url)
    uri = absolute_workspace(workspace)
    request = CleanupRequest(uri, max_age_seconds, dry_run, storage_options=options, catalog_url=catalog)
    with flow_progress() as progress:
        work = attempt.with_options(name="cleanup")
        result = work(lambda: clean_workspace(request, progress).to_dict())
        show_cleanup(result)
        found = bool(result["orphan_count"])
        progress.finish(f"{result['orphan_count']:,} orphans, {result['deleted_count']:,} deleted", has_changed=found)
    return result


@flow(
    name="driftline-prune",
    flow_run_name="prune {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def prune(
    workspace: str,
    older_than_days: Annotated[float, Field(ge=0)] = DEFAULT_PRUNED_AFTER_DAYS,
    dry_run: bool = False,
    storage_options: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Delete branches that are merged, deleted on the remote, or not indexed recently.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        older_than_days: Delete branches not indexed for this many days.
        dry_run: Report the branches and delete nothing.
        storage_options: Object store options; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.

    Returns:
        The report, as in ``driftline branches prune --json``.
    """
    options, uri = options_of(storage_options), absolute_workspace(workspace)
    with flow_progress() as progress:

        def work() -> dict[str, Any]:
            opened = Workspace.open(uri, options)
            pruned = prune_branches(opened, older_than_days=older_than_days, dry_run=dry_run, skip=progress.message)
            return {"workspace": uri, "dry_run": dry_run, "pruned": [asdict(branch) for branch in pruned]}

        result = attempt.with_options(name="prune")(work)
        progress.finish(f"{len(result['pruned']):,} branches pruned", has_changed=bool(result["pruned"]))
    return result


@flow(
    name="driftline-verify",
    flow_run_name="verify {workspace}",
    on_crashed=[release_leases],
    on_cancellation=[release_leases],
)
def verify(
    workspace: str,
    repair: bool = False,
    storage_options: dict[str, str] | None = None,
    catalog_url: str | None = None,
) -> dict[str, Any]:
    """Check the consistency of a workspace; the flow run fails if findings remain.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        repair: Remove inconsistent documents from the index and reindex them.
        storage_options: Object store options; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.
        catalog_url: URL of the memory catalog, any password as a reference; default: from the worker's configuration.

    Returns:
        The run's report, as in ``driftline verify --json``.
    """
    from driftline.flows.runs.verify_and_repair import VerifyRequest, verify_workspace

    options = options_of(storage_options)
    request = VerifyRequest(absolute_workspace(workspace), repair, options, catalog_of(catalog_url))
    with flow_progress() as progress:
        work = attempt.with_options(name="verify")
        result = work(lambda: verify_workspace(request, progress).to_dict())
        show_verification(result)
        findings = len(result["findings"])
        progress.finish(f"{result['lines']:,} lines, {findings:,} findings", has_changed=bool(findings))
    if findings:
        raise StorageError(f"{findings:,} findings", result["workspace"], "Run: driftline verify --repair")
    return result
