"""The Prefect flows of ``prefect.yaml``, one for each command: index, fleet, compact, cleanup, prune and verify.

Prefect builds its web form from the parameters, and shows progress and reports as artifacts. An index run does not
import other flows' libraries, such as the memory catalog's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from pydantic import Field

from driftline.flows.config.index_request import FLEET_OPTIONS, OPTIONS, IndexRequest
from driftline.flows.config.toml_schema import FleetTable
from driftline.flows.config.workspace_names import absolute_workspace
from driftline.flows.output.artifacts import show_cleanup, show_compaction, show_fleets, show_index, show_verification
from driftline.flows.output.run_reports import FleetsReport
from driftline.flows.runs.branches import prune_branches
from driftline.flows.runs.index import index_sources
from driftline.flows.scheduling.flow_execution import (
    attempt,
    catalog_of,
    flow_progress,
    options_of,
    release_leases,
    request_compaction,
)
from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_MAX_DELTAS,
    DEFAULT_PRUNED_AFTER_DAYS,
    DEFAULT_VERSION_RETENTION_SECONDS,
)
from driftline.storage.errors import StorageError
from driftline.storage.option_table import Option, documented, given_values, spread
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from driftline.flows.config.driftline_toml import Configuration

_R = TypeVar("_R")
_ENDED_EARLY: dict[str, Any] = {"on_crashed": [release_leases], "on_cancellation": [release_leases]}
"""The hooks of every flow, for runs that crash or are cancelled."""


def _parameter(row: Option) -> inspect.Parameter:
    low, high = row.limits(served=True)
    kind = row.value_type if low is None else Annotated[row.value_type, Field(ge=low, le=high)]
    default = None if row.is_list else row.default
    return row.keyword(kind | None if default is None else kind, default)


def _with_options(*options: Option) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Replace a flow's parameter ``given`` with ``options``, in the signature and docstring that Prefect shows."""

    def decorate(function: Callable[..., _R]) -> Callable[..., _R]:
        call = spread("given", [_parameter(row) for row in options])(function)
        call.__doc__ = documented(function, options)
        return call

    return decorate


def _source_names(parameters: Mapping[str, Any]) -> str:
    """Return the last part of the entity, or of each source's path: full paths do not fit into Prefect's lists."""
    if entity := parameters.get("entity"):
        return str(entity).rpartition(":")[2]
    return ", ".join(uri.rstrip("/").rpartition("/")[2].removesuffix(".git") or uri for uri in parameters["sources"])


@flow(name="driftline-index", flow_run_name=lambda: f"index {_source_names(flow_run.parameters)}", **_ENDED_EARLY)
@_with_options(*OPTIONS.offered_in("flow").values())
def index(
    sources: Annotated[list[str], Field(min_length=1)],
    workspace: str,
    *,
    given: dict[str, Any],
    max_deltas: Annotated[int, Field(ge=0)] = DEFAULT_MAX_DELTAS,
    storage_options: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Update the index of the sources: embed new and changed documents, and drop deleted ones.

    Args:
        sources: Folders, git working trees or bucket URIs, as seen by the machine that runs the flow.
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        max_deltas: Request a compaction when a source has more deltas than this.
        storage_options: Object store options; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.

    Returns:
        The run's report, as in ``driftline index --json``.
    """
    options = given_values(given) | {"storage_options": options_of(storage_options)}
    return _run(IndexRequest(sources, absolute_workspace(workspace), **options), workspace, max_deltas)


@flow(name="driftline-fleet", flow_run_name="sync fleets of {workspace}", **_ENDED_EARLY)
@_with_options(*FLEET_OPTIONS.values())
def fleet(
    workspace: str,
    fleets: list[FleetTable] | None = None,
    retry: bool = False,
    *,
    given: dict[str, Any],
    storage_options: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Index the changed repositories of fleets, and retire missing repositories.

    A run with nothing to do logs one line and creates no artifact. The flow run fails if a repository failed or a
    listing was incomplete; the remaining repositories are still indexed.

    Args:
        workspace: Location of the index: a folder, or an s3://, gs:// or az:// URI.
        fleets: [[fleet]] tables; tokens only as the worker's ${VARIABLE}. Default: the tables in its driftline.toml.
        retry: Retry failing repositories now, ignoring their backoff.
        storage_options: Object store options; secrets only as ${VARIABLE} of the worker or block:NAME of a Secret.

    Returns:
        The sync's report, as in ``driftline fleet sync --json``.
    """
    from driftline.flows.runs.fleet import FleetRequest, sync_fleets

    configuration = configuration_of(absolute_workspace(workspace), fleets)
    options = given | {"storage_options": options_of(storage_options)}
    request = FleetRequest.of(configuration, configuration.workspace, options, retry=retry, has_all_fleets=False)
    with flow_progress(quiet=True) as progress:
        work = attempt.with_options(name="sync")
        report: FleetsReport = work(lambda: {"report": sync_fleets(request, progress)})["report"]
        show_fleets(report)
        get_run_logger().info("%s", report.in_words())
        progress.finish(report.in_words(), has_changed=report.sync is not None and report.sync.has_changed)
    if failures := report.failures:
        raise StorageError(
            f"{len(failures):,} problems; the first: {failures[0]}",
            report.workspace,
            "See the artifact driftline-fleet.",
        )
    return report.to_dict()


def configuration_of(workspace: str, fleets: list[FleetTable] | None) -> Configuration:
    """Return the configuration of ``fleets``, or the fleets and settings of the worker's ``driftline.toml``."""
    from driftline.flows.config.driftline_toml import Configuration, fleets_of, open_config

    if fleets:
        return Configuration(Path("fleets"), workspace, fleets=fleets_of(fleets))
    file = open_config(None)
    return Configuration(file.path, workspace, fleets=file.fleets, index=file.index)


def _run(request: IndexRequest, workspace: str, max_deltas: int) -> dict[str, Any]:
    """Index, request compactions, and publish and return the report."""
    with flow_progress() as progress:
        result = attempt.with_options(name="index")(lambda: index_sources(request, progress).to_dict())
        for source in result["sources"]:
            if source["deltas"] > max_deltas and not request.dry_run:
                request_compaction(workspace, "source", source["entity"], source["deltas"])
        has_changed = show_index(result, request)
        lines = sum(source["lines_embedded"] for source in result["sources"])
        progress.finish(f"{lines:,} line{'' if lines == 1 else 's'} embedded", has_changed=has_changed)
        return result


@flow(name="driftline-compact", flow_run_name="compact {workspace}", **_ENDED_EARLY)
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


@flow(name="driftline-cleanup", flow_run_name="cleanup {workspace}", **_ENDED_EARLY)
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


@flow(name="driftline-prune", flow_run_name="prune {workspace}", **_ENDED_EARLY)
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


@flow(name="driftline-verify", flow_run_name="verify {workspace}", **_ENDED_EARLY)
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
    from driftline.flows.config.which_workspace import references_for
    from driftline.flows.runs.verify_and_repair import VerifyRequest, verify_workspace

    options = options_of(storage_options)
    uri = absolute_workspace(workspace)
    request = VerifyRequest(uri, repair, options, catalog_of(catalog_url), references_for(uri))
    with flow_progress() as progress:
        work = attempt.with_options(name="verify")
        result = work(lambda: verify_workspace(request, progress).to_dict())
        show_verification(result)
        findings = len(result["findings"])
        progress.finish(f"{result['lines']:,} lines, {findings:,} findings", has_changed=bool(findings))
    if findings:
        raise StorageError(f"{findings:,} findings", result["workspace"], "Run: driftline verify --repair")
    return result
