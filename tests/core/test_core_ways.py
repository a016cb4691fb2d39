"""The ways through the core are those that docs/architecture.md has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from core_ways import WAYS, further, records, requests, trace

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")

TOLERANCE = 0.03
"""The part by which a number of changes may differ."""


def _row(way: str) -> list[int]:
    """The figures of a way: changes before and now, and files before and now."""
    (cells,) = re.findall(rf"^\| {way}\b[^|]*\|(.+)\|$", PAGE, re.MULTILINE)
    return [int(cell) for cell in cells.split("|") if cell.strip()]


@pytest.mark.parametrize("way", WAYS)
def test_a_way_is_as_long_as_it_is_said_to_be(way: str) -> None:
    _, changes, _, files = _row(way)
    found = trace(WAYS[way])
    assert found.changes == pytest.approx(changes, rel=TOLERANCE)
    assert len(found.files) == files


@pytest.mark.parametrize(("way", "make"), [("record", records), ("request", requests)])
def test_a_further_message_takes_as_much_as_it_is_said_to(way: str, make: object) -> None:
    _, changes = _row(f"each further {way}")
    assert round(further(make)) == pytest.approx(changes, rel=TOLERANCE)  # type: ignore[arg-type]
