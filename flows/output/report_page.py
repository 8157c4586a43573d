"""Compute statistics of runs (rows and time series), and draw the plots and the HTML page of ``driftline report``.

The page is a self-contained HTML file with SVG plots and no scripts.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib.resources import files
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from driftline.storage.entities import Boundary
from driftline.storage.objects.store_requests import price
from driftline.storage.workspace.records import RunHistory, RunRecord, WorkspaceStats, whole_run
from driftline.storage.workspace.workspace import Workspace

_SUMMED = ("new", "changed", "touched", "deleted", "lines_embedded", "bytes_read")


@dataclass(frozen=True, slots=True)
class Series:
    """A line in a plot: its values over time, oldest first."""

    name: str
    points: Sequence[tuple[datetime, float]]


def newest_runs(
    workspace: Workspace, limit: int, others: Iterable[RunRecord] = (), within: Boundary | None = None
) -> list[RunRecord]:
    """Return up to ``limit`` runs of all tenants and ``others``, newest first; a run over several tenants is listed
    once.

    ``others`` must be sorted newest first. With ``within``, the boundary's tenants are read, and nothing else.
    """
    tenants = [tenant for tenant in workspace.tenants() if within is None or tenant in within.tenants]
    histories = [RunHistory(workspace.objects, tenant) for tenant in tenants]
    run_ids = heapq.merge(*([(run_id, n) for run_id in runs.ids()] for n, runs in enumerate(histories)), reverse=True)
    every = heapq.merge(_read(run_ids, histories), others, key=_moment, reverse=True)
    return list(islice(every, limit))


def _read(run_ids: Iterable[tuple[str, int]], histories: Sequence[RunHistory]) -> Iterator[RunRecord]:
    """Yield the records of ``(run id, position of its history)`` pairs, merged by run id."""
    for run_id, group in groupby(run_ids, key=itemgetter(0)):
        records = [record for _, tenant in group if (record := histories[tenant].readable(run_id)) is not None]
        if records:
            yield whole_run(records)


def _parts(run: RunRecord) -> list[dict[str, Any]]:
    """Return a run's reports, one per tenant."""
    parts: list[dict[str, Any]] = run.report.get("parts", [run.report])
    return parts


def to_row(run: RunRecord) -> dict[str, Any]:
    """Return a run's ``runs --json`` object: the fields common to all runs, then those specific to its kind."""
    return {
        "run_id": run.run_id,
        "kind": run.kind,
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "outcome": run.outcome,
        **_figures(run),
    }


OF_EVERY_RUN = ("run_id", "kind", "started", "seconds", "outcome")
SHOWN_COMMIT = 12
"""How many characters of a commit id to show."""


def in_words(row: Mapping[str, Any]) -> str:
    """Format the nonzero statistics of a row from ``to_row``.

    Examples:
        >>> in_words({"kind": "index", "sources": ["source:a"], "new": 1_200, "changed": 0, "commits": ["5e50c5f"]})
        'source:a, 1,200 new, commits 5e50c5f'
    """
    shown = []
    for name, value in row.items():
        if name in OF_EVERY_RUN or not value:
            continue
        words = name.replace("_", " ")
        if name == "sources":
            shown.append(value[0] if len(value) == 1 else f"{len(value):,} sources")
        elif isinstance(value, list):
            each = [str(one)[:SHOWN_COMMIT] if name == "commits" else str(one) for one in value]
            shown.append(f"{words} {' '.join(each)}")
        else:
            shown.append(f"{value:,} {words}" if isinstance(value, int) else f"{words} {value}")
    return ", ".join(shown)


def _figures(run: RunRecord) -> dict[str, Any]:
    report = run.report
    match run.kind:
        case "index":
            sources = report.get("sources", [])
            return {
                "sources": [source["entity"] for source in sources],
                **{name: sum(source.get(name, 0) for source in sources) for name in _SUMMED},
                "skipped": sum(len(source.get("skipped", ())) for source in sources),
                "commits": sorted({source["commit"] for source in sources if source.get("commit")}),
                "failed": [failure["uri"] for failure in report.get("failed", ())],
                "requests": sum(report.get("requests", {}).values()),
            }
        case "compact":
            parts = _parts(run)
            return {
                "folded": sum(source["deltas"] for part in parts for source in part.get("folded", ())),
                "versions_removed": sum(part.get("versions_removed", 0) for part in parts),
                "bytes_before": sum((part.get("before") or {}).get("bytes") or 0 for part in parts),
                "bytes_after": sum((part.get("after") or {}).get("bytes") or 0 for part in parts),
            }
        case "cleanup":
            return {"deleted": sum(part.get("deleted_count", 0) for part in _parts(run))}
        case "search":
            return {name: report.get(name) for name in ("searches", "hit_rate")}
        case "remove":
            return {name: report.get(name) for name in ("entity", "documents", "lines")}
    return {}


@dataclass(frozen=True, slots=True)
class History:
    """A workspace's history as series for plots; ``runs`` are oldest first."""

    runs: Sequence[RunRecord]

    def growth(self, name: str) -> Series:
        """Return the sum of ``name`` (``documents_total`` or ``lines_total``) over all sources, after each run.

        A source that was indexed before the first of these runs is included from the start, with its first known total.
        """
        totals = self._before(name)
        points: list[tuple[datetime, float]] = []
        for run in self.runs:
            if run.kind == "remove":
                totals.pop(run.report.get("entity", ""), None)
            for source in _finished_sources(run):
                totals[source["entity"]] = source.get(name, 0)
            if run.kind == "remove" or any(_finished_sources(run)):
                points.append((_moment(run), float(sum(totals.values()))))
        return Series(name.removesuffix("_total"), points)

    def _before(self, name: str) -> dict[str, int]:
        totals: dict[str, int] = {}
        removed = set[str]()
        for run in self.runs:
            if run.kind == "remove":
                removed.add(run.report.get("entity", ""))
            for source in _finished_sources(run):
                entity = source["entity"]
                existed = source.get("base") or sum(source.get(name, 0) for name in ("unchanged", "touched", "changed"))
                if entity not in totals and entity not in removed:
                    totals[entity] = source.get(name, 0) if existed else 0
        return totals

    def of_runs(self, kind: str, name: str, value: Callable[[RunRecord], float | None]) -> Series:
        """Return ``value`` for each run of ``kind``, skipping runs where it is None."""
        points = ((_moment(run), value(run)) for run in self.runs if run.kind == kind)
        return Series(name, [(moment, figure) for moment, figure in points if figure is not None])

    def deltas(self) -> list[Series]:
        """Return each source's number of deltas, the source with the most deltas first."""
        by_entity: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
        for run in self.runs:
            for source in _finished_sources(run):
                if source.get("deltas") is not None:
                    by_entity[source["entity"]].append((_moment(run), float(source["deltas"])))
            for part in _parts(run) if run.kind == "compact" else ():
                for folded in part.get("folded", ()):
                    by_entity[folded["entity"]].append((_moment(run), 0.0))
        series = [Series(entity, points) for entity, points in by_entity.items()]
        return sorted(series, key=lambda line: max(value for _, value in line.points), reverse=True)

    def measured(self, name: str, scale: float = 1.0) -> list[Series]:
        """Return a metric recorded at the end of each compaction, such as ``recall_at_10``, keyed by tenant."""
        by_tenant: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
        for run in self.runs:
            for part in _parts(run) if run.kind == "compact" else ():
                figure = (part.get("after") or {}).get(name)
                if figure is not None:
                    by_tenant[part.get("tenant", "")].append((_moment(run), float(figure) * scale))
        return [Series(tenant, points) for tenant, points in by_tenant.items()]

    def requests(self, prices: Mapping[str, float]) -> tuple[list[Series], float | None]:
        """Return the requests to the store by type, and their cost; ``prices`` are per 1,000 requests.

        The cost is None if no type has a price. Runs that recorded no requests are skipped.
        """
        by_kind: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
        for run in self.runs:
            for kind, count in run.report.get("requests", {}).items():
                by_kind[kind].append((_moment(run), float(count)))
        cost = price({kind: round(sum(count for _, count in points)) for kind, points in by_kind.items()}, prices)
        return [Series(kind, points) for kind, points in by_kind.items()], cost


def _finished_sources(run: RunRecord) -> list[Mapping[str, Any]]:
    """Return the sources whose main index a run completed; failed sources have no revision."""
    return [source for source in run.main_sources if source.get("revision")]


def _moment(run: RunRecord) -> datetime:
    return datetime.fromisoformat(run.started)


ROWS_SHOWN = 50
TEMPLATE = "report.html.j2"


def render(
    stats: WorkspaceStats, runs: Sequence[RunRecord], now: datetime, prices: Mapping[str, float] | None = None
) -> str:
    """Return the page; ``runs`` are newest first.

    ``prices`` maps request types to the price of 1,000 requests, in any currency.
    """
    _, cost = History(runs).requests(prices or {})
    tiles = {
        "documents": f"{stats.total_documents:,}",
        "indexed lines": f"{stats.total_lines:,}",
        "sources": f"{len(stats.sources):,}",
        "deltas": f"{stats.deltas:,}",
        "vector index": str(stats.index_type or "none"),
        "runs shown": f"{len(runs):,}",
    }
    if cost is not None:
        tiles["cost of requests"] = f"{cost:,.4f}"

    from jinja2 import Environment, StrictUndefined  # not loaded for rows

    # Source and workspace names are untrusted, so the template escapes everything except the plots, which are SVG.
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
    """Return the plots of ``runs`` (newest first) as SVG."""
    history = History(list(reversed(runs)))
    return [plot for plot in _plots(history, history.requests({})[0]) if plot]


def _plots(history: History, requests: Sequence[Series]) -> Iterator[str]:
    """Yield the plots as SVG, or "" for plots with no points."""

    def per_run(kind: str, figure: str, name: str) -> Series:
        return history.of_runs(kind, name, lambda run: to_row(run)[figure])

    size = [per_run("compact", f"bytes_{moment}", moment) for moment in ("before", "after")]
    seconds = [history.of_runs(kind, kind, lambda run: run.seconds) for kind in ("index", "compact", "cleanup")]
    yield line_plot("Growth: lines", [history.growth("lines_total")], steps=True)
    yield line_plot("Growth: documents", [history.growth("documents_total")], steps=True)
    changes = [per_run("index", state, state) for state in ("new", "changed", "deleted")]
    yield line_plot("Changes per run: documents", changes)
    yield line_plot("Cost per run: time", seconds, unit="s")
    yield line_plot("Cost per run: bytes read", [per_run("index", "bytes_read", "bytes")], unit="B")
    yield line_plot("Cost per run: requests", requests)
    yield line_plot("Deltas by source", history.deltas(), steps=True)
    yield line_plot("Size of the workspace, compaction by compaction", size, unit="B")
    yield line_plot("Recall@10 of the vector index", history.measured("recall_at_10"))
    searches = history.of_runs("search", "median of an hour", lambda run: run.seconds * 1000.0)
    hit_rates = history.of_runs("search", "mean of an hour", lambda run: run.report.get("hit_rate"))
    yield line_plot("Search time with a filter", [searches], unit="ms", even_one=True)
    yield line_plot("Hit rate of filters: fraction of lines that pass", [hit_rates], even_one=True)
    yield line_plot("Search time, p50", history.measured("p50_seconds", 1000.0), unit="ms")


def run_row(run: RunRecord) -> dict[str, Any]:
    """Return a row for the runs table: ``what`` lists the run's nonzero statistics."""
    row = to_row(run)
    started = str(row["started"])[:19].replace("T", " ")
    return {**{name: row[name] for name in OF_EVERY_RUN}, "started": started, "what": in_words(row)}


WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 34, 46
_LEGEND = 20
_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
MAX_SERIES = len(_COLOURS)
_TICKS = 4
HALF_HOUR_SECONDS = 1_800
"""How much time a plot shows on each side of a single point."""
_LEAST = 1000 * sys.float_info.min
"""The smallest axis maximum; ticks of a smaller one would lose precision and round to 0."""


def line_plot(
    title: str, series: Sequence[Series], *, unit: str = "", steps: bool = False, even_one: bool = False
) -> str:
    """Draw an ``<svg>`` of ``series`` over time, with the y axis starting at 0. Returns "" for fewer than two points in
    time, unless ``even_one`` is set.

    Draws the finite points of the first ``MAX_SERIES`` series that have any. With ``steps``, each value is held until
    the next point. A point's tooltip shows its value.
    """
    finite = [Series(line.name, [point for point in line.points if math.isfinite(point[1])]) for line in series]
    drawn = [line for line in finite if line.points][:MAX_SERIES]
    moments = [moment.timestamp() for line in drawn for moment, _ in line.points]
    first, last = min(moments, default=0.0), max(moments, default=0.0)
    if first == last:
        if not (even_one and drawn):
            return ""
        first, last = first - HALF_HOUR_SECONDS, last + HALF_HOUR_SECONDS
    values = [value for line in drawn for _, value in line.points]
    step = max(_tick(max(values)), 1.0 if all(value.is_integer() for value in map(float, values)) else 0.0)
    top = step * _TICKS
    height = HEIGHT if len(drawn) > 1 else HEIGHT - _LEGEND

    def to_pixels(moment: datetime, value: float) -> tuple[float, float]:
        share = (moment.timestamp() - first) / (last - first)
        x = _LEFT + share * (WIDTH - _LEFT - _RIGHT)
        return x, HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{_text(title)}" font-family="system-ui, sans-serif" font-size="13" fill="currentColor">',
        f'<text x="{_LEFT}" y="17" font-size="15" font-weight="600">{_text(title)}</text>',
        *_axis(step, unit),
        *_dates(first, last),
    ]
    for colour, line in zip(_COLOURS, drawn, strict=False):
        pixels = [to_pixels(moment, value) for moment, value in line.points]
        parts.append(f'<path d="{_path(pixels, steps)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for (moment, value), (x, y) in zip(line.points, pixels, strict=True):
            tooltip = _text(f"{line.name}: {measured(value, unit)}, {moment:%Y-%m-%d %H:%M:%S}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"><title>{tooltip}</title></circle>')
    parts += _legend([line.name for line in drawn])
    return "".join([*parts, "</svg>"])


_BAR_HEIGHT, _NAME_WIDTH, _NAME_CHARACTERS = 20, 170, 24


def bar_plot(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Draw an ``<svg>`` with a horizontal bar for each name and finite value, or return "" if none is above 0."""
    values = [(name, value) for name, value in values if math.isfinite(value)]
    most = max((value for _, value in values), default=0.0)
    if most <= 0:
        return ""
    height, span = _TOP + len(values) * _BAR_HEIGHT, WIDTH - _NAME_WIDTH - _LEFT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{_text(title)}" font-family="system-ui, sans-serif" font-size="12" fill="currentColor">',
        f'<text x="0" y="17" font-size="15" font-weight="600">{_text(title)}</text>',
    ]
    for position, (name, value) in enumerate(values):
        y, width = _TOP + position * _BAR_HEIGHT, max(0.0, value) / most * span
        short = name if len(name) <= _NAME_CHARACTERS else "…" + name[1 - _NAME_CHARACTERS :]
        parts.append(f'<text x="{_NAME_WIDTH - 8}" y="{y + 11}" text-anchor="end">{_text(short)}</text>')
        parts.append(
            f'<rect x="{_NAME_WIDTH}" y="{y}" width="{width:.1f}" height="14" rx="2" fill="{_COLOURS[0]}">'
            f"<title>{_text(name)}: {number(value)}</title></rect>"
        )
        parts.append(f'<text x="{_NAME_WIDTH + width + 6:.1f}" y="{y + 11}" opacity="0.7">{number(value)}</text>')
    return "".join([*parts, "</svg>"])


def number(value: float) -> str:
    """Format a number in short form: 1,234 or 12.5M or 0.034; nan and inf are printed as such."""
    if not math.isfinite(value):
        return str(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.3g}{suffix}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def measured(value: float, unit: str) -> str:
    """Format a number with its unit, if any; a number of bytes gets a prefix instead of a suffix.

    Examples:
        >>> measured(2e7, "B"), measured(1_234, "B"), measured(12_500, "s"), measured(3, "")
        ('20 MB', '1,234 B', '12.5k s', '3')
    """
    text = number(value)
    digits = text.rstrip("kMG") if unit == "B" else text
    return f"{digits} {text[len(digits) :]}{unit}" if unit else text


def _tick(highest: float) -> float:
    """Return a round tick spacing such that ``_TICKS`` ticks reach ``highest``."""
    if highest < _LEAST:
        return 1.0 / _TICKS
    power = 10.0 ** math.floor(math.log10(highest / _TICKS))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * _TICKS >= highest * (1 - 1e-9))


def _axis(step: float, unit: str) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        y = HEIGHT - _BOTTOM - tick / _TICKS * (HEIGHT - _TOP - _BOTTOM)
        yield (
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="currentColor" opacity="0.15"/>'
        )
        label = measured(tick * step, unit if tick == _TICKS else "")
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" opacity="0.7">{_text(label)}</text>'


def _dates(first: float, last: float) -> Iterator[str]:
    y = HEIGHT - _BOTTOM + 17
    dates = [f"{datetime.fromtimestamp(moment).astimezone():%Y-%m-%d %H:%M:%S}" for moment in (first, last)]
    shown = -len(":00") if dates[0][:-3] != dates[1][:-3] else None  # seconds only where the minutes are the same
    for x, anchor, date in zip(
        (_LEFT, WIDTH - _RIGHT), ("start", "end"), (each[:shown] for each in dates), strict=True
    ):
        yield f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}" opacity="0.7">{date}</text>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    if len(names) < 2:
        return
    share = (WIDTH - _LEFT - _RIGHT) / len(names)
    longest = max(4, int(share / 7.5) - 2)
    for position, (colour, name) in enumerate(zip(_COLOURS, names, strict=False)):
        x, y = _LEFT + position * share, HEIGHT - 8
        short = name if len(name) <= longest else "…" + name[1 - longest :]
        yield f'<rect x="{x:.1f}" y="{y - 8}" width="9" height="9" fill="{colour}"/>'
        yield f'<text x="{x + 13:.1f}" y="{y}"><title>{_text(name)}</title>{_text(short)}</text>'


def _path(pixels: Sequence[tuple[float, float]], steps: bool) -> str:
    commands = [f"M{pixels[0][0]:.1f} {pixels[0][1]:.1f}"]
    for x, y in pixels[1:]:
        commands.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}")
    return "".join(commands)


def _text(text: str) -> str:
    """Escape ``text`` for XML and replace control characters, which XML forbids: names are untrusted."""
    return escape("".join(c if c.isprintable() else "�" for c in text), quote=True)
