"""Tables: quantities with units, and the columns that a terminal has room for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.cli.queues import COLUMNS
from malamute.cli.tables import DROPPED_FIRST, TEXT_CHARACTERS, cell, fitting, show_map


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("bytes", 1536, "1.5 KiB"),
        ("committed_bytes", 0, "0 B"),
        ("credit_bytes", -1, "unlimited"),
        ("retain_bytes", 0, "-"),
        ("oldest_age", 7500.0, "2 h 5 m"),
        ("lag_seconds", 0.25, "250 ms"),
        ("queue_time_p99_ms", 1500.0, "1.5 s"),
        ("oldest_age", None, "-"),
        ("messages", 123456, "123456"),
        ("arrival_rate", 1234.56, "1,234.6"),
        ("retain_age", "1h", "1h"),
        ("uptime", True, "yes"),
    ],
)
def test_a_quantity_has_its_unit(column: str, value: Any, text: str) -> None:
    assert cell(column, value) == text


def test_people_do_not_see_properties_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"streams": 0, "store_error": "", "endpoints": [], "oldest_age": None, "is_there": False}
    show_map(fields, as_json=False)
    assert capsys.readouterr().out == "streams      0\noldest age   -\nis there     no\n"
    show_map(fields, as_json=True)
    assert json.loads(capsys.readouterr().out) == fields


WIDTHS = [10 if column == "name" else len(column) for column in COLUMNS]
RIGHT = [column != "name" for column in COLUMNS]


@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (200, []),
        (80, ["delayed", "bytes", "oldest_age", "arrival_rate", "settled_rate"]),
        (60, ["delayed", "consumers", "bytes", "oldest_age", "arrival_rate", "settled_rate"]),
        (1, list(COLUMNS[1:])),
    ],
)
def test_a_narrow_terminal_lacks_the_columns_that_matter_least(width: int, missing: list[str]) -> None:
    places = fitting(COLUMNS, WIDTHS, RIGHT, width)
    assert [column for place, column in enumerate(COLUMNS) if place not in places] == missing


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=12), st.integers(1, 200))
def test_what_is_kept_has_room_and_one_column_more_has_none(
    columns: list[tuple[int, bool]], width: int
) -> None:
    names = [*DROPPED_FIRST, *map(str, range(len(columns)))][: len(columns)]
    widths, right = [w for w, _ in columns], [r for _, r in columns]
    places = fitting(names, widths, right, width)

    def needed(places: list[int]) -> int:
        return 1 + sum(3 + (widths[p] if right[p] else min(widths[p], TEXT_CHARACTERS)) for p in places)

    assert places == sorted(places)
    assert places[0] == 0
    assert len(places) == 1 or needed(places) <= width
    lacking = [p for p in range(len(names)) if p not in places]
    assert not lacking or needed([*range(len(names))]) > width
