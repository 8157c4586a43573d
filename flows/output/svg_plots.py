"""Draw line plots as SVG text, to embed in an HTML page or to show as an image."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 34, 46
_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
MAX_SERIES = len(_COLOURS)
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot: its values over time, oldest first."""

    name: str
    points: Sequence[tuple[datetime, float]]


def line_plot(title: str, series: Sequence[Series], *, unit: str = "", steps: bool = False) -> str:
    """Draw an ``<svg>`` of ``series`` over time, with the y axis from 0 up; "" if all points are of one moment.

    Draws the first ``MAX_SERIES`` series that have points. ``steps`` holds each value until the next point. The tooltip
    of a point shows its value.
    """
    drawn = [line for line in series if line.points][:MAX_SERIES]
    moments = [moment.timestamp() for line in drawn for moment, _ in line.points]
    first, last = min(moments, default=0.0), max(moments, default=0.0)
    if first == last:
        return ""
    step = _tick(max(value for line in drawn for _, value in line.points))
    top = step * _TICKS

    def to_pixels(moment: datetime, value: float) -> tuple[float, float]:
        share = (moment.timestamp() - first) / (last - first)
        x = _LEFT + share * (WIDTH - _LEFT - _RIGHT)
        return x, HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{_text(title)}" font-family="system-ui, sans-serif" font-size="13" fill="currentColor">',
        f'<text x="{_LEFT}" y="17" font-size="15" font-weight="600">{_text(title)}</text>',
        *_axis(step, unit),
        *_dates(first, last),
    ]
    for colour, line in zip(_COLOURS, drawn, strict=False):
        pixels = [to_pixels(moment, value) for moment, value in line.points]
        parts.append(f'<path d="{_path(pixels, steps)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for (moment, value), (x, y) in zip(line.points, pixels, strict=True):
            tooltip = _text(f"{line.name}: {number(value)}{unit and ' ' + unit}, {moment:%Y-%m-%d %H:%M:%S}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"><title>{tooltip}</title></circle>')
    parts += _legend([line.name for line in drawn])
    return "".join([*parts, "</svg>"])


_BAR_HEIGHT, _NAME_WIDTH, _NAME_CHARACTERS = 20, 170, 24


def bar_plot(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Draw an ``<svg>`` with a horizontal bar for each name and value; "" if none is above 0."""
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
    """Return a number in short form: 1,234 or 12.5M or 0.034."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.3g}{suffix}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def _tick(highest: float) -> float:
    """Return a round tick distance; ``_TICKS`` of them cover ``highest``."""
    if highest <= 0:
        return 1.0 / _TICKS
    power = 10.0 ** math.floor(math.log10(highest / _TICKS))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * _TICKS >= highest * (1 - 1e-9))


def _axis(step: float, unit: str) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        y = HEIGHT - _BOTTOM - tick / _TICKS * (HEIGHT - _TOP - _BOTTOM)
        yield (
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="currentColor" opacity="0.15"/>'
        )
        label = number(tick * step) + (f" {unit}" if unit and tick == _TICKS else "")
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" opacity="0.7">{_text(label)}</text>'


def _dates(first: float, last: float) -> Iterator[str]:
    y = HEIGHT - _BOTTOM + 17
    for x, anchor, moment in ((_LEFT, "start", first), (WIDTH - _RIGHT, "end", last)):
        date = f"{datetime.fromtimestamp(moment).astimezone():%Y-%m-%d %H:%M}"
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
