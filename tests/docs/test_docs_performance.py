"""The page of figures has what was measured last, and its charts and words follow from that alone."""

from __future__ import annotations

import json
import runpy
from typing import Any
from xml.etree import ElementTree

import pytest
from docs_blocks import ROOT
from lab.peers.measure import PeersRow
from lab.peers.table import PEERS, WORKS
from lab.scale import AXES, ScaleRow

MADE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "make" / "performance.py"))
MEASURED = ROOT / "docs" / "performance"


def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def test_the_page_is_made_of_what_was_measured() -> None:
    assert MADE["PAGE"].read_text(encoding="utf-8") == MADE["page"]()
    assert {found[1] for found in MADE["MADE"].findall(MADE["page"]())} == set(MADE["PARTS"])


@pytest.mark.parametrize("name", MADE["CHARTS"])
def test_a_chart_is_made_of_what_was_measured(name: str) -> None:
    chart = MADE["CHARTS"][name]().svg
    assert (MEASURED / name).read_text(encoding="utf-8") == chart
    ElementTree.fromstring(chart)


def test_the_measurements_have_the_fields_and_names_of_today() -> None:
    peers, scale = _load("peers"), _load("scale")
    assert all(set(row) == set(PeersRow._fields) for row in peers["results"])
    assert all(set(row) == set(ScaleRow._fields) for row in scale["results"])
    measured = {row["peer"] for row in peers["results"]}
    # Floors are for goals of the same round, on any machine; the page may be of before them, and of before
    # the frameworks.
    assert {*measured, "Redis without AOF", *(n for n in PEERS if n.startswith("floor"))} == set(PEERS)
    frameworks = {work.what for work in WORKS.values() if work.what.startswith(("Celery", "taskiq"))}
    assert {row["what"] for row in peers["results"]} | frameworks == {w.what for w in WORKS.values()}
    assert {row["what"] for row in scale["results"]} <= set(AXES)


@pytest.mark.parametrize(
    ("relation", "limit", "value", "said"),
    [
        ("≤", 1.5, 1.5, "met"),
        ("≤", 1.5, 1.501, "missed"),
        ("≥", 2.0, 2.0, "met"),
        ("≥", 2.0, 1.999, "missed"),
        ("≥", 2.0, None, ""),
    ],
)
def test_a_goal_is_met_at_its_limit(relation: str, limit: float, value: float | None, said: str) -> None:
    assert MADE["_goal"]("x", relation, limit, value)[-1] == said


def test_goals_that_were_not_measured_are_shown_as_that() -> None:
    measured = MADE["Measurement"]({"subscribers": 10}, [])
    assert MADE["_fanout_goal"]([])[2] == "not measured"
    assert [*MADE["_stored_goals"](measured, {})] == []


def test_a_stored_round_trip_is_held_to_a_bare_one_and_two_fsyncs() -> None:
    stored = {"p50_ms": 1.25, "p99_ms": 6.25}
    found = {
        (WORKS["stored-request"].what, "Malamute"): stored,
        (WORKS["request"].what, "bare ROUTER"): {"p50_ms": 0.2},
    }
    measured = MADE["Measurement"]({"speed of fsync": "0.50 ms for 4 KiB"}, [])
    assert [line[1:] for line in MADE["_stored_goals"](measured, found)] == [
        ["≤ 1.35 ms", "1.25 ms", "met"],
        ["≤ 5", "5", "met"],
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (0.1234, "0.123"),
        (12.345, "12.3"),
        (999.4, "999"),
        (999.6, "1,000"),
        (1234.5, "1,230"),
        (567_890, "568,000"),
    ],
)
def test_a_figure_has_three_digits(value: float | None, words: str) -> None:
    assert MADE["number"](value) == words
