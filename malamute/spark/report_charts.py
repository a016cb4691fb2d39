"""Charts as SVG, to stand in a page: lines over time, bars, and columns. Pure; no library, no script.

Colours are the page's own (`--c1` to `--c8`, `--ink`, `--faint`), so a chart is dark where the page is. Every
mark has a `<title>`, which browsers show when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 960, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
COLOURS = 8
BAR, BAR_GAP = 18, 8
LABEL_CHARACTERS = 44

Point = tuple[float, float]


class Tick(NamedTuple):
    """A place on an axis, from 0 to 1, and what is written there."""

    place: float
    label: str


def short(value: float) -> str:
    """A number in few characters: 12.3M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def nice_top(value: float) -> float:
    """The next round number at or above a value, to end an axis with."""
    if value <= 0:
        return 1.0
    size: float = 10.0 ** floor(log10(value))
    return next(step * size for step in (1, 2, 2.5, 5, 10) if step * size >= value * (1 - 1e-9))


def lines(series: Mapping[str, Sequence[Point]], ticks: Sequence[Tick], unit: str) -> str:
    """Lines over a common axis: points are (place from 0 to 1, value), in order."""
    top = nice_top(max((value for points in series.values() for _, value in points), default=0))
    marks = []
    for number, (name, points) in enumerate(series.items()):
        colour = f"var(--c{number % COLOURS + 1})"
        path = " ".join(f"{_x(place):.1f},{_y(value, top):.1f}" for place, value in points)
        peak = max(value for _, value in points)
        title = f"<title>{escape(name)}: at most {short(peak)} {escape(unit)}</title>"
        if len(points) == 1:
            place, value = points[0]
            marks.append(f'<circle cx="{_x(place):.1f}" cy="{_y(value, top):.1f}" r="3" fill="{colour}">')
            marks.append(f"{title}</circle>")
        else:
            marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5">')
            marks.append(f"{title}</polyline>")
    return _svg(HEIGHT, _frame(top, ticks) + "".join(marks)) + legend(list(series))


def columns(values: Sequence[tuple[str, float]], ticks: Sequence[Tick], unit: str) -> str:
    """A column for each value, from left to right; the ticks are written below."""
    top = nice_top(max((value for _, value in values), default=0))
    width = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    marks = []
    for number, (name, value) in enumerate(values):
        y = _y(value, top)
        marks.append(
            f'<rect x="{LEFT + number * width:.1f}" y="{y:.1f}" width="{max(1.0, width - 1):.1f}"'
            f' height="{HEIGHT - BOTTOM - y:.1f}" fill="var(--c1)">'
            f"<title>{escape(name)}: {value:,.0f} {escape(unit)}</title></rect>"
        )
    return _svg(HEIGHT, _frame(top, ticks) + "".join(marks))


def bars(values: Sequence[tuple[str, float]], unit: str) -> str:
    """A bar for each value, from top to bottom, with its name and its number."""
    top = max((value for _, value in values), default=0) or 1
    start, room = 330, WIDTH - 330 - 80
    marks = []
    for number, (name, value) in enumerate(values):
        y = number * (BAR + BAR_GAP) + BAR_GAP
        width = max(1.0, room * value / top)
        label = name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…"
        marks.append(
            f'<text x="{start - 8}" y="{y + BAR - 5}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{start}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="var(--c1)">'
            f"<title>{escape(name)}: {value:,.0f} {escape(unit)}</title></rect>"
            f'<text x="{start + width + 6:.1f}" y="{y + BAR - 5}">{short(value)}</text>'
        )
    return _svg(len(values) * (BAR + BAR_GAP) + BAR_GAP, "".join(marks))


def legend(names: Sequence[str]) -> str:
    """Which colour is which."""
    items = (
        f'<li><span style="background: var(--c{number % COLOURS + 1})"></span>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _x(place: float) -> float:
    return LEFT + place * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)


def _frame(top: float, ticks: Sequence[Tick]) -> str:
    """Lines at quarters of the height with their values, and the ticks below."""
    parts = []
    for quarter in range(5):
        y = _y(top * quarter / 4, top)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--faint)"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(top * quarter / 4)}</text>'
        )
    for tick in ticks:
        anchor = "start" if tick.place < 0.05 else "end" if tick.place > 0.95 else "middle"
        x = _x(tick.place)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{escape(tick.label)}</text>')
    return "".join(parts)


def _svg(height: int, inner: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {ceil(height)}" role="img">{inner}</svg>'
