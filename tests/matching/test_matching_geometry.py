"""ZN17: areas on the sphere, at the places where maps go wrong."""

import pytest

from malamute.matching import Index, Selector
from malamute.matching.geometry import CELLS_MAX, Circle, area_of, cell_at, distance_km, position


def matches(pattern, latitude, longitude):
    index = Index()
    index.add("k", Selector.parse([["geo", pattern]]))
    return bool(index.match("flight", {"lat": latitude, "lon": longitude}))


@pytest.mark.parametrize(
    ("pattern", "latitude", "longitude", "wanted"),
    [
        ({"box": [-20, 170, 20, -170]}, 0, 175, True),  # across the antimeridian
        ({"box": [-20, 170, 20, -170]}, 0, -175, True),
        ({"box": [-20, 170, 20, -170]}, 0, 180, True),
        ({"box": [-20, 170, 20, -170]}, 0, -180, True),
        ({"box": [-20, 170, 20, -170]}, 0, 540, True),
        ({"box": [-20, 170, 20, -170]}, 0, 0, False),
        ({"box": [-20, -170, 20, 170]}, 0, 0, True),  # the long way round
        ({"box": [-20, -170, 20, 170]}, 0, 180, False),
        ({"box": [10.1, 20.2, 10.3, 20.4]}, 10.1, 20.2, True),  # its border is part of it
        ({"box": [10.1, 20.2, 10.3, 20.4]}, 10.3, 20.4, True),
        ({"box": [10.1, 20.2, 10.3, 20.4]}, 10.3000001, 20.4, False),
        ({"box": [80, 0, 90, 10]}, 90, 123, True),  # a pole is one point
        ({"box": [80, 0, 90, 10]}, 89.9, 123, False),
        ({"box": [-90, 0, -80, 10]}, -90, -77, True),
        ({"box": [0, -180, 1, 180]}, 0.5, 77, True),
        ({"box": [5, 5, 5, 5]}, 5, 5, True),
        ({"circle": [90, 0, 100]}, 89.5, 180, True),  # around a pole
        ({"circle": [90, 0, 100]}, 88.5, 180, False),
        ({"circle": [89.9, 0, 100]}, 89.9, 180, True),  # over a pole
        ({"circle": [0, 179.9, 50]}, 0, -179.9, True),  # across the antimeridian
        ({"circle": [0, -179.9, 50]}, 0, 179.9, True),
        ({"circle": [0, 179.9, 50]}, 0, 179, False),
        ({"circle": [0, 0, 0]}, 0, 0, True),
        ({"circle": [0, 0, 20016]}, 0, 180, True),  # all of it
        ({"circle": [0, 0, 1]}, 0, True, False),
        ({"circle": [0, 0, 1]}, "0", 0, False),
        ({"circle": [0, 0, 30000]}, 91, 0, False),
    ],
)
def test_a_point_and_an_area(pattern, latitude, longitude, wanted):
    assert matches(pattern, latitude, longitude) is wanted


def test_a_distance_that_is_known():
    # Oslo to Bergen, 305 km along the great circle.
    assert distance_km(59.91, 10.75, 60.39, 5.32) == pytest.approx(305, abs=1)
    assert distance_km(0, 0, 0, 180) == pytest.approx(20015, abs=1)


@pytest.mark.parametrize("radius_km", [0, 0.01, 1, 50, 500, 5_000, 25_000])
@pytest.mark.parametrize("centre", [(0, 0), (60, 10.5), (-89.99, 5), (45, 179.999), (0, -180), (90, 0)])
def test_a_cover_is_small_and_holds_the_area(centre, radius_km):
    circle = Circle(*centre, radius_km)
    cover = circle.cover()
    assert len(cover) <= CELLS_MAX
    levels = {cell.level for cell in cover}
    assert len(levels) == 1
    for up in range(-10, 11):
        for along in range(-10, 11):
            reach = radius_km / 111.0
            point = position(max(-90, min(90, centre[0] + up / 10 * reach)), centre[1] + along / 10 * reach)
            if point is not None and circle.contains(point):
                assert cell_at(point, min(levels)) in cover


def test_an_area_is_made_of_three_or_four_numbers():
    assert area_of([1, 2, 3]).numbers() == (1, 2, 3)
    assert area_of([1, 2, 3, 4]).numbers() == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="invalid area"):
        area_of([1, 2])
