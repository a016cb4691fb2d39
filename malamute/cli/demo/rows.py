"""Flights and weather as messages.

A flight has the subject `ORIGIN.DEST.CARRIER`, headers, and its row as the body. A row of weather is a
message for each of its values, with the subject `ORIGIN.METRIC`. Missing values (`NA`) are left out.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from malamute.cli.error_output import BadInput
from malamute.cli.payload import OutgoingMessage, Value

SAMPLE = Path(__file__).parents[1] / "demo_data"
FLIGHTS = SAMPLE / "flights.csv.gz"
WEATHER = "weather.csv.gz"
AIRPORTS = SAMPLE / "airports.csv"

METRICS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
MISSING = "NA"

_TYPES: Mapping[str, Callable[[str], Value]] = {
    "carrier": str,
    "origin": str,
    "dest": str,
    "tailnum": str,
    "dep_delay": int,
    "arr_delay": int,
    "distance": int,
}
"""The headers of a flight, each a column."""

Position = tuple[float, float]


class CsvFile(NamedTuple):
    """A file of unquoted comma-separated values: the places of its columns, and its rows."""

    place: Mapping[str, int]
    lines: Iterator[str]

    def picked(self, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield each line with the values of these columns. Raises `BadInput` for a short line."""
        places = [self.place[column] for column in columns]
        width = len(self.place)
        for number, line in enumerate(self.lines, 2):
            values = line.split(",")
            if len(values) != width:
                raise BadInput(f"line {number} has {len(values)} columns: expected {width}")
            yield line, [values[place] for place in places]


def open_table(file: IO[str], columns: Sequence[str], most: int | None = None) -> CsvFile:
    """Read the first line. Raises `BadInput` when a column is missing."""
    place = {name: number for number, name in enumerate(file.readline().rstrip("\r\n").split(","))}
    for column in columns:
        if column not in place:
            raise BadInput(f"there is no column {column!r}: expected a file of flights or weather")
    return CsvFile(place, (line.rstrip("\r\n") for line in islice(file, most)))


def open_text(path: Path) -> IO[str]:
    """Open a file, compressed by gzip or not. Raises `BadInput` when it cannot be read."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")


def positions() -> dict[str, Position]:
    """Return the positions of airports, in degrees, by their code."""
    with AIRPORTS.open(encoding="utf-8", newline="") as file:
        return {row["faa"]: (float(row["lat"]), float(row["lon"])) for row in csv.DictReader(file)}


def flights(path: Path, most: int | None = None) -> Iterator[OutgoingMessage]:
    """Yield each flight as a message, up to `most`."""
    where = positions()
    with open_text(path) as file:
        for line, values in open_table(file, list(_TYPES), most).picked(list(_TYPES)):
            headers = {
                name: read(value)
                for (name, read), value in zip(_TYPES.items(), values, strict=True)
                if value != MISSING
            }
            if position := where.get(values[2]):
                headers["lat"], headers["lon"] = position
            carrier, origin, dest = values[:3]
            yield OutgoingMessage(f"{origin}.{dest}.{carrier}", headers, line.encode())


def weather(path: Path) -> Iterator[OutgoingMessage]:
    """Yield each value of the weather as a message."""
    columns = ("origin", "time_hour", *METRICS)
    with open_text(path) as file:
        for _, (origin, hour, *values) in open_table(file, columns).picked(columns):
            for metric, value in zip(METRICS, values, strict=True):
                if value != MISSING:
                    yield OutgoingMessage(f"{origin}.{metric}", {"hour": hour}, value.encode())


def weather_beside(path: Path) -> Path:
    """Return the weather file beside a file of flights, or that of the sample."""
    beside = path.with_name(WEATHER)
    return beside if beside.exists() else SAMPLE / WEATHER
