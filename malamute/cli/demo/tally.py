"""The same counts without a broker: by the columns of the files, not by subjects and patterns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from malamute.cli.demo.rows import METRICS, MISSING, open_table, open_text

Group = tuple[str, str, str]
"""Carrier, origin and month: the topic of one request."""


class DemoTopic(NamedTuple):
    """A subscription, and the values that the rows for it have; None is any value."""

    stream: str
    pattern: str
    values: tuple[str | None, ...]

    @property
    def name(self) -> str:
        """Return stream and pattern."""
        return f"{self.stream} {self.pattern}"

    def wants(self, values: tuple[str, ...]) -> bool:
        """Return whether a row with these values matches."""
        return all(own is None or own == value for own, value in zip(self.values, values, strict=True))


TOPICS = (
    DemoTopic("flights", "#", (None, None, None)),
    DemoTopic("flights", "JFK.#", ("JFK", None, None)),
    DemoTopic("flights", "*.LAX.*", (None, "LAX", None)),
    DemoTopic("flights", "*.*.AA", (None, None, "AA")),
    DemoTopic("weather", "EWR.temp", ("EWR", "temp")),
    DemoTopic("weather", "*.wind_speed", (None, "wind_speed")),
)
"""The topics of subscribers: flights by origin, destination and carrier; weather by origin and metric."""


class DemoTally:
    """Totals of the files: rows by the values of their subject, bytes, and delays in minutes."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[tuple[str, ...]]] = {"flights": Counter(), "weather": Counter()}
        self.flight_bytes = 0
        self.delays: Mapping[Group, list[int]] = {}

    def count(self, stream: str) -> int:
        """Return the number of messages for a stream."""
        return self.rows[stream].total()

    def of(self, topic: DemoTopic) -> int:
        """Return the number of them for a subscription."""
        return sum(count for values, count in self.rows[topic.stream].items() if topic.wants(values))

    @property
    def origins(self) -> Counter[str]:
        """Return the flights by origin."""
        flights: Counter[str] = Counter()
        for values, count in self.rows["flights"].items():
            flights[values[0]] += count
        return flights


def tally(flights: Path, weather: Path, most: int | None = None) -> DemoTally:
    """Count both files; of the flights no more than `most`."""
    found = DemoTally()
    _count_flights(found, flights, most)
    _count_weather(found, weather)
    return found


def _count_flights(found: DemoTally, path: Path, most: int | None) -> None:
    columns = ("origin", "dest", "carrier", "month", "arr_delay")
    delays: defaultdict[Group, list[int]] = defaultdict(list)
    rows = found.rows["flights"]
    with open_text(path) as file:
        for line, (origin, dest, carrier, month, delay) in open_table(file, columns, most).picked(columns):
            rows[origin, dest, carrier] += 1
            found.flight_bytes += len(line.encode())
            if delay != MISSING:
                delays[carrier, origin, month].append(int(delay))
    found.delays = dict(delays)


def _count_weather(found: DemoTally, path: Path) -> None:
    columns = ("origin", *METRICS)
    with open_text(path) as file:
        for _, (origin, *values) in open_table(file, columns).picked(columns):
            for metric, value in zip(METRICS, values, strict=True):
                if value != MISSING:
                    found.rows["weather"][origin, metric] += 1
