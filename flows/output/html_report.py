"""``driftline report``: one HTML page about a workspace, complete in itself: it loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from driftline.flows.output.run_series import History, to_row
from driftline.flows.output.svg_plots import Series, line_plot, number
from driftline.storage.model import WorkspaceStats
from driftline.storage.workspace.run_history import RunRecord

ROWS_SHOWN = 50
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.dim { opacity: .65; } .bad { color: #dc2626; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tiles div { border: 1px solid #8884; border-radius: 8px; padding: .5rem 1rem; min-width: 8rem; }
.tiles b { display: block; font-size: 1.3rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 1.2rem; }
.plots svg { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #8883; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } .scroll { overflow-x: auto; }
"""


def render(
    stats: WorkspaceStats, runs: Sequence[RunRecord], now: datetime, prices: Mapping[str, float] | None = None
) -> str:
    """The page; ``runs`` are newest first. ``prices`` are those of 1,000 requests, by kind, in any currency."""
    history = History(list(reversed(runs)))
    plots, cost = _plots(history, prices or {})
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
    title = f"Driftline: {stats.workspace}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{_text(title)}</h1>",
            f'<p class="dim">{now:%Y-%m-%d %H:%M} {now.tzname()}, model {_text(str(stats.model))}</p>',
            '<div class="tiles">',
            *(f"<div><b>{_text(value)}</b>{_text(name)}</div>" for name, value in tiles.items()),
            "</div>",
            '<div class="plots">',
            *plots,
            "</div>",
            "<h2>Sources</h2>",
            _table(("entity", "uri", "documents", "lines"), stats.sources),
            "<h2>Runs</h2>",
            _runs(runs),
            "</body></html>",
            "",
        ]
    )


def _plots(history: History, prices: Mapping[str, float]) -> tuple[list[str], float | None]:
    def bytes_read(run: RunRecord) -> float:
        return float(to_row(run)["bytes_read"])

    def changed(name: str) -> Series:
        return history.of_runs("index", name, lambda run: float(to_row(run)[name]))

    requests, cost = history.requests(prices)
    size = [
        history.of_runs("compact", "before", lambda run: to_row(run)["bytes_before"] / 1e6),
        history.of_runs("compact", "after", lambda run: to_row(run)["bytes_after"] / 1e6),
    ]
    seconds = [history.of_runs(kind, kind, lambda run: run.seconds) for kind in ("index", "compact", "cleanup")]
    drawn = [
        line_plot("Growth: lines", [history.growth("lines_total")], steps=True),
        line_plot("Growth: documents", [history.growth("documents_total")], steps=True),
        line_plot("Changes per run: documents", [changed(name) for name in ("new", "changed", "deleted")]),
        line_plot("Cost per run: time", seconds, unit="s"),
        line_plot("Cost per run: bytes read", [history.of_runs("index", "bytes", bytes_read)], unit="B"),
        line_plot("Cost per run: requests", requests),
        line_plot("Deltas by source", history.deltas(), steps=True),
        line_plot("Size of the workspace, compaction by compaction", size, unit="MB"),
        line_plot("Recall@10 of the vector index", history.measured("recall_at_10")),
        line_plot("Search time, p50", history.measured("p50_seconds", 1000.0), unit="ms"),
    ]
    return [f"<figure>{plot}</figure>" for plot in drawn if plot], cost


def _runs(runs: Sequence[RunRecord]) -> str:
    rows = []
    for run in runs[:ROWS_SHOWN]:
        row = to_row(run)
        basic = {name: row.pop(name) for name in ("run_id", "kind", "started", "seconds", "outcome")}
        told = ", ".join(f"{name} {_figure(value)}" for name, value in row.items() if value not in (0, [], None))
        rows.append({**basic, "started": str(basic["started"])[:19].replace("T", " "), "what": told})
    return _table(("started", "kind", "outcome", "seconds", "what", "run_id"), rows)


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return number(value) if isinstance(value, int | float) else str(value)


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    def cell(name: str, value: Any) -> str:
        if isinstance(value, int | float):
            return f'<td class="n">{value:,}</td>'
        bad = ' class="bad"' if name == "outcome" and value != "done" else ""
        return f"<td{bad}>{_text(str(value))}</td>"

    body = "".join(f"<tr>{''.join(cell(name, row.get(name, '')) for name in columns)}</tr>" for row in rows)
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _text(text: str) -> str:
    return escape(text, quote=True)
