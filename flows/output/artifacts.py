"""Publish a finished flow run as Prefect artifacts: a report with tables and plots, skipped files, findings."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from driftline.flows.config.driftline_toml import prices_for
from driftline.flows.config.index_request import IndexRequest
from driftline.flows.config.workspace_names import SERVER_VARIABLE
from driftline.flows.output.report_page import History, Series, in_words, line_plot, newest_runs
from driftline.flows.output.run_reports import FleetsReport
from driftline.flows.output.terminal_reports import requests_text
from driftline.storage.entities import DEFAULT_PARTS
from driftline.storage.errors import DriftlineError
from driftline.storage.objects.store_requests import KINDS
from driftline.storage.workspace.records import RunRecord
from driftline.storage.workspace.workspace import Workspace

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
    text = ["# Index run", f"{result['seconds']:.1f} s, into `{result['workspace']}`; run {result['run_id']}"]
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
