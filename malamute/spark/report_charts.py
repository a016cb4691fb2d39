"""Charts to stand in a page: lines over time, columns, and bars. Pure; no library, no script.

A chart is as wide as there is room, and text keeps its size: only lines and columns are SVG, which is
stretched; the axes and the bars are HTML around it. Colours are the page's own (`--c1` to `--c8`, `--faint`),
so a chart is dark where the page is; `STYLE` has the other rules. Every mark has a title, which browsers show
when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

SIZE = 1000
"""The width and the height of the plane that lines and columns are drawn in, before it is stretched."""

COLOURS = 8

STYLE = (
    "figure{margin:8px 0}figcaption,.x,.y,.legend,.bars{font-size:13px;color:var(--soft)}"
    ".plot{display:grid;grid-template-columns:64px 1fr;margin:10px 0 0}.plot svg{width:100%;height:240px}"
    ".x,.y{position:relative}.x{grid-column:2;height:24px}"
    ".x span,.y span{position:absolute;white-space:nowrap}"
    ".y span{right:8px;transform:translateY(-50%)}.x span{top:4px;transform:translateX(-50%)}"
    ".x .first{transform:none}.x .last{transform:translateX(-100%)}"
    "@media(max-width:720px){.x span:nth-child(even){display:none}}"
    "polyline,line,path{vector-effect:non-scaling-stroke}"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:4px 0}"
    ".legend span{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px}"
    ".bars{display:grid;grid-template-columns:fit-content(45%) 1fr;gap:6px 8px;margin:8px 0}"
    ".bars span{overflow-wrap:anywhere;text-align:right}"
    ".bars div{display:flex;align-items:center;gap:6px;padding-right:60px}"
    ".bars i{flex-shrink:0;height:16px;min-width:1px;border-radius:2px;background:var(--c1)}"
    ".bars b{width:0;font-weight:400;white-space:nowrap}"
)

Point = tuple[float, float]


class Tick(NamedTuple):
    """A place on an axis, from 0 to 1, with its label."""

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
    """Lines over a common axis: points are (place from 0 to 1, value), in order. `unit` is that of values."""
    top = nice_top(max((value for points in series.values() for _, value in points), default=0))
    marks = []
    for number, (name, points) in enumerate(series.items()):
        look = f'fill="none" stroke="var(--c{number % COLOURS + 1})"'
        peak = max(value for _, value in points)
        title = f"<title>{escape(name)}: at most {short(peak)} {escape(unit)}</title>"
        places = [f"{place * SIZE:.1f},{_y(value, top):.1f}" for place, value in points]
        if len(points) == 1:
            dot = f'stroke-width="7" stroke-linecap="round" d="M{places[0]}h0"'
            marks.append(f"<path {look} {dot}>{title}</path>")
        else:
            line = f'stroke-width="1.5" points="{" ".join(places)}"'
            marks.append(f"<polyline {look} {line}>{title}</polyline>")
    return _figure(unit, _plot(top, ticks, marks) + legend(list(series)))


def columns(values: Sequence[tuple[str, float]], ticks: Sequence[Tick], unit: str) -> str:
    """A column for each value, from left to right; the ticks are written below."""
    top = nice_top(max((value for _, value in values), default=0))
    width = SIZE / max(1, len(values))
    marks = []
    for number, (name, value) in enumerate(values):
        y = _y(value, top)
        marks.append(
            f'<rect x="{number * width:.1f}" y="{y:.1f}" width="{width * 0.9:.1f}"'
            f' height="{SIZE - y:.1f}" fill="var(--c1)">'
            f"<title>{escape(name)}: {value:,.0f} {escape(unit)}</title></rect>"
        )
    return _figure(unit, _plot(top, ticks, marks))


def bars(values: Sequence[tuple[str, float]], unit: str) -> str:
    """A bar for each value, from top to bottom, with its name and its number."""
    top = max((value for _, value in values), default=0) or 1
    rows = (
        f'<span>{escape(name)}</span><div title="{value:,.0f} {escape(unit)}">'
        f'<i style="width:{100 * value / top:.1f}%"></i><b>{short(value)}</b></div>'
        for name, value in values
    )
    return _figure(unit, f'<div class="bars">{"".join(rows)}</div>')


def legend(names: Sequence[str]) -> str:
    """Return the legend of colours."""
    items = (
        f'<li><span style="background:var(--c{number % COLOURS + 1})"></span>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _y(value: float, top: float) -> float:
    return (1 - value / top) * SIZE


def _plot(top: float, ticks: Sequence[Tick], marks: Sequence[str]) -> str:
    """The marks, behind them lines at quarters of the height, the values of these, and the ticks below."""
    quarters = [(top * quarter / 4, SIZE * (1 - quarter / 4)) for quarter in range(5)]
    grid = "".join(f'<line x1="0" x2="{SIZE}" y1="{y}" y2="{y}" stroke="var(--faint)"/>' for _, y in quarters)
    values = "".join(f'<span style="top:{y / 10:g}%">{short(value)}</span>' for value, y in quarters)
    below = "".join(
        f'<span class="{_side(tick.place)}" style="left:{100 * tick.place:.1f}%">{escape(tick.label)}</span>'
        for tick in ticks
    )
    return (
        f'<div class="plot"><div class="y">{values}</div>'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" overflow="visible">'
        f'{grid}{"".join(marks)}</svg><div class="x">{below}</div></div>'
    )


def _side(place: float) -> str:
    return "first" if place < 0.05 else "last" if place > 0.95 else ""


def _figure(unit: str, inner: str) -> str:
    return f"<figure><figcaption>{escape(unit)}</figcaption>{inner}</figure>"
