"""The figures and the charts of docs/performance.md, out of what two benchmarks print.

    make bench --silent ARGS="peers --json" > docs/performance/peers.json
    make bench --silent ARGS="scale --json" > docs/performance/scale.json
    python docs/make/performance.py

The page is written by hand but for what stands between `<!-- made: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import log10
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "bench"))

from drawing import Drawing
from lab.peers.table import OWN, PEERS, WORKS

DOCS = Path(__file__).parents[1]
PAGE, MEASURED = DOCS / "performance.md", DOCS / "performance"
MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = dict[str, Any]
Table = list[Sequence[str]]


class Measurement(NamedTuple):
    """What a benchmark printed."""

    parameters: Mapping[str, Any]
    results: list[Row]


def load(name: str) -> Measurement:
    """What the benchmark of this name printed when it was last recorded."""
    return Measurement(**json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8")))


# Words


def number(value: float | None) -> str:
    """A figure with three digits."""
    if value is None:
        return "-"
    if abs(value) < 999.5:
        return f"{value:.3g}"
    return f"{float(f'{value:.3g}'):,.0f}"


def short(point: int) -> str:
    """A point of an axis."""
    for size, unit in ((10**6, " M"), (10**3, " k")):
        if point >= size:
            return f"{point // size}{unit}"
    return str(point)


def span(extent: Sequence[float] | None) -> str:
    """From where to where."""
    return "-" if extent is None else "\u2013".join(map(number, extent))


def table(rows: Iterable[Sequence[str]]) -> str:
    """Markdown of a table, whose first row is its head."""
    head, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *body])


def _figure(row: Row) -> tuple[float, str]:
    """What a row of `peers` is about, and its unit."""
    return (row["per_second"], "/s") if row["p50_ms"] is None else (row["p50_ms"], " ms")


# Beside other brokers


def peers_about() -> str:
    """Whom, with versions and durability, and which of the measured works each can do."""
    measured = load("peers").parameters
    works: list[str] = measured["works"]
    rows: Table = [["", "version and durability", *works]]
    for name, peer in PEERS.items():
        if name in measured and not peer.parts.keys().isdisjoint(works):
            rows.append([name, measured[name], *("yes" if work in peer.parts else "-" for work in works)])
    return table(rows)


def peers_figures() -> str:
    """All rows."""
    rows: Table = [["", "", "median", "p99", "Malamute in parts of it", "from, to", "server, µs"]]
    for what, group in groupby(load("peers").results, lambda row: row["what"]):
        for place, row in enumerate(group):
            value, unit = _figure(row)
            rows.append(
                [
                    "" if place else what,
                    row["peer"],
                    number(value) + unit,
                    "-" if row["p99_ms"] is None else f"{number(row['p99_ms'])} ms",
                    number(row["malamute_ratio"]),
                    span(row["ratio_extent"]),
                    number(row["server_cpu_us"]),
                ]
            )
    return table(rows)


GOALS = (
    ("request", "bare ROUTER", "≤", 1.5),
    ("request", "NATS", "≤", 1.1),
    ("waited", "floor, log file", "≤", 2.0),
    ("waited", "Redis Streams", "≤", 2.2),
    ("stored-request", "Redis Streams", "≤", 1.2),
    ("unconfirmed", "NATS", "≥", 1.0),
    ("confirmed", "JetStream", "≥", 2.0),
    ("batched", "NATS", "≥", 3.0),
    ("batched", "zmq.proxy", "≥", 0.85),
)
"""What Malamute is to have, in parts of a peer: of latency where less is better, of rate where more is."""

STORED_BEYOND_MS = 0.15
"""What a stored round trip may take beyond a bare one and two fsyncs."""

TAIL = 5.0
"""Its p99, in parts of its p50, at the most."""

FANOUT, FANOUT_SUBSCRIBERS, FANOUT_PER_SECOND = "fan-out", 1_000, 1_000_000
"""The axis of the fan-out, the point of it that has a goal, and the goal."""


def peers_goals() -> str:
    """The goals, and whether this run met them."""
    measured = load("peers")
    found = {(row["what"], row["peer"]): row for row in measured.results}
    rows: Table = [["goal", "is to be", "is", ""]]
    for work, peer, relation, limit in GOALS:
        row = found.get((WORKS[work].what, peer))
        what = f"{WORKS[work].what}: in parts of {peer}"
        rows.append(_goal(what, relation, limit, row and row["malamute_ratio"]))
    rows += [*_stored_goals(measured, found), _fanout_goal(load("scale").results)]
    return table(rows)


def _goal(what: str, relation: str, limit: float, value: float | None, unit: str = "") -> list[str]:
    if value is None:
        return [what, f"{relation} {number(limit)}{unit}", "not measured", ""]
    met = value <= limit if relation == "≤" else value >= limit
    return [what, f"{relation} {number(limit)}{unit}", f"{number(value)}{unit}", "met" if met else "missed"]


def _stored_goals(measured: Measurement, found: Mapping[tuple[str, str], Row]) -> Iterable[list[str]]:
    stored = found.get((WORKS["stored-request"].what, OWN.name))
    bare = found.get((WORKS["request"].what, "bare ROUTER"))
    what = WORKS["stored-request"].what
    if stored and bare:
        fsync_ms = float(measured.parameters["speed of fsync"].split()[0])
        limit = bare["p50_ms"] + 2 * fsync_ms + STORED_BEYOND_MS
        yield _goal(f"{what}: bare ROUTER + 2 fsyncs + 150 µs", "≤", limit, stored["p50_ms"], " ms")
        yield _goal(f"{what}: p99 in parts of p50", "≤", TAIL, stored["p99_ms"] / stored["p50_ms"])


def _fanout_goal(points: Sequence[Row]) -> list[str]:
    fanned = [row for row in points if row["what"] == FANOUT and row["point"] == FANOUT_SUBSCRIBERS]
    what = f'fan-out to {FANOUT_SUBSCRIBERS:,} connections (`make bench ARGS="scale --axis {FANOUT}"`)'
    return _goal(what, "≥", FANOUT_PER_SECOND, fanned[0].get("per_second") if fanned else None, "/s")


def peers_chart() -> Drawing:
    """A bar for each peer, work by work."""
    groups = [(what, [*rows]) for what, rows in groupby(load("peers").results, lambda row: row["what"])]
    height = sum(38 + 20 * len(rows) for _, rows in groups) + 14
    d = Drawing("Malamute beside other brokers", 820, height)
    top = 14
    for what, rows in groups:
        unit = _figure(rows[0])[1]
        better = "more is better" if unit == "/s" else "less is better"
        d.text(14, top + 14, f"{what} ({better})", bold=True, at="start")
        most = max(_figure(row)[0] for row in rows)
        for place, row in enumerate(rows):
            y = top + 22 + 20 * place
            width = 520 * _figure(row)[0] / most
            d.text(140, y + 12, row["peer"], at="end")
            d.bar(150, y + 1, width, 14, "pure" if row["peer"] == OWN.name else "net")
            d.text(156 + width, y + 12, number(_figure(row)[0]) + unit, pale=True, at="start")
        top += 38 + 20 * len(rows)
    return d


# Curves


def _curves() -> list[tuple[str, list[Row]]]:
    return [(what, [*rows]) for what, rows in groupby(load("scale").results, lambda row: row["what"])]


def scale_figures() -> str:
    """Where each curve begins and ends."""
    rows: Table = [
        ["axis", "points", "µs, first → last", "slope", "flat", "by design", "MiB", "bytes for each more"]
    ]
    for what, points in _curves():
        first, last = points[0], points[-1]
        rows.append(
            [
                what,
                f"{first['point']:,} → {last['point']:,}",
                f"{number(first['cost_us'])} → {number(last['cost_us'])}",
                number(last["slope"]),
                last["flat"],
                last["expected"],
                f"{number(first['memory_mib'])} → {number(last['memory_mib'])}",
                number(last["bytes_each"]),
            ]
        )
    return table(rows)


WIDTH, HEIGHT = 396, 150
"""Of one curve, with what is around it."""


def scale_chart() -> Drawing:
    """All curves, both axes by powers of ten."""
    curves = _curves()
    lines = (len(curves) + 1) // 2
    d = Drawing("Processor time of the broker a message, in microseconds", 820, HEIGHT * lines + 14)
    for place, (what, rows) in enumerate(curves):
        _curve(d, 14 + WIDTH * (place % 2), 14 + HEIGHT * (place // 2), what, rows)
    return d


def _curve(d: Drawing, left: int, top: int, what: str, rows: list[Row]) -> None:
    d.text(left, top + 12, f"{what}: µs a message", bold=True, at="start")
    xs, ys = ([log10(row[name]) for row in rows] for name in ("point", "cost_us"))
    low, high = min(ys), max(ys)
    middle, decades = (low + high) / 2, max(high - low, 2.0)
    places = [
        (
            left + 24 + 320 * (x - xs[0]) / max(xs[-1] - xs[0], 1.0),
            top + 72 - 64 * (y - middle) / decades,
        )
        for x, y in zip(xs, ys, strict=True)
    ]
    d.curve(places)
    for (x, y), row in zip(places, rows, strict=True):
        d.text(x, y - 8, number(row["cost_us"]), pale=True, halo=True)
        d.text(x, top + 128, short(row["point"]), pale=True)


# The page


def machine() -> str:
    """What both runs were made on."""
    rows: Table = [["", "peers", "scale"]]
    peers, scale = load("peers").parameters, load("scale").parameters
    skipped = {*PEERS, *(f"without {name}" for name in PEERS), "works", "peers", "axes"}
    for name in [name for name in {**peers, **scale} if name not in skipped]:
        rows.append([name, str(peers.get(name, "-")), str(scale.get(name, "-"))])
    return table(rows)


PARTS: dict[str, Callable[[], str]] = {
    make.__name__: make for make in (machine, peers_about, peers_figures, peers_goals, scale_figures)
}
CHARTS: dict[str, Callable[[], Drawing]] = {"peers.svg": peers_chart, "scale.svg": scale_chart}


def page() -> str:
    """The page, with what is made anew."""
    return MADE.sub(lambda found: found[1] + PARTS[found[2]]() + found[3], PAGE.read_text(encoding="utf-8"))


def main() -> None:
    """Write the page and its charts."""
    PAGE.write_text(page(), encoding="utf-8")
    for name, make in CHARTS.items():
        (MEASURED / name).write_text(make().svg, encoding="utf-8")


if __name__ == "__main__":
    main()
