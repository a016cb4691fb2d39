"""Areas on the sphere, and the cells that cover them.

A point is a latitude from -90 to 90 and a longitude, in degrees. A longitude is turned into
[-180, 180), however many turns it is off (below a thousand million). Two kinds of area:

    Circle  all points within a radius of a centre, by great-circle distance (haversine formula,
            R. W. Sinnott, "Virtues of the haversine", 1984) on a sphere of the Earth's mean radius
    Box     between two parallels, and from one meridian *eastward* to another; so a box may
            cross the antimeridian (west 170, east -170). A pole is one point of every
            longitude: a box that reaches it contains it.

An index needs terms, so the sphere is divided into square cells at 21 levels: at level n a cell is
180 / 2**n degrees on each side. An area is covered by the cells of the finest level at which
CELLS_MAX of them are enough, and the terms of a message are the cells of its point, at each level in
use. Cells are larger than the area: the caller checks `contains` afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import asin, ceil, cos, degrees, floor, radians, sin, sqrt
from typing import Any, NamedTuple

EARTH_RADIUS_KM = 6371.0088
CELLS_MAX = 16
LEVEL_MAX = 20
_MARGIN = 1e-6  # degrees; more than any rounding in the bounds, and far less than the finest cell


class Point(NamedTuple):
    """A place on the sphere, in degrees; `longitude` is in [-180, 180), and 0 at a pole."""

    latitude: float
    longitude: float


class Cell(NamedTuple):
    """One square of the grid of a level."""

    level: int
    row: int
    column: int


class GeoBounds(NamedTuple):
    """Two parallels and two meridians; `width` is counted eastward from `west`, up to 360."""

    south: float
    north: float
    west: float
    width: float


def position(latitude: Any, longitude: Any) -> Point | None:
    """Return the point of two values from a message; None for invalid values."""
    if not (_is_number(latitude) and _is_number(longitude)) or not -90 <= latitude <= 90:
        return None
    if abs(latitude) == 90:
        return Point(float(latitude), 0.0)
    if -180 <= longitude < 180:  # as it is: a turn would round it, and the borders of a box are exact
        return Point(float(latitude), float(longitude))
    return Point(float(latitude), eastward(-180.0, longitude) - 180.0)


def eastward(start: float, end: float) -> float:
    """Return the degrees from one meridian eastward to another, in [0, 360)."""
    turn = (end - start) % 360.0
    return turn if turn < 360.0 else 0.0  # -1e-20 % 360 is 360


def area_of(numbers: Sequence[Any]) -> Area:
    """Return the circle of (latitude, longitude, radius in km), or the box of (south, west, north, east).

    Raises ValueError, with words for people, for other numbers.
    """
    if len(numbers) not in (3, 4) or not all(map(_is_number, numbers)):
        raise ValueError(
            "invalid area: expected latitude, longitude, radius in km; or south, west, north, east"
        )
    values = [float(number) for number in numbers]
    parallels = values[:1] if len(values) == 3 else values[0::2]
    if not all(-90 <= latitude <= 90 for latitude in parallels):
        raise ValueError("invalid latitude: expected -90 to 90 degrees")
    if len(values) == 3:
        if values[2] < 0:
            raise ValueError("invalid radius: expected 0 km or more")
        return Circle(*values)
    if values[0] > values[2]:
        raise ValueError("invalid box: expected its south to be south of its north")
    return Box(*values)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) < 1e9  # beyond, a turn would round it; infinite values are excluded, too


class Area(ABC):
    """A set of points."""

    __slots__ = ()

    @abstractmethod
    def contains(self, point: Point) -> bool:
        """Return whether the point is in the area or on its border."""

    @abstractmethod
    def bounds(self) -> GeoBounds:
        """Return the parallels and meridians around the area, 360 degrees wide if it contains a pole."""

    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """Return the numbers that define the area."""

    def cover(self) -> list[Cell]:
        """Return at most CELLS_MAX cells of one level that cover the area (level 0 has two)."""
        bounds = self.bounds()
        cells = [Cell(0, 0, 0), Cell(0, 0, 1)]
        for level in range(1, LEVEL_MAX + 1):
            finer = list(_cells(bounds, level))
            if len(finer) > CELLS_MAX:
                break
            cells = finer
        return cells


@dataclass(frozen=True, slots=True)
class Circle(Area):
    """All points within `radius_km` of a centre."""

    latitude: float
    longitude: float
    radius_km: float

    def contains(self, point: Point) -> bool:
        """Return whether the great-circle distance is at most the radius."""
        return distance_km(self.latitude, self.longitude, *point) <= self.radius_km

    def bounds(self) -> GeoBounds:
        """Return the parallels and meridians that touch the circle (Matuschek, "Bounding coordinates")."""
        reach = degrees(self.radius_km / EARTH_RADIUS_KM) + _MARGIN
        south, north = max(-90.0, self.latitude - reach), min(90.0, self.latitude + reach)
        if south == -90.0 or north == 90.0:
            return GeoBounds(south, north, -180.0, 360.0)
        half = degrees(asin(min(1.0, sin(radians(reach)) / cos(radians(self.latitude))))) + _MARGIN
        return GeoBounds(south, north, self.longitude - half, min(360.0, 2 * half))

    def numbers(self) -> tuple[float, ...]:
        """Return latitude, longitude, radius in km."""
        return (self.latitude, self.longitude, self.radius_km)


@dataclass(frozen=True, slots=True)
class Box(Area):
    """All points from south to north, and from west eastward to east."""

    south: float
    west: float
    north: float
    east: float

    @property
    def width(self) -> float:
        """The degrees from west eastward to east; 360 for a full turn."""
        return 360.0 if self.east - self.west >= 360.0 else eastward(self.west, self.east)

    def contains(self, point: Point) -> bool:
        """Return whether the point is between the parallels and the meridians."""
        if not self.south <= point.latitude <= self.north:
            return False
        return abs(point.latitude) == 90 or eastward(self.west, point.longitude) <= self.width

    def bounds(self) -> GeoBounds:
        """Return the box with a margin; 360 degrees wide if it reaches a pole."""
        south, north = max(-90.0, self.south - _MARGIN), min(90.0, self.north + _MARGIN)
        if south == -90.0 or north == 90.0:
            return GeoBounds(south, north, -180.0, 360.0)
        return GeoBounds(south, north, self.west - _MARGIN, min(360.0, self.width + 2 * _MARGIN))

    def numbers(self) -> tuple[float, ...]:
        """Return south, west, north, east."""
        return (self.south, self.west, self.north, self.east)


def distance_km(latitude: float, longitude: float, to_latitude: float, to_longitude: float) -> float:
    """Return the great-circle distance of two points given in degrees."""
    up = sin(radians(to_latitude - latitude) / 2) ** 2
    along = sin(radians(to_longitude - longitude) / 2) ** 2
    chord = up + cos(radians(latitude)) * cos(radians(to_latitude)) * along
    return 2 * EARTH_RADIUS_KM * asin(min(1.0, sqrt(chord)))


def cell_at(point: Point, level: int) -> Cell:
    """Return the cell of a level that contains a point."""
    across = 2**level
    row = min(across - 1, floor((point.latitude + 90.0) / 180.0 * across))
    column = floor((point.longitude + 180.0) / 180.0 * across) % (2 * across)
    return Cell(level, row, column)


def _cells(bounds: GeoBounds, level: int) -> Iterator[Cell]:
    across = 2**level
    side = 180.0 / across
    first = floor((bounds.west + 180.0) / side)
    # One column more than the width needs, since the bounds may begin within a column.
    columns = min(2 * across, ceil(bounds.width / side) + 1)
    for row in range(floor((bounds.south + 90.0) / side), floor((bounds.north + 90.0) / side) + 1):
        for column in range(first, first + columns):
            yield Cell(level, min(row, across - 1), column % (2 * across))
