"""Figures over time, for charts: of the broker, and of its streams, queues and consumers."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from math import isnan, nan
from time import time

from malamute.gateway.routes import Parameter

SAMPLES = 900
"""Number of samples that are kept: of half an hour, and of more while nobody looks."""

SERIES_MAX = 200
"""Maximum streams, or queues of a kind, with figures over time: the first that have any traffic."""

POINTS = 90
"""Maximum points of a chart."""

MINUTES = Parameter(
    "minutes", "The range of the charts.", {"type": "integer", "minimum": 1, "maximum": 30, "default": 30}
)


class SeriesTable:
    """Figures by name, sampled at common times."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._times = array("d")
        self._by_name: dict[str, array[float]] = {}

    def add(self, at: float, figures: Mapping[str, Sequence[float]]) -> None:
        """Add a sample: names that it lacks are forgotten."""
        self._by_name = {name: known for name, known in self._by_name.items() if name in figures}
        for name, values in figures.items():
            known = self._by_name.get(name)
            if known is None:
                if len(self._by_name) >= SERIES_MAX or not any(values):
                    continue
                known = self._by_name[name] = array("f", [nan]) * (len(self._times) * self._width)
            known.extend(values)
        self._times.append(at)
        if len(self._times) > 2 * SAMPLES:
            del self._times[:SAMPLES]
            for known in self._by_name.values():
                del known[: SAMPLES * self._width]

    def of(self, name: str) -> list[list[float]]:
        """Return the samples of a name: the time in seconds since the epoch, and the figures."""
        known, width = self._by_name.get(name, array("f")), self._width
        rows = (
            [[at, *known[n * width : (n + 1) * width]] for n, at in enumerate(self._times)] if known else []
        )
        return [row for row in rows if not isnan(row[1])][-SAMPLES:]

    def recent(self, name: str, count: int = 30) -> list[float]:
        """Return the last values of the first figure."""
        known = self._by_name.get(name, array("f"))
        return [value for value in known[-count * self._width :: self._width] if not isnan(value)]


def charted(rows: Sequence[Sequence[float]], minutes: int) -> str:
    """Return the columns of a chart as JSON, in few points: each is the mean of some samples."""
    since = time() - 60 * minutes
    rows = [row for row in rows if row[0] >= since]
    each = max(1, -(-len(rows) // POINTS))
    runs = [rows[place : place + each] for place in range(0, len(rows), each)]
    columns = zip(
        *([sum(column) / len(run) for column in zip(*run, strict=True)] for run in runs), strict=True
    )
    return json.dumps([[_short(value) for value in column] for column in columns], separators=(",", ":"))


def _short(value: float) -> float:
    """Return a value with the digits that a chart shows: the page has hundreds of them."""
    return int(value) if value >= 1000 else round(value, 1 if value >= 10 else 3)
