"""The Prefect flows of ``prefect.yaml``, one for each command: index, fleet, compact, cleanup, prune and verify.

Prefect builds its web form from the parameters, and shows progress and reports as artifacts. An index run does not
import other flows' libraries, such as the memory catalog's.
"""

from __future__ import annotations

import inspect
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run
from pydantic import Field

from driftline.flows.config.driftline_toml import prices_for
from driftline.flows.config.index_request import FLEET_OPTIONS, OPTIONS, IndexRequest
from driftline.flows.config.toml_schema import FleetTable
from driftline.flows.config.workspace_names import SERVER_VARIABLE, absolute_workspace
from driftline.flows.output.report_page import History, Series, in_words, line_plot, newest_runs
from driftline.flows.output.run_reports import FleetsReport
from driftline.flows.output.terminal_reports import requests_text
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
from driftline.storage.entities import DEFAULT_PARTS
from driftline.storage.errors import DriftlineError, StorageError
from driftline.storage.objects.store_requests import KINDS
from driftline.storage.option_table import Option, documented, given_values, spread
from driftline.storage.workspace.records import RunRecord
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


# -- artifacts of finished runs: a report with tables and plots, and the skipped files -------------

MAX_ROWS = 1_000
"""Maximum rows per table artifact; the workspace's run history has all of them."""
HISTORY_RUNS = 20


def show_index(result: dict[str, Any], request: IndexRequest) -> bool:
    """Publish an index run's report, with plots of earlier runs, and a table of skipped files with reasons.

    The report is published only if the run changed something, and the table only if it lists files that the previous
    run did not skip. Returns whether the run changed something.
    """
    sources, runs = result["sources"], _runs(request)
    skipped = [{"source": source["entity"], **file} for source in sources for file in source["skipped"]]
    if {*map(_identity, skipped)} - {*map(_identity, _skipped_before(runs, result["run_id"]))}:
        _table(_key("driftline-skipped", sources), skipped, "not indexed")
    if not (has_changed := request.dry_run or has_effect(result)):
        return False
    text = ["# Index run", f"{result['run_id']}: {result['seconds']:.1f} s, into `{result['workspace']}`"]
    if link := page_of_run(result["run_id"]):
        text.append(f"[This run in the index, which can be searched there]({link})")
    if request.dry_run:
        text.append("**A dry run: nothing was written.**")
    text += ["## Documents and lines", _counts(sources), *_plots(runs)]
    text += ["## Seconds by phase", _seconds("phases", result)]
    if result["worker_phases"]:
        text += ["## Worker seconds by phase, summed over workers", _seconds("worker_phases", result)]
    if result["requests"]:
        kinds = {kind: [counts.get(kind, 0) for counts in result["requests_by_phase"].values()] for kind in KINDS}
        table = _markdown(list(result["requests_by_phase"]), kinds)
        text += ["## Requests", requests_text(result["requests"], _prices()), table]
    done = {name: sum(each[name] for each in sources) for name in ("new", "changed", "deleted", "lines_embedded")}
    key = _key("driftline-report", sources)
    create_markdown_artifact("\n\n".join(text), key=key, description=in_words(done) or "no changes")
    return has_changed


def _key(name: str, sources: Sequence[Mapping[str, Any]]) -> str:
    """Return an artifact's key: each source has its own, so Prefect shows the history of one source."""
    entities = {source["entity"] for source in sources}
    (parts,) = entities if len(entities) == 1 else ("",)
    ids = [part.partition(":")[2] for part in parts.split("/") if part not in DEFAULT_PARTS]
    return "-".join(filter(None, [name, *re.findall("[a-z0-9]+", " ".join(ids).lower())]))


def has_effect(result: Mapping[str, Any]) -> bool:
    """Return whether an index run changed the index or failed.

    Examples:
        >>> unchanged = {"new": 0, "changed": 0, "deleted": 0, "lines_embedded": 0}
        >>> has_effect({"sources": [unchanged]}), has_effect({"sources": [{**unchanged, "deleted": 1}]})
        (False, True)
    """
    names = ("new", "changed", "deleted", "lines_embedded")
    return bool(result.get("failed")) or any(source[name] for source in result["sources"] for name in names)


def _runs(request: IndexRequest) -> list[RunRecord]:
    """Return recent runs, newest first, or none if the store fails, because the run itself is complete."""
    try:
        return newest_runs(Workspace.open(request.workspace, request.storage_options), HISTORY_RUNS)
    except DriftlineError as error:
        get_run_logger().warning("The report has no plots of earlier runs: %s", error)
        return []


def _identity(file: Mapping[str, Any]) -> tuple[str, str, str]:
    return file["source"], file["path"], file["reason"]


def _skipped_before(runs: Iterable[RunRecord], run_id: str) -> list[dict[str, Any]]:
    """Return the files that each source skipped in its last run before ``run_id``."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for source in run.main_sources if run.run_id != run_id else ():
            found.setdefault(source["entity"], source.get("skipped", []))
    return [{"source": entity, **file} for entity, files in found.items() for file in files]


def show_fleets(report: FleetsReport) -> None:
    """Publish a fleet sync's changes and failures, if any."""
    indexed, rows = set(report.sync.to_index if report.sync else ()), list[dict[str, Any]]()
    for fleet in report.fleets:
        for row in fleet.repositories:
            if row.entity in indexed or row.state == "retired" or row.has_failed:
                told = {name: getattr(row, name) for name in ("path", "state", "entity", "indexed", "reason")}
                rows.append({"fleet": fleet.name, **told})
    _table("driftline-fleet", rows, "changed or failed")


def page_of_run(run_id: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the link to a run's page on the web server at $DRIFTLINE_SERVER.

    Returns None if the variable does not contain a usable URL.
    """
    try:
        parts = urlsplit(environ.get(SERVER_VARIABLE, ""))
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return None
    path = quote(parts.path.rstrip("/"))
    return f"{parts.scheme}://{parts.netloc}{path}/index#{run_id}"


def _prices() -> Mapping[str, float]:
    """Return the prices in the worker's configuration file.

    Returns nothing if the file is invalid, so the run still succeeds.
    """
    try:
        return prices_for()
    except DriftlineError as error:
        get_run_logger().warning("The report has no request prices: %s", error)
        return {}


def _counts(sources: Iterable[Mapping[str, Any]]) -> str:
    """Format each source's document and line counts as a table."""
    names = ("new", "changed", "deleted", "unchanged", "skipped", "lines_embedded", "lines_total")
    rows = {}
    for each in sources:
        counts = {**each, "unchanged": each["unchanged"] + each["touched"], "skipped": len(each["skipped"])}
        rows[each["entity"]] = [counts[name] for name in names]
    return _markdown(names, rows)


def _seconds(kind: str, result: Mapping[str, Any]) -> str:
    """Format the seconds of each phase, in the run and in each of its sources, as a table."""
    names, sources = [*result[kind]], result["sources"]
    parts = {"all": result[kind], **{each["entity"]: each[kind] for each in sources}}
    return _markdown(names, {of: [round(part.get(name, 0.0), 2) for name in names] for of, part in parts.items()})


def show_compaction(result: dict[str, Any]) -> None:
    """Publish the statistics of each tenant that a compaction changed, before and after it."""
    moments = ("before", "after")
    changed = [part for part in result["tenants"] if part["folded"] or part["versions_removed"]]
    rows = [{"tenant": part["tenant"], "when": when, **part[when]} for part in changed for when in moments]
    if rows:
        create_table_artifact(rows, key="driftline-compact", description=f"Run {result['run_id']}")


def show_cleanup(result: dict[str, Any]) -> None:
    """Publish the orphans that a cleanup found, if any, and whether it deleted them."""
    verb = "orphaned, none deleted" if result["dry_run"] else f"orphaned, {result['deleted_count']:,} deleted"
    _table("driftline-cleanup", result["orphans"], f"{verb}; {result['scanned_count']:,} objects")


def show_verification(result: dict[str, Any]) -> None:
    """Publish a verification's findings, if any."""
    figures = f"{result['documents']:,} documents, {result['lines']:,} lines"
    _table("driftline-verify", result["findings"], f"found in {figures}")


def _plots(runs: Sequence[RunRecord]) -> list[str]:
    """Return plots of growth, deltas and fragments over the last runs."""
    history = History(runs[::-1])
    growth = [history.growth("lines_total"), history.growth("documents_total")]
    plots = {
        "Lines and documents": _image("Lines and documents", growth),
        "Deltas": _image("Deltas by source", history.deltas()),
        "Fragments": _image("Fragments after each compaction", history.measured("fragments")),
    }
    shown = [f"![{title}]({image})" for title, image in plots.items() if image]
    return [f"## The last {len(history.runs)} runs", *shown] if shown else []


def _image(title: str, series: Sequence[Series]) -> str:
    # Images do not inherit the text colour; this grey is legible on dark and light pages.
    svg = line_plot(title, series).replace("currentColor", "#8a8f98")
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}" if svg else ""


def _table(key: str, rows: Sequence[dict[str, Any]], what: str) -> None:
    if not rows:
        return
    more = f"; the first {MAX_ROWS:,} are shown" if len(rows) > MAX_ROWS else ""
    create_table_artifact(list(rows[:MAX_ROWS]), key=key, description=f"{len(rows):,} {what}{more}")


def _markdown(columns: Sequence[str], rows: Mapping[str, Sequence[float]]) -> str:
    """Return a Markdown table of numbers, with a row per entry of ``rows`` and a column per name."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

    head = [line(["", *(name.replace("_", " ") for name in columns)]), line(["---"] + ["---:"] * len(columns))]
    return "\n".join([*head, *(line([name, *(f"{figure:,}" for figure in row)]) for name, row in rows.items())])
