"""The curves of cost and memory with tiny counts: what they print, not how fast or flat anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_commands import Run
from depth import some
from lab import scale
from lab.scale import AXES, Cost, ScaleOptions, rows_of, slope_of

DECADES = (10, 100, 1000, 10_000)


@pytest.mark.parametrize("axis", some(AXES, "depth"))
def test_an_axis(axis: str, run_lab: Run, forked: None, tmp_path: Path) -> None:
    words = ("--axis", axis, "--max", "10", "--messages", "500", "--rounds", "1")
    shown = json.loads(run_lab("scale", "--json", "--data", str(tmp_path), *words).stdout)
    assert list(tmp_path.iterdir()) == []
    assert {"cores", "durability", "messages", "largest"} <= set(shown["parameters"])
    points = [point for point in AXES[axis].points if point <= 10] or [AXES[axis].points[0]]
    assert [(row["what"], row["point"]) for row in shown["results"]] == [(axis, point) for point in points]
    for row in shown["results"]:
        assert row["messages"] >= scale.FEW
        assert row["extent"][0] <= row["cost_us"] <= row["extent"][1]
        assert row["cost_us"] > 0
        assert row["memory_mib"] > 0
        assert (row["bytes_each"] is None) == (row["point"] == points[0])
        assert row["slope"] == shown["results"][0]["slope"]
        assert row["expected"] == AXES[axis].expected


def test_a_point_beyond_the_highest_is_not_measured_but_for_the_first(tmp_path: Path, forked: None) -> None:
    options = ScaleOptions(100, 100, 1, 1, ["depth"], tmp_path)
    (row,) = scale.measure(options)
    assert (row.point, row.slope, row.flat) == (AXES["depth"].points[0], None, "-")


@pytest.mark.parametrize(
    ("grows", "slope", "flat"),
    [
        (lambda point: 5.0, 0.0, "yes"),
        (lambda point: 3 * point**0.1, 0.1, "yes"),
        (lambda point: 3 * point**0.102, 0.102, "no"),
        (lambda point: 0.1 * point, 1.0, "no"),
        (lambda point: 10 / point, -1.0, "yes"),
    ],
)
def test_the_slope_is_the_exponent_of_the_cost(grows, slope: float, flat: str) -> None:
    costs = {point: [Cost(1000, grows(point) / 1e3, 10**6, 1.0)] for point in DECADES}
    rows = [*rows_of("x", "flat", costs)]
    assert {(row.slope, row.flat) for row in rows} == {(slope, flat)}
    assert [row.cost_us for row in rows] == [round(grows(point), 3) for point in DECADES]
    assert slope_of({10: 1.0}) is None


def test_medians_extents_and_what_each_more_takes() -> None:
    costs = {
        10: [Cost(100, seconds, 1 << 20, 1.0) for seconds in (3e-4, 1e-4, 2e-4)],
        110: [Cost(100, 2e-4, (1 << 20) + grown, 1.0) for grown in (0, 5000, 90_000)],
    }
    first, last = rows_of("x", "flat", costs)
    assert (first.cost_us, first.extent, first.memory_mib, first.bytes_each) == (2, [1, 3], 1, None)
    assert (last.messages, last.bytes_each) == (100, 50)
