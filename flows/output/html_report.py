"""Render ``driftline report``: a page about a workspace, as a single HTML file that loads and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from driftline.flows.output.run_series import History, to_row
from driftline.flows.output.svg_plots import Series, line_plot, number
from driftline.storage.model import WorkspaceStats
from driftline.storage.workspace.records import RunRecord

ROWS_SHOWN = 50
TEMPLATE = "report.html.j2"


def render(
    stats: WorkspaceStats, runs: Sequence[RunRecord], now: datetime, prices: Mapping[str, float] | None = None
) -> str:
    """Return the page; ``runs`` are newest first. ``prices`` are those of 1,000 requests, by kind, in any currency."""
    _, cost = History(runs).requests(prices or {})
    tiles = {
        "documents": f"{stats.total_documents:,}",
        "lines": f"{stats.total_lines:,}",
        "sources": f"{len(stats.sources):,}",
        "deltas": f"{stats.deltas:,}",
        "vector index": str(stats.index_type or "none"),
        "runs shown": f"{len(runs):,}",
    }
    if cost is not None:
        tiles["cost of requests"] = f"{cost:,.4f}"
    # Names of sources and workspaces are untrusted, so the template escapes everything except the plots, which are SVG.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("driftline.flows.output").joinpath(TEMPLATE).read_text(encoding="utf-8"))
    return template.render(
        stats=stats,
        written=f"{now:%Y-%m-%d %H:%M} {now.tzname()}",
        tiles=tiles,
        plots=plots_of(runs),
        runs=[run_row(run) for run in runs[:ROWS_SHOWN]],
    )


def plots_of(runs: Sequence[RunRecord]) -> list[str]:
    """Return the plots of ``runs``, newest first, as SVG."""
    history = History(list(reversed(runs)))
    return [plot for plot in _plots(history, history.requests({})[0]) if plot]


def _plots(history: History, requests: Sequence[Series]) -> Iterator[str]:
    """Yield the plots as SVG; "" for plots without a point."""

    def per_run(kind: str, figure: str, name: str, scale: float = 1.0) -> Series:
        return history.of_runs(kind, name, lambda run: to_row(run)[figure] * scale)

    size = [per_run("compact", f"bytes_{moment}", moment, 1e-6) for moment in ("before", "after")]
    seconds = [history.of_runs(kind, kind, lambda run: run.seconds) for kind in ("index", "compact", "cleanup")]
    yield line_plot("Growth: lines", [history.growth("lines_total")], steps=True)
    yield line_plot("Growth: documents", [history.growth("documents_total")], steps=True)
    changes = [per_run("index", state, state) for state in ("new", "changed", "deleted")]
    yield line_plot("Changes per run: documents", changes)
    yield line_plot("Cost per run: time", seconds, unit="s")
    yield line_plot("Cost per run: bytes read", [per_run("index", "bytes_read", "bytes")], unit="B")
    yield line_plot("Cost per run: requests", requests)
    yield line_plot("Deltas by source", history.deltas(), steps=True)
    yield line_plot("Size of the workspace, compaction by compaction", size, unit="MB")
    yield line_plot("Recall@10 of the vector index", history.measured("recall_at_10"))
    searches = history.of_runs("search", "median of an hour", lambda run: run.seconds * 1000.0)
    hit_rates = history.of_runs("search", "mean of an hour", lambda run: run.report.get("hit_rate"))
    yield line_plot("Search time with a filter", [searches], unit="ms")
    yield line_plot("Hit rate of filters: share of the lines that they allow", [hit_rates])
    yield line_plot("Search time, p50", history.measured("p50_seconds", 1000.0), unit="ms")


def run_row(run: RunRecord) -> dict[str, Any]:
    """Return a row of the table of runs: ``what`` lists the figures of its kind that are not zero."""
    row = to_row(run)
    shared = {name: row.pop(name) for name in ("run_id", "kind", "started", "seconds", "outcome")}
    figures = ", ".join(f"{name} {_figure(value)}" for name, value in row.items() if value not in (0, [], None))
    return {**shared, "started": str(shared["started"])[:19].replace("T", " "), "what": figures}


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return number(value) if isinstance(value, int | float) else str(value)
